"""What trainings have shown about epochs to the target, kept as sums from which beliefs follow.

Sums can be weighed down when a job has drifted, and re-read when the scatter of runs turns out to
be larger than was thought; a belief that was updated run by run could do neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.recurring.normal import hazard

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.recurring.curve import Curve
    from joulery.recurring.draws import Floats

_LARGEST_DEVIATION = 4.0  # in standard deviations


@dataclass(frozen=True, slots=True)
class NoisePrior:
    """Scatter of log epochs between runs of one batch size, before two were compared.

    Attributes:
        sd: Standard deviation of the logarithm: 0.1 is 10 %.
        runs: How many comparisons that expectation weighs as much as.
    """

    sd: float
    runs: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """Sums over trainings; arrays change in place.

    Attributes:
        noise: What is expected of the scatter.
        runs: (lanes, arms), trainings that reached the target; fractions after forgetting.
        total: (lanes, arms), sum of their log epochs.
        scatter: (lanes,), sum of squared deviations between runs of the same batch size.
        compared: (lanes,), how many such comparisons that sum holds.
        stop_precision: (lanes, arms), weight of the trainings that did not get there.
        stop_total: (lanes, arms), that weight times the log epochs they stand for.
    """

    noise: NoisePrior
    runs: Floats
    total: Floats
    scatter: Floats
    compared: Floats
    stop_precision: Floats
    stop_total: Floats

    @classmethod
    def start(cls, noise: NoisePrior, shape: tuple[int, int]) -> Evidence:
        """Before any training."""
        shapes = (shape, shape, shape[0], shape[0], shape, shape)
        return cls(noise, *(np.zeros(each) for each in shapes))

    def noise_variance(self, rows: NDArray[np.int64]) -> Floats:
        """(rows,), of the log epochs of one run, pooled over batch sizes.

        Only runs of the same batch size are compared, so the curve's shape does not count as noise.
        """
        prior = self.noise
        scatter = prior.runs * prior.sd**2 + self.scatter[rows]
        return np.asarray(scatter / (prior.runs + self.compared[rows]))

    def sites(self, rows: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """(rows, arms): log epochs seen at each batch size, and one over their variance."""
        each = 1.0 / self.noise_variance(rows)[:, None]
        precision = self.runs[rows] * each + self.stop_precision[rows]
        total = self.total[rows] * each + self.stop_total[rows]
        return total / np.maximum(precision, 1e-12), precision

    def reach(self, rows: NDArray[np.int64], arms: NDArray[np.int64], log_epochs: Floats) -> None:
        """Trainings reached the target; one per row."""
        runs, total = self.runs[rows, arms], self.total[rows, arms]
        deviation = log_epochs - total / np.maximum(runs, 1e-12)
        # Welford's update: against a mean of few runs, a deviation is partly that mean's own. One
        # run, perhaps the first after a change, may not tell of more scatter than this.
        square = np.minimum(deviation**2, _LARGEST_DEVIATION**2 * self.noise_variance(rows))
        self.scatter[rows] += np.where(runs > 0, runs / (runs + 1.0) * square, 0.0)
        self.compared[rows] += np.minimum(runs, 1.0)
        self.runs[rows, arms] = runs + 1.0
        self.total[rows, arms] = total + log_epochs

    def fall_short(
        self,
        rows: NDArray[np.int64],
        arms: NDArray[np.int64],
        log_epochs: Floats,
        believed: Curve,
    ) -> None:
        """Trainings ended on their way: the target is more than those epochs away.

        What that says is a truncated normal; the normal with the same two moments stands for it
        (one pass of expectation propagation; Minka 2001).

        Args:
            rows: One per training.
            arms: One per row.
            log_epochs: Trained in vain.
            believed: What all lanes believed before.
        """
        mean = believed.mean[rows, arms]
        variance = believed.covariance[rows, arms, arms]
        spread = np.sqrt(variance + self.noise_variance(rows))
        z = (log_epochs - mean) / spread
        lift = hazard(z)
        # Of the belief after: how far its mean moves, and by what share its variance shrinks.
        moved = variance / spread * lift
        shrunk = np.clip(variance / spread**2 * lift * (lift - z), 0.0, 1.0 - 1e-9)
        precision = shrunk / (1.0 - shrunk) / variance
        self.stop_precision[rows, arms] += precision
        self.stop_total[rows, arms] += precision * mean + moved * (1.0 / variance + precision)

    def forget(self, rows: NDArray[np.int64], kept: Floats) -> None:
        """Weigh runs down to the share ``kept`` (rows,); how much they scatter stays known."""
        for sums in (self.runs, self.total, self.stop_precision, self.stop_total):
            sums[rows] *= kept[:, None]

    def shift(self, rows: NDArray[np.int64], by: Floats) -> None:
        """Read all evidence as if every run had taken exp(``by``) (rows,) times the epochs."""
        by = by[:, None]
        self.total[rows] += by * self.runs[rows]
        self.stop_total[rows] += by * self.stop_precision[rows]
