"""Documents and statuses of HTTP alone, which the client sends and reads and the server serves."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from joulery.documents import Count, JsonModel, Name, NotJsonError, decode_json
from joulery.errors import (
    ConflictError,
    InvalidValueError,
    JouleryError,
    MissingRightsError,
    NotPossibleHereError,
    StoreBusyError,
    StoreError,
    UnknownRecordError,
    UsageError,
)
from joulery.jobs import (
    DecisionEntry,
    EnergyEntry,
    JobEntry,
    LiveState,
    Outcome,
    ProfileEntry,
    RunEntry,
)

MOST_PER_PAGE = 1000  # entries (by hand: a page stays below a megabyte)
_PAGE = Meta(max_length=MOST_PER_PAGE)
_LONGEST_TEXT = 500  # characters of an answer that are shown (by hand: some lines of a terminal)

# Errors by the status that carries them. An error is sent with the status of the first class that
# it belongs to; a client raises the class of the status.
_STATUSES: dict[int, type[JouleryError]] = {
    400: NotJsonError,
    404: UnknownRecordError,
    409: ConflictError,
    422: UsageError,
    501: NotPossibleHereError,
    503: StoreError,
    401: MissingRightsError,
    403: MissingRightsError,
    408: StoreBusyError,
    429: StoreBusyError,
}


class ProblemDetails(JsonModel, frozen=True):
    """An error and its remedy (RFC 9457).

    Attributes:
        type: Kind of problem, such as `/problems/usage-error`.
        title: Name of the HTTP status.
        status: HTTP status.
        detail: Description of the error, one line.
        remedy: Advice to the caller, one line.
    """

    type: str
    title: str
    status: int
    detail: str
    remedy: str


class OutcomeReport(JsonModel, frozen=True):
    """A report on how a decision ended.

    Attributes:
        key: Name of the report, chosen by the client; unique per decision, of which one report
            counts, however often it is sent.
        outcome: Outcome of the decision.
    """

    key: Name
    outcome: Outcome


class ProgressReport(JsonModel, frozen=True):
    """A heartbeat of the process that holds a decision.

    Attributes:
        progress: Progress of the run, with the end `abandoned`; counts if no report follows.
        live: State of the run for people who watch it, which is not stored; null for none.
    """

    progress: Outcome | None = None
    live: LiveState | None = None


class PauseState(JsonModel, frozen=True):
    """Whether decisions of a job are refused.

    Attributes:
        paused: True to refuse decisions, false to make them again.
    """

    paused: bool


class JobPage(JsonModel, frozen=True):
    """Jobs by number.

    Attributes:
        jobs: Jobs of the page, all versions.
        next: Number that the next page begins after; null at the end.
    """

    jobs: Annotated[tuple[JobEntry, ...], _PAGE]
    next: Count | None = None


class DecisionPage(JsonModel, frozen=True):
    """Decisions in the order in which they were made.

    Attributes:
        decisions: Decisions of the page.
        next: Number that the next page begins after; null at the end.
    """

    decisions: Annotated[tuple[DecisionEntry, ...], _PAGE]
    next: Count | None = None


class EnergyPage(JsonModel, frozen=True):
    """Energy in the order in which it was reported.

    Attributes:
        energy: Entries of the page.
        next: Number that the next page begins after; null at the end.
    """

    energy: Annotated[tuple[EnergyEntry, ...], _PAGE]
    next: Count | None = None


class RunPage(JsonModel, frozen=True):
    """Runs of any kind, the latest first.

    Attributes:
        runs: Runs of the page, without their curves.
        next: Number that the next page begins below; null at the end.
    """

    runs: Annotated[tuple[RunEntry, ...], _PAGE]
    next: Count | None = None


class ProfileList(JsonModel, frozen=True):
    """Profiles of a job by batch size.

    Attributes:
        profiles: All profiles of the job.
    """

    profiles: tuple[ProfileEntry, ...]


def status_of(error: JouleryError) -> int:
    """The HTTP status of an error; 500 for one that says nothing to a client."""
    return next((status for status, kind in _STATUSES.items() if isinstance(error, kind)), 500)


def error_of(status: int, body: bytes) -> JouleryError:
    """The error that a problem document of the server (RFC 9457) stands for."""
    try:
        document = decode_json(body)
    except InvalidValueError:
        document = None
    document = document if isinstance(document, dict) else {}
    if 300 <= status < 400:
        return StoreError(
            f"the server redirects elsewhere ({status})", remedy="give the address that it names"
        )
    kind = _STATUSES.get(status, UsageError)
    if status == 422:
        kind = InvalidValueError
    elif status >= 500 and status != 501:
        kind = StoreBusyError  # what goes wrong inside a server may go right the next time
    message = _printable(document.get("detail")) or _printable(document.get("title"))
    return kind(
        message or f"the server refuses the request ({status})",
        remedy=_printable(document.get("remedy")) or "see the log of the server",
    )


def _printable(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    return "".join(char if char.isprintable() else " " for char in value[:_LONGEST_TEXT]).strip()
