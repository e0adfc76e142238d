"""Caps on the GPUs of many nodes, set from one place, that stay safe when that place is silent.

Each node runs a :class:`NodeService`, which holds its GPUs through the governor. It takes caps
from a caller that has the token, and keeps them for a while. When nothing is heard for longer, caps
fall step by step to a safe level and stay there: they never rise by themselves.
"""

from __future__ import annotations

import hmac
import json
import math
import re
import socket
import socketserver
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from joulery.clock import REAL_CLOCK, Clock
from joulery.errors import InvalidValueError, JouleryError, MissingRightsError, NotPossibleHereError
from joulery.units import finite

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, Sequence

    from joulery.governor import Lease

# A cap falls by this factor every second once the agent is silent.
_DECREASE_PER_SECOND = 0.9
_TICK_SECONDS = 0.25
_TIMEOUT_SECONDS = 1.0
_MAX_LINE_BYTES = 1 << 20


class CappedDevice(Protocol):
    """A GPU whose power can be capped."""

    @property
    def id(self) -> str:
        """Name that never changes, such as the UUID."""
        ...

    @property
    def range_watts(self) -> tuple[float, float]:
        """Least and most cap."""
        ...

    def set_cap(self, watts: float) -> None:
        """Put a cap in force."""
        ...

    def read_power(self) -> float:
        """Power drawn now."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A GPU as its node reports it.

    Attributes:
        id: Name that never changes.
        least_watts: Least cap.
        most_watts: Most cap.
        cap_watts: Cap in force.
        watts: Power drawn.
    """

    id: str
    least_watts: float
    most_watts: float
    cap_watts: float
    watts: float


class NodeService:
    """Holds the caps of one node's GPUs.

    Args:
        devices: GPUs of the node, in the order of their indices.
        token: Secret that a caller must show.
        safe_watts: Cap of each GPU before the agent speaks and after it fell silent.
        clock: Clock for the time since the agent spoke.
    """

    def __init__(
        self,
        devices: Sequence[CappedDevice],
        token: str,
        safe_watts: float,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        if not token:
            raise InvalidValueError("the token is empty", remedy="give a file with a secret")
        self._devices = {device.id: device for device in devices}
        self._token = token.encode()
        self._clock = clock
        self._lock = threading.Lock()
        self._safe = {d.id: max(safe_watts, d.range_watts[0]) for d in devices}
        self._caps: dict[str, float] = {}
        self._kept_until = -math.inf
        self._last_tick = clock.now()
        for device in devices:
            self._set(device.id, self._safe[device.id])

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Reply to one request: ``status``, or ``caps`` with watts by device and a time to live."""
        try:
            shown = str(message.get("token", "")).encode()
            if not hmac.compare_digest(shown, self._token):
                raise MissingRightsError("wrong token", remedy="give the node's token file")
            with self._lock:
                if message.get("op") == "caps":
                    self._take(message)
                return {"ok": True, "devices": [self._state(name) for name in self._devices]}
        except JouleryError as error:
            return {"ok": False, "error": error.message, "remedy": error.remedy}

    def tick(self) -> None:
        """Lower the caps when the agent has been silent for too long."""
        with self._lock:
            now = self._clock.now()
            silent = now - max(self._kept_until, self._last_tick)
            self._last_tick = now
            if silent <= 0 or self._kept_until > now:
                return
            factor = _DECREASE_PER_SECOND**silent
            for name, cap in list(self._caps.items()):
                if cap > self._safe[name]:
                    with suppress(JouleryError):
                        self._set(name, max(self._safe[name], cap * factor))

    def _take(self, message: Mapping[str, Any]) -> None:
        caps = message.get("caps")
        if not isinstance(caps, dict) or not caps.keys() <= self._devices.keys():
            raise InvalidValueError("caps name unknown devices", remedy="use ids from status")
        ttl = finite(message.get("ttl_seconds", 0.0), "ttl_seconds", minimum=0.0)
        wanted = {name: finite(watts, f"cap of {name}") for name, watts in caps.items()}
        for name, watts in wanted.items():
            # A GPU that refuses must not keep the others from theirs; its state shows it.
            with suppress(JouleryError):
                self._set(name, watts)
        self._kept_until = self._clock.now() + ttl

    def _set(self, name: str, watts: float) -> None:
        device = self._devices[name]
        least, most = device.range_watts
        cap = min(most, max(least, watts))
        device.set_cap(cap)
        self._caps[name] = cap

    def _state(self, name: str) -> dict[str, Any]:
        device = self._devices[name]
        least, most = device.range_watts
        drawn = self._caps[name]  # what it may draw, where it does not tell
        with suppress(JouleryError):
            drawn = device.read_power()
        return {
            "id": name,
            "least_watts": least,
            "most_watts": most,
            "cap_watts": self._caps[name],
            "watts": drawn,
        }


class NodeServer(socketserver.ThreadingTCPServer):
    """Carries a node's service over TCP, one JSON document per line.

    Args:
        service: Service to carry.
        address: Host and port to listen on.
        tls: Server's certificate; None only on loopback.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(
        self, service: NodeService, address: tuple[str, int], tls: ssl.SSLContext | None = None
    ) -> None:
        _check_secrecy(address, tls)
        self.service, self._tls = service, tls
        self._over = threading.Event()
        self._channels: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        super().__init__(address, _Conversation)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; the handshake waits for the handler's own thread."""
        channel, address = super().get_request()
        channel.settimeout(60.0)
        if self._tls is not None:
            channel = self._tls.wrap_socket(
                channel, server_side=True, do_handshake_on_connect=False
            )
        self._channels.add(channel)
        return channel, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Forget a caller that breaks off; it comes back by itself."""

    def run(self) -> None:
        """Serve until :meth:`stop`."""
        threading.Thread(target=self._watch, name="joulery-node", daemon=True).start()
        self.serve_forever(poll_interval=0.05)

    def stop(self) -> None:
        """End :meth:`run`, and hang up on all callers."""
        self._over.set()
        self.shutdown()
        self.server_close()
        for channel in list(self._channels):
            with suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)

    def _watch(self) -> None:
        while not self._over.wait(_TICK_SECONDS):
            self.service.tick()


class _Conversation(socketserver.StreamRequestHandler):
    """One caller's requests."""

    server: NodeServer

    def handle(self) -> None:
        """Answer line by line until the caller hangs up."""
        while line := self.rfile.readline(_MAX_LINE_BYTES):
            try:
                message = json.loads(line)
            except ValueError:
                return
            reply = self.server.service.answer(message if isinstance(message, dict) else {})
            self.wfile.write(json.dumps(reply).encode() + b"\n")


