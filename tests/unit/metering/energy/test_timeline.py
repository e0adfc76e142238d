"""One device's energy through time: knots, spans and what is noted when reading fails."""

import itertools
import math

import pytest

from joulery.errors import DeviceError, DeviceLostError
from joulery.frontier import Origin, Provenance
from joulery.hardware import Capability, DeviceInfo, DeviceKind, EnergyReading, Telemetry
from joulery.metering import EnergyTimeline
from joulery.metering._measurement import Flag
from joulery.metering.energy._interpolate import mean_watts

PERIOD = 0.1


class Bench:
    """A device of a constant 100 W whose next answers a test decides."""

    def __init__(self, *capabilities, watts=100.0):
        self.now = 0.0
        self.watts = watts
        self.sensed = None
        self.stamped = True
        self.fails = None
        self.utilisation = 0.5
        self.telemetry_calls = 0
        self.offset = 0.0
        self.stuck_since = None
        self.capabilities = frozenset({Capability.ENERGY, *capabilities})
        self.info = DeviceInfo("fake:0", "Fake", DeviceKind.GPU, "fake", max_watts=300.0)
        self.provenance = Provenance(Origin.MEASURED, "fake", 0.0)

    def read_energy(self):
        """The counter as of its last refresh."""
        if self.fails is not None:
            raise self.fails
        seen = self.now if self.stuck_since is None else min(self.now, self.stuck_since)
        tick = math.floor(seen / PERIOD + 1e-9) * PERIOD
        stamp = tick if self.stamped else None
        return EnergyReading(self.offset + self.watts * tick, self.now, stamp, self.sensed)

    def read_power(self):
        """What the sensor shows."""
        if self.sensed is None:
            raise DeviceError("no sensor", remedy="none")
        return self.sensed

    def telemetry(self):
        """How busy it is."""
        self.telemetry_calls += 1
        if self.utilisation is None:
            raise DeviceError("no telemetry", remedy="none")
        return Telemetry(utilisation=self.utilisation)


def follow(bench, track, until):
    """Read whenever due; the knots found."""
    found = []
    while bench.now < until:
        knot = track.read(bench.now + PERIOD / 2)
        if knot is not None:
            found.append(knot)
        bench.now = max(bench.now + 1e-4, track.due_seconds)
    return found


@pytest.fixture
def bench():
    """A device without sensor or telemetry."""
    return Bench()


@pytest.fixture
def track(bench):
    """Its track."""
    return EnergyTimeline(bench, bench.now)


def test_the_first_reading_is_zero(bench, track):
    """Energy from before the meter would be charged to the first window."""
    bench.now = 7.3
    knot = track.read(7.4)
    assert knot.joules == 0.0
    assert track.span.start is knot
    assert track.span.end is None


def test_knots_follow_the_counter(bench, track):
    """Energy between refreshes would be misplaced in time."""
    found = follow(bench, track, 3.0)
    assert len(found) > 25
    late = found[6:]
    for knot in late:
        assert knot.joules == pytest.approx(100.0 * knot.at_seconds, abs=1e-6)
        assert knot.half_width_seconds == 0.0
    steps = [b.at_seconds - a.at_seconds for a, b in itertools.pairwise(late)]
    assert steps == pytest.approx([PERIOD] * len(steps))


def test_spans_link_their_neighbours(bench, track):
    """Edges would lack the power around them."""
    follow(bench, track, 2.0)
    first = track.span
    assert first.before is not None
    assert (first.end, first.after) == (None, None)
    follow(bench, track, bench.now + 0.35)
    assert first.end.at_seconds == pytest.approx(first.start.at_seconds + PERIOD)
    assert first.after.at_seconds == pytest.approx(first.start.at_seconds + 2 * PERIOD)
    assert first.watts == pytest.approx(100.0)
    assert mean_watts(first.start, first.end) == pytest.approx(100.0)


