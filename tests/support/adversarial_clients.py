"""Simulated clients of one recurring job: honest ones, and others that report falsely or die.

Events are made and state by the job service's own code, without a store and in virtual time; what
each action takes is replayed from a workload. So statistics over whole histories take seconds.
"""

from __future__ import annotations

import bisect
import heapq
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from joulery.jobs import Measured, Outcome, Request
from joulery.jobs._client_actions import client_action
from joulery.jobs._posterior import JobState
from joulery.jobs._recent_reports import RecentReports
from joulery.jobs._replay import ROW, actions_from, outcome_document
from joulery.jobs._validation import check_outcome
from joulery.jobs.policies import ActionKind, CounterRng, JobBatch, RunEnd
from joulery.simulate import Environment, Moment, Slices
from joulery.simulate._workload import score_settings
from joulery.storage import Event, EventKind, JobRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from joulery.jobs.policies import Floats
    from joulery.simulate import TracedWorkload
    from joulery.simulate._environment import Results
    from joulery.storage import Document

    FalseReport = Callable[[Outcome, np.random.Generator], Outcome]

_MOST_ACTIONS = 60  # after which a recurrence counts as failed
_MOST_FALSE_REPORTS = 12  # after which an adversarial client begins another recurrence
_BEAT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """The clients of a job and how the job changes.

    Attributes:
        recurrences: Number of recurrences that honest clients complete.
        clients: Number of clients at work at once.
        adversarial_share: Share of the clients that always report falsely.
        false_report: What they report instead of the truth.
        only: Batch size that they ask for, whatever would be chosen; None for what is chosen.
        killed: Share of the clients that die in one of their first trainings.
        doomed: Which of them do, by the order of their arrival; None for any, by chance.
        lease_seconds: Time after which a dead client's decision expires.
        probing: Whether clients can probe.
        drift: How the workload changes.
        defended: Whether reports are filtered; else all are accepted.
    """

    recurrences: int = 100
    clients: int = 1
    adversarial_share: float = 0.0
    false_report: FalseReport | None = None
    only: int | None = None
    killed: float = 0.0
    doomed: Callable[[int], bool] | None = None
    lease_seconds: float = 600.0
    probing: bool = True
    drift: Callable[[TracedWorkload], TracedWorkload] = lambda load: load
    defended: bool = True


class AcceptingReports(RecentReports):
    """Reports that are all accepted."""

    def _verdicts(self) -> list[bool]:
        return [False] * len(self.latest)


