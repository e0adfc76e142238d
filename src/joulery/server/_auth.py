"""Authentication by tokens of teams, sessions of people and tokens of decisions.

The first two are looked up and cached for seconds, the last are computed. Routes authenticate and
authorize before the body of a request is read, so that a caller without a token costs little.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import struct
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar
from urllib.parse import unquote

from starlette.concurrency import run_in_threadpool
from starlette.convertors import IntegerConvertor, register_url_convertor

from joulery.client import DEFAULT_TEAM
from joulery.clock import REAL_CLOCK
from joulery.documents import LARGEST_ID
from joulery.jobs import JobService, parse_decision_id
from joulery.rate_limit import RateLimiter
from joulery.server._config import LIMITS, Limits
from joulery.server._metrics import Metrics
from joulery.server._problems import (
    ProblemError,
    later,
    no_permission,
    no_token,
    not_found,
    session_ended,
)
from joulery.server._shares import WorkShares
from joulery.storage import (
    EVERY_TEAM,
    Session,
    TokenRecord,
    digest_of,
    find_session,
    find_token,
    touch_session,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fastapi import Request

    from joulery.clock import Clock
    from joulery.server._connections import ConnectionGate
    from joulery.storage import Permission, Store, Transaction

Found = TypeVar("Found")
Credential = TypeVar("Credential")

_TOUCH_SECONDS = 300.0  # by hand: a session is written to this often at most
CACHED_SECONDS = 5.0  # by hand: a revoked token ends within seconds
_CONTEXT = b"joulery decision 2:"
_NONCE = struct.Struct(">d")


class _NumberConvertor(IntegerConvertor):
    """Numbers of jobs in addresses; longer text is not such an address."""

    regex = f"[0-9]{{1,{len(str(LARGEST_ID))}}}"


register_url_convertor("number", _NumberConvertor())


def may_see(record: TokenRecord, team: str) -> bool:
    """Whether the bearer of a token may see records of ``team``."""
    return record.team in (team, EVERY_TEAM)


def named_team(record: TokenRecord, text: str) -> str:
    """The team that an address names; ``default`` is the token's own, unless it is for all."""
    team = unquote(text)
    return record.team if team == DEFAULT_TEAM and not may_see_all(record) else team


def may_see_all(record: TokenRecord) -> bool:
    """Whether the bearer of a token may see what concerns all teams."""
    return record.team == EVERY_TEAM


class TokenCache(Generic[Credential]):
    """The records of tokens, or of sessions, cached for some seconds.

    Args:
        find: Function that looks a digest up in the store.
        clock: Clock for the age of what is cached.
        size: Number of digests that are kept, those of no token included.
    """

    def __init__(
        self,
        find: Callable[[bytes], Awaitable[Credential | None]],
        clock: Clock,
        size: int,
    ) -> None:
        self._find = find
        self._clock = clock
        self._size = size
        self._known: OrderedDict[bytes, tuple[float, Credential | None]] = OrderedDict()
        self._pending: dict[bytes, asyncio.Future[Credential | None]] = {}

    async def find(self, token: str) -> Credential | None:
        """The record of a token, valid or not."""
        digest = digest_of(token)
        entry = self._known.get(digest)
        if entry is not None and self._clock.now() < entry[0]:
            record = entry[1]
        else:
            # Of many requests that miss the cache at the same moment, one looks it up.
            pending = self._pending.get(digest)
            if pending is None:
                pending = self._pending[digest] = asyncio.ensure_future(self._look_up(digest))
            record = await asyncio.shield(pending)
        return record

    def forget(self, token: str) -> None:
        """Look a token up again when it is used next."""
        self._known.pop(digest_of(token), None)

    async def _look_up(self, digest: bytes) -> Credential | None:
        try:
            record = await self._find(digest)
        finally:
            del self._pending[digest]
        self._known[digest] = self._clock.now() + CACHED_SECONDS, record
        self._known.move_to_end(digest)
        if len(self._known) > self._size:
            self._known.popitem(last=False)
        return record

    def is_known(self, token: str) -> bool:
        """Whether a token was valid when it was last looked up, or was looked up just now."""
        entry = self._known.get(digest_of(token))
        return entry is not None and (entry[1] is not None or self._clock.now() < entry[0])


