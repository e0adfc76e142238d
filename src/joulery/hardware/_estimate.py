"""Estimate of CPU energy by utilisation, for machines without a counter.

    joules = idle_watts · seconds + (tdp_watts - idle_watts) · busy core-seconds / cores

Busy time comes from the cumulative counts of ``/proc/stat``, so the estimate is exact in the
utilisation between any two reads, however far apart. The watts are a guess, and the result is
marked as assumed with a relative error of one half.

The thermal design power comes from the caller or ``JOULERY_CPU_TDP_WATTS``, else from
``guess_tdp_watts``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK
from joulery.errors import DeviceError, InvalidValueError, MissingHardwareError
from joulery.frontier import Origin, Provenance
from joulery.hardware._device import (
    Capability,
    DeviceInfo,
    DeviceKind,
    EnergyReading,
    Survey,
    device_text,
)
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulery.clock import Clock

STAT = Path("/proc/stat")
CPUINFO = Path("/proc/cpuinfo")
VARIABLE = "JOULERY_CPU_TDP_WATTS"
RELATIVE_ERROR = 0.5  # by hand: half, as no sensor is behind it

# A round assumption: real packages idle anywhere from a few percent to a third of their TDP.
_IDLE_SHARE = 0.2
# Columns of a cpu line: user nice system idle iowait irq softirq steal guest guest_nice. Guests
# are inside user and nice; stolen time is another machine's work.
_BUSY_COLUMNS = (0, 1, 2, 5, 6)

_LOW_POWER = re.compile(r"\d[UY]\b")
_MOBILE = re.compile(r"\d(H[KSX]?|P)\b")
_SERVER = re.compile(r"xeon|epyc|opteron|neoverse|graviton|ampere|altra|power\d", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Processor:
    """Processors of the machine as the kernel describes them."""

    model: str
    sockets: int
    physical_cores: int
    logical_cpus: int


class CpuEstimate:
    """All processors of the machine as one energy meter, assumed within a factor of about two.

    ``tdp_watts`` is the assumed design power of all packages together.
    """

    def __init__(
        self, processor: Processor, tdp_watts: float, clock: Clock = REAL_CLOCK, stat: Path = STAT
    ) -> None:
        self.info = DeviceInfo(
            "estimate:cpu",
            f"{processor.model or 'CPU'} (estimated)",
            DeviceKind.CPU,
            "estimate",
            max_watts=tdp_watts,
            min_watts=_IDLE_SHARE * tdp_watts,
        )
        source = f"CPU utilisation × {tdp_watts:g} W"
        self.provenance = Provenance(Origin.ASSUMED, source, RELATIVE_ERROR)
        self.capabilities = frozenset({Capability.ENERGY})
        self._logical_cpus = processor.logical_cpus
        self._tdp_watts, self._idle_watts = tdp_watts, _IDLE_SHARE * tdp_watts
        self._clock = clock
        self._stat = stat

    __repr__ = device_text

    def read_energy(self) -> EnergyReading:
        """Estimated energy, from cumulative busy time."""
        busy_seconds = parse_busy_seconds(self._stat_text(), ticks_per_second())
        now = self._clock.now()
        # By the number of CPUs found at the start: taking some offline must not move the sum.
        share_seconds = busy_seconds / self._logical_cpus
        dynamic = (self._tdp_watts - self._idle_watts) * share_seconds
        return EnergyReading(self._idle_watts * now + dynamic, now)

    def _stat_text(self) -> str:
        try:
            return self._stat.read_text(encoding="utf-8")
        except OSError as failure:
            raise MissingHardwareError(
                f"cannot read {self._stat}: {failure.strerror}",
                remedy="CPU energy can be estimated only on Linux with /proc mounted",
            ) from None


def survey(
    environ: Mapping[str, str],
    clock: Clock = REAL_CLOCK,
    *,
    stat: Path = STAT,
    cpuinfo: Path = CPUINFO,
) -> Survey:
    """The estimate for this machine, read once to see that it works.

    Raises:
        MissingHardwareError: There is no ``/proc/stat``.
        InvalidValueError: ``JOULERY_CPU_TDP_WATTS`` is not a power.
    """
    try:
        text = cpuinfo.read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""
    processor = parse_cpuinfo(text)
    watts_text = environ.get(VARIABLE)
    tdp = guess_tdp_watts(processor) if watts_text is None else _parse_watts(watts_text)
    estimate = CpuEstimate(processor, tdp, clock, stat)
    estimate.read_energy()
    return Survey((estimate,))


def _parse_watts(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InvalidValueError(
            f"{VARIABLE} is {text!r}, not a power in watts", remedy="write a number, such as 65"
        ) from None
    return finite(value, f"{VARIABLE} in watts", minimum=1.0)


def guess_tdp_watts(processor: Processor) -> float:
    """Design power of all sockets, from the model's class and the cores per socket.

    Laptops by the suffix of their number: U and Y 15 W, H and P 45 W. Servers, and anything
    with more than 16 cores, 70 W + 3.3 W per core: a line drawn by eye through Xeon Silver 4110
    (8 cores, 85 W), Gold 6130 (16, 125 W), Platinum 8380 (40, 270 W) and EPYC 7302 (16, 155 W),
    7763 (64, 280 W), 9654 (96, 360 W), of which it misses the 8380 most, by 25.2 %. Other
    desktops 40 W + 5 W per core.

    Examples:
        >>> round(guess_tdp_watts(Processor("AMD EPYC 7763 64-Core Processor", 2, 128, 256)))
        562
    """
    sockets = max(1, processor.sockets)
    cores = max(1, processor.physical_cores) / sockets
    if _SERVER.search(processor.model) or cores > 16:
        return sockets * (70.0 + 3.3 * cores)
    if _LOW_POWER.search(processor.model):
        return 15.0 * sockets
    if _MOBILE.search(processor.model):
        return 45.0 * sockets
    return sockets * (40.0 + 5.0 * cores)


def parse_cpuinfo(text: str) -> Processor:
    """Model, sockets and physical cores; what the file leaves out counts one core per entry."""
    entries = [_fields(block) for block in text.split("\n\n") if "processor" in _fields(block)]
    model = next((entry["model name"] for entry in entries if entry.get("model name")), "")
    sockets = {entry.get("physical id", "0") for entry in entries}
    if all("core id" in entry for entry in entries):
        cores = len({(entry.get("physical id", "0"), entry["core id"]) for entry in entries})
    else:
        cores = len(entries)
    logical = len(entries) or os.cpu_count() or 1
    return Processor(model, max(1, len(sockets)), cores or logical, logical)


def parse_busy_seconds(text: str, ticks: float) -> float:
    """Busy seconds of all CPUs together since boot, from a ``/proc/stat``."""
    total = next((line.split()[1:] for line in text.splitlines() if line.startswith("cpu ")), [])
    try:
        busy = sum(int(total[column]) for column in _BUSY_COLUMNS)
    except (IndexError, ValueError):
        raise DeviceError(
            "/proc/stat has no usable cpu line", remedy="report the file's first line as a bug"
        ) from None
    return busy / ticks


def ticks_per_second() -> float:
    """The unit of ``/proc/stat`` (100 on every common Linux)."""
    return float(os.sysconf("SC_CLK_TCK"))


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, separator, value in pairs if separator}
