"""Jobs, decisions, outcomes and measurements as documents.

Every class has exactly one JSON form (``joulery.documents.JsonModel``), which is what the
client sends, the server answers and describes, the store keeps and the outbox writes.
"""

from __future__ import annotations

import dataclasses
from reprlib import repr as short_repr
from typing import Annotated, Literal

from msgspec import Meta, field

from joulery.documents import (
    LARGEST,
    LARGEST_ID,
    SMALLEST,
    Codec,
    Count,
    Foreign,
    JsonModel,
    Name,
    Quantity,
    Text,
    Unlimited,
    enumeration,
)
from joulery.errors import FileError, InvalidValueError, UnknownRecordError
from joulery.frontier import Frontier, Origin
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.objectives import Cost, Objective, objective_text, parse_objective
from joulery.units import finite

MOST_LIMITS = 32  # of a job (by hand: boards take some 10 limits that differ)
MOST_BATCH_SIZES = 64  # of a job (by hand: powers of two are 40)
MOST_LIVE_DEVICES = 64  # of a heartbeat (by hand: one process rarely sees more than 16)
LONGEST_BEFORE_SECONDS = 7 * 24 * 3600.0  # by hand: a server that was down over a holiday
_LONGEST_EPOCH_SECONDS = 1e10  # by hand: three hundred years
_LONGEST_OBJECTIVE = 200  # characters (by hand: the longest of ours has 60)
_RESERVED = "inherited"  # among a job's stored parameters, for what a warm start gave it

BatchSize = Annotated[int, Meta(ge=1, le=2**40, examples=[128])]
LimitWatts = Quantity
DecisionId = Annotated[
    str, Meta(max_length=40, pattern=r"^[0-9]{1,18}\.[0-9]{1,18}$", examples=["7.12"])
]
UnixSeconds = Annotated[float, Meta(ge=0, le=LARGEST, examples=[1.8e9])]
_RanSeconds = Annotated[float, Meta(ge=0, le=LONGEST_BEFORE_SECONDS)]
_Parameter = (
    Annotated[int, Meta(ge=-LARGEST_ID, le=LARGEST_ID)]
    | Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
)


def _read_objective(value: object) -> Objective:
    if not isinstance(value, str) or len(value) > _LONGEST_OBJECTIVE:
        raise InvalidValueError(
            f"must be an objective as text, not {short_repr(value)}",
            remedy="write it as on the command line, such as least-energy:slowdown=5%",
        )
    objective = parse_objective(value)
    figures = (getattr(objective, part.name) for part in dataclasses.fields(objective))  # type: ignore[arg-type]
    if any(isinstance(figure, float) and abs(figure) > LARGEST for figure in figures):
        raise InvalidValueError(
            f"has a figure out of range: {short_repr(value)}",
            remedy=f"give numbers up to {LARGEST:g}",
        )
    return objective


def _read_cost(value: object) -> Cost:
    cost = _read_objective(value)
    if not isinstance(cost, Cost):
        raise InvalidValueError(
            f"is no cost: {short_repr(value)}", remedy="write cost:eta=0.5,max_watts=300"
        )
    return cost


_TEXT = {"type": "string", "maxLength": _LONGEST_OBJECTIVE}
_OBJECTIVE = Codec(
    objective_text, _read_objective, _TEXT | {"examples": ["least-energy:slowdown=5%"]}
)
_COST = Codec(objective_text, _read_cost, _TEXT | {"examples": ["cost:eta=0.5,max_watts=300"]})
_ACTION_KIND, _RUN_END = enumeration(ActionKind), enumeration(RunEnd)


