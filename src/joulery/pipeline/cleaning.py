"""Smooth measured time and energy over clocks, in the shape that physics gives them.

Time grows with the period of the clock, convex: what is bound by memory or by the power limit does
not get faster. Power is a convex function of speed, and that makes energy a convex function of
time (its perspective). Noise of a per cent would otherwise decide which clock looks best, and a
planner picks exactly the clocks that look too good. Where measurements follow no such shape beyond
their noise, as where a device throttles in the middle of a sweep, they are kept as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from joulery.frontier import OperatingPoint, Origin, Provenance, Setting
from joulery.pipeline.cleaning_fit import convex_fit, local_noise
from joulery.units import hertz_from_megahertz, per_cent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

# With fewer clocks there is nothing to tell noise from shape by.
_FEWEST_CLOCKS = 5
# Beyond this many samples a mean is as good as it gets: what is left is not chance.
_ENOUGH_SAMPLES = 30


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of an instruction under a clock; ``count`` is how many it is the mean of."""

    megahertz: float
    seconds: float
    joules: float
    count: float = _ENOUGH_SAMPLES


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The operating points of an instruction, fastest clock first, and what was done to get them.

    Attributes:
        points: One per clock.
        smoothed: What a fitted curve replaces: ``times``, ``energies``, both or nothing.
        seconds_noise: Relative noise of the measured times; 0 where unknown.
        joules_noise: Of the energies.
        outliers_megahertz: Clocks whose measurement lies far off the curve.
        kept: Why the rest was not smoothed, in words; empty if everything was.
    """

    points: tuple[OperatingPoint, ...]
    smoothed: tuple[str, ...] = ()
    seconds_noise: float = 0.0
    joules_noise: float = 0.0
    outliers_megahertz: tuple[float, ...] = field(default=())
    kept: str = ""


def clean(samples: Iterable[Sample], source: str = "", *, smooth: bool = True) -> Cleaned:
    """Operating points over clocks from measurements of one instruction.

    Args:
        samples: In any order; several of one clock are averaged.
        source: Where they come from, for the points' provenance.
        smooth: False takes the measurements as they are.
    """
    merged = _merged(samples)
    megahertz, seconds, joules, counts = (
        np.array([getattr(sample, name) for sample in merged])
        for name in ("megahertz", "seconds", "joules", "count")
    )
    if not smooth or len(merged) < _FEWEST_CLOCKS:
        points = _points(merged, seconds, joules, Provenance(Origin.MEASURED, source))
        return Cleaned(points, kept="too few clocks" if smooth else "as asked")
    return _smoothed(merged, (megahertz, seconds, joules, counts), source)


def _smoothed(
    merged: Sequence[Sample], columns: tuple[Array, Array, Array, Array], source: str
) -> Cleaned:
    megahertz, seconds, joules, counts = columns
    weights = np.minimum(counts, _ENOUGH_SAMPLES) / _ENOUGH_SAMPLES
    period = 1 / megahertz  # fastest clock first
    seconds_noise = local_noise(period, seconds, weights)
    time = convex_fit(period, seconds, weights, seconds_noise)
    clean_seconds = time.values if time.follows else seconds
    # A run that happens to take longer needs more energy, too, unless the two are measured apart:
    # the power that varies less from clock to clock tells which.
    watts, joules_noise = min(
        (
            (power, local_noise(period, power, weights))
            for power in (joules / seconds, joules / clean_seconds)
        ),
        key=lambda found: found[1],
    )
    # Power against speed, slowest first. Equal times would be one place with several values.
    order = np.argsort(-clean_seconds, kind="stable")
    speed = _increasing(1 / clean_seconds[order])
    power = convex_fit(speed, watts[order], weights[order], joules_noise, smooth=True)
    far = time.outliers & time.follows
    if power.follows:
        watts[order] = power.values
        far[order] |= power.outliers
    curves = {"times": time, "energies": power}
    shapeless = [name for name, curve in curves.items() if not curve.follows]
    return Cleaned(
        _points(
            merged,
            clean_seconds,
            watts * clean_seconds,
            Provenance(Origin.MEASURED, source, joules_noise),
        ),
        smoothed=tuple(name for name, curve in curves.items() if curve.follows),
        seconds_noise=seconds_noise,
        joules_noise=joules_noise,
        outliers_megahertz=tuple(float(clock) for clock in megahertz[far]),
        kept=f"{' and '.join(shapeless)} follow no convex curve" if shapeless else "",
    )


def _merged(samples: Iterable[Sample]) -> list[Sample]:
    """One sample per clock, fastest clock first."""
    by_clock: dict[float, list[Sample]] = {}
    for sample in samples:
        by_clock.setdefault(sample.megahertz, []).append(sample)
    merged = []
    for megahertz in sorted(by_clock, reverse=True):
        same = by_clock[megahertz]
        count = sum(sample.count for sample in same)
        seconds = sum(sample.seconds * sample.count for sample in same) / count
        joules = sum(sample.joules * sample.count for sample in same) / count
        merged.append(Sample(megahertz, seconds, joules, count))
    return merged


def _increasing(values: Array) -> Array:
    """Strictly increasing, by steps too small to matter."""
    rising: Array = np.maximum.accumulate(values) * (1 + 1e-9 * np.arange(len(values)))
    return rising


def _points(
    merged: Sequence[Sample], seconds: Array, joules: Array, provenance: Provenance
) -> tuple[OperatingPoint, ...]:
    return tuple(
        OperatingPoint(
            float(time),
            float(energy),
            Setting(clock_hertz=hertz_from_megahertz(sample.megahertz)),
            provenance,
        )
        for sample, time, energy in zip(merged, seconds, joules, strict=True)
    )


def summary(cleaned: dict[str, Cleaned]) -> list[str]:
    """What was done to the measurements of each instruction, in a line per finding."""
    lines = []
    for quantity, noise in (("times", "seconds_noise"), ("energies", "joules_noise")):
        done = [found for found in cleaned.values() if quantity in found.smoothed]
        if done:
            worst = max(getattr(found, noise) for found in done)
            lines.append(
                f"smoothed the {quantity} of {len(done)} of {len(cleaned)} instructions "
                f"(noise up to {per_cent(worst)})"
            )
    outliers = sum(len(found.outliers_megahertz) for found in cleaned.values())
    if outliers:
        where = next(name for name, found in cleaned.items() if found.outliers_megahertz)
        lines.append(f"outliers that weigh little: {outliers}, the first in {where}")
    by_reason: dict[str, list[str]] = {}
    for name, found in cleaned.items():
        if found.kept:
            by_reason.setdefault(found.kept, []).append(name)
    for reason, names in by_reason.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"kept as measured, {reason}: {names[0]}{more}")
    return lines
