"""What curves of step time and power over a knob are to be expected before anything is measured.

A few thousand random boards and jobs: any mix of compute, memory and waiting for the host, any
static share of power, any voltage curve, any regulation of the limit. None of them is a board of
the catalog; measurements decide which of them count.

Everything is relative to the reference: the knob as it was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_CURVES = 2500
_NODES = 48
_SEED = 7


@dataclass(frozen=True, slots=True)
class Curves:
    """Logarithms of step time and power over the knob, one row for each imagined job.

    Both are 0 at the reference, which is the last column.
    """

    log_seconds: Array
    log_watts: Array


def limit_curves(limits_watts: Array, reference_watts: float) -> Curves:
    """Curves over power limits.

    Args:
        limits_watts: Ascending; the last one is the limit found.
        reference_watts: Mean power that was measured under it.
    """
    jobs = _Jobs.drawn(lowest_speed=0.05)
    found = float(limits_watts[-1])
    # A board can be limited by what it draws while it works, not by the mean with its pauses.
    regulated = reference_watts * jobs.regulated / jobs.watts[:, -1:]
    regulated *= (found / regulated[:, -1:]).clip(max=1.0)
    return jobs.over(regulated, limits_watts)


def clock_curves(clocks_hertz: Array) -> Curves:
    """Curves over locked clocks, ascending; the last one is the clock found."""
    jobs = _Jobs.drawn(lowest_speed=min(0.9, float(clocks_hertz[0] / clocks_hertz[-1])))
    speeds = jobs.speeds * float(clocks_hertz[-1])
    return jobs.over(speeds, clocks_hertz)


@dataclass(frozen=True, slots=True)
class _Jobs:
    """Imagined jobs at ``_NODES`` speeds of their boards, ascending; 1 is the reference's."""

    speeds: Array
    seconds: Array
    watts: Array
    regulated: Array

    @classmethod
    def drawn(cls, lowest_speed: float) -> _Jobs:
        import numpy as np

        chance = np.random.default_rng(_SEED)

        def uniform(low: float, high: float) -> Array:
            return chance.uniform(low, high, (_CURVES, 1))

        slowest = np.maximum(lowest_speed, uniform(0.0, 0.45) ** 1.5)
        speeds = slowest + (1 - slowest) * np.linspace(0.0, 1.0, _NODES)
        # Time: compute stretches with the clock, memory traffic does not, the host does not care.
        host = np.where(uniform(0, 1) < 0.75, uniform(0, 0.2), uniform(0, 1.0))
        memory, sharpness = uniform(0, 1.3), uniform(1.5, 6.0)
        busy = (speeds**-sharpness + memory**sharpness) ** (1 / sharpness)
        busy *= (1 - host) / busy[:, -1:]
        seconds = busy + host
        # Power while busy: a static part, one that goes with the clock, one with the work done.
        knee, floor = uniform(0.3, 1.0), uniform(0.5, 1.0)
        bent = np.maximum(0.0, speeds - knee) / np.maximum(1e-3, 1 - knee)
        voltage_squared = (floor + (1 - floor) * bent) ** 2
        static, by_clock = uniform(0.08, 0.6), uniform(0.0, 0.6)
        work_rate = busy[:, -1:] / np.maximum(busy, 1e-9)
        moving = by_clock * speeds + (1 - by_clock) * work_rate
        power = static + (1 - static) * moving * voltage_squared
        waiting = np.minimum(power, static * uniform(0.6, 1.3))
        mean = (power * busy + waiting * host) / seconds
        # Where a slower board waits less, its mean may seem to rise; none was ever seen to.
        mean = np.maximum.accumulate(mean, axis=1)
        return cls(speeds, seconds, mean, power * uniform(0.97, 1.06))

    def over(self, knob: Array, wanted: Array) -> Curves:
        """Interpolate to the wanted knob values; beyond its ends a knob has no effect."""
        import numpy as np

        log_seconds = np.log(self.seconds / self.seconds[:, -1:])
        log_watts = np.log(self.watts / self.watts[:, -1:])
        rows = range(len(knob))
        return Curves(
            np.stack([np.interp(wanted, knob[i], log_seconds[i]) for i in rows]),
            np.stack([np.interp(wanted, knob[i], log_watts[i]) for i in rows]),
        )
