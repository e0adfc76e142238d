"""What must hold for every board, workload and course of events."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from joulery.clock import VirtualClock
from joulery.hardware import SimulatedGpu, Workload, catalog
from joulery.hardware.simulated import _physics as physics

boards = st.sampled_from(catalog.names()).map(catalog.board)
parts = st.one_of(st.just(0.0), st.floats(1e-4, 10.0))
workloads = st.builds(
    Workload, st.just("any"), st.floats(1e-4, 10.0), parts, parts, st.floats(0.0, 1.0)
)
limits = st.floats(10.0, 1200.0)
locks = st.one_of(st.none(), st.floats(1e6, 3e9))


@given(boards, workloads)
def test_more_clock_means_more_power_and_less_time(board, work):
    """A power limit could lower the clock and raise the power."""
    states = physics.clock_states(board, work)
    for slower, faster in pairwise(states):
        assert slower.clock_hertz < faster.clock_hertz
        assert slower.seconds >= faster.seconds * (1 - 1e-12)
        assert slower.watts <= faster.watts * (1 + 1e-12)
        assert slower.busy_watts <= faster.busy_watts * (1 + 1e-12)
        assert faster.watts <= faster.busy_watts * (1 + 1e-12)


@given(boards, workloads, limits, locks)
def test_settling_keeps_the_limit_unless_at_the_lowest_clock(board, work, limit, lock):
    """A simulated board would break its own power limit."""
    found = physics.settle(board, work, limit, lock)
    assert found.busy_watts <= limit or found.clock_hertz == board.min_clock_hertz
    assert found.watts <= limit or found.clock_hertz == board.min_clock_hertz
    assert board.min_clock_hertz <= found.clock_hertz <= board.max_clock_hertz
    if lock is not None:
        assert found.clock_hertz <= max(lock, board.min_clock_hertz)


@given(boards, workloads, limits, locks)
def test_settling_in_a_table_is_settling(board, work, limit, lock):
    """An emulator that works from the table would differ from the formulas."""
    states = physics.clock_states(board, work)
    assert physics.settle_in(states, limit, lock) == physics.settle(board, work, limit, lock)


@given(boards, workloads, limits, limits)
def test_higher_limit_is_never_slower(board, work, first, second):
    """Raising a limit could slow a job down."""
    low, high = sorted((first, second))
    states = physics.clock_states(board, work)
    below, above = physics.settle_in(states, low), physics.settle_in(states, high)
    assert above.seconds <= below.seconds * (1 + 1e-12)
    assert above.clock_hertz >= below.clock_hertz


events = st.lists(
    st.tuples(
        st.floats(0.0, 0.5),
        st.sampled_from(["read", "busy", "idle", "cap", "free", "lock", "unlock"]),
    ),
    max_size=40,
)
lags = st.sampled_from([0.0, 0.05, 2.0])


def apply(gpu, event):
    """Do to ``gpu`` what ``event`` says."""
    board = gpu.board
    actions = {
        "read": gpu.read_energy,
        "busy": lambda: gpu.set_load(catalog.workload("bert", board)),
        "idle": lambda: gpu.set_load(None),
        "cap": lambda: gpu.set_power_limit(board.min_limit_watts),
        "free": lambda: gpu.set_power_limit(board.max_limit_watts),
        "lock": lambda: gpu.lock_clock(board.knee_clock_hertz),
        "unlock": gpu.unlock_clock,
    }
    actions[event]()


@given(events, lags, st.integers(0, 1000))
def test_counter_never_falls_and_never_runs_ahead(course, lag, seed):
    """A window could measure negative energy on a healthy board."""
    clock = VirtualClock(start_seconds=1000.0)
    board = replace(catalog.board("V100"), power_lag_seconds=lag)
    gpu = SimulatedGpu(board, clock, seed=seed)
    last = gpu.read_energy()
    for wait, event in course:
        clock.sleep(wait)
        apply(gpu, event)
        reading = gpu.read_energy()
        assert last.joules <= reading.joules <= gpu.true_joules() + 1e-6
        assert last.refreshed_at_seconds <= reading.refreshed_at_seconds
        age = reading.read_at_seconds - reading.refreshed_at_seconds
        assert 0 <= age <= board.counter_period_seconds + 1e-9
        # Nothing draws more than the highest of what was asked for, so the counter cannot lag
        # behind by more than that for its age.
        behind = gpu.true_joules() - reading.joules
        assert behind <= board.max_limit_watts * (age + 1e-6) + 1e-3
        last = reading


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20),
    events.filter(lambda course: all(event != "read" for _, event in course)),
    lags,
)
def test_energy_adds_up_however_time_is_split(splits, course, lag):
    """Looking at a board, or telling it again what it does, would change what it draws."""
    board = replace(catalog.board("A40"), power_lag_seconds=lag)

    def play(pieces):
        clock = VirtualClock()
        gpu = SimulatedGpu(board, clock)
        for wait, event in course:
            for piece in pieces:
                clock.sleep(wait * piece)
                gpu.read_energy()
                gpu.set_power_limit(gpu.power_limits().current_watts)
            apply(gpu, event)
        clock.sleep(1.0)
        return gpu.true_joules()

    total = sum(splits)
    pieces = [split / total for split in splits] if total > 0 else [1.0]
    assert play(pieces) == pytest.approx(play([1.0]), rel=1e-9)
