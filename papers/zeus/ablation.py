"""Zeus without one of its parts, to show the value of that part: Fig. 13."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies import Exploration, RunEnd, ZeusPolicy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies import Actions, CounterRng, Floats, JobBatch, Outcomes, ZeusBeliefs


class _KeepsFailures(Exploration):
    """Exploration that goes on past a failure, and drops nothing."""

    __slots__ = ()

    def advance(
        self,
        job: NDArray[np.int64],
        arm: NDArray[np.int64],
        cost: Floats,
        reached: NDArray[np.bool_],
    ) -> None:
        """Fold in results as if all had reached the target; those that had not are never best."""
        super().advance(job, arm, np.where(reached, cost, np.inf), np.ones_like(reached))


class WithoutPruning(ZeusPolicy):
    """Zeus that keeps batch sizes which did not reach the target.

    A stopped training counts as its whole ceiling: by what it really cost, one that was stopped
    early would pass for cheap, and be chosen again and again.
    """

    __slots__ = ()

    def start(self, jobs: JobBatch) -> ZeusBeliefs:
        """Zeus's beliefs, with another exploration."""
        beliefs = super().start(jobs)
        beliefs.exploration = _KeepsFailures.of(jobs.valid, jobs.default)
        return beliefs

    def learn(self, beliefs: ZeusBeliefs, outcomes: Outcomes) -> None:
        """Fold outcomes into beliefs as Zeus does, with failures at their ceiling."""
        ceiling = self.beta * beliefs.least[outcomes.job]
        stopped = outcomes.end == RunEnd.STOPPED
        cost = np.where(stopped, np.maximum(outcomes.cost, ceiling), outcomes.cost)
        super().learn(beliefs, replace(outcomes, cost=cost))


@dataclass(slots=True, eq=False)
class LimitBeliefs:
    """Zeus's beliefs, and costs of power limits.

    Attributes:
        zeus: Beliefs of Zeus.
        jobs: The jobs.
        tried: (jobs, arms, limits), limits that a training was asked to hold.
        epoch_cost: (jobs, arms, limits), cost of an epoch in joules; infinite where unknown.
    """

    zeus: ZeusBeliefs
    jobs: JobBatch
    tried: NDArray[np.bool_]
    epoch_cost: Floats


@dataclass(frozen=True, slots=True)
class WithoutProfiling:
    """Zeus that learns one power limit per training.

    A batch size is judged when all its limits have been held, by what its last training would
    have cost under the best of them.
    """

    zeus: ZeusPolicy = field(default_factory=ZeusPolicy)

    name = "zeus"
    reasons = ZeusPolicy.reasons

    def start(self, jobs: JobBatch) -> LimitBeliefs:
        """Beliefs before any limit is known."""
        shape = (*jobs.valid.shape, jobs.limits_watts.shape[1])
        absent = np.broadcast_to(np.isnan(jobs.limits_watts)[:, None, :], shape)
        return LimitBeliefs(self.zeus.start(jobs), jobs, absent.copy(), np.full(shape, np.inf))

    def decide(self, beliefs: LimitBeliefs, rows: NDArray[np.int64], rng: CounterRng) -> Actions:
        """Zeus's batch size under the highest limit not yet tried, or the best known."""
        actions = self.zeus.decide(beliefs.zeus, rows, rng)
        untried = ~beliefs.tried[rows, actions.arm]
        highest = untried.shape[1] - 1 - untried[:, ::-1].argmax(axis=1)
        best = beliefs.epoch_cost[rows, actions.arm].argmin(axis=1)
        return replace(actions, limit=np.where(untried.any(axis=1), highest, best))

    def begin(self, beliefs: LimitBeliefs, rows: NDArray[np.int64], actions: Actions) -> None:
        """Note which limits were asked for, as a trace may lack them."""
        beliefs.tried[rows, actions.arm, actions.limit] = True
        self.zeus.begin(beliefs.zeus, rows, actions)

    def learn(self, beliefs: LimitBeliefs, outcomes: Outcomes) -> None:
        """Note the cost of a limit; pass a batch size on to Zeus once all its limits are known."""
        job, arm = outcomes.job, outcomes.arm
        cost = (
            beliefs.jobs.joule_weight[job, None] * outcomes.epoch_joules
            + beliefs.jobs.second_weight[job, None] * outcomes.epoch_seconds
        )
        epoch_cost = np.where(np.isfinite(cost), cost, beliefs.epoch_cost[job, arm])
        beliefs.epoch_cost[job, arm] = epoch_cost
        complete = beliefs.tried[job, arm].all(axis=1)
        run_cost = epoch_cost[np.arange(len(job)), outcomes.limit]
        # A training that was not begun shows nothing about its limit.
        at_best = np.divide(
            epoch_cost.min(axis=1),
            run_cost,
            out=np.ones_like(run_cost),
            where=np.isfinite(run_cost),
        )
        adjusted = replace(
            outcomes,
            cost=outcomes.cost * at_best,
            end=np.where(complete, outcomes.end, RunEnd.ABANDONED),
        )
        self.zeus.learn(beliefs.zeus, adjusted)
