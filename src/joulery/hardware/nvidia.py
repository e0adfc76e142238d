"""NVIDIA GPUs and their MIG instances, through NVML."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from joulery.clock import REAL_CLOCK
from joulery.errors import (
    InvalidValueError,
    JouleryError,
    MissingRightsError,
    UnsupportedError,
)
from joulery.frontier import Origin, Provenance
from joulery.hardware.device import (
    Capability,
    DeviceInfo,
    DeviceKind,
    EnergyReading,
    PowerLimitRange,
    Telemetry,
)
from joulery.hardware.nvidia_binding import (
    SUCCESS,
    Nvml,
    error_of,
    memory_used,
    process_ids,
    told,
)
from joulery.hardware.nvidia_fields import FieldReader, StampedTime
from joulery.hardware.nvidia_mig import MigInstance
from joulery.units import (
    HERTZ_PER_MEGAHERTZ,
    finite,
    hertz_from_megahertz,
    joules_from_millijoules,
    watts_from_milliwatts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from joulery.clock import Clock

_T = TypeVar("_T")

_EMULATED = "emulated"
_CLOCK_GRAPHICS = 0
_TEMPERATURE_GPU = 0
_VOLTA = 5
# A limit that reads back within this is the one that was set; some boards keep whole watts.
_LIMIT_SLACK_WATTS = 1.0


@dataclass(frozen=True, slots=True)
class Features:
    """What was found to work on a board, and how.

    Attributes:
        capabilities: What the board can do.
        reader: The fast call for energy and instant power, where the driver has it.
        energy_by_field: Whether that call gives the energy.
        power_by_field: Whether that call gives the power.
        clocks_hertz: Core clocks that can be pinned, ascending.
        stamps: Moves the driver's stamps to the clock, and remembers where that stood.
    """

    capabilities: frozenset[Capability] = frozenset()
    reader: FieldReader | None = None
    energy_by_field: bool = False
    power_by_field: bool = False
    clocks_hertz: tuple[float, ...] = ()
    stamps: StampedTime = field(default_factory=StampedTime)


class NvidiaGpu:
    """One NVIDIA board; made by :func:`discover`.

    Args:
        nvml: The binding, initialised.
        handle: The board's NVML handle.
        info: Who it is.
        provenance: Where its figures come from.
        features: What was found to work.
        clock: Dates the readings.
    """

    def __init__(
        self,
        nvml: Nvml,
        handle: Any,
        info: DeviceInfo,
        provenance: Provenance,
        features: Features,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self._nvml = nvml
        self._handle = handle
        self._info = info
        self._provenance = provenance
        self._features = features
        self._clock = clock

    @property
    def info(self) -> DeviceInfo:
        """Who it is; the id is the board's UUID."""
        return self._info

    @property
    def provenance(self) -> Provenance:
        """Measured by the board; simulated where the driver says that it is emulated."""
        return self._provenance

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What was found to work; setting a limit or clock may still need more rights."""
        return self._features.capabilities

    def read_energy(self) -> EnergyReading:
        """The counter, with the driver's stamp of its refresh and the instant power if given.

        Some drivers stamp the refresh of the counter and others the call; which, only a series of
        readings can tell.
        """
        reader, clock = self._features.reader, self._clock
        if reader is None or not self._features.energy_by_field:
            millijoules = self._call("nvmlDeviceGetTotalEnergyConsumption")
            return EnergyReading(joules_from_millijoules(millijoules), clock.now())
        fields = reader.read()
        before, wall, now = clock.now(), clock.wall(), clock.now()
        if fields.energy_code != SUCCESS:
            raise error_of(fields.energy_code, "energy counter", "the driver refused the field")
        power_known = fields.power_code == SUCCESS and fields.milliwatts > 0
        return EnergyReading(
            joules_from_millijoules(fields.millijoules),
            now,
            self._features.stamps.moment(fields.stamp_microseconds, before, wall, now),
            watts_from_milliwatts(fields.milliwatts) if power_known else None,
        )

    def counter_range_joules(self) -> float | None:
        """The counter has 64 bits of millijoules: it never wraps."""
        return None

    def read_power(self) -> float:
        """Instant power, or what the plain call gives (on recent boards a mean over a second)."""
        reader = self._features.reader
        if reader is None or not self._features.power_by_field:
            milliwatts = self._call("nvmlDeviceGetPowerUsage")
        else:
            fields = reader.read()
            if fields.power_code != SUCCESS:
                raise error_of(fields.power_code, "instant power", "the driver refused the field")
            milliwatts = fields.milliwatts
        if milliwatts == 0:
            # No board that answers draws nothing: some say so for a sensor that they lack.
            raise error_of(SUCCESS, "power sensor", "the driver tells 0 W")
        return watts_from_milliwatts(milliwatts)

    def power_limits(self) -> PowerLimitRange:
        """The range and what is in force."""
        least, most = self._call("nvmlDeviceGetPowerManagementLimitConstraints")
        default = self._call("nvmlDeviceGetPowerManagementDefaultLimit")
        current = self._call("nvmlDeviceGetPowerManagementLimit")
        return PowerLimitRange(
            watts_from_milliwatts(least),
            watts_from_milliwatts(most),
            watts_from_milliwatts(default),
            watts_from_milliwatts(current),
        )

    def set_power_limit(self, watts: float) -> None:
        """Set the cap, to the milliwatt, and read it back.

        Raises:
            MissingRightsError: This user may not, or the board kept its limit.
            InvalidValueError: Outside the board's range.
        """
        limits = self.power_limits()
        if not limits.min_watts <= finite(watts, "power limit in watts") <= limits.max_watts:
            raise InvalidValueError(
                f"power limit {watts:g} W is outside what {self._info.name} accepts",
                remedy=f"give {limits.min_watts:g} to {limits.max_watts:g} W",
            )
        self._call("nvmlDeviceSetPowerManagementLimit", round(watts * 1e3))
        kept = watts_from_milliwatts(self._call("nvmlDeviceGetPowerManagementLimit"))
        if abs(kept - watts) > _LIMIT_SLACK_WATTS:
            raise MissingRightsError(
                f"{self._info.name} accepted a limit of {watts:g} W but keeps {kept:g} W",
                remedy="the host may own the limit; ask the machine's administrator",
            )

    def supported_clocks(self) -> tuple[float, ...]:
        """Core clocks in hertz at the highest memory clock, ascending."""
        return self._features.clocks_hertz

    def lock_clock(self, hertz: float) -> None:
        """Pin the core clock to the highest supported one at or below ``hertz``.

        Raises:
            MissingRightsError: This user may not.
            InvalidValueError: Outside the board's range.
        """
        clocks = self._features.clocks_hertz
        if not clocks or not clocks[0] <= finite(hertz, "clock in hertz") <= clocks[-1]:
            raise InvalidValueError(
                f"clock {hertz / HERTZ_PER_MEGAHERTZ:g} MHz is not one of {self._info.name}",
                remedy="give one of its supported clocks",
            )
        chosen = clocks[bisect_right(clocks, hertz) - 1]
        megahertz = round(chosen / HERTZ_PER_MEGAHERTZ)
        self._call("nvmlDeviceSetGpuLockedClocks", megahertz, megahertz)

    def unlock_clock(self) -> None:
        """Give the clock back to the board."""
        self._call("nvmlDeviceResetGpuLockedClocks")

    def telemetry(self) -> Telemetry:
        """What the board tells now; None for what it does not.

        Raises:
            DeviceLostError: The board is gone.
        """
        return Telemetry(
            utilisation=told(
                lambda: self._call("nvmlDeviceGetUtilizationRates").gpu / 100,
            ),
            temperature_celsius=told(
                lambda: float(self._call("nvmlDeviceGetTemperature", _TEMPERATURE_GPU))
            ),
            clock_hertz=told(
                lambda: hertz_from_megahertz(self._call("nvmlDeviceGetClockInfo", _CLOCK_GRAPHICS))
            ),
            memory_used_bytes=told(lambda: memory_used(self._nvml, self._handle)),
            process_ids=told(lambda: process_ids(self._nvml, self._handle)),
        )

    def _call(self, function: str, *arguments: Any) -> Any:
        return self._nvml.call(function, self._handle, *arguments)


def discover(clock: Clock = REAL_CLOCK) -> list[NvidiaGpu | MigInstance]:
    """The NVIDIA boards of this machine in NVML's order, each followed by its MIG instances.

    Empty where there is no binding, driver or board; a board that does not answer is left out.
    Whatever ``CUDA_VISIBLE_DEVICES`` says, all are here; see
    :func:`joulery.hardware.nvidia_visible.visible_ids`.

    Args:
        clock: Dates the readings.
    """
    try:
        import pynvml
    except ImportError:
        return []
    nvml = Nvml(pynvml)
    try:
        nvml.call("nvmlInit")
        count = nvml.call("nvmlDeviceGetCount")
    except JouleryError:
        return []
    provenance = _provenance(nvml)
    found: list[NvidiaGpu | MigInstance] = []
    for index in range(count):
        with suppress(JouleryError):
            handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
            board = _board(nvml, handle, index, provenance, clock)
            found += [board, *_instances(nvml, handle, board)]
    return found


def _provenance(nvml: Nvml) -> Provenance:
    versions = (
        _or_none(lambda: str(nvml.call("nvmlSystemGetDriverVersion"))),
        _or_none(lambda: str(nvml.call("nvmlSystemGetNVMLVersion"))),
    )
    version = next(filter(None, versions), None)
    if version is None:
        # An emulated driver says so in its version, so an unknown one cannot count as measured.
        return Provenance(Origin.ASSUMED, "NVML energy counter of an unknown driver")
    if _EMULATED in version:
        return Provenance(Origin.SIMULATED, f"emulated NVML {version}", 0.0)
    # NVIDIA states no accuracy for the counter, and its power sensors are known to miss most of the
    # time on some boards (arXiv 2312.02741: A100 and H100 sample 25 %), so the error is unknown.
    return Provenance(Origin.MEASURED, "NVML energy counter")


def _board(nvml: Nvml, handle: Any, index: int, provenance: Provenance, clock: Clock) -> NvidiaGpu:
    """The board with what works on it, each tried once."""
    uuid = _or_none(lambda: str(nvml.call("nvmlDeviceGetUUID", handle)))
    name = _or_none(lambda: str(nvml.call("nvmlDeviceGetName", handle)))
    info = DeviceInfo(
        id=uuid or f"nvidia:{index}",
        name=name or "NVIDIA GPU",
        kind=DeviceKind.GPU,
        vendor="nvidia",
        index=index,
    )
    reader = _or_none(lambda: FieldReader(nvml, handle))
    fields = _or_none(reader.read) if reader else None
    features = Features(
        reader=reader,
        energy_by_field=fields is not None and fields.energy_code == SUCCESS,
        power_by_field=fields is not None and fields.power_code == SUCCESS,
        clocks_hertz=_or_none(lambda: _lockable_clocks(nvml, handle)) or (),
    )
    trial = NvidiaGpu(nvml, handle, info, provenance, features, clock)
    limits = _or_none(trial.power_limits)
    telemetry = _or_none(trial.telemetry)
    tried = {
        Capability.ENERGY: _or_none(trial.read_energy) is not None,
        Capability.POWER: _or_none(trial.read_power) is not None,
        Capability.POWER_LIMIT: limits is not None and limits.min_watts < limits.max_watts,
        Capability.CLOCK_LOCK: bool(features.clocks_hertz),
        Capability.TELEMETRY: telemetry not in {None, Telemetry()},
    }
    capabilities = frozenset(capability for capability, works in tried.items() if works)
    return NvidiaGpu(
        nvml,
        handle,
        replace(info, max_watts=limits.max_watts if limits else None),
        provenance,
        replace(features, capabilities=capabilities),
        clock,
    )


def _lockable_clocks(nvml: Nvml, handle: Any) -> tuple[float, ...]:
    if nvml.call("nvmlDeviceGetArchitecture", handle) < _VOLTA:
        raise UnsupportedError(
            "clocks can be locked from Volta on", remedy="set a power limit instead"
        )
    memory = max(nvml.call("nvmlDeviceGetSupportedMemoryClocks", handle), default=0)
    clocks = nvml.call("nvmlDeviceGetSupportedGraphicsClocks", handle, memory)
    return tuple(sorted(hertz_from_megahertz(clock) for clock in set(clocks)))


def _instances(nvml: Nvml, handle: Any, board: NvidiaGpu) -> Iterator[MigInstance]:
    """The MIG instances of a board; none where MIG is off, or when asking fails."""
    mode = _or_none(lambda: nvml.call("nvmlDeviceGetMigMode", handle))
    total = _or_none(lambda: int(nvml.call("nvmlDeviceGetMaxMigDeviceCount", handle))) or 0
    for index in range(total if mode and mode[0] else 0):
        # Instances may leave holes in the numbering.
        with suppress(JouleryError):
            yield _instance(nvml, handle, index, total, board)


def _instance(nvml: Nvml, handle: Any, index: int, total: int, board: NvidiaGpu) -> MigInstance:
    part = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
    attributes = nvml.call("nvmlDeviceGetAttributes", part)
    info = DeviceInfo(
        id=str(nvml.call("nvmlDeviceGetUUID", part)),
        name=str(nvml.call("nvmlDeviceGetName", part)),
        kind=DeviceKind.GPU,
        vendor="nvidia",
        index=index,
        parent=board.info.id,
        # A board has as many slices as instances of the smallest size.
        share=min(1.0, attributes.computeInstanceSliceCount / total),
    )
    return MigInstance(nvml, part, info, board)


def _or_none(ask: Callable[[], _T]) -> _T | None:
    """The answer, or None on any failure: for trying what works."""
    try:
        return ask()
    except JouleryError:
        return None
