"""Whatever the job, the policy and the luck: what must hold of every simulation."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from joulery.jobs.policies import ActionKind, RunEnd, ZeusPolicy
from joulery.jobs.policies._grid import GridSearchPolicy
from joulery.simulate import SimulationConfig, Slices, simulate
from joulery.simulate._environment import EpochAtMean
from joulery.testing.workloads import made_up_workload

SIZES = (8, 16, 32, 64, 128, 256)


@st.composite
def workloads(draw):
    """Any set of batch sizes, limits and runs, some of which never reach the target."""
    sizes = sorted(draw(st.sets(st.sampled_from(SIZES), min_size=1)))
    default = draw(st.sampled_from(sizes))
    never = draw(st.sets(st.sampled_from(sizes))) - {default}
    limits = sorted(draw(st.sets(st.sampled_from((100.0, 150.0, 200.0, 300.0)), min_size=1)))
    load = made_up_workload(
        sizes,
        best=draw(st.sampled_from(sizes)),
        default=default,
        limits_watts=limits,
        runs=draw(st.integers(1, 4)),
        never=tuple(never),
    )
    for arm in range(len(sizes)):  # holes in the trace, but one limit of each batch size stays
        for limit in range(1, len(limits)):
            if draw(st.booleans()):
                load.epoch_seconds[arm, limit] = np.nan
                load.watts[arm, limit] = np.nan
    return load


POLICIES = st.sampled_from(
    [
        ZeusPolicy(),
        ZeusPolicy(beta=1.2),
        ZeusPolicy(beta=np.inf),
        ZeusPolicy(window=3),
        GridSearchPolicy(),
    ]
)
PROBINGS = st.sampled_from([EpochAtMean(), Slices(), Slices(0.5, 0.2)])


@pytest.mark.slow
@settings(max_examples=60)
@given(workloads(), POLICIES, PROBINGS, st.integers(1, 6), st.integers(0, 2**63))
def test_books_balance(load, policy, probing, overlap, seed):
    """Every recurrence ends, costs add up, and no setting comes from outside the trace."""
    options = SimulationConfig(probing=probing, overlap=overlap, keep_actions=True)
    log = simulate([load], policy, 15, [seed], options)
    actions = log.actions
    assert (log.attempts[0] >= 1).all()
    assert (log.attempts[0] <= 20).all()
    assert np.isfinite(log.cost).all()
    assert (log.cost > 0).all()
    trained = actions.kind == ActionKind.TRAIN
    assert np.isfinite(load.epoch_seconds[actions.arm[trained], actions.limit[trained]]).all()
    total = np.zeros_like(log.cost)
    np.add.at(total, (actions.job, actions.recurrence), actions.cost)
    assert np.allclose(total[log.reached], log.cost[log.reached])
    assert (actions.end == RunEnd.REACHED).sum() == log.reached.sum()
    stopped = trained & (actions.end == RunEnd.STOPPED)
    if probing.within_budget:
        assert (actions.cost[stopped] <= actions.ceiling[stopped] * (1 + 1e-9)).all()


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(workloads(), min_size=2, max_size=3), POLICIES, st.integers(1, 4))
def test_company_changes_nothing(loads, policy, overlap):
    """A job simulated among others does what it does alone, bit for bit."""
    options = SimulationConfig(overlap=overlap)
    together = simulate(loads, policy, 12, [1, 2], options)
    for position, load in enumerate(loads):
        alone = simulate([load], policy, 12, [1, 2], options)
        beside = together.of_workload(position)
        assert np.array_equal(alone.arm, beside.arm)
        assert np.array_equal(alone.limit, beside.limit)
        assert np.allclose(alone.cost, beside.cost, rtol=1e-12)
