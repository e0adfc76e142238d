"""An energy meter made of power samples, for devices that state power but count no energy.

Every read takes a sample and adds the trapezoid since the sample before. It is as good as the
samples are dense: whoever measures should read about once per ``period_seconds``. Where samples
lie much further apart the line between them is a guess. Such a gap is recorded in
:attr:`IntegratedPower.gaps` with the joules that were bridged, and widens the error that
:attr:`IntegratedPower.provenance` states, so that it never passes for a measurement.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from joulery.errors import DeviceError, UnsupportedError
from joulery.frontier import Origin, Provenance
from joulery.hardware.device import (
    Capability,
    ClockLock,
    Device,
    EnergyReading,
    PowerLimit,
    PowerMeter,
    TelemetrySource,
    require,
)
from joulery.units import finite

if TYPE_CHECKING:
    from joulery.clock import Clock
    from joulery.hardware.device import DeviceInfo, PowerLimitRange, Telemetry

# Idle and full load of a board lie about a factor of four apart; a bridge between two samples is
# right within half of its value at one sigma.
_BRIDGE_RELATIVE_ERROR = 0.5


@runtime_checkable
class PoweredDevice(Device, PowerMeter, Protocol):
    """A device with a power sensor."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch without samples.

    Attributes:
        start_seconds: The last sample before it, on the device's clock.
        end_seconds: The first sample after it.
        joules: What the straight line between the two adds to the count.
    """

    start_seconds: float
    end_seconds: float
    joules: float


class IntegratedPower:
    """Counts the energy of a device with a power sensor by adding up samples.

    Args:
        device: Any device with the POWER capability; everything else it offers stays usable.
        clock: The clock that dates the samples.
        period_seconds: How often the count is meant to be read.
        gap_periods: Two samples further apart than this many periods leave a gap.

    >>> from joulery.clock import VirtualClock
    >>> from joulery.hardware.ipmi import IpmiMeter
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
        self._device = device
        self._clock = clock
        self._longest_seconds = period_seconds * gap_periods
        self._lock = threading.Lock()
        self._joules = 0.0
        self._last: tuple[float, float] | None = None
        self._gaps: list[Gap] = []

    @property
    def device(self) -> Device:
        """The device underneath."""
        return self._device

    @property
    def info(self) -> DeviceInfo:
        """The device underneath."""
        return self._device.info

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Every stretch that was bridged for want of samples, oldest first."""
        with self._lock:
            return tuple(self._gaps)

    def gaps_between(self, start_seconds: float, end_seconds: float) -> tuple[Gap, ...]:
        """The gaps that touch a window, for whoever reports on that window."""
        return tuple(
            gap
            for gap in self.gaps
            if gap.start_seconds < end_seconds and gap.end_seconds > start_seconds
        )

    @property
    def provenance(self) -> Provenance:
        """The sensor's, with a larger error for the share that was bridged.

        Mostly bridged energy is assumed, not measured.
        """
        sensor = self._device.provenance
        source = "integrated samples" + (f" of {sensor.source}" if sensor.source else "")
        with self._lock:
            joules, gaps = self._joules, tuple(self._gaps)
        if not gaps or joules <= 0:
            return Provenance(sensor.origin, source, sensor.relative_error)
        share = sum(gap.joules for gap in gaps) / joules
        seconds = sum(gap.end_seconds - gap.start_seconds for gap in gaps)
        source += f", {len(gaps)} gap(s) of {seconds:.3g} s bridged"
        error = None
        if sensor.relative_error is not None:
            error = math.hypot(sensor.relative_error, _BRIDGE_RELATIVE_ERROR * share)
        return Provenance(Origin.ASSUMED if share > 0.5 else sensor.origin, source, error)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """All of the device's, and energy."""
        return self._device.capabilities | {Capability.ENERGY}

    def read_energy(self) -> EnergyReading:
        """Take a sample and return the joules since the first one.

        Raises:
            DeviceError: The sensor failed; the next read goes on from the last good sample.
        """
        # Held across the sample, so that samples enter the sum in the order of their times.
        with self._lock:
            watts = self.read_power()
            now = self._clock.now()
            if self._last is not None:
                last_watts, last_seconds = self._last
                joules = 0.5 * (watts + last_watts) * (now - last_seconds)
                self._joules += joules
                if now - last_seconds > self._longest_seconds:
                    self._gaps.append(Gap(last_seconds, now, joules))
            self._last = (watts, now)
            return EnergyReading(self._joules, now, refreshed_at_seconds=now, watts=watts)

    def counter_range_joules(self) -> float | None:
        """Never wraps."""
        return None

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
        """The limits of the device underneath."""
        return self._power_limit().power_limits()

    def set_power_limit(self, watts: float) -> None:
        """Set the limit of the device underneath."""
        self._power_limit().set_power_limit(watts)

    def supported_clocks(self) -> tuple[float, ...]:
        """The clocks of the device underneath."""
        return self._clock_lock().supported_clocks()

    def lock_clock(self, hertz: float) -> None:
        """Pin the clock of the device underneath."""
        self._clock_lock().lock_clock(hertz)

    def unlock_clock(self) -> None:
        """Free the clock of the device underneath."""
        self._clock_lock().unlock_clock()

    def telemetry(self) -> Telemetry:
        """What the device underneath tells."""
        require(self._device, Capability.TELEMETRY)
        if not isinstance(self._device, TelemetrySource):
            raise self._broken_promise(Capability.TELEMETRY)
        return self._device.telemetry()

    def _power_limit(self) -> PowerLimit:
        require(self._device, Capability.POWER_LIMIT)
        if not isinstance(self._device, PowerLimit):
            raise self._broken_promise(Capability.POWER_LIMIT)
        return self._device

    def _clock_lock(self) -> ClockLock:
        require(self._device, Capability.CLOCK_LOCK)
        if not isinstance(self._device, ClockLock):
            raise self._broken_promise(Capability.CLOCK_LOCK)
        return self._device

    def _broken_promise(self, capability: Capability) -> UnsupportedError:
        return UnsupportedError(
            f"{self.info.name} claims {capability.value} but lacks its methods",
            remedy="run joulery.testing's device contract on its driver",
        )


def with_energy(device: Device, clock: Clock, *, period_seconds: float = 1.0) -> Device:
    """``device`` itself if it counts energy or has no power sensor, else integrated samples."""
    finite(period_seconds, "sampling period in seconds", minimum=1e-6)
    if Capability.ENERGY in device.capabilities or Capability.POWER not in device.capabilities:
        return device
    if not isinstance(device, PoweredDevice):
        return device
    return IntegratedPower(device, clock, period_seconds=period_seconds)
