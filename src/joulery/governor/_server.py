"""The governor's server: sessions of clients, and the Unix socket that carries them.

Sessions know nothing of sockets. The server bounds what each client may use, so that none can
stall the daemon.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from joulery.errors import InvalidValueError, JouleryError
from joulery.governor._device import LeaseRequest
from joulery.governor._peer import Peer, pidfd_of
from joulery.governor._protocol import REMEDY, VERSION, Decoder, encode, lost_lease
from joulery.units import finite

if TYPE_CHECKING:
    import socket
    from concurrent.futures import Future

    from joulery.clock import Clock
    from joulery.governor._leases import LeaseRecord, LeaseTable

_REST_SECONDS = 5e-3
_TICK_SECONDS = 0.2
_MAX_USERS = 4096


class LeaseSession:
    """Session of one client, without sockets: frames in, frames out.

    Args:
        table: Table of devices and leases.
        peer: Process of the client, identified by the transport.
    """

    def __init__(self, table: LeaseTable, peer: Peer) -> None:
        self.peer = peer
        self.incoming = Decoder()
        self.greeted = False
        self.closing = False
        self._table = table
        self._leases: dict[int, LeaseRecord] = {}
        known = (self._acquire, self._may, self._release, self._renew, self._set, self._status)
        self._operations = {each.__name__.removeprefix("_"): each for each in known}

    async def answer(self) -> bytes:
        """Frame that answers the next whole frame."""
        message: dict[str, Any] | None = None
        try:
            message = self.incoming.take() or {}
            reply = {"ok": True, **await self._reply(message)}
        except JouleryError as error:
            reply = _refusal(error)
        if message is None:
            self.closing = True  # the rest of the stream cannot be decoded either
        number = message and message.get("id")
        if type(number) is int and abs(number) < 2**53:
            reply["id"] = number
        return encode(reply)

    def end(self, why: str) -> None:
        """End the client's leases, because it is gone."""
        self.closing = True
        for lease in self._leases.values():
            lease.device.worker.submit(partial(lease.device.end, lease, why))
        self._leases.clear()

    async def _reply(self, message: dict[str, Any]) -> dict[str, Any]:
        operation = message.get("op")
        if not self.greeted:
            versions = message.get("versions")
            if operation != "hello" or not isinstance(versions, list) or VERSION not in versions:
                self.closing = True
                raise InvalidValueError("the client did not greet", remedy=REMEDY)
            self.greeted = True
            return {"version": VERSION}
        now = self._table.clock.now()
        for lease in self._leases.values():  # every request renews
            lease.expires_at = now + lease.ttl_seconds
        if not isinstance(operation, str) or operation not in self._operations:
            raise InvalidValueError("unknown operation", remedy=REMEDY)
        return await self._operations[operation](message)

    async def _acquire(self, message: dict[str, Any]) -> dict[str, Any]:
        device = self._table.device(message.get("device"))
        if any(lease.device is device and not lease.ended for lease in self._leases.values()):
            raise InvalidValueError("this connection holds the device", remedy="change its lease")
        request = LeaseRequest(**_changes(message))
        ttl = _amount(message.get("ttl_seconds"), "ttl_seconds")
        lease: LeaseRecord = await device.worker.run(
            partial(device.acquire, self.peer, request, ttl), _undo
        )
        self._leases[lease.number] = lease
        return lease.state()

    async def _may(self, message: dict[str, Any]) -> dict[str, Any]:
        device = self._table.device(message.get("device"))
        await device.worker.run(partial(device.check, self.peer, LeaseRequest()))
        return {}

    async def _set(self, message: dict[str, Any]) -> dict[str, Any]:
        lease = self._lease(message)
        request = replace(lease.request, **_changes(message))
        await lease.device.worker.run(partial(lease.device.change, lease, request))
        return lease.state()

    async def _renew(self, message: dict[str, Any]) -> dict[str, Any]:
        lease = self._lease(message)
        await lease.device.worker.run(lease.device.governed.refresh)
        return lease.state()

    async def _release(self, message: dict[str, Any]) -> dict[str, Any]:
        lease = self._lease(message)
        del self._leases[lease.number]
        lease.device.worker.submit(partial(lease.device.end, lease, "released"))
        await lease.device.worker.run(lambda: None)  # runs after it
        return {}

    async def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        devices = self._table.devices.values()
        for device in devices:
            with suppress(JouleryError):
                await device.worker.run(device.governed.refresh)
        return {"devices": [device.description() for device in devices]}

    def _lease(self, message: dict[str, Any]) -> LeaseRecord:
        """A lease of this client; leases of others raise like unknown ones."""
        number = message.get("lease")
        found = self._leases.get(number) if type(number) is int else None
        if found is None or found.ended:
            raise lost_lease()
        return found


