"""What simpler methods reach on the same task: matrix products on a device that was left out.

Peak ratio, roofline, calibrated roofline, ratio of rooflines and wave scaling scale measurements
of others; trees and a multi-layer perceptron learn from shapes and specifications (they need
scikit-learn and are left out without it).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from predict_scores import Score, scored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from predict_kernels import Table

    Array = NDArray[np.float64]

LEARNED_ROWS = 800


def gemm_ablations(
    task: str, name: str, tables: dict[str, Table], *, learners: bool
) -> Iterator[Score]:
    """Every simpler method on one left-out device, learners only where wanted."""
    others = {key: one for key, one in tables.items() if key != name}
    yield from _rooflines(task, name, tables[name], others)
    yield from _scaled(task, name, tables[name], others)
    if learners and find_spec("sklearn") is not None:
        yield from _learned(task, name, tables[name], others)


def roofline(table: Table) -> tuple[Array, Array]:
    """Seconds of arithmetic and of traffic at nominal rates."""
    kernels = table.kernels
    traffic = kernels.weight_bytes + kernels.activation_bytes
    compute = kernels.operations / np.minimum(kernels.peak, kernels.fed)
    return compute, traffic / table.device.bytes_per_second


def _rooflines(task: str, name: str, target: Table, others: dict[str, Table]) -> Iterator[Score]:
    """The roofline as it is, and with the others' efficiencies."""
    efficiency = []
    for table in others.values():
        compute, traffic = roofline(table)
        bound = compute > traffic
        efficiency.append(
            [
                np.median((compute / table.seconds)[bound]),
                np.median((traffic / table.seconds)[~bound]),
            ]
        )
    on_compute, on_traffic = np.mean(efficiency, axis=0)
    compute, traffic = roofline(target)
    measured = np.log(target.seconds)
    plain = np.log(np.maximum(compute, traffic))
    yield scored((task, "specs", name, "roofline"), plain, measured)
    calibrated = np.log(np.maximum(compute / on_compute, traffic / on_traffic) + 2e-6)
    yield scored((task, "specs", name, "calibrated roofline"), calibrated, measured)


def _scaled(task: str, name: str, target: Table, others: dict[str, Table]) -> Iterator[Score]:
    """Measured times of the nearest device, scaled by some ratio."""

    def distance(other: Table) -> float:
        peaks = np.log(other.kernels.peak[0] / target.kernels.peak[0])
        rates = np.log(other.device.bytes_per_second / target.device.bytes_per_second)
        return float(np.hypot(peaks, rates))

    nearest = min(others.values(), key=distance)
    known = dict(zip(_shapes(nearest), nearest.seconds, strict=True))
    pairs = [(row, known[key]) for row, key in enumerate(_shapes(target)) if key in known]
    if len(pairs) < 10:
        return
    some = target.take(np.array([row for row, _ in pairs]))
    there = np.log([seconds for _, seconds in pairs])
    same = some._replace(device=nearest.device, kernels=_on(some, nearest))
    ratios = {
        "peak ratio": np.log(same.kernels.peak / some.kernels.peak),
        "nearest ratio": np.log(np.maximum(*roofline(some)) / np.maximum(*roofline(same))),
        "wave scaling": _wave_ratio(same, some),
    }
    for method, ratio in ratios.items():
        yield scored((task, "specs", name, method), there + ratio, np.log(some.seconds))


def _on(table: Table, other: Table) -> Any:
    kernels = table.kernels.take(np.arange(len(table.seconds)))
    kernels.peak[:], kernels.fed[:] = other.kernels.peak[0], other.kernels.fed[0]
    return kernels


def _wave_ratio(origin: Table, target: Table) -> Array:
    """Wave scaling as Habitat does it: bandwidth where traffic binds, waves and clock elsewhere."""
    compute, traffic = roofline(origin)
    intensity = compute / traffic
    bound = np.where(intensity < 1, 1 - 0.5 * intensity, 0.5 / np.maximum(intensity, 1e-9))
    rate = np.log(origin.device.bytes_per_second / target.device.bytes_per_second)
    waves = np.log(origin.device.units / target.device.units)
    clock = np.log(origin.device.clock_hertz / target.device.clock_hertz)
    return np.asarray(bound * rate + (1 - bound) * (waves + clock))


def _shapes(table: Table) -> list[tuple[float, float, float]]:
    kernels = table.kernels
    return list(zip(kernels.rows, kernels.columns, kernels.inner, strict=True))


def _learned(task: str, name: str, target: Table, others: dict[str, Table]) -> Iterator[Score]:
    """Learners of the logarithm of time over roofline."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    known = [one.take(np.arange(min(LEARNED_ROWS, len(one.seconds)))) for one in others.values()]
    features = np.concatenate([_features(one) for one in known])
    wanted = np.concatenate([np.log(one.seconds / np.maximum(*roofline(one))) for one in known])
    learners = {
        "trees": HistGradientBoostingRegressor(random_state=0),
        "MLP": make_pipeline(
            StandardScaler(),
            MLPRegressor(
                hidden_layer_sizes=(64, 64), early_stopping=True, max_iter=300, random_state=0
            ),
        ),
    }
    base = np.log(np.maximum(*roofline(target)))
    for method, learner in learners.items():
        learner.fit(features, wanted)
        guess = base + learner.predict(_features(target))
        yield scored((task, "specs", name, method), guess, np.log(target.seconds))


def _features(table: Table) -> Array:
    """Logarithms of shape, roofline and specifications."""
    kernels, device = table.kernels, table.device
    compute, traffic = roofline(table)
    tiles = np.ceil(kernels.rows / 128) * np.ceil(kernels.columns / 128) / device.units
    ones = np.ones_like(compute)
    fixed = (device.units, device.l2_bytes, device.bytes_per_second, device.clock_hertz)
    shape = (kernels.rows, kernels.columns, kernels.inner)
    columns = (*shape, compute, traffic, tiles, kernels.peak, *(one * ones for one in fixed))
    return np.log(np.stack(columns, axis=1))
