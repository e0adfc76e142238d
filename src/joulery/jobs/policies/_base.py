"""The policy contract: beliefs are folded from events, and a decision is drawn from beliefs.

A recurrence of a job is a sequence of actions. A *probe* runs a batch size for seconds to measure
what an epoch of it costs. A *training* runs until the target is reached, the cost ceiling is
passed, or epochs run out. A recurrence ends with the first training that reaches its target.
Probing a batch size and training it next, in the same recurrence, is one run: the epochs that the
probe trained count as progress.

``learn`` and ``begin`` are the only places where beliefs change, and they see nothing but events,
so beliefs are a pure function of the job and its history: rebuilding them from stored events gives
the same bits. ``decide`` changes nothing, and its randomness is an argument.

Policies work on arrays. Shapes are written in these dimensions: *jobs* of the batch; *rows*, the
jobs that a call is about; *arms*, the batch sizes of a job by their index in its sorted set (as in
the literature on bandits); *limits*, the power limits of a job by their index in its sorted list.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from joulery.jobs.policies._counter_rng import CounterRng, Floats
    from joulery.jobs.policies._job_batch import JobBatch
    from joulery.jobs.policies.bayesian._limits import LimitChoice
    from joulery.jobs.policies.bayesian._warm_start import WarmStart


class ActionKind(IntEnum):
    """The kind of an action."""

    TRAIN = 0
    PROBE = 1


class RunEnd(IntEnum):
    """The end of an action."""

    REACHED = 0  # the target was reached
    STOPPED = 1  # the cost ceiling was passed
    EXHAUSTED = 2  # max_epochs were run, or training diverged: this batch size failed
    ABANDONED = 3  # the worker died or fell silent: not the batch size's fault; figures are NaN
    PROBED = 4  # a probe was done


@dataclass(frozen=True, slots=True)
class Actions:
    """The next action of each row.

    Attributes:
        kind: (rows,), ``ActionKind``.
        arm: (rows,), batch size to run.
        limit: (rows,), power limit to hold; -1 leaves it to just-in-time profiling, which holds
            the limit of least cost.
        ceiling: (rows,), cost in joules that the training may not pass; infinite for none.
        reason: (rows,), index of the reason in the policy's ``reasons``.
        probe_limits: (rows, limits), power limits to measure for seconds each: by a probe, or at
            the start of a training. None measures nothing, or all of them where ``limit`` is -1
            or the action is a probe.
    """

    kind: NDArray[np.int64]
    arm: NDArray[np.int64]
    limit: NDArray[np.int64]
    ceiling: Floats
    reason: NDArray[np.int64]
    probe_limits: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The ends of actions, one per row.

    Attributes:
        job: (rows,), index of the job in the batch; each job at most once per call.
        recurrence: (rows,), number of the recurrence that the action belonged to.
        kind: (rows,), ``ActionKind``.
        arm: (rows,), batch size that was run.
        limit: (rows,), power limit that the training held; -1 for probes and where none was held.
        end: (rows,), ``RunEnd``.
        epochs: (rows,), whole epochs that the training came to, an earlier probe's share included;
            0 for probes.
        seconds: (rows,), time that the action took.
        joules: (rows,), energy that the action used.
        cost: (rows,), cost of the whole action, in joules of the job's cost.
        epoch_seconds: (rows, limits), time per epoch under each power limit as far as this action
            measured it; NaN where it did not.
        epoch_joules: (rows, limits), energy per epoch, likewise.
        relative_error: (rows, limits), one sigma of the seconds and, independently, of the watts
            behind those figures; NaN where unknown. The limit held through a training is known
            much better than one probed for seconds.
    """

    job: NDArray[np.int64]
    recurrence: NDArray[np.int64]
    kind: NDArray[np.int64]
    arm: NDArray[np.int64]
    limit: NDArray[np.int64]
    end: NDArray[np.int64]
    epochs: Floats
    seconds: Floats
    joules: Floats
    cost: Floats
    epoch_seconds: Floats
    epoch_joules: Floats
    relative_error: Floats


Beliefs = TypeVar("Beliefs")


class Policy(Protocol[Beliefs]):
    """A rule that chooses batch sizes across recurrences, for a batch of jobs at once."""

    @property
    def name(self) -> str:
        """The policy's name, as users type it."""
        ...

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for which an action may be chosen, as texts."""
        ...

    @property
    def version(self) -> int:
        """A number to raise when the same events lead to other beliefs.

        Stored snapshots of beliefs of another version are not used.
        """
        ...

    def start(self, jobs: JobBatch) -> Beliefs:
        """The beliefs before anything happened."""
        ...

    def decide(self, beliefs: Beliefs, rows: NDArray[np.int64], rng: CounterRng) -> Actions:
        """The next action of the jobs ``rows``; ``rng`` has one word per row.

        Called again while earlier actions of a job are under way (concurrent submissions), and
        within a recurrence until a training reaches its target.
        """
        ...

    def begin(self, beliefs: Beliefs, rows: NDArray[np.int64], actions: Actions) -> None:
        """Note that actions were handed out and are under way."""
        ...

    def learn(self, beliefs: Beliefs, outcomes: Outcomes) -> None:
        """Fold in how actions ended, in the order in which they became known."""
        ...


@runtime_checkable
class EstimatesCosts(Protocol):
    """A policy that estimates the cost of a run of each batch size."""

    def believed_costs(
        self, beliefs: Any, rows: NDArray[np.int64]
    ) -> tuple[Floats, Floats, Floats]:
        """(rows, arms), cost of a whole run in joules: one sigma below, expected, one above.

        NaN where nothing is believed.
        """
        ...


@runtime_checkable
class ChoosesLimits(Protocol):
    """A policy that chooses power limits of any batch size, also of those it would not train."""

    def limit_of(
        self, beliefs: Any, rows: NDArray[np.int64], arm: NDArray[np.int64]
    ) -> LimitChoice:
        """The limits that a training of ``arm`` would hold and measure, had it been chosen."""
        ...


@runtime_checkable
class CarriesOver(Protocol):
    """A policy whose beliefs about a job help a changed version of it, or another device."""

    def experience(self, beliefs: Any) -> WarmStart:
        """What the runs of the first job have shown; its class's ``warm_start`` takes it."""
        ...
