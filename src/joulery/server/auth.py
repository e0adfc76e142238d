"""Who calls: team tokens, looked up and remembered for seconds; decision tokens, computed."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections import OrderedDict
from typing import TYPE_CHECKING

from joulery.storage.tokens import EVERY_TEAM, digest_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from joulery.clock import Clock
    from joulery.storage.tokens import Permission, TokenRecord

REMEMBERED_SECONDS = 5.0
_SCHEME = b"bearer "
_LONGEST = 200
_CONTEXT = b"joulery decision 1:"


def bearer(headers: list[tuple[bytes, bytes]]) -> str | None:
    """The token that a request carries; None where it carries none, or several."""
    found = [value for name, value in headers if name == b"authorization"]
    if len(found) != 1 or found[0][:7].lower() != _SCHEME or len(found[0]) > _LONGEST:
        return None
    try:
        return found[0][7:].decode("ascii").strip()
    except UnicodeDecodeError:
        return None


def sees(record: TokenRecord, team: str) -> bool:
    """Whether what belongs to ``team`` exists for the bearer of a token."""
    return record.token.team in (team, EVERY_TEAM)


def allows(record: TokenRecord, right: Permission) -> bool:
    """Whether a token has a right, within its team."""
    return record.token.right >= right


class TokenCache:
    """Tells whose a token is, from memory if it was asked for in the last seconds.

    Args:
        find: Looks a digest up in the store.
        clock: Monotonic for what is remembered, wall for expiry.
        remembered: Digests that are kept, those of no token included.
    """

    def __init__(
        self,
        find: Callable[[bytes], Awaitable[TokenRecord | None]],
        clock: Clock,
        remembered: int,
    ) -> None:
        self._find = find
        self._clock = clock
        self._remembered = remembered
        self._known: OrderedDict[bytes, tuple[float, TokenRecord | None]] = OrderedDict()
        self._asked: dict[bytes, asyncio.Future[TokenRecord | None]] = {}

    async def verify(self, token: str) -> TokenRecord | None:
        """The token, if it is valid now."""
        digest = digest_of(token)
        known = self._known.get(digest)
        if known is not None and self._clock.now() < known[0]:
            record = known[1]
        else:
            # Of many requests that find it forgotten at the same moment, one looks it up.
            asked = self._asked.get(digest)
            if asked is None:
                asked = self._asked[digest] = asyncio.ensure_future(self._look_up(digest))
            record = await asyncio.shield(asked)
        return record if record is not None and record.valid(self._clock.wall()) else None

    async def _look_up(self, digest: bytes) -> TokenRecord | None:
        try:
            record = await self._find(digest)
        finally:
            del self._asked[digest]
        self._known[digest] = self._clock.now() + REMEMBERED_SECONDS, record
        self._known.move_to_end(digest)
        if len(self._known) > self._remembered:
            self._known.popitem(last=False)
        return record

    def knows(self, token: str) -> bool:
        """Whether a token was valid when it was last looked up, or was looked up just now."""
        known = self._known.get(digest_of(token))
        return known is not None and (known[1] is not None or self._clock.now() < known[0])

    def forget_all(self) -> None:
        """Look everything up again: a token was revoked here."""
        self._known.clear()


class Signer:
    """Makes and checks the tokens of decisions: HMAC-SHA256 of their ids.

    Args:
        secret: Of the store, at most 64 bytes.
    """

    def __init__(self, secret: bytes) -> None:
        # By hand (RFC 2104), since hmac.digest lets other threads run, and the event loop would
        # then have to wait for the store's.
        padded = secret.ljust(64, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded) + _CONTEXT)
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded))

    def token(self, decision: str) -> str:
        """The token of a decision."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(decision.encode("utf-8"))
        outer.update(inner.digest())
        return base64.urlsafe_b64encode(outer.digest()).rstrip(b"=").decode("ascii")

    def fits(self, decision: str, token: str | None) -> bool:
        """Whether a token is that of a decision."""
        return token is not None and hmac.compare_digest(self.token(decision), token)
