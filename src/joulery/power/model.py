"""Step time and power as functions of a knob, with uncertainty, from a few noisy probes.

The belief is a crowd of imagined jobs (:mod:`joulery.power.prior`), each weighed by how well it
explains the probes, plus a smooth and a rough deviation from it (a Gaussian process whose size is
weighed along), because no formula knows every board. Samples from that belief answer every
question: what a limit would cost, how sure that is, and what another probe would tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.power.products import product
from joulery.power.slices import OUTLIER_LEAST

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from joulery.power.prior import Curves
    from joulery.power.slices import Estimate

    Array = NDArray[np.float64]
    Indices = NDArray[np.intp]

SAMPLES = 160
_NODES = 60
_SEED = 11
_MOST_PROBES = 128
# Sizes of the deviation from the best imagined job, relative: (smooth, rough), and how likely.
_DEVIATIONS = ((0.006, 0.004, 0.3), (0.02, 0.012, 0.4), (0.06, 0.05, 0.3))
# How far the deviations reach, as a fraction of the knob's value at the reference.
_SMOOTH_REACH, _ROUGH_REACH = 0.3, 0.06
# What the reference is known to before it is measured again, relative.
_OFFSET = 0.1


@dataclass(frozen=True, slots=True)
class Belief:
    """Samples of what is true: logarithms of seconds per step and watts, one row per sample."""

    log_seconds: Array
    log_watts: Array


class CurveModel:
    """What is known about the curves; cheap to ask again after each probe.

    Args:
        knob: Values of the knob, ascending; the last one is the reference.
        curves: What to expect, over these values.
        seconds: Rough step time at the reference.
        watts: Rough power at the reference.
    """

    def __init__(self, knob: Array, curves: Curves, seconds: float, watts: float) -> None:
        import numpy as np

        self._np = np
        self._curves = (curves.log_seconds, curves.log_watts)
        self._origins = (float(np.log(seconds)), float(np.log(watts)))
        chance = np.random.default_rng(_SEED)
        distance = np.abs(knob[:, None] - knob[None, :]) / knob[-1]
        smooth = np.exp(-0.5 * (distance / _SMOOTH_REACH) ** 2)
        # Kinks are seldom, so neighbours tell much about each other: rough in curvature only.
        scaled = np.sqrt(3.0) * distance / _ROUGH_REACH
        rough = (1.0 + scaled) * np.exp(-scaled)
        offset = _OFFSET**2
        self._kernels = [s**2 * smooth + r**2 * rough + offset for s, r, _ in _DEVIATIONS]
        self._log_odds = np.log([odds for _, _, odds in _DEVIATIONS])
        # Draws from each deviation, made once and bent to the probes each time. They are made at
        # some of the values and linear between: a root of the whole kernel takes far longer.
        nodes = np.unique(np.linspace(0, len(knob) - 1, _NODES).round().astype(np.intp))
        between = np.stack([np.interp(knob, knob[nodes], row) for row in np.eye(len(nodes))])
        normal = chance.standard_normal
        self._draws: list[list[Array]] = []
        for _ in self._curves:
            draws = []
            for kernel in self._kernels:
                root = np.linalg.cholesky(kernel[np.ix_(nodes, nodes)] + 1e-9 * np.eye(len(nodes)))
                rough_draws = product(normal((SAMPLES, len(nodes))), root.T)
                draws.append(product(rough_draws, between))
            self._draws.append(draws)
        self._noise = normal((2, SAMPLES, _MOST_PROBES))
        self._start = float(chance.uniform())

    def believe(self, measured: Mapping[int, Estimate]) -> Belief:
        """Samples of the curves given everything measured so far, by position."""
        np = self._np
        at, found, errors = self._told(measured)
        chosen, sizes = self._chosen(at, found, errors)
        parts = []
        for which, curves in enumerate(self._curves):
            rows = curves[chosen].copy()
            for size, kernel in enumerate(self._kernels):
                mine = np.flatnonzero(sizes == size)
                if len(mine) == 0:
                    continue
                draws = self._draws[which][size][mine]
                noise = errors[which] * self._noise[which][mine][:, : len(at)]
                inner = kernel[np.ix_(at, at)] + np.diag(errors[which] ** 2)
                missing = found[which] - rows[np.ix_(mine, at)] - draws[:, at] - noise
                pull = product(missing, np.linalg.inv(inner))
                rows[mine] += draws + product(pull, kernel[at])
            parts.append(rows + self._origins[which])
        return Belief(parts[0], parts[1])

    def slower_than_foretold(self, measured: Mapping[int, Estimate]) -> dict[int, float]:
        """By how many sigmas each probe is slower than the others foretell.

        Only what is off by as much as a disturbance would be is listed.
        """
        np = self._np
        at, found, errors = self._told(measured)
        chosen, sizes = self._chosen(at, found, errors)
        off, sigma = np.empty((2, SAMPLES, len(at)))
        for size, kernel in enumerate(self._kernels):
            mine = np.flatnonzero(sizes == size)
            inverse = np.linalg.inv(kernel[np.ix_(at, at)] + np.diag(errors[0] ** 2))
            missing = found[0] - self._curves[0][np.ix_(chosen[mine], at)]
            off[mine] = product(missing, inverse) / np.diag(inverse)
            sigma[mine] = 1 / np.sqrt(np.diag(inverse))
        middle = np.median(off, axis=0)
        sigmas = middle / np.median(sigma, axis=0)
        return {
            int(position): float(how)
            for position, how, by in zip(at, sigmas, middle, strict=True)
            if how > 0 and by > OUTLIER_LEAST
        }

    def _told(
        self, measured: Mapping[int, Estimate]
    ) -> tuple[Indices, tuple[Array, Array], tuple[Array, Array]]:
        """Positions, logarithms of seconds and watts from the origins, and their errors."""
        np = self._np
        at = np.array(list(measured), dtype=np.intp)
        seen = measured.values()
        found = (
            np.log([estimate.seconds for estimate in seen]) - self._origins[0],
            np.log([estimate.watts for estimate in seen]) - self._origins[1],
        )
        errors = (
            np.array([estimate.seconds_error for estimate in seen]),
            np.array([estimate.watts_error for estimate in seen]),
        )
        return at, found, errors

    def _chosen(
        self, at: Indices, found: tuple[Array, Array], errors: tuple[Array, Array]
    ) -> tuple[Indices, Indices]:
        """For each sample an imagined job and a size of deviation, by how well they explain."""
        np = self._np
        likely = []
        for size, kernel in enumerate(self._kernels):
            total = self._log_odds[size]
            for which, curves in enumerate(self._curves):
                inner = kernel[np.ix_(at, at)] + np.diag(errors[which] ** 2)
                missing = found[which] - curves[:, at]
                pulled = product(missing, np.linalg.inv(inner))
                explained = np.einsum("ij,ij->i", missing, pulled)
                total = total - 0.5 * (explained + np.linalg.slogdet(inner)[1])
            likely.append(total)
        joint = np.concatenate(likely)
        weights = np.exp(joint - joint.max())
        steps = (np.arange(SAMPLES) + self._start) / SAMPLES
        drawn = np.searchsorted(np.cumsum(weights) / weights.sum(), steps)
        drawn = np.minimum(drawn, len(joint) - 1)
        count = len(self._curves[0])
        return drawn % count, drawn // count
