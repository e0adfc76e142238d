"""All nodes of a cluster, asked at once: one that hangs delays no other."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from joulery.errors import JouleryError
from joulery.governor import FencedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulery.cluster._nodes import DeviceState, NodeClient

# An event without notice is to be met within 2 s, whatever hangs.
_NODE_SECONDS, _LOST_NODE_SECONDS = 1.0, 0.1
# Boards round caps to their own steps, a watt at most.
_TOLERANCE_WATTS = 1.0


class NodePool:
    """The nodes' services and what they said last.

    GPUs are named ``node/id`` here and in decisions: not every vendor's ids differ between nodes.

    Args:
        nodes: Services of the nodes by name.
        ttl_seconds: Time that caps live without another request.

    Attributes:
        devices: GPUs of every node that ever answered, as last known.
        lost: Names of nodes that do not answer now.
        refusing: Ids of GPUs that keep a higher cap than they were given.
        is_fenced: Whether a node has seen a newer agent.
    """

    def __init__(self, nodes: Mapping[str, NodeClient], ttl_seconds: float) -> None:
        self._nodes, self._ttl = nodes, ttl_seconds
        self.devices: dict[str, list[DeviceState]] = {}
        self.lost: set[str] = set()
        self.refusing: set[str] = set()
        self.is_fenced = False
        self._pending: dict[str, Future[list[DeviceState]]] = {}
        # Nodes that hang must not take the threads of others.
        self._pool = ThreadPoolExecutor(max_workers=len(nodes) + 1)

    @property
    def reachable(self) -> dict[str, list[DeviceState]]:
        """GPUs of the nodes that answer."""
        return {node: d for node, d in self.devices.items() if node not in self.lost}

    @property
    def unknown(self) -> list[str]:
        """Names of nodes that never answered."""
        return sorted(self._nodes.keys() - self.devices.keys())

    def read(self, messages: list[str]) -> None:
        """Ask all nodes for their GPUs."""
        calls = {name: node.status for name, node in self._nodes.items()}
        self.lost = self._ask(calls, messages)

    def leader(self) -> tuple[int, float]:
        """Highest epoch of an agent that nodes know, and the seconds since it last spoke."""
        leaders = [node.leader for node in self._nodes.values()]
        epoch = max((epoch for epoch, _ in leaders), default=0)
        return epoch, min((age for e, age in leaders if e == epoch), default=float("inf"))

    def lead(self, epoch: int) -> None:
        """Speak for a new agent from now on; older ones are refused by the nodes."""
        self.is_fenced = False
        for node in self._nodes.values():
            node.epoch = epoch

    def send(
        self,
        caps: Mapping[str, Mapping[str, float]],
        clocks: Mapping[str, Mapping[str, float]],
        targets: Mapping[str, Mapping[str, float]],
        messages: list[str],
    ) -> bool:
        """Whether every node has these caps in force."""
        calls = {
            node: partial(
                self._nodes[node].set_caps,
                _by_own_id(devices),
                _by_own_id(clocks.get(node, {})),
                self._ttl,
                _by_own_id(targets.get(node, {})),
            )
            for node, devices in caps.items()
        }
        failed = self._ask(calls, messages)
        for node in failed:  # what was sent may be in force, or come into force later
            self.devices[node] = [
                replace(d, cap_watts=max(d.cap_watts, caps[node][d.id])) for d in self.devices[node]
            ]
        in_force = {d.id: d.cap_watts for node in caps for d in self.devices[node]}
        self.refusing = {
            name
            for watts_by_device in caps.values()
            for name, watts in watts_by_device.items()
            if in_force[name] > watts + _TOLERANCE_WATTS
        }
        messages += [f"GPU {name} refuses to lower its cap" for name in sorted(self.refusing)]
        return not failed and not self.refusing

    def _ask(
        self, calls: Mapping[str, Callable[[], list[DeviceState]]], messages: list[str]
    ) -> set[str]:
        """Ask nodes all at once; names of those that do not answer in time.

        A call that hangs continues, and the node counts as lost until it has ended.
        """
        for node, call in calls.items():
            if node not in self._pending:
                self._pending[node] = self._pool.submit(call)
        wait((self._pending[n] for n in calls if n not in self.lost), _NODE_SECONDS)
        wait((self._pending[n] for n in calls if n in self.lost), _LOST_NODE_SECONDS)
        failed = set()
        for node in calls:
            if not self._pending[node].done():
                failed.add(node)
                messages.append(f"node {node} does not answer")
                continue
            try:
                devices = self._pending.pop(node).result()
                self.devices[node] = [replace(d, id=f"{node}/{d.id}") for d in devices]
            except JouleryError as error:
                self.is_fenced |= isinstance(error, FencedError)
                failed.add(node)
                messages.append(error.message)
        return failed


def _by_own_id(values: Mapping[str, float]) -> dict[str, float]:
    """Values of GPUs by the ids that their own node knows."""
    return {name.partition("/")[2]: value for name, value in values.items()}
