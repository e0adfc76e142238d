"""Energy from power samples."""

import math
import threading

import pytest

from joulery.clock import VirtualClock
from joulery.errors import DeviceError
from joulery.frontier import Origin, Provenance
from joulery.hardware import (
    Capability,
    ClockLock,
    DeviceInfo,
    DeviceKind,
    IntegratedPower,
    PowerLimit,
    Sensor as GpuSensor,
    SimulatedGpu,
    catalog,
    with_energy,
)


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
    return IntegratedPower(sensor, clock)


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


def test_provenance_is_that_of_the_sensor(meter):
    """Energy is as good as the power that it was made from."""
    assert meter.provenance == Provenance(Origin.MEASURED, "integrated samples of sensor", 0.01)


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


def test_other_methods_stay_usable(clock):
    """A board without a counter may still have a limit to set."""
    gpu = SimulatedGpu(catalog.board("V100"), clock, sensor=GpuSensor(counts=False))
    meter = IntegratedPower(gpu, clock)
    meter.set_power_limit(200.0)
    assert isinstance(meter, PowerLimit)
    assert isinstance(meter, ClockLock)
    assert meter.power_limits() == gpu.power_limits()
    assert meter.telemetry() == gpu.telemetry()


def test_only_devices_without_a_counter_are_wrapped(sensor, meter, clock):
    """A real counter is better than samples; a device without a sensor has nothing to add up."""
    silent = Sensor()
    silent.capabilities = frozenset()
    assert isinstance(with_energy(sensor, clock), IntegratedPower)
    assert with_energy(meter, clock) is meter
    assert with_energy(silent, clock) is silent
