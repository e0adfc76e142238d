"""What the store keeps, as plain values.

Moments are wall-clock seconds since 1970: they are read by other processes, other machines and
after restarts, where no monotonic clock is shared. A wall clock that is set back only makes a
lease last longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

Document = dict[str, Any]  # as JSON; floats are finite, None stands for unknown or without bound


class EventKind(IntEnum):
    """What happened to a decision."""

    ISSUED = 0  # it was handed out
    OUTCOME = 1  # its holder told how it ended
    EXPIRED = 2  # its holder was silent past the lease
    LATE = 3  # its holder told how it ended after that


class DecisionState(IntEnum):
    """Where a decision stands."""

    OPEN = 0
    REPORTED = 1
    EXPIRED = 2


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be added.

    Attributes:
        team: Namespace that it belongs to.
        name: Unique within the team, over all devices and versions.
        specification: What may be chosen and what is wanted.
        policy: That chooses, by name.
        parameters: Of the policy.
        seed: What its random draws are keyed by; 64 bits.
        inherits: An earlier job that this one starts from.
        device: Kind of device that it runs on; empty where that is left open.
    """

    team: str
    name: str
    specification: Document
    policy: str
    parameters: Document
    seed: int
    inherits: int | None = None
    device: str = ""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as stored.

    Attributes:
        id: Never used again, even after the job was forgotten.
        version: Counts from 1 within team, name and device; the newest is the one that is run.
        job: As it was given.
        created_wall_seconds: When.
        paused: Whether decisions are refused.
        events: How many there are; also the number of the last.
        recurrences: How many were begun.
    """

    id: int
    version: int
    job: NewJob
    created_wall_seconds: float
    paused: bool
    events: int
    recurrences: int

    @property
    def device(self) -> str:
        """Kind of device that it runs on."""
        return self.job.device


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a job's history.

    Attributes:
        sequence: Counts from 1 without gaps, in the order of commits.
        kind: What happened.
        decision: Number of the event that issued the decision.
        body: All that a policy is told of it.
        wall_seconds: When.
    """

    sequence: int
    kind: EventKind
    decision: int
    body: Document
    wall_seconds: float


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision as stored.

    Attributes:
        job: Whose.
        sequence: Number of the event that issued it; with the job, its name.
        key: Chosen by the client, so that asking twice gives one decision.
        recurrence: That it is part of.
        action: All that was decided.
        reason: In words.
        request: What was asked for besides the key.
        issued_wall_seconds: When.
        deadline_wall_seconds: Until when its holder must be heard from.
        state: Where it stands.
        heartbeat_wall_seconds: When its holder was last heard from, if ever.
        progress: What it told then.
    """

    job: int
    sequence: int
    key: str
    recurrence: int
    action: Document
    reason: str
    request: Document
    issued_wall_seconds: float
    deadline_wall_seconds: float
    state: DecisionState = DecisionState.OPEN
    heartbeat_wall_seconds: float | None = None
    progress: Document | None = None


@dataclass(frozen=True, slots=True)
class OutcomeRecord:
    """A report as stored; a decision has at most one.

    Attributes:
        job: Whose.
        decision: Number of the event that issued the decision.
        key: Chosen by the client, so that reporting twice counts once.
        body: What was reported.
        event: Number of the event that it became.
        late: Whether the lease had passed.
        wall_seconds: When it was received.
    """

    job: int
    decision: int
    key: str
    body: Document
    event: int
    late: bool
    wall_seconds: float


@dataclass(frozen=True, slots=True)
class ProfileRecord:
    """The frontier of one batch size on one kind of device.

    Attributes:
        job: Whose.
        batch_size: That was measured.
        device: That it was measured on.
        frontier: As :meth:`joulery.frontier.Frontier.to_dict` gives it.
        wall_seconds: When it was measured.
    """

    job: int
    batch_size: int
    device: str
    frontier: Document
    wall_seconds: float


@dataclass(frozen=True, slots=True)
class EnergyRecord:
    """Energy that was used.

    Attributes:
        job: For whom.
        decision: Number of the event that issued the decision it was used under, if any.
        device: That used it.
        seconds: How long.
        joules: How much.
        provenance: Where the figure comes from.
        wall_seconds: When the measurement ended.
    """

    job: int
    decision: int | None
    device: str
    seconds: float
    joules: float
    provenance: Document
    wall_seconds: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Beliefs at some event, so that a restart need not fold a job's whole history.

    Attributes:
        job: Whose.
        sequence: Of the last event folded in.
        code: Names the code that folded; beliefs of other code are not used.
        content: Opaque.
    """

    job: int
    sequence: int
    code: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Subject:
    """What an operation is about, so that it can be locked and read along with others'.

    Attributes:
        job: The only one that it locks; 0 for none.
        decision: Number of one that it looks for, with its outcome.
        decision_key: Of one that it looks for.
        outcome_key: Of one that it looks for.
    """

    job: int = 0
    decision: int | None = None
    decision_key: str | None = None
    outcome_key: str | None = None


NOTHING = Subject()
