"""The exact continuous frontier, against linear programs and by hand."""

import numpy as np
import pytest

from joulery.errors import InvalidValueError, MissingExtraError
from joulery.frontier import OperatingPoint
from joulery.pipeline import (
    ClockChoices,
    Instruction,
    PipelineConfig,
    PipelinePlan,
    PipelineProblem,
    build_problem,
    make_schedule,
    profiles_from_rows,
)
from joulery.pipeline.planning import _planner as relaxation_module
from joulery.pipeline.planning._network import network
from joulery.pipeline.planning._planner import relax
from joulery.pipeline.planning.native import build as native_build
from support.pipelines import LinearProgram, random_problem, random_rows


def problem_of(profiles, profile_of, edges=(), blocking=(0.0,)):
    """Instructions with points (seconds, joules), and edges (from, to, seconds)."""
    return PipelineProblem(
        instructions=tuple(
            Instruction(0, i % len(blocking), "work", i) for i in range(len(profile_of))
        ),
        profiles=tuple(
            ClockChoices(tuple(OperatingPoint(t, e) for t, e in points)) for points in profiles
        ),
        profile_of=np.array(profile_of),
        edge_from=np.array([edge[0] for edge in edges], dtype=np.int64),
        edge_to=np.array([edge[1] for edge in edges], dtype=np.int64),
        edge_seconds=np.array([edge[2] for edge in edges], dtype=np.float64),
        blocking_watts=np.array(blocking),
    )


def cost_of(arrays, lasts):
    """Joules above waiting, from the hulls."""
    return sum(
        np.interp(lasts[i], *arrays.curves[curve].hull())
        for i, curve in enumerate(arrays.curve_of.tolist())
    )


def mixed(relaxation, seconds):
    """The durations of an iteration, between those of the samples around it."""
    return np.array(
        [np.interp(seconds, relaxation.seconds, column) for column in relaxation.durations.T]
    )


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_matches_the_linear_program(seed, integers):
    """If it fails the walk misses a vertex or a slope of the frontier."""
    arrays = network(random_problem(seed, 3 + seed % 12, 1 + seed % 4, whole=integers))
    relaxation = relax(arrays)
    program = LinearProgram(arrays)
    for share in (0.0, 0.01, 0.2, 0.5, 0.77, 1.0, 1.3):
        span = relaxation.seconds[-1] - relaxation.seconds[0]
        seconds = relaxation.seconds[0] + share * span + 1e-9
        cost, _, _ = program.solve(seconds)
        assert relaxation.bound(seconds) == pytest.approx(cost, rel=1e-9, abs=1e-7)


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_recalled_durations_cost_what_the_frontier_says(seed, integers):
    """If it fails the durations do not belong to the frontier."""
    arrays = network(random_problem(100 + seed, 3 + seed, 1 + seed % 5, points=6, whole=integers))
    relaxation = relax(arrays)
    fastest, slowest = relaxation.seconds[0], relaxation.seconds[-1]
    for seconds in np.concatenate([np.linspace(fastest, slowest, 17), relaxation.seconds]).tolist():
        lasts = mixed(relaxation, seconds)
        assert arrays.end_seconds(lasts) <= seconds * (1 + 1e-9)
        assert cost_of(arrays, lasts) == pytest.approx(
            relaxation.bound(seconds), rel=1e-9, abs=1e-7
        )


