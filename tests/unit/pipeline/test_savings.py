"""What plans save against full clocks, for every kind of target."""

import pytest

from joulery.errors import InfeasibleError
from joulery.pipeline import (
    PipelineConfig,
    plan_pipeline,
    plan_saving,
    profiles_from_rows,
)
from support.pipelines import random_rows, replay


@pytest.fixture(scope="module")
def plan():
    """Three stages, four microbatches."""
    config = PipelineConfig(blocking_watts=70.0)
    return plan_pipeline(
        profiles_from_rows(random_rows(3, 4, clocks=10)), microbatches=4, config=config
    )


def test_equal_time_is_no_longer_than_full_clocks(plan):
    """If it fails savings cost time that is not shown."""
    saving = plan_saving(plan)
    assert saving.seconds == plan.full_clocks.seconds
    assert saving.plan.seconds <= plan.full_clocks.seconds
    assert 0 < saving.saved < 1
    assert saving.full_clocks_joules == pytest.approx(plan.full_clocks.joules)


def test_a_saving_is_that_of_the_frontier_and_of_the_file(plan, tmp_path):
    """If it fails one report, or a report and the saved plan, state two energies of one plan."""
    rows = random_rows(8, 3, clocks=24)
    plan = plan_pipeline(profiles_from_rows(rows), microbatches=16)
    equal = plan_saving(plan, plan.fastest_seconds)
    assert equal.joules == plan.frontier_plans[0].joules
    assert plan.best_by(plan.fastest_seconds).joules == equal.joules
    assert equal.joules <= plan.at(plan.fastest_seconds).joules


def test_a_straggler_makes_full_clocks_wait_too(plan):
    """If it fails the plan is compared with pipelines that need not wait."""
    equal, late = plan_saving(plan), plan_saving(plan, 1.2 * plan.full_clocks.seconds)
    assert late.seconds == pytest.approx(1.2 * equal.seconds)
    waiting = plan.full_clocks.blocking_watts * (late.seconds - equal.seconds)
    assert late.full_clocks_joules == pytest.approx(equal.full_clocks_joules + waiting)
    assert late.saved > equal.saved


def test_a_deadline_of_ones_own_is_not_waited_for(plan):
    """If it fails a pipeline without a straggler waits until its deadline."""
    saving = plan_saving(plan, 100.0, waits=False)
    assert saving.seconds == saving.plan.seconds < 100.0
    assert saving.joules == saving.plan.joules
    assert saving.full_clocks_joules == plan.full_clocks.joules


def test_figures_are_those_of_an_independent_simulation(plan):
    """If it fails savings exist on paper only."""
    for factor in (1.0, 1.1):
        saving = plan_saving(plan, factor * plan.full_clocks.seconds)
        for table, joules in (
            (saving.plan, saving.joules),
            (plan.full_clocks, saving.full_clocks_joules),
        ):
            run = replay(plan.problem, table.durations, table.joules_each, saving.seconds)
            assert run.joules == pytest.approx(joules, rel=1e-12)
            assert run.starts.tolist() == pytest.approx(table.starts.tolist(), rel=1e-12)
        assert saving.lower_bound_joules <= saving.joules * (1 + 1e-12)
        assert saving.gap >= 0


def test_impossible_targets_are_refused(plan):
    """If it fails a saving is promised that no clocks reach."""
    with pytest.raises(InfeasibleError, match="no clocks finish"):
        plan_saving(plan, 0.5 * plan.fastest_seconds, waits=False)
