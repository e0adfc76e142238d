"""Decisions by a server: every call is a request over HTTP within one deadline.

Requests use the standard library only. One connection is kept per thread that is calling; a
request that fails for a passing reason is repeated until its time is over. A server that sends a
byte now and then takes longer; ``joulery.client.ResilientClient`` bounds that for trainings.
"""

from __future__ import annotations

import random
import socket
import ssl
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from joulery.client._transport import (
    DecisionPage,
    EnergyPage,
    JobPage,
    OutcomeReport,
    PauseState,
    ProfileList,
    ProgressReport,
    RunPage,
    error_of,
)
from joulery.clock import REAL_CLOCK
from joulery.errors import FileError, InvalidValueError, StoreBusyError, StoreError
from joulery.jobs import Decision, DecisionLease, JobEntry, Receipt, RunEntry

if TYPE_CHECKING:
    from http.client import HTTPResponse
    from pathlib import Path
    from urllib.parse import SplitResult

    from joulery.documents import JsonModel
    from joulery.jobs import (
        DecisionEntry,
        Definition,
        EnergyEntry,
        LiveState,
        Outcome,
        ProfileEntry,
        Request,
    )

Model = TypeVar("Model", bound="JsonModel")

_LARGEST_ANSWER = 16 * 2**20  # bytes (by hand: a page of 1,000 jobs has below 2)
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 0.5  # by hand: some attempts in 2 s
_RESTART_SECONDS = 2.0  # for which a refused connection is tried again (by hand: a restart)
_GREETING_SECONDS = 1.0  # by hand: for a TLS handshake with a server that just answered
_REPEATED = frozenset({408, 429, 500, 502, 503, 504})


