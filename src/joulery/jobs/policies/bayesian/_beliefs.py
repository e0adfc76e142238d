"""Beliefs of the policy ``joulery`` about each job, folded from events.

What trainings have shown about epochs is kept as sums from which beliefs follow: sums can be
weighed down when a job has drifted, and read again when the noise of runs turns out to be larger
than expected; a posterior that was updated run by run could do neither.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.cusum import accumulate
from joulery.jobs.policies._base import ActionKind, RunEnd
from joulery.jobs.policies.bayesian._gaussian import CurvePrior, hazard
from joulery.jobs.policies.bayesian._limits import EpochProfiles
from joulery.jobs.policies.bayesian._warm_start import warm_started_curve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies._base import Actions, Outcomes
    from joulery.jobs.policies._counter_rng import Floats
    from joulery.jobs.policies._job_batch import JobBatch
    from joulery.jobs.policies.bayesian._gaussian import GaussianCurve
    from joulery.jobs.policies.bayesian._warm_start import WarmStart

    Indices = NDArray[np.int64]

# As plain numbers, which NumPy compares with ten times faster than with those of an enumeration.
_TRAIN = int(ActionKind.TRAIN)
_REACHED, _STOPPED, _ABANDONED = int(RunEnd.REACHED), int(RunEnd.STOPPED), int(RunEnd.ABANDONED)
# An epoch's cost that is known this well is updated only if it changes by more than the second, and
# of a job whose epochs jumped in cost it is known this well at the other batch sizes; by hand.
_KNOWN_COST_SD, _COST_NEWS, _JUMP_COST_SD = 0.004, 0.01, 0.1
# A training that could not afford its first epoch: one costs about twice its ceiling.
_REFUSED_EXCESS = 0.7
_REFUSED_SD = 0.3
_MOST_LOST = 3.0  # trainings of one batch size that may run at once because others were lost
_STOPPED_NOISE = 2.0  # noise of a run that was stopped over that of one that reached its target
_LARGEST_DEVIATION = 4.0  # of a single run, in standard deviations
# Cumulative sums in their textbook setting: tuned to a shift of one standard deviation, about one
# false alarm in 500 runs. Deviations are clipped, so that it takes
# two runs in a row to raise an alarm, never a single outlier.
_ALLOWANCE = 0.5
_ALARM = 10.0


# Of jobs of which nothing is known: fitted to the epochs (at all recorded targets) and to the epoch
# costs of You et al.'s traces (NSDI'23), each batch size's own deviation and the scatter widened
# where that served jobs left out of the fit, and synthetic ones.
EPOCHS_PRIOR = CurvePrior(
    level=2.3, level_sd=1.2, slope=0.12, slope_sd=0.25, bend=0.07, bend_sd=0.17, local_sd=0.1
)
EPOCH_COST_PRIOR = CurvePrior(
    level=10.0, level_sd=5.0, slope=-0.05, slope_sd=0.27, bend=0.08, bend_sd=0.12, local_sd=0.02
)
NOISE_SD = 0.15  # scatter of log epochs between runs of one batch size: 0.1 is 10 %
NOISE_RUNS = 4.0  # comparisons that this prior of the scatter weighs as much as
# Share of the evidence that still counts after a change was noticed, and standard deviation of each
# batch size's own change of log epochs then; the latter from 0.1, 0.2, 0.35 and 0.6 by the regret
# after all epochs of You et al.'s traces halve or double, and after the optimum moves.
_KEPT_AFTER_CHANGE = 0.05
_CHANGE_SD = 0.35
_KEPT_PER_RUN = 0.995  # share of the evidence that still counts one run later: jobs drift unnoticed
# Log epochs at the default from which on the prior of epochs applies in full, and least share of
# the differences between batch sizes that are expected below: a job of few epochs, such as
# fine-tuning, needs about as many at any batch size.
_LONG_EPOCHS = 3.0
_LEAST_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Evidence:
    """Sums over trainings; arrays change in place.

    Attributes:
        runs: (jobs, arms), number of trainings that reached the target; fractions after forgetting.
        total: (jobs, arms), sum of their log epochs.
        stop_precision: (jobs, arms), precision of the trainings that did not reach the target.
        stop_total: (jobs, arms), that precision times the log epochs that they stand for.
        scatter: (jobs,), sum of squared deviations between runs of the same batch size.
        compared: (jobs,), number of comparisons in that sum.
    """

    runs: Floats
    total: Floats
    stop_precision: Floats
    stop_total: Floats
    scatter: Floats
    compared: Floats

    def noise_variance(self, rows: Indices) -> Floats:
        """(rows,), variance of the log epochs of one run, pooled over batch sizes.

        Only runs of the same batch size are compared, so the curve's shape does not count as noise.
        """
        scatter = NOISE_RUNS * NOISE_SD**2 + self.scatter[rows]
        return np.asarray(scatter / (NOISE_RUNS + self.compared[rows]))

    def observations(self, rows: Indices) -> tuple[Floats, Floats]:
        """(rows, arms): log epochs observed at each batch size, and one over their variance."""
        run_precision = 1.0 / self.noise_variance(rows)[:, None]
        precision = self.runs[rows] * run_precision + self.stop_precision[rows]
        total = self.total[rows] * run_precision + self.stop_total[rows]
        return total / np.maximum(precision, 1e-12), precision

    def reach(self, rows: Indices, arms: Indices, log_epochs: Floats) -> None:
        """Add trainings that reached the target; one per row."""
        runs, total = self.runs[rows, arms], self.total[rows, arms]
        deviation = log_epochs - total / np.maximum(runs, 1e-12)
        # Welford's update: against a mean of few runs, a deviation is partly that mean's own. One
        # run, perhaps the first after a change, may not show more scatter than this.
        largest = _LARGEST_DEVIATION**2 * self.noise_variance(rows)
        more = runs + 1.0
        self.scatter[rows] += runs / more * np.minimum(deviation * deviation, largest)
        self.compared[rows] += np.minimum(runs, 1.0)
        self.runs[rows, arms] = more
        self.total[rows, arms] = total + log_epochs

    def fall_short(
        self, believed: GaussianCurve, rows: Indices, arms: Indices, log_epochs: Floats
    ) -> None:
        """Add trainings that ended before the target: it is more than those epochs away.

        The likelihood is a truncated normal; given what was ``believed`` before, the normal with
        the same two moments stands for it (one pass of expectation propagation; Minka 2001).
        """
        mean, variance = believed.mean[rows, arms], believed.variance[rows, arms]
        # Runs have tails: a single long one must not rule out all batch sizes on its side.
        spread = np.sqrt(variance + _STOPPED_NOISE**2 * self.noise_variance(rows))
        z = (log_epochs - mean) / spread
        lift = hazard(z)
        # Of the posterior: how far its mean moves, and by what share its variance shrinks.
        moved = variance / spread * lift
        shrunk = np.clip(variance / spread**2 * lift * (lift - z), 0.0, 1.0 - 1e-9)
        precision = shrunk / (1.0 - shrunk) / variance
        self.stop_precision[rows, arms] += precision
        self.stop_total[rows, arms] += precision * mean + moved * (1.0 / variance + precision)

    def forget(self, rows: Indices, share: float) -> None:
        """Weigh runs down to the share ``kept``; how much they scatter stays known."""
        for sums in (self.runs, self.total, self.stop_precision, self.stop_total):
            sums[rows] *= share

    def shift(self, rows: Indices, by: Floats) -> None:
        """Read all evidence as if every run had taken exp(``by``) (rows,) times the epochs."""
        by = by[:, None]
        self.total[rows] += by * self.runs[rows]
        self.stop_total[rows] += by * self.stop_precision[rows]


def detect_changes(
    deviations: Floats, rows: Indices, residual: Floats, spread: Floats
) -> tuple[Indices, Floats]:
    """Find jobs that no longer train as they used to.

    Args:
        deviations: (jobs, 2, 3), changed in place; upward and downward: the cumulative sum of
            deviations; the sum of the changes of log epochs since it left zero; the number of
            those.
        rows: Job of each run.
        residual: Log epochs above what was believed.
        spread: Standard deviation of what was believed.

    Returns:
        Jobs of the runs that raise an alarm, and the shift of log epochs there.
    """
    sums = accumulate(
        deviations[rows, :, 0], residual / spread, allowance=_ALLOWANCE, largest=_LARGEST_DEVIATION
    )
    under_way = sums > 0.0
    deviations[rows, :, 0] = sums
    deviations[rows, :, 1] = (deviations[rows, :, 1] + residual[:, None]) * under_way
    deviations[rows, :, 2] = (deviations[rows, :, 2] + 1.0) * under_way
    changed = rows[(sums > _ALARM).any(axis=1)]
    state = deviations[changed]
    side = state[:, :, 0].argmax(axis=1)
    own = np.arange(len(changed))
    deviations[changed] = 0.0
    return changed, state[own, side, 1] / state[own, side, 2]


@dataclass(frozen=True, slots=True, eq=False)
class BayesianBeliefs:
    """Beliefs of every job; arrays change in place.

    Attributes:
        jobs: The jobs.
        prior_epochs: Log epochs to the target before any training.
        epochs: The same, given the evidence.
        evidence: Sums over trainings.
        prior_cost: Log cost of an epoch at its best limit, before any measurement.
        cost: The same, given measurements.
        cost_value: (jobs, arms), measured log cost of an epoch.
        cost_precision: (jobs, arms), one over its variance; 0 where not measured.
        profiles: Time and power of epochs.
        deviations: (jobs, 2, 3), what ``detect_changes`` has seen so far.
        granted: (jobs, arms), ceiling of the latest training, in joules.
        changed: (jobs,), whether a change was ever noticed.
        warm_started: (jobs,), whether epochs of another job were given, so that the default need
            not be first.
        running: (jobs, arms), all trainings handed out and not yet ended.
        lost: (jobs, arms), trainings that were abandoned since the last one that ended.
        stopped: (jobs,), whether the last training that ended was stopped at its ceiling.
        age: (jobs, arms), trainings of the job that have ended since the last one of it.
    """

    jobs: JobBatch
    prior_epochs: GaussianCurve
    epochs: GaussianCurve
    evidence: Evidence
    prior_cost: GaussianCurve
    cost: GaussianCurve
    cost_value: Floats
    cost_precision: Floats
    profiles: EpochProfiles
    deviations: Floats
    granted: Floats
    changed: NDArray[np.bool_]
    warm_started: NDArray[np.bool_]
    running: Floats
    lost: Floats
    stopped: NDArray[np.bool_]
    age: Floats

    @classmethod
    def start(cls, jobs: JobBatch, warm_start: WarmStart | None = None) -> BayesianBeliefs:
        """Beliefs before any event."""
        shape = (len(jobs), jobs.valid.shape[1])
        limits = jobs.limits_watts.shape[1]
        epochs = warm_started_curve(EPOCHS_PRIOR, jobs, warm_start)
        cost = EPOCH_COST_PRIOR.curve(jobs.octaves)
        return cls(
            jobs=jobs,
            prior_epochs=epochs,
            epochs=copy.deepcopy(epochs),
            evidence=Evidence(*np.zeros((4, *shape)), *np.zeros((2, shape[0]))),
            prior_cost=cost,
            cost=copy.deepcopy(cost),
            cost_value=np.zeros(shape),
            cost_precision=np.zeros(shape),
            profiles=EpochProfiles(jobs, np.zeros((*shape, 2, limits)), np.zeros((*shape, limits))),
            deviations=np.zeros((len(jobs), 2, 3)),
            granted=np.full(shape, np.inf),
            changed=np.zeros(len(jobs), dtype=bool),
            warm_started=np.full(len(jobs), warm_start is not None),
            running=np.zeros(shape),
            lost=np.zeros(shape),
            stopped=np.zeros(len(jobs), dtype=bool),
            age=np.zeros(shape),
        )

    @property
    def under_way(self) -> Floats:
        """(jobs, arms), trainings not yet ended, beyond as many as were lost of late."""
        return np.maximum(self.running - self.lost, 0.0)

    def may_have_changed(self, rows: Indices) -> NDArray[np.bool_]:
        """(rows,), whether runs deviate as much as a single one can, or more, short of an alarm."""
        return np.asarray(
            self.deviations[rows, :, 0].max(axis=1) >= _LARGEST_DEVIATION - _ALLOWANCE
        )

    def begin(self, rows: Indices, actions: Actions) -> None:
        """Note that trainings are under way."""
        training = actions.kind == _TRAIN
        row, arm = rows[training], actions.arm[training]
        self.running[row, arm] += 1.0
        self.granted[row, arm] = actions.ceiling[training]

    def learn(self, outcomes: Outcomes) -> None:
        """Fold in how actions ended."""
        training = outcomes.kind == _TRAIN
        job, arm, end = outcomes.job[training], outcomes.arm[training], outcomes.end[training]
        self.running[job, arm] = np.maximum(self.running[job, arm] - 1.0, 0.0)
        lost = np.minimum(self.lost[job, arm] + 1.0, _MOST_LOST)
        self.lost[job, arm] = np.where(end == _ABANDONED, lost, 0.0)
        self.stopped[job] = np.where(end == _ABANDONED, self.stopped[job], end == _STOPPED)
        self._learn_costs(outcomes)
        counts = training & (outcomes.end != _ABANDONED) & (outcomes.epochs > 0)
        if np.count_nonzero(counts):
            job, arm = outcomes.job[counts], outcomes.arm[counts]
            reached = outcomes.end[counts] == _REACHED
            self._learn_epochs(job, arm, np.log(outcomes.epochs[counts]), reached)
            self.age[job] += 1.0
            self.age[job, arm] = 0.0

    def reach(self, rows: Indices, octaves: float) -> tuple[Indices, Indices]:
        """(rows,): smallest and largest batch size within so far of those that were or are trained.

        The next one on either side always is; all are where none was trained.
        """
        evidence = self.evidence
        trained = (evidence.runs + evidence.stop_precision + self.under_way)[rows] > 0
        valid = self.jobs.valid[rows]
        trained = np.where(trained.any(axis=1, keepdims=True), trained, valid)
        last = valid.sum(axis=1) - 1
        low, high = trained.argmax(axis=1), trained.shape[1] - 1 - trained[:, ::-1].argmax(axis=1)
        sizes = np.where(valid, np.log2(self.jobs.batch_sizes[rows]), np.inf)
        own = np.arange(len(rows))
        near = sizes >= (sizes[own, low] - octaves)[:, None]
        far = sizes > (sizes[own, high] + octaves)[:, None]
        lowest = np.minimum(near.argmax(axis=1), np.maximum(low - 1, 0))
        highest = np.maximum(last - (far & valid).sum(axis=1), np.minimum(high + 1, last))
        return lowest, highest

    def _learn_costs(self, outcomes: Outcomes) -> None:
        jumps = self.profiles.learn(outcomes)
        job, arm = outcomes.job, outcomes.arm
        measured = np.asarray(np.isfinite(outcomes.epoch_seconds).any(axis=1))
        if np.count_nonzero(measured):
            at = job[measured], arm[measured]
            self._learn_cheapest(*at, jumps[measured])
        refused = (outcomes.kind == _TRAIN) & (outcomes.end == _STOPPED) & (outcomes.epochs == 0)
        unmeasured = refused & ~measured
        if np.count_nonzero(unmeasured):
            self._refuse(job[unmeasured], arm[unmeasured])

    def _learn_cheapest(self, job: Indices, arm: Indices, jumps: NDArray[np.bool_]) -> None:
        """Update what an epoch costs at its best limit; where a job jumped, at all batch sizes."""
        value, variance = self.profiles.cheapest(job, arm)
        rise = value - self.cost_value[job, arm]
        if np.count_nonzero(jumps):
            row = job[jumps]
            self.cost_value[row] += rise[jumps][:, None]
            self.cost_precision[row] = np.minimum(self.cost_precision[row], 1.0 / _JUMP_COST_SD**2)
        unsure = self.cost.variance[job, arm] > _KNOWN_COST_SD**2
        news = jumps | unsure | (np.abs(rise) > _COST_NEWS)
        if np.count_nonzero(news):
            self._set_cost(job[news], arm[news], value[news], variance[news])

    def _refuse(self, job: Indices, arm: Indices) -> None:
        """Fold in trainings that could not afford their first epoch."""
        granted, mean = self.granted[job, arm], self.cost.mean[job, arm]
        # A training that was refused without a ceiling of its own was refused by another's.
        floor = np.where(np.isfinite(granted), np.maximum(np.log(granted), mean), mean)
        # More certain every time, so that whatever was believed before, it ends.
        precision = 2.0 * self.cost_precision[job, arm] + 1.0 / _REFUSED_SD**2
        self._set_cost(job, arm, floor + _REFUSED_EXCESS, 1.0 / precision)

    def _set_cost(self, job: Indices, arm: Indices, value: Floats, variance: Floats) -> None:
        self.cost_value[job, arm] = value
        self.cost_precision[job, arm] = 1.0 / variance
        posterior = self.prior_cost.of(job).given(self.cost_value[job], self.cost_precision[job])
        self.cost.replace(job, posterior)

    def _learn_epochs(
        self, job: Indices, arm: Indices, log_epochs: Floats, reached: NDArray[np.bool_]
    ) -> None:
        self.evidence.forget(job, _KEPT_PER_RUN)
        self._notice_change(job, arm, log_epochs, reached)
        self.evidence.reach(job[reached], arm[reached], log_epochs[reached])
        short = ~reached
        if np.count_nonzero(short):
            self.evidence.fall_short(self.epochs, job[short], arm[short], log_epochs[short])
        self._update_epochs(job)

    def _notice_change(
        self, job: Indices, arm: Indices, log_epochs: Floats, reached: NDArray[np.bool_]
    ) -> None:
        """Compare runs of batch sizes that were run before with what was believed of them."""
        residual = log_epochs - self.epochs.mean[job, arm]
        # A run that fell short deviates only by having gone on for longer than believed.
        comparable = (self.evidence.runs[job, arm] > 0) & (reached | (residual > 0))
        job, arm = job[comparable], arm[comparable]
        noise = self.evidence.noise_variance(job)
        spread = np.sqrt(self.epochs.covariance[job, arm, arm] + noise)
        changed, shift = detect_changes(self.deviations, job, residual[comparable], spread)
        if len(changed):
            self._change(changed, shift)

    def _change(self, job: Indices, shift: Floats) -> None:
        """Adapt the beliefs of jobs that no longer train as they used to."""
        # The likeliest change is that all batch sizes need more epochs, or fewer, alike.
        self.evidence.shift(job, shift)
        self.evidence.forget(job, _KEPT_AFTER_CHANGE)
        # Yet each may also have changed on its own, so the curve need not be as smooth any more.
        first = job[~self.changed[job]]
        own = _CHANGE_SD**2 * np.eye(self.cost_value.shape[1])
        self.prior_epochs.covariance[first] += own
        self.changed[first] = True
        self._update_epochs(job)

    def _update_epochs(self, job: Indices) -> None:
        value, precision = self.evidence.observations(job)
        at = np.arange(len(job)), self.jobs.default[job]
        level = np.where(precision[at] > 0, value[at], self.epochs.mean[job, at[1]])
        share = np.clip(level / _LONG_EPOCHS, _LEAST_SHARE, 1.0)
        share[self.warm_started[job] | self.changed[job]] = 1.0
        flat = EPOCHS_PRIOR.level, EPOCHS_PRIOR.level_sd**2
        prior = self.prior_epochs.of(job).flattened(*flat, share)
        self.epochs.replace(job, prior.given(value, precision))
