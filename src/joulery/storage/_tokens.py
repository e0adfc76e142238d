"""Tokens of a server's callers and sessions of its dashboard, by digest; the store's secret."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, delete, insert, select, update

from joulery.errors import InvalidValueError, UnknownRecordError
from joulery.storage._records import SessionRecord
from joulery.storage._schema import sessions, settings, tokens
from joulery.units import SECONDS_PER_DAY, finite

if TYPE_CHECKING:
    from joulery.storage._records import Document
    from joulery.storage._transaction import Transaction

EVERY_TEAM = "*"
LIFETIME_SECONDS = 12 * 3600.0
"""Longest life of a session (by hand: a working day)."""
IDLE_SECONDS = 4 * 3600.0
"""Longest time between two pages that a person opens (by hand: half a working day)."""
_KEPT_SECONDS = 7 * SECONDS_PER_DAY  # that an ended session is kept, to say why it ended (by hand)
_ID_BYTES = 32  # by hand
_PREFIX = "joulery_"
_SECRET = "decision secret"  # noqa: S105 - the name of it
_SECRET_BYTES = 32


class Permission(IntEnum):
    """Permission of a token; each includes those before it."""

    READ = 0  # read jobs and their history
    WORK = 1  # define jobs, decide, report, store measurements
    MANAGE = 2  # pause and delete jobs


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token; what the store adds is 0 before.

    Attributes:
        team: Team that it is for; ``*`` for every team.
        right: Permission that it gives.
        label: Label for people.
        expires_wall_seconds: Time of its expiry; None for never.
        created_wall_seconds: Time of its creation.
        revoked_wall_seconds: Time of its revocation, if it was revoked.
        id: Number to revoke it by.
    """

    team: str
    right: Permission
    label: str = ""
    expires_wall_seconds: float | None = None
    created_wall_seconds: float = 0.0
    revoked_wall_seconds: float | None = None
    id: int = 0

    def valid(self, now_wall_seconds: float) -> bool:
        """Whether it is neither revoked nor expired."""
        expires = self.expires_wall_seconds
        return self.revoked_wall_seconds is None and (expires is None or now_wall_seconds < expires)

    def to_document(self) -> Document:
        """The record as JSON."""
        document = dataclasses.asdict(self)
        document["rights"] = document.pop("right").name.lower()
        return document


def right_named(name: str) -> Permission:
    """The permission of a name."""
    try:
        return Permission[name.upper()]
    except KeyError:
        raise InvalidValueError(
            f"no right {name[:40]!r}",
            remedy=f"give one of {', '.join(permission.name.lower() for permission in Permission)}",
        ) from None