@dataclass(slots=True)
class SimulationLog:
    """Costs of the honest clients.

    Attributes:
        optimal: Cost of a recurrence at the best setting, in joules, before anything changes.
        costs: Costs of completed recurrences, in the order of their ends.
        regrets: The same beyond the cost of the best setting at that time, in its units.
        reports: Number of reports.
        doubted: Number of reports that were quarantined when they arrived.
        failed: Number of recurrences that came to no end.
        batch_sizes: Batch sizes that completed recurrences ended with.
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
    adversarial: bool
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


class ClientSimulation:
    """One history of a job.

    Args:
        load: Workload that is trained.
        policy: Name of the policy.
        seed: Seed of the policy, the workload, and which clients are adversarial or die.
        scenario: Clients and changes.
    """

    def __init__(self, load: TracedWorkload, policy: str, seed: int, scenario: Scenario) -> None:
        load = scenario.drift(load)
        self._job = load.job()
        record = JobRecord("team", self._job.name, self._job.to_document(), policy, {}, seed)
        self._state = JobState.start(record)
        if not scenario.defended:
            self._state.reports = AcceptingReports(self._job)
        self._scenario = scenario
        self._luck = np.random.default_rng((seed, 17))
        self._fancy = np.random.default_rng(
            (seed, 19)
        )  # of false reports, so that all meet the same luck
        lanes = JobBatch.of([self._job], [seed])
        self._world = Environment([load], ROW, lanes, Slices())
        eta = self._job.cost.eta
        self._starts = [start for start, _ in load.stages]
        self._optima = [stage.optimum(eta)[2] for _, stage in load.stages]
        measure = score_settings(load, eta, None)
        self._log = SimulationLog(measure.optimal)
        default = self._job.batch_sizes.index(self._job.default)
        self._default_cost = float(np.nanmax(measure.expected[default]))
        self._events = self._begun = 0
        self._waiting: list[tuple[float, int, _Client | None, Event | None]] = []

    def run(self) -> SimulationLog:
        """Simulate from the first decision to the last."""
        scenario = self._scenario
        chance = self._luck.random((scenario.clients, 2))
        for number in range(scenario.clients):
            by_chance = chance[number, 1] < scenario.killed
            dies = by_chance if scenario.doomed is None else scenario.doomed(number)
            # With one client, a lot is drawn for every recurrence; see _next.
            adversarial = bool(chance[number, 0] < scenario.adversarial_share)
            actions = float(self._luck.integers(1, 6)) if dies else math.inf
            self._next(_Client(adversarial, actions), 0.0)
        while self._waiting and len(self._log.costs) < scenario.recurrences:
            now, _, client, expired = heapq.heappop(self._waiting)
            if client is not None:
                self._end(client, now)
            elif expired is not None:
                self._append(expired.kind, expired.decision, expired.body, now)
        return self._log

    def _append(self, kind: EventKind, decision: int, body: Document, now: float) -> int:
        self._events += 1
        number = self._events
        self._state.fold(Event(number, kind, decision or number, body, now))
        return number

    def _next(self, client: _Client, now: float) -> None:
        client.recurrence, self._begun = self._begun, self._begun + 1
        client.trainings = client.actions = 0
        client.spent, client.progress_arm = 0.0, -1
        if self._scenario.clients == 1:
            client.adversarial = bool(self._luck.random() < self._scenario.adversarial_share)
        self._act(client, now)

    def _act(self, client: _Client, now: float) -> None:
        state = self._state
        draws = CounterRng.of(state.batch.seeds, np.array([self._events + 1]))
        actions = state.policy.decide(state.beliefs, ROW, draws)
        only = self._scenario.only if client.adversarial else None
        before = client.action if client.actions else None
        doubted = before is not None and client.decision in state.reports.quarantined()
        request = Request("key", probing=self._scenario.probing, only=only)
        client.action, _ = client_action(state, actions, request, before, doubted=doubted)
        body = {"action": client.action, "recurrence": client.recurrence}
        client.decision = self._append(EventKind.ISSUED, 0, body, now)
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
        measured_limits = np.flatnonzero(np.isfinite(results.epoch_seconds[0]))
        limit = int(results.limit[0])
        return Outcome(
            end=RunEnd(int(results.end[0])),
            epochs=float(results.epochs[0]),
            seconds=float(results.seconds[0]),
            joules=float(results.joules[0]),
            limit_watts=limits[limit] if limit >= 0 else None,
            measured=tuple(
                Measured(
                    limits[at],
                    float(results.epoch_seconds[0, at]),
                    float(results.epoch_joules[0, at]),
                    float(results.relative_error[0, at]),
                )
                for at in measured_limits
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
            progress = structs.replace(
                truth,
                end=RunEnd.ABANDONED,
                epochs=float(math.floor(part * truth.epochs)),
                seconds=beaten,
                joules=part * truth.joules,
            )
        body = outcome_document(progress, self._job, client.action, client.recurrence)
        expired = Event(0, EventKind.EXPIRED, client.decision, body, 0.0)
        late = now + beaten + self._scenario.lease_seconds
        heapq.heappush(self._waiting, (late, client.decision, None, expired))

    def _end(self, client: _Client, now: float) -> None:
        assert client.truth is not None
        truth = report = client.truth
        if client.adversarial and self._scenario.false_report is not None:
            report = self._scenario.false_report(truth, self._fancy)
        kind = ActionKind(client.action["kind"])
        check_outcome(report, self._job, kind, max(truth.seconds, report.seconds))
        body = outcome_document(report, self._job, client.action, client.recurrence)
        self._append(EventKind.OUTCOME, client.decision, body, now)
        if not client.adversarial:
            self._log.reports += 1
            self._log.doubted += client.decision in self._state.reports.quarantined()
        client.actions += 1
        client.trainings += kind == ActionKind.TRAIN
        client.spent += self._job.cost.of(truth.seconds, truth.joules)
        failed = client.actions >= (_MOST_FALSE_REPORTS if client.adversarial else _MOST_ACTIONS)
        if report.end != RunEnd.REACHED and not failed:
            self._act(client, now)
            return
        if not client.adversarial:
            # A client that gives up runs the default.
            cost = client.spent + failed * self._default_cost
            self._log.costs.append(cost)
            optimal = self._optima[bisect.bisect_right(self._starts, client.recurrence) - 1]
            self._log.regrets.append(cost / optimal - 1.0)
            self._log.failed += failed
            self._log.batch_sizes.append(client.action["batch_size"])
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
    return structs.replace(truth, end=RunEnd.EXHAUSTED, epochs=min(1.0, truth.epochs), measured=())


def claims_cheap_epochs(truth: Outcome, _: np.random.Generator) -> Outcome:
    """Three tenths of the time and the energy: little enough to be possible."""
    return _times(truth, 0.3)


def claims_expensive_epochs(truth: Outcome, _: np.random.Generator) -> Outcome:
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


def reports_nothing(_: Outcome, __: np.random.Generator) -> Outcome:
    """No claim at all: the history as it would have been without those clients."""
    return Outcome(RunEnd.ABANDONED, 0.0, 0.0, 0.0, None, ())


def claims_anything(truth: Outcome, luck: np.random.Generator) -> Outcome:
    """One of these, or figures that are off by a factor."""
    claims = (claims_wonders, claims_disaster, claims_failure)
    kind = int(luck.integers(0, len(claims) + 1))
    if kind < len(claims):
        return claims[kind](truth, luck)
    return _times(truth, float(np.exp(luck.normal(0.0, 1.5))))


FALSE_REPORTS: dict[str, FalseReport] = {
    "wonders": claims_wonders,
    "disaster": claims_disaster,
    "failure": claims_failure,
    "anything": claims_anything,
    "cheap epochs": claims_cheap_epochs,
    "expensive epochs": claims_expensive_epochs,
    "few epochs": claims_few_epochs,
    "refusal": claims_refusal,
}


def _times(truth: Outcome, factor: float) -> Outcome:
    report = _measured_times(truth, factor)
    return structs.replace(report, seconds=factor * truth.seconds, joules=factor * truth.joules)


def _in_epochs(truth: Outcome, epochs: float) -> Outcome:
    if truth.end == RunEnd.PROBED or truth.epochs <= 0:
        return truth
    share = epochs / truth.epochs
    return structs.replace(
        truth,
        end=RunEnd.REACHED,
        epochs=epochs,
        seconds=share * truth.seconds,
        joules=share * truth.joules,
    )


def _measured_times(truth: Outcome, factor: float) -> Outcome:
    measured = tuple(
        structs.replace(
            measured,
            epoch_seconds=factor * measured.epoch_seconds,
            epoch_joules=factor * measured.epoch_joules,
            relative_error=min(measured.relative_error, 0.001),
        )
        for measured in truth.measured
    )
    return structs.replace(truth, measured=measured)


@dataclass(frozen=True, slots=True, eq=False)
class Regrets:
    """Regrets of many histories of one job.

    Attributes:
        regrets: One per seed; see :meth:`SimulationLog.regret`.
        doubted: Share of the honest reports that were quarantined when they arrived.
        failed: Number of recurrences that came to no end.
    """

    regrets: Floats
    doubted: float
    failed: int

    @classmethod
    def of(cls, logs: Sequence[SimulationLog]) -> Regrets:
        """Regrets of histories."""
        return cls(
            np.array([log.regret() for log in logs]),
            sum(log.doubted for log in logs) / sum(log.reports for log in logs),
            sum(log.failed for log in logs),
        )

    @property
    def mean(self) -> float:
        """Mean regret of a history."""
        return float(self.regrets.mean())

    @property
    def error(self) -> float:
        """Standard error of :attr:`mean`."""
        return float(self.regrets.std(ddof=1) / math.sqrt(len(self.regrets)))

    def over(self, baseline: Regrets) -> tuple[float, float]:
        """How many times the regret of others with the same seeds; and its standard error."""
        ratio = self.mean / baseline.mean
        apart = self.regrets - ratio * baseline.regrets
        return ratio, float(apart.std(ddof=1) / math.sqrt(len(apart)) / abs(baseline.mean))


def simulate(
    load: TracedWorkload, policy: str, seeds: Iterable[int], scenario: Scenario
) -> Regrets:
    """Simulate one history for each seed."""
    return Regrets.of([ClientSimulation(load, policy, seed, scenario).run() for seed in seeds])
