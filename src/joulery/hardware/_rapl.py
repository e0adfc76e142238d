"""CPU packages and DRAM through RAPL, as Linux shows it in the powercap tree.

Zones become devices as follows:

- ``package-N`` (``package-N-die-M`` on multi-die parts) is a CPU.
- ``dram`` below a package is that package's MEMORY. The package does not include it.
- ``core`` and ``uncore`` are parts of the package and left out, so nothing counts twice. So is
  ``psys``, whose meaning differs by board maker.

The tree shows AMD's counters under ``intel-rapl`` too, and some Intel parts a second time under
``intel-rapl-mmio``, which is left out. The counters refresh about every millisecond and carry no
time stamp. They wrap at ``max_energy_range_uj`` (some 65 kJ to 262 kJ: 5 to 20 minutes at full
load), so read them at least that often.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK
from joulery.errors import DeviceError, DeviceLostError, JouleryError, MissingRightsError
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

DEFAULT_ROOT = Path("/sys/class/powercap")

_PACKAGE = re.compile(r"package-(\d+)(-die-\d+)?")

# Our judgement, not a vendor's figure. Khan et al., "RAPL in Action" (2018), find readings that
# follow plug power closely; Desrochers et al. (2016) find DRAM off by a constant that differs
# between machines and weighs most when idle. AMD's counters are not covered by either.
_RELATIVE_ERRORS = {DeviceKind.CPU: 0.03, DeviceKind.MEMORY: 0.1}

# No package draws this much. A counter that went back and would need more to have wrapped was
# reset instead (driver reload, resume from suspend).
_IMPLAUSIBLE_WATTS = 5000.0  # ten times the largest package of 2026


class RaplDevice:
    """Energy counter of one powercap zone, unwrapped where the tree states its range."""

    capabilities = frozenset({Capability.ENERGY})

    def __init__(
        self,
        info: DeviceInfo,
        energy_file: Path,
        range_joules: float | None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.info = info
        source = f"RAPL {info.id.removeprefix('rapl:')} counter"
        self.provenance = Provenance(Origin.MEASURED, source, _RELATIVE_ERRORS[info.kind])
        self.energy_file = energy_file
        self._range_joules = range_joules
        self._clock = clock
        self._lock = threading.Lock()
        self._wrapped_joules = 0.0
        self._last: tuple[float, float] | None = None

    __repr__ = device_text

    def read_energy(self) -> EnergyReading:
        """Counter value plus the wraps seen.

        After a reset of the hardware counter it starts again from the low value, so that the
        reader sees a counter that went back and not a huge false increase.
        """
        with self._lock:
            raw = _read_counter(self.energy_file, self.info.name)
            now = self._clock.now()
            self._wrapped_joules += self._wrap_since_last(raw, now)
            self._last = (raw, now)
            return EnergyReading(self._wrapped_joules + raw, now, range_joules=self._range_joules)

    def _wrap_since_last(self, raw: float, now: float) -> float:
        """Joules to add for a wrap; after a reset, all of them are subtracted again."""
        if self._last is None or raw >= self._last[0]:
            return 0.0
        last_raw, last_seconds = self._last
        span = self._range_joules
        if span is None or span - last_raw + raw > _IMPLAUSIBLE_WATTS * (now - last_seconds):
            return -self._wrapped_joules
        return span


def survey(clock: Clock = REAL_CLOCK, root: Path = DEFAULT_ROOT) -> Survey:
    """The RAPL devices of this machine, and the obstacles to reading some of them.

    A zone whose counter this user may not read is listed without the ENERGY capability.
    """
    devices = sorted(_devices(root, clock), key=_by_kind_and_index)
    closed: list[RaplDevice] = []
    faults: list[Obstacle] = []
    for device in devices:
        try:
            device.read_energy()
        except JouleryError as error:
            device.capabilities = frozenset()
            if isinstance(error, MissingRightsError):
                closed.append(device)
            else:
                faults.append(Obstacle.from_error(device.info.name, error))
    if closed:
        faults.insert(0, _closed_counters(closed))
    return Survey(tuple(devices), tuple(faults))


def _closed_counters(devices: list[RaplDevice]) -> Obstacle:
    names = ", ".join(device.info.id.removeprefix("rapl:") for device in devices)
    files = " ".join(str(device.energy_file) for device in devices)
    return Obstacle(
        f"CPU energy counters ({names})",
        "only root may read them (Linux closed them in 2020 against power side channels)",
        f"`sudo chgrp power {files} && sudo chmod g+r {files}` opens them to the group `power` "
        "until reboot; put the same in a udev rule for SUBSYSTEM powercap to keep it",
    )


def _by_kind_and_index(device: RaplDevice) -> tuple[bool, int, str]:
    return device.info.kind is DeviceKind.MEMORY, device.info.index, device.info.id


def _devices(root: Path, clock: Clock) -> Iterator[RaplDevice]:
    """Every zone that stands for a device."""
    for folder in root.glob("intel-rapl:*"):
        info = _describe(folder)
        if info is not None:
            span = _number(folder / "max_energy_range_uj")
            joules = None if span is None else joules_from_microjoules(span)
            yield RaplDevice(info, folder / "energy_uj", joules, clock)


def _describe(folder: Path) -> DeviceInfo | None:
    """The device a zone stands for; None for parts of a package and for unknown zones."""
    name = system_text(folder / "name")
    watts = _number(folder / "constraint_0_max_power_uw")
    max_watts = None if watts is None else watts_from_microwatts(watts)
    if package := _PACKAGE.fullmatch(name):
        kind, path, title, index = DeviceKind.CPU, name, f"CPU {name}", int(package[1])
    elif name == "dram":
        kind, path, title, index = DeviceKind.MEMORY, name, "DRAM", 0
        parent = system_text(folder.parent / folder.name.rpartition(":")[0] / "name")
        if package := _PACKAGE.fullmatch(parent):
            path, title, index = f"{parent}:dram", f"DRAM of {parent}", int(package[1])
    else:
        return None
    return DeviceInfo(f"rapl:{path}", title, kind, "powercap", index, max_watts)


def _read_counter(path: Path, name: str) -> float:
    """Joules in the counter file, with every failure as one of Joulery's errors."""
    try:
        return joules_from_microjoules(int(path.read_bytes()))
    except PermissionError:
        raise MissingRightsError(
            f"this user may not read {path}", remedy="see `joulery doctor` for how to open it"
        ) from None
    except FileNotFoundError:
        raise DeviceLostError(
            f"{name} has no counter any more: {path} is gone",
            remedy="load the kernel's RAPL driver (`modprobe intel_rapl_msr`) and start again",
        ) from None
    except (OSError, ValueError) as failure:
        raise DeviceError(
            f"cannot read the counter of {name}: {failure}", remedy=f"check `cat {path}`"
        ) from None


def _number(path: Path) -> float | None:
    """A positive number from a file; the tree writes 0 where it does not know."""
    text = system_text(path)
    return float(text) if text.isdecimal() and int(text) > 0 else None
