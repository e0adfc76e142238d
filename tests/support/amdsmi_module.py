"""A stand-in for the ``amdsmi`` module, with the names and units of old or new releases."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

NOT_SUPPORTED = 2
NO_PERMISSION = 10


class AmdSmiException(Exception):  # noqa: N818 - the binding's own name
    """Base of the binding's errors."""


class AmdSmiLibraryException(AmdSmiException):
    """A call that the library refused, with its status code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"Error code:\n\t{code}")
        self.err_code = code

    def get_error_code(self) -> int:
        """The status code."""
        return self.err_code


class AmdSmiClkType(IntEnum):
    """Clock domains."""

    SYS = 0
    MEM = 4


class AmdSmiTemperatureType(IntEnum):
    """Sensors."""

    EDGE = 0
    HOTSPOT = 1


class AmdSmiTemperatureMetric(IntEnum):
    """Values of a sensor."""

    CURRENT = 0


class AmdSmiMemoryType(IntEnum):
    """Kinds of memory."""

    VRAM = 0


class AmdSmiDevPerfLevel(IntEnum):
    """Modes of clock control."""

    AUTO = 0


@dataclass
class EmulatedAmdGpu:
    """One board's state, in watts, joules and hertz; also serves as its handle."""

    uuid: str = "00ff74a1-0000-1000-8000-000000000001"
    watts: float = 412.0
    joules: float = 1000.0
    stamp_seconds: float = 50.0
    cap_watts: float = 750.0
    min_watts: float = 300.0
    max_watts: float = 750.0
    clock_megahertz: int = 2100
    locked_megahertz: int | None = None


