"""Who may call a server: tokens of which only digests are kept, and the secret of the store."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, func, insert, select, update

from joulery.errors import InvalidValueError, UnknownRecordError
from joulery.storage.tables import settings, tokens
from joulery.units import finite

if TYPE_CHECKING:
    from joulery.storage.transaction import Transaction

EVERY_TEAM = "*"
_PREFIX = "joulery_"
_SECRET = "decision secret"  # noqa: S105 - the name of it
_SECRET_BYTES = 32


class Permission(IntEnum):
    """What a token allows; each includes those before it."""

    READ = 0  # look at jobs and their history
    WORK = 1  # define jobs, decide, keep measurements
    MANAGE = 2  # pause and forget jobs
    ADMIN = 3  # make and revoke tokens


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token to be made.

    Attributes:
        team: That it is for; ``*`` for every team.
        right: What it allows.
        label: For people.
        expires_wall_seconds: Until when; None for ever.
    """

    team: str
    right: Permission
    label: str = ""
    expires_wall_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token as stored.

    Attributes:
        id: To revoke it by.
        token: As it was made.
        created_wall_seconds: When.
        revoked_wall_seconds: Since when it is void, if it is.
    """

    id: int
    token: NewToken
    created_wall_seconds: float
    revoked_wall_seconds: float | None

    def valid(self, now_wall_seconds: float) -> bool:
        """Whether it opens anything."""
        expires = self.token.expires_wall_seconds
        return self.revoked_wall_seconds is None and (expires is None or now_wall_seconds < expires)


def right_named(name: str) -> Permission:
    """A right as people write it."""
    try:
        return Permission[name.upper()]
    except KeyError:
        raise InvalidValueError(
            f"no right {name[:40]!r}",
            remedy=f"give one of {', '.join(right.name.lower() for right in Permission)}",
        ) from None


def digest_of(token: str) -> bytes:
    """What is kept of a token. It is random enough that no salt or slow hash is needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def add_token(
    ledger: Transaction, wanted: NewToken, now_wall_seconds: float
) -> tuple[str, TokenRecord]:
    """Make a token: its text, which is not kept anywhere, and what is."""
    if wanted.expires_wall_seconds is not None:
        finite(wanted.expires_wall_seconds, "expiry in seconds since 1970", minimum=0.0)
    text = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    values = {
        "digest": digest_of(text),
        "team": wanted.team,
        "rights": wanted.right.name.lower(),
        "label": wanted.label,
        "created_wall_seconds": now_wall_seconds,
        "expires_wall_seconds": wanted.expires_wall_seconds,
        "revoked_wall_seconds": None,
    }
    number = ledger.change(insert(tokens).returning(tokens.c.id), values).scalar_one()
    return text, TokenRecord(number, wanted, now_wall_seconds, None)


def find_token(ledger: Transaction, digest: bytes) -> TokenRecord | None:
    """The token of that digest."""
    row = ledger.query(
        select(tokens).where(tokens.c.digest == bindparam("given")), {"given": digest}
    ).one_or_none()
    if row is None or not hmac.compare_digest(row.digest, digest):
        return None
    return _record(row)


def list_tokens(
    ledger: Transaction, team: str = EVERY_TEAM, after: int = 0, limit: int = 1000
) -> list[TokenRecord]:
    """Tokens of a team, or of all, by number."""
    wanted = select(tokens).where(tokens.c.id > after).order_by(tokens.c.id).limit(limit)
    if team != EVERY_TEAM:
        wanted = wanted.where(tokens.c.team == team)
    return [_record(row) for row in ledger.query(wanted)]


def revoke_token(
    ledger: Transaction, number: int, now_wall_seconds: float, team: str = EVERY_TEAM
) -> TokenRecord:
    """Make a token void; once it is, it stays so since then.

    Raises:
        UnknownRecordError: There is none of that number, or not of that team.
    """
    own = [tokens.c.id == number]
    if team != EVERY_TEAM:
        own.append(tokens.c.team == team)
    row = ledger.query(select(tokens).where(*own)).one_or_none()
    if row is None:
        raise UnknownRecordError(f"no token number {number}", remedy="list the tokens")
    if row.revoked_wall_seconds is None:
        change = update(tokens).where(tokens.c.id == number)
        ledger.change(change.values(revoked_wall_seconds=now_wall_seconds))
    record = _record(row)
    since = row.revoked_wall_seconds or now_wall_seconds
    return TokenRecord(record.id, record.token, record.created_wall_seconds, since)


def token_count(ledger: Transaction) -> int:
    """How many there are, void ones included."""
    count: int = ledger.query(select(func.count()).select_from(tokens)).scalar_one()
    return count


def decision_secret(ledger: Transaction) -> bytes:
    """What the tokens of decisions are made with; chosen the first time it is asked for."""
    wanted = select(settings.c.content).where(settings.c.name == _SECRET)
    found: bytes | None = ledger.query(wanted).scalar_one_or_none()
    if found is not None:
        return found
    made = secrets.token_bytes(_SECRET_BYTES)
    ledger.change(insert(settings), {"name": _SECRET, "content": made})
    return made


def _record(row: Any) -> TokenRecord:
    wanted = NewToken(row.team, right_named(row.rights), row.label, row.expires_wall_seconds)
    return TokenRecord(row.id, wanted, row.created_wall_seconds, row.revoked_wall_seconds)
