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
from joulery.jobs.policies._base import ActionKind, Actions, RunEnd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.jobs.policies._base import Outcomes
    from joulery.jobs.policies._counter_rng import CounterRng, Floats
    from joulery.jobs.policies._job_batch import JobBatch

_EXPLORE, _BEST_KNOWN, _SAMPLE = range(3)
_ROUNDS = 2  # of pruning, as in the paper
_SAMPLES = 0  # the stream of random numbers
_UNAFFORDABLE = 100.0  # by hand, in cost ceilings: never the best, yet finite
# Recurrences of one job whose costs are added up at the same time.
_OPEN_RECURRENCES = 256
_LONGEST_WINDOW = 1000  # all of it is kept for every batch size


@dataclass(slots=True, eq=False)
class ObservedCosts:
    """Count, mean and variance of the costs observed at each batch size, all or the latest only.

    Attributes:
        count: (jobs, arms), number of costs observed.
        mean: (jobs, arms), 0 before the first.
        squares: (jobs, arms), sum of squared distances from the mean.
        latest: (jobs, arms, window), the latest costs where only those count; else of length 0.
    """

    count: Floats
    mean: Floats
    squares: Floats
    latest: Floats

    @classmethod
    def start(cls, shape: tuple[int, ...], window: int) -> ObservedCosts:
        """Statistics before anything was observed."""
        latest = np.full((*shape, window), np.nan)
        return cls(np.zeros(shape), np.zeros(shape), np.zeros(shape), latest)

    def add(self, job: NDArray[np.int64], arm: NDArray[np.int64], cost: Floats) -> None:
        """Add one cost per job (Welford's update)."""
        window = self.latest.shape[2]
        if window:
            slot = self.count[job, arm].astype(np.int64) % window
            self.latest[job, arm, slot] = cost
        count = self.count[job, arm] + 1.0
        away = cost - self.mean[job, arm]
        mean = self.mean[job, arm] + away / count
        self.squares[job, arm] += away * (cost - mean)
        self.mean[job, arm] = mean
        self.count[job, arm] = count

    def moments(self, rows: NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
        """(rows, arms): count, mean and population variance; zeros where nothing was observed."""
        count = self.count[rows]
        window = self.latest.shape[2]
        if not window:
            return count, self.mean[rows], self.squares[rows] / np.maximum(count, 1.0)
        latest = self.latest[rows]
        count = np.minimum(count, window)
        at_least_one = np.maximum(count, 1.0)
        filled_slots = np.arange(window) < count[:, :, None]
        mean = np.where(filled_slots, latest, 0.0).sum(axis=2) / at_least_one
        away = np.where(filled_slots, latest - mean[:, :, None], 0.0)
        return count, mean, (away * away).sum(axis=2) / at_least_one


@dataclass(slots=True, eq=False)
class Exploration:
    """Rounds of trying batch sizes from the default downward, then upward, dropping what fails.

    NSDI'23, Algorithm 3, lines 1 to 9.

    Attributes:
        round: (jobs,), rounds that are over.
        candidates: (jobs, arms), batch sizes that this round may try; what is left, in the end.
        good: (jobs, arms), batch sizes that reached the target in this round.
        start: (jobs,), batch size from which this round goes downward and upward.
        arm: (jobs,), batch size to try next.
        upward: (jobs,), whether the round goes upward by now.
        best: (jobs,), best batch size of this round, where the next one starts.
        best_cost: (jobs,), cost of that batch size.
        pending: (jobs,), whether ``arm`` is being tried.
    """

    round: NDArray[np.int64]
    candidates: NDArray[np.bool_]
    good: NDArray[np.bool_]
    start: NDArray[np.int64]
    arm: NDArray[np.int64]
    upward: NDArray[np.bool_]
    best: NDArray[np.int64]
    best_cost: Floats
    pending: NDArray[np.bool_]

    @classmethod
    def of(cls, valid: NDArray[np.bool_], default: NDArray[np.int64]) -> Exploration:
        """The state before the first round."""
        jobs = len(default)
        return cls(
            round=np.zeros(jobs, dtype=np.int64),
            candidates=valid.copy(),
            good=np.zeros_like(valid),
            start=default.copy(),
            arm=default.copy(),
            upward=np.zeros(jobs, dtype=bool),
            best=default.copy(),
            best_cost=np.full(jobs, np.inf),
            pending=np.zeros(jobs, dtype=bool),
        )

    @property
    def over(self) -> NDArray[np.bool_]:
        """(jobs,), whether all rounds are over."""
        return self.round >= _ROUNDS

    def abandon(self, job: NDArray[np.int64], arm: NDArray[np.int64]) -> None:
        """Note that a try was lost; it is to be made again."""
        self.pending[job[self.arm[job] == arm]] = False

    def advance(
        self,
        job: NDArray[np.int64],
        arm: NDArray[np.int64],
        cost: Floats,
        reached: NDArray[np.bool_],
    ) -> None:
        """Fold in results; those that no round waits for change nothing."""
        awaited = self.pending[job] & (self.arm[job] == arm) & ~self.over[job]
        if not awaited.any():
            return
        job, arm, cost, reached = (part[awaited] for part in (job, arm, cost, reached))
        self.pending[job] = False
        self.good[job, arm] = reached
        better = reached & (cost < self.best_cost[job])
        self.best[job[better]] = arm[better]
        self.best_cost[job[better]] = cost[better]
        self._move(job, arm, reached)

    def _move(
        self, job: NDArray[np.int64], arm: NDArray[np.int64], reached: NDArray[np.bool_]
    ) -> None:
        """Go to the next batch size of the direction, the other direction, or the next round."""
        positions = np.arange(self.candidates.shape[1])
        candidates = self.candidates[job]
        upward = self.upward[job]
        below = candidates & (positions < arm[:, None])
        down = ~upward & reached & below.any(axis=1)
        # Upward from where this direction has come to, or, at its beginning, from the start.
        floor = np.where(upward, arm, self.start[job])
        above = candidates & (positions > floor[:, None])
        up = ~down & (~upward | reached) & above.any(axis=1)
        lowest_above = above.argmax(axis=1)
        highest_below = positions[-1] - below[:, ::-1].argmax(axis=1)
        self.arm[job] = np.where(down, highest_below, lowest_above)
        self.upward[job] = up
        self._end_round(job[~down & ~up])

    def _end_round(self, job: NDArray[np.int64]) -> None:
        # A round in which nothing reached the target gives no reason to drop anything.
        some = self.good[job].any(axis=1)
        self.candidates[job[some]] = self.good[job[some]]
        self.good[job] = False
        self.start[job] = self.best[job]
        self.arm[job] = self.best[job]
        self.upward[job] = False
        self.best_cost[job] = np.inf
        self.round[job] += 1


@dataclass(slots=True, eq=False)
class ZeusBeliefs:
    """The beliefs of each job.

    Attributes:
        exploration: Progress of the pruning rounds.
        costs: Costs by job and batch size.
        least: (jobs,), least cost of a recurrence so far; infinite before the first.
        best: (jobs,), batch size of that recurrence's last training.
        spent: (jobs, open recurrences), cost so far of recurrences under way.
        spent_by: (jobs, open recurrences), number of the recurrence that spent it.
    """

    exploration: Exploration
    costs: ObservedCosts
    least: Floats
    best: NDArray[np.int64]
    spent: Floats
    spent_by: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ZeusPolicy:
    """Zeus as published.

    Attributes:
        beta: Ratio of a training's cost ceiling to the least cost so far; infinite for no ceiling.
        window: Number of the latest costs of a batch size that count; 0 for all.
    """

    beta: float = 2.0
    window: int = 0

    name = "zeus"
    version = 1
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
        if not 0 <= self.window <= _LONGEST_WINDOW or self.window % 1 or self.window == 1:
            raise InvalidValueError(
                f"window must be 0 or a whole number from 2 to {_LONGEST_WINDOW}, "
                f"not {self.window:g}",
                remedy="give at least 2 recurrences, which have a variance, or 0 for all of them",
            )

    def start(self, jobs: JobBatch) -> ZeusBeliefs:
        """The beliefs before anything happened."""
        shape = (len(jobs), _OPEN_RECURRENCES)
        return ZeusBeliefs(
            exploration=Exploration.of(jobs.valid, jobs.default),
            costs=ObservedCosts.start(jobs.valid.shape, int(self.window)),
            least=np.full(len(jobs), np.inf),
            best=jobs.default.copy(),
            spent=np.zeros(shape),
            spent_by=np.full(shape, -1),
        )

    def decide(self, beliefs: ZeusBeliefs, rows: NDArray[np.int64], rng: CounterRng) -> Actions:
        """The next batch size to explore, or the least of one draw per batch size."""
        exploration = beliefs.exploration
        sampling = exploration.over[rows]
        waiting = exploration.pending[rows] & ~sampling
        arm = np.where(waiting, beliefs.best[rows], exploration.arm[rows])
        if sampling.any():
            arm = np.where(sampling, self._sample(beliefs, rows, rng), arm)
        return Actions(
            kind=np.full(len(rows), ActionKind.TRAIN),
            arm=arm,
            limit=np.full(len(rows), -1),
            ceiling=self.beta * beliefs.least[rows],
            reason=np.where(sampling, _SAMPLE, np.where(waiting, _BEST_KNOWN, _EXPLORE)),
        )

    def begin(self, beliefs: ZeusBeliefs, rows: NDArray[np.int64], actions: Actions) -> None:
        """Note which jobs have an exploring training under way."""
        # One that was given up may be taken up again after its round has gone on to another.
        awaited = (actions.reason == _EXPLORE) & (actions.arm == beliefs.exploration.arm[rows])
        beliefs.exploration.pending[rows[awaited]] = True

    def learn(self, beliefs: ZeusBeliefs, outcomes: Outcomes) -> None:
        """Fold in the costs of trainings."""
        trained = outcomes.kind == ActionKind.TRAIN
        ended = trained & (outcomes.end != RunEnd.ABANDONED)
        lost = trained & ~ended
        if lost.any():
            beliefs.exploration.abandon(outcomes.job[lost], outcomes.arm[lost])
        job, arm, cost = outcomes.job[ended], outcomes.arm[ended], outcomes.cost[ended]
        reached = outcomes.end[ended] == RunEnd.REACHED
        unaffordable = ~reached & (outcomes.epochs[ended] == 0)
        judged = np.where(unaffordable, _UNAFFORDABLE * self.beta * beliefs.least[job], cost)
        beliefs.costs.add(job, arm, judged)
        beliefs.exploration.advance(job, arm, judged, reached)
        spent = _add_up(beliefs, job, outcomes.recurrence[ended], cost)
        better = reached & (spent < beliefs.least[job])
        beliefs.least[job[better]] = spent[better]
        beliefs.best[job[better]] = arm[better]

    def believed_costs(
        self, beliefs: ZeusBeliefs, rows: NDArray[np.int64]
    ) -> tuple[Floats, Floats, Floats]:
        """(rows, arms), mean of the costs with one standard error; NaN where unseen."""
        count, mean, variance = beliefs.costs.moments(rows)
        mean = np.where(count > 0, mean, np.nan)
        error = np.sqrt(variance / np.maximum(count, 1.0))
        return mean - error, mean, mean + error

    def _sample(
        self, beliefs: ZeusBeliefs, rows: NDArray[np.int64], rng: CounterRng
    ) -> NDArray[np.int64]:
        """Algorithm 1 on the posterior of Algorithm 2; ties go to the smaller batch size."""
        count, mean, variance = beliefs.costs.moments(rows)
        # A variance of zero makes the evidence infinite, and the posterior its mean.
        with np.errstate(divide="ignore", invalid="ignore"):
            evidence = count / variance
            posterior = 1.0 / evidence
            weighed = posterior * (evidence * mean)
        centre = np.where(np.isinf(evidence), mean, weighed)
        candidates = beliefs.exploration.candidates[rows]
        sample = centre + np.sqrt(posterior) * rng.normal(_SAMPLES, candidates.shape[1])
        # What was kept but never seen comes first.
        sample = np.where(count > 0, sample, -np.inf)
        return np.asarray(np.where(candidates, sample, np.inf).argmin(axis=1))


def _add_up(
    beliefs: ZeusBeliefs, job: NDArray[np.int64], recurrence: NDArray[np.int64], cost: Floats
) -> Floats:
    """Add ``cost`` to what each recurrence has cost until now; the sums."""
    cell = (job, recurrence % _OPEN_RECURRENCES)
    before = np.where(beliefs.spent_by[cell] == recurrence, beliefs.spent[cell], 0.0)
    beliefs.spent_by[cell] = recurrence
    beliefs.spent[cell] = before + cost
    return before + cost
