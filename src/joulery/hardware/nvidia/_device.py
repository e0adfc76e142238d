"""NVIDIA GPUs and their MIG instances, through NVML."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from joulery.clock import REAL_CLOCK
from joulery.errors import (
    JouleryError,
    MissingRightsError,
    UnsupportedError,
)
from joulery.frontier import Origin, Provenance
from joulery.hardware._device import (
    Capability,
    DeviceInfo,
    DeviceKind,
    EnergyReading,
    Obstacle,
    PowerLimitRange,
    Survey,
    Telemetry,
    check_clock,
)
from joulery.hardware._sensors import PowerSensor, sensor_of
from joulery.hardware.nvidia._binding import (
    SUCCESS,
    FieldReader,
    Nvml,
    StampConverter,
    error_of,
    optional,
)
from joulery.units import (
    HERTZ_PER_MEGAHERTZ,
    hertz_from_megahertz,
    joules_from_millijoules,
    watts_from_milliwatts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from joulery.clock import Clock

_T = TypeVar("_T")

# Present where the kernel driver is loaded.
DRIVER = Path("/dev/nvidiactl")
_EMULATED = "emulated"
_CLOCK_GRAPHICS = 0
_TEMPERATURE_GPU = 0
_VOLTA = 5
# A limit that reads back within this is the one that was set; some boards keep whole watts.
_LIMIT_SLACK_WATTS = 1.0


@dataclass(frozen=True, slots=True)
class Features:
    """Features of a board that were found to work, and how to use them.

    Attributes:
        capabilities: Capabilities of the board.
        reader: Fast reader of energy and instant power, where the driver supports it.
        energy_by_field: Whether the reader gives the energy.
        power_by_field: Whether the reader gives the power.
        clocks_hertz: Core clocks that can be pinned, ascending.
        stamps: Converter of the driver's time stamps.
        sensor: Expected behaviour of the power sensor.
    """

    capabilities: frozenset[Capability] = frozenset()
    reader: FieldReader | None = None
    energy_by_field: bool = False
    power_by_field: bool = False
    clocks_hertz: tuple[float, ...] = ()
    stamps: StampConverter = field(default_factory=StampConverter)
    sensor: PowerSensor | None = None


class NvidiaGpu:
    """One NVIDIA board; made by :func:`survey`.

    Args:
        nvml: Initialised binding.
        handle: NVML handle of the board.
        info: Identity; the id is the board's UUID.
        provenance: Source of its figures; simulated where the driver is an emulated one.
        features: Features found to work; setting a limit or clock may still need more rights.
        clock: Clock of the readings' times.
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
        self.info = info
        self.provenance = provenance
        self.capabilities = features.capabilities
        self.power_sensor = features.sensor
        self._nvml = nvml
        self._handle = handle
        self._features = features
        self._clock = clock

    def read_energy(self) -> EnergyReading:
        """Counter value, with the driver's stamp of its refresh and the instant power if given.

        Some drivers stamp the refresh of the counter and others the call; only a series of
        readings shows which.
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

    def read_power(self) -> float:
        """Instant power, or that of the plain call (on recent boards the mean over a second)."""
        reader = self._features.reader
        if reader is None or not self._features.power_by_field:
            milliwatts = self._call("nvmlDeviceGetPowerUsage")
        else:
            fields = reader.read()
            if fields.power_code != SUCCESS:
                raise error_of(fields.power_code, "instant power", "the driver refused the field")
            milliwatts = fields.milliwatts
        if milliwatts == 0:
            # No board that answers draws 0 W: some drivers report it for a missing sensor.
            raise error_of(SUCCESS, "power sensor", "the driver reports 0 W")
        return watts_from_milliwatts(milliwatts)

    def power_limits(self) -> PowerLimitRange:
        """Range of limits, and the limit in force."""
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
        """Set the limit, to the milliwatt, and read it back.

        Raises:
            MissingRightsError: This user may not set it, or the board kept its limit.
            InvalidValueError: The limit is outside the board's range.
        """
        self.power_limits().check(watts, self.info.name)
        self._call("nvmlDeviceSetPowerManagementLimit", round(watts * 1e3))
        kept = watts_from_milliwatts(self._call("nvmlDeviceGetPowerManagementLimit"))
        if abs(kept - watts) > _LIMIT_SLACK_WATTS:
            raise MissingRightsError(
                f"{self.info.name} accepted a limit of {watts:g} W but keeps {kept:g} W",
                remedy="the host may own the limit; ask the machine's administrator",
            )

    def supported_clocks(self) -> tuple[float, ...]:
        """Core clocks in hertz at the highest memory clock, ascending."""
        return self._features.clocks_hertz

    def lock_clock(self, hertz: float) -> None:
        """Pin the core clock to the highest supported one at or below ``hertz``.

        Raises:
            MissingRightsError: This user may not pin it.
            InvalidValueError: The clock is outside the board's range.
        """
        clocks = self._features.clocks_hertz
        check_clock(hertz, clocks, self.info.name)
        chosen = clocks[bisect_right(clocks, hertz) - 1]
        megahertz = round(chosen / HERTZ_PER_MEGAHERTZ)
        self._call("nvmlDeviceSetGpuLockedClocks", megahertz, megahertz)

    def unlock_clock(self) -> None:
        """Return the clock to the board's own control."""
        self._call("nvmlDeviceResetGpuLockedClocks")

    def telemetry(self) -> Telemetry:
        """Present state of the board; None for what it does not report.

        Raises:
            DeviceLostError: The board is gone.
        """
        return Telemetry(
            utilisation=optional(lambda: self._call("nvmlDeviceGetUtilizationRates").gpu / 100),
            temperature_celsius=optional(
                lambda: float(self._call("nvmlDeviceGetTemperature", _TEMPERATURE_GPU))
            ),
            clock_hertz=optional(
                lambda: hertz_from_megahertz(self._call("nvmlDeviceGetClockInfo", _CLOCK_GRAPHICS))
            ),
            memory_used_bytes=optional(lambda: _memory_used(self._nvml, self._handle)),
            process_ids=optional(lambda: _process_ids(self._nvml, self._handle)),
        )

    def _call(self, function: str, *arguments: Any) -> Any:
        return self._nvml.call(function, self._handle, *arguments)


