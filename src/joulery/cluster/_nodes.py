"""The GPUs of many nodes, capped from one place through each node's governor.

The governor's rule for the agent states a ``fallback_watts``: when the agent is silent for longer
than its leases live, caps fall step by step to that level and stay there.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from joulery.errors import JouleryError, NotPossibleHereError, flaw_text
from joulery.governor import Connection, FencedError, check_secrecy
from joulery.units import finite

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

# Longest wait for a node; an event is to be met within 2 s.
_TIMEOUT_SECONDS = 1.0
# Boards keep whole milliwatts.
_SAME_WATTS = 1e-3


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A GPU as its node's governor reports it.

    Attributes:
        id: Name that never changes.
        least_watts: Least cap.
        most_watts: Most cap.
        cap_watts: Cap in force.
        watts: Power drawn; the cap where it is not known.
        speed_hertz: Clock times the share of time busy; None where the board does not report it.
        is_stale: Whether the driver does not answer, so that the power is not known.
        promised_watts: Mean power of any second that a process of its job promises to keep to, as
            the rank of a pipeline does; None without.
    """

    id: str
    least_watts: float
    most_watts: float
    cap_watts: float
    watts: float
    speed_hertz: float | None = None
    is_stale: bool = False
    promised_watts: float | None = None


class NodeUnreachableError(NotPossibleHereError):
    """A node does not answer, or refuses."""


