"""The continuous frontier: the least cost of every iteration time, if clocks had no steps.

With clocks in between, a duration may lie anywhere on the lower hull of its choices. Then the
least cost is a convex, piecewise linear function of the iteration time, found exactly by the
compiled core (``native/walk.c`` says how), or at sampled times by HiGHS where nothing could be
compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from joulery.pipeline.native.library import UNBOUNDED, Walk, available

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.pipeline.network import Curve, Network

# Resolution of the core's whole numbers. Times of all instructions add up to less than 2**48 units,
# so that a path of a thousand is off by less than 1e-11 of its length. The steepest edges of all
# instructions add up to 2**58 units, safely below a capacity without bound.
_TIME_UNITS = 2.0**48
_POWER_UNITS = 2.0**58


class Relaxation(Protocol):
    """The continuous frontier of a pipeline.

    Attributes:
        seconds: (vertices,), increasing iteration times.
        cost: (vertices,), least joules above waiting; linear in between.
    """

    @property
    def seconds(self) -> NDArray[np.float64]: ...  # noqa: D102 - said above

    @property
    def cost(self) -> NDArray[np.float64]: ...  # noqa: D102 - said above

    def bound(self, seconds: float) -> float:
        """No choice of clocks ends within ``seconds`` for less cost."""
        ...

    def durations(self, seconds: float) -> NDArray[np.float64]:
        """Of every instruction, at least cost, in an iteration of ``seconds``."""
        ...


@dataclass(frozen=True, slots=True)
class ExactRelaxation:
    """Walked by the compiled core: every vertex, and durations anywhere."""

    seconds: NDArray[np.float64]
    cost: NDArray[np.float64]
    unit_seconds: float
    walk: Walk

    def bound(self, seconds: float) -> float:
        """No choice of clocks ends within ``seconds`` for less cost."""
        return float(np.interp(seconds, self.seconds, self.cost))

    def durations(self, seconds: float) -> NDArray[np.float64]:
        """Of every instruction, at least cost, in an iteration of ``seconds``."""
        # Whole units round both ways; within the walked range every time has its durations.
        units = min(max(int(seconds / self.unit_seconds), self._fastest), self._slowest)
        return self.walk.durations(units) * np.float64(self.unit_seconds)

    @property
    def _fastest(self) -> int:
        return int(self.walk.times[-1])

    @property
    def _slowest(self) -> int:
        return int(self.walk.times[0])


def relax(network: Network) -> Relaxation:
    """The continuous frontier, by the compiled core or else by HiGHS."""
    if available():
        return walk(network)
    from joulery.pipeline.highs import sample

    return sample(network)


def walk(network: Network) -> ExactRelaxation:
    """The continuous frontier by the compiled core."""
    slowest = network.extreme(-1)
    lags = network.after.seconds
    unit_seconds = 2.0 ** np.ceil(np.log2((slowest.sum() + lags.sum()) / _TIME_UNITS))
    slopes = [_falls(curve) for curve in network.curves]
    unit_watts = max((float(fall.max()) for fall in slopes if len(fall)), default=1.0)
    unit_watts *= len(network) / _POWER_UNITS
    bundles = [
        _bundle(curve, fall, unit_seconds, unit_watts)
        for curve, fall in zip(network.curves, slopes, strict=True)
    ]
    first = np.cumsum([0, *(len(times) for times, _ in bundles)]).astype(np.int32)
    counts = np.diff(network.after.first)
    found = Walk(
        (
            network.curve_of,
            first,
            np.concatenate([times for times, _ in bundles]),
            np.concatenate([rooms for _, rooms in bundles]),
            np.repeat(np.arange(len(network), dtype=np.int32), counts),
            network.after.node,
            np.rint(lags / unit_seconds).astype(np.int64),
            network.order,
        )
    )
    least = float(np.sum(np.array([curve.cost[-1] for curve in network.curves])[network.curve_of]))
    seconds = found.times * unit_seconds
    rises = found.flows[:-1] * unit_watts * (seconds[:-1] - seconds[1:])
    cost = least + np.concatenate([[0.0], np.cumsum(rises)])
    return ExactRelaxation(seconds[::-1].copy(), cost[::-1].copy(), float(unit_seconds), found)


def _falls(curve: Curve) -> NDArray[np.float64]:
    """Joules saved per second on each edge of the hull, slowest first: rising."""
    seconds, cost = curve.hull()
    falls: NDArray[np.float64] = (-np.diff(cost) / np.diff(seconds))[::-1]
    return falls


def _bundle(
    curve: Curve, falls: NDArray[np.float64], unit_seconds: float, unit_watts: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lengths and capacities of the arcs of one instruction, slowest vertex first."""
    seconds, _ = curve.hull()
    times = np.rint(seconds / unit_seconds).astype(np.int64)[::-1]
    flows = np.maximum.accumulate(np.rint(falls / unit_watts).astype(np.int64))
    rooms = np.append(np.diff(flows, prepend=0), UNBOUNDED)
    # A vertex that vanishes in whole units carries no flow, or has its neighbour's time.
    kept = rooms > 0
    return np.ascontiguousarray(times[kept]), np.ascontiguousarray(rooms[kept])
