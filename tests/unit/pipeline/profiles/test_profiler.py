"""The profiler finds the truth of simulated boards, and never disturbs training."""

import json
import logging

import numpy as np
import pytest

from joulery.clock import VirtualClock
from joulery.errors import FileError, InvalidValueError
from joulery.hardware import Capability, Faults, SimulatedGpu, Workload, settle
from joulery.hardware.simulated._board import Sensor
from joulery.pipeline import ClockProfiler, make_schedule, read_profiles, write_profile
from joulery.pipeline.profiles._profiler import attribute_power
from support.simulated_boards import simulated_node

ORDER = make_schedule("1f1b", 4, 8).ranks[1]


def loads(scale=1.0):
    """Forwards and backwards that differ in time and power."""
    return {
        "forward": Workload("forward", 0.045 * scale, 0.02 * scale, 0.0, 0.8),
        "backward": Workload("backward", 0.09 * scale, 0.055 * scale, 0.0, 0.95),
    }


def train(profiler, gpu, works, iterations=400):
    """Iterations of one rank, with bubbles, until the profiler has seen enough."""
    scale = works["forward"].compute_seconds / 0.045
    for number in range(iterations):
        if profiler.done:
            return number
        profiler.begin_iteration()
        gpu.clock.sleep(0.07 * scale)
        for item in ORDER:
            gpu.clock.sleep(0.013 * scale * (item.microbatch % 3))
            profiler.before(item.stage, item.kind, item.microbatch)
            gpu.run(works[item.kind])
            profiler.after(item.stage, item.kind, item.microbatch)
        gpu.clock.sleep(0.11 * scale)
    return iterations


@pytest.mark.parametrize(
    ("name", "scale", "sensor"),
    [
        ("A100", 1.0, Sensor()),
        ("V100", 0.25, Sensor()),
        ("H100", 1.0, Sensor(stamped=False, noise=0.03)),
    ],
)
def test_times_and_energies_are_those_of_the_board(name, scale, sensor):
    """If it fails plans rest on wrong profiles: 2 % in time and 3 % in energy are allowed."""
    clock = VirtualClock()
    gpu = simulated_node(name, 1, clock, sensor=sensor)[0]
    works = loads(scale)
    profiler = ClockProfiler(gpu, clock=clock)
    used = train(profiler, gpu, works)
    assert profiler.failure is None
    assert used < 400
    assert gpu._locked_hertz is None
    for row in profiler.rows:
        limit, hertz = gpu.board.default_limit_watts, 1e6 * row["frequency"]
        truth = settle(gpu.board, works[row["instruction"]], limit, hertz + 1)
        assert row["time"] == pytest.approx(truth.seconds, rel=0.02)
        assert row["energy"] == pytest.approx(truth.seconds * truth.watts, rel=0.03)
        assert row["waiting_watts"] == pytest.approx(gpu.board.idle_watts, rel=0.1)
        assert "counter refreshes" in row["source"]


def test_it_stops_just_past_the_least_energy():
    """If it fails iterations are wasted at useless clocks, or the best one is missed."""
    clock = VirtualClock()
    gpu = simulated_node("A100", 1, clock)[0]
    works = loads()
    profiler = ClockProfiler(gpu, clock=clock)
    train(profiler, gpu, works)

    def joules(hertz):
        states = [settle(gpu.board, load, 400.0, hertz + 1) for load in works.values()]
        return sum(state.seconds * state.watts for state in states)

    tried = sorted({1e6 * row["frequency"] for row in profiler.rows})
    best = min(gpu.supported_clocks(), key=joules)
    assert tried[0] < best < tried[-1]
    assert tried[2] <= best * 1.05


def test_given_clocks_are_tried_from_the_top():
    """If it fails a sweep begins where it is slowest."""
    clock = VirtualClock()
    gpu = simulated_node("A100", 1, clock)[0]
    profiler = ClockProfiler(gpu, (1.2e9, 1.41e9), iterations_per_clock=2, clock=clock)
    train(profiler, gpu, loads())
    assert [row["frequency"] for row in profiler.rows[::2]] == [1410.0, 1200.0]
    # When instructions ran, for the time between ranks: one iteration at the highest clock.
    assert ["moments" in row for row in profiler.rows] == [True, True, False, False]
    assert sorted(batch for batch, *_ in profiler.rows[0]["moments"]) == list(range(8))


