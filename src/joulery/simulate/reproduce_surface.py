"""What a workload is expected to cost on one GPU, over all batch sizes and power limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from joulery.jobs.policies.counter_rng import Floats
    from joulery.simulate.workload import TracedWorkload


@dataclass(frozen=True, slots=True)
class Surface:
    """Mean energy and time to the target over the traced runs, (batch sizes, limits).

    Batch sizes that missed their target in any run are unknown (NaN): nobody would choose them.

    Attributes:
        load: The traced workload.
    """

    load: TracedWorkload

    @property
    def gpu(self) -> str:
        """Type of board."""
        return self.load.gpu

    @property
    def workload(self) -> str:
        """The workload's name."""
        return self.load.dataset

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Ascending."""
        return self.load.batch_sizes

    @property
    def limits_watts(self) -> list[float]:
        """Ascending."""
        return [float(watts) for watts in self.load.limits_watts]

    @property
    def default(self) -> tuple[int, int]:
        """Positions of the default batch size and limit."""
        return self.load.default_setting()

    def run_epochs(self, batch: int) -> Floats:
        """Epochs that each traced run needed; NaN where it failed."""
        return self.load.epochs[batch, : int(self.load.runs[batch])]

    @property
    def epochs(self) -> Floats:
        """Mean epochs per batch size; NaN for one that does not always reach the target.

        The default is always known: where its runs fail at times, they are repeated.
        """
        epochs = np.array([self.run_epochs(arm).mean() for arm in range(len(self.batch_sizes))])
        default = self.load.default_arm
        if np.isnan(epochs[default]):
            epochs[default] = self.load.mean_epochs()[default]
        return epochs

    @property
    def seconds(self) -> Floats:
        """Time to accuracy (TTA)."""
        return np.asarray(self.epochs[:, None] * self.load.epoch_seconds)

    @property
    def joules(self) -> Floats:
        """Energy to accuracy (ETA), Eq. 1 of You et al."""
        return np.asarray(self.epochs[:, None] * self.load.epoch_joules)

    def cost(self, eta: float) -> Floats:
        """Energy and time weighed by ``eta`` (Eq. 2), in joules."""
        return np.asarray(self.epochs[:, None] * self.load.epoch_cost(eta))

    def best(self, values: Floats) -> tuple[int, int]:
        """Where ``values`` are least, as positions of batch size and limit."""
        batch, limit = np.unravel_index(np.nanargmin(values), values.shape)
        return int(batch), int(limit)

    def front(self) -> list[tuple[int, int]]:
        """The settings that no other beats in both time and energy, fastest first."""
        seconds, joules = self.seconds, self.joules
        known = [(int(batch), int(limit)) for batch, limit in np.argwhere(np.isfinite(joules))]
        kept = []
        least = np.inf
        for at in sorted(known, key=lambda at: (seconds[at], joules[at])):
            if joules[at] < least:
                least = joules[at]
                kept.append(at)
        return kept
