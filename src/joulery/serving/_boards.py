"""Boards that serve language models: time and power of an iteration at any clock or power limit.

An iteration of an engine is three times at the highest clock: arithmetic ``c``, memory traffic
``m`` and what does not depend on the clock, ``h`` (launching kernels, scheduling, links between
boards). With ``x`` the clock as a share of the highest and ``v`` the core voltage relative to the
one there:

* arithmetic takes ``c / x``; traffic takes ``m``, but the cores issue it, so at low clocks it takes
  ``m * issue_share / x``. The slowest part sets the time, a little more where parts are close;
* memory has power of its own, which the core clock does not change (``dram_watts``), and moving
  data across the chip has power that follows the voltage (``transport_watts``), as arithmetic has;
* a board that holds a model draws ``awake_watts``, plus its clock tree while it works.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from joulery.errors import InvalidValueError
from joulery.hardware import catalog
from joulery.prediction import accelerator
from joulery.units import finite

# Watts as shares of the default limit: retention of 60 MLPerf Inference results under limits (A100
# and H100, SXM and PCIe), power of Llama-2-70B decode on A100 by tensor parallelism (Splitwise) and
# decode on an RTX 4090 under 38 limits (club-3090). Three kinds of boards, nearly the same shares.
_SHARES = {"awake": 0.14, "clock": 0.05, "transport": 0.40, "dram": 0.19, "issue": 0.5}
# Ampere's boards with GDDR come from another process: an RTX 3090 under 21 limits (club-3090).
_LEAKY = {"awake": 0.26, "clock": 0.12, "transport": 0.72, "dram": 0.23, "issue": 0.8}
# Voltage floor and knee: same sources.
_VOLTAGE, _A100_VOLTAGE, _LEAKY_VOLTAGE = (0.70, 0.57), (0.74, 0.67), (0.64, 0.74)
# Energy of an operation in inference relative to `operation_joules`, which were chosen on large
# products; from the same MLPerf results, whose kernels rarely fill the units.
_OPERATION_ENERGY = 0.78
# Arithmetic draws at least this share of the limit: halved rates of GeForce boards save no energy.
_LEAST_COMPUTE = 0.7
# Clocks of GeForce boards under light load exceed the stated boost clock by this much (RTX 3090).
_BEYOND_BOOST = 1.15
# Wall power of a node beyond its boards, as a share of their default limits: MLPerf nodes with
# NVLink boards (DGX A100 and H100, XE9680) and with eight PCIe boards.
_LINKED_OVERHEAD, _PCIE_OVERHEAD = 0.35, 0.2
_PCIE_BYTES = 100e9
_OVERLAP = 3.0
_MIXES = 65


@dataclass(frozen=True)
class ServingBoard:
    """One type of board, or a tensor-parallel group of equal boards, as engines see it.

    Attributes:
        name: Name in the catalog.
        flops: Dense peak in operations per second, in the precision of the served model.
        bytes_per_second: Bandwidth of the memory.
        memory_bytes: Size of the memory.
        link_bytes_per_second: Bandwidth to the other boards of the group.
        awake_watts: Power of a board that holds a model and waits.
        clock_watts: Power of the clock tree at the highest clock.
        compute_watts: Power of arithmetic alone at the highest clock.
        transport_watts: Power of moving saturated traffic across the chip at the highest clock.
        dram_watts: Power of saturated memory itself.
        issue_share: Share of the highest clock below which traffic slows down.
        voltage_floor: Lowest voltage relative to the one at the highest clock.
        knee_share: Share of the highest clock up to which the voltage stays at its floor.
        max_clock_hertz: Highest clock.
        min_clock_hertz: Lowest clock.
        limit_watts: Default power limit.
        min_limit_watts: Lowest power limit.
    """

    name: str
    flops: float
    bytes_per_second: float
    memory_bytes: float
    link_bytes_per_second: float
    awake_watts: float
    clock_watts: float
    compute_watts: float
    transport_watts: float
    dram_watts: float
    issue_share: float
    voltage_floor: float
    knee_share: float
    max_clock_hertz: float
    min_clock_hertz: float
    limit_watts: float
    min_limit_watts: float

    def __post_init__(self) -> None:
        for name in ("flops", "bytes_per_second", "max_clock_hertz", "limit_watts"):
            if finite(getattr(self, name), f"{name} of {self.name}") <= 0:
                raise InvalidValueError(f"{name} must be above 0", remedy="see the specification")

    def voltage(self, share: float) -> float:
        """Core voltage at a share of the highest clock."""
        above = max(0.0, share - self.knee_share)
        return self.voltage_floor + (1 - self.voltage_floor) * above / (1 - self.knee_share)

    def busy_seconds(self, compute: float, memory: float, share: float) -> float:
        """Time of an iteration's kernels at a share of the highest clock."""
        issue = self.issue_share * memory
        scaled = (compute * compute * compute + issue * issue * issue) / (share * share * share)
        return float((scaled + memory * memory * memory) ** (1 / _OVERLAP))

    def busy_watts(self, compute: float, memory: float, share: float) -> float:
        """Power while the kernels of an iteration execute."""
        seconds = self.busy_seconds(compute, memory, share)
        squared = self.voltage(share) ** 2
        core = self.compute_watts * compute + self.transport_watts * memory
        joules = core * squared + self.dram_watts * memory
        return self.awake_watts + self.clock_watts * share * squared + joules / seconds

    def within(self, limit_watts: float, clock_hertz: float | None = None) -> ClockTable:
        """The clocks that a power limit and a locked clock leave for each mix of work."""
        ceiling = 1.0 if clock_hertz is None else clock_hertz / self.max_clock_hertz
        return _clock_table(self, limit_watts, round(max(self.min_share, min(1.0, ceiling)), 6))

    @property
    def linked(self) -> bool:
        """Whether the boards of a group have faster links than PCIe."""
        return self.link_bytes_per_second > _PCIE_BYTES

    @cached_property
    def min_share(self) -> float:
        """Lowest clock as a share of the highest."""
        return self.min_clock_hertz / self.max_clock_hertz


