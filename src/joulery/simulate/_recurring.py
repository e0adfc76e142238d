"""Simulation of recurring jobs under a policy: many workloads and seeds at once.

A recurrence is a sequence of actions until a training reaches its target; all of them are paid.
With ``overlap`` above one, that many recurrences of a job are under way at once, and what one
shows is known to the others when it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import InvalidValueError
from joulery.jobs.policies import JobBatch, OraclePolicy
from joulery.simulate._environment import Environment
from joulery.simulate._log import LogBuilder
from joulery.simulate._runner import PolicyRunner, default_probing
from joulery.simulate._workload import score_settings
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from joulery.jobs.policies import Policy
    from joulery.objectives import Objective
    from joulery.simulate._environment import Probing
    from joulery.simulate._log import SimulationLog
    from joulery.simulate._workload import TracedWorkload

_STEPS_BETWEEN_REPORTS = 16


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """Options of a simulation.

    Attributes:
        eta: Weight of energy in the cost, 0 to 1.
        objective: Objective to judge by instead of the cost; None for the cost.
        probing: Model of profiling; None for the policy's usual one.
        overlap: Number of recurrences of one job that are under way at once.
        keep_actions: Whether the log keeps every single action.
        on_progress: Function called now and then with the share of recurrences that are done.
    """

    eta: float = 0.5
    objective: Objective | None = None
    probing: Probing | None = None
    overlap: int = 1
    keep_actions: bool = False
    on_progress: Callable[[float], None] | None = None

    def __post_init__(self) -> None:
        finite(self.eta, "eta", minimum=0.0)
        finite(self.overlap, "overlap", minimum=1.0)


DEFAULT_OPTIONS = SimulationConfig()


def horizon(workload: TracedWorkload) -> int:
    """Recurrences as You et al. (NSDI'23) simulate them: twice the number of settings."""
    return 2 * len(workload.batch_sizes) * len(workload.limits_watts)


def make_oracle(
    workloads: Sequence[TracedWorkload],
    seeds: Sequence[int],
    eta: float,
    objective: Objective | None = None,
) -> OraclePolicy:
    """The oracle policy: each workload's best fixed setting, for the jobs of a simulation."""
    scores = [score_settings(load, eta, objective) for load in workloads]
    best = np.array([(score.arm, score.limit) for score in scores]).repeat(len(seeds), axis=0)
    return OraclePolicy(best[:, 0], best[:, 1])


def simulate(
    workloads: Sequence[TracedWorkload],
    policy: Policy[Any],
    recurrences: int | None,
    seeds: Sequence[int],
    options: SimulationConfig = DEFAULT_OPTIONS,
) -> SimulationLog:
    """Replay every workload with every seed.

    Args:
        workloads: Workloads that are trained again and again.
        policy: Policy that decides.
        recurrences: Number of recurrences of each job; None for ``horizon``.
        seeds: Seeds; there is one job per workload and seed, ordered by workload, then by seed.
        options: Options of the simulation.
    """
    if not workloads or not seeds:
        raise InvalidValueError(
            "nothing to simulate", remedy="give at least one workload and one seed"
        )
    workload_of = np.repeat(np.arange(len(workloads)), len(seeds))
    descriptions = [load.job(options.eta) for load in workloads]
    jobs = JobBatch.of(
        [descriptions[load] for load in workload_of], [seed for _ in workloads for seed in seeds]
    )
    counts = np.array([recurrences or horizon(load) for load in workloads])[workload_of]
    probing = options.probing or default_probing(policy.name)
    environment = Environment(workloads, workload_of, jobs, probing)
    runner = PolicyRunner(policy, jobs, environment, options.overlap)
    log = LogBuilder(workloads, workload_of, counts, options)
    _run(runner, log, counts, options)
    return log.finish(policy, jobs.seeds)


def _run(
    runner: PolicyRunner,
    log: LogBuilder,
    recurrences: NDArray[np.int64],
    options: SimulationConfig,
) -> None:
    """Simulate to the end: learn what ended first in each job, then decide what follows."""
    everyone = np.arange(len(recurrences))
    begun = np.zeros(len(recurrences), dtype=np.int64)
    for _ in range(options.overlap):
        job = everyone[begun < recurrences]
        slot = runner.submit(job, begun[job])
        begun[job] += 1
        runner.finish[job, slot] = runner.act(job, slot, runner.decide(job))
    steps = 0
    while True:
        slot, now = runner.next_end(everyone)
        job = np.flatnonzero(np.isfinite(now))
        if not job.size:
            return
        slot, now = slot[job], now[job]
        results = runner.end(job, slot)
        runner.learn(results)
        log.add(results)
        done = runner.is_done(results, slot)
        starts = done & (begun[job] < recurrences[job])
        slot[starts] = runner.submit(job[starts], begun[job[starts]])
        begun[job[starts]] += 1
        acting = starts | ~done
        job, slot, now = job[acting], slot[acting], now[acting]
        if job.size:
            runner.finish[job, slot] = now + runner.act(job, slot, runner.decide(job))
        steps += 1
        if options.on_progress and steps % _STEPS_BETWEEN_REPORTS == 0:
            options.on_progress(log.share_done)
