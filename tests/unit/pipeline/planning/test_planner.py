"""Plans for deadlines, stragglers and power budgets."""

import json

import numpy as np
import pytest

from joulery.errors import FileError, InfeasibleError, InvalidValueError
from joulery.frontier import OperatingPoint, Origin, Provenance, Setting
from joulery.objectives import Cost, LeastEnergy
from joulery.pipeline import (
    ClockChoices,
    Instruction,
    PipelineConfig,
    PipelinePlan,
    PipelineProblem,
    build_problem,
    load_plan,
    load_rank_plan,
    make_schedule,
    plan_pipeline,
    profiles_from_rows,
)
from support.pipelines import random_problem, random_rows, replay


@pytest.fixture(scope="module")
def pipeline():
    """Four stages, six microbatches."""
    profiles = profiles_from_rows(random_rows(4, 3), smooth=False)
    return build_problem(make_schedule("1f1b", 4, 6), profiles, PipelineConfig(blocking_watts=70.0))


@pytest.fixture(scope="module")
def frontier(pipeline):
    """All its plans."""
    return PipelinePlan(pipeline)


def one_instruction(points, blocking=0.0):
    """The least there is to plan."""
    return PipelineProblem(
        (Instruction(0, 0, "forward", 0),),
        (ClockChoices(points),),
        np.array([0]),
        np.array([], dtype=np.int64),
        np.array([], dtype=np.int64),
        np.array([]),
        np.array([blocking]),
    )


def test_a_plan_keeps_what_it_promises(pipeline, frontier):
    """If it fails the simulator disagrees with the plan's time or energy."""
    for share in (0.0, 0.1, 0.5, 1.0):
        span = frontier.slowest_seconds - frontier.fastest_seconds
        plan = frontier.at(frontier.fastest_seconds + share * span)
        run = replay(pipeline, plan.durations, plan.joules_each)
        assert run.seconds == pytest.approx(plan.seconds, rel=1e-12)
        assert run.joules == pytest.approx(plan.joules, rel=1e-9)
        assert run.starts == pytest.approx(plan.starts, rel=1e-12)


def test_points_and_clocks_are_those_of_the_profile(pipeline, frontier):
    """If it fails a rank gets another clock than the one that was planned with."""
    plan = frontier.at(frontier.least_energy_seconds)
    for i in range(len(pipeline)):
        points = pipeline.profiles[pipeline.profile_of[i]].points
        (point,) = (p for p in points if p.setting.clock_hertz == plan.clocks_hertz[i])
        assert point.seconds == plan.durations[i]
        assert point.joules == plan.joules_each[i]


def test_fastest_deadline_is_met_to_the_last_digit(frontier):
    """If it fails the plan of no slowdown is refused or late."""
    assert frontier.at(frontier.fastest_seconds).seconds <= frontier.fastest_seconds


def test_deadline_below_the_fastest_is_refused(frontier):
    """If it fails an impossible plan is handed out."""
    with pytest.raises(InfeasibleError, match="no clocks finish") as caught:
        frontier.at(frontier.fastest_seconds * 0.999)
    assert f"{frontier.fastest_seconds:.9g}" in caught.value.remedy


@pytest.mark.parametrize("deadline", [float("nan"), float("inf"), -1.0])
def test_senseless_deadlines_are_refused(frontier, deadline):
    """If it fails NaN reaches the core."""
    with pytest.raises(InvalidValueError):
        frontier.at(deadline)


def test_a_straggler_lets_others_slow_down(frontier):
    """If it fails extrinsic bloat stays: waiting at high clocks for a slower pipeline."""
    alone, waiting = frontier.for_straggler(1.0), frontier.for_straggler(1.2)
    pace = waiting.deadline_seconds
    assert pace == pytest.approx(1.2 * frontier.fastest_seconds)
    assert waiting.joules_until(pace) < alone.joules_until(pace)


