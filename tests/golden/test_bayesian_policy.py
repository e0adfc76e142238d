"""Against the published traces: how much less joulery's search costs than Zeus's."""

import os
from pathlib import Path

import numpy as np
import pytest

from joulery.jobs.policies import DefaultPolicy, ZeusPolicy
from joulery.jobs.policies.bayesian._policy import BayesianPolicy
from joulery.objectives import EnergyDelayProduct, LeastEnergy
from joulery.simulate import SimulationConfig, read_traces, simulate

DATA = Path(os.environ.get("JOULERY_DATA", Path(__file__).parents[3] / "shared" / "data"))
TRACES = DATA / "zeus"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="needs the traces of You et al.")
SEEDS = range(12)


@pytest.fixture(scope="module")
def logs():
    """Both policies on every workload and GPU, horizon as published."""
    loads = read_traces(TRACES).workloads
    return {
        policy.name: simulate(loads, policy, None, SEEDS)
        for policy in (BayesianPolicy(), ZeusPolicy())
    }


def regrets(log):
    """Mean final regret per workload."""
    return np.array([part.final_regret().mean() for part in log.by_workload()])


def test_less_than_half_the_regret(logs):
    """The reason for this policy to exist."""
    ours, theirs = regrets(logs["joulery"]), regrets(logs["zeus"])
    assert ours.sum() < 0.5 * theirs.sum()
    assert np.exp(np.log(np.maximum(ours, 0.02) / theirs).mean()) < 0.5


def test_no_workload_pays_for_the_others(logs):
    """A job's owner sees only that job."""
    assert (regrets(logs["joulery"]) < 1.1 * regrets(logs["zeus"])).all()


def test_never_dearer_than_no_optimisation(logs):
    """The least a user may expect."""
    for part in logs["joulery"].by_workload():
        assert part.cost.sum() < part.default[2].sum(), str(part.workloads[0])


def test_a_short_series_costs_no_more_than_the_default(logs):
    """A month of nights must pay for the search that is made in it."""
    default = simulate(read_traces(TRACES).workloads, DefaultPolicy(), 24, SEEDS)
    for part, plain in zip(logs["joulery"].by_workload(), default.by_workload(), strict=True):
        assert part.cost[:, :24].sum() < 1.01 * plain.cost.sum(), str(part.workloads[0])


def test_ends_at_the_optimum(logs):
    """Savings come from where the search ends."""
    excess = [
        (
            part.workloads[0].expected_cost()[part.arm[:, -5:], part.limit[:, -5:]]
            / part.workloads[0].optimum()[2]
        ).mean()
        for part in logs["joulery"].by_workload()
    ]
    assert np.mean(excess) < 1.015


def test_every_recurrence_gets_its_model(logs):
    """Stopping and restarting must end in a trained model each time."""
    log = logs["joulery"]
    assert log.reached[np.isfinite(log.cost)].all()


@pytest.mark.parametrize(
    ("objective", "least"),
    [
        (LeastEnergy(max_slowdown=0.0), 0.75),
        (LeastEnergy(max_slowdown=0.05), 0.75),
        (LeastEnergy(max_slowdown=0.2), 0.8),
        (EnergyDelayProduct(), 0.85),
    ],
    ids=str,
)
def test_other_objectives_end_at_their_best_setting(objective, least):
    """Within 2 % of the best setting that keeps the bound, and 1 % of the bound, for most jobs."""
    loads = read_traces(TRACES).workloads
    options = SimulationConfig(objective=objective)
    log = simulate(loads, BayesianPolicy(objective=objective), None, range(6), options)
    settled = [
        ((part.expected <= 1.02 * part.optimal) & part.within)[:, -5:].sum(axis=1) >= 3
        for part in log.by_workload()
    ]
    assert np.mean(settled) >= least
