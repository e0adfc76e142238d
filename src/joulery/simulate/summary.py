"""A simulation in a few figures per workload and policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from joulery.simulate.log import SimulationLog

_LAST = 5


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """One workload under one policy, over all seeds.

    Attributes:
        gpu: Where.
        dataset: What; with traces of one's own, the job.
        network: The model.
        optimizer: Of the training.
        policy: What chose.
        recurrences: Per job.
        seeds: How many jobs.
        regret_mean: Cost beyond the best fixed setting's expected cost, in units of that cost.
        regret_sd: Its standard deviation over seeds.
        eta_last5_vs_default: Energy of the last five recurrences against Default's expectation.
        tta_last5_vs_default: Time, likewise.
        cost_last5_vs_optimal: Their cost against the best fixed setting's expectation.
        choice_last5_vs_optimal: The expected cost of the settings chosen there, without the luck.
        cost_total_vs_default: Cost of all recurrences against Default's expectation.
        within_last5: Share of the settings chosen there that are expected to keep the bounds of the
            objective, within 1 %; 1 without bounds.
        attempts_mean: Trainings per recurrence.
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
    """One per workload of ``log``."""
    return [_summary(part) for part in log.by_workload()]


def _summary(log: SimulationLog) -> PolicySummary:
    load = log.workloads[0]
    regret = log.final_regret()
    seconds, joules, _ = log.last(_LAST)
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
        cost_last5_vs_optimal=float(log.cost[:, -_LAST:].sum() / log.optimal[:, -_LAST:].sum()),
        choice_last5_vs_optimal=float(
            np.nanmean(log.expected[:, -_LAST:] / log.optimal[:, -_LAST:])
        ),
        cost_total_vs_default=float(np.mean(log.cost.sum(axis=1) / log.default[2].sum(axis=1))),
        within_last5=float(log.within[:, -_LAST:].mean()),
        attempts_mean=float(log.attempts.mean()),
        failed=float(1.0 - log.reached.mean()),
    )
