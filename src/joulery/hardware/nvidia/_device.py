"""NVIDIA GPUs and their MIG instances, through NVML."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.clock import REAL_CLOCK
from joulery.errors import JouleryError, MissingRightsError
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
    Throttle,
    attempt,
    check_clock,
    device_text,
    working_capabilities,
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
    from collections.abc import Iterator

    from joulery.clock import Clock

# Present where the kernel driver is loaded.
DRIVER = Path("/dev/nvidiactl")
_EMULATED = "emulated"
_CLOCK_GRAPHICS = 0  # NVML_CLOCK_GRAPHICS
_TEMPERATURE_GPU = 0  # NVML_TEMPERATURE_GPU
_VOLTA = 5  # NVML_DEVICE_ARCH_VOLTA
# Bits of nvmlClocksEventReason… in nvml.h; clocks that users set and idle boards are no throttling.
_THROTTLES = {
    0x04: Throttle.POWER_CAP,
    0x08: Throttle.HARDWARE,
    0x20: Throttle.THERMAL,
    0x40: Throttle.THERMAL,
    0x80: Throttle.HARDWARE,
}
# A limit that reads back within this is the one that was set; some boards keep whole watts.
_LIMIT_SLACK_WATTS = 1.0


class NvidiaGpu:
    """One NVIDIA board; made by ``survey``. What works on it is found out by trying it.

    Setting a limit or clock may need more rights than finding out that there is one.
    """

    def __init__(
        self,
        nvml: Nvml,
        handle: Any,
        index: int,
        driver: str,
        provenance: Provenance,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.provenance = provenance
        self._nvml = nvml
        self._handle = handle
        self._clock = clock
        self._stamps = StampConverter()
        # Readers of energy and of instant power by field, where the driver supports that.
        reader = attempt(lambda: FieldReader(nvml, handle))
        fields = attempt(reader.read) if reader else None
        self._energy_reader = reader if fields and fields.energy_code == SUCCESS else None
        self._power_reader = reader if fields and fields.power_code == SUCCESS else None
        self._clocks_hertz = attempt(self._lockable_clocks) or ()
        uuid = attempt(lambda: str(self._call("nvmlDeviceGetUUID"))) or f"nvidia:{index}"
        name = attempt(lambda: str(self._call("nvmlDeviceGetName"))) or "NVIDIA GPU"
        limits = attempt(self.power_limits)
        max_watts = limits.max_watts if limits else None
        self.info = DeviceInfo(uuid, name, DeviceKind.GPU, "nvidia", index, max_watts)
        field = "instant" if self._power_reader else "plain"
        self.power_sensor: PowerSensor | None = sensor_of(name, field=field, driver=driver)
        self.capabilities = working_capabilities(self)

    __repr__ = device_text

    def read_energy(self) -> EnergyReading:
        """Counter value, with the driver's stamp of its refresh and the instant power if given.

        Some drivers stamp the refresh of the counter and others the call; only a series of
        readings shows which.
        """
        reader, clock = self._energy_reader, self._clock
        if reader is None:
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
            self._stamps.moment(fields.stamp_microseconds, before, wall, now),
            watts_from_milliwatts(fields.milliwatts) if power_known else None,
        )

    def read_power(self) -> float:
        """Instant power, or that of the plain call (on recent boards the mean over a second)."""
        if self._power_reader is None:
            milliwatts = self._call("nvmlDeviceGetPowerUsage")
        else:
            fields = self._power_reader.read()
            if fields.power_code != SUCCESS:
                raise error_of(fields.power_code, "instant power", "the driver refused the field")
            milliwatts = fields.milliwatts
        if milliwatts == 0:
            # No board that answers draws 0 W: some drivers report it for a missing sensor.
            raise error_of(SUCCESS, "power sensor", "the driver reports 0 W")
        return watts_from_milliwatts(milliwatts)

    def power_limits(self) -> PowerLimitRange:
        """Range of limits, and the limit in force."""
        lowest, highest = self._call("nvmlDeviceGetPowerManagementLimitConstraints")
        default = self._call("nvmlDeviceGetPowerManagementDefaultLimit")
        current = self._call("nvmlDeviceGetPowerManagementLimit")
        return PowerLimitRange(*map(watts_from_milliwatts, (lowest, highest, default, current)))

    def set_power_limit(self, watts: float) -> None:
        """Set the limit, to the milliwatt, and read it back."""
        self.power_limits().check(watts, self.info.name)
        self._call("nvmlDeviceSetPowerManagementLimit", round(watts * 1e3))
        current_watts = watts_from_milliwatts(self._call("nvmlDeviceGetPowerManagementLimit"))
        if abs(current_watts - watts) > _LIMIT_SLACK_WATTS:
            raise MissingRightsError(
                f"{self.info.name} accepted a limit of {watts:g} W but keeps {current_watts:g} W",
                remedy="the host may own the limit; ask the machine's administrator",
            )

    def supported_clocks(self) -> tuple[float, ...]:
        """Core clocks in hertz at the highest memory clock, ascending."""
        return self._clocks_hertz

    def lock_clock(self, hertz: float) -> None:
        """Pin the core clock to the highest supported one at or below ``hertz``."""
        clocks = self._clocks_hertz
        check_clock(hertz, clocks, self.info.name)
        clock = clocks[bisect_right(clocks, hertz) - 1]
        megahertz = round(clock / HERTZ_PER_MEGAHERTZ)
        self._call("nvmlDeviceSetGpuLockedClocks", megahertz, megahertz)

    def unlock_clock(self) -> None:
        """Return the clock to the board's own control."""
        self._call("nvmlDeviceResetGpuLockedClocks")

    def telemetry(self) -> Telemetry:
        """Present state of the board; None for what it does not report. A lost board raises."""
        return Telemetry(
            utilisation=optional(lambda: self._call("nvmlDeviceGetUtilizationRates").gpu / 100),
            temperature_celsius=optional(
                lambda: float(self._call("nvmlDeviceGetTemperature", _TEMPERATURE_GPU))
            ),
            clock_hertz=optional(
                lambda: hertz_from_megahertz(self._call("nvmlDeviceGetClockInfo", _CLOCK_GRAPHICS))
            ),
            process_ids=optional(lambda: _process_ids(self._nvml, self._handle)),
            throttles=optional(
                lambda: _throttles(self._call("nvmlDeviceGetCurrentClocksThrottleReasons"))
            ),
        )

    def _lockable_clocks(self) -> tuple[float, ...]:
        if self._call("nvmlDeviceGetArchitecture") < _VOLTA:
            return ()
        memory = max(self._call("nvmlDeviceGetSupportedMemoryClocks"), default=0)
        clocks = self._call("nvmlDeviceGetSupportedGraphicsClocks", memory)
        return tuple(sorted(hertz_from_megahertz(clock) for clock in set(clocks)))

    def _call(self, function: str, *arguments: Any) -> Any:
        return self._nvml.call(function, self._handle, *arguments)


