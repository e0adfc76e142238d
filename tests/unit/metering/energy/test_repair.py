"""Repairing raw counters: what comes out never decreases and is flagged where guessed."""

import math

import pytest

from joulery.hardware import EnergyReading
from joulery.metering._measurement import Flag
from joulery.metering.energy._repair import CounterRepair

TYPICAL_WATTS = 200.0
SLACK_SECONDS = 0.2


def started(modulus=None, max_watts=300.0, joules=1000.0):
    """A repair that has seen ``joules`` at time 0."""
    return CounterRepair(EnergyReading(joules, 0.0, range_joules=modulus), max_watts)


def advanced(repair, joules, at, typical=TYPICAL_WATTS):
    """What a reading of ``joules`` at ``at`` adds."""
    return repair.advance(EnergyReading(joules, at), typical, SLACK_SECONDS)


def test_a_healthy_counter_passes_through():
    """Every measurement would be off."""
    repair = started()
    assert advanced(repair, 1020.0, 0.1).joules == 20.0
    step = advanced(repair, 1045.0, 0.2)
    assert (step.joules, step.variance, step.flag) == (25.0, 0.0, None)


def test_only_a_different_value_is_a_change():
    """Looks between refreshes would count as refreshes."""
    repair = CounterRepair(EnergyReading(5.0, 0.0), None)
    assert not repair.changed(EnergyReading(5.0, 0.1))
    assert repair.changed(EnergyReading(4.0, 0.1))


def test_it_tells_how_long_the_counter_stood_still():
    """Freezes would go unnoticed or be seen everywhere."""
    repair = CounterRepair(EnergyReading(5.0, 3.0), None)
    assert repair.still_seconds(EnergyReading(5.0, 4.5)) == 1.5
    advanced(repair, 105.0, 4.5)
    assert repair.still_seconds(EnergyReading(105.0, 4.5)) == 0.0


def test_a_wrap_is_unrolled():
    """Energy would jump back by the counter's range."""
    repair = started(modulus=1024.0, joules=1020.0)
    step = advanced(repair, 6.0, 0.1)
    assert step.joules == pytest.approx(10.0)
    assert step.flag is Flag.WRAPPED
    assert step.variance == 0.0


def test_a_reset_of_a_wrapping_counter_is_no_wrap():
    """A driver restart far below the range would add most of the range."""
    repair = started(modulus=262144.0)
    step = advanced(repair, 1.0, 0.1)
    assert step.flag is Flag.RESET
    assert step.joules == pytest.approx(20.0)


def test_a_reset_is_filled_from_the_typical_power():
    """Energy since the last reading would be lost or negative."""
    step = advanced(started(), 5.0, 0.1)
    assert step.flag is Flag.RESET
    assert step.joules == pytest.approx(TYPICAL_WATTS * 0.1)
    assert math.sqrt(step.variance) == pytest.approx(0.1 * step.joules)


def test_what_a_reset_counter_shows_was_used():
    """The guess would stay below what is certain."""
    step = advanced(started(), 50.0, 0.1, typical=10.0)
    assert step.joules == 50.0


def test_a_reset_to_a_wild_value_is_not_believed():
    """Garbage below the last value would count as energy."""
    repair = started(joules=1e9)
    assert advanced(repair, 1e8, 0.1).joules == pytest.approx(20.0)


def test_an_implausible_jump_is_replaced():
    """One bad reading would dwarf the whole run."""
    repair = started()
    step = advanced(repair, 1e7, 0.1)
    assert step.flag is Flag.JUMPED
    assert step.joules == pytest.approx(20.0)
    assert step.variance > 0
    assert advanced(repair, 1e7 + 20.0, 0.2).joules == 20.0


def test_the_jump_limit_follows_the_device():
    """A node's supply would be measured against a board's maximum."""
    assert advanced(started(max_watts=300.0), 1400.0, 0.1).flag is Flag.JUMPED
    assert advanced(started(max_watts=3000.0), 1400.0, 0.1).flag is None
    assert advanced(started(max_watts=None), 1400.0, 0.1).flag is None
    assert advanced(started(max_watts=None), 1e6, 0.1).flag is Flag.JUMPED


def filled(repair, until, watts=TYPICAL_WATTS, joules=1000.0):
    """Fill a freeze in steps of half a second; the joules of all of them."""
    steps = [repair.fill(EnergyReading(joules, 1 + n / 2), watts) for n in range(until * 2 - 1)]
    return steps, sum(step.joules for step in steps)


def test_a_freeze_is_filled_and_flagged_once():
    """Frozen seconds would cost nothing, or raise one flag per look."""
    steps, total = filled(started(), until=5)
    assert total == pytest.approx(5.0 * TYPICAL_WATTS)
    assert [step.flag for step in steps] == [Flag.FROZEN] + [None] * (len(steps) - 1)
    assert all(step.variance > 0 for step in steps)


def test_a_counter_that_catches_up_is_not_counted_twice():
    """The frozen seconds would be counted from the sensor and from the counter."""
    repair = started()
    _, before = filled(repair, until=5)
    after = advanced(repair, 1000.0 + 5.1 * TYPICAL_WATTS, 5.1).joules
    assert before + after == pytest.approx(5.1 * TYPICAL_WATTS)


def test_a_counter_that_fell_short_of_the_filling_does_not_take_it_back():
    """Energy would decrease."""
    repair = started()
    _, before = filled(repair, until=5)
    assert advanced(repair, 1000.0 + 0.9 * before, 5.1).joules == 0.0


def test_what_a_counter_shows_after_a_freeze_tells_how_far_off_the_filling_was():
    """The error of a freeze would stay what it was before it was known."""
    repair = started()
    steps, before = filled(repair, until=5)
    after = advanced(repair, 1000.0 + 0.4 * before, 5.1)
    variance = sum(step.variance for step in steps) + after.variance
    assert 0.6 * before <= 1.96 * variance**0.5 <= before


def test_a_counter_that_does_not_catch_up_goes_on_from_there():
    """What it counts after the freeze would be swallowed by the filling."""
    repair = started()
    filled(repair, until=5)
    assert advanced(repair, 1020.0, 5.1).joules == 20.0


def test_after_a_freeze_the_counter_is_trusted_again():
    """Filled joules would be subtracted for ever."""
    repair = started()
    filled(repair, until=5)
    advanced(repair, 2020.0, 5.1)
    assert advanced(repair, 2040.0, 5.2).joules == 20.0


@pytest.mark.parametrize("joules", [3.0, 1e8], ids=["reset", "jump"])
def test_a_freeze_that_ends_in_another_fault_is_counted_once(joules):
    """The frozen seconds would be filled in twice."""
    repair = started()
    _, before = filled(repair, until=5)
    after = advanced(repair, joules, 5.1).joules
    assert before + after == pytest.approx(5.1 * TYPICAL_WATTS, rel=0.01)


def test_a_freeze_that_ends_in_a_wrap_is_counted_once():
    """The frozen seconds would be counted from the sensor and from the counter."""
    repair = started(modulus=1100.0)
    _, before = filled(repair, until=5)
    after = advanced(repair, (1000.0 + 5.1 * TYPICAL_WATTS) % 1100.0, 5.1)
    assert after.flag is Flag.WRAPPED
    assert before + after.joules == pytest.approx(5.1 * TYPICAL_WATTS)