@pytest.mark.parametrize("stamped", [True, False])
def test_the_first_knot_is_placed_where_the_counter_had_refreshed(bench, track, stamped):
    """The first window of a run would gain or lose up to a period's energy."""
    bench.stamped = stamped
    bench.now = 7.36
    track.read(7.4)
    first = track.span
    follow(bench, track, 9.0)
    assert first.start.at_seconds == pytest.approx(7.3, abs=0.002)
    assert first.start.half_width_seconds <= 0.003
    assert mean_watts(first.start, first.end) == pytest.approx(100.0, rel=0.05)


def test_the_first_knot_of_a_continuous_counter_is_where_it_was_read(bench, track, monkeypatch):
    """Counters that are always fresh would be dated back."""
    monkeypatch.setitem(globals(), "PERIOD", 0.001)
    bench.stamped = False
    bench.now = 7.36
    track.read(7.46)
    first = track.span
    follow(bench, track, 8.0)
    assert track.timer.period_seconds == 0.0
    assert first.start.at_seconds == pytest.approx(7.36)


def test_an_ancient_stamp_does_not_date_the_first_knot(bench, track):
    """A counter frozen for hours would stretch the first span over them."""
    bench.now, bench.stuck_since = 100.0, 1.0
    assert track.read(100.1).at_seconds >= 99.8


def test_a_device_without_sensor_has_no_power_at_first(bench, track):
    """Unknown power would be zero power."""
    track.read(0.1)
    assert math.isnan(track.span.watts)
    assert track.latest_watts is None


def test_steady_power_lowers_the_noise_and_a_new_load_raises_it(bench, track):
    """Error bars would not follow the load."""
    follow(bench, track, 4.0)
    assert track.span.noise < 0.01
    bench.offset -= 150.0 * bench.now
    bench.watts = 250.0
    follow(bench, track, 4.3)
    assert track.span.noise >= 0.05


def test_a_read_error_is_noted_and_forgotten(bench, track):
    """One failed driver call would end or spoil the measurement."""
    follow(bench, track, 2.0)
    bench.fails = DeviceError("timed out", remedy="none")
    assert follow(bench, track, 2.5) == []
    bench.fails = None
    found = follow(bench, track, 4.0)
    assert track.flags[Flag.READ_ERROR] >= 1
    assert found[-1].joules == pytest.approx(100.0 * found[-1].at_seconds, abs=1e-6)


def test_knots_keep_the_flags_of_their_time(bench, track):
    """A window could not tell faults during it from faults before it."""
    before = follow(bench, track, 1.0)[-1]
    bench.fails = DeviceError("timed out", remedy="none")
    follow(bench, track, 1.2)
    bench.fails = None
    after = follow(bench, track, 1.6)[-1]
    assert Flag.READ_ERROR not in before.flags
    assert Flag.READ_ERROR in after.flags


def test_a_lost_device_is_left_alone(bench, track):
    """A board off the bus would be asked for ever, at the risk of hanging."""
    follow(bench, track, 1.0)
    bench.fails = DeviceLostError("gone", remedy="none")
    follow(bench, track, 1.5)
    assert track.lost
    bench.fails = None
    assert follow(bench, track, 2.0) == []
    assert track.flags == {Flag.LOST: 1}


def test_an_unreadable_device_has_no_span_until_it_answers(bench, track):
    """A device that wakes up late would never be measured."""
    bench.fails = DeviceError("asleep", remedy="none")
    follow(bench, track, 1.0)
    assert track.span is None
    bench.fails = None
    follow(bench, track, 2.0)
    assert track.span is not None


def test_something_without_a_counter_is_never_read():
    """A device that claims what it lacks would raise into the sampler."""

    class Silent:
        info = DeviceInfo("x", "x", DeviceKind.GPU, "fake")
        provenance = Provenance(Origin.MEASURED)
        capabilities = frozenset()

    track = EnergyTimeline(Silent(), 0.0)
    assert track.read(0.1) is None
    assert track.span is None


def frozen_for(bench, track, seconds):
    """Follow through a freeze of ``seconds`` from time 3 on and a second more."""
    follow(bench, track, 3.0)
    bench.stuck_since = 3.0
    follow(bench, track, 3.0 + seconds)
    caught = track.span.start
    bench.stuck_since = None
    follow(bench, track, 4.0 + seconds)
    return caught


