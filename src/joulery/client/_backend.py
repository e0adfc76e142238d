"""Backends that decide for recurring runs: a job service in this process, or a server over HTTP."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

from joulery.clock import REAL_CLOCK
from joulery.errors import FileError, InvalidValueError, MissingExtraError
from joulery.files import write_atomic
from joulery.jobs import from_bytes, to_bytes
from joulery.paths import data_folder

if TYPE_CHECKING:
    from pathlib import Path

    from joulery.clock import Clock
    from joulery.jobs import (
        Decision,
        DecisionEntry,
        DecisionLease,
        Definition,
        EnergyEntry,
        JobEntry,
        LiveState,
        Outcome,
        ProfileEntry,
        Receipt,
        Request,
    )

STORE_VARIABLE = "JOULERY_STORE"
TOKEN_VARIABLE = "JOULERY_TOKEN"  # noqa: S105 - the name of a variable
TEAM_VARIABLE = "JOULERY_TEAM"
CA_VARIABLE = "JOULERY_CA_FILE"
DEFAULT_TEAM = "default"
REMOTE_SECONDS = 2.0


class DecisionBackend(Protocol):
    """The jobs of one team.

    Every method may raise :class:`joulery.errors.StoreBusyError` where the same request may be made
    again, and any other :class:`joulery.errors.JouleryError` where that would not help.
    """

    def define(self, definition: Definition) -> JobEntry:
        """The job of that name and device, made or changed if need be."""
        ...

    def decide(self, job: int, request: Request) -> Decision:
        """The next decision; the same key gives the same decision."""
        ...

    def heartbeat(
        self, decision: Decision, progress: Outcome | None = None, live: LiveState | None = None
    ) -> DecisionLease:
        """Prolong the lease of a decision; a server shows ``live`` to those who watch the run."""
        ...

    def report(self, decision: Decision, outcome: Outcome, key: str) -> Receipt:
        """Report how a decision ended; counts once under its key."""
        ...

    def jobs(self, after: int = 0, limit: int = 100) -> tuple[list[JobEntry], int | None]:
        """Jobs with numbers above ``after``, and where the next page begins."""
        ...

    def job(self, name: str, device: str | None = None) -> JobEntry:
        """The newest version of a job; None takes the latest on any device."""
        ...

    def decisions(
        self, job: int, after: int = 0, limit: int = 100
    ) -> tuple[list[DecisionEntry], int | None]:
        """Decisions with their outcomes, in order, and where the next page begins."""
        ...

    def profiles(self, job: int) -> list[ProfileEntry]:
        """Time-energy frontiers of the batch sizes of a job."""
        ...

    def keep_profile(self, job: int, profile: ProfileEntry) -> None:
        """Store a frontier, in place of an earlier one of the same batch size and device."""
        ...

    def energy(
        self, job: int, after: int = 0, limit: int = 100
    ) -> tuple[list[EnergyEntry], int | None]:
        """Energy used, in the order of the reports, and where the next page begins."""
        ...

    def note_energy(self, job: int, used: EnergyEntry) -> None:
        """Store energy that was used; where a decision is named, once for each device."""
        ...

    def pause(self, job: int, *, paused: bool = True) -> None:
        """Refuse decisions, or make them again."""
        ...

    def delete(self, job: int) -> None:
        """Delete a job with all its history."""
        ...

    def close(self) -> None:
        """Close connections and files. May be called twice."""
        ...


def team_of(given: str | None) -> str:
    """The team whose jobs are meant: as given, or else by ``JOULERY_TEAM``, or else ``default``."""
    return given or os.environ.get(TEAM_VARIABLE) or DEFAULT_TEAM


def is_server(location: str) -> bool:
    """Whether a location is the address of a server."""
    return location.lower().startswith(("http://", "https://"))


def token_file() -> Path:
    """Path of the file of this user's tokens for servers, which only its owner can read."""
    return data_folder() / "tokens.json"


def read_token(address: str, path: Path | None = None) -> str | None:
    """The token for the server at ``address``, such as ``http://127.0.0.1:8420``, if there is one.

    A token is sent to the server that it was written for, and to no other.
    """
    token = _tokens(path or token_file()).get(address.rstrip("/"))
    return token if isinstance(token, str) else None


def write_token(address: str, token: str, path: Path | None = None) -> Path:
    """Write the token for a server, besides those for others; the path of the file."""
    place = path or token_file()
    tokens = _tokens(place) | {address.rstrip("/"): token}
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(place, to_bytes(tokens) + b"\n", private=True)
    except OSError as error:
        raise FileError(
            f"cannot write {place}: {error.strerror}", remedy="make the folder writable for you"
        ) from error
    return place


def _tokens(path: Path) -> dict[str, Any]:
    try:
        document = from_bytes(path.read_bytes())
    except (OSError, InvalidValueError):  # none yet, or a damaged file
        return {}
    return document if isinstance(document, dict) else {}


def open_backend(
    location: str | Path | None = None,
    team: str | None = None,
    token: str | None = None,
    *,
    seconds: float = REMOTE_SECONDS,
    clock: Clock = REAL_CLOCK,
) -> DecisionBackend:
    """The backend for the jobs of a team.

    Args:
        location: ``http(s)://…`` of a server; the path of an SQLite file or ``postgresql://…`` of a
            store that this process works on itself. ``$JOULERY_STORE`` unless given, or else the
            user's own store.
        team: Team whose jobs are meant; ``$JOULERY_TEAM`` unless given, or else ``default``.
        token: Token for a server; ``$JOULERY_TOKEN`` unless given, or else the one that ``joulery
            serve`` left for this user.
        seconds: Longest time that a request to a server may take, retries included.
        clock: Real or virtual clock, for stores only.

    Raises:
        MissingExtraError: A store needs packages that are not installed.
    """
    where = str(location or os.environ.get(STORE_VARIABLE) or "")
    if is_server(where):
        from joulery.client._http import HttpBackend

        given = token or os.environ.get(TOKEN_VARIABLE) or read_token(where.rstrip("/"))
        ca_file = os.environ.get(CA_VARIABLE) or None
        return HttpBackend(where, team_of(team), given, seconds, ca_file)
    try:
        from joulery.client._local import LocalBackend
        from joulery.storage import Store
    except ModuleNotFoundError as missing:
        raise MissingExtraError(
            f"a store needs {missing.name}", remedy='pip install "joulery[store]"'
        ) from None
    return LocalBackend(Store.open(where or None), team_of(team), clock)
