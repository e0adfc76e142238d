"""What a workload expects of its settings."""

import numpy as np
import pytest

from joulery.testing.workloads import made_up_workload


def test_failed_runs_are_repeated():
    """An arm that fails half the time costs its failures too."""
    load = made_up_workload((32, 64), default=64, runs=2)
    load.epochs[0] = [np.nan, 20.0]
    assert load.mean_epochs()[0] == 100 + 20


def test_out_of_reach_costs_infinity():
    """An arm that never reaches the target must never look best."""
    load = made_up_workload(never=(64,))
    assert np.isinf(load.mean_epochs()[2])
    assert load.batch_sizes[load.optimum()[0]] != 64


def test_padding_is_no_run():
    """Arms with fewer runs than others must not count the padding as failures."""
    load = made_up_workload((32, 64), default=64, runs=3)
    load.epochs[0, 2] = np.nan
    load.runs[0] = 2
    assert load.mean_epochs()[0] == pytest.approx(load.epochs[0, :2].mean())


def test_optimum_is_the_least_of_all_settings():
    """Regret is measured from the best fixed setting."""
    load = made_up_workload()
    arm, limit, cost = load.optimum(0.5)
    assert load.batch_sizes[arm] == 64
    assert cost == np.nanmin(load.expected_cost(0.5)) == load.expected_cost(0.5)[arm, limit]


def test_eta_turns_the_optimum():
    """Energy alone wants a lower limit than time alone."""
    load = made_up_workload()
    assert load.optimum(1.0)[1] < load.optimum(0.0)[1]


def test_default_setting_is_the_highest_measured_limit():
    """Without optimisation a board runs at its highest limit, as far as it was measured."""
    load = made_up_workload()
    assert load.default_setting() == (4, 3)
    load.epoch_seconds[4, 3] = np.nan
    assert load.default_setting() == (4, 2)


def test_job_says_what_a_policy_may_know():
    """A policy gets the owner's wishes, not the trace."""
    job = made_up_workload().job(0.3)
    assert job.batch_sizes == (16, 32, 64, 128, 256, 512)
    assert (job.default, job.cost.eta, job.cost.max_watts) == (256, 0.3, 250.0)


def test_names():
    """Messages name the workload as people do."""
    load = made_up_workload()
    assert str(load) == "set on made-up"
