"""Jobs of every group that are under way at the same time, in as many places as it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.jobs.policies.base import ActionKind, Outcomes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies.base import Actions
    from joulery.jobs.policies.counter_rng import Floats
    from joulery.simulate.environment import Results

_FIRST_WIDTH = 4
_FROM_ACTIONS = ("kind", "arm")
_WHOLE = ("limit", "end")
_FIGURES = ("epochs", "seconds", "joules", "cost")
_PER_LIMIT = ("epoch_seconds", "epoch_joules", "relative_error")
_COUNTS = ("recurrence", "trainings", "actions", "progress_arm")


class Slots:
    """Arrays of (lanes, width), and (lanes, width, limits), that grow wider on demand.

    Attributes:
        finish: When the action under way ends; infinite for a free slot.
        whole: By name, whole numbers: what was asked for, how it ended, counts.
        figures: By name, what it takes and tells.
    """

    def __init__(self, lanes: int, limits: int) -> None:
        shape = (lanes, _FIRST_WIDTH)
        self.finish = np.full(shape, np.inf)
        self.whole: dict[str, NDArray[np.int64]] = {
            name: np.zeros(shape, dtype=np.int64) for name in (*_COUNTS, *_FROM_ACTIONS, *_WHOLE)
        }
        self.figures: dict[str, Floats] = {
            name: np.zeros(shape) for name in (*_FIGURES, "progress")
        }
        self.figures |= {name: np.zeros((*shape, limits)) for name in _PER_LIMIT}

    def first_end(self, lane: NDArray[np.int64]) -> NDArray[np.int64]:
        """Slot of the job that ends first, whether there is one or not."""
        return np.asarray(self.finish[lane].argmin(axis=1))

    def busy(self, lane: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many jobs each lane has under way."""
        return np.asarray(np.isfinite(self.finish[lane]).sum(axis=1))

    def free(self, lane: NDArray[np.int64]) -> NDArray[np.int64]:
        """A free slot of each lane; makes room where there is none."""
        idle = np.isinf(self.finish[lane])
        if not idle.any(axis=1).all():
            self._widen()
            idle = np.isinf(self.finish[lane])
        return np.asarray(idle.argmax(axis=1))

    def _widen(self) -> None:
        self.finish = np.concatenate((self.finish, np.full_like(self.finish, np.inf)), axis=1)
        for name, numbers in self.whole.items():
            self.whole[name] = np.concatenate((numbers, np.zeros_like(numbers)), axis=1)
        for name, figures in self.figures.items():
            self.figures[name] = np.concatenate((figures, np.zeros_like(figures)), axis=1)

    def submit(
        self, lane: NDArray[np.int64], slot: NDArray[np.int64], recurrence: NDArray[np.int64]
    ) -> None:
        """A new job in a slot."""
        self.whole["recurrence"][lane, slot] = recurrence
        self.whole["trainings"][lane, slot] = 0
        self.whole["actions"][lane, slot] = 0
        self.whole["progress_arm"][lane, slot] = -1

    def begin(
        self,
        lane: NDArray[np.int64],
        slot: NDArray[np.int64],
        actions: Actions,
        results: Results,
    ) -> None:
        """What was handed out, and what will become of it."""
        for name in _FROM_ACTIONS:
            self.whole[name][lane, slot] = getattr(actions, name)
        for name in _WHOLE:
            self.whole[name][lane, slot] = getattr(results, name)
        for name in self.figures:
            self.figures[name][lane, slot] = getattr(results, name)
        probing = actions.kind == ActionKind.PROBE
        self.whole["progress_arm"][lane, slot] = np.where(probing, actions.arm, -1)

    def outcomes(self, lane: NDArray[np.int64], slot: NDArray[np.int64]) -> Outcomes:
        """What became of it, as the policy is told."""
        whole = ("recurrence", *_FROM_ACTIONS, *_WHOLE)
        told: dict[str, Any] = {name: self.whole[name][lane, slot] for name in whole}
        for name in (*_FIGURES, *_PER_LIMIT):
            told[name] = self.figures[name][lane, slot]
        return Outcomes(lane=lane, **told)