class Job(JsonModel, frozen=True):
    """Specification of a job: batch sizes, power limits and objective.

    Attributes:
        name: Name of the job, for people.
        batch_sizes: Batch sizes that may be chosen, ascending.
        default: Batch size that the owner would run; one of `batch_sizes`.
        cost: Cost of running in joules, charged as a run goes on and bounded by early stopping:
            `cost:eta=…,max_watts=…`, where `max_watts` turns seconds into joules.
        objective: Objective to minimise over a whole run, as on the command line; null for `cost`.
        max_epochs: Epochs after which a run that has not reached its target has failed.
        limits_watts: Power limits that may be held, ascending; empty leaves the limit alone.
    """

    name: Name
    batch_sizes: Annotated[tuple[BatchSize, ...], Meta(min_length=1, max_length=MOST_BATCH_SIZES)]
    default: BatchSize
    cost: Foreign[Cost, _COST]
    objective: Foreign[Objective, _OBJECTIVE] | None = None
    max_epochs: Annotated[int, Meta(ge=1, le=10**6)] = 100
    limits_watts: Annotated[tuple[LimitWatts, ...], Meta(max_length=MOST_LIMITS)] = ()

    def __post_init__(self) -> None:
        if not self.batch_sizes:
            raise InvalidValueError(
                f"job {self.name!r} has no batch sizes to choose from",
                remedy="give at least one; a set of one leaves the batch size alone",
            )
        for size in self.batch_sizes:
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise InvalidValueError(
                    f"job {self.name!r}: batch size {size!r} is not a positive whole number",
                    remedy="give samples per step as whole numbers",
                )
        for watts in self.limits_watts:
            least = SMALLEST if watts else 0.0
            finite(watts, f"job {self.name!r}: power limit in watts", minimum=least)
        sets = {"batch sizes": self.batch_sizes, "power limits": self.limits_watts}
        for name, values in sets.items():
            if list(values) != sorted(set(values)):
                raise InvalidValueError(
                    f"job {self.name!r}: {name} must ascend without repeats",
                    remedy="sort them and drop repeats",
                )
        if self.default not in self.batch_sizes:
            raise InvalidValueError(
                f"job {self.name!r}: default batch size {self.default} is not in its set",
                remedy=f"add it, or choose one of {', '.join(map(str, self.batch_sizes))}",
            )
        if self.max_epochs < 1:
            raise InvalidValueError(
                f"job {self.name!r}: max_epochs must be at least 1, not {self.max_epochs}",
                remedy="give the number of epochs after which a run gives up",
            )