def _undo(acquired: Future[LeaseRecord]) -> None:
    """End a lease whose client did not wait for it."""
    if not acquired.cancelled() and not acquired.exception():
        lease = acquired.result()
        lease.device.worker.submit(partial(lease.device.end, lease, "its holder did not wait"))


def _changes(message: dict[str, Any]) -> dict[str, float | None]:
    """Knobs that a message sets; null restores one."""
    return {
        knob: None if message[knob] is None else _amount(message[knob], knob)
        for knob in ("watts", "hertz")
        if knob in message
    }


def _amount(value: Any, knob: str) -> float:
    if type(value) not in (int, float):  # not bool, which Python counts as a number
        raise InvalidValueError(f"{knob} is not a number", remedy=REMEDY)
    return finite(value, knob, minimum=0.0)


def _refusal(error: JouleryError) -> dict[str, Any]:
    kind = type(error).__name__
    return {"ok": False, "error": kind, "message": error.message[:500], "remedy": error.remedy}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of the load that clients may put on the daemon.

    Attributes:
        connections: Connections of all users together.
        connections_per_user: Connections of one user.
        requests_per_second: Mean rate of one user's requests; a connection counts as one. Enough
            for a pipeline's clocks on eight boards, each held for 30 ms.
        burst: Requests that a user may make at once after a pause.
        stall_seconds: Longest time for a client to greet or to read, and for a driver to answer.
    """

    connections: int = 512
    connections_per_user: int = 128
    requests_per_second: float = 400.0
    burst: float = 400.0
    stall_seconds: float = 5.0


@dataclass(slots=True, eq=False)
class Server:
    """Server of sessions over a listening Unix socket.

    Attributes:
        listener: Socket, bound and listening.
        table: Table of devices and leases.
        clock: Clock of the request rates.
        limits: Limits of the load.
    """

    listener: socket.socket
    table: LeaseTable
    clock: Clock
    limits: ConnectionLimits
    _per_user: Counter[int] = field(default_factory=Counter)
    # Time at which each user's next request may be served: a token bucket as a single time.
    _free_at: dict[int, float] = field(default_factory=dict)

    async def run(self) -> None:
        """Serve until cancelled, then close all connections."""
        self.listener.settimeout(0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._accept(tasks))
            tasks.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            self.table.tick()
            await asyncio.sleep(_TICK_SECONDS)

    async def _accept(self, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            channel = None
            try:
                channel, _ = await loop.sock_accept(self.listener)
                peer = Peer.of(channel)
                if self._may_connect(peer.uid):
                    session, pidfd = LeaseSession(self.table, peer), pidfd_of(channel, peer.pid)
                    self._per_user[peer.uid] += 1
                    tasks.create_task(self._serve(channel, pidfd, session))
                    continue
            except OSError:  # out of descriptors, or the client is gone already
                pass
            if channel is not None:
                channel.close()
            # Meanwhile the kernel's queue holds off clients that connect without pause.
            await asyncio.sleep(_REST_SECONDS)

    def _may_connect(self, uid: int) -> bool:
        return (
            self._per_user.total() < self.limits.connections
            and self._per_user[uid] < self.limits.connections_per_user
            and self._free_at.get(uid, 0.0) <= self.clock.now()
            and self._wait_seconds(uid) <= 0.0
        )

    async def _serve(self, channel: socket.socket, pidfd: int, session: LeaseSession) -> None:
        """Answer one frame after the other until the client is gone for any reason."""
        loop, why = asyncio.get_running_loop(), "it disconnected"
        this = cast("asyncio.Task[None]", asyncio.current_task())
        loop.add_reader(pidfd, this.cancel, "its process ended")
        try:
            while not session.closing:
                if session.incoming.waiting:
                    await asyncio.sleep(self._wait_seconds(session.peer.uid))
                    answer = await session.answer()
                    async with asyncio.timeout(self.limits.stall_seconds):
                        await loop.sock_sendall(channel, answer)
                    continue
                async with asyncio.timeout(None if session.greeted else self.limits.stall_seconds):
                    data = await loop.sock_recv(channel, session.incoming.room)
                if not data:
                    break
                session.incoming.feed(data)
        except (OSError, TimeoutError) as error:
            why = f"it stalled or disconnected: {error}"
        except asyncio.CancelledError as error:
            why = str(error) or "the governor stops"
            raise
        finally:
            session.end(why)
            loop.remove_reader(pidfd)
            os.close(pidfd)
            channel.close()
            self._per_user[session.peer.uid] -= 1

    def _wait_seconds(self, uid: int) -> float:
        """Time until the user's next request may be served; charges the user for it."""
        now, interval = self.clock.now(), 1.0 / self.limits.requests_per_second
        if len(self._free_at) > _MAX_USERS:  # drop users who need not wait
            self._free_at = {user: at for user, at in self._free_at.items() if at > now}
        at = max(self._free_at.get(uid, 0.0), now - self.limits.burst * interval)
        self._free_at[uid] = at + interval
        return max(0.0, at - now)