def test_a_straggler_beyond_the_slowest_changes_nothing(frontier):
    """If it fails there is a pace for which no plan is found."""
    slowest = frontier.at(frontier.slowest_seconds)
    far = frontier.for_straggler(50.0)
    assert far.joules == pytest.approx(slowest.joules)
    assert far.gap == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("factor", [0.9, 0.0, float("nan")])
def test_a_straggler_is_slower(frontier, factor):
    """If it fails a factor below one is taken for a straggler."""
    with pytest.raises(InvalidValueError):
        frontier.for_straggler(factor)


def test_a_free_pipeline_does_not_wait():
    """If it fails a free pipeline is slowed beyond its least energy."""
    points = [OperatingPoint(1.0, 100.0), OperatingPoint(2.0, 90.0), OperatingPoint(3.0, 85.0)]
    pipeline_plan = PipelinePlan(one_instruction(points))
    assert pipeline_plan.best_by(10.0).joules == 85.0
    assert pipeline_plan.best_by(2.5).joules == 90.0


def test_slowing_down_pays_only_while_others_wait_anyway():
    """If it fails 5 J are saved on one rank while another one wastes 50 J on waiting."""
    problem = PipelineProblem(
        (Instruction(0, 0, "forward", 0), Instruction(1, 1, "forward", 0)),
        (
            ClockChoices((OperatingPoint(1.0, 100.0), OperatingPoint(2.0, 95.0))),
            ClockChoices((OperatingPoint(0.5, 60.0),)),
        ),
        np.array([0, 1]),
        np.array([], dtype=np.int64),
        np.array([], dtype=np.int64),
        np.array([]),
        np.array([0.0, 50.0]),
    )
    pipeline_plan = PipelinePlan(problem)
    assert pipeline_plan.least_energy_seconds == pytest.approx(1.0)
    assert pipeline_plan.best_by(2.0).joules == pytest.approx(185.0)
    assert pipeline_plan.at(2.0).joules == pytest.approx(230.0)
    assert pipeline_plan.best_by(2.0).joules_until(2.0) == pytest.approx(235.0)


def test_a_plan_says_what_it_saves(frontier):
    """If it fails a notebook shows times and joules, and nothing of what they are for."""
    full = frontier.full_clocks
    saved = 1 - frontier.at(full.seconds).joules_until(full.seconds) / full.joules
    text = f"in equal time {100 * saved:.1f} % less energy than at full clocks (predicted)"
    assert text in str(frontier)
    assert frontier.rows()[-1]["saved"] == 1 - frontier.rows()[-1]["joules"] / full.joules


def test_an_objective_chooses_a_plan(frontier):
    """If it fails the planner weighs time against energy in a way of its own."""
    full = frontier.full_clocks
    fastest = frontier.choose(Cost(eta=0.0, max_watts=1.0))
    assert fastest.seconds == frontier.frontier.fastest.seconds
    assert frontier.choose(Cost(eta=1.0)).joules == frontier.frontier.least_energy.joules
    within = frontier.choose(LeastEnergy(max_slowdown=0.02))
    assert frontier.choose("least-energy:slowdown=2%") == within
    assert full.seconds < within.seconds <= 1.02 * full.seconds
    assert within.joules < fastest.joules
    with pytest.raises(InfeasibleError, match="no plan meets"):
        frontier.choose(LeastEnergy(deadline_seconds=0.9 * frontier.fastest_seconds))


def test_lower_bound_and_gap(frontier):
    """If it fails the reported gap is not the distance to the bound."""
    for plan in frontier.frontier_plans:
        assert plan.lower_bound_joules <= plan.joules * (1 + 1e-12)
        assert plan.gap == pytest.approx(plan.joules / plan.lower_bound_joules - 1)
        bound = frontier.bound_joules(plan.deadline_seconds)
        assert plan.joules_until(plan.deadline_seconds) >= bound * (1 - 1e-12)


def test_exported_frontier(frontier):
    """If it fails other optimizers cannot use a planned pipeline."""
    exported = frontier.frontier
    assert exported.fastest.seconds <= frontier.fastest_seconds
    assert len(exported) > 8
    assert exported.fastest.setting == Setting(devices=4, parallel="pp4")
    assert exported.least_energy.seconds <= frontier.least_energy_seconds


