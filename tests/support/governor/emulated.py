"""Governors of many emulated nodes in one process, with or without a network."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from joulery.clock import REAL_CLOCK, Clock
from joulery.files import encode_line
from joulery.frontier import Origin, Provenance
from joulery.governor import ConnectionLimits, Lease
from joulery.governor._client import checked_reply
from joulery.governor._device import GovernedDevice
from joulery.governor._journal import LeaseJournal
from joulery.governor._leases import LeaseTable
from joulery.governor._peer import Peer
from joulery.governor._policy import parse_policy
from joulery.governor._protocol import VERSION, decode
from joulery.governor._server import LeaseSession, Server
from joulery.hardware import Capability, DeviceInfo, DeviceKind, PowerLimitRange, Telemetry
from support.governor.bench import PromptWorker, at_once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from joulery.hardware import Device

_POLICY = """
[[allow]]
tokens = ["{token}"]
devices = ["*"]
limits_watts = [1, 2000]
clocks_mhz = [1000, 2000]
fallback_watts = {fallback}
"""
# Jobs may set limits and clocks below the agent's.
_SHARED_POLICY = (
    _POLICY
    + """shared = "minimum"
[[allow]]
users = ["*"]
devices = ["*"]
limits_watts = [1, 2000]
clocks_mhz = [1, 5000]
shared = "minimum"
"""
)


class EmulatedGpu:
    """A busy GPU that draws its cap, or what its job demands if that is less.

    Args:
        name: Id of the GPU.
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
        self.info = DeviceInfo(name, "Emulated", DeviceKind.GPU, "emulated")
        self.provenance = Provenance(Origin.SIMULATED, "a test")
        self.capabilities = frozenset(
            {
                Capability.POWER_LIMIT,
                Capability.CLOCK_LOCK,
                Capability.POWER,
                Capability.TELEMETRY,
            }
        )
        self.demand_watts = math.inf
        self.share = 1.0  # of its cap, that it draws
        self.locked_hertz: float | None = None
        self._range, self._settle, self._clock = range_watts, settle_seconds, clock
        self._from = self.cap_watts = range_watts[1]
        self._since = clock.now()

    def power_limits(self) -> PowerLimitRange:
        """The range and the cap in force."""
        least, most = self._range
        return PowerLimitRange(least, most, most, self.cap_watts)

    def set_power_limit(self, watts: float) -> None:
        """Let power approach a new cap."""
        self._from, self._since = self.read_power(), self._clock.now()
        self.cap_watts = watts

    def read_power(self) -> float:
        """Power drawn now."""
        left = math.exp(-(self._clock.now() - self._since) / self._settle)
        target = self.share * self.cap_watts
        capped = target + (self._from - target) * left
        locked = math.inf if self.locked_hertz is None else (self.locked_hertz / 1e8) ** 2
        return min(self.demand_watts, locked, capped)

    def supported_clocks(self) -> tuple[float, ...]:
        """Clocks for the least and the most power."""
        return (1.0e9, 1.5e9, 2.0e9)

    def lock_clock(self, hertz: float) -> None:
        """Pin the clock."""
        self.locked_hertz = hertz

    def unlock_clock(self) -> None:
        """Let it follow the cap."""
        self.locked_hertz = None

    def telemetry(self) -> Telemetry:
        """A clock that rises with the square root of the power."""
        return Telemetry(utilisation=1.0, clock_hertz=1e8 * math.sqrt(self.read_power()))


class EmulatedGovernor:
    """The governor of one node.

    Args:
        gpus: GPUs of the node, in the order of their indices.
        token: File with the token of the agent, for its owner alone.
        fallback_watts: Cap of each GPU while the agent is silent.
        clock: Clock by which leases expire.
        shared: Whether processes of the node may set clocks beside the agent's caps.
    """

    def __init__(
        self,
        gpus: Sequence[EmulatedGpu],
        token: Path,
        fallback_watts: float,
        clock: Clock = REAL_CLOCK,
        *,
        shared: bool = False,
    ) -> None:
        text = _SHARED_POLICY if shared else _POLICY
        policy = parse_policy(text.format(token=token.resolve(), fallback=fallback_watts))
        governed = {gpu.info.id: GovernedDevice(gpu, LeaseJournal()) for gpu in gpus}
        self.table = LeaseTable(
            governed, policy, clock, lambda *_: True, lambda *_, **__: None, PromptWorker
        )
        self.is_cut = False
        self.port = 0
        self._token, self._clock = token.read_text(encoding="utf-8").strip(), clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None

    def connect(self) -> DirectConnection:
        """A connection without a network."""
        return DirectConnection(self, self._token)

    @contextmanager
    def lease(self, device: Device) -> Iterator[Lease]:
        """A lease of a process of the node that follows the agent's cap."""
        peer = Peer(uid=1000, pid=1)
        name = device.info.id
        lease = Lease(lambda: DirectConnection(self, peer=peer), name, 3600.0)
        lease.acquire({})
        try:
            yield lease
        finally:
            lease.release()

    def serve(self) -> None:
        """Serve on loopback from a thread, at the same port as before."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()

    def cut(self) -> None:
        """Become unreachable, but go on working."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._switch([]), self._loop).result()

    def stop(self) -> None:
        """End the thread."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = None

    async def _serve(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = int(listener.getsockname()[1])
        await self._switch([listener])

    async def _switch(self, listeners: list[socket.socket]) -> None:
        await self._end()
        server = Server(
            [(listener, None) for listener in listeners],
            self.table,
            self._clock,
            ConnectionLimits(),
        )
        self._serving = asyncio.create_task(self._run(server))

    async def _run(self, server: Server) -> None:
        try:
            await server.run()
        finally:
            for listener, _ in server.listeners:
                listener.close()

    async def _end(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            with suppress(asyncio.CancelledError):
                await self._serving
            self._serving = None


class DirectConnection:
    """A connection to an emulated governor that carries no bytes.

    Args:
        governor: Governor to ask.
        token: Token to show.
        peer: Process that connects, where it is one of the node.
    """

    def __init__(
        self, governor: EmulatedGovernor, token: str | None = None, peer: Peer | None = None
    ) -> None:
        self._governor = governor
        self._session = LeaseSession(governor.table, peer)
        self.ask("hello", versions=[VERSION], token=token)

    def ask(self, operation: str, **details: Any) -> dict[str, Any]:
        """Answer to a request; refusals are raised."""
        if self._governor.is_cut:
            raise ConnectionResetError("cut off")
        line = encode_line({"op": operation, **details})
        return checked_reply(decode(at_once(self._session.answer(line))))

    def close(self) -> None:
        """Hang up."""
        self._session.end("it disconnected")
