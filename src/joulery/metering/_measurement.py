"""Results of a window, as plain immutable data."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from joulery.frontier import Origin, Provenance
from joulery.hardware import DeviceKind
from joulery.tables import Tabular
from joulery.units import human, human_duration, kilowatt_hours

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulery.hardware import DeviceInfo, Throttle

# Half the width of the interval of 95 %, in standard errors.
SIGMAS_95 = 1.96
_KIND_TEXTS = {
    DeviceKind.GPU: "GPU",
    DeviceKind.CPU: "CPU",
    DeviceKind.MEMORY: "memory meter",
    DeviceKind.NODE: "node meter",
}


class Flag(StrEnum):
    """Fault during a window; the energy was repaired and its error bar widened."""

    RESET = "counter reset"
    WRAPPED = "counter wrapped"
    FROZEN = "counter frozen"
    JUMPED = "implausible jump"
    READ_ERROR = "read error"
    GAP = "gap between power samples"
    LOST = "device lost"
    UNREADABLE = "never readable"
    HANGING = "driver hangs"
    STUCK = "node meter stuck"
    CLOCK_STEPPED = "wall clock stepped"
    NEVER_BEGUN = "window was not open"


@dataclass(frozen=True, slots=True)
class DeviceMeasurement:
    """Energy and power of one device during a window.

    Attributes:
        info: Identity of the device.
        joules: Energy used; NaN when unknown, never 0 for lack of a reading.
        standard_error_joules: One sigma of ``joules``, both parts combined; NaN when unknown.
        systematic_error_joules: Part of that which all windows of all devices of the model have in
            common: gain and offset of the sensor, behaviour of the counter that is not known, or
            an assumption. It does not average out; only a calibration makes it smaller.
        peak_watts: Highest mean power between two refreshes; NaN when none was seen.
        idle_joules: Part of ``joules`` used while the device reported no utilisation; NaN for
            devices that do not report it.
        provenance: Source of the figure, with its relative error.
        flags: Faults during the window.
        throttles: Reasons why the device's clock was lowered during the window.
        stable: Whether its power stayed within a tenth; None for a window of few refreshes.
    """

    info: DeviceInfo
    joules: float
    standard_error_joules: float
    peak_watts: float
    idle_joules: float
    provenance: Provenance
    flags: frozenset[Flag] = frozenset()
    systematic_error_joules: float = 0.0
    throttles: frozenset[Throttle] = frozenset()
    stable: bool | None = None

    def mean_watts(self, seconds: float) -> float:
        """Mean power over a window; NaN for a device that was lost during it."""
        return math.nan if Flag.LOST in self.flags or not seconds else self.joules / seconds

    @property
    def varying_error_joules(self) -> float:
        """One sigma of ``joules`` that is another one in each window: reading, edges, sampling."""
        return math.sqrt(max(0.0, self.standard_error_joules**2 - self.systematic_error_joules**2))

    @property
    def relative_error(self) -> float | None:
        """One sigma relative to the joules; None when unknown."""
        return self.provenance.relative_error

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the device; unknown is null."""
        return {
            "id": self.info.id,
            "name": self.info.name,
            "kind": self.info.kind.value,
            "joules": _known(self.joules),
            "idle_joules": _known(self.idle_joules),
            "peak_watts": _known(self.peak_watts),
            "provenance": self.provenance.origin.value,
            "source": self.provenance.source,
            "relative_error": self.relative_error,
            "varying_error_joules": _known(self.varying_error_joules),
            "systematic_error_joules": _known(self.systematic_error_joules),
            "flags": sorted(flag.value for flag in self.flags),
            "throttles": sorted(throttle.value for throttle in self.throttles),
            "stable": self.stable,
        }


