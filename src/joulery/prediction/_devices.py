"""Properties of accelerators that the models of this room need, with gaps filled in."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError
from joulery.hardware import catalog

if TYPE_CHECKING:
    from collections.abc import Mapping

# Bytes of one element. MXFP8 and NVFP4 carry a scale per block of 32 and 16 elements.
BYTES = {
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "mxfp8": 1.03,
    "nvfp4": 0.56,
}
PRECISIONS = tuple(BYTES)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator as the kernel, power and plan models see it.

    Attributes:
        name: Short name in the catalog.
        architecture: The vendor's name for the generation.
        peaks: Dense peak in operations per second by precision.
        bytes_per_second: Bandwidth of the memory.
        memory_bytes: Size of the memory.
        l2_bytes: Size of the last-level cache.
        units: Streaming multiprocessors or compute units.
        clock_hertz: Highest clock.
        limit_watts: Default power limit.
        min_limit_watts: Lowest power limit.
        min_clock_hertz: Lowest core clock.
        idle_watts: Draw without work.
        leakage: Draw of a board that a process holds, relative to other boards of its limit.
        link_bytes_per_second: Bandwidth to the neighbours, one direction.
        link_domain: Number of devices that such links join.
        operation_joules: Energy of one operation that the power limit has to feed, by precision.
    """

    name: str
    architecture: str
    peaks: Mapping[str, float] = field(hash=False)
    bytes_per_second: float
    memory_bytes: float
    l2_bytes: float
    units: int
    clock_hertz: float
    limit_watts: float
    min_limit_watts: float
    min_clock_hertz: float
    idle_watts: float
    leakage: float
    link_bytes_per_second: float
    link_domain: int
    operation_joules: Mapping[str, float] = field(hash=False)

    def peak(self, precision: str) -> float:
        """Dense peak of the fastest unit that computes in ``precision``.

        Raises:
            InvalidValueError: The device has no such unit, or there is no such precision.
        """
        if precision not in BYTES:
            raise InvalidValueError(
                f"no precision {precision!r}", remedy=f"one of {', '.join(PRECISIONS)}"
            )
        peak = self.peaks.get(precision)
        if peak is None:
            raise InvalidValueError(
                f"{self.name} does not compute in {precision}",
                remedy=f"it computes in {', '.join(self.peaks)}",
            )
        return peak

    def fed(self, precision: str) -> float:
        """Operations per second that the default power limit can feed."""
        available = self.limit_watts * (1 - _STATIC_SHARE) - _STATIC_WATTS
        return available / self.operation_joules[precision]

    def rates(self, precision: str) -> tuple[float, float]:
        """Peak of single kernels, and of long dense work, which the power limit bounds.

        Without matrix units boards that cannot feed their peak run at low clocks throughout.
        """
        if precision == "fp32":
            return self.sustained(precision), math.inf
        return self.peak(precision), self.fed(precision)

    def sustained(self, precision: str) -> float:
        """Peak of long, dense work: small boards never feed their nominal one."""
        return float((self.peak(precision) ** -6 + self.fed(precision) ** -6) ** (-1 / 6))


# PCI Express 4.0 × 16, one direction, after protocol overhead: boards without own links.
_PCIE_BYTES_PER_SECOND = 25e9

# Ampere's other chips, made in another process than A100's and with other memory: an RTX 3090 draws
# 127 of 350 W between two bursts of work, an A100 59 of 400 W (readings of GPU_Power_Benchmark).
# Half of that in logarithms: one board says little about others of its process.
_LEAKY = {("Ampere", "GDDR"): 1.6}


# Power that no arithmetic gets: 10 W and 6 % of the limit, from the operator times of P4, P100, T4
# and V100 (NeuSight data), which their power limits explain with one energy per generation.
_STATIC_WATTS, _STATIC_SHARE = 10.0, 0.06

# Picojoules of one operation outside and inside the matrix units, in FP16/BF16. Pascal, Volta and
# Turing from P4, P100, T4 and V100 as above; Ampere to Blackwell from the largest products of A100,
# L40S, H100, H200 and B200 (AIConfigurator data), which their limits bound; AMD by the trend.
_VECTOR_PICOJOULES = {"Pascal": 28.0, "Volta": 12.5, "Turing": 13.0, "Ampere": 10.0}
# AMD's data-centre boards have matrix units for FP32; their limits are taken to feed them.
_VECTOR_PICOJOULES |= {"CDNA": 6.0, "CDNA2": 6.0, "CDNA3": 3.5, "CDNA4": 3.0}
_TENSOR_PICOJOULES = {"Pascal": 14.2, "Volta": 1.9, "Turing": 1.9, "Ampere": 1.1, "Ada": 0.95}
_TENSOR_PICOJOULES |= {"Hopper": 0.72, "Blackwell": 0.5, "Blackwell Ultra": 0.5}
# Other generations: the trend of the above, per year since 2020.
_VECTOR_2020, _TENSOR_2020, _YEARLY = 10.0, 1.05, 0.17
# Energy of an operation relative to FP16/BF16: narrower multipliers are smaller.
_PRECISION_ENERGY = {"bf16": 1.0, "fp16": 0.9, "tf32": 2.0, "fp8": 0.5, "mxfp8": 0.5, "nvfp4": 0.27}


def _operation_joules(specs: catalog.Specs, precision: str) -> float:
    trend = math.exp(-_YEARLY * (specs.year - 2020))
    if precision == "fp32":
        return 1e-12 * _VECTOR_PICOJOULES.get(specs.architecture, _VECTOR_2020 * trend)
    tensor = _TENSOR_PICOJOULES.get(specs.architecture, _TENSOR_2020 * trend)
    return 1e-12 * tensor * _PRECISION_ENERGY[precision]


def accelerator(name: str | Accelerator) -> Accelerator:
    """An accelerator of the catalog; one that is given already is returned as it is.

    Raises:
        UnknownDeviceError: No such accelerator; the remedy names the nearest.
    """
    if isinstance(name, Accelerator):
        return name
    specs, board = catalog.specs(name), catalog.board(name)
    tensor = specs.tensor_flops or specs.fp32_flops or 0.0
    peaks = {
        "fp32": specs.fp32_flops or tensor,
        "tf32": specs.tf32_flops,
        "bf16": tensor,
        "fp16": tensor,
        "fp8": specs.fp8_flops,
        "mxfp8": specs.fp8_flops,
        "nvfp4": specs.fp4_flops,
    }
    return Accelerator(
        name=specs.name,
        architecture=specs.architecture,
        peaks={key: value for key, value in peaks.items() if value},
        bytes_per_second=specs.memory_bytes_per_second or 0.0,
        memory_bytes=float(specs.memory_bytes or 0),
        l2_bytes=float(specs.l2_bytes or 4e6),
        units=specs.units or 1,
        clock_hertz=specs.boost_clock_hertz,
        limit_watts=specs.default_limit_watts,
        min_limit_watts=board.min_limit_watts,
        min_clock_hertz=board.min_clock_hertz,
        idle_watts=board.idle_watts,
        leakage=_LEAKY.get((specs.architecture, (specs.memory_kind or "")[:4]), 1.0),
        link_bytes_per_second=specs.link_bytes_per_second or _PCIE_BYTES_PER_SECOND,
        link_domain=specs.link_domain or 1,
        operation_joules={name: _operation_joules(specs, name) for name in BYTES},
    )
