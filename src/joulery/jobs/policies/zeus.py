"""The policy ``zeus``: pruning exploration, then Gaussian Thompson sampling (NSDI'23, Algs. 1-3).

As in the paper's artifact: a training may cost ``beta`` times the least that any recurrence has
cost, and that least never decays; the variance of a batch size is that of its own costs, stopped
attempts included; a batch size beyond a failure is dropped for good; a training that cannot afford
one epoch counts as a cost of a hundred ceilings. While an exploring training is under way, others
run the best batch size known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.jobs.policies.base import ActionKind, Actions, RunEnd
from joulery.jobs.policies.costs import ArmCosts
from joulery.jobs.policies.exploration import Exploration
from joulery.units import finite

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies.base import Outcomes
    from joulery.jobs.policies.counter_rng import CounterRng, Floats
    from joulery.jobs.policies.job_batch import JobBatch

_EXPLORE, _BEST_KNOWN, _SAMPLE = range(3)
_ROUNDS = 2
_SAMPLES = 0  # the stream of draws
_UNAFFORDABLE = 100.0
# Recurrences of one job whose costs are added up at the same time.
_OPEN_RECURRENCES = 256
_LONGEST_WINDOW = 10_000  # all of it is kept for every batch size


@dataclass(slots=True, eq=False)
class ZeusBeliefs:
    """What is believed about each lane.

    Attributes:
        exploration: Where each lane stands in its pruning rounds.
        costs: Per lane and batch size.
        least: (lanes,), least cost of a recurrence so far; infinite before the first.
        best: (lanes,), batch size of that recurrence's last training.
        spent: (lanes, open recurrences), cost so far of recurrences under way.
        spent_by: (lanes, open recurrences), which recurrence that is.
    """

    exploration: Exploration
    costs: ArmCosts
    least: Floats
    best: NDArray[np.int64]
    spent: Floats
    spent_by: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Zeus:
    """Zeus as published.

    Attributes:
        beta: A training may cost this many times the least cost so far; infinite for no ceiling.
        window: Only the latest costs of a batch size count; 0 for all.
        prior_mean: Of every batch size's cost in joules.
        prior_precision: How much that counts, in 1/joules²; 0 for not at all.
    """

    beta: float = 2.0
    window: int = 0
    prior_mean: float = 0.0
    prior_precision: float = 0.0

    name = "zeus"
    reasons = (
        "exploring from the default batch size",
        "the best known, while another explores",
        "least cost in a draw from the beliefs",
    )

    def __post_init__(self) -> None:
        if not self.beta > 1:
            raise InvalidValueError(
                f"beta must be above 1, not {self.beta:g}",
                remedy="give 2, or inf to never stop a training",
            )
        if not self.window <= _LONGEST_WINDOW or self.window % 1:
            raise InvalidValueError(
                f"a window of {self.window:g} is no number of recurrences",
                remedy=f"give a whole number up to {_LONGEST_WINDOW}, or 0 for all",
            )
        if self.window < 0 or self.window == 1:
            raise InvalidValueError(
                f"a window of {self.window} has no variance",
                remedy="give at least 2 recurrences, or 0 for all of them",
            )
        finite(self.prior_mean, "prior mean in joules")
        finite(self.prior_precision, "prior precision", minimum=0.0)

    def start(self, lanes: JobBatch) -> ZeusBeliefs:
        """Nothing but the priors."""
        shape = (len(lanes), _OPEN_RECURRENCES)
        return ZeusBeliefs(
            exploration=Exploration.of(lanes.valid, lanes.default, _ROUNDS),
            costs=ArmCosts.of(lanes.valid.shape, int(self.window)),
            least=np.full(len(lanes), np.inf),
            best=lanes.default.copy(),
            spent=np.zeros(shape),
            spent_by=np.full(shape, -1),
        )

    def decide(self, beliefs: ZeusBeliefs, rows: NDArray[np.int64], draws: CounterRng) -> Actions:
        """The next batch size to explore, or the least of one draw per batch size."""
        exploration = beliefs.exploration
        sampling = exploration.over[rows]
        waiting = exploration.pending[rows] & ~sampling
        arm = np.where(waiting, beliefs.best[rows], exploration.arm[rows])
        if sampling.any():
            arm = np.where(sampling, self._sample(beliefs, rows, draws), arm)
        return Actions(
            kind=np.full(len(rows), ActionKind.TRAIN),
            arm=arm,
            limit=np.full(len(rows), -1),
            ceiling=self.beta * beliefs.least[rows],
            why=np.where(sampling, _SAMPLE, np.where(waiting, _BEST_KNOWN, _EXPLORE)),
        )

    def begin(self, beliefs: ZeusBeliefs, rows: NDArray[np.int64], actions: Actions) -> None:
        """Note which lanes have an exploring training under way."""
        # One that was given up may be taken up again after its round has gone on to another.
        awaited = (actions.why == _EXPLORE) & (actions.arm == beliefs.exploration.arm[rows])
        beliefs.exploration.pending[rows[awaited]] = True

    def learn(self, beliefs: ZeusBeliefs, outcomes: Outcomes) -> None:
        """Fold in what trainings cost."""
        trained = outcomes.kind == ActionKind.TRAIN
        ended = trained & (outcomes.end != RunEnd.ABANDONED)
        lost = trained & ~ended
        if lost.any():
            beliefs.exploration.abandon(outcomes.lane[lost], outcomes.arm[lost])
        lane, arm, cost = outcomes.lane[ended], outcomes.arm[ended], outcomes.cost[ended]
        reached = outcomes.end[ended] == RunEnd.REACHED
        unaffordable = ~reached & (outcomes.epochs[ended] == 0)
        judged = np.where(unaffordable, _UNAFFORDABLE * self.beta * beliefs.least[lane], cost)
        beliefs.costs.add(lane, arm, judged)
        beliefs.exploration.advance(lane, arm, judged, reached)
        spent = _add_up(beliefs, lane, outcomes.recurrence[ended], cost)
        better = reached & (spent < beliefs.least[lane])
        beliefs.least[lane[better]] = spent[better]
        beliefs.best[lane[better]] = arm[better]

    def _sample(
        self, beliefs: ZeusBeliefs, rows: NDArray[np.int64], draws: CounterRng
    ) -> NDArray[np.int64]:
        """Algorithm 1 on the posterior of Algorithm 2; ties go to the smaller batch size."""
        count, mean, variance = beliefs.costs.moments(rows)
        # A variance of zero makes the evidence infinite, and the posterior its mean.
        with np.errstate(divide="ignore", invalid="ignore"):
            evidence = count / variance
            posterior = 1.0 / (self.prior_precision + evidence)
            weighed = posterior * (self.prior_precision * self.prior_mean + evidence * mean)
        centre = np.where(np.isinf(evidence), mean, weighed)
        kept = beliefs.exploration.kept[rows]
        draw = centre + np.sqrt(posterior) * draws.normal(_SAMPLES, kept.shape[1])
        # What was kept but never seen comes first.
        draw = np.where(count > 0, draw, -np.inf)
        return np.asarray(np.where(kept, draw, np.inf).argmin(axis=1))


def _add_up(
    beliefs: ZeusBeliefs, lane: NDArray[np.int64], recurrence: NDArray[np.int64], cost: Floats
) -> Floats:
    """What each recurrence has cost until now."""
    cell = (lane, recurrence % _OPEN_RECURRENCES)
    before = np.where(beliefs.spent_by[cell] == recurrence, beliefs.spent[cell], 0.0)
    beliefs.spent_by[cell] = recurrence
    beliefs.spent[cell] = before + cost
    return before + cost
