"""The event simulator that checks plans: small pipelines by hand, and what it refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.frontier import OperatingPoint, Setting
from joulery.pipeline import (
    SCHEDULES,
    ClockChoices,
    PipelineConfig,
    PipelinePlan,
    build_problem,
    custom_schedule,
    make_schedule,
    profiles_from_rows,
)
from joulery.pipeline.planning._network import network
from support.pipelines import replay


def _profiles(forward=(1.0, 1.0), backward=(2.0, 2.0), clocks=(1000, 500)):
    """Stages with a given time at the fastest clock; half the clock takes twice as long."""
    rows = [
        {
            "stage": stage,
            "instruction": kind,
            "frequency": clock,
            "time": time * 1000 / clock,
            "energy": 100.0 * time * (clock / 1000) ** 1.5,
        }
        for kind, seconds in (("forward", forward), ("backward", backward))
        for stage, time in enumerate(seconds)
        for clock in clocks
    ]
    return profiles_from_rows(rows)


def _full(problem):
    full = PipelinePlan(problem).full_clocks
    return full.durations, full.joules_each


def test_two_ranks_by_hand():
    """Starts, waiting and energy of the smallest pipeline would be wrong."""
    profiles = _profiles()
    config = PipelineConfig(blocking_watts=10.0, communication_seconds=0.5)
    problem = build_problem(make_schedule("1f1b", 2, 1), profiles, config)
    run = replay(problem, *_full(problem))
    # 0: F 0-1, 1: F 1.5-2.5, B 2.5-4.5, 0: B 5-7.
    assert run.starts.tolist() == [0.0, 5.0, 1.5, 2.5]
    assert run.seconds == 7.0
    assert run.waiting_seconds.tolist() == [4.0, 4.0]
    assert run.joules == pytest.approx(2 * 100 + 2 * 200 + 10 * 8, rel=1e-12)


def test_bubble_of_equal_stages():
    """GPipe and 1F1B would not take (M + P - 1) (F + B)."""
    profiles = _profiles((1.0,) * 4, (2.0,) * 4)
    for name in ("gpipe", "1f1b"):
        problem = build_problem(make_schedule(name, 4, 8), profiles)
        assert replay(problem, *_full(problem)).seconds == pytest.approx((8 + 3) * 3.0)


@pytest.mark.parametrize(("name", "bubble"), [("interleaved", 4.5), ("zb-h1", 3.0), ("zbv", 1.5)])
def test_bubbles_as_published(name, bubble):
    """Schedules made for smaller bubbles would not have them.

    Interleaving with two chunks halves (P - 1) (F + B); ZB-H1 leaves (P - 1) (F + I - W); ZBV
    only the way to the last rank, (P - 1) F / 2, while F = I = W.
    """
    profiles = _profiles((1.0,) * 4, (2.0,) * 4)
    problem = build_problem(make_schedule(name, 4, 16), profiles)
    run = replay(problem, *_full(problem))
    busiest = run.seconds - run.waiting_seconds.min()
    assert run.seconds - busiest == pytest.approx(bubble, abs=1e-9)


def test_waiting_for_a_straggler_costs_blocking_power():
    """The wait for another pipeline would be free."""
    profiles = _profiles()
    config = PipelineConfig(blocking_watts=10.0)
    problem = build_problem(make_schedule("1f1b", 2, 2), profiles, config)
    figures = _full(problem)
    alone = replay(problem, *figures)
    late = replay(problem, *figures, alone.seconds + 3.0)
    assert late.joules == pytest.approx(alone.joules + 2 * 10.0 * 3.0, rel=1e-12)
    early = replay(problem, *figures, alone.seconds - 1.0)
    assert early.seconds == alone.seconds


def test_devices_and_replicas_scale_energy_but_not_time():
    """Tensor-parallel groups and replicas would count as one device."""
    profiles = _profiles()
    single = PipelineConfig(blocking_watts=10.0)
    many = PipelineConfig(blocking_watts=10.0, devices_per_rank=4, replicas=3)
    runs = []
    for config in (single, many):
        problem = build_problem(make_schedule("1f1b", 2, 3), profiles, config)
        runs.append(replay(problem, *_full(problem)))
    assert runs[1].seconds == runs[0].seconds
    assert runs[1].joules == pytest.approx(12 * runs[0].joules, rel=1e-12)


def test_microbatches_of_unequal_work():
    """Per-microbatch factors would not reach time and energy."""
    profiles = _profiles()
    config = PipelineConfig(microbatch_factors=(1.0, 2.0))
    problem = build_problem(make_schedule("1f1b", 1, 2), _profiles((1.0,), (2.0,)), config)
    seconds, joules = _full(problem)
    assert seconds.tolist() == [1.0, 2.0, 2.0, 4.0]
    assert joules.tolist() == [100.0, 200.0, 200.0, 400.0]
    with pytest.raises(InvalidValueError, match="2 factors for 3 microbatches"):
        build_problem(make_schedule("1f1b", 2, 3), profiles, config)


def test_optimizer_ends_each_rank():
    """The optimizer step would be left out or come early."""
    rows = [
        {"stage": 0, "instruction": kind, "frequency": 1000, "time": time, "energy": 10.0}
        for kind, time in (("forward", 1.0), ("backward", 2.0), ("optimizer", 0.5))
    ]
    problem = build_problem(
        make_schedule("1f1b", 1, 2), profiles_from_rows(rows), PipelineConfig(optimizer=True)
    )
    assert [item.kind for item in problem.instructions][-1] == "optimizer"
    run = replay(problem, [1.0, 2.0, 1.0, 2.0, 0.5], [10.0] * 5)
    assert run.seconds == 6.5
    with pytest.raises(InvalidValueError, match="no profile for optimizer of stage 0"):
        build_problem(make_schedule("1f1b", 2, 2), _profiles(), PipelineConfig(optimizer=True))


def test_slower_clocks_stay_while_they_beat_waiting():
    """A clock below the least energy saves the energy of waiting, and would be thrown away."""
    rows = [
        {"stage": 0, "instruction": kind, "frequency": f, "time": t, "energy": e}
        for kind in ("forward", "backward")
        for f, t, e in (
            (1400, 1.0, 300.0),
            (1000, 1.4, 200.0),
            (800, 1.6, 205.0),
            (600, 2.0, 290.0),
        )
    ]
    free = build_problem(make_schedule("1f1b", 1, 1), profiles_from_rows(rows))
    assert [point.seconds for point in free.profiles[0].points] == [1.0, 1.4]
    config = PipelineConfig(blocking_watts=50.0, devices_per_rank=2)
    costly = build_problem(make_schedule("1f1b", 1, 1), profiles_from_rows(rows), config)
    assert [(p.seconds, p.joules) for p in costly.profiles[0].points] == [
        (1.0, 600.0),
        (1.4, 400.0),
        (1.6, 410.0),
    ]
    assert network(costly).curves[0].hull()[0].tolist() == [1.0, 1.4, 1.6]


@pytest.mark.parametrize(
    "wrong",
    [
        {"communication_seconds": -1.0},
        {"blocking_watts": float("nan")},
        {"devices_per_rank": 0},
        {"replicas": 0},
        {"microbatch_factors": (0.0,)},
    ],
)
def test_configurations_that_make_no_sense(wrong):
    """Invalid settings would give a plan."""
    with pytest.raises(InvalidValueError):
        PipelineConfig(**wrong)


def test_figures_for_every_instruction():
    """A short list would be replayed in part."""
    problem = build_problem(make_schedule("1f1b", 2, 1), _profiles())
    with pytest.raises(InvalidValueError, match="1 durations and 4 energies for 4"):
        replay(problem, [1.0], [1.0] * 4)


def test_cycles_and_overlaps_are_refused():
    """A broken problem would be replayed as if it could run."""
    problem = build_problem(custom_schedule("one", [["0F0", "0B0"]]), _profiles((1.0,), (2.0,)))
    cyclic = replace(
        problem, edge_from=np.array([0, 1]), edge_to=np.array([1, 0]), edge_seconds=np.zeros(2)
    )
    with pytest.raises(InvalidValueError, match="2 instructions wait for each other"):
        replay(cyclic, [1.0, 2.0], [1.0, 1.0])
    nothing = np.zeros(0, dtype=np.int64)
    loose = replace(problem, edge_from=nothing, edge_to=nothing, edge_seconds=np.zeros(0))
    with pytest.raises(InvalidValueError, match="while rank 0 is at work"):
        replay(loose, [1.0, 2.0], [1.0, 1.0])


def test_choices_need_an_order():
    """Choices out of order would confuse the planner."""
    points = (OperatingPoint(2.0, 1.0), OperatingPoint(1.0, 2.0))
    with pytest.raises(InvalidValueError, match="out of order"):
        ClockChoices(points)
    with pytest.raises(InvalidValueError, match="missing"):
        ClockChoices(())
    assert ClockChoices(points[::-1]).points == points[::-1]


@pytest.mark.parametrize("name", SCHEDULES)
def test_plans_keep_their_promises(name):
    """A plan would promise a time or an energy that no device keeps."""
    draw = np.random.default_rng(5)
    rows = [
        {"stage": stage, "instruction": kind, "frequency": f, "time": size * work * 1400 / f,
         "energy": size * work * (90 * 1400 / f + 310 * (f / 1400) ** 2)}
        for stage, size in enumerate(draw.uniform(0.8, 1.2, 3))
        for kind, work in (("forward", 0.1), ("backward", 0.21), ("optimizer", 0.02))
        for f in range(1400, 900, -100)
    ]  # fmt: skip
    factors = tuple(draw.uniform(0.7, 1.3, 6).tolist())
    config = PipelineConfig(
        communication_seconds=0.003,
        blocking_watts=75.0,
        devices_per_rank=2,
        microbatch_factors=factors,
        optimizer=True,
    )
    problem = build_problem(make_schedule(name, 3, 6), profiles_from_rows(rows), config)
    frontier = PipelinePlan(problem)
    for deadline in np.linspace(frontier.fastest_seconds, frontier.slowest_seconds, 7):
        plan = frontier.at(float(deadline))
        run = replay(problem, plan.durations, plan.joules_each)
        assert run.seconds <= deadline * (1 + 1e-12)
        assert run.seconds == pytest.approx(plan.seconds, rel=1e-9)
        assert run.joules == pytest.approx(plan.joules, rel=1e-9)
        assert np.allclose(run.starts, plan.starts, rtol=1e-9, atol=1e-9)


def steady_profiles(stages=3, **columns):
    """Every instruction takes a second, at one clock."""
    return profiles_from_rows(
        {"stage": s, "instruction": k, "frequency": 1000, "time": 1.0, "energy": 200.0} | columns
        for s in range(stages)
        for k in ("forward", "backward")
    )


def test_every_link_has_its_own_communication_time():
    """If it fails a slow link between two nodes is planned as if it were fast."""
    config = PipelineConfig(communication_seconds=(0.5, 2.0))
    problem = build_problem(make_schedule("1f1b", 3, 1), steady_profiles(), config)
    assert PipelinePlan(problem).fastest_seconds == pytest.approx(6 + 2 * 2.5)
    back = PipelineConfig(communication_seconds=(0.5, 2.0, 7.0))
    order = make_schedule("interleaved", 3, 3)
    hops = build_problem(order, steady_profiles(), back).edge_seconds
    assert set(hops.tolist()) == {0.0, 0.5, 2.0, 7.0}
    with pytest.raises(InvalidValueError, match="4 communication times for 3 ranks"):
        PipelineConfig(communication_seconds=(1.0,) * 4).hop_seconds(3)
    with pytest.raises(InvalidValueError, match="at least 0"):
        PipelineConfig(communication_seconds=(1.0, -1.0))


def test_the_reduction_of_gradients_ends_the_iteration():
    """If it fails ranks that reduce longer than others are planned too slow."""
    config = PipelineConfig(reduction_seconds=(0.1, 0.1, 4.0), blocking_watts=50.0)
    problem = build_problem(make_schedule("1f1b", 3, 1), steady_profiles(), config)
    plan = PipelinePlan(problem)
    # The last rank ends first, and then reduces while the others are still at work.
    assert plan.fastest_seconds == pytest.approx(4.0 + 4.0)
    assert plan.full_clocks.joules == pytest.approx(6 * 200 + 50 * (3 * 8 - 6))
    assert plan.at(plan.fastest_seconds).mean_clock_hertz == 1e9
    order = custom_schedule("mine", [["0F0", "0B0", "0G"]])
    with pytest.raises(InvalidValueError, match="takes no time"):
        build_problem(order, steady_profiles(1))


def test_waiting_costs_what_the_profile_says_unless_given():
    """If it fails the power of waiting that was measured is ignored."""
    profiles = steady_profiles(1, waiting_watts=60.0)
    order = make_schedule("gpipe", 1, 1)
    assert build_problem(order, profiles).blocking_watts.tolist() == [60.0]
    config = PipelineConfig(blocking_watts=20.0, devices_per_rank=2)
    assert build_problem(order, profiles, config).blocking_watts.tolist() == [40.0]
    with pytest.raises(InvalidValueError, match="1000 W while it waits"):
        build_problem(order, profiles, PipelineConfig(blocking_watts=1000.0))
    with pytest.raises(InvalidValueError, match="1000 W while it waits"):
        build_problem(order, steady_profiles(1, waiting_watts=1000.0))
    row = {"instruction": "forward", "frequency": 1000, "time": 1.0, "energy": 200.0}
    stages = [row | {"stage": 0, "waiting_watts": 50.0}, row | {"stage": 1, "waiting_watts": 80.0}]
    rows = [stage | {"instruction": kind} for stage in stages for kind in ("forward", "backward")]
    problem = build_problem(make_schedule("1f1b", 2, 2), profiles_from_rows(rows))
    assert problem.blocking_watts.tolist() == [50.0, 80.0]


def test_choices_out_of_order_are_named():
    """If it fails a user cannot tell which measurement is at fault."""
    points = tuple(
        OperatingPoint(t, e, Setting(clock_hertz=f))
        for t, e, f in ((1.0, 9.0, 2e9), (1.0, 8.0, 1e9))
    )
    with pytest.raises(InvalidValueError, match="1 s at 1000 MHz comes after 1 s at 2000 MHz"):
        ClockChoices(points)


def test_times_that_become_equal_when_scaled_are_one_choice():
    """If it fails planning ends with choices out of order for times that differ in a last digit."""
    first = OperatingPoint(1.0, 9.0)
    choices = ClockChoices((first, OperatingPoint(math.nextafter(1.0, 2.0), 8.0)))
    assert len(choices.scaled(1e-3).points) + len(choices.scaled(1e-3).others) == 2
    tiny = choices.scaled(5e-324 * 2)
    assert len(tiny.points) == 1


def test_no_energy_is_spent_on_a_difference_in_the_last_digits():
    """If it fails a memory-bound plan runs at full clocks, and its bound is no bound."""
    rows = [
        {
            "stage": stage,
            "instruction": kind,
            "frequency": clock,
            "time": 1.0 + 1e-12 * number,
            "energy": 300.0 - 20.0 * number,
        }
        for stage in range(3)
        for kind in ("forward", "backward")
        for number, clock in enumerate((1400, 1300, 1200))
    ]
    profiles = profiles_from_rows(rows, smooth=False)
    plan = PipelinePlan(build_problem(make_schedule("1f1b", 3, 4), profiles))
    plan_point = plan.at(plan.full_clocks.seconds)
    assert set(plan_point.clocks_hertz.tolist()) == {1.2e9}
    assert plan_point.seconds <= plan.full_clocks.seconds
    assert plan_point.gap == pytest.approx(0.0, abs=1e-9)