def test_provenance_is_that_of_the_weakest_profile():
    """If it fails a simulated profile makes a measured plan."""
    simulated = Provenance(Origin.SIMULATED, "model")
    points = [OperatingPoint(1.0, 100.0, provenance=simulated)]
    exported = PipelinePlan(one_instruction(points)).frontier
    assert exported.fastest.provenance.origin is Origin.SIMULATED


def test_a_saved_plan_is_loaded_again(frontier, tmp_path):
    """If it fails a rank follows other clocks than the ones that were planned and saved."""
    path = tmp_path / "plan.json"
    frontier.save(path)
    loaded = load_plan(str(path))
    assert loaded.problem.to_dict() == frontier.problem.to_dict()
    for factor in (1.0, 1.1):
        ours, theirs = frontier.for_straggler(factor), loaded.for_straggler(factor)
        assert theirs.clocks_hertz.tolist() == ours.clocks_hertz.tolist()
        assert theirs.joules == ours.joules
    assert loaded.full_clocks.joules == frontier.full_clocks.joules
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["frontier"][0]["joules"] == frontier.frontier.fastest.joules


def test_work_without_a_clock_is_saved(tmp_path):
    """If it fails a plan of instructions of fixed time cannot be saved."""
    bare = PipelinePlan(one_instruction([OperatingPoint(1.0, 5.0)]))
    bare.save(tmp_path / "plan.json")
    assert np.isnan(load_plan(tmp_path / "plan.json").at(1.0).clocks_hertz).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "holds no plan"),
        ('{"schema": "joulery-pipeline-plan-2"}', "broken plan"),
        ('{"schema": "joulery-pipeline-plan-2", "problem": {"config": 3}}', "broken plan"),
    ],
)
def test_files_that_hold_no_plan_are_refused(tmp_path, text, words):
    """If it fails a broken file shows a traceback."""
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match=words):
        load_plan(path)


def test_a_frontier_outlives_its_problem():
    """If it fails the core reads arrays that Python has given back."""
    pipeline_plan = PipelinePlan(
        one_instruction([OperatingPoint(1.0, 5.0), OperatingPoint(2.0, 3.0)])
    )
    junk = [np.random.default_rng(0).random(1000) for _ in range(200)]
    assert pipeline_plan.at(1.5).joules == 5.0
    assert pipeline_plan.at(2.0).joules == 3.0
    assert len(junk) == 200


def test_ranks_load_their_share_without_planning(tmp_path):
    """If it fails ranks cannot run a plan that was made elsewhere."""
    profiles = profiles_from_rows(random_rows(2, 5), smooth=False)
    plan = plan_pipeline(profiles, microbatches=3, config=PipelineConfig(reduction_seconds=0.1))
    path = tmp_path / "plan.json"
    plan.save(path, 1.1 * plan.fastest_seconds)
    for rank in range(2):
        share_plan = load_rank_plan(path, rank)
        assert share_plan.seconds <= 1.1 * plan.fastest_seconds
        # Frameworks reduce gradients on their own: ranks are not asked to mark it.
        assert share_plan.order == make_schedule("1f1b", 2, 3).ranks[rank]
        assert all(step.hertz for step in share_plan.steps)
    for rank in (-1, 2):
        with pytest.raises(FileError, match="no plan for rank"):
            load_rank_plan(path, rank)
    with pytest.raises(InvalidValueError, match="rank '1' is no whole number"):
        load_rank_plan(path, "1")
    assert load_plan(path).at(plan.fastest_seconds).joules == plan.at(plan.fastest_seconds).joules


def test_a_deadline_that_differs_in_its_last_digits_is_met():
    """If it fails equal times, summed up in another order, count as infeasible."""
    plan = PipelinePlan(random_problem(3, 12, 3))
    almost = plan.fastest_seconds * (1 - 4e-16)
    assert plan.at(almost).seconds == plan.fastest_seconds
    with pytest.raises(InfeasibleError):
        plan.at(plan.fastest_seconds * (1 - 1e-6))
