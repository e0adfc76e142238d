"""What a simulation of recurring jobs did, recurrence by recurrence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from joulery.jobs.policies.counter_rng import Floats
    from joulery.simulate.workload import TracedWorkload


@dataclass(frozen=True, slots=True, eq=False)
class Deeds:
    """Every action in the order in which it became known, one entry per action.

    Attributes:
        lane: Whose.
        recurrence: Of that job.
        kind: :class:`~joulery.jobs.policies.base.Kind`.
        arm: Batch size as a position.
        limit: Power limit held, as a position; -1 where none was.
        end: :class:`~joulery.jobs.policies.base.End`.
        why: Position in the policy's reasons.
        epochs: Trained.
        ceiling: Cost in joules that the action might not pass.
        seconds: That it took.
        joules: That it used.
        cost: In joules of the job's cost.
    """

    lane: NDArray[np.int64]
    recurrence: NDArray[np.int64]
    kind: NDArray[np.int64]
    arm: NDArray[np.int64]
    limit: NDArray[np.int64]
    end: NDArray[np.int64]
    why: NDArray[np.int64]
    epochs: Floats
    ceiling: Floats
    seconds: Floats
    joules: Floats
    cost: Floats


@dataclass(frozen=True, slots=True, eq=False)
class SimulationLog:
    """Figures per job (lane) and recurrence; NaN and -1 beyond a lane's last recurrence.

    Attributes:
        workloads: What was simulated.
        of_lane: (lanes,), position of each lane's workload.
        seeds: (lanes,).
        policy: Its name.
        reasons: What positions in ``why`` mean.
        eta: Weight of energy in the cost.
        recurrences: (lanes,), how many each lane has.
        arm: (lanes, recurrences), batch size of the last training.
        limit: (lanes, recurrences), power limit that it held.
        why: (lanes, recurrences), reason for the last training.
        attempts: (lanes, recurrences), trainings.
        probes: (lanes, recurrences).
        reached: (lanes, recurrences), whether the target was reached in the end.
        seconds: (lanes, recurrences), of all actions together; where the target was not reached,
            what training the default takes is added: somebody has to.
        joules: (lanes, recurrences), likewise.
        cost: (lanes, recurrences), likewise; where another objective was given, its score instead,
            here and in the figures below; beyond its bounds, no less than the optimum's.
        expected: (lanes, recurrences), expected cost of the setting that was trained last.
        within: (lanes, recurrences), whether that setting is expected to keep the objective's
            bounds, within 1 %.
        optimal: (lanes, recurrences), expected cost of the best fixed setting at that time.
        default: (3, lanes, recurrences), expected seconds, joules and cost without optimisation.
        deeds: Every single action, where asked for.
    """

    workloads: tuple[TracedWorkload, ...]
    of_lane: NDArray[np.int64]
    seeds: NDArray[np.uint64]
    policy: str
    reasons: tuple[str, ...]
    eta: float
    recurrences: NDArray[np.int64]
    arm: NDArray[np.int64]
    limit: NDArray[np.int64]
    why: NDArray[np.int64]
    attempts: NDArray[np.int64]
    probes: NDArray[np.int64]
    reached: NDArray[np.bool_]
    seconds: Floats
    joules: Floats
    cost: Floats
    expected: Floats
    within: NDArray[np.bool_]
    optimal: Floats
    default: Floats
    deeds: Deeds | None = None

    def regret(self) -> Floats:
        """(lanes, recurrences), cumulative, in units of the optimal cost (Eq. 9 of NSDI'23)."""
        return np.asarray(np.nancumsum(self.cost / self.optimal - 1.0, axis=1))

    def final_regret(self) -> Floats:
        """(lanes,), after the last recurrence of each lane."""
        return np.asarray(np.nansum(self.cost / self.optimal - 1.0, axis=1))

    def of_workload(self, position: int) -> SimulationLog:
        """Only the lanes of one workload, cut to its recurrences."""
        kept = np.flatnonzero(self.of_lane == position)
        columns = int(self.recurrences[kept].max(initial=0))
        per_recurrence = {
            name: getattr(self, name)[kept, :columns]
            for name in (
                *("arm", "limit", "why", "attempts", "probes", "reached"),
                *("seconds", "joules", "cost", "expected", "within", "optimal"),
            )
        }
        return SimulationLog(
            workloads=(self.workloads[position],),
            of_lane=np.zeros(len(kept), dtype=np.int64),
            seeds=self.seeds[kept],
            policy=self.policy,
            reasons=self.reasons,
            eta=self.eta,
            recurrences=self.recurrences[kept],
            default=self.default[:, kept, :columns],
            deeds=None,
            **per_recurrence,
        )

    def by_workload(self) -> Iterator[SimulationLog]:
        """One log per workload."""
        return (self.of_workload(position) for position in range(len(self.workloads)))

    def last(self, count: int) -> tuple[Floats, Floats, Floats]:
        """(lanes,) means over the last recurrences: time, energy and cost against Default's."""
        columns = np.arange(self.cost.shape[1])[None, :]
        ends = self.recurrences[:, None]
        inside = (columns >= ends - count) & (columns < ends)

        def ratio(spent: Floats, expected: Floats) -> Floats:
            total = np.where(inside, spent, 0.0).sum(axis=1)
            return np.asarray(total / np.where(inside, expected, 0.0).sum(axis=1))

        return (
            ratio(self.seconds, self.default[0]),
            ratio(self.joules, self.default[1]),
            ratio(self.cost, self.default[2]),
        )