@dataclass
class EmulatedAmdSmi:
    """Stand-in for the module ``amdsmi``.

    Attributes:
        boards: Boards to show.
        modern: Names and units of ROCm 7 if true, of early releases if false.
        watts_caps: State caps in watts, as on virtualisation hosts.
        codes: Status code to raise, by function name.
    """

    boards: list[EmulatedAmdGpu] = field(default_factory=lambda: [EmulatedAmdGpu()])
    modern: bool = True
    watts_caps: bool = False
    codes: dict[str, int] = field(default_factory=dict)

    AmdSmiException = AmdSmiException
    AmdSmiLibraryException = AmdSmiLibraryException
    AmdSmiClkType = AmdSmiClkType
    AmdSmiTemperatureType = AmdSmiTemperatureType
    AmdSmiTemperatureMetric = AmdSmiTemperatureMetric
    AmdSmiMemoryType = AmdSmiMemoryType
    AmdSmiDevPerfLevel = AmdSmiDevPerfLevel

    RESOLUTION_MICROJOULES = 15.259

    def amdsmi_init(self) -> None:
        """Start the library."""
        self._check("amdsmi_init")

    def amdsmi_get_processor_handles(self) -> list[EmulatedAmdGpu]:
        """The boards."""
        self._check("amdsmi_get_processor_handles")
        return list(self.boards)

    def amdsmi_get_gpu_device_uuid(self, gpu: EmulatedAmdGpu) -> str:
        """Stable id of a board."""
        self._check("amdsmi_get_gpu_device_uuid")
        return gpu.uuid

    def amdsmi_get_gpu_asic_info(self, _gpu: EmulatedAmdGpu) -> dict[str, Any]:
        """Market name of a board."""
        self._check("amdsmi_get_gpu_asic_info")
        return {"market_name": "AMD Instinct MI300X" if self.modern else "AMD Instinct MI210"}

    def amdsmi_get_energy_count(self, gpu: EmulatedAmdGpu) -> dict[str, Any]:
        """Value of the energy accumulator."""
        self._check("amdsmi_get_energy_count")
        return {
            "energy_accumulator" if self.modern else "power": round(
                gpu.joules * 1e6 / self.RESOLUTION_MICROJOULES
            ),
            "counter_resolution": self.RESOLUTION_MICROJOULES,
            "timestamp": round(gpu.stamp_seconds * 1e9),
        }

    def amdsmi_get_power_info(self, gpu: EmulatedAmdGpu) -> dict[str, Any]:
        """Power, under the key of the release."""
        self._check("amdsmi_get_power_info")
        watts = round(gpu.watts)
        if self.modern:
            return {
                "socket_power": watts,
                "current_socket_power": watts,
                "average_socket_power": "N/A",
                "power_limit": round(gpu.cap_watts * 1e6),
            }
        return {"current_socket_power": 0xFFFF, "average_socket_power": watts}

    def amdsmi_get_power_cap_info(self, gpu: EmulatedAmdGpu) -> dict[str, Any]:
        """Power caps of a board."""
        self._check("amdsmi_get_power_cap_info")
        unit = 1 if self.watts_caps else 10**6
        default = "default_power_cap" if self.modern else "power_cap_default"
        return {
            "power_cap": round(gpu.cap_watts * unit),
            default: round(gpu.max_watts * unit),
            "dpm_cap": 0,
            "min_power_cap": round(gpu.min_watts * unit),
            "max_power_cap": round(gpu.max_watts * unit),
        }

    def amdsmi_set_power_cap(self, gpu: EmulatedAmdGpu, _sensor: int, cap: int) -> None:
        """Set the power cap."""
        self._check("amdsmi_set_power_cap")
        gpu.cap_watts = cap / (1 if self.watts_caps else 10**6)

    def amdsmi_get_clk_freq(self, gpu: EmulatedAmdGpu, _kind: int) -> dict[str, Any]:
        """Frequencies in hertz, the current one among them, as MI300 lists them."""
        self._check("amdsmi_get_clk_freq")
        listed = [500 * 10**6, 1200 * 10**6, gpu.clock_megahertz * 10**6]
        return {"num_supported": 3, "current": 2, "frequency": listed}

    def amdsmi_set_gpu_clk_range(
        self, gpu: EmulatedAmdGpu, low_megahertz: int, _high_megahertz: int, _kind: int
    ) -> None:
        """Pin the clock."""
        self._check("amdsmi_set_gpu_clk_range")
        gpu.locked_megahertz = low_megahertz

    def amdsmi_set_gpu_perf_level(self, gpu: EmulatedAmdGpu, _level: int) -> None:
        """Free the clock."""
        self._check("amdsmi_set_gpu_perf_level")
        gpu.locked_megahertz = None

    def amdsmi_get_clock_info(self, gpu: EmulatedAmdGpu, _kind: int) -> dict[str, Any]:
        """The current clock in megahertz."""
        self._check("amdsmi_get_clock_info")
        return {"clk" if self.modern else "cur_clk": gpu.clock_megahertz, "max_clk": 2100}

    def amdsmi_get_gpu_activity(self, _gpu: EmulatedAmdGpu) -> dict[str, Any]:
        """Utilisation in percent."""
        self._check("amdsmi_get_gpu_activity")
        return {"gfx_activity": 87, "umc_activity": 20, "mm_activity": "N/A"}

    def amdsmi_get_temp_metric(self, _gpu: EmulatedAmdGpu, sensor: int, _metric: int) -> int:
        """Degrees, millidegrees in old releases; the edge sensor is absent in new boards."""
        self._check("amdsmi_get_temp_metric")
        if self.modern and sensor == AmdSmiTemperatureType.EDGE:
            raise AmdSmiLibraryException(NOT_SUPPORTED)
        return 61 if self.modern else 61_000

    def amdsmi_get_gpu_memory_usage(self, _gpu: EmulatedAmdGpu, _kind: int) -> int:
        """Bytes in use."""
        self._check("amdsmi_get_gpu_memory_usage")
        return 3 << 30

    def amdsmi_get_gpu_process_list(self, _gpu: EmulatedAmdGpu) -> list[dict[str, Any]]:
        """Processes on the board."""
        self._check("amdsmi_get_gpu_process_list")
        return [{"name": "python", "pid": 4242, "mem": 1 << 30}]

    def _check(self, function: str) -> None:
        if function in self.codes:
            raise AmdSmiLibraryException(self.codes[function])
