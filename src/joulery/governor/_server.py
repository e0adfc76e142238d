"""The governor's server: sessions of clients, and the sockets that carry them.

Sessions are independent of sockets. The server bounds what each client may use, so that none can
stall the daemon or keep others from connecting.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from joulery.errors import InvalidValueError, JouleryError
from joulery.files import encode_line
from joulery.governor._device import LeaseRequest
from joulery.governor._peer import Peer, pidfd_of
from joulery.governor._protocol import (
    MAX_REQUEST_BYTES,
    REMEDY,
    VERSION,
    FencedError,
    decode,
    lost_lease,
)
from joulery.rate_limit import RateLimiter
from joulery.units import finite

if TYPE_CHECKING:
    import ssl
    from concurrent.futures import Future

    from joulery.clock import Clock
    from joulery.governor._leases import LeaseRecord, LeaseTable

_REST_SECONDS = 5e-3  # by hand: 200 refused connections a second at most
_TICK_SECONDS = 0.2  # by hand: a lease outlives its time by that
_MAX_EPOCH = 2**53  # whole numbers that every reader of JSON keeps
_MAX_USERS = 4096  # by hand: far above the users of a machine


class LeaseSession:
    """Session of one client, without sockets: lines in, lines out.

    The transport identifies the peer; None stands for a client on another machine, which its token
    identifies.
    """

    def __init__(self, table: LeaseTable, peer: Peer | None) -> None:
        self.peer = peer or Peer()
        self.answered = 0
        self.closing = False
        self._greeted = False
        self._table = table
        self._leases: dict[int, LeaseRecord] = {}
        self._epoch = 0
        operations = (
            *(self._acquire, self._lead, self._may, self._release, self._renew, self._set),
            self._status,
        )
        self._operations = {
            operation.__name__.removeprefix("_"): operation for operation in operations
        }

    @property
    def holds(self) -> bool:
        """Whether the client has a lease."""
        return any(not lease.ended for lease in list(self._leases.values()))

    async def answer(self, line: bytes) -> bytes:
        """Line that answers a line."""
        self.answered += 1
        try:
            message = decode(line)
        except JouleryError as error:
            self.closing = True  # it speaks another protocol
            return encode_line(_refusal(error))
        try:
            return encode_line({"ok": True, **await self._reply(message)})
        except JouleryError as error:
            return encode_line(_refusal(error))

    def end(self, reason: str) -> None:
        """End the client's leases, because it is gone."""
        self.closing = True
        for lease in self._leases.values():
            lease.device.worker.submit(partial(lease.device.end, lease, reason))
        self._leases.clear()

    async def _reply(self, message: dict[str, Any]) -> dict[str, Any]:
        operation = message.get("op")
        if not self._greeted:
            return self._greet(message)
        now = self._table.clock.now()
        if self._leader()[0] <= self._epoch:
            for lease in self._leases.values():  # every request renews
                lease.expires_at = now + lease.ttl_seconds
            if self._epoch:
                self._table.leaders[self.peer.client] = self._epoch, now
        if not isinstance(operation, str) or operation not in self._operations:
            raise InvalidValueError("unknown operation", remedy=REMEDY)
        return await self._operations[operation](message)

    def _greet(self, message: dict[str, Any]) -> dict[str, Any]:
        self.closing = True  # unless all is well
        versions = message.get("versions")
        compatible = isinstance(versions, list) and VERSION in versions
        if message.get("op") != "hello" or not compatible:
            raise InvalidValueError("the client did not greet", remedy=REMEDY)
        if self.peer == Peer():
            self.peer = self._table.policy.identify(message.get("token"))
        self.closing, self._greeted = False, True
        return {"version": VERSION}

    def _leader(self) -> tuple[int, float]:
        """Highest epoch of this client's name, and when it was last heard."""
        return self._table.leaders.get(self.peer.client, (0, -math.inf))

    def _check_leads(self) -> None:
        """Refuse a client while one of the same name with a higher epoch leads."""
        if self._leader()[0] > self._epoch:
            raise FencedError(
                f"epoch {self._leader()[0]} leads, and this client has {self._epoch}",
                remedy="stop it: another has taken its place",
            )

    async def _lead(self, message: dict[str, Any]) -> dict[str, Any]:
        """Adopt an epoch, from which on clients with lower ones are refused."""
        epoch = message.get("epoch")
        if type(epoch) is not int or not 0 < epoch < _MAX_EPOCH or not self.peer.client:
            raise InvalidValueError("epoch is not a positive number of a token's", remedy=REMEDY)
        self._epoch = max(self._epoch, epoch)
        self._check_leads()
        self._table.leaders[self.peer.client] = self._epoch, self._table.clock.now()
        return {"epoch": self._epoch}

    async def _acquire(self, message: dict[str, Any]) -> dict[str, Any]:
        self._check_leads()
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
        self._check_leads()
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
                await device.worker.run(device.governed.observe)
        epoch, heard_at = self._leader()
        leader = {"epoch": epoch, "age_seconds": self._table.clock.now() - heard_at}
        return {
            "devices": [device.description() for device in devices],
            "policy": {
                "rules": len(self._table.policy.rules),
                "flaw": self._table.policy_flaw[:500],
            },
            **({"leader": leader} if epoch else {}),
        }

    def _lease(self, message: dict[str, Any]) -> LeaseRecord:
        """A lease of this client; leases of others raise like unknown ones."""
        number = message.get("lease")
        lease = self._leases.get(number) if type(number) is int else None
        if lease is None or lease.ended:
            raise lost_lease()
        return lease


