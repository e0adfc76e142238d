"""Energy from power samples."""

import math
import threading

import pytest

from joulery.clock import VirtualClock
from joulery.errors import DeviceError, InvalidValueError, UnsupportedError
from joulery.frontier import Origin, Provenance
from joulery.hardware import Capability, DeviceInfo, DeviceKind, IntegratedPower, with_energy
from joulery.hardware._integrated import Gap


class Sensor:
    """A power sensor that a test sets."""

    info = DeviceInfo("sensor:0", "sensor", DeviceKind.NODE, "test")
    capabilities = frozenset({Capability.POWER})

    def __init__(self, watts=100.0, relative_error=0.01):
        self.watts = watts
        self.provenance = Provenance(Origin.MEASURED, "sensor", relative_error)

    def read_power(self):
        """The watts that were set, or the failure."""
        if isinstance(self.watts, Exception):
            raise self.watts
        return self.watts


class Boastful(Sensor):
    """Claims everything, has the methods of nothing but power."""

    capabilities = frozenset(Capability) - {Capability.ENERGY}


@pytest.fixture
def clock():
    """The clock that a test turns."""
    return VirtualClock()


@pytest.fixture
def sensor():
    """A sensor at 100 W."""
    return Sensor()


@pytest.fixture
def meter(sensor, clock):
    """The meter under test."""
    return IntegratedPower(sensor, clock, period_seconds=1.0)


def test_the_first_sample_starts_at_zero(meter):
    """There is no energy before the first sample."""
    assert meter.read_energy().joules == 0.0


def test_adds_trapezoids(meter, sensor, clock):
    """A ramp is integrated exactly by the trapezoid rule."""
    meter.read_energy()
    clock.sleep(2.0)
    sensor.watts = 300.0
    reading = meter.read_energy()
    assert reading.joules == 400.0
    assert reading.watts == 300.0
    assert reading.read_at_seconds == reading.refreshed_at_seconds == 2.0


def test_dense_samples_leave_no_gap(meter, clock):
    """Jitter up to the allowed distance is no gap."""
    meter.read_energy()
    for _ in range(10):
        clock.sleep(5.0)
        meter.read_energy()
    assert meter.gaps == ()
    assert meter.provenance == Provenance(Origin.MEASURED, "integrated samples of sensor", 0.01)


def test_a_gap_is_recorded_with_its_joules(meter, clock):
    """An interpolated gap must show in reports of the energy."""
    meter.read_energy()
    clock.sleep(5.5)
    assert meter.read_energy().joules == 550.0
    assert meter.gaps == (Gap(0.0, 5.5, 550.0),)


def test_a_gap_widens_the_error(meter, clock):
    """A tenth of the energy guessed within one half makes five percent."""
    meter.read_energy()
    for _ in range(90):
        clock.sleep(1.0)
        meter.read_energy()
    clock.sleep(10.0)
    meter.read_energy()
    provenance = meter.provenance
    assert provenance.origin is Origin.MEASURED
    assert provenance.relative_error == pytest.approx(math.hypot(0.01, 0.05))
    assert "1 gap(s) of 10 s interpolated" in provenance.source


def test_mostly_interpolated_energy_is_assumed(meter, clock):
    """Two samples an hour apart are not a measurement."""
    meter.read_energy()
    clock.sleep(3600.0)
    meter.read_energy()
    assert meter.provenance.origin is Origin.ASSUMED


def test_a_gap_does_not_make_an_unknown_error_known(clock):
    """Unknown stays unknown."""
    meter = IntegratedPower(Sensor(relative_error=None), clock)
    meter.read_energy()
    clock.sleep(60.0)
    meter.read_energy()
    assert meter.provenance.relative_error is None


def test_gaps_are_found_by_window(meter, clock):
    """A gap between two windows concerns neither of them."""
    meter.read_energy()
    clock.sleep(1.0)
    meter.read_energy()
    clock.sleep(60.0)
    meter.read_energy()
    clock.sleep(1.0)
    meter.read_energy()
    assert meter.gaps_between(0.0, 1.0) == ()
    assert meter.gaps_between(61.0, 62.0) == ()
    assert len(meter.gaps_between(0.5, 1.5)) == 1
    assert len(meter.gaps_between(30.0, 40.0)) == 1


def test_a_failed_sample_loses_nothing(meter, sensor, clock):
    """One time-out of the controller must not cost the energy around it."""
    meter.read_energy()
    clock.sleep(1.0)
    sensor.watts = DeviceError("busy", remedy="wait")
    with pytest.raises(DeviceError):
        meter.read_energy()
    clock.sleep(1.0)
    sensor.watts = 100.0
    assert meter.read_energy().joules == 200.0
    assert meter.gaps == ()


@pytest.mark.parametrize("watts", [math.nan, math.inf, -5.0])
def test_nonsense_never_enters_the_sum(meter, sensor, clock, watts):
    """One NaN would poison every later reading."""
    meter.read_energy()
    sensor.watts = watts
    with pytest.raises(DeviceError):
        meter.read_energy()
    sensor.watts = 100.0
    clock.sleep(1.0)
    assert meter.read_energy().joules == 100.0


def test_concurrent_reads_count_every_second_once(sensor):
    """Two samplers must not add the same stretch twice."""
    clock = VirtualClock()
    meter = IntegratedPower(sensor, clock)
    meter.read_energy()

    def sample():
        for _ in range(300):
            clock.sleep(0.001)
            meter.read_energy()

    threads = [threading.Thread(target=sample) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert meter.read_energy().joules == pytest.approx(100.0 * clock.now())


def test_offers_what_the_device_offers_and_energy(meter, sensor):
    """Wrapping must not cost a capability."""
    assert meter.capabilities == {Capability.POWER, Capability.ENERGY}
    assert meter.info is sensor.info
    assert meter.read_energy().range_joules is None


@pytest.mark.parametrize("device", [Sensor(), Boastful()], ids=["honest", "boastful"])
@pytest.mark.parametrize(
    "use",
    [
        lambda meter: meter.power_limits(),
        lambda meter: meter.set_power_limit(1.0),
        lambda meter: meter.supported_clocks(),
        lambda meter: meter.lock_clock(1e9),
        lambda meter: meter.unlock_clock(),
        lambda meter: meter.telemetry(),
    ],
)
def test_what_the_device_lacks_is_unsupported(device, use, clock):
    """AttributeError would escape the error tree."""
    with pytest.raises(UnsupportedError):
        use(IntegratedPower(device, clock))


def test_only_devices_without_a_counter_are_wrapped(sensor, meter, clock):
    """A real counter is better than samples; a device without a sensor has nothing to add up."""
    silent = Sensor()
    silent.capabilities = frozenset()
    assert isinstance(with_energy(sensor, clock), IntegratedPower)
    assert with_energy(meter, clock) is meter
    assert with_energy(silent, clock) is silent


def test_a_period_of_zero_is_refused(sensor, clock):
    """Every sample would be a gap."""
    with pytest.raises(InvalidValueError):
        with_energy(sensor, clock, period_seconds=0.0)
