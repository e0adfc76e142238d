"""An energy meter made of power samples, for devices that state power but count no energy.

Every read takes a sample and adds the trapezoid since the sample before. The result is as good as
the samples are dense: it should be read about once per ``period_seconds``. Where samples lie much
further apart, the line between them is a guess. Such a gap is recorded in
:attr:`IntegratedPower.gaps` with the joules that were interpolated, and widens the error in
:attr:`IntegratedPower.provenance`, so that it never passes for a measurement.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from joulery.errors import DeviceError
from joulery.frontier import Origin, Provenance
from joulery.hardware._device import Capability, Device, EnergyReading, PowerMeter, require
from joulery.units import finite

if TYPE_CHECKING:
    from joulery.clock import Clock
    from joulery.hardware._device import (
        ClockLock,
        PowerLimit,
        PowerLimitRange,
        Telemetry,
        TelemetrySource,
    )
    from joulery.hardware._sensors import PowerSensor

# Idle and full load of a board lie about a factor of four apart; a line between two samples is
# right within half of its value at one sigma.
_GAP_RELATIVE_ERROR = 0.5


@runtime_checkable
class PoweredDevice(Device, PowerMeter, Protocol):
    """A device with a power sensor."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Time between two samples that lie too far apart.

    Attributes:
        start_seconds: Time of the last sample before it, on the device's clock.
        end_seconds: Time of the first sample after it.
        joules: Energy that was interpolated.
    """

    start_seconds: float
    end_seconds: float
    joules: float


class IntegratedPower:
    """Energy counter of a device that has a power sensor only.

    Args:
        device: Device with the POWER capability; everything else that it offers stays usable.
        clock: Clock of the samples' times.
        period_seconds: Time between two reads.
        gap_periods: Number of periods without a sample that make a gap.

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

    def __init__(
        self,
        device: PoweredDevice,
        clock: Clock,
        *,
        period_seconds: float = 1.0,
        gap_periods: float = 5.0,
    ) -> None:
        self.info = device.info
        self.power_sensor: PowerSensor | None = getattr(device, "power_sensor", None)
        self._device = device
        self._clock = clock
        self._longest_seconds = period_seconds * gap_periods
        self._lock = threading.Lock()
        self._joules = 0.0
        self._last: tuple[float, float] | None = None
        self._gaps: list[Gap] = []

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """All gaps so far, oldest first."""
        with self._lock:
            return tuple(self._gaps)

    def gaps_between(self, start_seconds: float, end_seconds: float) -> tuple[Gap, ...]:
        """The gaps that overlap a window."""
        return tuple(
            gap
            for gap in self.gaps
            if gap.start_seconds < end_seconds and gap.end_seconds > start_seconds
        )

    @property
    def provenance(self) -> Provenance:
        """Provenance of the sensor, with a larger error for the interpolated share.

        Energy that was interpolated for the most part is assumed, not measured.
        """
        sensor = self._device.provenance
        source = "integrated samples" + (f" of {sensor.source}" if sensor.source else "")
        with self._lock:
            joules, gaps = self._joules, tuple(self._gaps)
        if not gaps or joules <= 0:
            return Provenance(sensor.origin, source, sensor.relative_error)
        share = sum(gap.joules for gap in gaps) / joules
        seconds = sum(gap.end_seconds - gap.start_seconds for gap in gaps)
        source += f", {len(gaps)} gap(s) of {seconds:.3g} s interpolated"
        error = None
        if sensor.relative_error is not None:
            error = math.hypot(sensor.relative_error, _GAP_RELATIVE_ERROR * share)
        return Provenance(Origin.ASSUMED if share > 0.5 else sensor.origin, source, error)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Capabilities of the underlying device, and energy."""
        return self._device.capabilities | {Capability.ENERGY}

    def read_energy(self) -> EnergyReading:
        """Take a sample and return the joules since the first one.

        Raises:
            DeviceError: The sensor failed; the next read goes on from the last good sample.
        """
        # Held across the sample, so that samples enter the sum in the order of their times.
        with self._lock:
            watts, now = self.sample()
            if self._last is not None:
                last_watts, last_seconds = self._last
                joules = 0.5 * (watts + last_watts) * (now - last_seconds)
                self._joules += joules
                if now - last_seconds > self._longest_seconds:
                    self._gaps.append(Gap(last_seconds, now, joules))
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

    def power_limits(self) -> PowerLimitRange:
        """Limits of the underlying device."""
        return self._power_limit().power_limits()

    def set_power_limit(self, watts: float) -> None:
        """Set the limit of the underlying device."""
        self._power_limit().set_power_limit(watts)

    def supported_clocks(self) -> tuple[float, ...]:
        """Clocks of the underlying device."""
        return self._clock_lock().supported_clocks()

    def lock_clock(self, hertz: float) -> None:
        """Pin the clock of the underlying device."""
        self._clock_lock().lock_clock(hertz)

    def unlock_clock(self) -> None:
        """Unlock the clock of the underlying device."""
        self._clock_lock().unlock_clock()

    def telemetry(self) -> Telemetry:
        """Telemetry of the underlying device."""
        require(self._device, Capability.TELEMETRY)
        return cast("TelemetrySource", self._device).telemetry()

    def _power_limit(self) -> PowerLimit:
        require(self._device, Capability.POWER_LIMIT)
        return cast("PowerLimit", self._device)

    def _clock_lock(self) -> ClockLock:
        require(self._device, Capability.CLOCK_LOCK)
        return cast("ClockLock", self._device)


def with_energy(device: Device, clock: Clock, *, period_seconds: float = 1.0) -> Device:
    """``device`` itself if it counts energy or has no power sensor, else integrated samples."""
    finite(period_seconds, "sampling period in seconds", minimum=1e-6)
    if Capability.ENERGY in device.capabilities or Capability.POWER not in device.capabilities:
        return device
    if not isinstance(device, PoweredDevice):
        return device
    return IntegratedPower(device, clock, period_seconds=period_seconds)