class MigInstance:
    """One MIG instance: the part of a board that one container or process holds.

    NVML counts energy per board only. The readings here are those of the whole board;
    ``info.share`` is the part of them that the instance stands for. Power limit and clock are
    left out, because they would act on the other instances too.
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

    __repr__ = device_text

    def telemetry(self) -> Telemetry:
        """Processes of the instance, temperature and clock of the board."""
        return replace(
            self._board.telemetry(),
            utilisation=None,  # NVML does not report it per instance
            process_ids=optional(lambda: _process_ids(self._nvml, self._handle)),
        )


def _throttles(reasons: int) -> frozenset[Throttle]:
    return frozenset(throttle for bit, throttle in _THROTTLES.items() if reasons & bit)


def survey(clock: Clock = REAL_CLOCK) -> Survey:
    """The NVIDIA boards of this machine in NVML's order, each followed by its MIG instances.

    A board that does not answer is left out. The result does not depend on
    ``CUDA_VISIBLE_DEVICES``; see ``joulery.hardware._visibility``.
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
    driver = attempt(lambda: str(nvml.call("nvmlSystemGetDriverVersion"))) or ""
    provenance = _provenance(nvml, driver)
    for index in range(count):
        with suppress(JouleryError):
            handle = nvml.call("nvmlDeviceGetHandleByIndex", index)
            board = NvidiaGpu(nvml, handle, index, driver, provenance, clock)
            yield board
            yield from _instances(nvml, handle, board)


def _provenance(nvml: Nvml, driver: str) -> Provenance:
    version = driver or attempt(lambda: str(nvml.call("nvmlSystemGetNVMLVersion")))
    if not version:
        # An emulated driver is known by its version, so an unknown one cannot count as measured.
        return Provenance(Origin.ASSUMED, "NVML energy counter of an unknown driver")
    if _EMULATED in version:
        return Provenance(Origin.SIMULATED, f"emulated NVML {version}", 0.0)
    # NVIDIA states no accuracy for the counter; what its sensors do is in sensors.toml.
    return Provenance(Origin.MEASURED, "NVML energy counter")


def _instances(nvml: Nvml, handle: Any, board: NvidiaGpu) -> Iterator[MigInstance]:
    """The MIG instances of a board; none where MIG is off or cannot be queried."""
    mode = attempt(lambda: nvml.call("nvmlDeviceGetMigMode", handle))
    total = attempt(lambda: int(nvml.call("nvmlDeviceGetMaxMigDeviceCount", handle))) or 0
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


def _process_ids(nvml: Nvml, handle: Any) -> tuple[int, ...]:
    """Processes that compute on a board or instance."""
    # By its versioned name: the plain one hides an old driver behind an error of another tree.
    processes = nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", handle)
    return tuple(int(process.pid) for process in processes)