def test_a_refusal_ends_profiling_and_not_training(caplog):
    """If it fails a user without rights cannot train."""
    clock = VirtualClock()
    gpu = simulated_node("A100", 1, clock, faults=Faults(no_permission=True))[0]
    profiler = ClockProfiler(gpu, clock=clock)
    with caplog.at_level(logging.WARNING, "joulery"):
        train(profiler, gpu, loads(), iterations=5)
    assert profiler.done
    assert profiler.rows == []
    assert caplog.text.count("training goes on") == 1


def test_devices_without_a_counter_are_refused_softly():
    """If it fails profiles without energy are written."""

    class Dumb(SimulatedGpu):
        @property
        def capabilities(self):
            return frozenset({Capability.CLOCK_LOCK})

    clock = VirtualClock()
    gpu = Dumb(simulated_node("A100", 1, clock)[0].board, clock)
    with ClockProfiler(gpu, clock=clock) as profiler:
        profiler.begin_iteration()
    assert "offers no energy" in str(profiler.failure)


def test_queued_work_is_waited_for():
    """If it fails the time to queue an instruction passes for its own."""
    clock = VirtualClock()
    gpu = simulated_node("A100", 1, clock)[0]
    profiler = ClockProfiler(gpu, clock=clock)
    profiler.begin_iteration()
    profiler.before(0, "forward", 0, lambda: clock.sleep(1.0))
    profiler.after(0, "forward", 0, lambda: clock.sleep(2.0))
    assert profiler._works == [(0, "forward", 1.0, 3.0)]
    profiler.before(0, "forward", 1, lambda: 1 / 0)
    assert profiler.done
    assert isinstance(profiler.failure, ZeroDivisionError)


def test_senseless_counts_are_refused():
    """If it fails a sweep never ends."""
    with pytest.raises(InvalidValueError, match="measure nothing"):
        ClockProfiler(simulated_node("A100", 1, VirtualClock())[0], iterations_per_clock=0)


def test_powers_within_one_refresh_are_separated():
    """If it fails instructions shorter than a refresh all draw the mean."""
    rng = np.random.default_rng(3)
    spans, now = [[], []], 0.0
    for _ in range(400):
        kind = int(rng.integers(0, 2))
        now += rng.uniform(0, 0.01)
        spans[kind].append((now, now + 0.02))
        now += 0.02
    grid = np.arange(0.0, now, 1e-3)
    watts = np.full(len(grid), 50.0)
    for kind, kind_watts in enumerate((200.0, 300.0)):
        for begin, end in spans[kind]:
            watts[(grid >= begin) & (grid < end)] = kind_watts
    total = np.concatenate([[0.0], np.cumsum(watts) * 1e-3])
    knots = [(float(grid[i]), float(total[i])) for i in range(0, len(grid), 100)]
    power = attribute_power(knots, spans)
    assert power.watts == pytest.approx([200.0, 300.0], rel=0.03)
    assert power.waiting_watts == pytest.approx(50.0, abs=10.0)
    assert (power.relative_errors < 0.03).all()
    assert power.spans == len(knots) - 1


def test_too_few_refreshes_give_no_power():
    """If it fails figures are made up."""
    assert attribute_power([(0.0, 0.0)], [[(0.0, 1.0)]]) is None
    assert attribute_power([(0.0, 0.0), (1.0, 5.0)], []) is None
    assert np.isnan(attribute_power([(0.0, 0.0), (1.0, 5.0)], [[(0.0, 1.0)]]).relative_errors).all()


def row(stage, kind, megahertz, waiting_watts=None):
    """A row as a profiler makes it."""
    return {
        "stage": stage,
        "instruction": kind,
        "frequency": megahertz,
        "time": 100.0 / megahertz,
        "energy": megahertz / 10,
        "n_time_samples": 5,
        "relative_error": 0.01,
        "waiting_watts": waiting_watts,
        "source": "simulated",
    }


