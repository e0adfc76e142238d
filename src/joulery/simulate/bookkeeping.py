"""Add up what a simulation's actions take, per job and recurrence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.recurring.policy import End, Kind
from joulery.simulate.log import Deeds, Log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.recurring.draws import Floats, Seeds
    from joulery.recurring.policy import Outcomes
    from joulery.simulate.drift import Drift
    from joulery.simulate.recurring import Options
    from joulery.simulate.workload import Workload


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
        workloads: Sequence[Workload],
        of_lane: NDArray[np.int64],
        recurrences: NDArray[np.int64],
        options: Options,
        changes: Sequence[Drift],
    ) -> None:
        self.recurrences = recurrences
        self._workloads = tuple(workloads)
        self._of_lane = of_lane
        self._eta = options.eta
        self._changes = changes
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
        trained = outcomes.kind == Kind.TRAIN
        self._attempts[cell] += trained
        self._probes[cell] += ~trained
        reached = outcomes.end == End.REACHED
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

    def log(self, policy: str, reasons: tuple[str, ...], seeds: Seeds) -> Log:
        """Close the books."""
        optimal, default = self._expected()
        # Who never got the model from the policy trains the default in the end, and pays for it.
        failed = ~self._reached
        for total, expected in zip((self._seconds, self._joules, self._cost), default, strict=True):
            total[failed] += expected[failed]
        return Log(
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
            cost=self._cost,
            expected=self._expected_cost(),
            optimal=optimal,
            default=default,
            deeds=_joined(self._deeds) if self._deeds is not None else None,
        )

    def _expected_cost(self) -> Floats:
        """Of the setting that each recurrence trained last."""
        found = np.full(self._cost.shape, np.nan)
        columns = np.arange(self._cost.shape[1])
        for position, (load, change) in enumerate(zip(self._workloads, self._changes, strict=True)):
            costs = np.stack([load.expected_cost(self._eta, part) for part in change.epochs])
            piece = np.searchsorted(change.starts, columns, side="right") - 1
            lanes = np.flatnonzero(self._of_lane == position)
            trained = self._arm[lanes] >= 0
            looked_up = costs[piece, self._arm[lanes], self._limit[lanes]]
            found[lanes] = np.where(trained, looked_up, np.nan)
        return found

    def _expected(self) -> tuple[Floats, Floats]:
        """Expected cost of the optimum, and what Default takes, at every recurrence."""
        columns = np.arange(self._cost.shape[1])
        per_load = [
            _expectations(load, change, self._eta)[
                :, np.searchsorted(change.starts, columns, side="right") - 1
            ]
            for load, change in zip(self._workloads, self._changes, strict=True)
        ]
        by_lane = np.stack(per_load)[self._of_lane]
        return by_lane[:, 0], np.moveaxis(by_lane[:, 1:], 1, 0)


def _expectations(load: Workload, change: Drift, eta: float) -> Floats:
    """(4, pieces): optimal cost; seconds, joules and cost of Default."""
    arm, limit = load.default_setting()
    rows = []
    for epochs in change.epochs:
        count = load.mean_epochs(epochs)[arm]
        count = count if np.isfinite(count) else load.max_epochs  # it fails, at that price
        rows.append(
            (
                load.optimum(eta, epochs)[2],
                count * load.epoch_seconds[arm, limit],
                count * load.epoch_joules[arm, limit],
                count * load.epoch_cost(eta)[arm, limit],
            )
        )
    return np.array(rows).T


def _joined(parts: list[Deeds]) -> Deeds:
    names = Deeds.__dataclass_fields__
    return Deeds(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})
