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
    "tile_rate",  # bytes per operation that one unit can load, times 64
    "attention",  # share of `compute` that fused attention reaches
)
MATMUL, ATTENTION, STREAM = 0, 1, 2

# Tiles of cuBLAS's and CUTLASS's products, and splits of the inner dimension.
_TILE_ROWS = np.array([256, 256, 128, 128, 64, 64, 128, 64, 32, 16], float)
_TILE_COLUMNS = np.array([256, 128, 256, 128, 128, 256, 64, 64, 64, 64], float)
_SPLITS = np.array([1, 2, 4, 8, 16], float)
# A tensor either stays in the cache or does not; the edge is this sharp, as
# is that between power that is asked for and the limit; by hand.
_CACHE_EDGE, _POWER_EDGE = 12, 6
# Exponentials per unit and clock, as NVIDIA states them from Volta to Blackwell.
_EXPONENTIALS = 16


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
        element_bytes: Bytes of an element.
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
    element_bytes: Array
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
        few = kernels.take(fused)
        blocks = few.batch * np.ceil(few.rows / 128)
        quantised = np.ceil(blocks / device.units) * device.units / blocks
        rate = few.peak * value["compute"]
        # Matrix units grow faster from one generation to the next than those for exponentials.
        exponentials = few.operations / (4 * few.columns)
        special = exponentials / (device.units * _EXPONENTIALS * device.clock_hertz)
        seconds[fused] = quantised * (few.operations / rate + special) / value["attention"]
    return seconds


def _tiled_seconds(value: dict[str, float], device: Accelerator, kernels: Kernels) -> Array:
    rows, columns = _TILE_ROWS[:, None, None], _TILE_COLUMNS[:, None, None]
    splits = _SPLITS[None, :, None]
    tiles = kernels.batch * np.ceil(kernels.rows / rows) * np.ceil(kernels.columns / columns)
    waves = np.ceil(tiles * splits / device.units)
    depth = kernels.inner / splits + value["prologue"]
    unit_peak = kernels.peak / device.units
    arithmetic = 2 * rows * columns * depth / (unit_peak * value["compute"])
    loads = (rows + columns) * kernels.element_bytes * depth / (value["tile_rate"] * unit_peak / 64)
    partial_bytes = kernels.batch * kernels.rows * kernels.columns * 4 * splits
    reduction = partial_bytes / _cache_bytes_per_second(value, device) + value["reduction"] * 1e-6
    total = waves * np.maximum(arithmetic, loads) + np.where(splits > 1, reduction, 0.0)
    return np.asarray(total.reshape(-1, len(kernels)).min(axis=0))


POWER_CONSTANTS = (
    "static",  # share of the limit that a busy device draws whatever it does
    "arithmetic",  # share of the limit that the nominal peak of operations would add
    "memory",  # share of the limit that the nominal bandwidth would add
    "curve",  # exponent of the operations' share: the first ones cost most
)


def wanted_power(constants: Array, device: Accelerator, kernels: Kernels, seconds: Array) -> Array:
    """Power that kernels would draw if no limit cut it, as a share of the default limit."""
    static, arithmetic, memory, curve = np.exp(constants)
    operations = np.minimum(kernels.operations / seconds / np.maximum(kernels.peak, 1.0), 1.0)
    traffic = (kernels.weight_bytes + kernels.activation_bytes) / seconds / device.bytes_per_second
    return np.asarray(static + arithmetic * operations**curve + memory * np.minimum(traffic, 1.0))
