"""From what people write (a path, an address, nothing) to a clerk."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from joulery.client.places import (
    CA_VARIABLE,
    STORE_VARIABLE,
    TOKEN_VARIABLE,
    is_server,
    team_of,
)
from joulery.clock import REAL_CLOCK
from joulery.errors import MissingExtraError

if TYPE_CHECKING:
    from pathlib import Path

    from joulery.client.backend import DecisionBackend
    from joulery.clock import Clock

REMOTE_SECONDS = 2.0


def open_backend(
    location: str | Path | None = None,
    team: str | None = None,
    token: str | None = None,
    *,
    seconds: float = REMOTE_SECONDS,
    clock: Clock = REAL_CLOCK,
) -> DecisionBackend:
    """A clerk for the jobs of a team.

    Args:
        location: ``http(s)://…`` of a server; the path of an SQLite file or ``postgresql://…`` of a
            store that this process works on itself. ``$JOULERY_STORE`` unless given, or else the
            user's own store.
        team: Whose jobs; ``$JOULERY_TEAM`` unless given, or else ``default``.
        token: For a server; ``$JOULERY_TOKEN`` unless given, or else what ``joulery serve`` left
            for this user.
        seconds: All that a request to a server may take.
        clock: Real or virtual; of stores only.

    Raises:
        MissingExtraError: A store needs packages that are not here.
    """
    where = str(location or os.environ.get(STORE_VARIABLE) or "")
    whose = team_of(team)
    if is_server(where):
        from joulery.client.http import HttpBackend
        from joulery.jobs.token_file import read_token

        given = token or os.environ.get(TOKEN_VARIABLE) or read_token(where.rstrip("/"))
        ca_file = os.environ.get(CA_VARIABLE) or None
        return HttpBackend.open(where, whose, given, seconds=seconds, ca_file=ca_file)
    try:
        from joulery.client.local import LocalBackend
    except ModuleNotFoundError as missing:
        raise MissingExtraError(
            f"a store needs {missing.name}", remedy='pip install "joulery[store]"'
        ) from None
    return LocalBackend.open(where or None, whose, clock)