def _server_parts(url: str) -> SplitResult:
    """The parts of ``http(s)://HOST[:PORT][/PATH]``.

    Raises:
        InvalidValueError: The text is not such an address.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # no number of a port
        parts, usable = urlsplit(""), False
    if not usable or parts.query or parts.fragment or not url.isascii():
        raise InvalidValueError(
            f"no address of a server: {url[:80]!r}", remedy="give http(s)://HOST[:PORT]"
        )
    if parts.username is not None or parts.password is not None:
        raise InvalidValueError(
            "the address of a server holds a name or password",
            remedy="give the token by JOULERY_TOKEN, and the address without it",
        )
    return parts


class HttpBackend:
    """A ``joulery.client._backend.DecisionBackend`` behind a server, which has its methods.

    Connects when it is first used. Proxies of the environment are not used, and redirects are not
    followed, so that a token is sent to this server only.

    Args:
        url: Address of the server, ``http(s)://HOST[:PORT][/PATH]``.
        team: Team whose jobs are meant.
        token: Token that the server gave to the team.
        seconds: Longest time that a request may take, retries included.
        ca_file: File of certificates to trust instead of the system's.
    """

    def __init__(
        self,
        url: str,
        team: str,
        token: str | None,
        seconds: float = 2.0,
        ca_file: str | Path | None = None,
    ) -> None:
        self._address = _server_parts(url)
        self._url = url.rstrip("/")
        self._team = team
        self._token = token
        self._seconds = seconds
        self._ca_file = ca_file
        self._tls: ssl.SSLContext | None = None
        self._idle: list[HTTPConnection] = []

    def define(self, definition: Definition) -> JobEntry:
        return self._call(JobEntry, "POST", self._jobs, definition)

    def decide(self, job: int, request: Request) -> Decision:
        return self._call(Decision, "POST", f"/v1/jobs/{job:d}/decisions", request)

    def heartbeat(
        self, decision: Decision, progress: Outcome | None = None, live: LiveState | None = None
    ) -> DecisionLease:
        """Prolong the lease of a decision."""
        path = f"/v1/decisions/{quote(decision.id, safe='')}/heartbeat"
        body = ProgressReport(progress, live)
        return self._call(DecisionLease, "POST", path, body, decision.token)

    def report(self, decision: Decision, outcome: Outcome, key: str) -> Receipt:
        path = f"/v1/decisions/{quote(decision.id, safe='')}/outcome"
        return self._call(Receipt, "PUT", path, OutcomeReport(key, outcome), decision.token)

    def jobs(self, after: int = 0, limit: int = 100) -> tuple[list[JobEntry], int | None]:
        page = self._call(JobPage, "GET", f"{self._jobs}?{_page(after, limit)}")
        return list(page.jobs), page.next

    def job(self, name: str, device: str | None = None) -> JobEntry:
        query = "" if device is None else "?" + urlencode({"device": device})
        return self._call(JobEntry, "GET", f"{self._jobs}/{quote(name, safe='')}{query}")

    def decisions(
        self, job: int, after: int = 0, limit: int = 100
    ) -> tuple[list[DecisionEntry], int | None]:
        path = f"/v1/jobs/{job:d}/decisions?{_page(after, limit)}"
        page = self._call(DecisionPage, "GET", path)
        return list(page.decisions), page.next

    def profiles(self, job: int) -> list[ProfileEntry]:
        return list(self._call(ProfileList, "GET", f"/v1/jobs/{job:d}/profiles").profiles)

    def put_profile(self, job: int, profile: ProfileEntry) -> None:
        self.ask("PUT", f"/v1/jobs/{job:d}/profiles", self._token, profile.checked())

    def energy(
        self, job: int, after: int = 0, limit: int = 100
    ) -> tuple[list[EnergyEntry], int | None]:
        page = self._call(EnergyPage, "GET", f"/v1/jobs/{job:d}/energy?{_page(after, limit)}")
        return list(page.energy), page.next

    def add_energy(self, job: int, energy: EnergyEntry) -> None:
        self.ask("POST", f"/v1/jobs/{job:d}/energy", self._token, energy.checked())

    def put_run(self, run: RunEntry) -> None:
        self.ask("PUT", self._runs, self._token, run.checked())

    def runs(
        self, text: str = "", below: int = 0, limit: int = 100, *, open_only: bool = False
    ) -> tuple[list[RunEntry], int | None]:
        values = {"text": text, "below": below, "limit": limit}
        query = urlencode(values | ({"open": "true"} if open_only else {}))
        page = self._call(RunPage, "GET", f"{self._runs}?{query}")
        return list(page.runs), page.next

    def run(self, number: int) -> RunEntry:
        return self._call(RunEntry, "GET", f"/v1/runs/{number:d}")

    def pause(self, job: int, *, paused: bool = True) -> None:
        self.ask("PATCH", f"/v1/jobs/{job:d}", self._token, PauseState(paused))

    def delete(self, job: int) -> None:
        self.ask("DELETE", f"/v1/jobs/{job:d}", self._token)

    def close(self) -> None:
        """Close connections that wait for the next request."""
        while self._idle:
            self._idle.pop().close()

    @property
    def _runs(self) -> str:
        return f"/v1/teams/{quote(self._team, safe='')}/runs"

    @property
    def _jobs(self) -> str:
        return f"/v1/teams/{quote(self._team, safe='')}/jobs"

    def _call(
        self,
        kind: type[Model],
        method: str,
        path: str,
        body: JsonModel | None = None,
        token: str | None = None,
    ) -> Model:
        # Calls on a decision carry its own token, which its holder alone has.
        content = self.ask(method, path, self._token if token is None else token, body)
        try:
            return kind.from_json(content)
        except InvalidValueError as error:
            raise StoreError(
                f"{self._url} sends an invalid answer: {error.message}",
                remedy="check that a Joulery server of this version is there",
            ) from None

    def ask(
        self, method: str, path: str, token: str | None = None, body: JsonModel | None = None
    ) -> bytes:
        """The body of the answer to a request.

        Raises:
            StoreBusyError: No answer came within the time, or the server asks to try again later.
            JouleryError: The server refused the request, for this reason.
        """
        began = REAL_CLOCK.now()
        deadline = began + self._seconds
        headers = {"Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        content = None if body is None else body.to_json()
        pause = _FIRST_PAUSE_SECONDS
        while True:
            wait = 0.0
            try:
                answer, content_received = self._once((method, path, content, headers), deadline)
                if 200 <= answer.status < 300:
                    return content_received
                failed = error_of(answer.status, content_received)
                if answer.status not in _REPEATED:
                    raise failed
                wait = _retry_after(answer.getheader("Retry-After"))
            except ssl.SSLCertVerificationError as error:
                raise self._untrusted(error) from None  # trying again would not help
            except ConnectionRefusedError as error:
                failed = self._unreachable(error)
                deadline = min(deadline, began + _RESTART_SECONDS)
            except (OSError, HTTPException) as error:
                self._check_scheme(error)
                failed = self._unreachable(error)
            # Half to all of the pause, so that many clients do not come back at once.
            wait = max(wait, pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            if REAL_CLOCK.now() + wait >= deadline:
                raise failed
            REAL_CLOCK.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _once(self, request: tuple[Any, ...], deadline: float) -> tuple[HTTPResponse, bytes]:
        """One attempt; on a new connection where a kept one turns out to be closed."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._exchange(self._connect(deadline), request, deadline)
        try:
            return self._exchange(connection, request, deadline)
        except (ConnectionError, HTTPException):
            return self._exchange(self._connect(deadline), request, deadline)

    def _exchange(
        self, connection: HTTPConnection, request: tuple[Any, ...], deadline: float
    ) -> tuple[HTTPResponse, bytes]:
        method, path, content, headers = request
        try:
            connection.sock.settimeout(max(0.001, deadline - REAL_CLOCK.now()))
            connection.request(method, self._address.path.rstrip("/") + path, content, headers)
            answer = connection.getresponse()
            received = answer.read(_LARGEST_ANSWER + 1)
        except BaseException:
            connection.close()
            raise
        if answer.will_close or answer.length:  # what was not read would precede the next answer
            connection.close()
        else:
            self._idle.append(connection)
        if len(received) > _LARGEST_ANSWER:
            raise StoreError(
                f"{self._url} answers with more than {_LARGEST_ANSWER} bytes",
                remedy="check that a Joulery server is there",
            )
        return answer, received

    def _connect(self, deadline: float) -> HTTPConnection:
        address, seconds = self._address, max(0.001, deadline - REAL_CLOCK.now())
        host = str(address.hostname)
        connection = (
            HTTPSConnection(host, address.port or 443, timeout=seconds, context=self._context())
            if address.scheme == "https"
            else HTTPConnection(host, address.port or 80, timeout=seconds)
        )
        connection.connect()
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

    def _check_scheme(self, error: Exception) -> None:
        """Raise where the server speaks the other scheme, which trying again would not change."""
        if scheme := self._other_scheme(error):
            raise StoreError(
                f"{self._url} speaks {'TLS' if scheme == 'https' else 'no TLS'}",
                remedy=f"write {scheme}://{self._address.netloc}",
            ) from None

    def _other_scheme(self, error: Exception) -> str:
        """The scheme that the server speaks instead of the address's; empty for the same."""
        if self._address.scheme == "https":
            return "http" if "wrong version number" in str(error) else ""
        if not isinstance(error, (ConnectionResetError, BadStatusLine)):
            return ""
        address = (str(self._address.hostname), self._address.port or 80)
        try:
            with (
                socket.create_connection(address, _GREETING_SECONDS) as plain,
                self._context().wrap_socket(plain, server_hostname=address[0]),
            ):
                return "https"
        except ssl.SSLCertVerificationError:  # not trusted, but a certificate
            return "https"
        except OSError:
            return ""

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> StoreError:
        return StoreError(
            f"{self._url} shows a certificate that is not trusted: {error.verify_message}",
            remedy="name its authority's file in JOULERY_CA_FILE",
        )

    def _unreachable(self, error: Exception) -> StoreError:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return StoreBusyError(
            f"no answer from {self._url}: {reason}", remedy="start `joulery serve` there"
        )


def _page(after: int, limit: int) -> str:
    return urlencode({"after": after, "limit": limit})


def _retry_after(value: str | None) -> float:
    """Seconds that the server asks for; a date, which the header may also have, counts as none."""
    digits = (value or "").strip()
    return float(digits) if digits.isdecimal() and len(digits) < 9 else 0.0
