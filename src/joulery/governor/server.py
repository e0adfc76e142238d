"""The Unix socket: conversations that no caller can stall."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from joulery.governor.peer import Peer, pidfd_of
from joulery.governor.session import LeaseSession

if TYPE_CHECKING:
    import socket

    from joulery.clock import Clock
    from joulery.governor.leases import LeaseTable

_REST_SECONDS = 5e-3
_TICK_SECONDS = 0.2
_MAX_USERS = 4096


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one user, and all together, may ask of the daemon.

    Attributes:
        connections: Of all users together.
        connections_per_user: Of one user.
        requests_per_second: Of one user, in the long run; a connection counts as one. Enough for
            a pipeline's clocks on eight boards, each held for 30 ms.
        burst: Requests that a user may save up.
        stall_seconds: How long a caller may take to greet or to read, and a driver to answer.
    """

    connections: int = 512
    connections_per_user: int = 128
    requests_per_second: float = 400.0
    burst: float = 400.0
    stall_seconds: float = 5.0


@dataclass(slots=True, eq=False)
class Server:
    """Carries sessions over a listening Unix socket.

    Attributes:
        listener: Bound and listening.
        ledger: Grants the leases.
        clock: For rates.
        bounds: What callers may ask.
    """

    listener: socket.socket
    ledger: LeaseTable
    clock: Clock
    bounds: ConnectionLimits
    _per_user: Counter[int] = field(default_factory=Counter)
    # When each user's next request may be served: a token bucket, told by the time it is full.
    _free_at: dict[int, float] = field(default_factory=dict)

    async def run(self) -> None:
        """Serve until cancelled, then hang up on everybody."""
        self.listener.settimeout(0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._accept_everyone(tasks))
            tasks.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            self.ledger.tick()
            await asyncio.sleep(_TICK_SECONDS)

    async def _accept_everyone(self, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            channel = None
            try:
                channel, _ = await loop.sock_accept(self.listener)
                peer = Peer.of(channel)
                if self._is_welcome(peer.uid):
                    session, pidfd = LeaseSession(self.ledger, peer), pidfd_of(channel, peer.pid)
                    self._per_user[peer.uid] += 1
                    tasks.create_task(self._talk(channel, pidfd, session))
                    continue
            except OSError:  # out of descriptors, or the caller is gone already
                pass
            if channel is not None:
                channel.close()
            # The kernel's queue holds off whoever knocks without pause.
            await asyncio.sleep(_REST_SECONDS)

    def _is_welcome(self, uid: int) -> bool:
        return (
            self._per_user.total() < self.bounds.connections
            and self._per_user[uid] < self.bounds.connections_per_user
            and self._free_at.get(uid, 0.0) <= self.clock.now()
            and self._wait_seconds(uid) <= 0.0
        )

    async def _talk(self, channel: socket.socket, pidfd: int, session: LeaseSession) -> None:
        """Answer one frame after the other until the caller is gone in any way."""
        loop, why = asyncio.get_running_loop(), "it hung up"
        this = cast("asyncio.Task[None]", asyncio.current_task())
        loop.add_reader(pidfd, this.cancel, "its process ended")
        try:
            while not session.closing:
                if session.incoming.waiting:
                    await asyncio.sleep(self._wait_seconds(session.peer.uid))
                    answer = await session.answer()
                    async with asyncio.timeout(self.bounds.stall_seconds):
                        await loop.sock_sendall(channel, answer)
                    continue
                async with asyncio.timeout(None if session.greeted else self.bounds.stall_seconds):
                    data = await loop.sock_recv(channel, session.incoming.room)
                if not data:
                    break
                session.incoming.feed(data)
        except (OSError, TimeoutError) as error:
            why = f"it stalled or hung up: {error}"
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
        """How long the user's next request has to wait; the one after it waits longer."""
        now, interval = self.clock.now(), 1.0 / self.bounds.requests_per_second
        if len(self._free_at) > _MAX_USERS:  # who is unheard of for long need not wait anyway
            self._free_at = {user: at for user, at in self._free_at.items() if at > now}
        at = max(self._free_at.get(uid, 0.0), now - self.bounds.burst * interval)
        self._free_at[uid] = at + interval
        return max(0.0, at - now)
