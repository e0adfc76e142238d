"""The policy ``grid``: every batch size at every power limit once, then the best (grid search).

Batch sizes that fail to reach the target are dropped with all their limits, as You et al. (NSDI'23,
section 6.1) improve on the plain search. One setting is tried per recurrence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies.base import ActionKind, Actions, RunEnd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies.base import Outcomes
    from joulery.jobs.policies.counter_rng import CounterRng, Floats
    from joulery.jobs.policies.job_batch import JobBatch

_TRY, _BEST, _AGAIN = range(3)


@dataclass(slots=True, eq=False)
class GridBeliefs:
    """What is known of each cell; cells are numbered arm·limits + limit.

    Attributes:
        limits: How many there are, padding included.
        order: (lanes,), cell at which the walk begins: the default batch size, highest limit.
        cost: (lanes, cells), least cost seen; infinite where none was, or the batch size failed.
        untried: (lanes, cells), neither begun nor dropped.
        last: (lanes,), what to try where all else failed: the default.
    """

    limits: int
    order: NDArray[np.int64]
    cost: Floats
    untried: NDArray[np.bool_]
    last: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Grid:
    """Grid search with pruning."""

    name = "grid"
    reasons = ("not yet tried", "the best of all tried", "nothing else reached the target")

    def start(self, lanes: JobBatch) -> GridBeliefs:
        """Everything is to be tried."""
        arms, limits = lanes.valid.shape[1], lanes.limits_watts.shape[1]
        known = np.isfinite(lanes.limits_watts)
        known[:, 0] |= ~known.any(axis=1)  # limits left alone: one unknown limit stands for that
        untried = (lanes.valid[:, :, None] & known[:, None, :]).reshape(len(lanes), arms * limits)
        default = lanes.default * limits + known.sum(axis=1) - 1
        return GridBeliefs(
            limits=limits,
            order=default,
            cost=np.full(untried.shape, np.inf),
            untried=untried,
            last=default,
        )

    def decide(
        self,
        beliefs: GridBeliefs,
        rows: NDArray[np.int64],
        draws: CounterRng,  # noqa: ARG002 - nothing is left to chance
    ) -> Actions:
        """The next untried cell from the default on, downward and round; else the best."""
        untried = beliefs.untried[rows]
        cells = untried.shape[1]
        steps = (beliefs.order[rows, None] - np.arange(cells)) % cells
        nearest = np.where(untried, steps, cells).argmin(axis=1)
        cost = beliefs.cost[rows]
        trying = untried.any(axis=1)
        found = np.isfinite(cost).any(axis=1)
        best = np.where(found, cost.argmin(axis=1), beliefs.last[rows])
        cell = np.where(trying, nearest, best)
        return Actions(
            kind=np.full(len(rows), ActionKind.TRAIN),
            arm=cell // beliefs.limits,
            limit=cell % beliefs.limits,
            ceiling=np.full(len(rows), np.inf),
            why=np.where(trying, _TRY, np.where(found, _BEST, _AGAIN)),
        )

    def begin(self, beliefs: GridBeliefs, rows: NDArray[np.int64], actions: Actions) -> None:
        """Cross off what is under way."""
        held = actions.limit >= 0  # what was taken up again may have held none that is known
        cell = actions.arm[held] * beliefs.limits + actions.limit[held]
        beliefs.untried[rows[held], cell] = False

    def learn(self, beliefs: GridBeliefs, outcomes: Outcomes) -> None:
        """Keep the least cost of each cell; drop batch sizes that failed."""
        trained = outcomes.kind == ActionKind.TRAIN
        # What held no limit of the job's says nothing about any cell.
        reached = trained & (outcomes.end == RunEnd.REACHED) & (outcomes.limit >= 0)
        lane = outcomes.lane[reached]
        cell = outcomes.arm[reached] * beliefs.limits + outcomes.limit[reached]
        beliefs.cost[lane, cell] = np.minimum(beliefs.cost[lane, cell], outcomes.cost[reached])
        failed = trained & ((outcomes.end == RunEnd.EXHAUSTED) | (outcomes.end == RunEnd.STOPPED))
        lane, arm = outcomes.lane[failed], outcomes.arm[failed]
        of_arm = np.arange(beliefs.cost.shape[1]) // beliefs.limits == arm[:, None]
        beliefs.untried[lane] &= ~of_arm
        beliefs.cost[lane] = np.where(of_arm, np.inf, beliefs.cost[lane])
