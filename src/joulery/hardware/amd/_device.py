"""AMD GPUs through AMD SMI.

Two bindings are in use, the one that ROCm ships and the one on PyPI, over several generations of
the library. They differ in names and units, which ``AmdGpu`` evens out:

- energy: ``energy_accumulator`` or, in early releases, ``power``; × ``counter_resolution`` µJ
- power: ``socket_power`` (ROCm 7), ``current_socket_power`` (MI300 on) or
  ``average_socket_power`` (before), in W or, on virtualisation hosts, in µW; absent values are
  ``"N/A"`` or all ones
- power cap: in µW on bare metal, in W on virtualisation hosts and early releases
- clocks: ``clk`` or ``cur_clk`` in MHz; the list of frequencies in Hz

Without ROCm, importing ``amdsmi`` prints to stdout and raises KeyError.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import math
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.clock import REAL_CLOCK
from joulery.errors import (
    DeviceError,
    JouleryError,
    MissingHardwareError,
    MissingRightsError,
    UnsupportedError,
)
from joulery.frontier import Origin, Provenance
from joulery.hardware._device import (
    DeviceInfo,
    DeviceKind,
    EnergyReading,
    Obstacle,
    PowerLimitRange,
    Survey,
    Telemetry,
    attempt,
    check_clock,
    device_text,
    working_capabilities,
)
from joulery.units import (
    HERTZ_PER_MEGAHERTZ,
    hertz_from_megahertz,
    joules_from_microjoules,
    watts_from_microwatts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.clock import Clock


_LIBRARY = "libamd_smi.so"
# Status codes of amdsmi.h.
_NO_PERMISSION = 10
_NOT_SUPPORTED = frozenset({2, 3})
# The library fills fields that a board lacks with ones; newer wrappers write "N/A".
_ABSENT = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})


def load_binding(name: str = "amdsmi") -> Any:
    """Import AMD SMI's binding, which prints where its library is missing: then it is not imported.

    Catching what it prints would take the output of other threads too.

    Raises:
        MissingHardwareError: It or its library is missing.
    """
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and _library_loads(Path(spec.origin or "").parent):
            return importlib.import_module(name)
        reason = f"there is no {name if spec is None else _LIBRARY}"
    except (ImportError, KeyError, OSError, AttributeError, ValueError) as failure:
        reason = f"{type(failure).__name__}: {failure}"
    raise MissingHardwareError(
        f"AMD SMI does not load: {reason}",
        remedy="install ROCm and the amdsmi it ships (/opt/rocm/share/amd_smi), "
        "or pip install 'joulery[amd]'",
    )


def _library_loads(folder: Path) -> bool:
    """Whether the binding in ``folder`` finds its library where it looks for it."""
    roots = [os.environ.get("ROCM_HOME"), os.environ.get("ROCM_PATH"), "/opt/rocm"]
    places = [f"{root}/lib/{_LIBRARY}" for root in roots if root]
    for place in (*places, _LIBRARY, f"{folder}/{_LIBRARY}"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(place)
            return True
    return False


@contextlib.contextmanager
def translated(smi: Any, subject: str) -> Iterator[None]:
    """Failures of the binding as Joulery's errors."""
    failures = getattr(smi, "AmdSmiException", RuntimeError)
    try:
        yield
    except failures as failure:
        raise _error(failure, subject) from None
    except (AttributeError, KeyError, TypeError, OSError) as failure:
        # What the wrappers let through when the library below is older than they are.
        raise UnsupportedError(
            f"{subject}: {type(failure).__name__}: {failure}",
            remedy="install the amdsmi that ships with your ROCm",
        ) from None


def _error(failure: Exception, subject: str) -> JouleryError:
    code = getattr(failure, "get_error_code", lambda: getattr(failure, "err_code", None))()
    reason = " ".join(str(failure).split()) or type(failure).__name__
    if code == _NO_PERMISSION:
        return MissingRightsError(
            f"{subject}: not permitted", remedy="run as root, or through Joulery's governor"
        )
    if code in _NOT_SUPPORTED:
        return UnsupportedError(f"{subject}: not supported", remedy="update ROCm or leave it out")
    return DeviceError(f"{subject}: {reason}", remedy="check `amd-smi monitor`")


