"""What a policy is: beliefs folded from events, and a decision drawn from beliefs.

A recurrence is a sequence of actions. A *probe* runs a batch size for seconds to learn what an
epoch of it costs. A *training* runs until the target is reached, the cost ceiling is passed, or
epochs run out; a recurrence ends with the first training that reaches its target.

``learn`` is the only place where beliefs change, and it sees nothing but events, so beliefs are a
pure function of the job and its history: rebuilding them from stored events gives the same bits.
``decide`` changes nothing, and its randomness is an argument. Events are what was begun and how it
ended, in order.

A probe costs seconds. Probing a batch size and training it next, in the same recurrence, is one
run: what the probe trained counts as progress. What is probed of another batch size is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from joulery.jobs.policies.bayesian.limit_choice import LimitChoice
    from joulery.jobs.policies.counter_rng import CounterRng, Floats
    from joulery.jobs.policies.job_batch import JobBatch


class ActionKind(IntEnum):
    """What an action is."""

    TRAIN = 0
    PROBE = 1


class RunEnd(IntEnum):
    """How an action ended."""

    REACHED = 0  # the target was reached
    STOPPED = 1  # the cost ceiling was passed
    EXHAUSTED = 2  # max_epochs were run, or training diverged: this batch size failed
    ABANDONED = 3  # the worker died or fell silent: not the batch size's fault; figures are NaN
    PROBED = 4  # a probe was done


@dataclass(frozen=True, slots=True)
class Actions:
    """What to do next, one per lane.

    Attributes:
        kind: (lanes,), :class:`Kind`.
        arm: (lanes,), batch size as a position in the job's set.
        limit: (lanes,), power limit to hold as a position in the job's list; -1 leaves it to
            just-in-time profiling, which holds the best by the job's cost.
        ceiling: (lanes,), cost in joules that the training may not pass; infinite for none.
        why: (lanes,), position in the policy's ``reasons``.
        probe_limits: (lanes, limits), power limits to measure for seconds each: by a probe, or at
            the start of a training. None measures nothing, or all of them where ``limit`` is -1
            or the action is a probe.
    """

    kind: NDArray[np.int64]
    arm: NDArray[np.int64]
    limit: NDArray[np.int64]
    ceiling: Floats
    why: NDArray[np.int64]
    probe_limits: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How actions ended, one per row; ``lane`` says whose.

    Attributes:
        lane: (rows,), each lane at most once per call.
        recurrence: (rows,), number of the recurrence that the action belonged to.
        kind: (rows,), :class:`Kind`.
        arm: (rows,).
        limit: (rows,), power limit that the training held; -1 for probes and where none was held.
        end: (rows,), :class:`End`.
        epochs: (rows,), whole epochs that the training came to, an earlier probe's share included;
            0 for probes.
        seconds: (rows,), that the action took.
        joules: (rows,), that it used.
        cost: (rows,), everything that the action cost, in joules of the job's cost.
        epoch_seconds: (rows, limits), per epoch under each power limit as far as this action
            measured it; NaN where it did not.
        epoch_joules: (rows, limits), likewise.
        relative_error: (rows, limits), one sigma of the seconds and, independently, of the watts
            behind those figures; NaN where unknown. The limit held through a training is known
            much better than one probed for seconds.
    """

    lane: NDArray[np.int64]
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


@runtime_checkable
class KnowsLimits(Protocol):
    """A policy that chooses power limits itself, and can say so for any batch size."""

    def limit_of(
        self, beliefs: Any, rows: NDArray[np.int64], arm: NDArray[np.int64]
    ) -> LimitChoice:
        """What a training of ``arm`` would do with power limits, had it been chosen.

        Changes nothing, and draws nothing: what ``decide`` holds and measures for the same batch
        size under the same beliefs.
        """
        ...


class Policy(Protocol[Beliefs]):
    """How batch sizes are chosen across recurrences, for many jobs side by side."""

    @property
    def name(self) -> str:
        """As people write it."""
        ...

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why an action was chosen, in words."""
        ...

    def start(self, lanes: JobBatch) -> Beliefs:
        """What is believed before anything happened."""
        ...

    def decide(self, beliefs: Beliefs, rows: NDArray[np.int64], draws: CounterRng) -> Actions:
        """The next action of the lanes ``rows``; ``draws`` has one word per row.

        Called again while earlier actions of a lane are under way (concurrent submissions), and
        within a recurrence until a training reaches its target.
        """
        ...

    def begin(self, beliefs: Beliefs, rows: NDArray[np.int64], actions: Actions) -> None:
        """Note that actions were handed out and are under way."""
        ...

    def learn(self, beliefs: Beliefs, outcomes: Outcomes) -> None:
        """Fold in how actions ended, in the order in which they became known."""
        ...
