"""Many clients of one recurring job, some of whom lie or die, on a desk without a store.

Events are made and folded by the desk's own code, in virtual time; what each action takes is
replayed from a workload. So the statistics of whole lives of jobs take seconds.
"""

from __future__ import annotations

import bisect
import dataclasses
import heapq
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.grants import VOLUNTEERED, granted, only_granted
from joulery.jobs.models import Measured, Outcome
from joulery.jobs.policies.base import ActionKind, RunEnd
from joulery.jobs.policies.counter_rng import CounterRng
from joulery.jobs.policies.job_batch import JobBatch
from joulery.jobs.posterior import JobState
from joulery.jobs.replay import ROW, action_document, actions_from, outcome_document
from joulery.jobs.report import Report
from joulery.jobs.report_filter import FilterResult, ReportFilter
from joulery.jobs.specification import job_document
from joulery.jobs.validation import check_outcome
from joulery.simulate import drift as drifts
from joulery.simulate.environment import Environment, Moment
from joulery.simulate.probing import Slices
from joulery.simulate.yardstick import yardstick
from joulery.storage.records import Event, EventKind, JobRecord, NewJob

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.jobs.policies.counter_rng import Floats
    from joulery.simulate.drift import Drift
    from joulery.simulate.environment import Results
    from joulery.simulate.workload import TracedWorkload
    from joulery.storage.records import Document

    Lie = Callable[[Outcome, np.random.Generator], Outcome]

_MOST_ACTIONS = 60  # after which a recurrence counts as failed
_MOST_LIES = 12  # after which a liar goes on to another recurrence
_BEAT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a job meets with.

    Attributes:
        recurrences: That honest clients complete.
        clients: At work at once.
        liars: Share of the clients that lie, always.
        lie: How they do.
        only: Batch size that they ask for, whatever would be chosen; None for what is.
        killed: Share of the clients that die in one of their first trainings.
        doomed: Which of them do, by the order in which they come; None for any, by chance.
        lease_seconds: After which a dead client's decision is given up.
        probing: Whether clients can probe.
        drift: How the workload changes.
        defended: Whether reports are judged; else all are believed.
    """

    recurrences: int = 100
    clients: int = 1
    liars: float = 0.0
    lie: Lie | None = None
    only: int | None = None
    killed: float = 0.0
    doomed: Callable[[int], bool] | None = None
    lease_seconds: float = 600.0
    probing: bool = True
    drift: Callable[[TracedWorkload], Drift] = drifts.none
    defended: bool = True


class Credulous(ReportFilter):
    """Believes whatever it is told."""

    def judge(self, decision: int, body: Document) -> FilterResult:
        """Fold in one report."""
        self._note_cost(Report.of(self.job, decision, body))
        return FilterResult(believed=True, told=body)


@dataclass(slots=True)
class Life:
    """How it went.

    Attributes:
        optimal: Cost of a recurrence at the best setting, in joules, before anything changes.
        costs: Of recurrences that honest clients completed, in the order of their ends.
        regrets: Of the same: cost beyond the best setting's at that time, in its units.
        reports: That honest clients made.
        doubted: Of these, those that were not believed at once.
        failed: How many recurrences came to no end.
        batch_sizes: That the completed ones ended with.
    """

    optimal: float
    costs: list[float] = field(default_factory=list)
    regrets: list[float] = field(default_factory=list)
    reports: int = 0
    doubted: int = 0
    failed: int = 0
    batch_sizes: list[int] = field(default_factory=list)

    def regret(self) -> float:
        """Cost beyond the best setting's, summed, in recurrences at that setting."""
        return sum(self.regrets)


@dataclass(slots=True)
class _Client:
    lies: bool
    dies_after: float  # actions
    recurrence: int = 0
    trainings: int = 0
    actions: int = 0
    progress: float = 0.0
    progress_arm: int = -1
    spent: float = 0.0
    decision: int = 0
    action: Document = field(default_factory=dict)
    truth: Outcome | None = None


