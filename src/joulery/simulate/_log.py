"""The log of a simulation of recurring jobs: figures per recurrence, a summary, and a CSV file."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import FileError
from joulery.files import replacing
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.objectives import Totals
from joulery.simulate._environment import Results
from joulery.simulate._workload import score_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from joulery.jobs.policies import Floats, Policy, Seeds
    from joulery.simulate._recurring import SimulationConfig
    from joulery.simulate._workload import TracedWorkload

_LAST = 5
CSV_COLUMNS = (
    *("gpu", "dataset", "policy", "seed", "recurrence", "action", "batch_size", "limit_watts"),
    *("end", "epochs", "ceiling_joules", "seconds", "joules", "cost_joules"),
    *("recurrence_cost_over_optimal", "why"),
)
_PER_RECURRENCE = (
    *("arm", "limit", "reason", "attempts", "reached"),
    *("seconds", "joules", "cost", "expected", "within", "optimal"),
)


@dataclass(frozen=True, slots=True, eq=False)
class SimulationLog:
    """Figures per job and recurrence; NaN and -1 beyond a job's last recurrence.

    Attributes:
        workloads: Workloads that were simulated.
        workload_of: (jobs,), index of each job's workload.
        seeds: (jobs,), seed of each job.
        policy: Name of the policy.
        reasons: Meaning of the indices in ``reason``.
        eta: Weight of energy in the cost.
        recurrences: (jobs,), number of recurrences of each job.
        arm: (jobs, recurrences), batch size of the last training.
        limit: (jobs, recurrences), power limit that it held.
        reason: (jobs, recurrences), reason for the last training.
        attempts: (jobs, recurrences), number of trainings.
        reached: (jobs, recurrences), whether the target was reached in the end.
        seconds: (jobs, recurrences), time of all actions together; where the target was not
            reached, that of training the default is added, which the owner has to run then.
        joules: (jobs, recurrences), energy, likewise.
        cost: (jobs, recurrences), cost, likewise; where another objective was given, its value
            instead, here and in the figures below; what a setting is expected to save by breaking
            its bounds is taken back.
        expected: (jobs, recurrences), expected cost of the setting that was trained last.
        within: (jobs, recurrences), whether that setting is expected to keep the objective's
            bounds, within 1 %.
        optimal: (jobs, recurrences), expected cost of the best fixed setting at that time.
        default: (3, jobs, recurrences), expected seconds, joules and cost without optimisation.
        actions: Every single action in the order in which its end became known, where asked for.
    """

    workloads: tuple[TracedWorkload, ...]
    workload_of: NDArray[np.int64]
    seeds: NDArray[np.uint64]
    policy: str
    reasons: tuple[str, ...]
    eta: float
    recurrences: NDArray[np.int64]
    arm: NDArray[np.int64]
    limit: NDArray[np.int64]
    reason: NDArray[np.int64]
    attempts: NDArray[np.int64]
    reached: NDArray[np.bool_]
    seconds: Floats
    joules: Floats
    cost: Floats
    expected: Floats
    within: NDArray[np.bool_]
    optimal: Floats
    default: Floats
    actions: Results | None = None

    def regret(self) -> Floats:
        """(jobs, recurrences), cumulative, in units of the optimal cost (Eq. 9 of NSDI'23)."""
        return np.asarray(np.nancumsum(self.cost / self.optimal - 1.0, axis=1))

    def final_regret(self) -> Floats:
        """(jobs,), regret after the last recurrence of each job."""
        return np.asarray(np.nansum(self.cost / self.optimal - 1.0, axis=1))

    def of_workload(self, index: int) -> SimulationLog:
        """The jobs of one workload only, cut to its recurrences; without single actions."""
        rows = np.flatnonzero(self.workload_of == index)
        columns = int(self.recurrences[rows].max(initial=0))
        figures = {name: getattr(self, name)[rows, :columns] for name in _PER_RECURRENCE}
        return replace(
            self,
            workloads=(self.workloads[index],),
            workload_of=np.zeros(len(rows), dtype=np.int64),
            seeds=self.seeds[rows],
            recurrences=self.recurrences[rows],
            default=self.default[:, rows, :columns],
            actions=None,
            **figures,
        )

    def by_workload(self) -> Iterator[SimulationLog]:
        """One log per workload."""
        return (self.of_workload(index) for index in range(len(self.workloads)))

    def last(self, count: int) -> tuple[Floats, Floats, Floats]:
        """(jobs,): time, energy and cost of the last recurrences over those of the default."""
        columns = np.arange(self.cost.shape[1])[None, :]
        ends = self.recurrences[:, None]
        inside = (columns >= ends - count) & (columns < ends)

        def ratio(spent: Floats, expected: Floats) -> Floats:
            total = np.where(inside, spent, 0.0).sum(axis=1)
            return np.asarray(total / np.where(inside, expected, 0.0).sum(axis=1))

        seconds, joules, cost = self.default
        return ratio(self.seconds, seconds), ratio(self.joules, joules), ratio(self.cost, cost)


class LogBuilder:
    """Adds up what the actions of a simulation take, per job and recurrence."""

    def __init__(
        self,
        workloads: Sequence[TracedWorkload],
        workload_of: NDArray[np.int64],
        recurrences: NDArray[np.int64],
        options: SimulationConfig,
    ) -> None:
        self._workloads = tuple(workloads)
        self._workload_of = workload_of
        self._recurrences = recurrences
        self._options = options
        # Scores of the settings of each workload, per stage.
        self._scores = [
            [score_settings(stage, options.eta, options.objective) for _, stage in load.stages]
            for load in workloads
        ]
        shape = (len(workload_of), int(recurrences.max()))
        beyond = np.arange(shape[1])[None, :] >= recurrences[:, None]
        # (3, jobs, recurrences): seconds, joules and cost.
        self._spent = np.where(beyond, np.nan, np.zeros((3, *shape)))
        self._last = {name: np.full(shape, -1) for name in ("arm", "limit", "reason")}
        self._attempts = np.zeros(shape, dtype=np.int64)
        self._reached = np.zeros(shape, dtype=bool)
        self._actions: list[Results] = []
        self._done = 0

    def add(self, results: Results) -> None:
        """Add actions that ended; each job at most once per call."""
        cell = (results.job, results.recurrence)
        for spent, more in zip(
            self._spent, (results.seconds, results.joules, results.cost), strict=True
        ):
            spent[cell] += more
        trained = results.kind == ActionKind.TRAIN
        self._attempts[cell] += trained
        reached = results.end == RunEnd.REACHED
        self._reached[cell] |= reached
        self._done += int(reached.sum())
        for name, last in self._last.items():
            last[results.job[trained], results.recurrence[trained]] = getattr(results, name)[
                trained
            ]
        if self._options.keep_actions:
            self._actions.append(results)

    @property
    def share_done(self) -> float:
        """Share of all recurrences that are done."""
        return self._done / float(self._recurrences.sum())

    def finish(self, policy: Policy[Any], seeds: Seeds) -> SimulationLog:
        """The log of the whole simulation."""
        trained = self._last["arm"] >= 0
        expected, optimal, charge = (np.full(trained.shape, np.nan) for _ in range(3))
        within = np.zeros(trained.shape, dtype=bool)
        default, fastest = (np.zeros((count, *trained.shape)) for count in (3, 2))
        for index, load in enumerate(self._workloads):
            jobs, scores = np.flatnonzero(self._workload_of == index), self._scores[index]
            starts = [start for start, _ in load.stages]
            stage = np.searchsorted(starts, np.arange(trained.shape[1]), side="right") - 1
            at = stage, self._last["arm"][jobs], self._last["limit"][jobs]
            expected[jobs] = np.stack([score.expected for score in scores])[at]
            within[jobs] = np.stack([score.within for score in scores])[at]
            charge[jobs] = np.stack([score.charge for score in scores])[at]
            optimal[jobs] = np.array([score.optimal for score in scores])[stage]
            default[:, jobs] = np.stack([score.default for score in scores], axis=1)[:, None, stage]
            times = np.array(
                [(score.reference.seconds, score.reference.joules) for score in scores]
            )
            fastest[:, jobs] = times.T[:, None, stage]
        # Where the policy never produced the model, the owner trains the default in the end.
        seconds, joules, cost = np.where(self._reached, self._spent, self._spent + default)
        if (objective := self._options.objective) is not None:
            cost = np.asarray(objective.value(seconds, joules, Totals(*fastest))) * charge
        return SimulationLog(
            workloads=self._workloads,
            workload_of=self._workload_of,
            seeds=seeds,
            policy=policy.name,
            reasons=policy.reasons,
            eta=self._options.eta,
            recurrences=self._recurrences,
            attempts=self._attempts,
            reached=self._reached,
            seconds=seconds,
            joules=joules,
            cost=cost,
            expected=np.where(trained, expected, np.nan),
            within=trained & within,
            optimal=optimal,
            default=default,
            actions=_joined(self._actions) if self._options.keep_actions else None,
            **self._last,
        )


def _joined(parts: list[Results]) -> Results:
    names = Results.__dataclass_fields__
    return Results(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    )


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """One workload under one policy, over all seeds.

    Attributes:
        gpu: Type of the GPU.
        dataset: Name of the dataset; with traces of one's own, the job.
        network: Name of the model.
        optimizer: Name of the optimizer.
        policy: Name of the policy.
        recurrences: Number of recurrences per job.
        seeds: Number of jobs.
        regret_mean: Cost beyond the best fixed setting's expected cost, in units of that cost.
        regret_sd: Standard deviation of that over seeds.
        eta_last5_vs_default: Energy of the last five recurrences over the default's expectation.
        tta_last5_vs_default: Time, likewise.
        cost_last5_vs_optimal: Their cost over the best fixed setting's expectation.
        choice_last5_vs_optimal: Expected cost of the settings chosen there, without the chance.
        cost_total_vs_default: Cost of all recurrences over the default's expectation.
        within_last5: Share of the settings chosen there that are expected to keep the bounds of the
            objective, within 1 %; 1 without bounds.
        attempts_mean: Number of trainings per recurrence.
        failed: Share of recurrences that never reached the target.
    """

    gpu: str
    dataset: str
    network: str
    optimizer: str
    policy: str
    recurrences: int
    seeds: int
    regret_mean: float
    regret_sd: float
    eta_last5_vs_default: float
    tta_last5_vs_default: float
    cost_last5_vs_optimal: float
    choice_last5_vs_optimal: float
    cost_total_vs_default: float
    within_last5: float
    attempts_mean: float
    failed: float


def summaries(log: SimulationLog) -> list[PolicySummary]:
    """One summary per workload of ``log``."""
    return [_summary(part) for part in log.by_workload()]


def _summary(log: SimulationLog) -> PolicySummary:
    load = log.workloads[0]
    regret = log.final_regret()
    seconds, joules, _ = log.last(_LAST)
    cost, expected, optimal, within = (
        figures[:, -_LAST:] for figures in (log.cost, log.expected, log.optimal, log.within)
    )
    return PolicySummary(
        gpu=load.gpu,
        dataset=load.dataset,
        network=load.network,
        optimizer=load.optimizer,
        policy=log.policy,
        recurrences=log.cost.shape[1],
        seeds=len(log.seeds),
        regret_mean=float(regret.mean()),
        regret_sd=float(regret.std()),
        eta_last5_vs_default=float(joules.mean()),
        tta_last5_vs_default=float(seconds.mean()),
        cost_last5_vs_optimal=float(cost.sum() / optimal.sum()),
        choice_last5_vs_optimal=float(np.nanmean(expected / optimal)),
        cost_total_vs_default=float(np.mean(log.cost.sum(axis=1) / log.default[2].sum(axis=1))),
        within_last5=float(within.mean()),
        attempts_mean=float(log.attempts.mean()),
        failed=float(1.0 - log.reached.mean()),
    )


def write_actions(path: Path, logs: Sequence[SimulationLog]) -> None:
    """Write every action of ``logs``, which were made with ``keep_actions``, to a CSV file.

    Raises:
        FileError: The file cannot be written; what was there before is untouched.
    """
    try:
        with (
            replacing(path) as draft,
            open(draft, "w", newline="", encoding="utf-8", closefd=False) as file,
        ):
            writer = csv.writer(file)
            writer.writerow(CSV_COLUMNS)
            for log in logs:
                if log.actions is not None:
                    writer.writerows(_rows(log, log.actions))
    except OSError as error:
        raise FileError(
            f"cannot write {path}: {error.strerror}", remedy="choose another file with --log"
        ) from None


def _rows(log: SimulationLog, actions: Results) -> Iterator[tuple[object, ...]]:
    ratio = log.cost / log.optimal
    for i, job in enumerate(actions.job.tolist()):
        load = log.workloads[int(log.workload_of[job])]
        limit, ceiling = int(actions.limit[i]), actions.ceiling[i]
        yield (
            load.gpu,
            load.dataset,
            log.policy,
            int(log.seeds[job]),
            int(actions.recurrence[i]),
            ActionKind(int(actions.kind[i])).name.lower(),
            load.batch_sizes[int(actions.arm[i])],
            f"{load.limits_watts[limit]:g}" if limit >= 0 else "",
            RunEnd(int(actions.end[i])).name.lower(),
            f"{actions.epochs[i]:g}",
            f"{ceiling:.6g}" if math.isfinite(ceiling) else "",
            f"{actions.seconds[i]:.6g}",
            f"{actions.joules[i]:.6g}",
            f"{actions.cost[i]:.6g}",
            f"{ratio[job, actions.recurrence[i]]:.6g}",
            log.reasons[int(actions.reason[i])],
        )
