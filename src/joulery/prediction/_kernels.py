"""Time of a kernel on a device: tiles in waves, bytes that stay in the cache, launches.

One model for every kind of operator, vectorised over operators. A matrix product is cut into
tiles; tiles run in waves over the units of the device; a tile is bound by the arithmetic or by
what one unit can load; the library takes the best of a few tile shapes and splits of the inner
dimension. Traffic to memory overlaps with that in a smooth maximum. An operator without a matrix
product is traffic alone. Every kernel pays a launch.

The constants are log-values in the order of ``CONSTANTS``; beliefs in them come from
``fitted.json`` (see ``scripts/fit_predict.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.prediction._bayes import fitted_constants

if TYPE_CHECKING:
    from joulery.prediction._bayes import Array
    from joulery.prediction._devices import Accelerator

CONSTANTS = (
    "compute",  # share of the peak that a full wave of large tiles reaches
    "bandwidth",  # share of the memory's bandwidth that large copies reach
    "launch",  # microseconds from one kernel to the next on the device
    "cache_rate",  # bandwidth of the cache as a share of 64 bytes per unit and clock
    "prologue",  # inner dimension that filling and draining a tile's pipeline costs
    "cache_share",  # share of the cache that holds data between kernels
    "overlap",  # exponent of the smooth maximum of compute and traffic
    "reduction",  # microseconds that a split of the inner dimension adds
    "tile_rate",  # 16-bit elements per operation that one unit can load, in bytes, times 64
    "attention",  # share of the peak that the products of fused attention reach
)
MATMUL, ATTENTION, STREAM = 0, 1, 2

# Tiles of cuBLAS's and CUTLASS's products, and splits of the inner dimension.
_TILE_ROWS = np.array([256, 256, 128, 128, 64, 64, 128, 64, 32, 16], float)
_TILE_COLUMNS = np.array([256, 128, 256, 128, 128, 256, 64, 64, 64, 64], float)
_SPLITS = np.array([1, 2, 4, 8, 16], float)
# A tensor either stays in the cache or does not; the edge is this sharp, as
# is that between power that is asked for and the limit; by hand.
_CACHE_EDGE, _POWER_EDGE = 12, 6
# Exponentials per unit and clock, as NVIDIA states them from Volta to Blackwell, and the share of
# them that fused attention reaches; keys that filling and draining a block's pipeline costs, and
# seconds of the smallest call: prefill attention of AIConfigurator on five boards, leaving each
# out in turn (22 to 57 % off, 40 to 52 % without). Queries of a block as FlashAttention has them.
_EXPONENTIALS, _EXPONENTIAL_SHARE = 16, 0.9
_ATTENTION_PROLOGUE, _ATTENTION_SECONDS = 98.0, 6e-6
_BLOCK_QUERIES, _FEW_QUERIES = 128, 16


@dataclass(frozen=True, slots=True)
class Kernels:
    """Operators as columns.

    Attributes:
        kind: ``MATMUL``, ``ATTENTION`` or ``STREAM``.
        batch: Number of independent products.
        rows: Rows of the output (of one head, for attention).
        columns: Columns of the output (head dimension, for attention).
        inner: Inner dimension (keys per query, for attention).
        operations: Multiplications and additions.
        weight_bytes: Traffic of tensors that the cache has lost, such as weights.
        activation_bytes: Traffic of tensors that the last kernels wrote or read.
        weight_footprint: Bytes between two uses of a weight; infinite in training.
        peak: Dense peak of the device in the operator's precision.
        fed: Peak of long dense work, which the power limit bounds.
        count: Number of times that the kernel runs.
    """

    kind: Array
    batch: Array
    rows: Array
    columns: Array
    inner: Array
    operations: Array
    weight_bytes: Array
    activation_bytes: Array
    weight_footprint: Array
    peak: Array
    fed: Array
    count: Array

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: Array) -> Kernels:
        """Some of the operators."""
        return Kernels(*(getattr(self, name)[rows] for name in self.__slots__))


def kernel_times(
    constants: Array, device: Accelerator, kernels: Kernels
) -> tuple[Array, Array, Array]:
    """Seconds of each kernel: whole, of its arithmetic alone, of its traffic alone."""
    value = dict(zip(CONSTANTS, np.exp(constants), strict=True))
    traffic = _traffic_seconds(value, device, kernels)
    compute = _compute_seconds(value, device, kernels)
    overlap = value["overlap"]
    larger = np.maximum(np.maximum(compute, traffic), 1e-12)
    combined = larger * ((compute / larger) ** overlap + (traffic / larger) ** overlap) ** (
        1 / overlap
    )
    # Long dense work is bound by the power limit; kernels that leave units idle are not.
    powered = kernels.operations / (kernels.fed * value["compute"])
    busy = (combined**_POWER_EDGE + powered**_POWER_EDGE) ** (1 / _POWER_EDGE)
    return value["launch"] * 1e-6 + busy, np.maximum(compute, powered), traffic


def _cache_bytes_per_second(value: dict[str, float], device: Accelerator) -> float:
    cache = value["cache_rate"] * device.units * 64 * device.clock_hertz
    return max(cache, value["bandwidth"] * device.bytes_per_second)


def _traffic_seconds(value: dict[str, float], device: Accelerator, kernels: Kernels) -> Array:
    room = value["cache_share"] * device.l2_bytes
    weights_miss = _miss(kernels.weight_footprint / room)
    activations_miss = _miss(kernels.activation_bytes / room)
    cold = kernels.weight_bytes * weights_miss + kernels.activation_bytes * activations_miss
    warm = kernels.weight_bytes + kernels.activation_bytes - cold
    slow = value["bandwidth"] * device.bytes_per_second
    return cold / slow + warm / _cache_bytes_per_second(value, device)


def _miss(fill: Array) -> Array:
    return 1.0 - 1.0 / (1.0 + np.minimum(fill, 1e3) ** _CACHE_EDGE)


def _compute_seconds(value: dict[str, float], device: Accelerator, kernels: Kernels) -> Array:
    seconds = np.zeros(len(kernels))
    products = kernels.kind == MATMUL
    if products.any():
        seconds[products] = _tiled_seconds(value, device, kernels.take(products))
    fused = kernels.kind == ATTENTION
    if fused.any():
        seconds[fused] = _attention_seconds(value, device, kernels.take(fused))
    return seconds


def _attention_seconds(value: dict[str, float], device: Accelerator, kernels: Kernels) -> Array:
    """Blocks of queries in waves; products and exponentials over the keys that a block sees."""
    # Few queries are split over the keys instead, and bound by traffic.
    decode = kernels.rows < _FEW_QUERIES
    blocks = kernels.batch * np.ceil(kernels.rows / _BLOCK_QUERIES)
    waves = np.where(decode, 0.0, np.ceil(blocks / device.units))
    seen = kernels.operations / (4 * kernels.batch * kernels.rows * kernels.columns)
    depth = _BLOCK_QUERIES * (seen + _ATTENTION_PROLOGUE)
    products = 4 * depth * kernels.columns * device.units / (kernels.peak * value["attention"])
    # Matrix units grow faster from one generation to the next than those for exponentials.
    special = depth / (_EXPONENTIAL_SHARE * _EXPONENTIALS * device.clock_hertz)
    return np.asarray(waves * (products + special) + _ATTENTION_SECONDS)


def _tiled_seconds(value: dict[str, float], device: Accelerator, kernels: Kernels) -> Array:
    rows, columns = _TILE_ROWS[:, None, None], _TILE_COLUMNS[:, None, None]
    splits = _SPLITS[None, :, None]
    tiles = kernels.batch * np.ceil(kernels.rows / rows) * np.ceil(kernels.columns / columns)
    waves = np.ceil(tiles * splits / device.units)
    depth = kernels.inner / splits + value["prologue"]
    unit_peak = kernels.peak / device.units
    arithmetic = 2 * rows * columns * depth / (unit_peak * value["compute"])
    # Peaks double where elements halve: a unit loads as many elements per operation in all formats.
    loads = (rows + columns) * 2 * depth / (value["tile_rate"] * unit_peak / 64)
    partial_bytes = kernels.batch * kernels.rows * kernels.columns * 4 * splits
    reduction = partial_bytes / _cache_bytes_per_second(value, device) + value["reduction"] * 1e-6
    total = waves * np.maximum(arithmetic, loads) + np.where(splits > 1, reduction, 0.0)
    return np.asarray(total.reshape(-1, len(kernels)).min(axis=0))


# The first operations cost most: exponent of the units' use; GEMM power of H200 and B200.
_USE_CURVE = 0.7


def kernel_use(device: Accelerator, kernels: Kernels, seconds: Array) -> tuple[Array, Array]:
    """Use of arithmetic units and of the memory's bandwidth by kernels that take ``seconds``."""
    operations = np.minimum(kernels.operations / seconds / np.maximum(kernels.peak, 1.0), 1.0)
    traffic = (kernels.weight_bytes + kernels.activation_bytes) / seconds / device.bytes_per_second
    return np.asarray(operations**_USE_CURVE), np.asarray(np.minimum(traffic, 1.0))


# Operator times in FP32 were taken one by one and carry the host's launch. In a step launches run
# ahead of the device, at this many microseconds from one kernel to the next, and kernels overlap
# with their neighbours; chosen on NeuSight's steps, leaving each device out in turn.
_LAUNCH_IN_STEP, _OVERLAP_IN_STEP = 1.0, 6.0


def kernel_constants(device: Accelerator, precision: str) -> Array:
    """Constants of kernels within a step: those of the generation where some were measured."""
    if precision != "fp32":
        return fitted_constants("kernels", device.architecture)
    constants = fitted_constants("fp32 kernels", device.architecture).copy()
    constants[CONSTANTS.index("launch")] = np.log(_LAUNCH_IN_STEP)
    constants[CONSTANTS.index("overlap")] = np.log(_OVERLAP_IN_STEP)
    return constants