class Crowd:
    """One life of a job.

    Args:
        load: What is trained.
        policy: By name.
        seed: Of the policy, the world, and who lies or dies.
        circumstances: What it meets with.
    """

    def __init__(
        self, load: TracedWorkload, policy: str, seed: int, circumstances: Circumstances
    ) -> None:
        change = circumstances.drift(load)
        load = drifts.patient(load, change)
        self._job = load.job()
        new = NewJob("team", self._job.name, job_document(self._job), policy, {}, seed)
        self._folded = JobState.start(JobRecord(1, 1, new, 0.0, False, 0, 0))  # noqa: FBT003
        if not circumstances.defended:
            self._folded.history = Credulous(self._job)
        self._about = circumstances
        self._luck = np.random.default_rng((seed, 17))
        self._fancy = np.random.default_rng((seed, 19))  # of liars, so that all lies meet one luck
        lanes = JobBatch.of([self._job], [seed])
        self._world = Environment([load], ROW, lanes, Slices(), [change])
        eta = self._job.cost.eta
        self._starts = change.starts
        self._optima = [load.optimum(eta, epochs)[2] for epochs in change.epochs]
        measure = yardstick(load, eta, None)
        self._life = Life(measure.optimal)
        default = self._job.batch_sizes.index(self._job.default)
        self._default_cost = float(np.nanmax(measure.expected[default]))
        self._events = self._begun = 0
        self._waiting: list[tuple[float, int, _Client | None, Event | None]] = []

    def live(self) -> Life:
        """From the first decision to the last."""
        about = self._about
        chance = self._luck.random((about.clients, 2))
        for number in range(about.clients):
            by_chance = chance[number, 1] < about.killed
            dies = by_chance if about.doomed is None else about.doomed(number)
            # With one client, a lot is drawn for every recurrence; see _next.
            lies = bool(chance[number, 0] < about.liars)
            actions = float(self._luck.integers(1, 6)) if dies else math.inf
            self._next(_Client(lies, actions), 0.0)
        while self._waiting and len(self._life.costs) < about.recurrences:
            now, _, client, expired = heapq.heappop(self._waiting)
            if client is not None:
                self._end(client, now)
            elif expired is not None:
                self._append(expired.kind, expired.decision, expired.body)
        return self._life

    def _append(self, kind: EventKind, decision: int, body: Document) -> int:
        self._events += 1
        number = self._events
        self._folded.fold(Event(number, kind, decision or number, body, 0.0))
        return number

    def _next(self, client: _Client, now: float) -> None:
        client.recurrence, self._begun = self._begun, self._begun + 1
        client.trainings = client.actions = 0
        client.spent, client.progress_arm = 0.0, -1
        if self._about.clients == 1:
            client.lies = bool(self._luck.random() < self._about.liars)
        self._act(client, now)

    def _act(self, client: _Client, now: float) -> None:
        folded = self._folded
        draws = CounterRng.of(folded.lanes.seeds, np.array([self._events + 1]))
        chosen = folded.policy.decide(folded.beliefs, ROW, draws)
        before = client.action if client.actions else None
        only = self._about.only if client.lies else None
        if only is None:
            actions, attempt = granted(chosen, before, folded.history, probing=self._about.probing)
        else:
            actions, attempt = only_granted(chosen, before, self._job, only)
        client.action = action_document(actions, self._job, attempt)
        if only is not None and actions.arm[0] != chosen.arm[0]:
            client.action |= VOLUNTEERED
        body = {"action": client.action, "recurrence": client.recurrence}
        client.decision = self._append(EventKind.ISSUED, 0, body)
        arm = client.action["arm"]
        moment = Moment(
            ROW,
            np.array([client.recurrence]),
            np.array([client.trainings]),
            np.array([client.actions]),
            np.array([client.progress if client.progress_arm == arm else 0.0]),
        )
        results = self._world.act(actions_from(client.action), moment)
        client.truth = self._told(results)
        client.progress = float(results.progress[0])
        client.progress_arm = arm if client.action["kind"] == ActionKind.PROBE else -1
        client.dies_after -= 1
        if client.dies_after <= 0:
            self._die(client, now)
        else:
            heapq.heappush(
                self._waiting, (now + client.truth.seconds, client.decision, client, None)
            )

    def _told(self, results: Results) -> Outcome:
        limits = self._job.limits_watts
        known = np.flatnonzero(np.isfinite(results.epoch_seconds[0]))
        held = int(results.limit[0])
        return Outcome(
            end=RunEnd(int(results.end[0])),
            epochs=float(results.epochs[0]),
            seconds=float(results.seconds[0]),
            joules=float(results.joules[0]),
            limit_watts=limits[held] if held >= 0 else None,
            measured=tuple(
                Measured(
                    limits[at],
                    float(results.epoch_seconds[0, at]),
                    float(results.epoch_joules[0, at]),
                    float(results.relative_error[0, at]),
                )
                for at in known
            ),
        )

    def _die(self, client: _Client, now: float) -> None:
        """Somewhere on the way; what heartbeats told until then is known when the lease is over."""
        assert client.truth is not None
        truth, share = client.truth, float(self._luck.random())
        beaten = math.floor(share * truth.seconds / _BEAT_SECONDS) * _BEAT_SECONDS
        progress = None
        if beaten > 0:
            part = beaten / truth.seconds
            progress = dataclasses.replace(
                truth,
                end=RunEnd.ABANDONED,
                epochs=float(math.floor(part * truth.epochs)),
                seconds=beaten,
                joules=part * truth.joules,
            )
        body = outcome_document(progress, self._job, client.action, client.recurrence)
        expired = Event(0, EventKind.EXPIRED, client.decision, body, 0.0)
        late = now + beaten + self._about.lease_seconds
        heapq.heappush(self._waiting, (late, client.decision, None, expired))

    def _end(self, client: _Client, now: float) -> None:
        assert client.truth is not None
        truth = told = client.truth
        if client.lies and self._about.lie is not None:
            told = self._about.lie(truth, self._fancy)
        kind = ActionKind(client.action["kind"])
        check_outcome(told, self._job, kind, max(truth.seconds, told.seconds))
        body = outcome_document(told, self._job, client.action, client.recurrence)
        self._append(EventKind.OUTCOME, client.decision, body)
        if not client.lies:
            self._life.reports += 1
            self._life.doubted += client.decision in self._folded.history.held()
        client.actions += 1
        client.trainings += kind == ActionKind.TRAIN
        client.spent += self._job.cost.of(truth.seconds, truth.joules)
        failed = client.actions >= (_MOST_LIES if client.lies else _MOST_ACTIONS)
        if told.end != RunEnd.REACHED and not failed:
            self._act(client, now)
            return
        if not client.lies:
            # Whoever gives up runs the default.
            cost = client.spent + failed * self._default_cost
            self._life.costs.append(cost)
            optimal = self._optima[bisect.bisect_right(self._starts, client.recurrence) - 1]
            self._life.regrets.append(cost / optimal - 1.0)
            self._life.failed += failed
            self._life.batch_sizes.append(client.action["batch_size"])
        self._next(client, now)


