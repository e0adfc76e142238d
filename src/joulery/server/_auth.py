"""Who calls: tokens of teams, looked up and cached for seconds; tokens of decisions, computed."""

from __future__ import annotations

import asyncio
import base64
import hmac
from collections import OrderedDict
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Path, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection  # noqa: TC002 - FastAPI reads the annotation

from joulery.jobs import LARGEST_ID
from joulery.server._problems import later, no_permission, no_token, not_found
from joulery.storage import EVERY_TEAM, Permission, TokenRecord, digest_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from joulery.clock import Clock
    from joulery.server._context import ServerContext

CACHED_SECONDS = 5.0
_CONTEXT = b"joulery decision 1:"


class OneBearer(HTTPBearer):
    """A bearer token from the only Authorization header; a proxy might take another of several."""

    async def __call__(self, request: HTTPConnection) -> HTTPAuthorizationCredentials | None:
        """The token of a request; None without one, or with several."""
        if len(request.headers.getlist("authorization")) != 1:
            return None
        return await super().__call__(request)


TEAM_TOKEN = OneBearer(
    scheme_name="teamToken",
    description="token of a team, made with `joulery serve token create`",
    auto_error=False,
)
DECISION_TOKEN = OneBearer(
    scheme_name="decisionToken", description="token that came with the decision", auto_error=False
)


def sees(record: TokenRecord, team: str) -> bool:
    """Whether records of ``team`` exist for the bearer of a token."""
    return record.token.team in (team, EVERY_TEAM)


def allows(record: TokenRecord, permission: Permission) -> bool:
    """Whether a token has a permission, within its team."""
    return record.token.right >= permission


class TokenCache:
    """The records of tokens, cached for some seconds.

    Args:
        find: Function that looks a digest up in the store.
        clock: Clock: monotonic for the cache, wall for expiry.
        size: Number of digests that are kept, those of no token included.
    """

    def __init__(
        self,
        find: Callable[[bytes], Awaitable[TokenRecord | None]],
        clock: Clock,
        size: int,
    ) -> None:
        self._find = find
        self._clock = clock
        self._size = size
        self._known: OrderedDict[bytes, tuple[float, TokenRecord | None]] = OrderedDict()
        self._pending: dict[bytes, asyncio.Future[TokenRecord | None]] = {}

    async def verify(self, token: str) -> TokenRecord | None:
        """The record of a token, if it is valid now."""
        digest = digest_of(token)
        known = self._known.get(digest)
        if known is not None and self._clock.now() < known[0]:
            record = known[1]
        else:
            # Of many requests that miss the cache at the same moment, one looks it up.
            pending = self._pending.get(digest)
            if pending is None:
                pending = self._pending[digest] = asyncio.ensure_future(self._look_up(digest))
            record = await asyncio.shield(pending)
        return record if record is not None and record.valid(self._clock.wall()) else None

    async def _look_up(self, digest: bytes) -> TokenRecord | None:
        try:
            record = await self._find(digest)
        finally:
            del self._pending[digest]
        self._known[digest] = self._clock.now() + CACHED_SECONDS, record
        self._known.move_to_end(digest)
        if len(self._known) > self._size:
            self._known.popitem(last=False)
        return record

    def knows(self, token: str) -> bool:
        """Whether a token was valid when it was last looked up, or was looked up just now."""
        known = self._known.get(digest_of(token))
        return known is not None and (known[1] is not None or self._clock.now() < known[0])

    def clear(self) -> None:
        """Look everything up again: a token was revoked here."""
        self._known.clear()


class Signer:
    """Makes and checks the tokens of decisions: HMAC-SHA256 of their ids.

    Args:
        secret: Secret of the store.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def token(self, decision: str) -> str:
        """The token of a decision."""
        code = hmac.digest(self._secret, _CONTEXT + decision.encode("utf-8"), "sha256")
        return base64.urlsafe_b64encode(code).rstrip(b"=").decode("ascii")

    def fits(self, decision: str, token: str | None) -> bool:
        """Whether a token is that of a decision."""
        return token is not None and hmac.compare_digest(
            self.token(decision).encode("ascii"), token.encode("utf-8", "surrogatepass")
        )


def context_of(request: Request) -> ServerContext:
    """The context of the application that serves a request."""
    context: ServerContext = request.app.state.context
    return context


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def require(permission: Permission) -> Any:
    """The dependency on a team's token with a permission; gives the token's record."""

    async def caller(
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Security(TEAM_TOKEN)],
    ) -> TokenRecord:
        context = context_of(request)
        if credentials is None:
            raise no_token()
        now, address = context.clock.now(), _address(request)
        token = credentials.credentials
        # Guesses are slowed down before they cost a look into the store; a token that was valid
        # before is not, even if someone guesses from the same address.
        if context.failures.exhausted(address, now) and not context.tokens.knows(token):
            raise later("too many calls without a valid token", 429)
        record = await context.tokens.verify(token)
        if record is None:
            context.failures.wait_seconds(address, now)
            raise no_token()
        _limit_rate(context, record.id)
        if not allows(record, permission):
            raise no_permission()
        return record

    return Depends(caller)


def own_job(permission: Permission) -> Any:
    """The dependency on a job of the caller's team; gives its number."""
    caller = require(permission)  # a default, since annotations are not evaluated in here

    async def job_of_caller(
        request: Request,
        job: Annotated[
            int, Path(ge=0, le=LARGEST_ID, description="number of a job's version", examples=[7])
        ],
        record: TokenRecord = caller,
    ) -> int:
        if not sees(record, await context_of(request).team_of(job)):
            raise not_found()
        return job

    return Depends(job_of_caller)


def own_team(permission: Permission) -> Any:
    """The dependency on a team that the caller may see; gives its name."""
    caller = require(permission)  # a default, since annotations are not evaluated in here

    async def team_of_caller(
        team: Annotated[str, Path(description="namespace of the jobs", examples=["vision"])],
        record: TokenRecord = caller,
    ) -> str:
        if not sees(record, team):
            raise not_found()
        return team

    return Depends(team_of_caller)


async def held_decision(
    request: Request,
    decision: Annotated[str, Path(description="id of the decision", examples=["7.12"])],
    credentials: Annotated[HTTPAuthorizationCredentials | None, Security(DECISION_TOKEN)],
) -> str:
    """The id of a decision whose token the request carries."""
    context = context_of(request)
    if credentials is None or not context.signer.fits(decision, credentials.credentials):
        raise no_token("joulery decision")
    _limit_rate(context, decision.partition(".")[0])
    return decision


def _limit_rate(context: ServerContext, caller: object) -> None:
    seconds = context.calls.wait_seconds(caller, context.clock.now())
    if seconds:
        raise later("too many calls with this token", 429, int(seconds) + 1)
