"""What trainings have shown about epochs to the target, kept as sums from which beliefs follow.

Sums can be weighed down when a job has drifted, and re-read when the scatter of runs turns out to
be larger than was thought; a belief that was updated run by run could do neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies.bayesian.normal import hazard
from joulery.jobs.policies.job_batch import places_of, rows_of, single

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies.bayesian.curve import GaussianCurve
    from joulery.jobs.policies.counter_rng import Floats
    from joulery.jobs.policies.job_batch import Rows

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
        sums: (4, lanes, arms): :attr:`runs`, :attr:`total`, :attr:`stop_precision` and
            :attr:`stop_total`.
        scatter: (lanes,), sum of squared deviations between runs of the same batch size.
        compared: (lanes,), how many such comparisons that sum holds.
    """

    noise: NoisePrior
    sums: Floats
    scatter: Floats
    compared: Floats

    @classmethod
    def start(cls, noise: NoisePrior, shape: tuple[int, int]) -> Evidence:
        """Before any training."""
        return cls(noise, *(np.zeros(each) for each in ((4, *shape), shape[0], shape[0])))

    @property
    def runs(self) -> Floats:
        """(lanes, arms), trainings that reached the target; fractions after forgetting."""
        return np.asarray(self.sums[0])

    @property
    def total(self) -> Floats:
        """(lanes, arms), sum of their log epochs."""
        return np.asarray(self.sums[1])

    @property
    def stop_precision(self) -> Floats:
        """(lanes, arms), weight of the trainings that did not get there."""
        return np.asarray(self.sums[2])

    @property
    def stop_total(self) -> Floats:
        """(lanes, arms), that weight times the log epochs they stand for."""
        return np.asarray(self.sums[3])

    def noise_variance(self, rows: Rows | int) -> Floats:
        """(rows,), of the log epochs of one run, pooled over batch sizes; of one lane, a number.

        Only runs of the same batch size are compared, so the curve's shape does not count as noise.
        """
        prior = self.noise
        scatter = prior.runs * prior.sd**2 + self.scatter[rows]
        noise: Floats = scatter / (prior.runs + self.compared[rows])
        return noise

    def sites(self, rows: Rows) -> tuple[Floats, Floats]:
        """(rows, arms): log epochs seen at each batch size, and one over their variance."""
        each = 1.0 / self.noise_variance(rows)[:, None]
        precision, total = self.sums[:2, rows] * each + self.sums[2:, rows]
        return total / np.maximum(precision, 1e-12), precision

    def reach(self, rows: NDArray[np.int64], arms: NDArray[np.int64], log_epochs: Floats) -> None:
        """Trainings reached the target; one per row."""
        if not len(rows):
            return
        row, arm, value = single(rows, arms, log_epochs)
        runs, total = self.runs[row, arm], self.total[row, arm]
        deviation = value - total / np.maximum(runs, 1e-12)
        # Welford's update: against a mean of few runs, a deviation is partly that mean's own. One
        # run, perhaps the first after a change, may not tell of more scatter than this.
        largest = _LARGEST_DEVIATION**2 * self.noise_variance(row)
        more = runs + 1.0
        self.scatter[row] += runs / more * np.minimum(deviation * deviation, largest)
        self.compared[row] += np.minimum(runs, 1.0)
        self.runs[row, arm] = more
        self.total[row, arm] = total + value

    def fall_short(
        self,
        believed: GaussianCurve,
        rows: NDArray[np.int64],
        arms: NDArray[np.int64],
        log_epochs: Floats,
    ) -> None:
        """Trainings ended on their way: the target is more than those epochs away.

        What that says is a truncated normal; the normal with the same two moments stands for it
        (one pass of expectation propagation; Minka 2001).

        Args:
            believed: What all lanes believed before.
            rows: One per training.
            arms: One per row.
            log_epochs: Trained in vain.
        """
        if not len(rows):
            return
        at = places_of(rows, arms)
        mean, variance = believed.mean[at], believed.variance[at]
        spread = np.sqrt(variance + self.noise_variance(rows_of(rows)))
        z = (log_epochs - mean) / spread
        lift = hazard(z)
        # Of the belief after: how far its mean moves, and by what share its variance shrinks.
        moved = variance / spread * lift
        shrunk = np.clip(variance / spread**2 * lift * (lift - z), 0.0, 1.0 - 1e-9)
        precision = shrunk / (1.0 - shrunk) / variance
        self.stop_precision[at] += precision
        self.stop_total[at] += precision * mean + moved * (1.0 / variance + precision)

    def forget(self, rows: Rows, kept: float) -> None:
        """Weigh runs down to the share ``kept``; how much they scatter stays known."""
        self.sums[:, rows] *= kept

    def shift(self, rows: Rows, by: Floats) -> None:
        """Read all evidence as if every run had taken exp(``by``) (rows,) times the epochs."""
        by = by[:, None]
        self.total[rows] += by * self.runs[rows]
        self.stop_total[rows] += by * self.stop_precision[rows]
