"""The policy ``grid``: every batch size at every power limit once, then the best (grid search).

Batch sizes that fail to reach the target are dropped with all their limits, as You et al. (NSDI'23,
section 6.1) improve on the plain search. One setting is tried per recurrence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies._base import ActionKind, Actions, RunEnd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies._base import Outcomes
    from joulery.jobs.policies._counter_rng import CounterRng, Floats
    from joulery.jobs.policies._job_batch import JobBatch

_TRY, _BEST, _AGAIN = range(3)


@dataclass(slots=True, eq=False)
class GridBeliefs:
    """The state of each cell of the grid; cells are numbered arm·limits + limit.

    Attributes:
        limits: Number of limits, padding included.
        default: (jobs,), cell of the default batch size at the highest limit: where the search
            begins, and what is run where everything failed.
        cost: (jobs, cells), least cost seen; infinite where none was, or the batch size failed.
        untried: (jobs, cells), whether the cell was neither begun nor dropped.
    """

    limits: int
    default: NDArray[np.int64]
    cost: Floats
    untried: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GridSearchPolicy:
    """Grid search with pruning."""

    name = "grid"
    version = 1
    reasons = ("not yet tried", "the best of all tried", "nothing else reached the target")

    def start(self, jobs: JobBatch) -> GridBeliefs:
        """The grid before anything was tried."""
        arms, limits = jobs.valid.shape[1], jobs.limits_watts.shape[1]
        finite = np.isfinite(jobs.limits_watts)
        finite[:, 0] |= ~finite.any(axis=1)  # limits left alone: one unknown limit stands for that
        untried = (jobs.valid[:, :, None] & finite[:, None, :]).reshape(len(jobs), arms * limits)
        return GridBeliefs(
            limits=limits,
            default=jobs.default * limits + finite.sum(axis=1) - 1,
            cost=np.full(untried.shape, np.inf),
            untried=untried,
        )

    def decide(
        self,
        beliefs: GridBeliefs,
        rows: NDArray[np.int64],
        rng: CounterRng,  # noqa: ARG002 - nothing is left to chance
    ) -> Actions:
        """The next untried cell from the default downward and round; else the best."""
        untried = beliefs.untried[rows]
        cells = untried.shape[1]
        steps = (beliefs.default[rows, None] - np.arange(cells)) % cells
        nearest = np.where(untried, steps, cells).argmin(axis=1)
        cost = beliefs.cost[rows]
        trying = untried.any(axis=1)
        success = np.isfinite(cost).any(axis=1)
        best = np.where(success, cost.argmin(axis=1), beliefs.default[rows])
        cell = np.where(trying, nearest, best)
        return Actions(
            kind=np.full(len(rows), ActionKind.TRAIN),
            arm=cell // beliefs.limits,
            limit=cell % beliefs.limits,
            ceiling=np.full(len(rows), np.inf),
            reason=np.where(trying, _TRY, np.where(success, _BEST, _AGAIN)),
        )

    def begin(self, beliefs: GridBeliefs, rows: NDArray[np.int64], actions: Actions) -> None:
        """Mark the cells under way as tried."""
        limited = actions.limit >= 0  # what was taken up again may have held none that is known
        cell = actions.arm[limited] * beliefs.limits + actions.limit[limited]
        beliefs.untried[rows[limited], cell] = False

    def learn(self, beliefs: GridBeliefs, outcomes: Outcomes) -> None:
        """Keep the least cost of each cell; drop batch sizes that failed."""
        trained = outcomes.kind == ActionKind.TRAIN
        # A training that held none of the job's limits says nothing about any cell.
        reached = trained & (outcomes.end == RunEnd.REACHED) & (outcomes.limit >= 0)
        job = outcomes.job[reached]
        cell = outcomes.arm[reached] * beliefs.limits + outcomes.limit[reached]
        beliefs.cost[job, cell] = np.minimum(beliefs.cost[job, cell], outcomes.cost[reached])
        failed = trained & ((outcomes.end == RunEnd.EXHAUSTED) | (outcomes.end == RunEnd.STOPPED))
        job, arm = outcomes.job[failed], outcomes.arm[failed]
        of_arm = np.arange(beliefs.cost.shape[1]) // beliefs.limits == arm[:, None]
        beliefs.untried[job] &= ~of_arm
        beliefs.cost[job] = np.where(of_arm, np.inf, beliefs.cost[job])
