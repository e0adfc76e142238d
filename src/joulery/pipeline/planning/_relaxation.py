"""The continuous frontier: the least cost of every iteration time, if clocks had no steps.

With clocks in between, a duration may lie anywhere on the lower hull of its choices. Then the
least cost is a convex, piecewise linear function of the iteration time. The compiled core walks it
(``native/walk.c`` describes how) and writes down its vertices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.pipeline.planning.native.library import UNBOUNDED, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.pipeline.planning._network import CostCurve, Network

# Resolution of the core's whole numbers. Times of all instructions add up to less than 2**52 units:
# a float holds them and their sums exactly. Flows stay safely below a capacity without bound.
_TIME_UNITS = 2.0**52
_POWER_UNITS = 2.0**58
# Steps of slopes in the mean power, times the root of how many different curves there are: errors
# of few curves add up, those of many even out. Then the largest step.
_STEPS = 600.0
_COARSEST = 1.0 / 80.0
# Lines between samples are off by at most this share of the energy.
_OFF = 3e-6
# From so many instructions on both are as coarse as that; below they shrink quickly, until every
# vertex of a small pipeline is exact.
_LARGE, _SHRINK = 2000.0, 4


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The continuous frontier at sampled iteration times, and mixes of neighbours in between.

    Attributes:
        seconds: (samples,), increasing iteration times.
        cost: (samples,), joules above waiting of the durations.
        proven: (samples,), joules above waiting that no durations go below.
        watts: (samples,), joules that a second more would save.
        durations: (samples, instructions), seconds.
    """

    seconds: NDArray[np.float64]
    cost: NDArray[np.float64]
    proven: NDArray[np.float64]
    watts: NDArray[np.float64]
    durations: NDArray[np.float64]

    def bound(self, seconds: float) -> float:
        """The cost that no clocks go below if they end within ``seconds``, by the tangents."""
        within = min(seconds, float(self.seconds[-1]))  # beyond, nothing more is saved
        return float(np.max(self.proven - self.watts * (within - self.seconds)))


def relax(network: Network) -> Relaxation:
    """The continuous frontier.

    Slopes are rounded, in large pipelines to about a half per cent of the mean power: then far
    fewer changes of the flow remain to be walked. The durations found are feasible and cost, by
    the true curves, some millionths more than the least. The bound is what the flow proves, by the
    true curves too, some hundred-thousandths below.
    """
    fine = min(1.0, len(network) / _LARGE) ** _SHRINK
    longest = network.extreme(-1).sum() + network.after.seconds.sum()
    unit_seconds = float(2.0 ** np.ceil(np.log2(longest / _TIME_UNITS)))
    slopes = [_falls(curve) for curve in network.curves]
    steepest = max((float(fall.max()) for fall in slopes if len(fall)), default=1.0)
    joules = _joules(network)
    step = joules / network.extreme(-1).sum() * min(_variety(network) ** 0.5 / _STEPS, _COARSEST)
    unit_watts = max(step * fine, steepest * len(network) / _POWER_UNITS)
    hulls = [curve.hull() for curve in network.curves]
    bundles = [
        _bundle(seconds, fall / unit_watts, unit_seconds)
        for (seconds, _), fall in zip(hulls, slopes, strict=True)
    ]
    arrays: tuple[NDArray[Any], ...] = (
        network.curve_of,
        _firsts([times for times, _ in bundles]),
        np.concatenate([times for times, _ in bundles]),
        np.concatenate([rooms for _, rooms in bundles]),
        np.repeat(np.arange(len(network), dtype=np.int32), np.diff(network.after.first)),
        network.after.node,
        np.rint(network.after.seconds / unit_seconds).astype(np.int64),
        network.order,
        _firsts([seconds for seconds, _ in hulls]),
        np.concatenate([seconds[::-1] for seconds, _ in hulls]),
        np.concatenate([cost[::-1] for _, cost in hulls]),
    )
    table, durations = walk(arrays, (unit_seconds, unit_watts, _OFF * fine * joules))
    seconds, watts, cost, proven = table.T.copy()
    # Whole units may have made a path shorter than it is, by half a unit for each instruction.
    proven -= watts * len(network) * unit_seconds
    return Relaxation(seconds, cost, proven, watts, durations)


def _joules(network: Network) -> float:
    """About the energy that the work of an iteration needs at its slowest."""
    slowest = network.first_point[1:] - 1
    return float(network.points.joules[slowest][network.curve_of].sum())


def _variety(network: Network) -> float:
    """The number of different curves, each counted by the instructions it has."""
    counts: dict[bytes, int] = {}
    for curve, count in zip(network.curves, np.bincount(network.curve_of).tolist(), strict=True):
        key = curve.seconds.tobytes() + curve.cost.tobytes()
        counts[key] = counts.get(key, 0) + count
    shares = np.array(list(counts.values())) / len(network)
    return float(1.0 / np.sum(shares**2))


def _firsts(pieces: Sequence[NDArray[Any]]) -> NDArray[np.int32]:
    return np.cumsum([0, *map(len, pieces)]).astype(np.int32)


def _falls(curve: CostCurve) -> NDArray[np.float64]:
    """Joules saved per second on each edge of the hull, slowest first: rising."""
    seconds, cost = curve.hull()
    falls: NDArray[np.float64] = (-np.diff(cost) / np.diff(seconds))[::-1]
    return falls


def _bundle(
    seconds: NDArray[np.float64], slopes: NDArray[np.float64], unit_seconds: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lengths and capacities of the arcs of one instruction, slowest vertex first."""
    times = np.rint(seconds / unit_seconds).astype(np.int64)[::-1]
    flows = np.maximum.accumulate(np.maximum(np.rint(slopes), 1.0)).astype(np.int64)
    rooms = np.append(np.diff(flows, prepend=0), UNBOUNDED)
    # A vertex whose slopes are equal in whole units carries no flow.
    kept = rooms > 0
    return np.ascontiguousarray(times[kept]), np.ascontiguousarray(rooms[kept])
