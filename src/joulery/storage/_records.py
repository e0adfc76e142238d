"""Records of the store, as plain values.

Times are wall-clock seconds since 1970: they are read by other processes, other machines and after
restarts, where no monotonic clock is shared. A wall clock that is set back only makes a lease last
longer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

Document = dict[str, Any]  # as JSON; floats are finite, None stands for unknown or without bound

# Equal documents have equal texts, and a float is written so that it reads back as the same one.
to_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


class EventKind(IntEnum):
    """Kind of an event of a decision."""

    ISSUED = 0  # it was made
    OUTCOME = 1  # its holder reported how it ended
    EXPIRED = 2  # its lease ended without a report
    LATE = 3  # its holder reported how it ended after that


class DecisionState(IntEnum):
    """State of a decision."""

    OPEN = 0
    REPORTED = 1
    EXPIRED = 2


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A version of a job; what the store adds is 0 before.

    Attributes:
        team: Namespace of the job.
        name: Name, unique within the team; all devices and versions of a job share it.
        specification: Settings that may be chosen, and the objective.
        policy: Name of the policy that chooses the batch size.
        parameters: Parameters of the policy.
        seed: Seed of the policy's random numbers; 64 bits.
        inherits: Number of an earlier job that this one starts from.
        device: Kind of device that it runs on; empty if that is left open.
        created_wall_seconds: Time of its creation.
        id: Number of the job; never used again, even after the job was deleted.
        version: Version, counted from 1 within team, name and device; the newest is the one in use.
        paused: Whether decisions are refused.
        events: Number of its events; also the number of the last one.
        recurrences: Number of its recurrences.
    """

    team: str
    name: str
    specification: Document
    policy: str
    parameters: Document
    seed: int
    inherits: int | None = None
    device: str = ""
    created_wall_seconds: float = 0.0
    id: int = 0
    version: int = 0
    paused: bool = False
    events: int = 0
    recurrences: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a job.

    Attributes:
        sequence: Number, counted from 1 without gaps in the order of commits.
        kind: Kind of the event, of ``EventKind``.
        decision: Number of the event that issued the decision.
        body: All that a policy learns from it.
        wall_seconds: Time of the event.
    """

    sequence: int
    kind: int
    decision: int
    body: Document
    wall_seconds: float


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision as stored.

    Attributes:
        job: Number of the job.
        sequence: Number of the event that issued it; with the job, its id.
        key: Idempotency key of the client: a repeated request gets the same decision.
        recurrence: Recurrence that it is part of.
        action: All that was decided.
        reason: Reason, for people.
        request: The client's request, except the key.
        issued_wall_seconds: Time of its issue.
        deadline_wall_seconds: End of its lease.
        state: State of the decision, of ``DecisionState``.
        heartbeat_wall_seconds: Time of the latest heartbeat, if any.
        progress: Figures that came with it.
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
    state: int = DecisionState.OPEN
    heartbeat_wall_seconds: float | None = None
    progress: Document | None = None


@dataclass(frozen=True, slots=True)
class OutcomeRecord:
    """A report as stored; a decision has at most one.

    Attributes:
        job: Number of the job.
        decision: Number of the event that issued the decision.
        key: Key of the client, for people; the decision itself makes a repeated report count once.
        body: Document of the report.
        event: Number of the event that it became.
        late: Whether the lease had ended.
        wall_seconds: Time of its arrival.
        quarantined: Whether the policy did not learn from it when it arrived.
        ignored: Whether the policy does not learn from it, by the latest verdict.
    """

    job: int
    decision: int
    key: str
    body: Document
    event: int
    late: bool
    wall_seconds: float
    quarantined: bool = False
    ignored: bool = False


@dataclass(frozen=True, slots=True)
class ProfileRecord:
    """The frontier of one batch size on one kind of device.

    Attributes:
        job: Number of the job.
        batch_size: Batch size that was measured.
        device: Kind of device that it was measured on.
        frontier: Document from ``joulery.frontier.Frontier.to_dict``.
        wall_seconds: Time of the measurement.
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
        job: Number of the job.
        decision: Number of the event that issued the decision it was used under, if any.
        device: Device that used it.
        seconds: Duration of the measurement.
        joules: Energy.
        provenance: Source of the figure.
        wall_seconds: Time at which the measurement ended.
        id: Number in the order of arrival; None before it is stored.
    """

    job: int
    decision: int | None
    device: str
    seconds: float
    joules: float
    provenance: Document
    wall_seconds: float
    id: int | None = None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run of any kind, recurring or not, as its process last reported it.

    Attributes:
        team: Namespace of the run.
        key: Key chosen by the process, under which it reports again.
        name: Name for people.
        host: Machine that it ran on.
        kind: Reporter: ``run``, ``measure`` or ``callback``.
        searched: Text that searches look in: name, host, boards, setting and tags.
        started_wall_seconds: Time of its start.
        seconds: Duration until the report.
        joules: Energy until then; None where nothing measured it, or another run has it too.
        ended: Whether it has ended.
        summary: Boards, setting, saving, tags and provenance, for lists.
        decision_joules: Its energy if it carries out a decision, whose job has it too.
        id: Number of the run; 0 before it is stored.
    """

    team: str
    key: str
    name: str
    host: str
    kind: str
    searched: str
    started_wall_seconds: float
    seconds: float
    joules: float | None
    ended: bool
    summary: Document
    decision_joules: float | None = None
    id: int = 0


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session of the dashboard, of which only a digest is kept.

    Attributes:
        digest: Digest of the session's random id.
        token: Number of the token that it was begun with, and ends with.
        created_wall_seconds: Time of log-in.
        seen_wall_seconds: Time of the latest request, to some minutes.
        expires_wall_seconds: Time after which it is void, however busy.
        ended_wall_seconds: Time of log-out, if any.
    """

    digest: bytes
    token: int
    created_wall_seconds: float
    seen_wall_seconds: float
    expires_wall_seconds: float
    ended_wall_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The posterior of a job at some event, so that a restart need not fold all its events.

    Attributes:
        job: Number of the job.
        sequence: Number of the last event folded in.
        code: Versions of the code that folded; snapshots of others are not used.
        content: Serialized posterior.
    """

    job: int
    sequence: int
    code: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Subject:
    """Records that an operation concerns, locked and read together with those of others.

    Attributes:
        job: The only job that it locks; 0 for none.
        decision: Number of a decision that it looks for.
        decision_key: Key of a decision that it looks for.
    """

    job: int = 0
    decision: int | None = None
    decision_key: str | None = None
