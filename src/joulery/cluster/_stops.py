"""Which jobs are stopped for want of watts, changed as rarely as the budget allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.cluster._allocate import pause_problem
from joulery.cluster._draws import SETTLING_SECONDS
from joulery.cluster._subsets import choose_subset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.cluster._budget import Budget
    from joulery.cluster._jobs import ClusterJob

# A job goes on only if this share of the watts stays free; by hand: above what trims move.
RESUME_ROOM = 0.1
# A job within its least running time is stopped only where no other will do; by hand.
_YOUNG_VALUE = 1e3


class JobStops:
    """Jobs that this agent has stopped, and since when.

    A job is stopped only when the watts do not suffice, among others than those that went on
    lately where possible. It goes on when there is room beyond its need and it has rested for a
    while, or in place of another when it has been stopped for a rotation: first the other is
    stopped, and once its power has fallen the job goes on. Once in a rotation it need not rest:
    most stops are for an event, or for doubts of an agent's first minute, that are over soon.

    Args:
        least_running_seconds: Time that a job should run before it is stopped again.
        least_stopped_seconds: Time that a job stays stopped at least.
        rotation_seconds: Time after which a stopped job takes the place of another.
    """

    def __init__(
        self,
        least_running_seconds: float,
        least_stopped_seconds: float,
        rotation_seconds: float,
    ) -> None:
        self._least_running = least_running_seconds
        self._least_stopped = least_stopped_seconds
        self._rotation = rotation_seconds
        self.since: dict[str, float] = {}
        self._went_on: dict[str, float] = {}
        # When each job last went on without a rest.
        self._unrested: dict[str, float] = {}

    def choose(self, jobs: Sequence[ClusterJob], budget: Budget, now: float) -> frozenset[str]:
        """Jobs to be stopped from now on; ``stop`` and ``go_on`` tell what was done."""
        values, needs, room = pause_problem(jobs, budget)
        rested = np.array([now - self.since.get(job.id, np.inf) for job in jobs])
        ran = np.array([now - self._went_on.get(job.id, -np.inf) for job in jobs])
        values = np.where(ran < self._least_running, _YOUNG_VALUE, 1.0) * values
        runs = np.isneginf(rested)
        is_settled = not (np.abs(rested) < SETTLING_SECONDS).any()
        if (needs[runs].sum(axis=0) > room + 1e-9 * np.abs(room)).any():
            runs[runs] = choose_subset(values[runs], needs[runs], room)
        elif (rested >= self._rotation).any():
            turns = 1.0 + np.maximum(rested, 0.0) / self._rotation
            free = runs | (rested >= self._rotation)
            chosen = runs.copy()
            chosen[free] = choose_subset((values * turns)[free], needs[free], room)
            runs = chosen if is_settled and not (runs & ~chosen).any() else runs & chosen
        elif is_settled:
            for job in np.argsort(-rested, kind="stable"):
                if rested[job] >= self._least_rest(jobs[job].id, now):
                    total = needs[runs].sum(axis=0) + needs[job]
                    runs[job] = (total <= (1.0 - RESUME_ROOM) * room).all()
        return frozenset(
            job.id for job, is_running in zip(jobs, runs, strict=True) if not is_running
        )

    def _least_rest(self, job: str, now: float) -> float:
        is_first = now - self._unrested.get(job, -np.inf) >= self._rotation
        return 0.0 if is_first else self._least_stopped

    def stop(self, job: str, now: float) -> None:
        """Note that a job was stopped."""
        self.since[job] = now
        self._went_on.pop(job, None)

    def go_on(self, job: str, now: float) -> None:
        """Note that a job continues."""
        if now - self.since.pop(job, now) < self._least_stopped:
            self._unrested[job] = now
        self._went_on[job] = now

    def forget_all_but(self, jobs: set[str]) -> None:
        """Forget jobs that have ended, or that others let continue."""
        self.since = {job: at for job, at in self.since.items() if job in jobs}