class MigInstance:
    """One MIG instance: the part of a board that one container or process holds.

    NVML counts energy per board only. The readings here are those of the whole board;
    ``info.share`` is the part of them that the instance stands for. Power limit and clock are
    left out, because they would act on the other instances too.

    Args:
        nvml: Initialised binding.
        handle: NVML handle of the instance.
        info: Identity, with the board as parent; the id is the instance's UUID.
        board: Board that it is part of.
    """

    def __init__(self, nvml: Nvml, handle: Any, info: DeviceInfo, board: NvidiaGpu) -> None:
        self.info = info
        # The error is unknown: equal shares need not draw equal power.
        source = f"{board.provenance.source} of the whole board"
        self.provenance = replace(board.provenance, source=source, relative_error=None)
        self.capabilities = board.capabilities - {Capability.POWER_LIMIT, Capability.CLOCK_LOCK}
        self.power_sensor = board.power_sensor
        self.read_energy = board.read_energy
        self.read_power = board.read_power
        self._nvml = nvml
        self._handle = handle
        self._board = board

    def telemetry(self) -> Telemetry:
        """Memory and processes of the instance, temperature and clock of the board."""
        return replace(
            self._board.telemetry(),
            utilisation=None,  # NVML does not report it per instance
            memory_used_bytes=optional(lambda: _memory_used(self._nvml, self._handle)),
            process_ids=optional(lambda: _process_ids(self._nvml, self._handle)),
        )


def survey(clock: Clock = REAL_CLOCK) -> Survey:
    """The NVIDIA boards of this machine in NVML's order, each followed by its MIG instances.

    A board that does not answer is left out. The result does not depend on
    ``CUDA_VISIBLE_DEVICES``; see :mod:`joulery.hardware._visibility`.

    Args:
        clock: Clock of the readings' times.
    """
    devices = tuple(_devices(clock))
    if devices or not DRIVER.exists():
        return Survey(devices)
    missing = Obstacle(
        "NVIDIA GPUs",
        "the driver is loaded but its management library shows no board",
        "check `nvidia-smi`; inside a container pass the GPUs and the `utility` capability",
    )
    return Survey(obstacles=(missing,))


def _devices(clock: Clock) -> Iterator[NvidiaGpu | MigInstance]:
    try:
        import pynvml
    except ImportError:
        return
    nvml = Nvml(pynvml)
    try:
        nvml.call("nvmlInit")
        count = nvml.call("nvmlDeviceGetCount")
    except JouleryError:
        return
    provenance = _provenance(nvml)
    for index in range(count):
        with suppress(JouleryError):
            handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
            board = _board(nvml, handle, index, provenance, clock)
            yield board
            yield from _instances(nvml, handle, board)


def _provenance(nvml: Nvml) -> Provenance:
    versions = (
        _or_none(lambda: str(nvml.call("nvmlSystemGetDriverVersion"))),
        _or_none(lambda: str(nvml.call("nvmlSystemGetNVMLVersion"))),
    )
    version = next(filter(None, versions), None)
    if version is None:
        # An emulated driver is known by its version, so an unknown one cannot count as measured.
        return Provenance(Origin.ASSUMED, "NVML energy counter of an unknown driver")
    if _EMULATED in version:
        return Provenance(Origin.SIMULATED, f"emulated NVML {version}", 0.0)
    # NVIDIA states no accuracy for the counter; what its sensors do is in sensors.toml.
    return Provenance(Origin.MEASURED, "NVML energy counter")


def _board(nvml: Nvml, handle: Any, index: int, provenance: Provenance, clock: Clock) -> NvidiaGpu:
    """The board with the features that work on it, each tried once."""
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
    driver = _or_none(lambda: str(nvml.call("nvmlSystemGetDriverVersion"))) or ""
    field_used = "instant" if features.power_by_field else "plain"
    features = replace(features, sensor=sensor_of(info.name, field=field_used, driver=driver))
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
    """The MIG instances of a board; none where MIG is off or cannot be queried."""
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
    """The answer, or None on any failure: for finding out what works."""
    try:
        return ask()
    except JouleryError:
        return None


def _memory_used(nvml: Nvml, handle: Any) -> int:
    """Bytes in use on a board or instance."""
    return int(nvml.call("nvmlDeviceGetMemoryInfo", handle).used)


def _process_ids(nvml: Nvml, handle: Any) -> tuple[int, ...]:
    """Processes that compute on a board or instance."""
    # By its versioned name: the plain one hides an old driver behind an error of another tree.
    processes = nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", handle)
    return tuple(int(process.pid) for process in processes)
