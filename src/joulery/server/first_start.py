"""What a server needs before it serves: a store up to date, and tokens for its owner."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK
from joulery.jobs.token_file import read_token, write_token
from joulery.storage.store import Store, default_path
from joulery.storage.tokens import (
    EVERY_TEAM,
    NewToken,
    Permission,
    add_token,
    digest_of,
    find_token,
    token_count,
)

if TYPE_CHECKING:
    from joulery.clock import Clock
    from joulery.server.settings import Settings
    from joulery.storage.transaction import Transaction

_YEAR_SECONDS = 365 * 86_400.0
_RENEWAL_SECONDS = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """What to tell the owner.

    Attributes:
        address: Of the server.
        admin_token: Made just now, on the first start; None later.
        token_file: Where a token for this user's programs was put just now; None if it was there.
    """

    address: str
    admin_token: str | None
    token_file: Path | None


def prepare(
    settings: Settings, address: str, tokens: Path | None = None, clock: Clock = REAL_CLOCK
) -> Prepared:
    """Bring the store up to date, and make tokens that its owner lacks.

    Args:
        settings: Of the server.
        address: Of the server.
        tokens: File for tokens of this user's programs; the usual one unless given.
        clock: For expiry.
    """
    now = clock.wall()
    with Store.open(settings.store) as store:
        _close_to_others(settings.store)
        admin = store.write(lambda ledger: _first_token(ledger, now))
        known = read_token(address, tokens)
        with store.reading() as ledger:
            usable = known is not None and _lasts(ledger, known, now)
        if usable:
            return Prepared(address, admin, None)
        wanted = NewToken(
            EVERY_TEAM, Permission.MANAGE, f"programs at {address}", now + _YEAR_SECONDS
        )
        local, _ = store.write(lambda ledger: add_token(ledger, wanted, now))
    return Prepared(address, admin, write_token(address, local, tokens))


def _first_token(ledger: Transaction, now: float) -> str | None:
    if token_count(ledger):
        return None
    wanted = NewToken(EVERY_TEAM, Permission.ADMIN, "first start", now + _YEAR_SECONDS)
    return add_token(ledger, wanted, now)[0]


def _lasts(ledger: Transaction, token: str, now: float) -> bool:
    record = find_token(ledger, digest_of(token))
    return record is not None and record.valid(now + _RENEWAL_SECONDS)


def _close_to_others(location: str | None) -> None:
    """Whoever reads the store can make tokens of decisions: its file is its owner's and group's."""
    place = default_path() if location is None else location
    if "://" in str(place):
        return
    for end in ("", "-wal", "-shm"):
        path = Path(f"{place}{end}")
        with contextlib.suppress(OSError):  # another's file, or none
            mode = path.stat().st_mode
            if mode & 0o007:
                path.chmod(mode & 0o770)
