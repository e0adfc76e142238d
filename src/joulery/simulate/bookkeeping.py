"""Add up what a simulation's actions take, per job and recurrence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies.base import ActionKind, RunEnd
from joulery.jobs.policies.bayesian.scoring import Runs, worth
from joulery.simulate.log import Deeds, SimulationLog
from joulery.simulate.yardstick import Yardstick, yardstick

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.jobs.policies.base import Outcomes
    from joulery.jobs.policies.counter_rng import Floats, Seeds
    from joulery.objectives import Objective
    from joulery.simulate.drift import Drift
    from joulery.simulate.recurring import Options
    from joulery.simulate.workload import TracedWorkload


class Books:
    """The log in the making.

    Args:
        workloads: What is simulated.
        of_lane: (lanes,), position of each lane's workload.
        recurrences: (lanes,).
        options: Of the simulation.
        changes: How each workload drifts.
    """

    def __init__(
        self,
        workloads: Sequence[TracedWorkload],
        of_lane: NDArray[np.int64],
        recurrences: NDArray[np.int64],
        options: Options,
        changes: Sequence[Drift],
    ) -> None:
        self.recurrences = recurrences
        self._workloads = tuple(workloads)
        self._of_lane = of_lane
        self._eta = options.eta
        self._objective = options.objective
        self._changes = changes
        self._yardsticks = [
            [yardstick(load, options.eta, options.objective, part) for part in change.epochs]
            for load, change in zip(workloads, changes, strict=True)
        ]
        shape = (len(of_lane), int(recurrences.max()))
        beyond = np.arange(shape[1])[None, :] >= recurrences[:, None]
        zeros = np.where(beyond, np.nan, 0.0)
        self._seconds, self._joules, self._cost = zeros.copy(), zeros.copy(), zeros.copy()
        self._arm = np.full(shape, -1)
        self._limit = np.full(shape, -1)
        self._why = np.full(shape, -1)
        self._attempts = np.zeros(shape, dtype=np.int64)
        self._probes = np.zeros(shape, dtype=np.int64)
        self._reached = np.zeros(shape, dtype=bool)
        self._deeds: list[Deeds] | None = [] if options.keep_deeds else None
        self._done = 0

    def enter(self, outcomes: Outcomes, why: NDArray[np.int64], ceiling: Floats) -> None:
        """Note how actions ended; each lane at most once per call."""
        cell = (outcomes.lane, outcomes.recurrence)
        self._seconds[cell] += outcomes.seconds
        self._joules[cell] += outcomes.joules
        self._cost[cell] += outcomes.cost
        trained = outcomes.kind == ActionKind.TRAIN
        self._attempts[cell] += trained
        self._probes[cell] += ~trained
        reached = outcomes.end == RunEnd.REACHED
        self._reached[cell] |= reached
        self._done += int(reached.sum())
        last = (outcomes.lane[trained], outcomes.recurrence[trained])
        self._arm[last] = outcomes.arm[trained]
        self._limit[last] = outcomes.limit[trained]
        self._why[last] = why[trained]
        if self._deeds is not None:
            self._deeds.append(
                Deeds(
                    lane=outcomes.lane,
                    recurrence=outcomes.recurrence,
                    kind=outcomes.kind,
                    arm=outcomes.arm,
                    limit=outcomes.limit,
                    end=outcomes.end,
                    why=why,
                    epochs=outcomes.epochs,
                    ceiling=ceiling,
                    seconds=outcomes.seconds,
                    joules=outcomes.joules,
                    cost=outcomes.cost,
                )
            )

    def share_done(self) -> float:
        """Of all recurrences."""
        return self._done / float(self.recurrences.sum())

    def log(self, policy: str, reasons: tuple[str, ...], seeds: Seeds) -> SimulationLog:
        """Close the books."""
        optimal, default, reference = self._benchmarks()
        # Who never got the model from the policy trains the default in the end, and pays for it.
        failed = ~self._reached
        for total, expected in zip((self._seconds, self._joules, self._cost), default, strict=True):
            total[failed] += expected[failed]
        cost, (expected, within) = self._cost, self._settings()
        if self._objective is not None:
            cost = worth(self._objective, Runs(self._seconds, self._joules, *reference))
            # What a setting saves by breaking a bound is not to its credit.
            cost = np.where(within | np.isnan(cost), cost, np.maximum(cost, optimal))
        return SimulationLog(
            workloads=self._workloads,
            of_lane=self._of_lane,
            seeds=seeds,
            policy=policy,
            reasons=reasons,
            eta=self._eta,
            recurrences=self.recurrences,
            arm=self._arm,
            limit=self._limit,
            why=self._why,
            attempts=self._attempts,
            probes=self._probes,
            reached=self._reached,
            seconds=self._seconds,
            joules=self._joules,
            cost=cost,
            expected=expected,
            within=within,
            optimal=optimal,
            default=default,
            deeds=_joined(self._deeds) if self._deeds is not None else None,
        )

    def _pieces(self, change: Drift) -> NDArray[np.int64]:
        """Which piece of a drift holds at every recurrence."""
        columns = np.arange(self._cost.shape[1])
        return np.searchsorted(change.starts, columns, side="right") - 1

    def _settings(self) -> tuple[Floats, NDArray[np.bool_]]:
        """Expected cost, or score, of the setting trained last, and whether it keeps the bounds."""
        found = np.full(self._cost.shape, np.nan)
        within = np.zeros(self._cost.shape, dtype=bool)
        for position, change in enumerate(self._changes):
            lanes = np.flatnonzero(self._of_lane == position)
            at = self._pieces(change), self._arm[lanes], self._limit[lanes]
            trained = self._arm[lanes] >= 0
            standards = self._yardsticks[position]
            costs = np.stack([one.expected for one in standards])[at]
            found[lanes] = np.where(trained, costs, np.nan)
            within[lanes] = trained & np.stack([one.within for one in standards])[at]
        return found, within

    def _benchmarks(self) -> tuple[Floats, Floats, Floats]:
        """Of the optimum, of Default (three figures) and of the fastest (two), per recurrence."""
        per_load = [
            np.stack([_benchmark(load, self._eta, *pair, self._objective) for pair in pairs], 1)[
                :, self._pieces(change)
            ]
            for load, change, pairs in (
                (load, change, list(zip(change.epochs, standards, strict=True)))
                for load, change, standards in zip(
                    self._workloads, self._changes, self._yardsticks, strict=True
                )
            )
        ]
        by_lane = np.moveaxis(np.stack(per_load)[self._of_lane], 1, 0)
        return by_lane[0], by_lane[1:4], by_lane[4:]


def _benchmark(
    load: TracedWorkload,
    eta: float,
    epochs: Floats,
    standard: Yardstick,
    objective: Objective | None,
) -> Floats:
    """(6,): cost of the optimum; seconds, joules and cost of Default; those of the fastest."""
    arm, limit = load.default_setting()
    count = load.mean_epochs(epochs)[arm]
    count = count if np.isfinite(count) else load.max_epochs  # it fails, at that price
    seconds, joules = count * load.epoch_seconds[arm, limit], count * load.epoch_joules[arm, limit]
    cost = count * load.epoch_cost(eta)[arm, limit]
    if objective is not None:
        one = (np.array(figure) for figure in (seconds, joules, *standard.reference))
        cost = float(worth(objective, Runs(*one)))
    return np.array([standard.optimal, seconds, joules, cost, *standard.reference])


def _joined(parts: list[Deeds]) -> Deeds:
    names = Deeds.__dataclass_fields__
    return Deeds(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})
