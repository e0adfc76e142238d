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
from joulery.recurring.joulery_beliefs import ANY_JOB, Expectations, JouleryBeliefs
from joulery.recurring.limit_choice import LimitChoice, choose_limit
from joulery.recurring.outlook import Outlook, limit_scores, outlook
from joulery.recurring.planning import Prospects, plan
from joulery.recurring.policy import Actions, Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.objectives import Objective
    from joulery.recurring.draws import Draws, Floats
    from joulery.recurring.inheritance import Inheritance
    from joulery.recurring.lanes import Lanes
    from joulery.recurring.policy import Outcomes

_FIRST, _BEST, _TRY, _PROBE, _UNREACHED, _SCOUT, _HEIR = range(7)

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
class Choice:
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
class Joulery:
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

    def start(self, lanes: Lanes) -> JouleryBeliefs:
        """What is believed before anything happened."""
        if not self.inherited:
            return JouleryBeliefs.start(lanes, self.expectations)
        each = self.inherited * len(lanes) if len(self.inherited) == 1 else self.inherited
        if len(each) != len(lanes):
            raise InvalidValueError(
                f"{len(each)} inheritances for {len(lanes)} jobs",
                remedy="give one for all, or one (or None) per job",
            )
        return JouleryBeliefs.start(lanes, self.expectations, each)

    def begin(self, beliefs: JouleryBeliefs, rows: NDArray[np.int64], actions: Actions) -> None:
        """Note what is under way."""
        beliefs.begin(rows, actions)

    def learn(self, beliefs: JouleryBeliefs, outcomes: Outcomes) -> None:
        """Fold in how actions ended."""
        beliefs.learn(outcomes)

    def decide(
        self,
        beliefs: JouleryBeliefs,
        rows: NDArray[np.int64],
        draws: Draws,  # noqa: ARG002 - what is under way is foreseen, so no dice are needed
    ) -> Actions:
        """The next action of each row."""
        view = outlook(beliefs, rows, self.objective)
        choice = self._choose(beliefs, rows, view)
        slice_cost = self.tuning.slice_seconds * _cost_rate(beliefs, rows, choice.arm)
        limits = self._limits(beliefs, rows, view, choice, slice_cost)
        probe = self._pays_to_probe(beliefs, rows, choice, slice_cost)
        ceiling = choice.ceiling + limits.extra * slice_cost
        held = np.arange(limits.measure.shape[1])[None, :] == limits.hold[:, None]
        return Actions(
            kind=np.where(probe, Kind.PROBE, Kind.TRAIN),
            arm=choice.arm,
            limit=np.where(probe, -1, limits.hold),
            ceiling=np.where(probe, np.inf, np.minimum(ceiling, choice.cap)),
            why=np.where(probe, _PROBE, choice.why),
            probe_limits=np.where(probe[:, None], held, limits.measure),
        )

    def _choose(self, beliefs: JouleryBeliefs, rows: NDArray[np.int64], view: Outlook) -> Choice:
        """Which batch size to train next, and how far to go with it."""
        own = np.arange(len(rows))
        proven = beliefs.proven(rows)
        unproven = np.asarray(~proven.any(axis=1))
        prospects, best = self.tuning.prospects, view.best
        lessons = None if view.bounded is None else view.bounded.lessons
        worth = plan(view.mean, view.covariance, view.noise, best, prospects, lessons)
        best_cost = view.expected_cost()[own, best]
        blank = unproven & ~beliefs.profiles.measured(rows).any(axis=1)
        dear = np.exp(view.log_epoch_cost) > prospects.dearest_try * best_cost[:, None]
        # Runs that overlap cannot learn from one another, so one try of a batch size at a time.
        busy = beliefs.under_way[rows] > 0
        value = np.where(dear | busy, -np.inf, worth.value)
        value[own, best] = worth.value[own, best]
        begun = self._before_success(beliefs, rows, worth.expected, blank)
        arm = np.where(unproven, begun, value.argmax(axis=1))
        tries = ~unproven & (arm != best)
        cap = np.where(tries, prospects.dearest_try, self.tuning.patience) * best_cost
        # Before the first success there is nothing to fall back on, so nothing is stopped.
        cap = np.where(unproven, np.inf, cap)
        stop = np.where(tries, worth.stop[own, arm], np.inf)
        first = np.where(arm == beliefs.lanes.default[rows], _FIRST, _SCOUT)
        first = np.where(beliefs.informed[rows], _HEIR, first)
        why = np.where(unproven, np.where(blank, first, _UNREACHED), np.where(tries, _TRY, _BEST))
        return Choice(arm, tries, best_cost, cap, view.ceiling(arm, stop, cap), why)

    def _before_success(
        self,
        beliefs: JouleryBeliefs,
        rows: NDArray[np.int64],
        expected: Floats,
        blank: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """What to run while no batch size has reached the target: the default, if all is blank.

        Of many submissions at once a few scout other batch sizes: they would all end before what
        one of them shows can help the rest.
        """
        own = np.arange(len(rows))
        default = beliefs.lanes.default[rows]
        main = np.where(blank & ~beliefs.informed[rows], default, expected.argmin(axis=1))
        under_way = beliefs.under_way[rows]
        total = under_way.sum(axis=1)
        scouts = total - under_way[own, main]
        dearest = self.tuning.prospects.dearest_try
        near = expected < dearest * expected[own, main][:, None]
        free = np.where(near & (under_way == 0), expected, np.inf)
        scout = np.isfinite(free.min(axis=1)) & (scouts + 1.0 <= self.tuning.scouts * total)
        return np.where(scout, free.argmin(axis=1), main)

    def _limits(
        self,
        beliefs: JouleryBeliefs,
        rows: NDArray[np.int64],
        view: Outlook,
        choice: Choice,
        slice_cost: Floats,
    ) -> LimitChoice:
        """The power limit to hold, and those to measure on the way."""
        log_seconds, log_watts, time_variance = beliefs.profiles.believed(rows, choice.arm)
        variance = time_variance
        if self.objective is None:
            log_cost = log_seconds + np.log(beliefs.profiles.rate(rows, log_watts))
        elif view.bounded is not None:
            log_cost, variance = view.bounded.limits(choice.arm, time_variance)
        else:
            scores = limit_scores(beliefs, rows, self.objective, beliefs.epochs.mean[rows])
            log_cost = scores[np.arange(len(rows)), choice.arm]
            log_cost = np.where(np.isfinite(log_cost), log_cost, np.nan)
            variance = variance * view.elasticity[np.arange(len(rows)), choice.arm][:, None] ** 2
        share = slice_cost / choice.best_cost
        chosen = choose_limit(log_cost, variance, share, self.tuning.prospects.horizon)
        if view.bounded is None:
            return chosen
        return chosen.with_also(view.bounded.doubtful(choice.arm, time_variance))

    def _pays_to_probe(
        self,
        beliefs: JouleryBeliefs,
        rows: NDArray[np.int64],
        choice: Choice,
        slice_cost: Floats,
    ) -> NDArray[np.bool_]:
        """Whether to find out in seconds what an epoch costs before trying a batch size."""
        own = np.arange(len(rows))
        fresh = ~beliefs.profiles.measured(rows)[own, choice.arm]
        unsure = beliefs.cost.variance[rows, choice.arm] > self.tuning.probe_sd**2
        cheap = slice_cost < self.tuning.probe_share * choice.best_cost
        return choice.tries & fresh & unsure & cheap & (slice_cost > 0)


def _cost_rate(beliefs: JouleryBeliefs, rows: NDArray[np.int64], arm: NDArray[np.int64]) -> Floats:
    """(rows,), joules of cost per second at the dearest limit known; 0 where none is."""
    _, log_watts, _ = beliefs.profiles.believed(rows, arm)
    rate = beliefs.profiles.rate(rows, log_watts)
    return np.asarray(np.where(np.isfinite(rate), rate, 0.0).max(axis=1))
