"""When a training has got where it should: a metric, a target, and which way is better."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joulery.training.environment import Ranks


class Goal:
    """What validation told so far.

    Args:
        target: Metric to reach; None for none.
        higher_is_better: Whether larger metrics are better.

    Attributes:
        reached: Whether the target was reached.
        diverged: Whether a metric was no finite number: such a training leads nowhere.
        told: How many metrics were reported.
        best: The best metric; None before the first.
    """

    def __init__(self, target: float | None, *, higher_is_better: bool = True) -> None:
        self._target = target
        self._higher_is_better = higher_is_better
        self.reached = False
        self.diverged = False
        self.told = 0
        self.best: float | None = None

    def tell(self, metric: Any, *, higher_is_better: bool | None = None) -> bool:
        """Take a metric, a number or anything that turns into one; whether the target is reached.

        Raises:
            TypeError, ValueError: It does not turn into one.
        """
        value = float(metric)
        if higher_is_better is not None:
            self._higher_is_better = higher_is_better
        self.told += 1
        if not math.isfinite(value):
            self.diverged = not self.reached
            return self.reached
        if self.best is None or self._better(value, self.best):
            self.best = value
        if self._target is not None and not self._better(self._target, value):
            self.reached = True
        return self.reached

    def agree(self, ranks: Ranks | None) -> None:
        """Rank 0's metrics count, on every rank; every rank has to ask."""
        if ranks is not None:
            self.reached, self.diverged, self.told = ranks.agree(
                (self.reached, self.diverged, self.told)
            )

    @property
    def has_target(self) -> bool:
        """Whether there is a metric to reach."""
        return self._target is not None

    @property
    def over(self) -> bool:
        """Whether there is nothing more to train for."""
        return self.reached or self.diverged

    def fresh(self) -> Goal:
        """The same goal for another attempt."""
        return Goal(self._target, higher_is_better=self._higher_is_better)

    def _better(self, one: float, other: float) -> bool:
        return one > other if self._higher_is_better else one < other