def digest_of(token: str) -> bytes:
    """The digest of a token, which is random enough that no salt or slow hash is needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def add_token(
    transaction: Transaction, token: TokenRecord, now_wall_seconds: float
) -> tuple[str, TokenRecord]:
    """Create a token; its text, which is not stored anywhere, and its record."""
    if token.expires_wall_seconds is not None:
        finite(token.expires_wall_seconds, "expiry in seconds since 1970", minimum=0.0)
    text = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    row = dataclasses.replace(token, created_wall_seconds=now_wall_seconds).to_document()
    del row["id"]  # the database gives it
    result = transaction.change(insert(tokens).returning(tokens), row | {"digest": digest_of(text)})
    return text, token_record(result.one())


def find_token(transaction: Transaction, digest: bytes) -> TokenRecord | None:
    """The token of that digest."""
    row = transaction.query(
        select(tokens).where(tokens.c.digest == bindparam("value")), {"value": digest}
    ).one_or_none()
    if row is None or not hmac.compare_digest(row.digest, digest):
        return None
    return token_record(row)


def list_tokens(transaction: Transaction) -> list[TokenRecord]:
    """All tokens by number; revoked ones included."""
    return [token_record(row) for row in transaction.query(select(tokens).order_by(tokens.c.id))]


def revoke_token(transaction: Transaction, number: int, now_wall_seconds: float) -> TokenRecord:
    """Revoke a token; one that is revoked keeps the time of its revocation.

    Raises:
        UnknownRecordError: There is no token of that number.
    """
    row = transaction.query(select(tokens).where(tokens.c.id == number)).one_or_none()
    if row is None:
        raise UnknownRecordError(
            f"no token number {number}", remedy="`joulery serve token list` shows them"
        )
    revoked = row.revoked_wall_seconds or now_wall_seconds
    change = update(tokens).where(tokens.c.id == number)
    transaction.change(change.values(revoked_wall_seconds=revoked))
    return dataclasses.replace(token_record(row), revoked_wall_seconds=revoked)


def decision_secret(transaction: Transaction) -> bytes:
    """The secret that decision tokens are signed with; created when it is first asked for."""
    query = select(settings.c.content).where(settings.c.name == _SECRET)
    content: bytes | None = transaction.query(query).scalar_one_or_none()
    if content is not None:
        return content
    secret = secrets.token_bytes(_SECRET_BYTES)
    transaction.change(insert(settings), {"name": _SECRET, "content": secret})
    return secret


def token_record(row: Any) -> TokenRecord:
    """The record of a row."""
    columns = row._asdict()
    del columns["digest"]
    return TokenRecord(right=right_named(columns.pop("rights")), **columns)


@dataclass(frozen=True, slots=True)
class Session:
    """A session and the token that it stands for.

    Attributes:
        record: Session as stored.
        token: Token that it was begun with.
    """

    record: SessionRecord
    token: TokenRecord

    def end_reason(self, now_wall_seconds: float) -> str:
        """Reason why the session is void; empty while it is valid."""
        record, token = self.record, self.token
        if record.ended_wall_seconds is not None:
            return "you have logged out"
        if token.revoked_wall_seconds is not None:
            return "the token that you logged in with was revoked"
        if not token.valid(now_wall_seconds):
            return "the token that you logged in with has expired"
        if now_wall_seconds >= record.expires_wall_seconds:
            return f"a session lasts {LIFETIME_SECONDS / 3600:g} hours"
        if now_wall_seconds >= record.seen_wall_seconds + IDLE_SECONDS:
            return f"no page was opened for {IDLE_SECONDS / 3600:g} hours"
        return ""


def begin_session(transaction: Transaction, token: int, now_wall_seconds: float) -> str:
    """Begin a session of a token; its id, which is not stored anywhere."""
    text = secrets.token_urlsafe(_ID_BYTES)
    record = SessionRecord(
        digest=digest_of(text),
        token=token,
        created_wall_seconds=now_wall_seconds,
        seen_wall_seconds=now_wall_seconds,
        expires_wall_seconds=now_wall_seconds + LIFETIME_SECONDS,
    )
    old = sessions.c.expires_wall_seconds < now_wall_seconds - _KEPT_SECONDS
    transaction.change(delete(sessions).where(old))
    transaction.change(insert(sessions), dataclasses.asdict(record))
    return text


def find_session(transaction: Transaction, digest: bytes) -> Session | None:
    """The session of that digest, valid or not."""
    query = select(sessions).where(sessions.c.digest == digest)
    row = transaction.query(query).one_or_none()
    if row is None:
        return None
    record = SessionRecord(*row)
    token = transaction.query(select(tokens).where(tokens.c.id == record.token)).one()
    return Session(record, token_record(token))


def touch_session(transaction: Transaction, digest: bytes, now_wall_seconds: float) -> None:
    """Note that a person has opened a page."""
    change = update(sessions).where(sessions.c.digest == digest)
    transaction.change(change.values(seen_wall_seconds=now_wall_seconds))


def end_session(transaction: Transaction, digest: bytes, now_wall_seconds: float) -> None:
    """End a session, if it is not over already."""
    is_open = sessions.c.ended_wall_seconds.is_(None)
    change = update(sessions).where(sessions.c.digest == digest, is_open)
    transaction.change(change.values(ended_wall_seconds=now_wall_seconds))
