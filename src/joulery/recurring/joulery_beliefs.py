"""What the policy ``joulery`` believes about each job, folded from events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.recurring.change_watch import ChangeWatch
from joulery.recurring.curve import CurvePrior, octaves_from_default
from joulery.recurring.evidence import Evidence, NoisePrior
from joulery.recurring.inheritance import inherit
from joulery.recurring.policy import End, Kind
from joulery.recurring.profiles import Profiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.recurring.curve import Curve
    from joulery.recurring.draws import Floats
    from joulery.recurring.inheritance import Inheritance
    from joulery.recurring.lanes import Lanes
    from joulery.recurring.policy import Actions, Outcomes

# An epoch's cost that is known this well gains nothing from another look.
_KNOWN_COST_SD = 0.004
# A training that could not afford its first epoch: one costs about twice what it was given.
_REFUSED_EXCESS = 0.7
_REFUSED_SD = 0.3


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


@dataclass(frozen=True, slots=True, eq=False)
class JouleryBeliefs:
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
        under_way: (lanes, arms), trainings handed out and not yet ended.
        granted: (lanes, arms), ceiling of the latest training, in joules.
        changed: (lanes,), whether a change was ever noticed.
        informed: (lanes,), whether epochs were inherited, so that the default need not be first.
    """

    lanes: Lanes
    expectations: Expectations
    prior_epochs: Curve
    epochs: Curve
    evidence: Evidence
    prior_cost: Curve
    cost: Curve
    cost_value: Floats
    cost_precision: Floats
    profiles: Profiles
    watch: ChangeWatch
    under_way: Floats
    granted: Floats
    changed: NDArray[np.bool_]
    informed: NDArray[np.bool_]

    @classmethod
    def start(
        cls,
        lanes: Lanes,
        expectations: Expectations,
        inherited: Sequence[Inheritance | None] = (),
    ) -> JouleryBeliefs:
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
            profiles=Profiles.start(lanes),
            watch=ChangeWatch.start(len(lanes)),
            under_way=np.zeros(shape),
            granted=np.full(shape, np.inf),
            changed=np.zeros(len(lanes), dtype=bool),
            informed=np.array([one is not None for one in each], dtype=bool),
        )

    def proven(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(rows, arms), batch sizes that have reached the target."""
        return np.asarray(self.evidence.runs[rows] > 0)

    def begin(self, rows: NDArray[np.int64], actions: Actions) -> None:
        """Note what is under way."""
        training = actions.kind == Kind.TRAIN
        at = rows[training], actions.arm[training]
        self.under_way[at] += 1.0
        self.granted[at] = actions.ceiling[training]

    def learn(self, outcomes: Outcomes) -> None:
        """Fold in how actions ended."""
        training = outcomes.kind == Kind.TRAIN
        at = outcomes.lane[training], outcomes.arm[training]
        self.under_way[at] = np.maximum(0.0, self.under_way[at] - 1.0)
        self._learn_costs(outcomes)
        told = training & (outcomes.end != End.ABANDONED) & (outcomes.epochs > 0)
        self._learn_epochs(outcomes, told)

    def _learn_costs(self, outcomes: Outcomes) -> None:
        self.profiles.learn(outcomes)
        lane, arm = outcomes.lane, outcomes.arm
        measured = np.isfinite(outcomes.epoch_seconds).any(axis=1)
        vague = self.cost.covariance[lane, arm, arm] > _KNOWN_COST_SD**2
        refused = (
            (outcomes.kind == Kind.TRAIN) & (outcomes.end == End.STOPPED) & (outcomes.epochs == 0)
        )
        news = np.flatnonzero(measured & vague)
        value, variance = self.profiles.cheapest(lane[news], arm[news])
        self._set_cost(lane[news], arm[news], value, variance)
        dear = np.flatnonzero(refused & ~measured)
        at = lane[dear], arm[dear]
        floor = np.maximum(np.log(self.granted[at]), self.cost.mean[at])
        # Surer every time, so that whatever was believed before, it is not asked for for ever.
        precision = 2.0 * self.cost_precision[at] + 1.0 / _REFUSED_SD**2
        self._set_cost(*at, floor + _REFUSED_EXCESS, 1.0 / precision)

    def _set_cost(
        self, lane: NDArray[np.int64], arm: NDArray[np.int64], value: Floats, variance: Floats
    ) -> None:
        if not len(lane):
            return
        self.cost_value[lane, arm] = value
        self.cost_precision[lane, arm] = 1.0 / variance
        self.cost.replace(
            lane, self.prior_cost.of(lane).given(self.cost_value[lane], self.cost_precision[lane])
        )

    def _learn_epochs(self, outcomes: Outcomes, told: NDArray[np.bool_]) -> None:
        if not told.any():
            return
        lane, arm = outcomes.lane[told], outcomes.arm[told]
        log_epochs = np.log(outcomes.epochs[told])
        reached = outcomes.end[told] == End.REACHED
        if self.expectations.kept_per_run < 1.0:
            self.evidence.forget(lane, np.full(len(lane), self.expectations.kept_per_run))
        self._notice_change(lane, arm, log_epochs, reached)
        self.evidence.reach(lane[reached], arm[reached], log_epochs[reached])
        short = ~reached
        self.evidence.fall_short(lane[short], arm[short], log_epochs[short], self.epochs)
        self._believe(lane)

    def _notice_change(
        self,
        lane: NDArray[np.int64],
        arm: NDArray[np.int64],
        log_epochs: Floats,
        reached: NDArray[np.bool_],
    ) -> None:
        """Compare runs of batch sizes that were run before with what was believed of them."""
        residual = log_epochs - self.epochs.mean[lane, arm]
        # A run that fell short surprises only by having gone on for longer than believed.
        seen = (self.evidence.runs[lane, arm] > 0) & (reached | (residual > 0))
        lane, arm, residual = lane[seen], arm[seen], residual[seen]
        variance = self.epochs.covariance[lane, arm, arm] + self.evidence.noise_variance(lane)
        alarm, shift = self.watch.notice(lane, residual, np.sqrt(variance))
        changed = lane[alarm]
        if not len(changed):
            return
        # The likeliest change is that all batch sizes need more epochs, or fewer, alike.
        self.evidence.shift(changed, shift[alarm])
        kept = np.full(len(changed), self.expectations.kept_after_change)
        self.evidence.forget(changed, kept)
        # Yet each may also have changed on its own, so the curve need not be as smooth any more.
        first = changed[~self.changed[changed]]
        own = self.expectations.change_sd**2 * np.eye(self.cost_value.shape[1])
        self.prior_epochs.covariance[first] += own
        self.changed[first] = True
        self._believe(changed)

    def _believe(self, lane: NDArray[np.int64]) -> None:
        self.epochs.replace(lane, self.prior_epochs.of(lane).given(*self.evidence.sites(lane)))