@pytest.mark.parametrize("name", ["profile.csv", "profile.json"])
def test_files_are_those_that_the_planner_reads(tmp_path, name):
    """If it fails a measured profile cannot be planned with."""
    rows = [
        row(stage, kind, megahertz, waiting_watts=60.0 + stage)
        for stage in (0, 1)
        for kind in ("forward", "backward")
        for megahertz in (1410.0, 1200.0)
    ]
    path = tmp_path / name
    write_profile(path, rows)
    profiles = read_profiles(path)
    point = profiles.points(1, "backward", 2)[0]
    assert point.setting.clock_hertz == pytest.approx(1.41e9)
    assert point.seconds == pytest.approx(1e8 / 1.41e9)
    assert point.joules == pytest.approx(141.0)
    assert profiles.waiting_watts == (60.0, 61.0)


def test_files_that_cannot_be_are_refused(tmp_path):
    """If it fails an empty profile is left behind, or an error has no remedy."""
    with pytest.raises(InvalidValueError, match="no instruction was measured"):
        write_profile(tmp_path / "profile.csv", [])
    with pytest.raises(FileError, match="cannot write"):
        write_profile(tmp_path / "missing" / "profile.csv", [row(0, "forward", 1000.0)])


def test_unknown_power_of_waiting_stays_unknown(tmp_path):
    """If it fails plans count waiting as free although nobody measured it."""
    path = tmp_path / "profile.json"
    write_profile(path, [row(0, "forward", 1000.0)])
    assert json.loads(path.read_text())[0]["waiting_watts"] is None
    assert read_profiles(path).waiting_watts == ()


def test_an_interrupted_sweep_resumes(tmp_path):
    """If it fails a job that is restarted measures every clock again, or loses what it had."""
    clock = VirtualClock()
    gpu = simulated_node("A100", 1, clock)[0]
    path, works = tmp_path / "rank1.json", loads()
    whole = ClockProfiler(gpu, clock=clock)
    train(whole, gpu, works)
    first = ClockProfiler(gpu, path=path, clock=clock)
    with first:
        train(first, gpu, works, iterations=30)
    assert 0 < len(first.rows) < len(whole.rows)
    second = ClockProfiler(gpu, path=path, clock=clock)
    train(second, gpu, works)
    assert second.done
    assert second.rows[: len(first.rows)] == sorted(
        first.rows, key=lambda row: (row["instruction"], -row["frequency"])
    )
    clocks = [sorted({row["frequency"] for row in profiler.rows}) for profiler in (second, whole)]
    assert clocks[0] == clocks[1]
    with pytest.raises(FileError, match=r"no stage 0 .*give the folder"):
        read_profiles(path)  # which is one rank's share of a profile


def test_what_is_too_noisy_is_refused(caplog, tmp_path):
    """If it fails plans rest on figures that nobody knows."""
    clock = VirtualClock()
    gpu = simulated_node("A100", 1, clock)[0]
    draw = np.random.default_rng(1)
    profiler = ClockProfiler(gpu, iterations_per_clock=1, path=tmp_path / "p.json", clock=clock)
    with caplog.at_level(logging.WARNING, "joulery"):
        for _ in range(40):
            profiler.begin_iteration()
            for item in ORDER[:2]:
                profiler.before(item.stage, item.kind, item.microbatch)
                gpu.run(loads(float(draw.uniform(0.2, 3.0)))[item.kind])
                profiler.after(item.stage, item.kind, item.microbatch)
    assert "% only after" in str(profiler.failure)
    assert caplog.text.count("training goes on") == 1
    assert gpu._locked_hertz is None


def test_work_that_ran_only_while_the_clock_settled_is_measured_again():
    """If it fails a profile lacks the forwards that come first in every iteration."""
    clock = VirtualClock()
    gpu = simulated_node("A100", 1, clock)[0]
    profiler = ClockProfiler(gpu, (1.2e9, 1.41e9), iterations_per_clock=1, clock=clock)
    works = loads(0.2)
    for _ in range(60):
        profiler.begin_iteration()
        for item in sorted(ORDER, key=lambda item: item.kind, reverse=True):
            profiler.before(item.stage, item.kind, item.microbatch)
            gpu.run(works[item.kind])
            profiler.after(item.stage, item.kind, item.microbatch)
    assert profiler.done
    assert len(profiler.rows) == 4
