"""Devices that break one promise each: the contract must notice."""

import math
from dataclasses import replace

import pytest

from joulery.clock import VirtualClock
from joulery.errors import InvalidValueError
from joulery.frontier import Origin, Provenance
from joulery.hardware import (
    Capability,
    DeviceInfo,
    DeviceKind,
    EnergyReading,
    PowerLimitRange,
    Telemetry,
)
from joulery.testing.device_contract import DeviceContract

CONTRACT = DeviceContract()


class Sound:
    """Keeps every promise; subclasses break one."""

    info = DeviceInfo("sound:0", "sound", DeviceKind.GPU, "test")
    provenance = Provenance(Origin.MEASURED, "imagination", 0.01)
    capabilities = frozenset(Capability)
    limits = (100.0, 400.0)
    clocks = (1e9, 2e9)

    def __init__(self, clock):
        self.clock = clock
        self.watts = 300.0

    def read_energy(self):
        """A steady rise."""
        return EnergyReading(100 * self.clock.now(), self.clock.now())

    def read_power(self):
        """Constant."""
        return 100.0

    def power_limits(self):
        """What was set."""
        return PowerLimitRange(*self.limits, self.limits[1], self.watts)

    def set_power_limit(self, watts):
        """Within the range."""
        if not self.limits[0] <= watts <= self.limits[1]:
            raise InvalidValueError("out of range", remedy="stay inside")
        self.watts = watts

    def supported_clocks(self):
        """Two."""
        return self.clocks

    def lock_clock(self, hertz):
        """Only what is listed."""
        if hertz not in self.clocks:
            raise InvalidValueError("no such clock", remedy="pick from the list")

    def unlock_clock(self):
        """Nothing to do."""

    def telemetry(self):
        """Warm."""
        return Telemetry(utilisation=0.5, temperature_celsius=50.0)


class Falling(Sound):
    def read_energy(self):
        """Gives energy back."""
        return EnergyReading(-100 * self.clock.now(), self.clock.now())


class OnTheWall(Sound):
    def read_energy(self):
        """Dated on another clock."""
        return EnergyReading(1.0, self.clock.wall())


class Infinite(Sound):
    def read_energy(self):
        """Not a number."""
        return EnergyReading(math.nan, self.clock.now())


class FromTheFuture(Sound):
    def read_energy(self):
        """Refreshed after it was read."""
        now = self.clock.now()
        return EnergyReading(1.0, now, refreshed_at_seconds=now + 1)


class Free(Sound):
    def read_power(self):
        """An unknown in disguise."""
        return 0.0


class Inverted(Sound):
    limits = (400.0, 100.0)


class Deaf(Sound):
    def set_power_limit(self, watts):
        """Checks, then does nothing."""
        if not self.limits[0] <= watts <= self.limits[1]:
            raise InvalidValueError("out of range", remedy="stay inside")


class Careless(Sound):
    def set_power_limit(self, watts):
        """Takes anything."""
        self.watts = watts

    def lock_clock(self, hertz):
        """Takes anything."""


class Foreign(Sound):
    def set_power_limit(self, watts):
        """A vendor's error."""
        raise RuntimeError("NVML_ERROR_INVALID_ARGUMENT")


class Descending(Sound):
    clocks = (2e9, 1e9)


class Percent(Sound):
    def telemetry(self):
        """In percent."""
        return Telemetry(utilisation=87.0)


class Wrapped(Sound):
    def read_energy(self):
        """An unknown range in disguise."""
        return replace(super().read_energy(), range_joules=0.0)


class Nameless(Sound):
    info = DeviceInfo("", "nameless", DeviceKind.GPU, "test")


class Sourceless(Sound):
    provenance = Provenance(Origin.MEASURED)


class Hollow:
    info, provenance, capabilities = Sound.info, Sound.provenance, frozenset({Capability.POWER})


class Restless(Sound):
    @property
    def info(self):
        """Another one every time."""
        return DeviceInfo(f"restless:{self.clock.now()}", "restless", DeviceKind.GPU, "test")


def _check(name, device, clock):
    check = getattr(CONTRACT, name)
    arguments = {"device": device, "clock": clock}
    check(**{key: arguments[key] for key in check.__annotations__ if key in arguments})


CHECKS = sorted(name for name in dir(DeviceContract) if name.startswith("test_"))


@pytest.mark.parametrize("name", CHECKS)
def test_a_sound_device_passes(name):
    """A check that nothing can pass is as useless as one that nothing fails."""
    clock = VirtualClock()
    _check(name, Sound(clock), clock)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Falling, "test_energy_never_decreases"),
        (OnTheWall, "test_energy_readings_are_finite_and_dated"),
        (Infinite, "test_energy_readings_are_finite_and_dated"),
        (FromTheFuture, "test_energy_readings_are_finite_and_dated"),
        (Free, "test_power_is_positive"),
        (Inverted, "test_power_limits_are_in_order"),
        (Deaf, "test_power_limit_is_set_and_restored"),
        (Careless, "test_impossible_power_limits_are_refused"),
        (Careless, "test_impossible_clocks_are_refused"),
        (Descending, "test_clocks_are_positive_and_ascending"),
        (Percent, "test_telemetry_is_in_range"),
        (Wrapped, "test_counter_range_is_positive_or_unknown"),
        (Nameless, "test_identity_is_complete"),
        (Sourceless, "test_provenance_names_a_source"),
        (Restless, "test_identity_is_stable"),
    ],
)
def test_a_broken_promise_is_noticed(kind, name):
    """A suite that lets this through proves nothing about the devices that pass it."""
    clock = VirtualClock(10.0)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        _check(name, kind(clock), clock)


def test_a_vendors_error_is_noticed():
    """Only errors of the tree may leave a device."""
    clock = VirtualClock()
    with pytest.raises(RuntimeError):
        _check("test_impossible_power_limits_are_refused", Foreign(clock), clock)


def test_missing_methods_are_noticed():
    """A claim without its methods."""
    with pytest.raises(AssertionError):
        CONTRACT.test_has_the_methods_it_claims(Hollow())