class Signer:
    """Makes and checks the tokens of decisions: the time of issue, and an HMAC of it and the id.

    The time distinguishes decisions of the same id: a store that was restored from a backup gives
    out ids again.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def token(self, decision: str, issued_wall_seconds: float) -> str:
        """The token of a decision."""
        nonce = _NONCE.pack(issued_wall_seconds)
        # Not hmac.digest, which lets another thread go first, and comes back much later.
        code = hmac.new(self._secret, _CONTEXT + nonce + decision.encode("utf-8"), "sha256")
        return base64.urlsafe_b64encode(nonce + code.digest()).rstrip(b"=").decode("ascii")

    def issued(self, decision: str, token: str | None) -> float | None:
        """The time of issue that a decision's token states; None for a token of another one."""
        text = (token or "").encode("utf-8", "surrogatepass")
        try:
            (seconds,) = _NONCE.unpack_from(base64.urlsafe_b64decode(text[:12]))
        except (ValueError, struct.error):
            return None
        fits = hmac.compare_digest(self.token(decision, seconds).encode("ascii"), text)
        return float(seconds) if fits else None


class ServerContext:
    """The state of one server process.

    Args:
        store: Opened store.
        secret: Secret of the store; see ``joulery.storage._tokens.decision_secret``.
        limits: Limits on requests and callers.
        clock: Real clock, or a test's.
        log_requests: Whether every request is logged, or only requests that failed or took long.
        gate: Gate of connections; None for a test's.
    """

    def __init__(
        self,
        store: Store,
        secret: bytes,
        limits: Limits = LIMITS,
        clock: Clock = REAL_CLOCK,
        *,
        log_requests: bool = False,
        gate: ConnectionGate | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.limits = limits
        self.log_requests = log_requests
        self.gate = gate
        self.jobs = JobService(store, clock)
        self.metrics = Metrics()
        self.signer = Signer(secret)
        self.tokens: TokenCache[TokenRecord] = TokenCache(
            self._finder(find_token), clock, limits.remembered
        )
        self.sessions: TokenCache[Session] = TokenCache(
            self._finder(find_session), clock, limits.remembered
        )
        remembered = limits.remembered
        self.calls = RateLimiter(limits.calls_per_second, limits.burst_calls, remembered)
        self.bytes = RateLimiter(limits.team_bytes_per_second, limits.burst_bytes, remembered)
        failures = limits.failures_per_second
        self.failures = RateLimiter(failures, 10 * failures, remembered)
        self.shares = WorkShares(limits, REAL_CLOCK)  # processor time is real
        self.in_flight: Counter[str] = Counter()  # requests by team
        self.draining = False
        self._teams: OrderedDict[int, str] = OrderedDict()

    def read(self, look: Callable[[Transaction], Found]) -> Found:
        """Read from the store in this thread."""
        with self.store.reading() as transaction:
            return look(transaction)

    def left(self, team: str | None) -> None:
        """Note that a request of a team has been answered; None for one without a token."""
        if team is not None:
            self.in_flight[team] -= 1
            if not self.in_flight[team]:
                del self.in_flight[team]

    async def team_of(self, job: int) -> str:
        """The team of a job.

        Raises:
            UnknownRecordError: There is no such job.
        """
        team = self._teams.get(job)
        if team is None:
            record = await run_in_threadpool(self.read, lambda transaction: transaction.job(job))
            team = self._teams[job] = record.team  # for ever: numbers are not used again
            if len(self._teams) > self.limits.remembered:
                self._teams.popitem(last=False)
        return team

    def _finder(
        self, find: Callable[[Transaction, bytes], Credential | None]
    ) -> Callable[[bytes], Awaitable[Credential | None]]:
        async def look(digest: bytes) -> Credential | None:
            return await run_in_threadpool(self.read, lambda transaction: find(transaction, digest))

        return look


def context_of(request: Request) -> ServerContext:
    """The context of the application that serves a request."""
    context: ServerContext = request.app.state.context
    return context


def bearer_token(request: Request) -> str:
    """The token of a request; empty without one, or with several.

    Of several headers a proxy might take another than this server.
    """
    headers = request.headers.getlist("authorization")
    scheme, _, token = (headers[0] if len(headers) == 1 else "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


async def authenticate(request: Request, token: str | None = None) -> None:
    """Check the token of a request, and the limits of its team; before the body is read.

    Args:
        request: Request whose caller is to be known.
        token: Token that came otherwise than in the request's header.

    Raises:
        ProblemError: There is no valid token, or its team calls too often.
    """
    context = context_of(request)
    token = bearer_token(request) if token is None else token
    decision = request.path_params.get("decision")
    if decision is None:
        request.state.caller = caller = await _caller(context, request, token)
        team = caller.team
    else:
        issued = context.signer.issued(decision, token)
        if issued is None:
            raise no_token("joulery decision")
        request.state.issued = issued
        team = await context.team_of(parse_decision_id(decision)[0])
    _admit(context, request, team)


def _admit(context: ServerContext, request: Request, team: str) -> None:
    """Count a request of a caller that is known, unless the team has too many."""
    context.shares.note(team)
    if context.gate is not None:
        context.gate.trust(request.scope.get("client"))
    seconds = context.calls.wait_seconds(team, context.clock.now())
    if seconds or context.in_flight[team] >= context.limits.team_requests:
        raise later("too many calls of this team", 429, int(seconds) + 1)
    context.in_flight[team] += 1
    request.scope["joulery.team"] = team


async def authenticate_session(request: Request, session_id: str, *, by_person: bool) -> None:
    """Check the session of a request, and the limits of its team.

    Args:
        request: Request whose caller is to be known.
        session_id: Id from the cookie.
        by_person: Whether a person has opened the page, so that the session is not idle.

    Raises:
        ProblemError: There is no such session; with a reason, if it has ended.
    """
    context = context_of(request)
    session = await _look_up(context, request, session_id, context.sessions)
    now = context.clock.wall()
    if reason := session.end_reason(now):
        raise session_ended(reason)
    if by_person and now - session.record.seen_wall_seconds > _TOUCH_SECONDS:
        digest = session.record.digest
        context.store.submit(lambda transaction: touch_session(transaction, digest, now))
        context.sessions.forget(session_id)
    request.state.caller = session.token
    _admit(context, request, session.token.team)


async def session_end(request: Request, session_id: str) -> str:
    """Reason why a session is void; empty for a valid one, or for none."""
    context = context_of(request)
    if not session_id:
        return ""
    try:
        session = await _look_up(context, request, session_id, context.sessions)
    except ProblemError:
        return "your session is not known here any more"
    reason = session.end_reason(context.clock.wall())
    return reason and session_ended(reason).problem.detail


async def _look_up(
    context: ServerContext, request: Request, text: str, cache: TokenCache[Credential]
) -> Credential:
    if not text:
        raise no_token()
    now, address = context.clock.now(), request.client.host if request.client else ""
    # Guesses are slowed down before they cost a look into the store; a token that was valid
    # before is not, even if someone guesses from the same address.
    if context.failures.exhausted(address, now) and not cache.is_known(text):
        raise later("too many calls without a valid token", 429)
    record = await cache.find(text)
    if record is None:
        context.failures.wait_seconds(address, now)
        raise no_token()
    return record


async def _caller(context: ServerContext, request: Request, token: str) -> TokenRecord:
    record = await _look_up(context, request, token, context.tokens)
    if not record.valid(context.clock.wall()):
        raise no_token()
    return record


async def authorize(request: Request, permission: Permission) -> None:
    """Check that the caller may do this with the job or the team that the address names.

    Raises:
        ProblemError: The token does not include the permission, or is another team's.
    """
    caller: TokenRecord = request.state.caller
    if caller.right < permission:
        raise no_permission()
    parameters = request.path_params
    if "job" in parameters:
        if not may_see(caller, await context_of(request).team_of(parameters["job"])):
            raise not_found()
    elif not may_see(caller, team := named_team(caller, parameters.get("team", DEFAULT_TEAM))):
        raise not_found(
            f"the token is of team {caller.team}, the request names team {team}",
            "leave --team and $JOULERY_TEAM out, or use a token of that team",
        )