@pytest.mark.parametrize("seed", range(3))
def test_coarse_slopes_lie_between_what_they_prove_and_what_they_cost(seed, monkeypatch):
    """If it fails frontiers of large pipelines are no bounds, or farther off than promised."""
    profiles = profiles_from_rows(random_rows(4, seed), smooth=False)
    arrays = network(
        build_problem(make_schedule("1f1b", 4, 12), profiles, PipelineConfig(blocking_watts=60.0))
    )
    exact = relax(arrays)
    monkeypatch.setattr(relaxation_module, "_LARGE", float(len(arrays)))
    relaxation = relax(arrays)
    assert len(relaxation.seconds) < 0.7 * len(exact.seconds)
    for seconds in np.linspace(exact.seconds[0], exact.seconds[-1], 41).tolist():
        waiting = arrays.blocking_watts * seconds
        least = exact.bound(seconds) + waiting
        assert relaxation.bound(seconds) + waiting <= least * (1 + 1e-12)
        assert relaxation.bound(seconds) + waiting >= least * (1 - 2e-4)
        assert np.interp(seconds, relaxation.seconds, relaxation.cost) + waiting <= least * (
            1 + 1e-5
        )
        lasts = mixed(relaxation, seconds)
        assert arrays.end_seconds(lasts) <= seconds * (1 + 1e-9)
        assert cost_of(arrays, lasts) + waiting <= least * (1 + 1e-5)


@pytest.mark.parametrize(("stages", "microbatches"), [(3, 40), (48, 33)])
def test_neither_size_nor_precision_makes_equal_time_plans_waste(stages, microbatches):
    """If it fails rounding of a large pipeline is late and falls back to the fastest clocks."""
    measured = random_rows(4, 1)
    rows = [
        {**row, "stage": stage}
        for stage in range(stages)
        for row in measured
        if row["stage"] == (3 if stage == stages - 1 else stage % 3)
    ]
    profiles = profiles_from_rows(rows, smooth=False)
    order = make_schedule("1f1b", stages, microbatches)
    plan = PipelinePlan(build_problem(order, profiles, PipelineConfig(blocking_watts=75.0)))
    fastest = plan.at(plan.fastest_seconds)
    assert fastest.seconds <= plan.fastest_seconds
    assert fastest.gap < 0.006


def test_time_to_plan_has_no_steps():
    """If it fails a pipeline a little smaller is walked in far more detail than a larger one."""
    profiles = profiles_from_rows(random_rows(1, 1), smooth=False)
    samples = [
        len(relax(network(build_problem(make_schedule("gpipe", 1, count), profiles))).seconds)
        for count in range(900, 1600, 140)
    ]
    assert max(samples) < 1.2 * min(samples)


def test_chain_of_two_by_hand():
    """If it fails the cheaper second is not given first."""
    steep = [(1.0, 50.0), (2.0, 10.0)]
    flat = [(1.0, 20.0), (3.0, 10.0)]
    relaxation = relax(network(problem_of([steep, flat], [0, 1], [(0, 1, 0.5)])))
    assert relaxation.seconds.tolist() == pytest.approx([2.5, 3.5, 5.5])
    assert relaxation.cost.tolist() == pytest.approx([70.0, 30.0, 20.0])
    assert mixed(relaxation, 3.0) == pytest.approx([1.5, 1.0])


def test_blocking_power_is_part_of_the_cost():
    """If it fails plans for straggler's pace count the energy of waiting twice or never."""
    relaxation = relax(network(problem_of([[(1.0, 50.0), (2.0, 40.0)]], [0], blocking=(5.0,))))
    assert relaxation.cost.tolist() == pytest.approx([45.0, 30.0])


def test_an_instruction_may_slow_down_when_the_iteration_speeds_up():
    """If it fails flow is never taken back, and the frontier is wrong (Wheatstone's bridge)."""
    profiles = [
        [(1.0, 30.0), (2.0, 20.0)],
        [(0.5, 21.0), (1.0, 20.0)],
        [(1.0, 60.0), (2.0, 20.0)],
    ]
    edges = [(0, 2, 0.0), (0, 4, 0.0), (1, 4, 0.0), (2, 3, 0.0), (4, 3, 0.0), (1, 3, 1.0)]
    arrays = network(problem_of(profiles, [0, 1, 2, 0, 1], edges))
    relaxation, program = relax(arrays), LinearProgram(arrays)
    for seconds in np.linspace(relaxation.seconds[0], relaxation.seconds[-1], 23)[1:].tolist():
        assert relaxation.bound(seconds) == pytest.approx(program.solve(seconds)[0], rel=1e-9)