def claims_wonders(truth: Outcome, _: np.random.Generator) -> Outcome:
    """One epoch in one second, and that measured exactly."""
    if truth.end == RunEnd.PROBED:
        return _measured_times(truth, 0.01)
    watts = truth.limit_watts
    measured = (Measured(watts, 1.0, 100.0, 0.001),)
    return Outcome(RunEnd.REACHED, 1.0, 1.0, 100.0, watts, measured)


def claims_disaster(truth: Outcome, _: np.random.Generator) -> Outcome:
    """Ten times the time and the energy."""
    return _times(truth, 10.0)


def claims_failure(truth: Outcome, _: np.random.Generator) -> Outcome:
    """That training diverged in its first epoch."""
    if truth.end == RunEnd.PROBED:
        return truth
    return dataclasses.replace(
        truth, end=RunEnd.EXHAUSTED, epochs=min(1.0, truth.epochs), measured=()
    )


def claims_cheap_epochs(truth: Outcome, _: np.random.Generator) -> Outcome:
    """Three tenths of the time and the energy: little enough to be possible."""
    return _times(truth, 0.3)


def claims_dear_epochs(truth: Outcome, _: np.random.Generator) -> Outcome:
    """Four times the time and the energy, likewise."""
    return _times(truth, 4.0)