@dataclass(frozen=True, slots=True, repr=False)
class Measurement(Tabular):
    """Energy and power of all devices during a window.

    Attributes:
        name: Name of the window.
        seconds: Length of the window.
        devices: Measurements of the devices.
        peak_watts: Highest power of all counted devices together; NaN when none was seen.
        started_at_wall: Start of the window, in seconds since 1970.
        events: Faults of the window itself, such as a step of the wall clock.
    """

    name: str
    seconds: float
    devices: tuple[DeviceMeasurement, ...]
    peak_watts: float = math.nan
    started_at_wall: float = math.nan
    events: frozenset[Flag] = frozenset()

    @property
    def devices_text(self) -> str:
        """Devices that make up the total, such as ``2 GPUs and 1 CPU (estimated)``."""
        groups = Counter(
            (device.info.kind, device.provenance.origin is Origin.ASSUMED)
            for device in self.counted
        )
        words = [
            f"{count} {_KIND_TEXTS[kind]}{'s' * (count > 1)}{' (estimated)' * estimated}"
            for (kind, estimated), count in groups.items()
        ] or ["no device"]
        return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)

    @property
    def counted(self) -> tuple[DeviceMeasurement, ...]:
        """The devices that make up the total, each joule once."""
        # A node meter that is stuck or could not be read leaves its parts, which may well be known.
        devices = [
            device
            for device in self.devices
            if device.info.kind is not DeviceKind.NODE
            or not (math.isnan(device.joules) or Flag.STUCK in device.flags)
        ] or self.devices
        positions = counted_positions([device.info for device in devices])
        return tuple(devices[position] for position in positions)

    @property
    def joules(self) -> float:
        """Energy of everything counted; NaN when nothing is known."""
        return _sum_known(device.joules for device in self.counted)

    @property
    def joules_text(self) -> str:
        """Energy with its unit; of a lost device what was seen until then, hence a lower limit."""
        return f"{'at least ' if self._has_lost else ''}{human(self.joules, 'J')}"

    @property
    def kwh(self) -> float:
        """Energy in kilowatt-hours; NaN when nothing is known."""
        return kilowatt_hours(self.joules)

    @property
    def mean_watts(self) -> float:
        """Mean power; NaN where a device was lost, whose later power is unknown."""
        if self.seconds <= 0 or self._has_lost:
            return math.nan
        return self.joules / self.seconds

    @property
    def _has_lost(self) -> bool:
        return any(Flag.LOST in device.flags for device in self.counted)

    def __str__(self) -> str:
        if math.isnan(self.joules):
            return f"{human_duration(self.seconds)}, energy unknown (see `joulery doctor`)"
        error = self.relative_error
        bar = "" if error is None else f" ± {100 * error:.1f} %".replace("± 0.0 %", "± < 0.1 %")
        billed = f" ({self.kwh:.3g} kWh)" if self.kwh >= 1e-3 else ""
        mean = ": device lost" if self._has_lost else f", {human(self.mean_watts, 'W')} mean"
        return (
            f"{self.joules_text}{bar}{billed} in "
            f"{human_duration(self.seconds)}{mean} ({self.provenance.origin.value})"
        )

    def rows(self) -> list[dict[str, Any]]:
        """A row per device: its joules, mean watts and their source."""
        return [
            {
                "device": device.info.name,
                "id": device.info.id,
                "joules": _known(device.joules),
                "mean_watts": _known(device.mean_watts(self.seconds)),
                "relative_error": device.relative_error,
                "source": device.provenance.source,
            }
            for device in self.devices
        ]

    @property
    def idle_joules(self) -> float:
        """Energy used while devices reported no utilisation; NaN when none reports it."""
        return _sum_known(device.idle_joules for device in self.counted)

    @property
    def provenance(self) -> Provenance:
        """Provenance of the total: as good as its weakest part."""
        counted = self.counted
        parts = [(d.provenance, d.joules) for d in counted if not math.isnan(d.joules)]
        if not parts:
            return Provenance(Origin.ASSUMED, "no device could be read")
        combined = Provenance.combined(parts)
        sigma = math.hypot(self.varying_error_joules, self.systematic_error_joules)
        # An unknown part is missing from the total.
        known = len(parts) == len(counted) and combined.relative_error is not None
        return replace(combined, relative_error=sigma / self.joules if known else None)

    @property
    def relative_error(self) -> float | None:
        """One sigma of the total, relative; None when unknown."""
        return self.provenance.relative_error

    @property
    def varying_error_joules(self) -> float:
        """One sigma of the total that is another one in each window."""
        return math.hypot(*(device.varying_error_joules for device in self.counted))

    @property
    def systematic_error_joules(self) -> float:
        """One sigma of the total that all windows of these devices have in common.

        Boards of one model are off in the same way, so their errors add up as they are.
        """
        models: dict[tuple[str, str], float] = {}
        for device in self.counted:
            model = (device.info.vendor, device.info.name)
            models[model] = models.get(model, 0.0) + device.systematic_error_joules
        return math.hypot(*models.values())

    @property
    def throttles(self) -> frozenset[Throttle]:
        """Reasons why the clock of any device was lowered."""
        return frozenset().union(*(device.throttles for device in self.devices))

    @property
    def stable(self) -> bool | None:
        """Whether the power of every accelerator stayed within a tenth; None when unknown."""
        states = [d.stable for d in self.devices if d.info.kind is DeviceKind.GPU]
        return None if not states or None in states else all(states)

    @property
    def interval_joules(self) -> tuple[float, float]:
        """The 95 % interval of the total; NaN where the error is unknown."""
        error = self.relative_error
        spread = math.nan if error is None else SIGMAS_95 * error * self.joules
        return max(self.joules - spread, 0.0), self.joules + spread  # in this order NaN stays

    @property
    def flags(self) -> frozenset[Flag]:
        """Faults of the window and of any device."""
        return self.events.union(*(d.flags for d in self.devices))

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the window; unknown is null."""
        return {
            "name": self.name,
            "seconds": _known(self.seconds),
            "joules": _known(self.joules),
            "mean_watts": _known(self.mean_watts),
            "peak_watts": _known(self.peak_watts),
            "idle_joules": _known(self.idle_joules),
            "provenance": self.provenance.origin.value,
            "relative_error": self.relative_error,
            "varying_error_joules": _known(self.varying_error_joules),
            "systematic_error_joules": _known(self.systematic_error_joules),
            "flags": sorted(flag.value for flag in self.flags),
            "throttles": sorted(throttle.value for throttle in self.throttles),
            "stable": self.stable,
            "devices": [device.to_dict() for device in self.devices],
        }


def counted_positions(infos: Sequence[DeviceInfo]) -> tuple[int, ...]:
    """Positions of the devices that make up the total, each joule once.

    A meter of the whole node includes everything else; a device whose parent is measured too is
    part of it.
    """
    for position, info in enumerate(infos):
        if info.kind is DeviceKind.NODE:
            return (position,)
    present = {info.id for info in infos}
    return tuple(n for n, info in enumerate(infos) if info.parent not in present)


def _sum_known(values: Iterable[float]) -> float:
    numbers = [value for value in values if not math.isnan(value)]
    return math.fsum(numbers) if numbers else math.nan


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
