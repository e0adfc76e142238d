"""Sessions of the dashboard: a random id of which a digest is kept, bound to a token."""

from __future__ import annotations

import dataclasses
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, select, update

from joulery.storage._records import SessionRecord
from joulery.storage._schema import sessions, tokens
from joulery.storage._tokens import TokenRecord, digest_of, token_record

if TYPE_CHECKING:
    from joulery.storage._transaction import Transaction

LIFETIME_SECONDS = 12 * 3600.0
"""Longest life of a session (by hand: a working day)."""
IDLE_SECONDS = 4 * 3600.0
"""Longest time between two pages that a person opens (by hand: half a working day)."""
_KEPT_SECONDS = 7 * 86_400.0  # that an ended session is kept, to say why it ended (by hand)
_ID_BYTES = 32


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

    def valid(self, now_wall_seconds: float) -> bool:
        """Whether it may be used."""
        return not self.end_reason(now_wall_seconds)


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
