"""The policy ``joulery``: try what may pay, stop what will not, and keep to what is best.

What a run costs is epochs to the target times the cost of an epoch. Both are believed to be smooth
curves over batch sizes, so every run and every few seconds of measurement inform all batch sizes.
The next training is the one whose cost now, less what it teaches for the recurrences to come, is
least; it is stopped where going on is expected to cost more than starting over with the best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.jobs.policies.base import ActionKind, Actions
from joulery.jobs.policies.bayesian.beliefs import ANY_JOB, BayesianBeliefs, Expectations
from joulery.jobs.policies.bayesian.forecast import Forecast, forecast
from joulery.jobs.policies.bayesian.limit_choice import choose_limit
from joulery.jobs.policies.bayesian.planning import Prospects, plan
from joulery.jobs.policies.job_batch import own_places, places_of, rows_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies.base import Outcomes
    from joulery.jobs.policies.bayesian.limit_choice import LimitChoice
    from joulery.jobs.policies.counter_rng import CounterRng, Floats
    from joulery.jobs.policies.job_batch import JobBatch
    from joulery.jobs.warm_start import Inheritance
    from joulery.objectives import Objective

_TRAIN, _PROBING = int(ActionKind.TRAIN), int(ActionKind.PROBE)
_FIRST, _BEST, _TRY, _PROBE, _UNREACHED, _SCOUT, _HEIR = range(7)
_LOTS = 0  # stream of random numbers

PROSPECTS = Prospects(horizon=100.0, dearest_try=2.0, trial_runs=3.0)


@dataclass(frozen=True, slots=True)
class Tuning:
    """How bold the policy is.

    Attributes:
        prospects: What a try has to pay for itself in, and how dear it may be.
        scouts: Share of the submissions before the first result that leave the default.
        patience: A run of the best may cost this many times what is expected before it is given up.
        slice_seconds: What measuring one setting is assumed to take.
        probe_share: A probe may cost this share of a run.
        probe_sd: An epoch's cost is probed before a try if it is less sure than this.
    """

    prospects: Prospects = PROSPECTS
    scouts: float = 0.3
    patience: float = 4.0
    slice_seconds: float = 5.0
    probe_share: float = 0.15
    probe_sd: float = 0.05


TUNING = Tuning()


@dataclass(frozen=True, slots=True)
class SettingChoice:
    """Which batch size is trained next, one per row.

    Attributes:
        arm: Its position.
        tries: Whether it is chosen for what it teaches.
        best_cost: Expected running cost of the best proven batch size, in joules.
        cap: Cost that the training may not pass in any case.
        ceiling: Cost at which it should be stopped, measuring aside.
        why: Position in the reasons.
    """

    arm: NDArray[np.int64]
    tries: NDArray[np.bool_]
    best_cost: Floats
    cap: Floats
    ceiling: Floats
    why: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BayesianPolicy:
    """Our default policy for recurring jobs.

    Attributes:
        objective: What to minimise over whole runs; None for each job's cost.
        tuning: How bold it is.
        expectations: What is expected of jobs of which nothing is known.
        inherited: What others have shown: nothing, one for every lane, or one (or None) per lane.
    """

    objective: Objective | None = None
    tuning: Tuning = TUNING
    expectations: Expectations = ANY_JOB
    inherited: tuple[Inheritance | None, ...] = ()

    name = "joulery"
    reasons = (
        "the default: nothing is known yet",
        "the least expected cost",
        "may be better than the best so far, and what it teaches is worth its cost",
        "seconds of measuring tell what an epoch costs before it is trained",
        "nothing has reached the target yet: this is likeliest to, for its cost",
        "the first results are still to come: a few submissions look beyond the default",
        "the least expected cost by epochs that were inherited",
    )

    def start(self, lanes: JobBatch) -> BayesianBeliefs:
        """What is believed before anything happened."""
        if not self.inherited:
            return BayesianBeliefs.start(lanes, self.expectations)
        each = self.inherited * len(lanes) if len(self.inherited) == 1 else self.inherited
        if len(each) != len(lanes):
            raise InvalidValueError(
                f"{len(each)} inheritances for {len(lanes)} jobs",
                remedy="give one for all, or one (or None) per job",
            )
        return BayesianBeliefs.start(lanes, self.expectations, each)

    def begin(self, beliefs: BayesianBeliefs, rows: NDArray[np.int64], actions: Actions) -> None:
        """Note what is under way."""
        beliefs.begin(rows, actions)

    def learn(self, beliefs: BayesianBeliefs, outcomes: Outcomes) -> None:
        """Fold in how actions ended."""
        beliefs.learn(outcomes)

    def decide(
        self, beliefs: BayesianBeliefs, rows: NDArray[np.int64], draws: CounterRng
    ) -> Actions:
        """The next action of each row."""
        view = forecast(beliefs, rows, self.objective)
        choice = self._choose(beliefs, rows, draws, view)
        limits, slice_cost = self._limits(beliefs, rows, view, choice.arm, choice.best_cost)
        ceiling = np.minimum(choice.ceiling + limits.extra * slice_cost, choice.cap)
        trainings = Actions(
            kind=np.full(len(rows), _TRAIN),
            arm=choice.arm,
            limit=limits.hold,
            ceiling=ceiling,
            why=choice.why,
            probe_limits=limits.measure,
        )
        if not np.count_nonzero(choice.tries):
            return trainings
        probe = self._pays_to_probe(beliefs, rows, choice, slice_cost)
        return _probing(trainings, limits.measure, probe) if np.count_nonzero(probe) else trainings

    def limit_of(
        self, beliefs: BayesianBeliefs, rows: NDArray[np.int64], arm: NDArray[np.int64]
    ) -> LimitChoice:
        """What a training of a batch size does with power limits, whichever would be chosen."""
        view = forecast(beliefs, rows, self.objective)
        return self._limits(beliefs, rows, view, arm, view.expected_cost(view.best))[0]

    def _limits(
        self,
        beliefs: BayesianBeliefs,
        rows: NDArray[np.int64],
        view: Forecast,
        arm: NDArray[np.int64],
        best_cost: Floats,
    ) -> tuple[LimitChoice, Floats]:
        """Of the batch sizes ``arm``; and (rows,), what measuring a limit costs in joules."""
        epoch = beliefs.profiles.believed(rows, arm)
        rate = beliefs.profiles.rate(rows_of(rows), epoch[1])
        # Joules of cost per second at the dearest limit known; 0 where none is.
        slice_cost = self.tuning.slice_seconds * np.fmax(np.fmax.reduce(rate, axis=1), 0.0)
        log_cost, variance = self._limit_costs(view, arm, epoch, rate)
        share = slice_cost / best_cost
        limits = choose_limit(log_cost, variance, share, self.tuning.prospects.horizon)
        if view.bounded is not None:
            limits = limits.with_also(view.bounded.doubtful(arm, epoch[2]))
        return limits, slice_cost

    def _choose(
        self, beliefs: BayesianBeliefs, rows: NDArray[np.int64], draws: CounterRng, view: Forecast
    ) -> SettingChoice:
        """Which batch size to train next, and how far to go with it."""
        prospects, best = self.tuning.prospects, view.best
        lessons = None if view.bounded is None else view.bounded.lessons
        worth = plan(view.mean, view.covariance, view.noise, best, prospects, lessons)
        best_cost = view.expected_cost(best)
        barred = np.exp(view.epoch_cost.mean) > prospects.dearest_try * best_cost[:, None]
        # Runs that overlap cannot learn from one another, so one try of a batch size at a time.
        barred |= beliefs.under_way[rows_of(rows)] > 0
        barred[own_places(best)] = False
        arm = np.where(barred, -np.inf, worth.value).argmax(axis=1)
        why, cap, stop = np.full(len(rows), _BEST), self.tuning.patience * best_cost, None
        unproven = view.unproven
        if np.count_nonzero(unproven):
            arm_before, why_before = self._before_success(beliefs, rows, draws, worth.expected)
            arm, why = np.where(unproven, arm_before, arm), np.where(unproven, why_before, why)
            # There is nothing to fall back on, so nothing is stopped.
            cap = np.where(unproven, np.inf, cap)
        tries = (arm != best) & ~unproven
        if np.count_nonzero(tries):
            why = np.where(tries, _TRY, why)
            cap = np.where(tries, prospects.dearest_try * best_cost, cap)
            stop = np.where(tries, worth.stop[own_places(arm)], np.inf)
        return SettingChoice(arm, tries, best_cost, cap, view.ceiling(arm, stop, cap), why)

    def _before_success(
        self, beliefs: BayesianBeliefs, rows: NDArray[np.int64], draws: CounterRng, expected: Floats
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What to run while no batch size has reached the target, and why: the default, if blank.

        Of many submissions at once a few scout other batch sizes: they would all end before what
        one of them shows can help the rest. Lots decide which: were it always the fourth, whoever
        lost every fourth worker would lose all scouts.
        """
        at = rows_of(rows)
        blank = ~beliefs.profiles.measured(at).any(axis=1)
        default, informed = beliefs.lanes.default[at], beliefs.informed[at]
        main = np.where(blank & ~informed, default, expected.argmin(axis=1))
        under_way = beliefs.under_way[at]
        total = under_way.sum(axis=1)
        scouts = total - under_way[own_places(main)]
        dearest = self.tuning.prospects.dearest_try
        near = expected < dearest * expected[own_places(main)][:, None]
        free = np.where(near & (under_way == 0), expected, np.inf)
        lots = 2.0 * draws.uniform(_LOTS, 1)[:, 0]
        scout = np.isfinite(free.min(axis=1)) & (scouts + lots < self.tuning.scouts * total)
        arm = np.where(scout, free.argmin(axis=1), main)
        first = np.where(informed, _HEIR, np.where(arm == default, _FIRST, _SCOUT))
        return arm, np.where(blank, first, _UNREACHED)

    def _limit_costs(
        self,
        view: Forecast,
        arm: NDArray[np.int64],
        epoch: tuple[Floats, Floats, Floats],
        rate: Floats,
    ) -> tuple[Floats, Floats]:
        """(rows, limits), of one batch size: log cost or score; its variance.

        Args:
            view: Of all batch sizes.
            arm: The one of them, by row.
            epoch: Log seconds and watts of one of its epochs, and their variance.
            rate: Joules of cost per second.
        """
        log_seconds, _, variance = epoch
        if view.bounded is not None:
            return view.bounded.limits(arm, variance)
        if view.scores is None or view.elasticity is None:
            return log_seconds + np.log(rate), variance
        at = own_places(arm)
        scores = view.scores[at]
        return (
            np.where(np.isfinite(scores), scores, np.nan),
            variance * view.elasticity[at][:, None] ** 2,
        )

    def _pays_to_probe(
        self,
        beliefs: BayesianBeliefs,
        rows: NDArray[np.int64],
        choice: SettingChoice,
        slice_cost: Floats,
    ) -> NDArray[np.bool_]:
        """Whether to find out in seconds what an epoch costs before trying a batch size."""
        fresh = ~beliefs.profiles.measured(rows_of(rows))[own_places(choice.arm)]
        unsure = beliefs.cost.variance[places_of(rows, choice.arm)] > self.tuning.probe_sd**2
        cheap = slice_cost < self.tuning.probe_share * choice.best_cost
        return np.asarray(choice.tries & fresh & unsure & cheap & (slice_cost > 0))


def _probing(trainings: Actions, measure: NDArray[np.bool_], probe: NDArray[np.bool_]) -> Actions:
    """Measure the limit that a training would hold, for seconds, instead of the training."""
    held = np.arange(measure.shape[1])[None, :] == trainings.limit[:, None]
    return Actions(
        kind=np.where(probe, _PROBING, trainings.kind),
        arm=trainings.arm,
        limit=np.where(probe, -1, trainings.limit),
        ceiling=np.where(probe, np.inf, trainings.ceiling),
        why=np.where(probe, _PROBE, trainings.why),
        probe_limits=np.where(probe[:, None], held, measure),
    )
