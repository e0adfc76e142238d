"""The continuous frontier: the least cost of every iteration time, if clocks had no steps.

With clocks in between, a duration may lie anywhere on the lower hull of its choices. Then the
least cost is a convex, piecewise linear function of the iteration time. The compiled core finds it
exactly (``native/walk.c`` describes how), HiGHS at sampled times where nothing could be compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.pipeline.planning.native.library import UNBOUNDED, Samples, Walk, available

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.pipeline.planning._network import CostCurve, Network

# Resolution of the core's whole numbers. Times of all instructions add up to less than 2**48 units,
# so that a path of a thousand is off by less than 1e-11 of its length. The steepest edges of all
# instructions add up to 2**58 units, safely below a capacity without bound.
_TIME_UNITS = 2.0**48
_POWER_UNITS = 2.0**58
# Up to so many instructions the frontier is walked exactly, in about a second.
_EXACT = 3000
# Steps of slopes in the mean power, times the root of how many different curves there are: errors
# of few curves add up, those of many even out. Then the largest step.
_STEPS = 300.0
_COARSEST = 1.0 / 50.0
# Lines between samples are off by at most this share of the energy.
_OFF = 3e-6


@dataclass(frozen=True, slots=True)
class ExactRelaxation:
    """The continuous frontier with every vertex, walked by the compiled core.

    Attributes:
        seconds: (vertices,), increasing iteration times.
        cost: (vertices,), least joules above waiting; linear in between.
        unit_seconds: Time unit of the core.
        walk: Memory of the core, which recalls durations.
    """

    seconds: NDArray[np.float64]
    cost: NDArray[np.float64]
    unit_seconds: float
    walk: Walk

    def bound(self, seconds: float) -> float:
        """The cost that no clocks go below if they end within ``seconds``."""
        return float(np.interp(seconds, self.seconds, self.cost))

    def durations(self, seconds: float) -> NDArray[np.float64]:
        """The duration of every instruction, at least cost, in an iteration of ``seconds``."""
        # Whole units round both ways; within the walked range every time has its durations.
        slowest, fastest = int(self.walk.times[0]), int(self.walk.times[-1])
        units = min(max(int(seconds / self.unit_seconds), fastest), slowest)
        return self.walk.durations(units) * np.float64(self.unit_seconds)


@dataclass(frozen=True, slots=True)
class SampledRelaxation:
    """The continuous frontier at sampled iteration times, and mixes of neighbours in between.

    Attributes:
        seconds: (samples,), increasing iteration times.
        cost: (samples,), joules above waiting of the durations.
        proven: (samples,), joules above waiting that no durations go below.
        watts: (samples,), joules that a second more would save.
        sampled_durations: (samples, instructions), seconds.
    """

    seconds: NDArray[np.float64]
    cost: NDArray[np.float64]
    proven: NDArray[np.float64]
    watts: NDArray[np.float64]
    sampled_durations: NDArray[np.float32] | NDArray[np.float64]

    def bound(self, seconds: float) -> float:
        """The cost that no clocks go below if they end within ``seconds``, by the tangents."""
        return float(np.max(self.proven - self.watts * (seconds - self.seconds)))

    def durations(self, seconds: float) -> NDArray[np.float64]:
        """The duration of every instruction, near least cost, in an iteration of ``seconds``."""
        right = int(np.searchsorted(self.seconds, seconds, side="right"))
        if right == 0:
            left, right, share = 0, 0, 0.0
        elif right == len(self.seconds):
            left, right, share = -1, -1, 0.0
        else:
            left = right - 1
            span = float(self.seconds[right] - self.seconds[left])
            share = (seconds - float(self.seconds[left])) / span
        mix: NDArray[np.float64] = np.multiply(
            self.sampled_durations[left], 1.0 - share, dtype=np.float64
        )
        mix += np.multiply(self.sampled_durations[right], share, dtype=np.float64)
        return mix


def relax(network: Network) -> ExactRelaxation | SampledRelaxation:
    """The continuous frontier, by the compiled core or else by HiGHS."""
    if not available():
        from joulery.pipeline.planning._highs import sample

        return sample(network)
    return walk(network) if len(network) <= _EXACT else sketch(network)


def walk(network: Network) -> ExactRelaxation:
    """The continuous frontier by the compiled core, every vertex of it."""
    unit_seconds = _unit_seconds(network)
    slopes = [_falls(curve) for curve in network.curves]
    unit_watts = max((float(fall.max()) for fall in slopes if len(fall)), default=1.0)
    unit_watts *= len(network) / _POWER_UNITS
    flows = [np.rint(fall / unit_watts).astype(np.int64) for fall in slopes]
    found = Walk(_arrays(network, flows, unit_seconds))
    seconds = found.times * np.float64(unit_seconds)
    rises = found.flows[:-1] * unit_watts * (seconds[:-1] - seconds[1:])
    cost = _least_cost(network) + np.concatenate([[0.0], np.cumsum(rises)])
    return ExactRelaxation(seconds[::-1].copy(), cost[::-1].copy(), unit_seconds, found)


def sketch(network: Network) -> SampledRelaxation:
    """The continuous frontier of a large pipeline by the compiled core, with fewer slopes.

    Slopes are rounded to steps of about a half per cent of the mean power: then far fewer changes
    of the flow remain to be walked. The durations found are feasible and cost, by the true curves,
    some millionths more than the least. The bound is what the flow proves, by the true curves too,
    some hundred-thousandths below.
    """
    unit_seconds = _unit_seconds(network)
    slopes = [_falls(curve) for curve in network.curves]
    joules = _joules(network)
    watts = joules / float(network.extreme(-1).sum())
    unit_watts = watts * min(_variety(network) ** 0.5 / _STEPS, _COARSEST)
    flows = [np.maximum(np.rint(fall / unit_watts), 1.0).astype(np.int64) for fall in slopes]
    vertices = [curve.hull()[0][::-1] for curve in network.curves]
    first = np.cumsum([0, *(len(seconds) for seconds in vertices)]).astype(np.int32)
    edges = np.concatenate([np.append(fall, np.inf) for fall in slopes])
    found = Samples(
        _arrays(network, flows, unit_seconds),
        (first, np.concatenate(vertices), edges),
        (unit_seconds, unit_watts, _OFF * joules),
    )
    seconds, saves, cost, proven = found.table[::-1].T
    least = _least_cost(network)
    return SampledRelaxation(
        seconds=seconds.copy(),
        cost=least + cost,
        proven=least + proven,
        watts=saves.copy(),
        sampled_durations=found.durations[::-1],
    )


def _unit_seconds(network: Network) -> float:
    longest = network.extreme(-1).sum() + network.after.seconds.sum()
    return float(2.0 ** np.ceil(np.log2(longest / _TIME_UNITS)))


def _least_cost(network: Network) -> float:
    return float(np.sum(np.array([curve.cost[-1] for curve in network.curves])[network.curve_of]))


def _joules(network: Network) -> float:
    """About the energy of an iteration."""
    return _least_cost(network) + network.blocking_watts * network.end_seconds(network.extreme(0))


def _variety(network: Network) -> float:
    """The number of different curves, each counted by the instructions it has."""
    counts: dict[bytes, int] = {}
    for curve, count in zip(network.curves, np.bincount(network.curve_of).tolist(), strict=True):
        key = curve.seconds.tobytes() + curve.cost.tobytes()
        counts[key] = counts.get(key, 0) + count
    shares = np.array(list(counts.values())) / len(network)
    return float(1.0 / np.sum(shares**2))


def _arrays(
    network: Network, flows: Sequence[NDArray[np.int64]], unit_seconds: float
) -> tuple[NDArray[Any], ...]:
    """The graph in the layout of the core."""
    bundles = [
        _bundle(curve, flow, unit_seconds)
        for curve, flow in zip(network.curves, flows, strict=True)
    ]
    first = np.cumsum([0, *(len(times) for times, _ in bundles)]).astype(np.int32)
    counts = np.diff(network.after.first)
    return (
        network.curve_of,
        first,
        np.concatenate([times for times, _ in bundles]),
        np.concatenate([rooms for _, rooms in bundles]),
        np.repeat(np.arange(len(network), dtype=np.int32), counts),
        network.after.node,
        np.rint(network.after.seconds / unit_seconds).astype(np.int64),
        network.order,
    )


def _falls(curve: CostCurve) -> NDArray[np.float64]:
    """Joules saved per second on each edge of the hull, slowest first: rising."""
    seconds, cost = curve.hull()
    falls: NDArray[np.float64] = (-np.diff(cost) / np.diff(seconds))[::-1]
    return falls


def _bundle(
    curve: CostCurve, flows: NDArray[np.int64], unit_seconds: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lengths and capacities of the arcs of one instruction, slowest vertex first."""
    seconds, _ = curve.hull()
    times = np.rint(seconds / unit_seconds).astype(np.int64)[::-1]
    rooms = np.append(np.diff(np.maximum.accumulate(flows), prepend=0), UNBOUNDED)
    # A vertex that vanishes in whole units carries no flow, or has its neighbour's time.
    kept = rooms > 0
    return np.ascontiguousarray(times[kept]), np.ascontiguousarray(rooms[kept])
