"""Rounds of trying batch sizes from the default downward, then upward, dropping what fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies.counter_rng import Floats


@dataclass(slots=True, eq=False)
class Exploration:
    """Where each lane stands (NSDI'23, Algorithm 3, lines 1 to 9).

    Attributes:
        rounds: How many there are.
        round: (lanes,), rounds that are over.
        kept: (lanes, arms), batch sizes that this round may try; what is left, in the end.
        good: (lanes, arms), those that reached the target in this round.
        start: (lanes,), batch size from which this round goes downward and upward.
        arm: (lanes,), batch size to try next.
        upward: (lanes,), direction.
        best: (lanes,), of this round: where the next one starts.
        best_cost: (lanes,), its cost.
        pending: (lanes,), whether ``arm`` is being tried.
    """

    rounds: int
    round: NDArray[np.int64]
    kept: NDArray[np.bool_]
    good: NDArray[np.bool_]
    start: NDArray[np.int64]
    arm: NDArray[np.int64]
    upward: NDArray[np.bool_]
    best: NDArray[np.int64]
    best_cost: Floats
    pending: NDArray[np.bool_]

    @classmethod
    def of(cls, valid: NDArray[np.bool_], default: NDArray[np.int64], rounds: int) -> Exploration:
        """Before the first round."""
        lanes = len(default)
        return cls(
            rounds=rounds,
            round=np.zeros(lanes, dtype=np.int64),
            kept=valid.copy(),
            good=np.zeros_like(valid),
            start=default.copy(),
            arm=default.copy(),
            upward=np.zeros(lanes, dtype=bool),
            best=default.copy(),
            best_cost=np.full(lanes, np.inf),
            pending=np.zeros(lanes, dtype=bool),
        )

    @property
    def over(self) -> NDArray[np.bool_]:
        """(lanes,), whether all rounds are over."""
        return self.round >= self.rounds

    def abandon(self, lane: NDArray[np.int64], arm: NDArray[np.int64]) -> None:
        """A try came to nothing; it is to be made again."""
        self.pending[lane[self.arm[lane] == arm]] = False

    def advance(
        self,
        lane: NDArray[np.int64],
        arm: NDArray[np.int64],
        cost: Floats,
        reached: NDArray[np.bool_],
    ) -> None:
        """Fold in results; those that no round waits for change nothing."""
        awaited = self.pending[lane] & (self.arm[lane] == arm) & ~self.over[lane]
        if not awaited.any():
            return
        lane, arm, cost, reached = (part[awaited] for part in (lane, arm, cost, reached))
        self.pending[lane] = False
        self.good[lane, arm] = reached
        better = reached & (cost < self.best_cost[lane])
        self.best[lane[better]] = arm[better]
        self.best_cost[lane[better]] = cost[better]
        self._move(lane, arm, reached)

    def _move(
        self, lane: NDArray[np.int64], arm: NDArray[np.int64], reached: NDArray[np.bool_]
    ) -> None:
        """To the next batch size of the direction, the other direction, or the next round."""
        positions = np.arange(self.kept.shape[1])
        kept = self.kept[lane]
        upward = self.upward[lane]
        below = kept & (positions < arm[:, None])
        down = ~upward & reached & below.any(axis=1)
        # Upward from where this direction has come to, or, at its beginning, from the start.
        floor = np.where(upward, arm, self.start[lane])
        above = kept & (positions > floor[:, None])
        up = ~down & (~upward | reached) & above.any(axis=1)
        lowest_above = above.argmax(axis=1)
        highest_below = positions[-1] - below[:, ::-1].argmax(axis=1)
        self.arm[lane] = np.where(down, highest_below, lowest_above)
        self.upward[lane] = up
        self._end_round(lane[~down & ~up])

    def _end_round(self, lane: NDArray[np.int64]) -> None:
        # A round in which nothing reached the target tells nothing to drop.
        some = self.good[lane].any(axis=1)
        self.kept[lane[some]] = self.good[lane[some]]
        self.good[lane] = False
        self.start[lane] = self.best[lane]
        self.arm[lane] = self.best[lane]
        self.upward[lane] = False
        self.best_cost[lane] = np.inf
        self.round[lane] += 1
