import math
from dataclasses import replace

import pytest

from joulery.clock import VirtualClock
from joulery.errors import DeviceError, InvalidValueError, MissingRightsError, UnsupportedError
from joulery.frontier import Frontier, Origin
from joulery.hardware import (
    Capability,
    Faults,
    PowerLimitRange,
    SimulatedGpu,
    Workload,
    catalog,
    settle,
)
from joulery.metering import Meter
from joulery.sweep import spread_limits, sweep_power_limits

BOARD = replace(
    catalog.board("V100"),
    name="Toy",
    min_limit_watts=100.0,
    max_limit_watts=250.0,
    default_limit_watts=250.0,
)
WORKLOAD = Workload("toy", 0.1, 0.06, 0.01)
STEPS = 100


class Bench:
    """A board with a meter on it, and work to run."""

    def __init__(self, faults=None):
        self.clock = VirtualClock()
        self.gpu = SimulatedGpu(BOARD, self.clock, faults=faults or Faults())
        self.meter = Meter([self.gpu], clock=self.clock)
        self.ran_under = []

    def work(self):
        """Some steps, and under which limit they ran."""
        self.ran_under.append(self.gpu.power_limits().current_watts)
        self.gpu.run(WORKLOAD, STEPS)


@pytest.fixture
def bench():
    """A healthy board."""
    made = Bench()
    with made.meter:
        yield made


def test_points_cost_what_the_model_says(bench):
    """A sweep that mixes up limits or windows would give a wrong frontier."""
    limits = [250.0, 180.0, 120.0]
    points = sweep_power_limits(bench.gpu, limits, bench.work, bench.meter)
    assert bench.ran_under == limits
    assert [p.setting.power_limit_watts for p in points] == limits
    for point, watts in zip(points, limits, strict=True):
        steady = settle(BOARD, WORKLOAD, watts)
        assert point.seconds == pytest.approx(STEPS * steady.seconds)
        assert point.joules == pytest.approx(STEPS * steady.seconds * steady.watts, rel=0.02)
        assert point.provenance.origin is Origin.SIMULATED
        assert point.setting.device == "Toy"


def test_limit_found_is_back_afterwards(bench):
    """A sweep must leave the board as it found it, also when that is not the default."""
    bench.gpu.set_power_limit(210.0)
    sweep_power_limits(bench.gpu, [250.0, 120.0], bench.work, bench.meter)
    assert bench.gpu.power_limits().current_watts == 210.0


def test_limit_found_is_back_when_the_work_fails(bench):
    """A crash under a low limit must not leave the board slow."""

    def crash():
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        sweep_power_limits(bench.gpu, [120.0], crash, bench.meter)
    assert bench.gpu.power_limits().current_watts == 250.0


@pytest.mark.parametrize("bad", [99.0, 251.0, -1.0, math.nan, math.inf])
def test_every_limit_is_checked_before_the_first_run(bench, bad):
    """A typing error in the last limit must not cost all the runs before it."""
    with pytest.raises(InvalidValueError, match="outside") as raised:
        sweep_power_limits(bench.gpu, [250.0, bad], bench.work, bench.meter)
    assert bench.ran_under == []
    assert raised.value.remedy == "give 100 to 250 W"


def test_no_limits_at_all(bench):
    """An empty sweep is a mistake, not an empty answer."""
    with pytest.raises(InvalidValueError, match="no power limit"):
        sweep_power_limits(bench.gpu, [], bench.work, bench.meter)


def test_repeated_limit_runs_once(bench):
    """Listing a limit twice must not double the work."""
    points = sweep_power_limits(bench.gpu, [150.0, 150.0], bench.work, bench.meter)
    assert len(points) == len(bench.ran_under) == 1


def test_each_point_is_reported_as_soon_as_it_is_known(bench):
    """Long sweeps show progress through this."""
    seen = []
    points = sweep_power_limits(
        bench.gpu,
        [250.0, 150.0],
        bench.work,
        bench.meter,
        on_point=lambda point: seen.append((point, len(bench.ran_under))),
    )
    assert seen == [(points[0], 1), (points[1], 2)]


def test_frontier_leaves_out_dominated_limits(bench):
    """Below the knee both time and energy grow; such limits are not on the frontier."""
    limits = [250.0, 200.0, 150.0, 100.0]
    points = sweep_power_limits(bench.gpu, limits, bench.work, bench.meter)
    frontier = Frontier.from_points(points)
    kept = {point.setting.power_limit_watts for point in frontier}
    for point in points:
        dominated = any(
            other.seconds <= point.seconds and other.joules <= point.joules
            for other in points
            if other is not point
        )
        assert (point.setting.power_limit_watts in kept) is not dominated


def test_no_rights_is_said_before_any_run():
    """Most users may not set limits; they must hear so and lose nothing."""
    bench = Bench(Faults(no_permission=True))
    with bench.meter, pytest.raises(MissingRightsError):
        sweep_power_limits(bench.gpu, [150.0], bench.work, bench.meter)
    assert bench.ran_under == []


def test_device_without_limits(bench, monkeypatch):
    """A CPU counter has no limit to sweep."""
    monkeypatch.setattr(
        SimulatedGpu, "capabilities", property(lambda _: frozenset({Capability.ENERGY}))
    )
    with pytest.raises(UnsupportedError):
        sweep_power_limits(bench.gpu, [150.0], bench.work, bench.meter)


def test_unreadable_energy_is_no_point():
    """Unknown energy must not enter a frontier as zero."""
    bench = Bench(Faults(read_error_seconds=(0.0, 1e9)))
    with bench.meter, pytest.raises(DeviceError, match="no energy"):
        sweep_power_limits(bench.gpu, [150.0], bench.work, bench.meter)
    assert bench.gpu.power_limits().current_watts == 250.0


@pytest.mark.parametrize(
    ("low", "high", "default"),
    [
        (100, 300, 300),
        (100, 260, 260),
        (60, 70, 70),
        (400, 1000, 1000),
        (180, 600, 450),
        (99, 99, 99),
    ],
)
def test_spread_covers_the_range(low, high, default):
    """The default sweep must show the ends and the default, in a number that people can read."""
    limits = spread_limits(PowerLimitRange(low, high, default, default))
    assert limits[0] == high
    assert limits[-1] == low
    assert default in limits
    assert len(limits) <= 12
    assert list(limits) == sorted(set(limits), reverse=True)
    assert all(watts == round(watts) for watts in limits)


def test_spread_of_a_v100_is_what_people_would_type():
    """Round limits are easier to compare with what others publish."""
    assert spread_limits(PowerLimitRange(100, 300, 300, 300)) == tuple(range(300, 99, -25))