def test_a_freeze_is_filled_from_the_power_sensor():
    """Frozen seconds would cost nothing until the counter moves again."""
    bench = Bench(Capability.POWER)
    bench.sensed = 100.0
    track = EnergyTimeline(bench, 0.0)
    caught = frozen_for(bench, track, 5.0)
    assert caught.flags[Flag.FROZEN] == 1
    assert caught.joules == pytest.approx(800.0, rel=0.03)
    assert caught.variance > 0
    last = track.span.start
    assert last.joules == pytest.approx(100.0 * last.at_seconds, rel=0.01)


@pytest.mark.parametrize(("moves", "least", "most"), [(True, 0.0, 0.21), (False, 0.9, 4.0)])
def test_a_sensor_that_stands_still_with_its_counter_tells_nothing(moves, least, most):
    """A board that went idle meanwhile is charged its power before, give or take some per cent."""
    bench = Bench(Capability.POWER)
    bench.sensed = 100.0
    track = EnergyTimeline(bench, 0.0)
    follow(bench, track, 3.0)
    bench.stuck_since = 3.0
    for tenth in range(31, 90):
        bench.sensed += 0.1 * moves
        follow(bench, track, tenth / 10)
    knot = track.span.start
    assert least <= 1.96 * knot.variance**0.5 / (100.0 * (knot.at_seconds - 3.0)) <= most


def test_a_freeze_without_sensor_is_bridged_when_the_counter_returns(bench, track):
    """It cannot be filled in, but the counter itself may have gone on."""
    frozen_for(bench, track, 5.0)
    last = track.span.start
    assert Flag.FROZEN not in track.flags
    assert last.joules == pytest.approx(100.0 * last.at_seconds, rel=0.01)


def test_an_idle_counter_at_zero_watts_is_not_frozen():
    """A device that draws nothing would be flagged as broken."""
    bench = Bench(Capability.POWER, watts=0.0)
    bench.sensed = 0.0
    track = EnergyTimeline(bench, 0.0)
    follow(bench, track, 5.0)
    assert Flag.FROZEN not in track.flags


def test_a_sensor_that_fails_during_a_freeze_is_no_disaster():
    """The sampler would die on the second fault."""
    bench = Bench(Capability.POWER)
    track = EnergyTimeline(bench, 0.0)
    frozen_for(bench, track, 3.0)
    last = track.span.start
    assert last.joules == pytest.approx(100.0 * last.at_seconds, rel=0.01)


def test_idle_energy_is_kept_apart():
    """Energy wasted while idle could not be distinguished from energy at work."""
    bench = Bench(Capability.TELEMETRY)
    bench.utilisation = 0.0
    track = EnergyTimeline(bench, 0.0)
    follow(bench, track, 4.0)
    bench.utilisation = 0.9
    follow(bench, track, 10.0)
    last = track.span.start
    assert track.reports_idle
    assert last.idle_joules == pytest.approx(400.0, abs=110.0)
    assert last.joules == pytest.approx(1000.0, rel=0.02)


def test_telemetry_is_asked_about_once_a_second():
    """Asking costs more than reading the counter."""
    bench = Bench(Capability.TELEMETRY)
    follow(bench, EnergyTimeline(bench, 0.0), 10.0)
    assert 5 <= bench.telemetry_calls <= 11


def test_failing_telemetry_is_not_idle():
    """A broken utilisation counter would mark all work as waste."""
    bench = Bench(Capability.TELEMETRY)
    bench.utilisation = None
    track = EnergyTimeline(bench, 0.0)
    follow(bench, track, 2.0)
    assert track.span.start.idle_joules == 0.0


def test_joules_never_decrease(bench, track):
    """A reset in mid-run would give energy back."""
    found = follow(bench, track, 2.0)
    bench.offset = -100.0 * bench.now
    found += follow(bench, track, 4.0)
    joules = [knot.joules for knot in found]
    assert joules == sorted(joules)
    assert track.flags[Flag.RESET] == 1
    assert joules[-1] == pytest.approx(100.0 * found[-1].at_seconds, rel=0.05)
