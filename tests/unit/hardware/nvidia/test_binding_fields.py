import pytest

from joulery.clock import VirtualClock
from joulery.hardware.nvidia._binding import StampConverter, _whole


def moment(stamps, clock, stamp_seconds):
    """The stamp as read on a clock that nothing interrupts."""
    now, wall = clock.now(), clock.wall()
    return stamps.moment(round(stamp_seconds * 1e6), now, wall, now)


def test_a_stamp_moves_to_the_monotonic_clock():
    """Readings would be dated decades off."""
    clock = VirtualClock(start_seconds=100.0)
    assert moment(StampConverter(), clock, clock.wall() - 0.07) == pytest.approx(99.93, abs=2e-6)


@pytest.mark.parametrize("age_seconds", [10.1, -0.001, -3600.0, 1e9])
def test_implausible_stamps_are_dropped(age_seconds):
    """An extrapolation from a stamp in the future or long past would invent energy."""
    clock = VirtualClock(start_seconds=100.0)
    assert moment(StampConverter(), clock, clock.wall() - age_seconds) is None


@pytest.mark.parametrize("stamp_seconds", [0.0, -1.0])
def test_no_stamp_is_no_moment(stamp_seconds):
    """Drivers that do not stamp leave zero."""
    assert moment(StampConverter(), VirtualClock(wall_seconds=0.0), stamp_seconds) is None


def test_a_stamp_never_lies_ahead_of_the_reading():
    """Rounding to microseconds would date a refresh after its reading."""
    clock = VirtualClock(start_seconds=5.0)
    assert moment(StampConverter(), clock, clock.wall() + 5e-6) == 5.0


@pytest.mark.parametrize("step_seconds", [0.05, -0.05, 3600.0, -3600.0])
def test_stamps_around_a_clock_step_are_dropped(step_seconds):
    """When NTP sets the clock, a stamp from before it would be off by the step."""
    clock, stamps = VirtualClock(), StampConverter()
    refreshed_wall = clock.wall()
    clock.sleep(0.08)
    assert moment(stamps, clock, refreshed_wall) is not None
    clock.step_wall(step_seconds)
    assert moment(stamps, clock, refreshed_wall) is None
    clock.sleep(0.5)
    assert moment(stamps, clock, clock.wall() - 0.02) is None
    clock.sleep(1.0)
    assert moment(stamps, clock, clock.wall() - 0.02) == pytest.approx(clock.now() - 0.02, abs=1e-5)


def test_slewing_is_no_step():
    """A clock that NTP nudges all the time would never give a moment."""
    clock, stamps = VirtualClock(), StampConverter()
    for _ in range(20):
        clock.sleep(60.0)
        clock.step_wall(60.0 * 500e-6)
        assert moment(stamps, clock, clock.wall() - 0.05) is not None


def test_an_interruption_between_the_clocks_is_not_taken_for_a_step():
    """A busy machine would lose a second of stamps each time it is preempted."""
    stamps = StampConverter()
    assert stamps.moment(1_000_000_000, 10.0, 1000.05, 10.0) is not None
    assert stamps.moment(1_000_100_000, 10.1, 1000.15, 10.2) is None
    assert stamps.moment(1_000_200_000, 10.3, 1000.35, 10.3) is not None


@pytest.mark.parametrize(
    ("kind", "raw", "expected"),
    [
        (1, 0xDEAD_0000_0000_0005, 5),
        (3, 0x0000_0001_0000_0000, 1 << 32),
    ],
)
def test_values_of_both_types(kind, raw, expected):
    """Garbage in the unused half of the union would read as terajoules."""
    assert _whole(kind, raw) == expected
