"""HTTP with one deadline per request: connecting, sending, every byte of the answer, retries."""

from __future__ import annotations

import io
import random
import socket
import ssl
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from joulery.client.deadline import Deadline
from joulery.client.problems import error_of
from joulery.clock import REAL_CLOCK
from joulery.errors import FileError, InvalidValueError, StoreBusyError, StoreError

if TYPE_CHECKING:
    from http.client import HTTPResponse
    from pathlib import Path

_LARGEST_ANSWER = 16 * 2**20
_CHUNK = 2**16
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 0.5
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is.

    Attributes:
        host: Name or number.
        port: Of TCP.
        path: Before the paths of the interface; mostly empty.
        tls: Whether to talk in secret.
    """

    host: str
    port: int
    path: str
    tls: bool

    @classmethod
    def of(cls, url: str) -> Address:
        """The parts of ``http(s)://HOST[:PORT][/PATH]``.

        Raises:
            InvalidValueError: It is no such thing.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        usable = parts.scheme in ("http", "https") and parts.hostname
        if not usable or parts.query or parts.fragment or not url.isascii():
            raise InvalidValueError(
                f"no address of a server: {url[:80]!r}", remedy="give http(s)://HOST[:PORT]"
            )
        if parts.username is not None or parts.password is not None:
            raise InvalidValueError(
                "the address of a server holds a name or password",
                remedy="give the token by JOULERY_TOKEN, and the address without it",
            )
        tls = parts.scheme == "https"
        return cls(str(parts.hostname), port or (443 if tls else 80), parts.path.rstrip("/"), tls)

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}{self.path}"


class Transport:
    """Requests to one server over a connection that is kept; may be used from several threads.

    Proxies of the environment are not used, and redirects are not followed.

    Args:
        address: Of the server.
        seconds: All that a request may take, retries included.
        ca_file: Certificates to trust instead of the system's.
    """

    def __init__(
        self, address: Address, seconds: float = 2.0, ca_file: str | Path | None = None
    ) -> None:
        self.address = address
        self._seconds = seconds
        self._ca_file = ca_file
        self._tls: ssl.SSLContext | None = None
        self._idle: list[HTTPConnection] = []

    def ask(
        self, method: str, path: str, token: str | None = None, body: bytes | None = None
    ) -> bytes:
        """The body of the answer.

        Raises:
            StoreBusyError: No answer within the time, or the server asks to try again later.
            JouleryError: What the server refused it with.
        """
        deadline = Deadline(self._seconds)
        headers = {"Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        pause = _FIRST_PAUSE_SECONDS
        while True:
            wished = 0.0
            try:
                status, wished, content = self._once(method, path, headers, body, deadline)
                if 200 <= status < 300:
                    return content
                failed = error_of(status, content)
                if status not in _AGAIN:
                    raise failed
            except ssl.SSLCertVerificationError as error:
                raise self._untrusted(error) from None  # it will not become another
            except (OSError, HTTPException) as error:
                failed = self._unreachable(error)
            # Half to all of the pause, so that many clients do not come back at once.
            wait = max(wished, pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            if wait >= deadline.left:
                raise failed
            REAL_CLOCK.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def close(self) -> None:
        """Close connections that wait for the next request."""
        while self._idle:
            self._idle.pop().close()

    def _once(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes | None,
        deadline: Deadline,
    ) -> tuple[int, float, bytes]:
        """Status, the pause that the server wishes for, and the body."""
        connection, kept = self._connection(deadline)
        try:
            try:
                connection.request(method, self.address.path + path, body, headers)
                answer = connection.getresponse()
            except (ConnectionError, HTTPException):
                if not kept:
                    raise
                # A kept connection may have been closed by the server meanwhile.
                connection.close()
                connection = self._opened(deadline)
                connection.request(method, self.address.path + path, body, headers)
                answer = connection.getresponse()
            content = self._body(answer)
        except BaseException:
            connection.close()
            raise
        if answer.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        return answer.status, _retry_after(answer.getheader("Retry-After")), content

    def _body(self, answer: HTTPResponse) -> bytes:
        content = answer.read(_LARGEST_ANSWER + 1)
        if len(content) > _LARGEST_ANSWER:
            raise StoreError(
                f"{self.address} answers with more than {_LARGEST_ANSWER} bytes",
                remedy="check that a Joulery server is there",
            )
        return content

    def _connection(self, deadline: Deadline) -> tuple[HTTPConnection, bool]:
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._opened(deadline), False
        assert isinstance(connection.sock, _TimedSocket)  # noqa: S101 - set when it was opened
        connection.sock.deadline = deadline
        return connection, True

    def _opened(self, deadline: Deadline) -> HTTPConnection:
        where, left = self.address, deadline.check(str(self.address))
        connection = (
            HTTPSConnection(where.host, where.port, timeout=left, context=self._context())
            if where.tls
            else HTTPConnection(where.host, where.port, timeout=left)
        )
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock = _TimedSocket(connection.sock, deadline, str(where))
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            try:
                self._tls = ssl.create_default_context(cafile=self._ca_file)
            except (OSError, ssl.SSLError) as error:
                raise FileError(
                    f"cannot use the certificates in {self._ca_file}: {error}",
                    remedy="give a file with certificates in PEM",
                ) from None
        return self._tls

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> StoreError:
        return StoreError(
            f"{self.address} shows a certificate that is not trusted: {error.verify_message}",
            remedy="name its authority's file in JOULERY_CA_FILE",
        )

    def _unreachable(self, error: Exception) -> StoreError:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return StoreBusyError(
            f"no answer from {self.address}: {reason}", remedy="start `joulery serve` there"
        )


class _TimedSocket:
    """A socket whose every wait is cut at a deadline; as much of one as http.client uses."""

    def __init__(self, inner: Any, deadline: Deadline, peer: str) -> None:
        self.deadline = deadline
        self._inner = inner
        self._peer = peer
        self._readers = 0
        self._unwanted = False

    def sendall(self, data: Any) -> None:
        self._inner.settimeout(self.deadline.check(self._peer))
        self._inner.sendall(data)

    def recv_into(self, buffer: Any) -> int:
        self._inner.settimeout(self.deadline.check(self._peer))
        return int(self._inner.recv_into(buffer))

    def makefile(self, _mode: str) -> io.BufferedReader:
        self._readers += 1
        return io.BufferedReader(_Incoming(self), _CHUNK)

    def close(self) -> None:
        """Close it once nobody reads from it any more, as sockets do."""
        self._unwanted = True
        if not self._readers:
            self._inner.close()

    def reader_closed(self) -> None:
        self._readers -= 1
        if self._unwanted:
            self.close()


class _Incoming(io.RawIOBase):
    """What comes out of a timed socket."""

    def __init__(self, source: _TimedSocket) -> None:
        super().__init__()
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._source.recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._source.reader_closed()


def _retry_after(value: str | None) -> float:
    """Seconds that the server asks for; it may also name a date, which is not for us."""
    digits = (value or "").strip()
    return float(digits) if digits.isdecimal() and len(digits) < 9 else 0.0