def number(answer: Any, *keys: str) -> float | None:
    """The first of ``keys`` that holds a number; "N/A" and all ones mean unknown."""
    for key in keys:
        value = answer.get(key) if isinstance(answer, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if math.isfinite(value) and value >= 0 and value not in _ABSENT:
            return float(value)
    return None


# Device file of the compute driver, present where there is an AMD GPU.
KFD = Path("/dev/kfd")

# No GPU draws or is capped above this many watts, and none below this many microwatts.
_MICROWATTS_FROM = 1e5
_ENERGY_KEYS = ("energy_accumulator", "power")
_POWER_KEYS = ("socket_power", "current_socket_power", "average_socket_power")
_DEFAULT_CAP_KEYS = ("default_power_cap", "power_cap_default", "power_cap")
_CLOCK_KEYS = ("clk", "cur_clk")


class AmdGpu:
    """One AMD GPU, by its handle in ``amdsmi`` or an object with the functions of that.

    What works on it is found out by trying it.
    """

    def __init__(self, binding: Any, handle: Any, index: int, clock: Clock = REAL_CLOCK) -> None:
        self.info = DeviceInfo(f"amd:{index}", f"AMD GPU {index}", DeviceKind.GPU, "amd", index)
        # AMD states no accuracy.
        self.provenance = Provenance(Origin.MEASURED, "AMD SMI energy accumulator")
        self._binding = binding
        self._handle = handle
        self._clock = clock
        self._offset_seconds = math.inf
        self.capabilities = working_capabilities(self)
        limits = attempt(self.power_limits)
        uuid = attempt(lambda: self.query("amdsmi_get_gpu_device_uuid"))
        asic = attempt(lambda: self.query("amdsmi_get_gpu_asic_info"))
        name = asic.get("market_name") if isinstance(asic, dict) else None
        self.info = replace(
            self.info,
            id=_text(uuid) or self.info.id,
            name=_text(name) or self.info.name,
            max_watts=None if limits is None else limits.max_watts,
        )

    __repr__ = device_text

    def read_energy(self) -> EnergyReading:
        """Accumulator value, with its time stamp converted to the device's clock.

        The stamp counts from another origin than the clock does. The smallest difference ever seen
        belongs to the freshest reading, so adding it converts every stamp, at worst late by that
        reading's age.
        """
        answer = self.query("amdsmi_get_energy_count")
        now = self._clock.now()
        count, resolution = number(answer, *_ENERGY_KEYS), number(answer, "counter_resolution")
        if count is None or not resolution:
            raise self._unknown("energy")
        joules, stamp = joules_from_microjoules(count * resolution), number(answer, "timestamp")
        if not stamp:
            return EnergyReading(joules, now)
        self._offset_seconds = min(self._offset_seconds, now - stamp * 1e-9)
        return EnergyReading(joules, now, stamp * 1e-9 + self._offset_seconds)

    def read_power(self) -> float:
        """Power of the socket: the current value, or the board's average before MI300."""
        watts = number(self.query("amdsmi_get_power_info"), *_POWER_KEYS)
        if watts is None:
            raise self._unknown("power")
        return watts_from_microwatts(watts) if watts >= _MICROWATTS_FROM else watts

    def power_limits(self) -> PowerLimitRange:
        """Limits of the socket's first power sensor, which is the board's."""
        answer = self.query("amdsmi_get_power_cap_info")
        lowest, highest = number(answer, "min_power_cap"), number(answer, "max_power_cap")
        default, current = number(answer, *_DEFAULT_CAP_KEYS), number(answer, "power_cap")
        if lowest is None or highest is None or default is None or current is None:
            raise self._unknown("power limit")
        scale = _cap_scale(highest)
        return PowerLimitRange(*(value / scale for value in (lowest, highest, default, current)))

    def set_power_limit(self, watts: float) -> None:
        """Set the limit in the unit in which the binding states it, and read it back."""
        limits = self.power_limits()
        # Some boards state a minimum of zero; to the driver zero means "restore the default".
        replace(limits, min_watts=max(1.0, limits.min_watts)).check(watts, self.info.name)
        highest = number(self.query("amdsmi_get_power_cap_info"), "max_power_cap") or 0.0
        self.query("amdsmi_set_power_cap", 0, round(watts * _cap_scale(highest)))
        current_watts = self.power_limits().current_watts
        if abs(current_watts - watts) > 1.0:
            raise DeviceError(
                f"asked {self.info.name} for {watts:g} W, it holds {current_watts:g} W",
                remedy="another tool may be setting the cap; let only one do it",
            )

    def supported_clocks(self) -> tuple[float, ...]:
        """The graphics clocks that the driver lists."""
        answer = self.query("amdsmi_get_clk_freq", self._graphics_clock())
        listed = answer.get("frequency") if isinstance(answer, dict) else None
        values = {float(f) for f in listed or () if isinstance(f, int | float) and f > 0}
        if not values:
            raise self._unknown("list of clocks")
        return tuple(sorted(values))

    def lock_clock(self, hertz: float) -> None:
        """Pin the graphics clock to the listed one nearest to ``hertz``."""
        check_clock(hertz, self.supported_clocks(), self.info.name)
        megahertz = round(hertz / HERTZ_PER_MEGAHERTZ)
        self.query("amdsmi_set_gpu_clk_range", megahertz, megahertz, self._graphics_clock())

    def unlock_clock(self) -> None:
        """Return the clock to the board's own control."""
        self.query("amdsmi_set_gpu_perf_level", self._constant("AmdSmiDevPerfLevel", "AUTO"))

    def telemetry(self) -> Telemetry:
        """Present state of the board; None for what it does not report."""
        activity = attempt(lambda: self.query("amdsmi_get_gpu_activity"))
        clocks = attempt(lambda: self.query("amdsmi_get_clock_info", self._graphics_clock()))
        percent, megahertz = number(activity, "gfx_activity"), number(clocks, *_CLOCK_KEYS)
        return Telemetry(
            utilisation=None if percent is None else min(1.0, percent / 100),
            temperature_celsius=self._temperature(),
            clock_hertz=None if megahertz is None else hertz_from_megahertz(megahertz),
            process_ids=attempt(self._process_ids),
        )

    def _temperature(self) -> float | None:
        # MI boards have no edge sensor; the hotspot (also called junction) is what throttles.
        sensors = ("HOTSPOT", "JUNCTION", "EDGE")
        temperatures = (attempt(partial(self._sensor_celsius, sensor)) for sensor in sensors)
        return next((degrees for degrees in temperatures if degrees is not None), None)

    def _sensor_celsius(self, sensor: str) -> float | None:
        kind = self._constant("AmdSmiTemperatureType", sensor)
        current = self._constant("AmdSmiTemperatureMetric", "CURRENT")
        degrees = number({"": self.query("amdsmi_get_temp_metric", kind, current)}, "")
        # Early releases pass on the driver's millidegrees.
        return degrees / 1000 if degrees is not None and degrees > 1000 else degrees

    def _process_ids(self) -> tuple[int, ...] | None:
        answer = self.query("amdsmi_get_gpu_process_list")
        if not isinstance(answer, list | tuple):
            return None
        numbers = [number(entry, "pid") for entry in answer]
        return tuple(sorted({int(pid) for pid in numbers if pid is not None}))

    def _graphics_clock(self) -> Any:
        try:
            return self._constant("AmdSmiClkType", "GFX")
        except UnsupportedError:
            return self._constant("AmdSmiClkType", "SYS")

    def _constant(self, enumeration: str, member: str) -> Any:
        with translated(self._binding, f"{enumeration}.{member}"):
            return getattr(getattr(self._binding, enumeration), member)

    def query(self, name: str, *arguments: Any) -> Any:
        """Call a function of the binding on this GPU, with its failures as Joulery's errors."""
        function = getattr(self._binding, name, None)
        if function is None:
            raise UnsupportedError(
                f"this amdsmi has no {name}", remedy="install the amdsmi that ships with your ROCm"
            )
        with translated(self._binding, f"{name} on {self.info.name}"):
            return function(self._handle, *arguments)

    def _unknown(self, quantity: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self.info.name} states no {quantity}", remedy="update ROCm and the amdgpu driver"
        )


def survey(clock: Clock = REAL_CLOCK, binding: Any = None, kfd: Path = KFD) -> Survey:
    """The AMD GPUs of this machine, or the obstacle where some are present but unusable.

    Args:
        clock: Clock of the readings' times.
        binding: Module ``amdsmi``; imported when None.
        kfd: Device file of the driver, present where there is an AMD GPU.
    """
    if binding is None and not kfd.exists():
        return Survey()
    try:
        smi = load_binding() if binding is None else binding
        with translated(smi, "AMD SMI"):
            smi.amdsmi_init()
            handles = list(smi.amdsmi_get_processor_handles())
    except JouleryError as error:
        unusable = (Obstacle.from_error("AMD GPUs", error),) if kfd.exists() else ()
        return Survey(obstacles=unusable)
    return Survey(tuple(AmdGpu(smi, handle, n, clock) for n, handle in enumerate(handles)))


def _text(value: object) -> str:
    return value if isinstance(value, str) and value != "N/A" else ""


def _cap_scale(stated_max: float) -> float:
    """Units of the binding's power caps per watt."""
    return 1e6 if stated_max >= _MICROWATTS_FROM else 1.0
