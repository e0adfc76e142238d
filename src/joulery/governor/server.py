"""The Unix socket: an event loop that no caller can stall."""

from __future__ import annotations

import itertools
import os
import select
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.governor.peer import Peer, pidfd_of
from joulery.governor.session import Session

if TYPE_CHECKING:
    import socket

    from joulery.clock import Clock
    from joulery.governor.ledger import Ledger

_REST_SECONDS = 2e-3
_MAX_BUCKETS = 4096
_NO_SIGNAL = 0x4000  # MSG_NOSIGNAL of Linux: writing to the dead must not kill us
_GONE = select.EPOLLHUP | select.EPOLLRDHUP | select.EPOLLERR


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one user, and all together, may ask of the daemon.

    Attributes:
        connections: Of all users together.
        connections_per_user: Of one user.
        requests_per_second: Of one user, in the long run; a connection counts as one.
        burst: Requests that a user may save up.
        stall_seconds: How long a caller may take to greet or to read an answer.
    """

    connections: int = 512
    connections_per_user: int = 128
    requests_per_second: float = 100.0
    burst: float = 200.0
    stall_seconds: float = 5.0


class _Connection:
    """A caller's socket, its process, and whether it waits for something."""

    def __init__(self, channel: socket.socket, pidfd: int, session: Session) -> None:
        self.channel = channel
        self.pidfd = pidfd
        self.session = session
        self.interest = 0


