"""Replay of a cluster: groups of recurring jobs that overlap, each group with its own beliefs.

A job decides when it is submitted, with what its group has learned by then, and again whenever an
action of its own has ended short of the target. Groups share nothing, so a group is one job of a
``joulery.jobs.policies._job_batch.JobBatch``, its jobs are that job's recurrences, and every
step handles the next event of all groups at once. Groups are matched to workloads by their run
time (You et al., NSDI'23, §6.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import InvalidValueError
from joulery.jobs.policies import ActionKind, JobBatch
from joulery.simulate._environment import Environment
from joulery.simulate._runner import PolicyRunner, default_probing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from joulery.jobs.policies import Floats, Policy
    from joulery.simulate._job_groups import JobGroups
    from joulery.simulate._workload import TracedWorkload

    Indices = NDArray[np.int64]

ALL_JOBS = "all jobs"
# Enough to make a step's fixed cost small, few enough to stay in the processor's cache.
_GROUPS_AT_ONCE = 8192
_MOST_ITERATIONS = 300
_STEPS_BETWEEN_REPORTS = 32
_FIRST_WIDTH = 4


@dataclass(frozen=True, slots=True, eq=False)
class ReplayLog:
    """The result of every job.

    Attributes:
        workload: (jobs,), index of the job's workload.
        seconds: (jobs,), time of all attempts, scaled to the job's size.
        joules: (jobs,), energy, likewise.
        cost: (jobs,), cost, likewise.
        optimal: (jobs,), expected cost of the best fixed setting, likewise.
        arm: (jobs,), batch size of the last attempt.
        attempts: (jobs,), number of trainings.
        overlapping: (jobs,), number of earlier jobs of the group that were under way when this one
            first decided.
    """

    workload: Indices
    seconds: Floats
    joules: Floats
    cost: Floats
    optimal: Floats
    arm: Indices
    attempts: Indices
    overlapping: Indices


def replay(
    groups: JobGroups,
    workloads: Sequence[TracedWorkload],
    policy: Policy[Any],
    *,
    eta: float = 0.5,
    seed: int = 0,
    on_progress: Callable[[float], None] | None = None,
) -> ReplayLog:
    """Run every job of every group under ``policy``.

    Args:
        groups: Groups of jobs with their submission times.
        workloads: Workloads on one type of GPU; groups are matched to them by run time.
        policy: Policy that decides.
        eta: Weight of energy in the cost, 0 to 1.
        seed: Seed of all random numbers.
        on_progress: Function called now and then with the share of jobs that are done.
    """
    workload, ratio = match_groups(groups, workloads)
    optimal = np.array([load.optimum(eta)[2] for load in workloads])
    of_job = workload[groups.group_of_job]
    log = ReplayLog(
        workload=of_job,
        seconds=np.zeros(groups.jobs),
        joules=np.zeros(groups.jobs),
        cost=np.zeros(groups.jobs),
        optimal=optimal[of_job] * ratio,
        arm=np.full(groups.jobs, -1),
        attempts=np.zeros(groups.jobs, dtype=np.int64),
        overlapping=np.zeros(groups.jobs, dtype=np.int64),
    )
    descriptions = [load.job(eta) for load in workloads]
    usual = np.array([default_seconds(load) for load in workloads])[of_job]
    # Groups of similar length together, so that those of one step end together.
    order = np.argsort(groups.sizes, kind="stable")
    for begin in range(0, len(groups), _GROUPS_AT_ONCE):
        chosen = order[begin : begin + _GROUPS_AT_ONCE]
        described = [descriptions[load] for load in workload[chosen].tolist()]
        jobs = JobBatch.of(described, (chosen + (seed << 32)).tolist())
        environment = Environment(workloads, workload[chosen], jobs, default_probing(policy.name))
        runner = PolicyRunner(policy, jobs, environment, _FIRST_WIDTH)
        _Replay(runner, groups, chosen, ratio, usual, log).run(on_progress)
    return log


def match_groups(groups: JobGroups, workloads: Sequence[TracedWorkload]) -> tuple[Indices, Floats]:
    """Cluster the groups by mean run time, and give the longest cluster the longest workload.

    Returns:
        (groups,), index of each group's workload; and (jobs,), size of each job: its duration over
        the mean duration of its cluster's jobs.

    Raises:
        InvalidValueError: There are fewer groups than workloads.
    """
    if len(groups) < len(workloads):
        raise InvalidValueError(
            f"{len(groups)} groups cannot be matched to {len(workloads)} workloads",
            remedy="give at least as many groups as there are workloads, or choose fewer of these",
        )
    # Group means span five orders of magnitude: on plain seconds nearly all jobs would fall into
    # the shortest cluster, and the longest would be one or two groups.
    cluster = k_means(np.log(groups.mean_seconds), len(workloads))
    by_time = np.argsort([default_seconds(load) for load in workloads], kind="stable")
    of_job = cluster[groups.group_of_job]
    counts = np.bincount(of_job, minlength=len(workloads))
    sums = np.bincount(of_job, groups.duration_seconds, minlength=len(workloads))
    mean = sums / np.maximum(counts, 1)
    return by_time[cluster], groups.duration_seconds / mean[of_job]


def default_seconds(load: TracedWorkload) -> float:
    """Expected time to accuracy with the default setting."""
    arm, limit = load.default_setting()
    return float(load.mean_epochs()[arm] * load.epoch_seconds[arm, limit])


def k_means(values: Floats, clusters: int) -> Indices:
    """Lloyd's algorithm on one dimension: the cluster of each value, numbered from the least.

    It starts from the quantiles' means, so that the result does not depend on chance.
    """
    ordered = np.sort(values)
    centres = np.array([piece.mean() for piece in np.array_split(ordered, clusters)])
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    bounds = np.zeros(clusters + 1, dtype=np.int64)
    for _ in range(_MOST_ITERATIONS):
        middles = (centres[1:] + centres[:-1]) / 2
        boundaries = np.concatenate(([0], np.searchsorted(ordered, middles), [len(ordered)]))
        if np.array_equal(boundaries, bounds):
            break
        bounds = boundaries
        sizes = np.diff(bounds)
        means = np.diff(sums[bounds]) / np.maximum(sizes, 1)
        centres = np.sort(np.where(sizes > 0, means, centres))
    return np.searchsorted((centres[1:] + centres[:-1]) / 2, values, side="right")


class _Replay:
    """The loop over one batch of groups."""

    def __init__(
        self,
        runner: PolicyRunner,
        groups: JobGroups,
        chosen: Indices,
        ratio: Floats,
        usual: Floats,
        log: ReplayLog,
    ) -> None:
        self._runner, self._ratio, self._log = runner, ratio, log
        self._first, self._end = groups.first[chosen], groups.first[chosen + 1]
        self._next = self._first.copy()
        # A sentinel that is never due, for groups without another job.
        self._submits = np.append(groups.submit_seconds, np.inf)
        # Trace seconds that one second of the traced training stands for, job by job: with the
        # default setting a job takes as long as it took in the cluster's trace.
        self._stretch = groups.duration_seconds / usual

    def run(self, on_progress: Callable[[float], None] | None) -> None:
        """Replay from the first submission to the last end."""
        active = np.arange(len(self._first))
        steps = 0
        while active.size:
            slot, ends = self._runner.next_end(active)
            following = np.where(self._next[active] < self._end[active], self._next[active], -1)
            submits = self._submits[following]
            now = np.minimum(ends, submits)
            due = np.isfinite(now)
            active = active[due]
            self._step(active, slot[due], (ends <= submits)[due], now[due])
            steps += 1
            if on_progress and steps % _STEPS_BETWEEN_REPORTS == 0:
                on_progress(float((self._log.attempts > 0).mean()))

    def _step(self, group: Indices, slot: Indices, ending: NDArray[np.bool_], now: Floats) -> None:
        """Learn from what ended, then decide for what goes on and what begins."""
        acting = ~ending
        if ending.any():
            acting[ending] = self._learn(group[ending], slot[ending])
        if not ending.all():
            slot[~ending] = self._submit(group[~ending])
        if acting.any():
            self._act(group[acting], slot[acting], now[acting])

    def _learn(self, group: Indices, slot: Indices) -> NDArray[np.bool_]:
        """Fold in what ended; (rows,), whether each job needs another action."""
        outcomes, log = self._runner.end(group, slot), self._log
        job = self._first[group] + outcomes.recurrence
        ratio = self._ratio[job]
        log.seconds[job] += outcomes.seconds * ratio
        log.joules[job] += outcomes.joules * ratio
        log.cost[job] += outcomes.cost * ratio
        trained = outcomes.kind == ActionKind.TRAIN
        log.attempts[job] += trained
        log.arm[job[trained]] = outcomes.arm[trained]
        # Per unit of a job's size: owners can report the amount of data of a job.
        self._runner.learn(outcomes)
        return ~self._runner.is_done(outcomes, slot)

    def _submit(self, group: Indices) -> Indices:
        """Begin the next job of each group; its slot."""
        job = self._next[group]
        self._next[group] += 1
        self._log.overlapping[job] = self._runner.in_flight(group)
        return self._runner.submit(group, job - self._first[group])

    def _act(self, group: Indices, slot: Indices, now: Floats) -> None:
        actions = self._runner.decide(group)
        job = self._first[group] + self._runner.recurrence(group, slot)
        seconds = self._runner.act(group, slot, actions)
        self._runner.finish[group, slot] = now + seconds * self._stretch[job]


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """The jobs of one workload, or all of them, under one policy.

    Attributes:
        gpu: Type of the GPU.
        workload: Name of the dataset, or ``ALL_JOBS``.
        policy: Name of the policy.
        jobs: Number of jobs.
        eta_vs_default: Energy over that of the policy ``default``.
        tta_vs_default: Time, likewise.
        regret_vs_optimum: Cost beyond the best fixed settings, as a share of theirs.
        jobs_while_others_run: Share of the jobs that decided while an earlier one was under way.
    """

    gpu: str
    workload: str
    policy: str
    jobs: int
    eta_vs_default: float
    tta_vs_default: float
    regret_vs_optimum: float
    jobs_while_others_run: float


def summarize_replays(
    logs: Mapping[str, ReplayLog], workloads: Sequence[TracedWorkload]
) -> list[ReplaySummary]:
    """Energy and time per workload and policy, relative to the policy ``default``.

    Args:
        logs: Logs by policy, of the same groups on the same GPU; one is ``default``.
        workloads: Workloads that the groups were matched to.
    """
    base = logs["default"]
    masks = [(load.dataset, base.workload == at) for at, load in enumerate(workloads)]
    masks.append((ALL_JOBS, np.ones(len(base.workload), dtype=bool)))
    return [
        ReplaySummary(
            gpu=workloads[0].gpu,
            workload=name,
            policy=policy,
            jobs=int(mask.sum()),
            eta_vs_default=float(log.joules[mask].sum() / base.joules[mask].sum()),
            tta_vs_default=float(log.seconds[mask].sum() / base.seconds[mask].sum()),
            regret_vs_optimum=float(log.cost[mask].sum() / log.optimal[mask].sum() - 1.0),
            jobs_while_others_run=float((log.overlapping[mask] > 0).mean()),
        )
        for name, mask in masks
        if mask.any()
        for policy, log in logs.items()
    ]
