"""The formulas of a board under a power limit."""

from dataclasses import replace

import pytest

from joulery.errors import InvalidValueError
from joulery.hardware import Board, Steady, Workload
from joulery.hardware.simulated import _physics as physics

BOARD = Board(
    name="toy",
    idle_watts=20.0,
    awake_watts=30.0,
    clock_watts=10.0,
    dynamic_watts=200.0,
    memory_watts=50.0,
    voltage_floor=0.5,
    knee_clock_hertz=500e6,
    min_clock_hertz=100e6,
    max_clock_hertz=1000e6,
    clock_step_hertz=100e6,
    min_limit_watts=50.0,
    max_limit_watts=300.0,
    default_limit_watts=300.0,
)
COMPUTE = Workload("compute", compute_seconds=1.0)


def test_voltage_is_flat_up_to_the_knee_and_one_at_the_top():
    """Power below the knee would fall too fast, and savings would look too good."""
    assert BOARD.voltage(100e6) == BOARD.voltage(500e6) == 0.5
    assert BOARD.voltage(750e6) == pytest.approx(0.75)
    assert BOARD.voltage(1000e6) == pytest.approx(1.0)


def test_clocks_run_from_lowest_to_highest():
    """A table that misses its ends would settle at the wrong clock."""
    assert BOARD.clocks() == pytest.approx([i * 100e6 for i in range(1, 11)])


def test_highest_clock_is_supported_even_off_the_grid():
    """A highest clock that is no whole number of steps up would be lost."""
    clocks = replace(BOARD, max_clock_hertz=1050e6).clocks()
    assert clocks[-2:] == (1000e6, 1050e6)


def test_compute_bound_step_at_full_clock():
    """The sum of the parts: awake, clock tree and all dynamic power."""
    state = physics.steady_at(BOARD, COMPUTE, 1000e6)
    assert state == Steady(1000e6, 1.0, 240.0, 240.0)


def test_compute_bound_step_below_the_knee():
    """Half the clock takes twice the time at a quarter of the joules per operation."""
    state = physics.steady_at(BOARD, COMPUTE, 500e6)
    assert state.seconds == pytest.approx(2.0)
    assert state.watts == pytest.approx(30.0 + 10.0 * 0.5 * 0.25 + 200.0 * 0.25 / 2.0)


def test_memory_bound_step_does_not_need_the_clock():
    """Work that waits for memory must keep its speed at a lower clock."""
    work = Workload("memory", compute_seconds=0.05, memory_seconds=1.0)
    slow, fast = (physics.steady_at(BOARD, work, clock) for clock in (500e6, 1000e6))
    assert slow.seconds == pytest.approx(fast.seconds, rel=1e-3)
    assert slow.watts < fast.watts


def test_waiting_for_the_host_lowers_the_mean_only():
    """A limit acts on the power while executing; pauses show in the mean."""
    waiting = physics.steady_at(BOARD, replace(COMPUTE, host_seconds=1.0), 1000e6)
    assert waiting.seconds == pytest.approx(2.0)
    assert waiting.busy_watts == pytest.approx(240.0)
    assert waiting.watts == pytest.approx((240.0 + 40.0) / 2)


def test_step_on_the_host_alone_draws_awake_power():
    """A division by zero busy seconds would end a simulation."""
    state = physics.steady_at(BOARD, Workload("host", 0.0, 0.0, 1.0), 1000e6)
    assert state == Steady(1000e6, 1.0, 40.0, 40.0)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_smooth_max_survives_any_magnitude(scale):
    """Powers of very long or short times would overflow or vanish."""
    assert physics.smooth_max(scale, scale) == pytest.approx(scale * 2 ** (1 / 3))
    assert physics.smooth_max(0.0, 0.0) == 0.0


def test_generous_limit_leaves_the_highest_clock():
    """An unbinding limit must not cost speed."""
    assert physics.settle(BOARD, COMPUTE, 300.0).clock_hertz == 1000e6


def test_limit_equal_to_a_state_selects_it():
    """Off by one at equality would waste a clock step."""
    states = physics.clock_states(BOARD, COMPUTE)
    assert physics.settle_in(states, states[6].busy_watts) == states[6]


def test_binding_limit_is_met_exactly_between_neighbours():
    """Power would jump between table entries as the limit moves."""
    states = physics.clock_states(BOARD, COMPUTE)
    limit = (states[7].busy_watts + states[8].busy_watts) / 2
    found = physics.settle_in(states, limit)
    assert found.busy_watts == found.watts == limit
    assert found.clock_hertz == pytest.approx(850e6)
    assert found.seconds == pytest.approx((states[7].seconds + states[8].seconds) / 2)


def test_limit_below_the_lowest_state_ends_at_the_lowest_clock():
    """A real board draws what it must; the model may not invent a lower state."""
    found = physics.settle(BOARD, COMPUTE, 1.0)
    assert found.clock_hertz == 100e6
    assert found.watts > 1.0


@pytest.mark.parametrize(
    ("locked", "expected"), [(2000e6, 1000e6), (600e6, 600e6), (650e6, 600e6), (1.0, 100e6)]
)
def test_lock_takes_the_highest_clock_at_or_below_it(locked, expected):
    """A locked board would run at a clock that was not requested."""
    assert physics.settle(BOARD, COMPUTE, 300.0, locked).clock_hertz == expected


def test_limit_still_binds_below_a_lock():
    """A lock may not lift a board above its power limit."""
    assert physics.settle(BOARD, COMPUTE, 60.0, 900e6).watts == 60.0


def test_idle_draws_idle_watts():
    """An unused board would be charged for work."""
    assert physics.idle(BOARD).watts == 20.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"idle_watts": -1.0},
        {"idle_watts": 31.0},
        {"dynamic_watts": float("nan")},
        {"voltage_floor": 0.0},
        {"voltage_floor": 1.1},
        {"min_clock_hertz": 0.0},
        {"knee_clock_hertz": 1000e6},
        {"clock_step_hertz": 0.0},
        {"min_limit_watts": 301.0},
        {"counter_period_seconds": 0.0},
    ],
)
def test_impossible_board_is_refused(wrong):
    """Nonsense constants would surface as nonsense figures much later."""
    with pytest.raises(InvalidValueError, match="toy"):
        replace(BOARD, **wrong)


@pytest.mark.parametrize("wrong", [{"compute_seconds": 0.0}, {"activity": -0.1}])
def test_impossible_workload_is_refused(wrong):
    """A step without time would divide by zero."""
    with pytest.raises(InvalidValueError, match="compute"):
        replace(COMPUTE, **wrong)


def test_scaled_work_takes_proportionally_longer_at_the_same_power():
    """Twice the work per step must not change the operating point."""
    work = Workload("mixed", 0.3, 0.2, 0.1, 0.7)
    once, twice = (physics.settle(BOARD, w, 90.0) for w in (work, work.scaled(2.0)))
    assert twice.seconds == pytest.approx(2 * once.seconds)
    assert twice.watts == pytest.approx(once.watts)
