"""An energy meter made of power samples, for devices that state power but count no energy.

Every read takes a sample and adds the trapezoid since the sample before. The result is as good as
the samples are dense: it should be read about once a second.
"""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from joulery.errors import DeviceError
from joulery.hardware._device import Capability, Device, EnergyReading, PowerMeter, device_text

if TYPE_CHECKING:
    from joulery.clock import Clock
    from joulery.hardware._sensors import PowerSensor

_METHODS = (
    *("power_limits", "set_power_limit", "telemetry"),
    *("supported_clocks", "lock_clock", "unlock_clock"),
)


@runtime_checkable
class PoweredDevice(Device, PowerMeter, Protocol):
    """A device with a power sensor."""


class IntegratedPower:
    """Energy counter of a device that has a power sensor only.

    Args:
        device: Device with the POWER capability; everything else that it offers stays usable.
        clock: Clock of the samples' times.

    Examples:
        >>> from joulery.clock import VirtualClock
        >>> from joulery.hardware.node._ipmi import IpmiMeter
        >>> clock = VirtualClock()
        >>> reply = "Instantaneous power reading: 300 Watts"
        >>> meter = IntegratedPower(IpmiMeter(run=lambda command: reply), clock)
        >>> start = meter.read_energy(); clock.sleep(2.0); end = meter.read_energy()
        >>> end.joules - start.joules
        600.0
    """

    def __init__(self, device: PoweredDevice, clock: Clock) -> None:
        sensor = device.provenance
        source = "integrated samples" + (f" of {sensor.source}" if sensor.source else "")
        self.info = device.info
        self.provenance = replace(sensor, source=source)
        self.capabilities = device.capabilities | {Capability.ENERGY}
        self.power_sensor: PowerSensor | None = getattr(device, "power_sensor", None)
        # By name, because that is how a protocol is checked.
        for name in _METHODS:
            if hasattr(device, name):
                setattr(self, name, getattr(device, name))
        self._device = device
        self._clock = clock
        self._lock = threading.Lock()
        self._joules = 0.0
        self._last: tuple[float, float] | None = None

    __repr__ = device_text

    def read_energy(self) -> EnergyReading:
        """Take a sample and return the joules since the first one.

        After an error the next read continues from the last good sample.
        """
        # Held across the sample, so that samples enter the sum in the order of their times.
        with self._lock:
            watts, now = self.sample()
            if self._last is not None:
                last_watts, last_seconds = self._last
                self._joules += 0.5 * (watts + last_watts) * (now - last_seconds)
            self._last = (watts, now)
            return EnergyReading(self._joules, now, refreshed_at_seconds=now, watts=watts)

    def sample(self) -> tuple[float, float]:
        """Watts from the sensor, and the time at which they were read."""
        return self.read_power(), self._clock.now()

    def read_power(self) -> float:
        """Watts from the sensor."""
        watts = self._device.read_power()
        if not (math.isfinite(watts) and watts >= 0):
            raise DeviceError(
                f"{self.info.name} states {watts} W",
                remedy="check the sensor; its next reading is used if it makes sense",
            )
        return watts


def with_energy(device: Device, clock: Clock) -> Device:
    """``device`` itself if it counts energy or has no power sensor, else integrated samples."""
    if Capability.ENERGY in device.capabilities or Capability.POWER not in device.capabilities:
        return device
    return IntegratedPower(device, clock) if isinstance(device, PoweredDevice) else device
