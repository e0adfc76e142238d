"""Where a run gets its decisions: the job service in this process, or a server over HTTP."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

from joulery.clock import REAL_CLOCK
from joulery.documents import decode_json, encode_json
from joulery.errors import FileError, InvalidValueError
from joulery.files import data_folder, write_atomic

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
        RunEntry,
    )

STORE_VARIABLE = "JOULERY_STORE"
TOKEN_VARIABLE = "JOULERY_TOKEN"  # noqa: S105 - the name of a variable
TEAM_VARIABLE = "JOULERY_TEAM"
CA_VARIABLE = "JOULERY_CA_FILE"
DEFAULT_TEAM = "default"
REMOTE_SECONDS = 2.0  # by hand: a training waits no longer for a server


class DecisionBackend(Protocol):
    """The jobs of one team.

    Every method may raise ``joulery.errors.StoreBusyError`` where the same request may be made
    again, and any other ``joulery.errors.JouleryError`` where that would not help.
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

    def put_profile(self, job: int, profile: ProfileEntry) -> None:
        """Store a frontier, in place of an earlier one of the same batch size and device."""
        ...

    def energy(
        self, job: int, after: int = 0, limit: int = 100
    ) -> tuple[list[EnergyEntry], int | None]:
        """Energy used, in the order of the reports, and where the next page begins."""
        ...

    def add_energy(self, job: int, energy: EnergyEntry) -> None:
        """Store energy that was used; where a decision is named, once for each device."""
        ...

    def put_run(self, run: RunEntry) -> None:
        """Store a run of any kind, in place of what was reported under its key before."""
        ...

    def runs(
        self, text: str = "", below: int = 0, limit: int = 100, *, open_only: bool = False
    ) -> tuple[list[RunEntry], int | None]:
        """Runs that contain a text, the latest first, and where the next page begins.

        With ``open_only``, those that have not reported their end.
        """
        ...

    def run(self, number: int) -> RunEntry:
        """A run with its curves."""
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


def team_of(team: str | None) -> str:
    """The team whose jobs are meant: ``team`` if any, by ``JOULERY_TEAM``, or ``default``."""
    return team or os.environ.get(TEAM_VARIABLE) or DEFAULT_TEAM


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
    path = path or token_file()
    tokens = _tokens(path) | {address.rstrip("/"): token}
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(path, encode_json(tokens) + b"\n", private=True)
    except OSError as error:
        raise FileError(
            f"cannot write {path}: {error.strerror}", remedy="make the folder writable for you"
        ) from error
    return path


def _tokens(path: Path) -> dict[str, Any]:
    try:
        document = decode_json(path.read_bytes())
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
        team: Team whose jobs are meant; ``$JOULERY_TEAM`` unless given, or else ``default``, for
            which a server takes the team of the token.
        token: Token for a server; ``$JOULERY_TOKEN`` unless given, or else the one that ``joulery
            serve`` left for this user.
        seconds: Longest time that a request to a server may take, retries included.
        clock: Real or virtual clock, for stores only.

    Raises:
        MissingExtraError: PostgreSQL needs packages that are not installed.
    """
    address = str(location or os.environ.get(STORE_VARIABLE) or "")
    if is_server(address):
        from joulery.client._http import HttpBackend

        token = token or os.environ.get(TOKEN_VARIABLE) or read_token(address.rstrip("/"))
        ca_file = os.environ.get(CA_VARIABLE) or None
        return HttpBackend(address, team_of(team), token, seconds, ca_file)
    from joulery.jobs import JobService
    from joulery.storage import Store

    return JobService(Store.open(address or None), clock, team=team_of(team))