@dataclass(frozen=True)
class ClockTable:
    """Clock, time and energy of iterations under one setting of a board.

    Attributes:
        board: The board.
        shares: Clock as a share of the highest, by the share of arithmetic in the work.
    """

    board: ServingBoard
    shares: tuple[float, ...]

    def cost(self, compute: float, memory: float, fixed: float) -> tuple[float, float]:
        """Seconds and joules of an iteration on one board."""
        board = self.board
        share = self.shares[int((_MIXES - 1) * compute / (compute + memory) + 0.5)]
        issue = board.issue_share * memory
        scaled = (compute * compute * compute + issue * issue * issue) / (share * share * share)
        seconds = fixed + (scaled + memory * memory * memory) ** (1 / 3)
        squared = board.voltage(share) ** 2
        core = board.compute_watts * compute + board.transport_watts * memory
        standing = board.awake_watts + board.clock_watts * share * squared
        return seconds, standing * seconds + core * squared + board.dram_watts * memory


@lru_cache(maxsize=4096)
def _clock_table(board: ServingBoard, limit_watts: float, ceiling: float) -> ClockTable:
    levels = np.linspace(board.min_share, ceiling, 60) if ceiling > board.min_share else [ceiling]
    shares = []
    for mix in np.linspace(0.0, 1.0, _MIXES):
        watts = [board.busy_watts(mix, 1 - mix, float(level)) for level in levels]
        shares.append(float(np.interp(limit_watts, np.maximum.accumulate(watts), levels)))
    return ClockTable(board, tuple(shares))


def serving_board(name: str, precision: str = "bf16") -> ServingBoard:
    """A board of the catalog as engines see it.

    Args:
        name: Name of the board, as the catalog or the driver spells it.
        precision: Precision of the products, ``bf16`` or ``fp8``.

    Raises:
        UnknownDeviceError: No such board; the remedy names the nearest.

    Examples:
        >>> board = serving_board("h100")
        >>> round(board.busy_watts(0.0, 1.0, 1.0))  # saturated memory at the highest clock
        530
    """
    specs, device = catalog.specs(name), accelerator(name)
    shares, (floor, knee) = _SHARES, _VOLTAGE
    if specs.architecture == "Ampere":
        leaky = (specs.memory_kind or "").startswith("GDDR")
        shares = _LEAKY if leaky else _SHARES
        floor, knee = _LEAKY_VOLTAGE if leaky else _A100_VOLTAGE
    limit = specs.default_limit_watts
    flops = device.peak(precision if precision in device.peaks else device.sixteen_bits)
    beyond = _BEYOND_BOOST if "GeForce" in specs.full_name else 1.0
    arithmetic = device.operation_joules[precision] * _OPERATION_ENERGY * flops * beyond
    return ServingBoard(
        name=specs.name,
        flops=flops * beyond,
        bytes_per_second=device.bytes_per_second,
        memory_bytes=device.memory_bytes,
        link_bytes_per_second=device.link_bytes_per_second,
        awake_watts=shares["awake"] * limit,
        clock_watts=shares["clock"] * limit,
        compute_watts=max(arithmetic, _LEAST_COMPUTE * limit),
        transport_watts=shares["transport"] * limit,
        dram_watts=shares["dram"] * limit,
        issue_share=shares["issue"],
        voltage_floor=floor,
        knee_share=knee,
        max_clock_hertz=specs.boost_clock_hertz * beyond,
        min_clock_hertz=device.min_clock_hertz,
        limit_watts=limit,
        min_limit_watts=device.min_limit_watts,
    )


def node_watts(board: ServingBoard, count: int, board_watts: float) -> float:
    """Power of a whole node at the wall while each of its boards draws ``board_watts``.

    Args:
        board: Boards of the node.
        count: Number of boards.
        board_watts: Power of one board.
    """
    share = _LINKED_OVERHEAD if board.linked else _PCIE_OVERHEAD
    return count * (board_watts + share * board.limit_watts)
