"""Contract suite that every device passes, third-party devices included.

Subclass it in a test module, give it a device, and pytest runs every check that the device's
capabilities call for::

    class TestMyMeter(DeviceContract):
        @pytest.fixture
        def device(self, clock):
            return MyMeter(clock)

Override the ``clock`` fixture for a device on a virtual clock. Checks of capabilities that the
device does not claim are skipped.
"""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from joulery.clock import REAL_CLOCK, Clock
from joulery.errors import JouleryError, MissingRightsError
from joulery.frontier import Origin, Provenance
from joulery.hardware import (
    Capability,
    ClockLock,
    Device,
    DeviceInfo,
    DeviceKind,
    EnergyMeter,
    PowerLimit,
    PowerMeter,
    TelemetrySource,
    protocol_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# Boards round limits to whole watts, and clocks to their table.
_WATTS_TOLERANCE = 1.0


class DeviceContract:
    """Contract of every device; subclass and override ``device``.

    Attributes:
        wait_seconds: Time on the clock between two readings.
    """

    wait_seconds = 0.02

    @pytest.fixture
    def clock(self) -> Clock:
        """The clock that the device was given; the machine's own unless overridden."""
        return REAL_CLOCK

    @pytest.fixture
    def device(self) -> Device:
        """The device under test."""
        pytest.fail("override the `device` fixture with the device to test")

    def test_is_a_device(self, device: Device) -> None:
        """Consumers ask every device for info, provenance and capabilities."""
        assert isinstance(device, Device)
        assert isinstance(device.info, DeviceInfo)
        assert isinstance(device.provenance, Provenance)
        assert isinstance(device.capabilities, frozenset)

    def test_identity_is_complete(self, device: Device) -> None:
        """A device without a name or id cannot be chosen, nor distinguished from another."""
        info = device.info
        assert info.id.strip()
        assert info.name.strip()
        assert info.vendor.strip()
        assert isinstance(info.kind, DeviceKind)
        assert info.index >= 0
        assert 0 < info.share <= 1

    def test_max_watts_are_positive_or_unknown(self, device: Device) -> None:
        """An unknown maximum is None: zero would make every share of it infinite."""
        assert device.info.max_watts is None or 0 < device.info.max_watts < math.inf

    def test_identity_is_stable(self, device: Device, clock: Clock) -> None:
        """Joules are booked under the id, so it must not change while the device lives."""
        before = device.info
        clock.sleep(self.wait_seconds)
        assert device.info == before

    def test_is_not_its_own_parent(self, device: Device) -> None:
        """A device inside itself would be left out of every sum."""
        assert device.info.parent != device.info.id

    def test_provenance_names_a_source(self, device: Device) -> None:
        """A figure without a source cannot be verified."""
        provenance = device.provenance
        assert isinstance(provenance.origin, Origin)
        assert provenance.source.strip()
        assert provenance.relative_error is None or 0 <= provenance.relative_error < math.inf

    def test_claims_only_known_capabilities(self, device: Device) -> None:
        """Consumers look capabilities up by the members of the enumeration."""
        assert all(isinstance(capability, Capability) for capability in device.capabilities)

    def test_has_the_methods_it_claims(self, device: Device) -> None:
        """A claimed capability without its methods fails only when it is needed."""
        missing = {c for c in device.capabilities if not isinstance(device, protocol_of(c))}
        assert not missing

    def test_energy_readings_are_finite_and_dated(self, device: Device, clock: Clock) -> None:
        """Windows subtract readings and divide by their times on the caller's clock."""
        meter = _energy_meter(device)
        before = clock.now()
        reading = meter.read_energy()
        assert before <= reading.read_at_seconds <= clock.now()
        assert math.isfinite(reading.joules)
        assert reading.watts is None or 0 <= reading.watts < math.inf
        refreshed = reading.refreshed_at_seconds
        assert refreshed is None or refreshed <= reading.read_at_seconds

    def test_energy_never_decreases(self, device: Device, clock: Clock) -> None:
        """A counter that decreases would yield negative energy."""
        meter = _energy_meter(device)
        readings = [meter.read_energy()]
        for _ in range(3):
            clock.sleep(self.wait_seconds)
            readings.append(meter.read_energy())
        for earlier, later in pairwise(readings):
            assert later.joules >= earlier.joules
            assert later.read_at_seconds >= earlier.read_at_seconds

    def test_counter_range_is_positive_or_unknown(self, device: Device) -> None:
        """A range of zero would unwrap every reading to infinity."""
        span = _energy_meter(device).read_energy().range_joules
        assert span is None or 0 < span < math.inf

    def test_power_is_positive(self, device: Device) -> None:
        """Nothing that answers draws zero or negative watts: that is an unknown in disguise."""
        if Capability.POWER not in device.capabilities:
            pytest.skip("claims no power")
        assert isinstance(device, PowerMeter)
        assert 0 < device.read_power() < math.inf

    def test_power_limits_are_in_order(self, device: Device) -> None:
        """Optimizers search between the minimum and the maximum."""
        limits = _power_limit(device).power_limits()
        assert 0 <= limits.min_watts <= limits.current_watts <= limits.max_watts < math.inf
        assert limits.min_watts <= limits.default_watts <= limits.max_watts

    def test_power_limit_is_set_and_restored(self, device: Device) -> None:
        """A limit that does not take, or cannot be restored, slows the next job."""
        knob = _power_limit(device)
        limits = knob.power_limits()
        target = round((limits.min_watts + limits.max_watts) / 2)
        try:
            knob.set_power_limit(target)
        except MissingRightsError:
            assert knob.power_limits() == limits
            return
        try:
            assert abs(knob.power_limits().current_watts - target) <= _WATTS_TOLERANCE
        finally:
            knob.set_power_limit(limits.current_watts)
        assert abs(knob.power_limits().current_watts - limits.current_watts) <= _WATTS_TOLERANCE

    def test_impossible_power_limits_are_refused(self, device: Device) -> None:
        """A nonsense limit must neither reach the board nor raise a vendor's error."""
        knob = _power_limit(device)
        limits = knob.power_limits()
        for watts in (limits.max_watts + 100, limits.min_watts - 1, -1.0, math.nan, math.inf):
            _assert_refused(knob.set_power_limit, watts)
            assert knob.power_limits() == limits

    def test_clocks_are_positive_and_ascending(self, device: Device) -> None:
        """Sweeps walk the list from slow to fast."""
        clocks = _clock_lock(device).supported_clocks()
        assert clocks
        assert clocks[0] > 0
        assert list(clocks) == sorted(set(clocks))
        assert all(math.isfinite(hertz) for hertz in clocks)

    def test_clock_locks_and_unlocks(self, device: Device) -> None:
        """Every listed clock is accepted, or the right to lock is missing."""
        knob = _clock_lock(device)
        clocks = knob.supported_clocks()
        with suppress(MissingRightsError):
            for hertz in (clocks[0], clocks[-1]):
                knob.lock_clock(hertz)
            knob.unlock_clock()
        assert knob.supported_clocks() == clocks

    def test_impossible_clocks_are_refused(self, device: Device) -> None:
        """A nonsense clock must neither reach the board nor raise a vendor's error."""
        knob = _clock_lock(device)
        highest = knob.supported_clocks()[-1]
        for hertz in (-1.0, 0.0, 10 * highest, math.nan, math.inf):
            _assert_refused(knob.lock_clock, hertz)

    def test_telemetry_is_in_range(self, device: Device) -> None:
        """What is not known is None; a zero or 65535 from the driver is not passed on."""
        if Capability.TELEMETRY not in device.capabilities:
            pytest.skip("claims no telemetry")
        assert isinstance(device, TelemetrySource)
        telemetry = device.telemetry()
        assert telemetry.utilisation is None or 0 <= telemetry.utilisation <= 1
        assert telemetry.temperature_celsius is None or -50 < telemetry.temperature_celsius < 150
        assert telemetry.clock_hertz is None or 0 <= telemetry.clock_hertz < 1e11
        assert telemetry.process_ids is None or all(pid > 0 for pid in telemetry.process_ids)


def _assert_refused(set_knob: Callable[[float], None], value: float) -> None:
    with pytest.raises(JouleryError) as refusal:
        set_knob(value)
    assert refusal.value.remedy


def _energy_meter(device: Device) -> EnergyMeter:
    if Capability.ENERGY not in device.capabilities:
        pytest.skip("claims no energy")
    assert isinstance(device, EnergyMeter)
    return device


def _power_limit(device: Device) -> PowerLimit:
    if Capability.POWER_LIMIT not in device.capabilities:
        pytest.skip("claims no power limit")
    assert isinstance(device, PowerLimit)
    return device


def _clock_lock(device: Device) -> ClockLock:
    if Capability.CLOCK_LOCK not in device.capabilities:
        pytest.skip("claims no clock lock")
    assert isinstance(device, ClockLock)
    return device
