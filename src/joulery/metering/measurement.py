"""What a window measured, as plain immutable data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery.frontier import Origin, Provenance
from joulery.hardware.device import DeviceKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.hardware.device import DeviceInfo
    from joulery.metering.flags import Flag

_SIGMAS_95 = 1.96


@dataclass(frozen=True, slots=True)
class DeviceMeasurement:
    """What one device used during a window.

    Attributes:
        info: Which device.
        joules: Energy used; NaN when unknown, never 0 for want of a reading.
        standard_error_joules: One sigma of ``joules``; NaN when unknown.
        watts_peak: Highest mean power between two refreshes; NaN when none was seen.
        idle_joules: The part of ``joules`` used while the device reported no utilisation; NaN
            for devices that do not report it.
        provenance: Where the figure comes from, with its relative error.
        flags: What went wrong, if anything.
    """

    info: DeviceInfo
    joules: float
    standard_error_joules: float
    watts_peak: float
    idle_joules: float
    provenance: Provenance
    flags: frozenset[Flag] = frozenset()

    @property
    def relative_error(self) -> float | None:
        """One sigma relative to the joules; None when unknown."""
        return self.provenance.relative_error

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: unknown is null."""
        return {
            "id": self.info.id,
            "name": self.info.name,
            "kind": self.info.kind.value,
            "joules": _known(self.joules),
            "idle_joules": _known(self.idle_joules),
            "watts_peak": _known(self.watts_peak),
            "provenance": self.provenance.origin.value,
            "source": self.provenance.source,
            "relative_error": self.relative_error,
            "flags": sorted(flag.value for flag in self.flags),
        }


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a window measured.

    Attributes:
        name: The window's name.
        seconds: Its length.
        devices: Each device's share.
        watts_peak: Highest power of all counted devices together; NaN when none was seen.
        started_at_wall: When it began, seconds since 1970.
        events: What went wrong with the window itself, such as a step of the wall clock.
    """

    name: str
    seconds: float
    devices: tuple[DeviceMeasurement, ...]
    watts_peak: float = math.nan
    started_at_wall: float = math.nan
    events: frozenset[Flag] = frozenset()

    @property
    def counted(self) -> tuple[DeviceMeasurement, ...]:
        """The devices that make up the total, each joule once."""
        # A node meter that could not be read leaves its parts, which may well be known.
        devices = [
            device
            for device in self.devices
            if device.info.kind is not DeviceKind.NODE or not math.isnan(device.joules)
        ] or self.devices
        counted = counted_positions([device.info for device in devices])
        return tuple(devices[position] for position in counted)

    @property
    def joules(self) -> float:
        """Energy of everything counted; NaN when nothing is known."""
        known = [d.joules for d in self.counted if not math.isnan(d.joules)]
        return math.fsum(known) if known else math.nan

    @property
    def watts_mean(self) -> float:
        """Mean power."""
        return self.joules / self.seconds if self.seconds > 0 else math.nan

    @property
    def idle_joules(self) -> float:
        """Energy used while devices reported no utilisation; NaN when none reports it."""
        known = [d.idle_joules for d in self.counted if not math.isnan(d.idle_joules)]
        return math.fsum(known) if known else math.nan

    @property
    def provenance(self) -> Provenance:
        """Of the total: as good as its weakest part."""
        counted = self.counted
        parts = [(d.provenance, d.joules) for d in counted if not math.isnan(d.joules)]
        if not parts:
            return Provenance(Origin.ASSUMED, "no device could be read")
        combined = Provenance.combined(parts)
        if len(parts) < len(counted):
            # What the others used is missing from the total, and nobody knows how much it is.
            return Provenance(combined.origin, combined.source)
        return combined

    @property
    def relative_error(self) -> float | None:
        """One sigma of the total, relative; None when unknown."""
        return self.provenance.relative_error

    @property
    def interval_joules(self) -> tuple[float, float]:
        """The 95 % interval of the total; NaN where the error is unknown."""
        error = self.relative_error
        spread = math.nan if error is None else _SIGMAS_95 * error * self.joules
        return max(self.joules - spread, 0.0), self.joules + spread  # in this order NaN stays

    @property
    def flags(self) -> frozenset[Flag]:
        """What went wrong, with the window or on any device."""
        return self.events.union(*(d.flags for d in self.devices))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: unknown is null."""
        return {
            "name": self.name,
            "seconds": _known(self.seconds),
            "joules": _known(self.joules),
            "watts_mean": _known(self.watts_mean),
            "watts_peak": _known(self.watts_peak),
            "idle_joules": _known(self.idle_joules),
            "provenance": self.provenance.origin.value,
            "relative_error": self.relative_error,
            "flags": sorted(flag.value for flag in self.flags),
            "devices": [device.to_dict() for device in self.devices],
        }


def counted_positions(infos: Sequence[DeviceInfo]) -> tuple[int, ...]:
    """Which of the devices make up their total, each joule once.

    A meter of the whole node includes everything else; a device whose parent is measured too is
    part of it.
    """
    for position, info in enumerate(infos):
        if info.kind is DeviceKind.NODE:
            return (position,)
    present = {info.id for info in infos}
    return tuple(n for n, info in enumerate(infos) if info.parent not in present)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