def test_work_without_choice_is_one_point():
    """If it fails a pipeline with one clock cannot be planned."""
    relaxation = relax(network(problem_of([[(1.5, 10.0)]], [0, 0], [(0, 1, 0.25)])))
    assert relaxation.seconds.tolist() == pytest.approx([3.25])
    assert relaxation.cost.tolist() == pytest.approx([20.0])
    assert mixed(relaxation, 99.0) == pytest.approx([1.5, 1.5])


def test_points_above_the_hull_do_not_matter_to_the_frontier():
    """If it fails non-convex measurements break the relaxation."""
    bent = [(1.0, 50.0), (1.5, 45.0), (2.0, 10.0)]
    straight = [(1.0, 50.0), (2.0, 10.0)]
    first, two = (relax(network(problem_of([points], [0]))) for points in (bent, straight))
    assert first.cost.tolist() == two.cost.tolist()


def test_slower_points_that_save_less_than_waiting_costs_are_left_out():
    """If it fails the core is given arcs of negative capacity."""
    arrays = network(problem_of([[(1.0, 50.0), (2.0, 49.0)]], [0]))
    assert len(arrays.curves[0].seconds) == 2
    rising = ClockChoices((OperatingPoint(1.0, 50.0), OperatingPoint(2.0, 60.0)))
    problem = problem_of([[(1.0, 1.0)]], [0], blocking=(9.0,))
    arrays = network(
        PipelineProblem(
            problem.instructions, (rising,), problem.profile_of, problem.edge_from,
            problem.edge_to, problem.edge_seconds, problem.blocking_watts,
        )
    )  # fmt: skip
    assert arrays.curves[0].seconds.tolist() == [1.0]


def test_a_circle_is_named():
    """If it fails the instruction at which a rank is stuck is not named."""
    edges = [(0, 1, 0.0), (1, 2, 0.0), (2, 1, 0.0), (2, 3, 0.0)]
    with pytest.raises(InvalidValueError) as caught:
        network(problem_of([[(1.0, 1.0)]], [0, 0, 0, 0], edges))
    assert "rank 0 at work of microbatch 1 on stage 0" in caught.value.message
    assert "microbatch 3" not in caught.value.message


@pytest.mark.parametrize(
    ("edges", "words"),
    [([(0, 7, 0.0)], "7 of 2"), ([(0, 1, -1.0)], "negative"), ([(0, 1, np.nan)], "not finite")],
)
def test_bad_edges_are_refused(edges, words):
    """If it fails the core reads memory that is not there."""
    with pytest.raises(InvalidValueError, match=words):
        network(problem_of([[(1.0, 1.0)]], [0, 0], edges))


def test_nothing_to_plan_is_refused():
    """If it fails zero microbatches crash somewhere deep."""
    with pytest.raises(InvalidValueError, match="without instructions"):
        network(problem_of([[(1.0, 1.0)]], []))


def test_compiled_once_per_version_of_the_sources(tmp_path, monkeypatch):
    """If it fails a change to the C sources has no effect, or every start compiles."""
    first = native_build.library_path(tmp_path)
    stamp = first.stat().st_mtime_ns
    assert native_build.library_path(tmp_path).stat().st_mtime_ns == stamp
    variant = native_build.Sources(
        "a test", native_build.SOURCES.folder, native_build.SOURCES.files, ("-O0",)
    )
    monkeypatch.setattr(native_build, "SOURCES", variant)
    assert native_build.file_name() != first.name


def test_without_a_compiler_the_core_says_why(tmp_path, monkeypatch):
    """If it fails the reason for slow planning is not shown."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match="C compiler"):
        native_build.library_path(tmp_path)