def _check_secrecy(address: tuple[str, int], tls: ssl.SSLContext | None) -> None:
    if tls is None and not address[0].startswith("127."):
        raise InvalidValueError(
            f"{address[0]} is not on this machine: the token needs TLS",
            remedy="give a certificate and its key, and the agent their authority",
        )


class NodeUnreachableError(NotPossibleHereError):
    """A node does not answer, or refuses."""


class NodeClient:
    """The agent's side of one node.

    Args:
        address: Host and port of the node's service.
        token: Secret to show.
        tls: Client's context with the authority to trust; None only on loopback.
    """

    def __init__(
        self, address: tuple[str, int], token: str, tls: ssl.SSLContext | None = None
    ) -> None:
        _check_secrecy(address, tls)
        self._address, self._token, self._tls = address, token, tls
        self._channel: socket.socket | None = None
        self._lines: Any = None

    def status(self) -> list[DeviceState]:
        """GPUs of the node."""
        return self._ask({"op": "status"})

    def set_caps(self, caps: Mapping[str, float], ttl_seconds: float) -> list[DeviceState]:
        """Put caps in force for a time, after which the node lowers them by itself."""
        return self._ask({"op": "caps", "caps": dict(caps), "ttl_seconds": ttl_seconds})

    def close(self) -> None:
        """Hang up."""
        if self._channel is not None:
            self._lines.close()
            self._channel.close()
            self._channel = None

    def _ask(self, message: dict[str, Any]) -> list[DeviceState]:
        try:
            channel = self._channel or self._connect()
            channel.sendall(json.dumps({**message, "token": self._token}).encode() + b"\n")
            reply = json.loads(self._lines.readline(_MAX_LINE_BYTES) or "{}")
        except (OSError, ValueError) as error:
            self.close()
            raise self._error(str(error)) from None
        if reply.get("ok") is not True:
            self.close()
            raise self._error(str(reply.get("error") or "it hung up"))
        return [DeviceState(**device) for device in reply["devices"]]

    def _connect(self) -> socket.socket:
        channel = socket.create_connection(self._address, timeout=_TIMEOUT_SECONDS)
        if self._tls is not None:
            channel = self._tls.wrap_socket(channel, server_hostname=self._address[0])
        self._channel, self._lines = channel, channel.makefile("rb")
        return channel

    def _error(self, why: str) -> NodeUnreachableError:
        host, port = self._address
        return NodeUnreachableError(
            f"node service {host}:{port}: {why}", remedy="see whether `joulery cluster node` runs"
        )


def in_slurm_order(ids: Sequence[str], proc: Path = Path("/proc")) -> list[str]:
    """Names of GPUs by the number of their device file, as Slurm counts them.

    The driver's own index follows the bus and may differ. GPUs that the driver does not list keep
    their order, after the others.
    """
    minors: dict[str, int] = {}
    for file in proc.glob("driver/nvidia/gpus/*/information"):
        with suppress(OSError):
            text = file.read_text(encoding="utf-8", errors="replace")
            minor = re.search(r"Device Minor:\s*(\d+)", text)
            if minor:
                minors |= dict.fromkeys(text.split(), int(minor[1]))
    return sorted(ids, key=lambda name: minors.get(name, len(ids)))


class EmulatedGpu:
    """A busy GPU that draws its cap, for trying a cluster without one.

    Args:
        name: Name of the GPU.
        range_watts: Least and most cap.
        settle_seconds: Time constant with which power follows a new cap.
        clock: Clock that power follows.
    """

    def __init__(
        self,
        name: str,
        range_watts: tuple[float, float] = (100.0, 400.0),
        settle_seconds: float = 0.1,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.id, self.range_watts = name, range_watts
        self._settle, self._clock = settle_seconds, clock
        self._from = self._cap = range_watts[0]
        self._since = clock.now()

    def set_cap(self, watts: float) -> None:
        """Let power approach a new cap."""
        self._from, self._since = self.read_power(), self._clock.now()
        self._cap = watts

    def read_power(self) -> float:
        """Power drawn now."""
        left = math.exp(-(self._clock.now() - self._since) / self._settle)
        return self._cap + (self._from - self._cap) * left


class LeasedGpu:
    """A real GPU, held through the governor.

    Args:
        device: GPU with a power limit and a power reading.
        lease: Lease that holds it.
    """

    def __init__(self, device: Any, lease: Lease) -> None:
        self._device, self._lease = device, lease
        limits = device.power_limits()
        ceiling = lease.ceiling_watts or limits.max_watts
        self.id = str(device.info.id)
        self.range_watts = (limits.min_watts, min(limits.max_watts, ceiling))

    def set_cap(self, watts: float) -> None:
        """Put a cap in force."""
        self._lease.set(watts=watts)

    def read_power(self) -> float:
        """Power drawn now."""
        return float(self._device.read_power())
