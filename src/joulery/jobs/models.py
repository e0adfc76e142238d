"""What the desk is asked and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError, UnknownRecordError
from joulery.jobs.policies.base import ActionKind, RunEnd

if TYPE_CHECKING:
    from joulery.storage.records import Document

_LONGEST_NAME = 200
# How the reason of a decision begins whose batch size the policy would not have chosen.
ASKED_FOR = "this batch size was asked for"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to run next.

    Attributes:
        id: To report under.
        recurrence: That it is part of; counts from 0.
        kind: Train to the target, or probe for seconds.
        batch_size: To run.
        power_limit_watts: To hold; None leaves it to just-in-time profiling, or alone where the
            job has no limits.
        probe_limits_watts: To measure for seconds each, on the way.
        cost_ceiling_joules: Cost that the run may not pass; infinite for none.
        reason: In words.
        expires_wall_seconds: Until when a heartbeat or report is expected.
        token: Lets its bearer report on it to a server; empty without one.
    """

    id: str
    recurrence: int
    kind: ActionKind
    batch_size: int
    power_limit_watts: float | None
    probe_limits_watts: tuple[float, ...]
    cost_ceiling_joules: float
    reason: str
    expires_wall_seconds: float
    token: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """An epoch under one power limit.

    Attributes:
        limit_watts: That was held; None where the job has no limits.
        epoch_seconds: That an epoch takes.
        epoch_joules: That it uses.
        relative_error: One sigma of the seconds and, independently, of the watts.
    """

    limit_watts: float | None
    epoch_seconds: float
    epoch_joules: float
    relative_error: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a decision ended; with a heartbeat, what there is to tell if it ended now.

    Attributes:
        end: How; :attr:`End.ABANDONED` for heartbeats.
        epochs: Whole epochs that were trained; 0 for probes.
        seconds: That it took.
        joules: That it used.
        limit_watts: Power limit that was held, if one was.
        measured: What an epoch takes, as far as it was measured.
    """

    end: RunEnd
    epochs: float
    seconds: float
    joules: float
    limit_watts: float | None = None
    measured: tuple[Measured, ...] = ()

    def to_document(self) -> Document:
        """As JSON; numbers of any make become plain ones."""
        return {
            "end": int(self.end),
            "epochs": float(self.epochs),
            "seconds": float(self.seconds),
            "joules": float(self.joules),
            "limit_watts": _plain(self.limit_watts),
            "measured": [
                [
                    _plain(one.limit_watts),
                    float(one.epoch_seconds),
                    float(one.epoch_joules),
                    float(one.relative_error),
                ]
                for one in self.measured
            ],
        }

    @classmethod
    def from_document(cls, document: Document) -> Outcome:
        """What :meth:`to_document` gave."""
        return cls(
            end=RunEnd(document["end"]),
            epochs=document["epochs"],
            seconds=document["seconds"],
            joules=document["joules"],
            limit_watts=document["limit_watts"],
            measured=tuple(Measured(*one) for one in document["measured"]),
        )


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a report; the same whenever it is repeated.

    Attributes:
        decision: It was about.
        event: Its number in the job's history.
        late: Whether the decision had been given up before.
    """

    decision: str
    event: int
    late: bool


@dataclass(frozen=True, slots=True)
class DecisionLease:
    """What became of a heartbeat.

    Attributes:
        held: Whether the decision is still its holder's; where not, a report counts all the same.
        expires_wall_seconds: Until when the next one is expected.
    """

    held: bool
    expires_wall_seconds: float


def _plain(value: float | None) -> float | None:
    return None if value is None else float(value)


def decision_id(job: int, sequence: int) -> str:
    """The name of a decision."""
    return f"{job}.{sequence}"


def parse_decision_id(text: str) -> tuple[int, int]:
    """The job and the event that a decision's name stands for."""
    job, _, sequence = text.partition(".")
    # Longer numbers would not fit the database's.
    if not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in (job, sequence)):
        raise UnknownRecordError(
            f"no decision {text[:40]!r}", remedy="give the id that came with the decision"
        )
    return int(job), int(sequence)


def checked_name(text: str, what: str) -> str:
    """A name or key that any database can hold and any log can show."""
    if not 0 < len(text) <= _LONGEST_NAME or not text.isprintable():
        raise InvalidValueError(
            f"{what} must be 1 to {_LONGEST_NAME} printable characters, not {text[:40]!r}",
            remedy="choose a shorter one, without control characters",
        )
    return text