def _undo(acquired: Future[LeaseRecord]) -> None:
    """End a lease whose client did not wait for it."""
    if not acquired.cancelled() and not acquired.exception():
        lease = acquired.result()
        lease.device.worker.submit(partial(lease.device.end, lease, "its holder did not wait"))


def _changes(message: dict[str, Any]) -> dict[str, float | None]:
    """Knobs that a message sets; null restores one."""
    return {
        knob: None if message[knob] is None else _amount(message[knob], knob)
        for knob in ("watts", "hertz", "target_watts")
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

    A user is a user of this machine, or another machine's address.

    Attributes:
        connections: Connections of all users together. When they are used up, those without a
            lease give way to users with fewer.
        connections_per_user: Connections of one user.
        reserved: Further connections, for root and the daemon's own user.
        requests_per_second: Mean rate of one user's requests; a connection counts as one. Enough
            for a pipeline's clocks on eight boards, each held for 30 ms.
        burst: Requests that a user may make at once after a pause.
        stall_seconds: Longest time for a client to greet, to make its first request and to read,
            and for a driver to answer.
    """

    connections: int = 512
    connections_per_user: int = 128
    reserved: int = 32
    requests_per_second: float = 400.0
    burst: float = 400.0
    stall_seconds: float = 5.0


@dataclass(slots=True, eq=False)
class _Client:
    """A connection with its session and the task that serves it."""

    session: LeaseSession
    user: int | str
    task: asyncio.Task[None] | None = None


@dataclass(eq=False)
class Server:
    """Server of sessions over listening sockets, those for other machines with a TLS context."""

    listeners: list[tuple[socket.socket, ssl.SSLContext | None]]
    table: LeaseTable
    clock: Clock
    limits: ConnectionLimits
    # Clients of each user, the longest connected first.
    _clients: defaultdict[int | str, list[_Client]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def __post_init__(self) -> None:
        limits = self.limits
        self._rates = RateLimiter(limits.requests_per_second, limits.burst, _MAX_USERS)

    async def run(self) -> None:
        """Serve until cancelled, then close all connections."""
        async with asyncio.TaskGroup() as tasks:
            for listener, tls in self.listeners:
                listener.settimeout(0)
                tasks.create_task(self._accept(listener, tls, tasks))
            tasks.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            self.table.tick()
            await asyncio.sleep(_TICK_SECONDS)

    async def _accept(
        self, listener: socket.socket, tls: ssl.SSLContext | None, tasks: asyncio.TaskGroup
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            channel = None
            try:
                channel, address = await loop.sock_accept(listener)
                local = channel.family == socket.AF_UNIX
                peer = Peer.of(channel) if local else None
                client = _Client(LeaseSession(self.table, peer), peer.uid if peer else address[0])
                if self._may_connect(client.user):
                    pidfd = pidfd_of(channel, peer.pid) if peer else None
                    self._clients[client.user].append(client)
                    tasks.create_task(self._serve(client, channel, tls, pidfd))
                    await asyncio.sleep(0)  # a queue of connections must not delay requests
                    continue
            except OSError:  # out of descriptors, or the client is gone already
                pass
            if channel is not None:
                channel.close()
            # Meanwhile the kernel's queue holds off clients that connect without pause.
            await asyncio.sleep(_REST_SECONDS)

    def _may_connect(self, user: int | str) -> bool:
        count = len(self._clients.get(user, ()))
        if (
            count >= self.limits.connections_per_user
            or self._rates.wait_seconds(user, self.clock.now()) > 0.0
        ):
            return False
        reserved = self.limits.reserved if user in (0, os.geteuid()) else 0
        total = sum(map(len, self._clients.values()))
        return total < self.limits.connections + reserved or self._made_room(count)

    def _made_room(self, count: int) -> bool:
        """Whether a client without a lease was closed, of the user who has the most."""
        for crowd in sorted(self._clients.values(), key=len, reverse=True):
            if len(crowd) <= count + 1:
                break
            for client in crowd:
                if client.task is not None and not client.session.holds:
                    crowd.remove(client)
                    client.task.cancel("others need its connection")
                    return True
        return False

    async def _serve(
        self,
        client: _Client,
        channel: socket.socket,
        tls: ssl.SSLContext | None,
        pidfd: int | None,
    ) -> None:
        """Answer one line after the other until the client is gone for any reason."""
        loop, session, reason = asyncio.get_running_loop(), client.session, "it disconnected"
        transport: asyncio.BaseTransport | None = None
        client.task = this = cast("asyncio.Task[None]", asyncio.current_task())
        if pidfd is not None:
            loop.add_reader(pidfd, this.cancel, "its process ended")
        try:
            async with asyncio.timeout(self.limits.stall_seconds):
                reader, writer = await _streams(channel, tls)
            transport = writer.transport
            while not session.closing:
                # The greeting and one request must come soon; then clients may be silent.
                soon = None if session.answered > 1 else self.limits.stall_seconds
                async with asyncio.timeout(soon):
                    line = await reader.readline()
                if not line:
                    break
                await asyncio.sleep(self._rates.reserve_seconds(client.user, self.clock.now()))
                writer.write(await session.answer(line))
                async with asyncio.timeout(self.limits.stall_seconds):
                    await writer.drain()
        except (OSError, TimeoutError, ValueError) as error:  # the last for a line that is too long
            reason = f"it stalled or disconnected: {error}"
        except asyncio.CancelledError as error:
            reason = str(error) or "the governor stops"
            raise
        finally:
            session.end(reason)
            if pidfd is not None:
                loop.remove_reader(pidfd)
                os.close(pidfd)
            if transport is None:
                channel.close()
            else:
                transport.close()
                # The last answer may go out, but a client that never reads is not waited for.
                loop.call_later(self.limits.stall_seconds, cast("Any", transport).abort)
            self._forget(client)

    def _forget(self, client: _Client) -> None:
        clients = self._clients[client.user]
        if client in clients:  # else it had to give way
            clients.remove(client)
        if not clients:
            del self._clients[client.user]


async def _streams(
    channel: socket.socket, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Reader and writer of an accepted connection, after the TLS handshake if there is one."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(MAX_REQUEST_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, channel, ssl=tls)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
