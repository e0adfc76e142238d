"""What the policy ``joulery`` believes about each job, folded from events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies.base import ActionKind, RunEnd
from joulery.jobs.policies.bayesian.change_watch import ChangeWatch
from joulery.jobs.policies.bayesian.curve import CurvePrior, octaves_from_default
from joulery.jobs.policies.bayesian.evidence import Evidence, NoisePrior
from joulery.jobs.policies.epoch_profiles import EpochProfiles
from joulery.jobs.policies.job_batch import only, places_of, rows_of, single
from joulery.jobs.warm_start import inherit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.jobs.policies.base import Actions, Outcomes
    from joulery.jobs.policies.bayesian.curve import GaussianCurve
    from joulery.jobs.policies.counter_rng import Floats
    from joulery.jobs.policies.job_batch import JobBatch, Rows
    from joulery.jobs.warm_start import Inheritance

# As plain numbers, which NumPy compares with ten times faster than with those of an enumeration.
_TRAIN = int(ActionKind.TRAIN)
_REACHED, _STOPPED, _ABANDONED = int(RunEnd.REACHED), int(RunEnd.STOPPED), int(RunEnd.ABANDONED)
# An epoch's cost that is known this well gains nothing from another look.
_KNOWN_COST_SD = 0.004
# A training that could not afford its first epoch: one costs about twice what it was given.
_REFUSED_EXCESS = 0.7
_REFUSED_SD = 0.3
_MOST_LOST = 3.0  # trainings of one batch size that are let try at once because others were lost


# Of any job of which nothing is known: fitted to the epochs (at all recorded targets) and to the
# epoch costs of You et al.'s traces (NSDI'23), each batch size's own deviation and the scatter
# widened where that served jobs left out of the fit, and synthetic ones.
ANY_EPOCHS = CurvePrior(
    level=2.3, level_sd=1.2, slope=0.12, slope_sd=0.25, bend=0.07, bend_sd=0.17, local_sd=0.1
)
ANY_EPOCH_COST = CurvePrior(
    level=10.0, level_sd=5.0, slope=-0.05, slope_sd=0.27, bend=0.08, bend_sd=0.12, local_sd=0.02
)
ANY_NOISE = NoisePrior(sd=0.15, runs=4.0)


@dataclass(frozen=True, slots=True)
class Expectations:
    """What is expected of a job of which nothing is known.

    Attributes:
        epochs: To the target, over batch sizes.
        epoch_cost: At the best power limit, in joules, over batch sizes.
        noise: Of epochs between runs.
        kept_after_change: Share of the evidence that still counts after a change was noticed.
        change_sd: How far a change may move each batch size's log epochs apart from the rest.
        kept_per_run: Share of the evidence that still counts one run later: jobs drift unnoticed.
    """

    epochs: CurvePrior = ANY_EPOCHS
    epoch_cost: CurvePrior = ANY_EPOCH_COST
    noise: NoisePrior = ANY_NOISE
    kept_after_change: float = 0.05
    change_sd: float = 1.0
    kept_per_run: float = 0.995


ANY_JOB = Expectations()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class BayesianBeliefs:
    """Beliefs of every lane; arrays change in place.

    Attributes:
        lanes: The jobs.
        expectations: What the beliefs started from.
        prior_epochs: Log epochs to the target before any training.
        epochs: The same, given the evidence.
        evidence: From trainings.
        prior_cost: Log cost of an epoch at its best limit, before any measurement.
        cost: The same, given measurements.
        cost_value: (lanes, arms), measured log cost of an epoch.
        cost_precision: (lanes, arms), one over its variance; 0 where not measured.
        profiles: Time and power of epochs.
        watch: For changes.
        under_way: (lanes, arms), trainings handed out and not yet ended, beyond those that take the
            place of lost ones.
        granted: (lanes, arms), ceiling of the latest training, in joules.
        changed: (lanes,), whether a change was ever noticed.
        informed: (lanes,), whether epochs were inherited, so that the default need not be first.
        running: (lanes, arms), all trainings handed out and not yet ended.
        lost: (lanes, arms), trainings of which nothing was heard since one was heard of.
    """

    lanes: JobBatch
    expectations: Expectations
    prior_epochs: GaussianCurve
    epochs: GaussianCurve
    evidence: Evidence
    prior_cost: GaussianCurve
    cost: GaussianCurve
    cost_value: Floats
    cost_precision: Floats
    profiles: EpochProfiles
    watch: ChangeWatch
    under_way: Floats
    granted: Floats
    changed: NDArray[np.bool_]
    informed: NDArray[np.bool_]
    running: Floats
    lost: Floats

    @classmethod
    def start(
        cls,
        lanes: JobBatch,
        expectations: Expectations,
        inherited: Sequence[Inheritance | None] = (),
    ) -> BayesianBeliefs:
        """Before anything happened in these jobs; ``inherited`` has one entry per lane, or none."""
        shape = (len(lanes), lanes.valid.shape[1])
        octaves = octaves_from_default(lanes)
        each = inherited or [None] * len(lanes)
        prior = inherit(expectations.epochs, lanes, each)
        prior_cost = expectations.epoch_cost.curve(octaves)
        return cls(
            lanes=lanes,
            expectations=expectations,
            prior_epochs=prior,
            epochs=prior.copy(),
            evidence=Evidence.start(expectations.noise, shape),
            prior_cost=prior_cost,
            cost=prior_cost.copy(),
            cost_value=np.zeros(shape),
            cost_precision=np.zeros(shape),
            profiles=EpochProfiles.start(lanes),
            watch=ChangeWatch.start(len(lanes)),
            under_way=np.zeros(shape),
            granted=np.full(shape, np.inf),
            changed=np.zeros(len(lanes), dtype=bool),
            informed=np.array([one is not None for one in each], dtype=bool),
            running=np.zeros(shape),
            lost=np.zeros(shape),
        )

    def proven(self, rows: Rows) -> NDArray[np.bool_]:
        """(rows, arms), batch sizes that have reached the target."""
        return np.asarray(self.evidence.runs[rows] > 0)

    def begin(self, rows: NDArray[np.int64], actions: Actions) -> None:
        """Note what is under way."""
        training = only(actions.kind == _TRAIN, rows, actions.arm, actions.ceiling)
        if len(training[0]):
            row, arm, ceiling = single(*training)
            self.running[row, arm] += 1.0
            self._expect(row, arm)
            self.granted[row, arm] = ceiling

    def learn(self, outcomes: Outcomes) -> None:
        """Fold in how actions ended."""
        training = outcomes.kind == _TRAIN
        ended = only(training, outcomes.lane, outcomes.arm, outcomes.end)
        if len(ended[0]):
            row, arm, end = single(*ended)
            self.running[row, arm] = np.maximum(self.running[row, arm] - 1.0, 0.0)
            lost = np.minimum(self.lost[row, arm] + 1.0, _MOST_LOST)
            self.lost[row, arm] = np.where(end == _ABANDONED, lost, 0.0)
            self._expect(row, arm)
        self._learn_costs(outcomes)
        told = training & (outcomes.end != _ABANDONED) & (outcomes.epochs > 0)
        if np.count_nonzero(told):
            self._learn_epochs(
                *only(told, outcomes.lane, outcomes.arm, outcomes.epochs, outcomes.end)
            )

    def _expect(self, row: Rows | np.int64, arm: NDArray[np.int64] | np.int64) -> None:
        """As many more may run as were lost of late: those who try it next may be lost, too."""
        running, lost = self.running[row, arm], self.lost[row, arm]
        self.under_way[row, arm] = np.maximum(running - lost, 0.0)

    def _learn_costs(self, outcomes: Outcomes) -> None:
        self.profiles.learn(outcomes)
        lane, arm = outcomes.lane, outcomes.arm
        measured = np.asarray(np.isfinite(outcomes.epoch_seconds).any(axis=1))
        news = measured & (self.cost.variance[places_of(lane, arm)] > _KNOWN_COST_SD**2)
        if np.count_nonzero(news):
            told, what = only(news, lane, arm)
            self._set_cost(told, what, *self.profiles.cheapest(told, what))
        if np.count_nonzero(measured) == len(measured):
            return
        refused = (outcomes.kind == _TRAIN) & (outcomes.end == _STOPPED) & (outcomes.epochs == 0)
        dear = refused & ~measured
        if np.count_nonzero(dear):
            self._refuse(*only(dear, lane, arm))

    def _refuse(self, lane: NDArray[np.int64], arm: NDArray[np.int64]) -> None:
        """Trainings could not afford their first epoch."""
        at = places_of(lane, arm)
        granted, mean = self.granted[at], self.cost.mean[at]
        # Who was refused without a ceiling was refused by somebody else's.
        floor = np.where(np.isfinite(granted), np.maximum(np.log(granted), mean), mean)
        # Surer every time, so that whatever was believed before, it is not asked for for ever.
        precision = 2.0 * self.cost_precision[at] + 1.0 / _REFUSED_SD**2
        self._set_cost(lane, arm, floor + _REFUSED_EXCESS, 1.0 / precision)

    def _set_cost(
        self, lane: NDArray[np.int64], arm: NDArray[np.int64], value: Floats, variance: Floats
    ) -> None:
        at, rows = places_of(lane, arm), rows_of(lane)
        self.cost_value[at] = value
        self.cost_precision[at] = 1.0 / variance
        seen = self.cost_value[rows], self.cost_precision[rows]
        self.cost.replace(rows, self.prior_cost.of(rows).given(*seen))

    def _learn_epochs(
        self,
        lane: NDArray[np.int64],
        arm: NDArray[np.int64],
        epochs: Floats,
        end: NDArray[np.int64],
    ) -> None:
        rows, log_epochs, reached = rows_of(lane), np.log(epochs), end == _REACHED
        if self.expectations.kept_per_run < 1.0:
            self.evidence.forget(rows, self.expectations.kept_per_run)
        self._notice_change(lane, arm, log_epochs, reached)
        self.evidence.reach(*only(reached, lane, arm, log_epochs))
        self.evidence.fall_short(self.epochs, *only(~reached, lane, arm, log_epochs))
        self._believe(rows)

    def _notice_change(
        self,
        lane: NDArray[np.int64],
        arm: NDArray[np.int64],
        log_epochs: Floats,
        reached: NDArray[np.bool_],
    ) -> None:
        """Compare runs of batch sizes that were run before with what was believed of them."""
        row, at, value, success = single(lane, arm, log_epochs, reached)
        residual = value - self.epochs.mean[row, at]
        # A run that fell short surprises only by having gone on for longer than believed.
        seen = (self.evidence.runs[row, at] > 0) & (success | (residual > 0))
        some = np.count_nonzero(seen)
        if not some:
            return
        if some < len(lane):
            row, at, residual = row[seen], at[seen], residual[seen]
        noise = self.evidence.noise_variance(row)
        spread = np.sqrt(self.epochs.covariance[row, at, at] + noise)
        loud, shift = self.watch.notice(row, residual, spread)
        if len(loud):
            self._change(np.atleast_1d(row)[loud], shift)

    def _change(self, lane: NDArray[np.int64], shift: Floats) -> None:
        """Jobs no longer train as they used to."""
        # The likeliest change is that all batch sizes need more epochs, or fewer, alike.
        self.evidence.shift(lane, shift)
        self.evidence.forget(lane, self.expectations.kept_after_change)
        # Yet each may also have changed on its own, so the curve need not be as smooth any more.
        first = lane[~self.changed[lane]]
        own = self.expectations.change_sd**2 * np.eye(self.cost_value.shape[1])
        self.prior_epochs.covariance[first] += own
        self.changed[first] = True
        self._believe(lane)

    def _believe(self, rows: Rows) -> None:
        self.epochs.replace(rows, self.prior_epochs.of(rows).given(*self.evidence.sites(rows)))