def claims_few_epochs(truth: Outcome, _: np.random.Generator) -> Outcome:
    """The target in a fifth of the epochs, each of which costs what it does."""
    return _in_epochs(truth, max(1.0, round(truth.epochs / 5.0)))


def claims_refusal(truth: Outcome, _: np.random.Generator) -> Outcome:
    """That not even one epoch could be afforded."""
    if truth.end == RunEnd.PROBED:
        return truth
    return Outcome(RunEnd.STOPPED, 0.0, 0.0, 0.0, truth.limit_watts, ())


def says_nothing(_: Outcome, __: np.random.Generator) -> Outcome:
    """No lie: what the same life would have been with those clients away."""
    return Outcome(RunEnd.ABANDONED, 0.0, 0.0, 0.0, None, ())


def claims_anything(truth: Outcome, luck: np.random.Generator) -> Outcome:
    """One of these, or figures that are off by a factor."""
    others = (claims_wonders, claims_disaster, claims_failure)
    kind = int(luck.integers(0, len(others) + 1))
    if kind < len(others):
        return others[kind](truth, luck)
    return _times(truth, float(np.exp(luck.normal(0.0, 1.5))))


LIES: dict[str, Lie] = {
    "wonders": claims_wonders,
    "disaster": claims_disaster,
    "failure": claims_failure,
    "anything": claims_anything,
    "cheap epochs": claims_cheap_epochs,
    "dear epochs": claims_dear_epochs,
    "few epochs": claims_few_epochs,
    "refusal": claims_refusal,
}


def _times(truth: Outcome, factor: float) -> Outcome:
    told = _measured_times(truth, factor)
    return dataclasses.replace(told, seconds=factor * truth.seconds, joules=factor * truth.joules)


def _in_epochs(truth: Outcome, epochs: float) -> Outcome:
    if truth.end == RunEnd.PROBED or truth.epochs <= 0:
        return truth
    share = epochs / truth.epochs
    return dataclasses.replace(
        truth,
        end=RunEnd.REACHED,
        epochs=epochs,
        seconds=share * truth.seconds,
        joules=share * truth.joules,
    )


def _measured_times(truth: Outcome, factor: float) -> Outcome:
    measured = tuple(
        dataclasses.replace(
            one,
            epoch_seconds=factor * one.epoch_seconds,
            epoch_joules=factor * one.epoch_joules,
            relative_error=min(one.relative_error, 0.001),
        )
        for one in truth.measured
    )
    return dataclasses.replace(truth, measured=measured)


@dataclass(frozen=True, slots=True, eq=False)
class Lives:
    """Many lives of one job.

    Attributes:
        regrets: One per seed; see :meth:`Life.regret`.
        doubted: Share of the honest reports that were not believed at once.
        failed: How many recurrences came to no end.
    """

    regrets: Floats
    doubted: float
    failed: int

    @property
    def mean(self) -> float:
        """Regret of a life."""
        return float(self.regrets.mean())

    @property
    def error(self) -> float:
        """Standard error of :attr:`mean`."""
        return float(self.regrets.std(ddof=1) / math.sqrt(len(self.regrets)))

    def over(self, other: Lives) -> tuple[float, float]:
        """How many times the regret of others with the same seeds; and its standard error."""
        ratio = self.mean / other.mean
        apart = self.regrets - ratio * other.regrets
        return ratio, float(apart.std(ddof=1) / math.sqrt(len(apart)) / abs(other.mean))


def lives(load: TracedWorkload, policy: str, seeds: range, circumstances: Circumstances) -> Lives:
    """One for each seed."""
    each = [Crowd(load, policy, seed, circumstances).live() for seed in seeds]
    return Lives(
        np.array([life.regret() for life in each]),
        sum(life.doubted for life in each) / sum(life.reports for life in each),
        sum(life.failed for life in each),
    )
