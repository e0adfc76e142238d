"""Counters repaired and shared out: whatever happens, energy never decreases or counts twice."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from joulery.hardware import DeviceInfo, DeviceKind, EnergyReading
from joulery.metering._attribution import LocalRank, rank_share
from joulery.metering._measurement import counted_positions
from joulery.metering.energy._refresh import RefreshTimer
from joulery.metering.energy._repair import CounterRepair

JOULES = st.floats(0.0, 1e9)
STEPS = st.lists(st.tuples(JOULES, st.floats(1e-3, 10.0)), min_size=1, max_size=40)
WATTS = st.floats(0.0, 1e4)


@given(
    steps=STEPS,
    modulus=st.none() | st.floats(1.0, 1e9),
    max_watts=st.none() | st.floats(1.0, 1e4),
    watts=WATTS,
)
def test_no_sequence_of_readings_takes_energy_back(steps, modulus, max_watts, watts):
    """A broken counter would give negative energy, or an infinite or undefined error."""
    repair = CounterRepair(EnergyReading(0.0, 0.0, range_joules=modulus), max_watts)
    now = 0.0
    for joules, seconds in steps:
        now += seconds
        reading = EnergyReading(joules, now)
        if repair.changed(reading):
            advance = repair.advance(reading, watts, 0.2)
        else:
            advance = repair.fill(reading, watts)
        assert advance.joules >= 0.0
        assert advance.variance >= 0.0
        assert math.isfinite(advance.joules)


@given(
    powers=st.lists(st.floats(1.0, 300.0), min_size=2, max_size=50),
    modulus=st.floats(500.0, 5000.0),
    start=st.floats(0.0, 499.0),
)
def test_wraps_lose_nothing(powers, modulus, start):
    """A counter of small range would lose its range at every turn."""
    repair = CounterRepair(EnergyReading(start, 0.0, range_joules=modulus), 300.0)
    true = found = 0.0
    for number, power in enumerate(powers, start=1):
        true += power * 0.5
        reading = EnergyReading((start + true) % modulus, number * 0.5)
        if repair.changed(reading):
            found += repair.advance(reading, power, 0.2).joules
    assert found == pytest.approx(true, rel=1e-9, abs=1e-6)


@given(
    watts=st.floats(10.0, 300.0),
    frozen_steps=st.integers(1, 30),
    sensor_error=st.floats(-0.1, 0.1),
    catches_up=st.booleans(),
)
def test_a_freeze_is_filled_about_right(watts, frozen_steps, sensor_error, catches_up):
    """Frozen time would count twice or not at all."""
    repair = CounterRepair(EnergyReading(0.0, 0.0), 300.0)
    found = 0.0
    for step in range(1, frozen_steps + 1):
        reading = EnergyReading(0.0, float(step))
        found += repair.fill(reading, watts * (1 + sensor_error)).joules
    true = watts * (frozen_steps + 0.1)
    shown = true if catches_up else 0.1 * watts
    found += repair.advance(EnergyReading(shown, frozen_steps + 0.1), watts, 0.2).joules
    assert found == pytest.approx(true, rel=abs(sensor_error) + 0.01)


@given(
    gaps=st.lists(st.floats(1e-4, 0.5), min_size=1, max_size=80),
    changes=st.lists(st.booleans(), min_size=80, max_size=80),
    stamps=st.lists(st.none() | st.floats(-1.0, 1.0), min_size=80, max_size=80),
)
def test_any_looks_leave_the_timer_sane(gaps, changes, stamps):
    """Odd drivers would make the sampler spin, stall or place refreshes in the future."""
    timer, now = RefreshTimer(), 0.0
    for gap, changed, stamp in zip(gaps, changes, stamps, strict=False):
        now += gap
        refreshed = None if stamp is None else now - abs(stamp)
        refresh = timer.observe(now, refreshed, changed=changed)
        if refresh is not None:
            assert refresh.half_width_seconds >= 0.0
            assert math.isfinite(refresh.at_seconds)
        assert math.isfinite(timer.next_due(now + 0.1))
        assert timer.period_seconds is None or timer.period_seconds >= 0.0
        assert timer.next_due(now + 0.1) < now + 10.0


@dataclass
class Fake:
    """A device that only says who it is."""

    info: DeviceInfo


@st.composite
def machines(draw):
    """Boards, some split into parts, and processors, in any order."""
    devices = []
    for board in range(draw(st.integers(0, 8))):
        devices.append(DeviceInfo(f"gpu:{board}", "b", DeviceKind.GPU, "fake", board))
        devices += [
            DeviceInfo(
                f"gpu:{board}/{part}", "p", DeviceKind.GPU, "fake", part, parent=f"gpu:{board}"
            )
            for part in range(draw(st.integers(0, 3)))
        ]
    devices += [
        DeviceInfo(f"cpu:{n}", "c", DeviceKind.CPU, "fake", n)
        for n in range(draw(st.integers(0, 2)))
    ]
    return draw(st.permutations([Fake(info) for info in devices]))


@given(machine=machines(), data=st.data())
def test_ranks_together_count_every_joule_once(machine, data):
    """A job of several ranks would count a board twice or not at all."""
    boards = [device for device in machine if device.info.id.count(":") and _is_board(device.info)]
    size = data.draw(st.integers(1, max(1, len(boards))))
    if len(boards) < size:
        return
    shares = [rank_share(machine, LocalRank(rank, size), {}) for rank in range(size)]
    everyone = [device.info.id for share in shares for device in share]
    assert sorted(everyone) == sorted(device.info.id for device in machine)
    counted = [
        share[position].info.id
        for share in shares
        for position in counted_positions([device.info for device in share])
    ]
    whole = counted_positions([device.info for device in machine])
    assert sorted(counted) == sorted(machine[position].info.id for position in whole)


def _is_board(info):
    return info.kind is DeviceKind.GPU and info.parent is None