class Server:
    """Carries sessions over a listening Unix socket.

    Args:
        listener: Bound and listening.
        ledger: Grants the leases.
        clock: For rates and stalls.
        bounds: What callers may ask.
    """

    def __init__(
        self, listener: socket.socket, ledger: Ledger, clock: Clock, bounds: Bounds | None = None
    ) -> None:
        self._listener = listener
        self._ledger = ledger
        self._clock = clock
        self._bounds = bounds or Bounds()
        self._epoll = select.epoll()
        self._by_file: dict[int, _Connection] = {}
        self._per_user: Counter[int] = Counter()
        self._tokens: dict[int, tuple[float, float]] = {}
        # Callers with requests in hand whose user has used up its share for now.
        self._throttled: dict[_Connection, None] = {}
        # Callers that have not greeted or do not read, with when to lose patience; soonest first.
        self._stalling: dict[_Connection, float] = {}
        self._deaf_until: float | None = None
        listener.settimeout(0)
        self._epoll.register(listener, select.EPOLLIN)

    def watch(self, file: int) -> None:
        """Also wake up when ``file`` becomes readable; the caller reads it."""
        self._epoll.register(file, select.EPOLLIN)

    def turn(self) -> None:
        """Wait for something to happen, and do what it asks for."""
        ready: list[_Connection] = []
        calling = False
        for file, mask in self._epoll.poll(self._patience()):
            connection = self._by_file.get(file)
            if connection is None:
                calling = calling or file == self._listener.fileno()
            # The dead come first: what they changed is given back before anyone is served.
            elif file == connection.pidfd:
                self._drop(connection, "its process ended")
            elif mask & _GONE:
                self._drop(connection, "it hung up")
            else:
                ready.append(connection)
        self._ledger.tick()
        if self._deaf_until is not None and self._deaf_until <= self._clock.now():
            self._deaf_until = None
            self._epoll.modify(self._listener, select.EPOLLIN)
        for connection in [*ready, *self._throttled]:
            if connection.pidfd >= 0:
                self._serve(connection)
        if calling:
            self._accept()
        self._drop_stalled()

    def close(self) -> None:
        """Hang up on everybody."""
        for connection in set(self._by_file.values()):
            self._drop(connection, "the governor stops")
        self._epoll.close()
        self._listener.close()

    def _patience(self) -> float | None:
        now = self._clock.now()
        waits = [self._stalling[each] - now for each in itertools.islice(self._stalling, 1)]
        if self._throttled:
            waits.append(1.0 / self._bounds.requests_per_second)
        if self._deaf_until is not None:
            waits.append(self._deaf_until - now)
        due = self._ledger.due_in()
        waits += [] if due is None else [due]
        return max(0.0, min(waits)) + 1e-3 if waits else None

    def _accept(self) -> None:
        # One at a time, so that a flood of callers does not keep those who are in waiting.
        try:
            channel, _ = self._listener.accept()
        except OSError:  # out of descriptors, or the caller has thought better of it
            self._rest()
            return
        try:
            channel.settimeout(0)
            peer = Peer.of(channel)
            bounds = self._bounds
            welcome = (
                self._spend(peer.uid)
                and len(self._by_file) < 2 * bounds.connections
                and self._per_user[peer.uid] < bounds.connections_per_user
            )
            pidfd = pidfd_of(channel, peer.pid) if welcome else -1
        except OSError:  # already gone, or out of descriptors
            pidfd = -1
        if pidfd < 0:
            channel.close()
            self._rest()
            return
        connection = _Connection(channel, pidfd, Session(self._ledger, peer))
        self._stalling[connection] = self._clock.now() + self._bounds.stall_seconds
        self._per_user[peer.uid] += 1
        for file in (channel.fileno(), pidfd):
            self._by_file[file] = connection
        self._epoll.register(pidfd, select.EPOLLIN)
        self._epoll.register(channel, 0)
        self._listen_for(connection)

    def _rest(self) -> None:
        """Let the kernel's queue hold off whoever knocks without pause."""
        self._epoll.modify(self._listener, 0)
        self._deaf_until = self._clock.now() + _REST_SECONDS

    def _serve(self, connection: _Connection) -> None:
        session, channel = connection.session, connection.channel
        try:
            if not session.outgoing:
                self._receive(connection)
            if session.outgoing:
                sent = channel.send(session.outgoing, _NO_SIGNAL)
                del session.outgoing[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection, "it hung up")
            return
        if session.closing and not session.outgoing:
            self._drop(connection, "it was misunderstood")
            return
        if session.outgoing:
            self._stalling.setdefault(connection, self._clock.now() + self._bounds.stall_seconds)
        elif session.greeted:
            self._stalling.pop(connection, None)
        self._listen_for(connection)

    def _receive(self, connection: _Connection) -> None:
        """Answer one frame, so that everyone has a turn."""
        session = connection.session
        if connection not in self._throttled:
            session.feed(connection.channel.recv(session.room))
        if session.waiting and self._spend(session.peer.uid):
            session.step()
        # Frames may be left in hand, for which the socket will not call.
        if session.waiting:
            self._throttled[connection] = None
        else:
            self._throttled.pop(connection, None)

    def _listen_for(self, connection: _Connection) -> None:
        interest = select.EPOLLRDHUP
        if connection.session.outgoing:
            interest |= select.EPOLLOUT
        elif connection not in self._throttled:
            interest |= select.EPOLLIN
        if interest != connection.interest:
            self._epoll.modify(connection.channel, interest)
            connection.interest = interest

    def _spend(self, uid: int) -> bool:
        """Take a token from the user's bucket, if there is one."""
        now, bounds = self._clock.now(), self._bounds
        tokens, since = self._tokens.get(uid, (bounds.burst, now))
        tokens = min(bounds.burst, tokens + (now - since) * bounds.requests_per_second)
        if len(self._tokens) > _MAX_BUCKETS:  # a user unheard of for long has a full one anyway
            self._tokens.clear()
        self._tokens[uid] = (tokens - 1.0 if tokens >= 1.0 else tokens, now)
        return tokens >= 1.0

    def _drop_stalled(self) -> None:
        now = self._clock.now()
        while self._stalling:
            connection, stalls_at = next(iter(self._stalling.items()))
            if now < stalls_at:
                return
            self._drop(connection, "it stalled")

    def _drop(self, connection: _Connection, why: str) -> None:
        if connection.pidfd < 0:
            return
        connection.session.end(why)
        self._throttled.pop(connection, None)
        self._stalling.pop(connection, None)
        for file in (connection.channel.fileno(), connection.pidfd):
            self._epoll.unregister(file)
            del self._by_file[file]
        connection.channel.close()
        os.close(connection.pidfd)
        connection.pidfd = -1
        uid = connection.session.peer.uid
        self._per_user[uid] -= 1
        if not self._per_user[uid]:
            del self._per_user[uid]
