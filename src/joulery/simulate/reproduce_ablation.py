"""Zeus without one of its parts, to see what that part is worth."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies.base import RunEnd
from joulery.jobs.policies.exploration import Exploration
from joulery.jobs.policies.zeus import Zeus

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies.base import Actions, Outcomes
    from joulery.jobs.policies.counter_rng import CounterRng, Floats
    from joulery.jobs.policies.job_batch import JobBatch
    from joulery.jobs.policies.zeus import ZeusBeliefs


class _KeepsFailures(Exploration):
    """Goes on past a failure, and drops nothing."""

    __slots__ = ()

    def advance(
        self,
        lane: NDArray[np.int64],
        arm: NDArray[np.int64],
        cost: Floats,
        reached: NDArray[np.bool_],
    ) -> None:
        """As if every batch size had reached the target; those that had not are never the best."""
        super().advance(lane, arm, np.where(reached, cost, np.inf), np.ones_like(reached))


@dataclass(frozen=True, slots=True)
class WithoutPruning:
    """Zeus that keeps batch sizes which did not reach the target.

    A stopped training counts as its whole ceiling: by what it really cost, one that was stopped
    early would pass for cheap, and be chosen for ever.
    """

    zeus: Zeus = field(default_factory=Zeus)

    name = "zeus"
    reasons = Zeus.reasons

    def start(self, lanes: JobBatch) -> ZeusBeliefs:
        """Zeus's own, with another way to explore."""
        beliefs = self.zeus.start(lanes)
        rounds = beliefs.exploration.rounds
        beliefs.exploration = _KeepsFailures.of(lanes.valid, lanes.default, rounds)
        return beliefs

    def decide(self, beliefs: ZeusBeliefs, rows: NDArray[np.int64], draws: CounterRng) -> Actions:
        """As Zeus does."""
        return self.zeus.decide(beliefs, rows, draws)

    def begin(self, beliefs: ZeusBeliefs, rows: NDArray[np.int64], actions: Actions) -> None:
        """As Zeus does."""
        self.zeus.begin(beliefs, rows, actions)

    def learn(self, beliefs: ZeusBeliefs, outcomes: Outcomes) -> None:
        """As Zeus does, with failures at their ceiling."""
        ceiling = self.zeus.beta * beliefs.least[outcomes.lane]
        stopped = outcomes.end == RunEnd.STOPPED
        cost = np.where(stopped, np.maximum(outcomes.cost, ceiling), outcomes.cost)
        self.zeus.learn(beliefs, replace(outcomes, cost=cost))


@dataclass(slots=True, eq=False)
class LimitBeliefs:
    """Zeus's beliefs, and what is known of power limits.

    Attributes:
        zeus: Its beliefs.
        lanes: The jobs.
        tried: (lanes, arms, limits), what a training has held or was given up for.
        epoch_cost: (lanes, arms, limits), in joules; infinite where unknown.
    """

    zeus: ZeusBeliefs
    lanes: JobBatch
    tried: NDArray[np.bool_]
    epoch_cost: Floats


@dataclass(frozen=True, slots=True)
class WithoutProfiling:
    """Zeus that learns one power limit per training.

    A batch size is judged when all its limits have been held, by what its last training would
    have cost under the best of them.
    """

    zeus: Zeus = field(default_factory=Zeus)

    name = "zeus"
    reasons = Zeus.reasons

    def start(self, lanes: JobBatch) -> LimitBeliefs:
        """Nothing is known of any limit."""
        shape = (*lanes.valid.shape, lanes.limits_watts.shape[1])
        absent = np.broadcast_to(np.isnan(lanes.limits_watts)[:, None, :], shape)
        return LimitBeliefs(self.zeus.start(lanes), lanes, absent.copy(), np.full(shape, np.inf))

    def decide(self, beliefs: LimitBeliefs, rows: NDArray[np.int64], draws: CounterRng) -> Actions:
        """Zeus's batch size under the highest limit not yet tried, or the best known."""
        actions = self.zeus.decide(beliefs.zeus, rows, draws)
        untried = ~beliefs.tried[rows, actions.arm]
        highest = untried.shape[1] - 1 - untried[:, ::-1].argmax(axis=1)
        best = beliefs.epoch_cost[rows, actions.arm].argmin(axis=1)
        return replace(actions, limit=np.where(untried.any(axis=1), highest, best))

    def begin(self, beliefs: LimitBeliefs, rows: NDArray[np.int64], actions: Actions) -> None:
        """Note which limits were asked for, as a trace may lack them."""
        beliefs.tried[rows, actions.arm, actions.limit] = True
        self.zeus.begin(beliefs.zeus, rows, actions)

    def learn(self, beliefs: LimitBeliefs, outcomes: Outcomes) -> None:
        """Note what a limit costs; tell Zeus of a batch size once all its limits are known."""
        lane, arm = outcomes.lane, outcomes.arm
        cost = (
            beliefs.lanes.joule_weight[lane, None] * outcomes.epoch_joules
            + beliefs.lanes.second_weight[lane, None] * outcomes.epoch_seconds
        )
        known = np.where(np.isfinite(cost), cost, beliefs.epoch_cost[lane, arm])
        beliefs.epoch_cost[lane, arm] = known
        complete = beliefs.tried[lane, arm].all(axis=1)
        held = known[np.arange(len(lane)), outcomes.limit]
        # A training that was not begun taught nothing about its limit.
        at_best = np.divide(
            known.min(axis=1), held, out=np.ones_like(held), where=np.isfinite(held)
        )
        told = replace(
            outcomes,
            cost=outcomes.cost * at_best,
            end=np.where(complete, outcomes.end, RunEnd.ABANDONED),
        )
        self.zeus.learn(beliefs.zeus, told)
