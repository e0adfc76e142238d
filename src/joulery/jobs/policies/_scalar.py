"""Policies of two plain methods: choose a training of one job, and learn from one run.

Array policies (``joulery.jobs.policies._base``) decide for thousands of jobs at once. A policy
that needs no such speed is written for one job and one run; an adapter calls it row by row, so that
the service, simulations and the contract suite take it like any other.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from joulery.errors import InvalidValueError
from joulery.jobs.policies._base import ActionKind, Actions, RunEnd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies._base import Outcomes
    from joulery.jobs.policies._counter_rng import CounterRng
    from joulery.jobs.policies._job_batch import JobBatch

_DEFAULT_REASON = "the policy's choice"


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The settings that a job leaves to its policy.

    Attributes:
        batch_sizes: Batch sizes, ascending.
        limits_watts: Power limits, ascending; empty where limits are left alone.
        default: Batch size that the owner would run.
        max_epochs: Number of epochs after which a run gives up.
    """

    batch_sizes: tuple[int, ...]
    limits_watts: tuple[float, ...]
    default: int
    max_epochs: int


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """A training that a policy chooses.

    Attributes:
        batch_size: Batch size of the search space.
        power_limit_watts: Power limit to hold, of the search space; None measures all limits at the
            start of the run and holds the cheapest.
        cost_ceiling_joules: Cost at which the run is stopped; infinite for never.
        reason: Reason for the choice, one of the policy's ``reasons``; the first unless given.
    """

    batch_size: int
    power_limit_watts: float | None = None
    cost_ceiling_joules: float = math.inf
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """A training that ended; one that was abandoned is never learned from.

    Attributes:
        batch_size: Batch size that was run.
        power_limit_watts: Power limit that was held; None where none of the search space was.
        end: ``REACHED``, ``STOPPED`` at its cost ceiling, or ``EXHAUSTED``.
        epochs: Number of whole epochs.
        seconds: Time that the run took.
        joules: Energy that it used.
        cost: Cost of the run in joules, by the job's weights of energy and time.
    """

    batch_size: int
    power_limit_watts: float | None
    end: RunEnd
    epochs: float
    seconds: float
    joules: float
    cost: float


class ScalarPolicy(Protocol):
    """A rule that chooses the next training of one job.

    ``name`` is what users type. A class may also have ``reasons``, a tuple of texts for
    ``BatchChoice.reason``, and ``version``, an integer to raise when the same runs lead to
    another state.
    """

    name: str

    def decide(self, space: SearchSpace, state: dict[str, Any], rng: random.Random) -> BatchChoice:
        """The next training; changes nothing, and takes all its randomness from ``rng``."""
        ...

    def learn(self, space: SearchSpace, state: dict[str, Any], run: TrainedRun) -> None:
        """Fold a run into ``state``, a dictionary that is empty at first."""
        ...


@dataclass(slots=True, eq=False)
class ScalarBeliefs:
    """The state of each job.

    Attributes:
        spaces: Search space of each job.
        states: State that the policy keeps of each job.
    """

    spaces: tuple[SearchSpace, ...]
    states: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ScalarAdapter:
    """A scalar policy in the array form that the service and simulations call.

    Attributes:
        policy: The scalar policy.
    """

    policy: ScalarPolicy

    @property
    def name(self) -> str:
        """The policy's name."""
        return self.policy.name

    @property
    def reasons(self) -> tuple[str, ...]:
        """The policy's reasons, or one that says nothing more."""
        return getattr(self.policy, "reasons", (_DEFAULT_REASON,))

    @property
    def version(self) -> int:
        """The version of what the policy keeps."""
        return getattr(self.policy, "version", 1)

    def start(self, jobs: JobBatch) -> ScalarBeliefs:
        """An empty state of each job."""
        spaces = tuple(_search_space(jobs, row) for row in range(len(jobs)))
        return ScalarBeliefs(spaces, [{} for _ in spaces])

    def decide(self, beliefs: ScalarBeliefs, rows: NDArray[np.int64], rng: CounterRng) -> Actions:
        """The policy's choice for each row."""
        trainings = []
        for job, word in zip(rows.tolist(), rng.words.tolist(), strict=True):
            space = beliefs.spaces[job]
            choice = self.policy.decide(space, beliefs.states[job], random.Random(word))  # noqa: S311 - a draw of a policy, no secret
            trainings.append(self._training(space, choice))
        arm, limit, ceiling, reason = zip(*trainings, strict=True) if trainings else ((),) * 4
        return Actions(
            kind=np.full(len(rows), ActionKind.TRAIN),
            arm=np.array(arm, dtype=np.int64),
            limit=np.array(limit, dtype=np.int64),
            ceiling=np.array(ceiling, dtype=np.float64),
            reason=np.array(reason, dtype=np.int64),
        )

    def begin(self, beliefs: ScalarBeliefs, rows: NDArray[np.int64], actions: Actions) -> None:
        """Change nothing: a scalar policy sees runs that have ended."""

    def learn(self, beliefs: ScalarBeliefs, outcomes: Outcomes) -> None:
        """Have the policy learn from every training that ended."""
        for row, job in enumerate(outcomes.job.tolist()):
            if outcomes.kind[row] == ActionKind.TRAIN and outcomes.end[row] != RunEnd.ABANDONED:
                run = _trained_run(beliefs.spaces[job], outcomes, row)
                self.policy.learn(beliefs.spaces[job], beliefs.states[job], run)

    def _training(self, space: SearchSpace, choice: BatchChoice) -> tuple[int, int, float, int]:
        """Position of batch size and limit, ceiling and position of the reason.

        Raises:
            InvalidValueError: The choice is outside the search space.
        """
        reason = self.reasons[0] if choice.reason is None else choice.reason
        limit, limits = -1, space.limits_watts
        try:
            arm = space.batch_sizes.index(choice.batch_size)
            if choice.power_limit_watts is not None:
                limit = limits.index(choice.power_limit_watts) if limits else 0
            position = self.reasons.index(reason)
        except ValueError:
            raise InvalidValueError(
                f"the policy {self.name} chose {choice}, which is not to choose from",
                remedy=f"choose from {space} and the reasons {self.reasons}",
            ) from None
        return arm, limit, choice.cost_ceiling_joules, position


def _search_space(jobs: JobBatch, row: int) -> SearchSpace:
    sizes = jobs.batch_sizes[row, jobs.valid[row]]
    watts = jobs.limits_watts[row]
    return SearchSpace(
        batch_sizes=tuple(int(size) for size in sizes),
        limits_watts=tuple(watts[np.isfinite(watts)].tolist()),
        default=int(sizes[jobs.default[row]]),
        max_epochs=int(jobs.max_epochs[row]),
    )


def _trained_run(space: SearchSpace, outcomes: Outcomes, row: int) -> TrainedRun:
    limit = int(outcomes.limit[row])
    return TrainedRun(
        batch_size=space.batch_sizes[int(outcomes.arm[row])],
        power_limit_watts=space.limits_watts[limit]
        if 0 <= limit < len(space.limits_watts)
        else None,
        end=RunEnd(int(outcomes.end[row])),
        epochs=float(outcomes.epochs[row]),
        seconds=float(outcomes.seconds[row]),
        joules=float(outcomes.joules[row]),
        cost=float(outcomes.cost[row]),
    )