class Definition(JsonModel, frozen=True):
    """A job to be defined.

    Attributes:
        job: Job with the choices that its owner allows.
        device: Kind of device that the job runs on, such as "V100"; empty for any.
        policy: Name of the policy that chooses the batch size; `joulery` or `zeus`, among others.
        parameters: Parameters of the policy by name.
    """

    job: Job
    device: Text = ""
    policy: Text = "joulery"
    parameters: dict[str, _Parameter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if _RESERVED in self.parameters:
            raise InvalidValueError(
                f"no policy takes a parameter {_RESERVED}", remedy="leave it out"
            )


class Request(JsonModel, frozen=True):
    """A request for a decision.

    Attributes:
        key: Idempotency key chosen by the client; the same key gives the same decision.
        after: Id of an earlier decision of the same recurrence, after a probe or a training that
            did not reach the target; null begins a recurrence.
        probing: Whether the client can make probes: run a batch size for seconds, report what an
            epoch of it would take, and ask again with `after`.
        only: Batch size that the client runs whatever the policy would choose; its report counts
            like any other.
        ran_seconds: Seconds that `only` has been run already, where no server answered before; at
            most 7 days.
    """

    key: Name
    after: DecisionId | None = None
    probing: bool = False
    only: BatchSize | None = None
    ran_seconds: _RanSeconds | None = None

    def __post_init__(self) -> None:
        if self.ran_seconds is not None and self.only is None:
            raise InvalidValueError(
                "what was run before it was decided needs its batch size",
                remedy="say which in `only`, or leave `ran_seconds` out",
            )


class Decision(JsonModel, frozen=True):
    """A decision: the batch size and power limit to run next.

    Attributes:
        id: Id to report under: the number of the job, a dot, and the number of the event.
        recurrence: Number of the recurrence that the decision is part of; counts from 0.
        kind: `train`: train until the target is reached, the cost ceiling is passed or the job's
            `max_epochs` are trained. `probe`: run the batch size for some seconds under each of
            `probe_limits_watts`, and report what an epoch would take.
        batch_size: Batch size to run, over all devices.
        power_limit_watts: Power limit to hold; null leaves it to just-in-time profiling, or as it
            is where the job has no limits.
        probe_limits_watts: Power limits to measure for seconds each, on the way.
        cost_ceiling_joules: Cost that the run may not exceed; null for any.
        reason: Reason of the choice, for people.
        expires_wall_seconds: Unix time until which a heartbeat or report is expected; 600 seconds
            after the decision or the latest heartbeat. Then the decision counts as abandoned, and
            a later report still counts.
        token: Token for calls on this decision; empty in lists and without a server.
        issued_wall_seconds: Unix time at which the decision was made.
        volunteered: Whether the client asked for this batch size, where another one was chosen.
    """

    id: Text
    recurrence: Count
    kind: Foreign[ActionKind, _ACTION_KIND]
    batch_size: BatchSize
    power_limit_watts: LimitWatts | None
    probe_limits_watts: Annotated[tuple[LimitWatts, ...], Meta(max_length=MOST_LIMITS)]
    cost_ceiling_joules: Unlimited
    reason: Annotated[str, Meta(max_length=500)]
    expires_wall_seconds: UnixSeconds
    token: Text = ""
    issued_wall_seconds: UnixSeconds = 0.0
    volunteered: bool = False


class Measured(JsonModel, frozen=True):
    """Time and energy of an epoch under one power limit.

    Attributes:
        limit_watts: Power limit that was held; null where the job has no limits.
        epoch_seconds: Seconds that an epoch takes.
        epoch_joules: Joules that an epoch uses.
        relative_error: One sigma of the seconds and, independently, of the watts.
    """

    limit_watts: LimitWatts | None
    epoch_seconds: Annotated[float, Meta(ge=SMALLEST, le=_LONGEST_EPOCH_SECONDS)]
    epoch_joules: Annotated[float, Meta(ge=SMALLEST, le=LARGEST)]
    relative_error: Annotated[float, Meta(ge=0, le=10)]


class Outcome(JsonModel, frozen=True):
    """Outcome of a decision; with a heartbeat, its progress so far.

    Attributes:
        end: End of the run. `reached`: the target was reached. `stopped`: the cost ceiling was
            passed before. `exhausted`: all epochs were trained without reaching it, or training
            diverged, so this batch size has failed. `abandoned`: the run ended for another reason,
            and says nothing of the batch size; also of heartbeats. `probed`: a probe was made.
        epochs: Whole epochs that were trained; 0 for probes.
        seconds: Seconds that the run took, from the decision on at most.
        joules: Joules that all devices of the run used.
        limit_watts: Power limit that was held; null for the one that was decided, or for none.
        measured: Time and energy of an epoch under each power limit, as far as they were measured;
            empty for the mean of the whole run.
    """

    end: Foreign[RunEnd, _RUN_END]
    epochs: Quantity
    seconds: Quantity
    joules: Quantity
    limit_watts: LimitWatts | None = None
    measured: Annotated[tuple[Measured, ...], Meta(max_length=MOST_LIMITS)] = ()


class LiveDevice(JsonModel, frozen=True):
    """State of one device of a run under way.

    Attributes:
        name: Name of the device, unique within the run.
        watts: Mean power since the last heartbeat; null where it is unknown.
        clock_hertz: Core clock now; null where it is unknown.
        limit_watts: Power limit in force; null where there is none, or it is unknown.
    """

    name: Text
    watts: Quantity | None = None
    clock_hertz: Quantity | None = None
    limit_watts: Quantity | None = None


class LiveState(JsonModel, frozen=True):
    """State of a run under way, for people who watch it; nothing is learned from it.

    Attributes:
        seconds: Seconds since the run began.
        phase: Phase of the run, such as `holding 160 W` or `validating`.
        steps_per_second: Training steps per second since the last heartbeat; null where unknown.
        devices: Devices that the reporting process can see.
        processes: Number of processes that train together, of which one reports.
    """

    seconds: Quantity
    phase: Text = ""
    steps_per_second: Quantity | None = None
    devices: Annotated[tuple[LiveDevice, ...], Meta(max_length=MOST_LIVE_DEVICES)] = ()
    processes: Count = 1


class Receipt(JsonModel, frozen=True):
    """Answer to a report; the same whenever it is repeated, but for the reason.

    Attributes:
        decision: Id of the decision that was reported on.
        event: Number of the report in the job's history.
        late: Whether the lease of the decision had ended before.
        quarantined: Whether the policy does not learn from it until other reports confirm it; the
            list of decisions says what holds now.
        reason: Reason why it is in quarantine now, and what would release it; empty where it is
            not.
    """

    decision: DecisionId
    event: Count
    late: bool
    quarantined: bool = False
    reason: Annotated[str, Meta(max_length=500)] = ""


class DecisionLease(JsonModel, frozen=True):
    """Answer to a heartbeat.

    Attributes:
        held: Whether the sender still holds the decision; if not, a report counts all the same.
        expires_wall_seconds: Unix time until which the next heartbeat is expected; 600 seconds from
            now.
    """

    held: bool
    expires_wall_seconds: UnixSeconds


class JobEntry(JsonModel, frozen=True):
    """A version of a job, as its team sees it.

    Attributes:
        id: Number of this version.
        team: Namespace of the job.
        version: Version of the job on its device; counts from 1.
        inherits: Number of the version, or of the same job on another device, that the policy was
            warm-started from; null for none.
        warm_start: Knowledge that was carried over from there, in words; empty for none.
        paused: Whether decisions are refused.
        definition: Definition of the job.
        created_wall_seconds: Unix time at which this version was defined.
        events: Number of events in its history.
        recurrences: Number of recurrences that were begun.
    """

    id: Count
    team: Name
    version: Count
    inherits: Count | None
    warm_start: str
    paused: bool
    definition: Definition
    created_wall_seconds: UnixSeconds
    events: Count
    recurrences: Count

    @property
    def name(self) -> str:
        """Name of the job, unique within its team and device."""
        return self.definition.job.name

    @property
    def device(self) -> str:
        """Kind of device that the job runs on; empty for any."""
        return self.definition.device


class DecisionEntry(JsonModel, frozen=True):
    """A decision and its outcome, as the team sees them.

    Attributes:
        decision: Decision, without its token.
        number: Number of the event that issued the decision; pages go on after it.
        key: Idempotency key of the request.
        state: Whether the decision is open, was reported on, or its lease has expired.
        heartbeat_wall_seconds: Unix time of the last heartbeat; null for none.
        outcome: Outcome that was reported; null for none.
        late: Whether the lease had ended before the report.
        quarantined: Whether the policy does not learn from the report, by the latest verdict,
            until other reports confirm it.
        reported_wall_seconds: Unix time of the report; null for none.
        quarantine_reason: Reason why the report is in quarantine, and what would release it; empty
            where it is not.
    """

    decision: Decision
    number: Count
    key: Name
    state: Literal["open", "reported", "expired"]
    heartbeat_wall_seconds: UnixSeconds | None = None
    outcome: Outcome | None = None
    late: bool = False
    quarantined: bool = False
    reported_wall_seconds: UnixSeconds | None = None
    quarantine_reason: Annotated[str, Meta(max_length=500)] = ""


def _read_frontier(document: object) -> Frontier:
    try:
        return Frontier.from_dict(document)
    except FileError as error:
        raise InvalidValueError(error.message, remedy=error.remedy) from None


_FRONTIER = Codec(
    Frontier.to_dict,
    _read_frontier,
    {"type": "object", "examples": [{"points": [{"seconds": 10.0, "joules": 2500.0}]}]},
)


class ProfileEntry(JsonModel, frozen=True):
    """The time-energy frontier of an epoch of one batch size on one kind of device.

    Attributes:
        batch_size: Batch size that was measured, over all devices.
        device: Kind of device that it was measured on.
        frontier: Frontier as `joulery.Frontier` writes it: schema, work, and points with seconds
            and joules.
        wall_seconds: Unix time at which the profile was stored; ignored where it is sent.
    """

    batch_size: BatchSize
    device: Text
    frontier: Foreign[Frontier, _FRONTIER]
    wall_seconds: UnixSeconds | None = None


class EnergyEntry(JsonModel, frozen=True):
    """Energy that a job used.

    Attributes:
        decision: Id of the decision that the energy was used under; null for none.
        device: Name of the device that used it.
        seconds: Seconds over which it was used.
        joules: Joules that were used.
        origin: Origin of the figure.
        source: Source of the figure, such as the counter, in words.
        relative_error: One sigma of the joules, relative; null where it is unknown.
        wall_seconds: Unix time at which the figure was stored; ignored where it is sent.
    """

    decision: Text | None
    device: Text
    seconds: Quantity
    joules: Quantity
    origin: Literal["measured", "predicted", "simulated", "assumed"] = Origin.ASSUMED.value
    source: Text = ""
    relative_error: Quantity | None = None
    wall_seconds: UnixSeconds | None = None


def decision_id(job: int, sequence: int) -> str:
    """The id of a decision."""
    return f"{job}.{sequence}"


def parse_decision_id(text: str) -> tuple[int, int]:
    """The job and the number of the event that a decision's id stands for."""
    job, _, sequence = text.partition(".")
    # Longer numbers would not fit the database's.
    if not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in (job, sequence)):
        raise UnknownRecordError(
            f"no decision {text[:40]!r}", remedy="give the id that came with the decision"
        )
    return int(job), int(sequence)
