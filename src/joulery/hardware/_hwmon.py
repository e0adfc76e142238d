"""Devices that the kernel shows in hwmon: discrete Intel GPUs, and the rails of NVIDIA Jetsons.

Drivers of Intel GPUs (i915, xe) show a counter of microjoules since they were loaded, which the
kernel unwraps. Xe drivers count the card (``energy1``) or, on some boards, the package only
(``energy2``). Integrated GPUs have none: they are part of the CPU's package, which RAPL counts.

A Jetson has INA3221 chips on its rails, of which the driver shows name, voltage and current. Which
rails there are depends on the module; only some have one for all that the module draws. JetPack 4
has another driver, which is not read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK
from joulery.errors import DeviceError, DeviceLostError, JouleryError
from joulery.files import system_text
from joulery.frontier import Origin, Provenance
from joulery.hardware._device import (
    Capability,
    DeviceInfo,
    DeviceKind,
    EnergyReading,
    Obstacle,
    Survey,
    device_text,
)
from joulery.units import joules_from_microjoules, watts_from_microwatts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.clock import Clock

DEFAULT_ROOT = Path("/sys/class")
_INTEL_DRIVERS = ("i915", "xe")
_COUNTERS = ("energy1_input", "energy2_input")
# Rails by the names that NVIDIA's device trees give them: Orin NX and Nano and Xavier NX have the
# first two, AGX Orin the next three, AGX Xavier the last three. Others feed what is no device here.
_RAILS = {
    "VDD_IN": DeviceKind.NODE,
    "VDD_CPU_GPU_CV": DeviceKind.GPU,
    "VDD_GPU_SOC": DeviceKind.GPU,
    "VDD_CPU_CV": DeviceKind.CPU,
    "VDDQ_VDD2_1V8AO": DeviceKind.MEMORY,
    "GPU": DeviceKind.GPU,
    "CPU": DeviceKind.CPU,
    "VDDRQ": DeviceKind.MEMORY,
}
# By hand: twice that of other vendors' boards, as nobody has published a comparison.
_RELATIVE_ERROR = 0.1


class IntelGpu:
    """Energy counter of one board."""

    capabilities = frozenset({Capability.ENERGY})

    def __init__(self, info: DeviceInfo, energy_file: Path, clock: Clock = REAL_CLOCK) -> None:
        self.info = info
        source = f"{energy_file.name.removesuffix('_input')} of hwmon"
        self.provenance = Provenance(Origin.MEASURED, source, _RELATIVE_ERROR)
        self._energy_file, self._clock = energy_file, clock

    __repr__ = device_text

    def read_energy(self) -> EnergyReading:
        """Energy since the driver was loaded."""
        microjoules = _read_number(self._energy_file, self.info.name)
        return EnergyReading(joules_from_microjoules(microjoules), self._clock.now())


class JetsonRail:
    """Power sensor of one rail."""

    capabilities = frozenset({Capability.POWER})

    def __init__(self, info: DeviceInfo, voltage_file: Path, current_file: Path) -> None:
        self.info = info
        self.provenance = Provenance(Origin.MEASURED, "INA3221 of the rail", _RELATIVE_ERROR)
        self._voltage_file, self._current_file = voltage_file, current_file

    def read_power(self) -> float:
        """Watts of the rail; a sensor that reads slightly below zero reads zero."""
        millivolts = _read_number(self._voltage_file, self.info.name)
        milliamperes = _read_number(self._current_file, self.info.name)
        return max(0.0, watts_from_microwatts(millivolts * milliamperes))


def survey(clock: Clock = REAL_CLOCK, root: Path = DEFAULT_ROOT) -> Survey:
    """The Intel GPUs and rails, each read once, and the obstacles to reading others."""
    candidates: list[IntelGpu | JetsonRail] = [*_intel_gpus(root / "drm", clock)]
    candidates += _rails(root / "hwmon")
    devices, obstacles = [], []
    for device in candidates:
        try:
            device.read_energy() if isinstance(device, IntelGpu) else device.read_power()
        except JouleryError as error:
            obstacles.append(Obstacle.from_error(device.info.name, error))
        else:
            devices.append(device)
    return Survey(tuple(devices), tuple(obstacles))


def _intel_gpus(root: Path, clock: Clock) -> Iterator[IntelGpu]:
    index = 0
    for folder in sorted(root.glob("card[0-9]*/device/hwmon/hwmon*")):
        if system_text(folder / "name") not in _INTEL_DRIVERS:
            continue
        counters = (folder / name for name in _COUNTERS)
        counter = next((counter for counter in counters if counter.exists()), None)
        if counter is not None:
            address = folder.parents[1].resolve().name  # on the PCI bus, such as 0000:03:00.0
            name = f"Intel GPU {address}"
            info = DeviceInfo(f"intel:{address}", name, DeviceKind.GPU, "intel", index)
            yield IntelGpu(info, counter, clock)
            index += 1


def _rails(root: Path) -> Iterator[JetsonRail]:
    index = 0
    for folder in sorted(root.glob("hwmon*")):
        labels = folder.glob("in*_label") if system_text(folder / "name") == "ina3221" else ()
        for file in sorted(labels):
            rail, channel = system_text(file), file.name[len("in") : -len("_label")]
            if rail in _RAILS:
                info = DeviceInfo(f"jetson:{rail}", f"Jetson {rail}", _RAILS[rail], "jetson", index)
                voltage, current = f"in{channel}_input", f"curr{channel}_input"
                yield JetsonRail(info, folder / voltage, folder / current)
                index += 1


def _read_number(file: Path, name: str) -> int:
    """The number that the kernel shows of device ``name``."""
    try:
        return int(file.read_bytes())
    except FileNotFoundError:
        raise DeviceLostError(
            f"{name} has no counter or sensor any more", remedy="see `dmesg` for its driver"
        ) from None
    except (OSError, ValueError) as failure:
        raise DeviceError(f"cannot read {name}: {failure}", remedy=f"check `cat {file}`") from None
