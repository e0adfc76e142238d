"""What simulations are judged by."""

import dataclasses

import numpy as np
import pytest

from joulery.errors import InfeasibleError
from joulery.jobs.policies._default import DefaultPolicy, OraclePolicy
from joulery.jobs.policies.bayesian._policy import BayesianPolicy
from joulery.objectives import EnergyDelayProduct, EnergyDelaySum, LeastEnergy
from joulery.simulate import SimulationConfig, make_oracle, simulate, summaries
from joulery.simulate._workload import score_settings
from joulery.testing.workloads import made_up_workload

LOAD = made_up_workload()
MEAN = LOAD.mean_epochs()[:, None]
SECONDS, JOULES = MEAN * LOAD.epoch_seconds, MEAN * LOAD.epoch_joules


def test_without_an_objective_the_cost_counts():
    """Regret is published in units of the optimal cost."""
    standard = score_settings(LOAD, 0.5, None)
    assert (standard.arm, standard.limit, standard.optimal) == LOAD.optimum(0.5)
    assert standard.within.all()


def test_the_best_keeps_the_bound():
    """A cheaper setting that is too slow is no measure."""
    standard = score_settings(LOAD, 0.5, LeastEnergy(max_slowdown=0.1))
    longest = 1.1 * SECONDS.min()
    assert SECONDS[standard.arm, standard.limit] <= longest
    assert standard.optimal == pytest.approx(JOULES[longest >= SECONDS].min())
    assert np.array_equal(standard.within, longest * 1.01 >= SECONDS)


def test_products_and_sums_refer_to_expected_runs():
    """Other objectives are judged by what settings are expected to take."""
    product = score_settings(LOAD, 0.5, EnergyDelayProduct())
    assert product.optimal == pytest.approx((SECONDS * JOULES).min())
    fastest = SECONDS.argmin()
    total = score_settings(LOAD, 0.5, EnergyDelaySum(2.0))
    expected = 0.5 * SECONDS / SECONDS.flat[fastest] + 0.5 * JOULES / JOULES.flat[fastest]
    assert total.optimal == pytest.approx(expected.min())


def test_a_bound_that_nothing_meets_is_refused():
    """Regret against nothing would be a number without a meaning."""
    with pytest.raises(InfeasibleError, match="no setting meets"):
        score_settings(LOAD, 0.5, LeastEnergy(deadline_seconds=0.5 * SECONDS.min()))


def test_the_oracle_has_no_regret_and_keeps_the_bound():
    """It is what regret refers to."""
    objective = LeastEnergy(max_slowdown=0.1)
    seeds = range(20)
    log = simulate(
        [LOAD],
        make_oracle([LOAD], seeds, 0.5, objective),
        40,
        seeds,
        SimulationConfig(objective=objective),
    )
    (found,) = summaries(log)
    assert abs(found.regret_mean) < 1.0
    assert found.within_last5 == 1.0


@pytest.mark.parametrize("slowdown", [0.0, 0.05])
def test_a_setting_just_beyond_a_bound_does_not_beat_the_oracle(slowdown):
    """A policy that is a little slower than allowed must not look better than the best one can."""
    objective = LeastEnergy(max_slowdown=slowdown)
    best = score_settings(LOAD, 0.5, objective)
    late = best.reference.seconds * (1 + slowdown) * 1.005 / LOAD.mean_epochs()[best.arm]
    seconds, watts = LOAD.epoch_seconds.copy(), LOAD.watts.copy()
    other = (best.limit + 1) % len(LOAD.limits_watts)
    seconds[best.arm, other], watts[best.arm, other] = late, 1.0
    load = dataclasses.replace(LOAD, epoch_seconds=seconds, watts=watts)
    best = score_settings(load, 0.5, objective)
    cheat = OraclePolicy(np.full(4, best.arm), np.full(4, other))
    options = SimulationConfig(objective=objective)
    log = simulate([load], cheat, 40, range(4), options)
    assert log.within.all()
    oracle = simulate([load], make_oracle([load], range(4), 0.5, objective), 40, range(4), options)
    assert log.final_regret() == pytest.approx(oracle.final_regret(), abs=1e-6)


def test_breaking_a_bound_is_not_credited():
    """Else a policy that ignores the bound would look best."""
    objective = LeastEnergy(max_slowdown=0.0)
    log = simulate([LOAD], DefaultPolicy(), 20, range(3), SimulationConfig(objective=objective))
    assert not log.within.any()
    assert (log.cost >= log.optimal).all()
    wanted = simulate(
        [LOAD], BayesianPolicy(objective), 60, range(6), SimulationConfig(objective=objective)
    )
    assert wanted.within[:, -5:].mean() > 0.8
