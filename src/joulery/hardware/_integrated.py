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
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from joulery.errors import DeviceError
from joulery.frontier import Origin, Provenance
from joulery.hardware._device import Capability, Device, EnergyReading, PowerMeter, require
from joulery.units import finite

if TYPE_CHECKING:
    from joulery.clock import Clock
    from joulery.hardware._device import PowerLimitRange, Telemetry
    from joulery.hardware._sensors import PowerSensor

# Idle and full load of a board lie about a factor of four apart; a line between two samples is
# right within half of its value at one sigma.
_GAP_RELATIVE_ERROR = 0.5
_GAP_PERIODS = 5.0


@runtime_checkable
class PoweredDevice(Device, PowerMeter, Protocol):
    """A device with a power sensor."""


class Gap(NamedTuple):
    """Time between two samples that lie too far apart, and the energy interpolated for it."""

    start_seconds: float
    end_seconds: float
    joules: float


class IntegratedPower:
    """Energy counter of a device that has a power sensor only.

    Args:
        device: Device with the POWER capability; everything else that it offers stays usable.
        clock: Clock of the samples' times.
        period_seconds: Time between two reads; five of them without a sample make a gap.

    Attributes:
        gaps: All gaps so far, oldest first.

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
    ) -> None:
        self.info = device.info
        self.power_sensor: PowerSensor | None = getattr(device, "power_sensor", None)
        self._device = device
        self._clock = clock
        self._longest_seconds = _GAP_PERIODS * period_seconds
        self._lock = threading.Lock()
        self._joules = 0.0
        self._last: tuple[float, float] | None = None
        self.gaps: tuple[Gap, ...] = ()

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
            joules, gaps = self._joules, self.gaps
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

        After an error the next read goes on from the last good sample.
        """
        # Held across the sample, so that samples enter the sum in the order of their times.
        with self._lock:
            watts, now = self.sample()
            if self._last is not None:
                last_watts, last_seconds = self._last
                joules = 0.5 * (watts + last_watts) * (now - last_seconds)
                self._joules += joules
                if now - last_seconds > self._longest_seconds:
                    self.gaps = (*self.gaps, Gap(last_seconds, now, joules))
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
        limits: PowerLimitRange = self._with(Capability.POWER_LIMIT).power_limits()
        return limits

    def set_power_limit(self, watts: float) -> None:
        """Set the limit of the underlying device."""
        self._with(Capability.POWER_LIMIT).set_power_limit(watts)

    def supported_clocks(self) -> tuple[float, ...]:
        """Clocks of the underlying device."""
        return tuple(self._with(Capability.CLOCK_LOCK).supported_clocks())

    def lock_clock(self, hertz: float) -> None:
        """Pin the clock of the underlying device."""
        self._with(Capability.CLOCK_LOCK).lock_clock(hertz)

    def unlock_clock(self) -> None:
        """Unlock the clock of the underlying device."""
        self._with(Capability.CLOCK_LOCK).unlock_clock()

    def telemetry(self) -> Telemetry:
        """Telemetry of the underlying device."""
        state: Telemetry = self._with(Capability.TELEMETRY).telemetry()
        return state

    def _with(self, capability: Capability) -> Any:
        """The underlying device, which must have a capability."""
        require(self._device, capability)
        return self._device


def with_energy(device: Device, clock: Clock, *, period_seconds: float = 1.0) -> Device:
    """``device`` itself if it counts energy or has no power sensor, else integrated samples."""
    finite(period_seconds, "sampling period in seconds", minimum=1e-6)
    if Capability.ENERGY in device.capabilities or Capability.POWER not in device.capabilities:
        return device
    if not isinstance(device, PoweredDevice):
        return device
    return IntegratedPower(device, clock, period_seconds=period_seconds)
