"""The policy ``joulery``: explore what may pay, stop what will not, and keep to what is best.

The cost of a run is epochs to the target times the cost of an epoch. Both are believed to be smooth
curves over batch sizes, so every run and every few seconds of measurement inform all batch sizes.
The next training is the one whose cost now, less what it teaches for the recurrences to come, is
least; it is stopped where going on is expected to cost more than starting over with the best.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies._base import ActionKind, Actions
from joulery.jobs.policies._job_batch import at_arm
from joulery.jobs.policies.bayesian._beliefs import BayesianBeliefs
from joulery.jobs.policies.bayesian._forecast import Forecast, forecast
from joulery.jobs.policies.bayesian._limits import also_measure, choose_limit
from joulery.jobs.policies.bayesian._planning import DEFAULT_EXPLORATION, plan
from joulery.jobs.policies.bayesian._warm_start import WarmStart

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies._counter_rng import CounterRng, Floats
    from joulery.jobs.policies._job_batch import JobBatch
    from joulery.jobs.policies.bayesian._limits import LimitChoice
    from joulery.objectives import Objective

_FIRST, _BEST, _TRY, _PROBE, _UNREACHED, _SCOUT, _WARM = range(7)
_SCOUT_STREAM = 0  # stream of random numbers
# Under a bound, which settings keep it has to be learned, too, so that what a run teaches counts as
# over this many times the recurrences. Chosen from 3, 4, 6 and 10 by the sum of regrets
# over the GPU types of You et al.'s traces (NSDI'23).
_BOUND_WEIGHT = 6.0
_SCOUTS = 0.3  # share of the submissions before the first result that leave the default
_PATIENCE = 4.0  # ratio of the cost at which a run of the best is given up to its expected cost
_SLICE_SECONDS = 5.0  # assumed time to measure one setting
_PROBE_SHARE = 0.15  # largest cost of a probe as a share of a run's


@dataclass(frozen=True, slots=True)
class _Choice:
    """The batch size that is trained next, one per row.

    Attributes:
        arm: (rows,), the batch size.
        probe: (rows,), whether it is only measured for seconds.
        best_cost: (rows,), expected cost of the best proven batch size, in joules.
        largest: (rows,), cost that the training may not pass in any case.
        ceiling: (rows,), cost at which it should be stopped, measuring aside.
        reason: (rows,), index of the reason.
    """

    arm: NDArray[np.int64]
    probe: NDArray[np.bool_]
    best_cost: Floats
    largest: Floats
    ceiling: Floats
    reason: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BayesianPolicy:
    """Joulery's policy for recurring jobs.

    Attributes:
        objective: Objective to minimise over whole runs; None for each job's cost.
        warm_start: Results of another job to start from; None for none.
    """

    objective: Objective | None = None
    warm_start: WarmStart | None = None

    begin = staticmethod(BayesianBeliefs.begin)
    learn = staticmethod(BayesianBeliefs.learn)
    name = "joulery"
    version = 2
    reasons = (
        "the default: nothing is known yet",
        "the least expected cost",
        "may be better than the best so far, and what it teaches is worth its cost",
        "seconds of measuring show what an epoch costs before it is trained",
        "nothing has reached the target yet: this is likeliest to, for its cost",
        "the first results are still to come: a few submissions look beyond the default",
        "the least expected cost by the warm start",
    )

    def start(self, jobs: JobBatch) -> BayesianBeliefs:
        """The beliefs before anything happened."""
        return BayesianBeliefs.start(jobs, self.warm_start)

    def decide(self, beliefs: BayesianBeliefs, rows: NDArray[np.int64], rng: CounterRng) -> Actions:
        """The next action of each row."""
        view = forecast(beliefs, rows, self.objective)
        choice = self._choose(beliefs, rows, rng, view)
        limits, slice_cost = self._limits(beliefs, rows, view, choice.arm, choice.best_cost)
        ceiling = np.minimum(choice.ceiling + limits.extra * slice_cost, choice.largest)
        # A probe measures the limit that a training would hold.
        probe, current = choice.probe, np.arange(limits.measure.shape[1]) == limits.hold[:, None]
        return Actions(
            kind=np.where(probe, int(ActionKind.PROBE), int(ActionKind.TRAIN)),
            arm=choice.arm,
            limit=np.where(probe, -1, limits.hold),
            ceiling=np.where(probe, np.inf, ceiling),
            reason=np.where(probe, _PROBE, choice.reason),
            probe_limits=np.where(probe[:, None], current, limits.measure),
        )

    def limit_of(
        self, beliefs: BayesianBeliefs, rows: NDArray[np.int64], arm: NDArray[np.int64]
    ) -> LimitChoice:
        """The limits that a training of ``arm`` would hold and measure, had it been chosen.

        Changes nothing, and draws no random numbers.
        """
        view = forecast(beliefs, rows, self.objective)
        return self._limits(beliefs, rows, view, arm, view.expected_cost(view.best))[0]

    def experience(self, beliefs: BayesianBeliefs) -> WarmStart:
        """The epochs that the first job's trainings have shown, its own warm start included."""
        start = WarmStart.of(beliefs)
        return start if self.warm_start is None else start.extended(self.warm_start)

    def believed_costs(
        self, beliefs: BayesianBeliefs, rows: NDArray[np.int64]
    ) -> tuple[Floats, Floats, Floats]:
        """(rows, arms), cost of a whole run in joules: one sigma below, median, one above."""
        epochs, cost = beliefs.epochs.of(rows), beliefs.cost.of(rows)
        mean, sd = epochs.mean + cost.mean, np.sqrt(epochs.variance + cost.variance)
        return np.exp(mean - sd), np.exp(mean), np.exp(mean + sd)

    def _limits(
        self,
        beliefs: BayesianBeliefs,
        rows: NDArray[np.int64],
        view: Forecast,
        arm: NDArray[np.int64],
        best_cost: Floats,
    ) -> tuple[LimitChoice, Floats]:
        """The limits of the batch sizes ``arm``; and (rows,), cost in joules to measure a limit."""
        log_seconds, log_watts, variance = beliefs.profiles.believed(rows, arm)
        rate = beliefs.profiles.cost_rate(rows, log_watts)
        slice_cost = self._slice_cost(rate)
        share, horizon = slice_cost / best_cost, DEFAULT_EXPLORATION.horizon
        if view.bounded is not None:
            limits = choose_limit(*view.bounded.limits(arm, variance), share, horizon)
            return also_measure(limits, view.bounded.uncertain_reference(arm, variance)), slice_cost
        if view.scores is None:
            log_cost = log_seconds + np.log(rate)
        else:
            scores = view.scores[at_arm(arm)]
            log_cost = np.where(np.isfinite(scores), scores, np.nan)
            variance = variance * view.elasticity[at_arm(arm)][:, None] ** 2
        return choose_limit(log_cost, variance, share, horizon), slice_cost

    def _choose(
        self, beliefs: BayesianBeliefs, rows: NDArray[np.int64], rng: CounterRng, view: Forecast
    ) -> _Choice:
        """The batch size to train next, and the cost at which to stop it."""
        limits, best = DEFAULT_EXPLORATION, view.best
        if view.bounded is not None:
            limits = replace(limits, horizon=_BOUND_WEIGHT * limits.horizon)
        worth = plan(view.mean, view.covariance, view.noise, best, limits)
        best_cost, stopped = view.expected_cost(best), beliefs.stopped[rows]
        barred = np.exp(view.epoch_cost.mean) > limits.max_cost_ratio * best_cost[:, None]
        # Runs that overlap cannot learn from one another, so one try of a batch size at a time.
        barred |= beliefs.under_way[rows] > 0
        # Every other recurrence, at least, ends with a model. And a try of a job that may just have
        # changed would be compared with runs from before: first the best shows whether it has.
        barred |= (stopped | beliefs.may_have_changed(rows))[:, None]
        barred[at_arm(best)] = False
        value = np.where(barred, -np.inf, worth.value)
        target = value.argmax(axis=1)
        arm = np.clip(target, *beliefs.reach(rows, limits.reach))
        arm = np.where(barred[at_arm(arm)], best, arm)
        reason, largest = np.full(len(rows), _BEST), _PATIENCE * best_cost
        stop = np.full(len(rows), np.inf)
        unproven = view.unproven
        if np.count_nonzero(unproven):
            arm_before, reason_before = self._before_success(beliefs, rows, rng, worth.expected)
            arm = np.where(unproven, arm_before, arm)
            reason = np.where(unproven, reason_before, reason)
        # With nothing to fall back on, or after a training that was stopped, nothing is stopped.
        largest = np.where(unproven | stopped, np.inf, largest)
        probe = (target != best) & ~unproven
        if np.count_nonzero(probe):
            probe &= self._pays_to_probe(beliefs, rows, target, best_cost)
            arm = np.where(probe, target, arm)
        tries = (arm != best) & ~unproven
        if np.count_nonzero(tries):
            reason = np.where(tries, _TRY, reason)
            largest = np.where(tries, limits.max_cost_ratio * best_cost, largest)
            stop = np.where(tries, worth.stop[at_arm(arm)], stop)
        return _Choice(arm, probe, best_cost, largest, view.ceiling(arm, stop, largest), reason)

    def _before_success(
        self, beliefs: BayesianBeliefs, rows: NDArray[np.int64], rng: CounterRng, expected: Floats
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The batch size to run while none has reached the target, and the reason.

        The default, if nothing is known. Of many submissions at once a few scout other batch
        sizes: they would all end before what one of them shows can help the rest. Chance decides
        which: were it always the fourth, a cluster that loses every fourth worker would lose all
        scouts.
        """
        blank = ~beliefs.profiles.measured(rows).any(axis=1)
        default, warm = beliefs.jobs.default[rows], beliefs.warm_started[rows]
        main = np.where(blank & ~warm, default, expected.argmin(axis=1))
        under_way = beliefs.under_way[rows]
        total = under_way.sum(axis=1)
        scouts = total - under_way[at_arm(main)]
        largest = DEFAULT_EXPLORATION.max_cost_ratio * expected[at_arm(main)][:, None]
        free = np.where((expected < largest) & (under_way == 0), expected, np.inf)
        chance = 2.0 * rng.uniform(_SCOUT_STREAM, 1)[:, 0]
        scout = np.isfinite(free.min(axis=1)) & (scouts + chance < _SCOUTS * total)
        arm = np.where(scout, free.argmin(axis=1), main)
        first = np.where(warm, _WARM, np.where(arm == default, _FIRST, _SCOUT))
        return arm, np.where(blank, first, _UNREACHED)

    def _pays_to_probe(
        self,
        beliefs: BayesianBeliefs,
        rows: NDArray[np.int64],
        arm: NDArray[np.int64],
        best_cost: Floats,
    ) -> NDArray[np.bool_]:
        """(rows,), whether to measure an epoch's cost for seconds before training a batch size."""
        fresh = ~beliefs.profiles.measured(rows)[at_arm(arm)]
        _, log_watts, _ = beliefs.profiles.believed(rows, arm)
        slice_cost = self._slice_cost(beliefs.profiles.cost_rate(rows, log_watts))
        cheap = slice_cost < _PROBE_SHARE * best_cost
        return np.asarray(fresh & cheap & (slice_cost > 0))

    def _slice_cost(self, rate: Floats) -> Floats:
        """(rows,), joules of cost to measure the most expensive limit known; 0 where none is."""
        return np.asarray(_SLICE_SECONDS * np.fmax(np.fmax.reduce(rate, axis=1), 0.0))