class NodeClient:
    """The agent's side of one node.

    Args:
        connect: Function that connects to the node's governor.
        name: Name of the node for messages.

    Attributes:
        epoch: Number of this agent, above those of all before it; 0 for one that only looks.
        leader: Highest epoch that the node knows, and the seconds since it was last heard.
    """

    def __init__(self, connect: Callable[[], Connection], name: str = "node") -> None:
        self._connect, self._name = connect, name
        self.epoch, self._told_epoch = 0, 0
        self.leader = (0, math.inf)
        self._connection: Connection | None = None
        self._leases: dict[str, int] = {}
        self._locked: dict[str, float | None] = {}
        self._targets: dict[str, float | None] = {}
        self._known: dict[str, DeviceState] = {}

    @classmethod
    def at(cls, address: tuple[str, int], token: str, tls: ssl.SSLContext | None = None) -> Self:
        """A client of the governor at a host and port.

        Args:
            address: Host and port.
            token: Token of a rule in the node's policy.
            tls: Context with the authority to trust; None only on loopback.
        """
        check_secrecy(address, tls)
        connect = partial(Connection, address, token, tls, _TIMEOUT_SECONDS)
        return cls(connect, "{}:{}".format(*address))

    def status(self) -> list[DeviceState]:
        """GPUs of the node, in the order of their device files, as Slurm counts them.

        Raises:
            NodeUnreachableError: The governor does not answer, or refuses the token.
        """
        try:
            answer = self._ask("status")
            devices = sorted(answer["devices"], key=_slurm_order)
            self._known = {device["id"]: self._state(device) for device in devices}
            leader = answer.get("leader") or {}
            self.leader = leader.get("epoch", 0), leader.get("age_seconds", math.inf)
        except (KeyError, TypeError, AttributeError) as error:
            flaw = f"node {self._name} sends an invalid answer: {flaw_text(error)}"
            raise NodeUnreachableError(flaw, remedy="update its governor") from None
        if 0 < self.epoch < self.leader[0]:
            flaw = f"node {self._name} is led by epoch {self.leader[0]}, not {self.epoch}"
            raise FencedError(flaw, remedy="stop this agent: another has taken its place")
        return list(self._known.values())

    def set_caps(
        self,
        caps: Mapping[str, float],
        clocks: Mapping[str, float],
        ttl_seconds: float,
        targets: Mapping[str, float] | None = None,
    ) -> list[DeviceState]:
        """Put caps in force for a time, after which the node lowers them by itself.

        Args:
            caps: Watts of GPUs by id.
            clocks: Clock to lock on GPUs by id; all others are unlocked. Where the node's policy
                or board has no lock, the cap alone counts.
            ttl_seconds: Time that the caps live without another request.
            targets: Mean power, by id, of GPUs whose jobs keep to one.
        """
        for name, watts in caps.items():
            cap = self._known.get(name)
            target = finite(watts, f"cap of {name}")
            if cap is not None:
                target = min(cap.most_watts, max(cap.least_watts, target))
            stands = cap is not None and abs(target - cap.cap_watts) < _SAME_WATTS
            mean = (targets or {}).get(name)
            is_told = self._targets.get(name) == mean
            if not (stands and is_told) or name not in self._leases:  # every request renews all
                self._set(name, ttl_seconds, watts=target, target_watts=mean)
                self._targets[name] = mean
            hertz = clocks.get(name)
            if name in self._leases and self._locked.get(name) != hertz:
                self._locked[name] = hertz  # also where it is refused: once is enough
                self._try("set", lease=self._leases[name], hertz=hertz)
        return self.status()

    def close(self) -> None:
        """Hang up."""
        self._leases.clear()
        self._locked.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _set(self, device: str, ttl_seconds: float, **values: float | None) -> None:
        if device in self._leases:
            if self._try("set", lease=self._leases[device], **values) is not None:
                return
            del self._leases[device]  # it is lost, or the limit refused
        self._locked.pop(device, None)
        reply = self._try("acquire", device=device, ttl_seconds=ttl_seconds, **values)
        if reply is not None:
            self._leases[device] = reply["lease"]

    def _try(self, operation: str, **details: Any) -> dict[str, Any] | None:
        """The answer, or None for a refusal: it must not keep other GPUs from their caps."""
        try:
            return self._ask(operation, **details)
        except (NodeUnreachableError, FencedError):
            raise
        except JouleryError:
            return None

    def _ask(self, operation: str, **details: Any) -> dict[str, Any]:
        try:
            if self._connection is None:
                self._connection, self._told_epoch = self._connect(), 0
            if self.epoch > self._told_epoch:
                self._connection.ask("lead", epoch=self.epoch)
                self._told_epoch = self.epoch
            return self._connection.ask(operation, **details)
        except (OSError, JouleryError) as error:
            if isinstance(error, JouleryError) and self._connection is not None:
                raise  # a refusal, after which the talk goes on
            self.close()
            remedy = "see whether `joulery governor serve --listen` runs there"
            raise NodeUnreachableError(f"node {self._name}: {error}", remedy=remedy) from None

    def _state(self, device: dict[str, Any]) -> DeviceState:
        before = self._known.get(device["id"])
        ceiling = device["ceiling_watts"] or device["watts"]
        cap, least = device["watts"], device["min_watts"]
        if cap is None:  # the driver does not answer
            cap = (ceiling or 0.0) if before is None else before.cap_watts
        is_stale = device["watts"] is None or bool(device.get("stuck"))
        # Leases of processes on the node have a user; those of agents have none.
        leases = [lease for lease in device.get("leases", ()) if "uid" in lease]
        promises = [w for w in (lease.get("target_watts") for lease in leases) if w is not None]
        draw, clock, busy = map(device.get, ("power_watts", "clock_hertz", "utilisation"))
        return DeviceState(
            id=device["id"],
            least_watts=cap if least is None else least,
            most_watts=ceiling or cap,
            cap_watts=cap,
            watts=cap if draw is None or is_stale else draw,
            speed_hertz=None if clock is None else clock * (1.0 if busy is None else busy),
            is_stale=draw is None or is_stale,
            promised_watts=max(promises, default=None),
        )


def _slurm_order(device: dict[str, Any]) -> int:
    """Number of a GPU's device file; the driver's own index follows the bus and may differ.

    GPUs without a known file keep their order, after the others.
    """
    number = re.search(r"\d+$", device.get("file") or "")
    return int(number[0]) if number else 1 << 20
