"""Smooth measured time and energy over clocks, in the shape that physics gives them.

Time grows with the period of the clock and is convex: work bound by memory or by the power limit
does not get faster. Power is a convex function of speed, which makes energy a convex function of
time (its perspective). Noise of a per cent would otherwise decide which clock looks best, and a
planner picks exactly the clocks that look too good. Where measurements follow no such shape beyond
their noise, as where a device throttles in the middle of a sweep, they are kept as they are; so
they are where they have that shape already.

Curves have as few bends as the noise allows: bends are added one at a time while that explains
more than noise would (Bayesian information criterion), and outliers lose their weight (Huber).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joulery.frontier import OperatingPoint, Origin, Provenance, Setting
from joulery.units import hertz_from_megahertz, per_cent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

# With fewer clocks noise and shape cannot be told apart; by hand.
_FEWEST_CLOCKS = 5
# Beyond this many samples a mean gets no better: what remains is not chance; by hand.
_ENOUGH_SAMPLES = 30
# A normal distribution has 1.4826 median absolute deviations per standard deviation.
_SIGMA_PER_DEVIATION = 1.4826
# Beyond this many standard deviations a measurement counts less and less (Huber); by hand.
_HUBER = 2.0
# Beyond this many it is an outlier, if its neighbours are not: a bad run explains it; by hand.
_FAR = 5.0
# Share of outliers from which on they are no outliers; by hand.
_MAX_OUTLIERS = 0.1
# How far the rest may lie off, in standard deviations, before the shape itself is in doubt; by
# hand.
_MAX_MISFIT = 1.6
# Less than this is no noise worth a bend, nor a doubt; by hand.
_NEGLIGIBLE = 5e-4
# Rounds of reweighting, and the least divisor; by hand.
_ROUNDS = 4
_TINY = 1e-12


class ClockSample(NamedTuple):
    """Mean time and energy of an instruction over some runs under one clock."""

    megahertz: float
    seconds: float
    joules: float
    runs: float = _ENOUGH_SAMPLES


@dataclass(frozen=True, slots=True)
class InstructionProfile:
    """The operating points of an instruction over clocks, and how they were made.

    Attributes:
        points: One point per clock, highest clock first.
        smoothed: Quantities that a fitted curve replaces: ``times``, ``energies``, both or none;
            those of the right shape stay as measured.
        seconds_noise: Relative noise of the measured times; 0 where unknown.
        joules_noise: Relative noise of the measured energies; 0 where unknown.
        outliers_megahertz: Clocks whose measurement lies far off the curve.
        kept: Reason why the rest was not smoothed; empty if everything was.
        repeats_error: Relative standard error where rows of one clock were averaged, the largest;
            0 where they are equal.
    """

    points: tuple[OperatingPoint, ...]
    smoothed: tuple[str, ...] = ()
    seconds_noise: float = 0.0
    joules_noise: float = 0.0
    outliers_megahertz: tuple[float, ...] = ()
    kept: str = ""
    repeats_error: float = 0.0


def smooth_profile(
    samples: Iterable[ClockSample], source: str = "", *, enabled: bool = True
) -> InstructionProfile:
    """The operating points of one instruction from measurements.

    Args:
        samples: Measurements in any order; several of one clock are averaged.
        source: Name of the measurements, for the points' provenance.
        enabled: False keeps the measurements as they are.
    """
    merged, repeats_error = _merge(samples)
    megahertz, seconds, joules, counts = np.array(merged).T
    if not enabled or len(merged) < _FEWEST_CLOCKS:
        points = _points(megahertz, seconds, joules, Provenance(Origin.MEASURED, source))
        kept = "too few clocks" if enabled else "as asked"
        return InstructionProfile(points, kept=kept, repeats_error=repeats_error)
    weights = np.minimum(counts, _ENOUGH_SAMPLES) / _ENOUGH_SAMPLES
    period = 1 / megahertz  # highest clock first
    seconds_noise = _local_noise(period, seconds, weights)
    time = _convex_fit(period, seconds, weights, seconds_noise)
    clean_seconds = time.values if time.follows else seconds
    # A run that happens to take longer needs more energy, too, unless the two are measured apart:
    # the power that varies less from clock to clock shows which.
    watts, joules_noise = min(
        (
            (power, _local_noise(megahertz, power, weights))
            for power in (joules / seconds, joules / clean_seconds)
        ),
        key=lambda pair: pair[1],
    )
    # Power against speed, slowest first. Equal times would be one place with several values.
    order = np.argsort(-clean_seconds, kind="stable")
    speed = _increasing(1 / clean_seconds[order])
    measured_watts = watts[order]
    power = _convex_fit(speed, measured_watts, weights[order], joules_noise, round_bends=True)
    far = time.outliers & time.follows
    if power.follows:
        watts[order] = power.values
        far[order] |= power.outliers
    curves = {"times": (time, seconds), "energies": (power, measured_watts)}
    shapeless = [name for name, (curve, _) in curves.items() if not curve.follows]
    provenance = Provenance(Origin.MEASURED, source, joules_noise)
    return InstructionProfile(
        _points(megahertz, clean_seconds, watts * clean_seconds, provenance),
        smoothed=tuple(
            name
            for name, (curve, measured) in curves.items()
            if curve.follows and curve.values is not measured
        ),
        seconds_noise=seconds_noise,
        joules_noise=joules_noise,
        outliers_megahertz=tuple(float(clock) for clock in megahertz[far]),
        kept=f"{' and '.join(shapeless)} follow no convex curve" if shapeless else "",
        repeats_error=repeats_error,
    )


def summary(profiles: dict[str, InstructionProfile]) -> list[str]:
    """Changes to the measurements of each named instruction, a line each."""
    lines = []
    for quantity, noise in (("times", "seconds_noise"), ("energies", "joules_noise")):
        smooth = [profile for profile in profiles.values() if quantity in profile.smoothed]
        if smooth:
            worst = max(_NEGLIGIBLE, *(getattr(profile, noise) for profile in smooth))
            lines.append(
                f"smoothed the {quantity} of {len(smooth)} of {len(profiles)} instructions "
                f"(noise up to {per_cent(worst)})"
            )
    repeats_error = max(profile.repeats_error for profile in profiles.values())
    if repeats_error > _TINY:
        lines.append(
            f"averaged rows of the same clock, whose means are known to {per_cent(repeats_error)}"
        )
    outliers = sum(len(profile.outliers_megahertz) for profile in profiles.values())
    if outliers:
        first = next(name for name, profile in profiles.items() if profile.outliers_megahertz)
        lines.append(f"outliers that weigh little: {outliers}, the first in {first}")
    by_reason: dict[str, list[str]] = {}
    for name, profile in profiles.items():
        if profile.kept:
            by_reason.setdefault(profile.kept, []).append(name)
    for reason, names in by_reason.items():
        suffix = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"kept as measured, {reason}: {names[0]}{suffix}")
    return lines


def _merge(samples: Iterable[ClockSample]) -> tuple[list[ClockSample], float]:
    """One sample per clock, highest clock first, and the largest relative error of these means."""
    by_clock: dict[float, list[ClockSample]] = {}
    for sample in samples:
        by_clock.setdefault(sample.megahertz, []).append(sample)
    merged, worst = [], 0.0
    for megahertz in sorted(by_clock, reverse=True):
        _, seconds, joules, runs = np.array(by_clock[megahertz]).T
        means = tuple(float(np.average(values, weights=runs)) for values in (seconds, joules))
        merged.append(ClockSample(megahertz, means[0], means[1], float(runs.sum())))
        if len(runs) > 1:
            for values, mean in zip((seconds, joules), means, strict=True):
                variance = float(np.average((values - mean) ** 2, weights=runs)) / (len(runs) - 1)
                worst = max(worst, math.sqrt(variance) / mean)
    return merged, worst


def _increasing(values: Array) -> Array:
    """Strictly increasing, by steps too small to matter."""
    rising: Array = np.maximum.accumulate(values) * (1 + 1e-9 * np.arange(len(values)))
    return rising


def _points(
    megahertz: Array, seconds: Array, joules: Array, provenance: Provenance
) -> tuple[OperatingPoint, ...]:
    rows = zip(megahertz.tolist(), seconds.tolist(), joules.tolist(), strict=True)
    return tuple(
        OperatingPoint(time, energy, Setting(clock_hertz=hertz_from_megahertz(clock)), provenance)
        for clock, time, energy in rows
    )


class _Fit(NamedTuple):
    """A convex curve at the measured places, which of these lie far off, and whether it fits.

    It does where what lies off looks like noise and single outliers.
    """

    values: Array
    outliers: NDArray[np.bool_]
    follows: bool


def _convex_fit(
    positions: Array, measured: Array, weights: Array, noise: float, *, round_bends: bool = False
) -> _Fit:
    """The convex, non-decreasing curve through positive measurements at increasing places.

    ``weights`` are 1 for the best measurements, ``noise`` is the relative standard deviation of
    one of those; ``round_bends`` is for curves that grow like a polynomial.
    """
    scale = (positions - positions[0]) / max(float(positions[-1] - positions[0]), _TINY)
    if _is_convex(scale, measured):
        return _Fit(measured, np.zeros(len(measured), dtype=bool), follows=True)
    basis = _basis(scale, round_bends=round_bends)
    noise = max(noise, _NEGLIGIBLE)
    relative = np.sqrt(weights) / measured
    trust = _first_trust(scale, measured, weights)
    off = np.zeros_like(measured)
    values = measured
    for _ in range(_ROUNDS):
        factor = relative * np.sqrt(trust)
        coefficients = _few_bends(basis * factor[:, None], measured * factor, noise)
        values = basis @ coefficients
        off = np.abs(measured - values) * relative
        trust = np.minimum(1.0, _HUBER * noise / np.maximum(off, _TINY))
        trust[off > _FAR * noise] = 0.0
    outliers = off > _FAR * noise
    follows = bool(np.all(values > 0)) and _looks_like_noise(off / noise, outliers)
    return _Fit(values, outliers, follows)


def _looks_like_noise(off: Array, outliers: NDArray[np.bool_]) -> bool:
    """Whether outliers are few and apart from each other and from the ends, and the rest close.

    At an end an outlier cannot be told from a curve of another shape.
    """
    together = bool(np.any(outliers[1:] & outliers[:-1]))
    at_end = bool(outliers[0] or outliers[-1])
    few = float(np.mean(outliers)) <= _MAX_OUTLIERS
    residuals = off[~outliers]
    close = len(residuals) > 0 and math.sqrt(float(np.mean(residuals**2))) <= _MAX_MISFIT
    return few and close and not together and not at_end


def _local_noise(positions: Array, measured: Array, weights: Array) -> float:
    """Relative noise, from how far four neighbours each lie off a parabola.

    Its bend is left out: the line between two neighbours would take that for noise.
    """
    fours = np.lib.stride_tricks.sliding_window_view
    places, values, weight = (fours(array, 4) for array in (positions, measured, weights))
    gaps = places[:, :, None] - places[:, None, :] + np.eye(4)
    # Third divided differences, which are 0 on a parabola.
    terms = values / np.prod(gaps, axis=2)
    off = np.abs(terms.sum(axis=1)) / np.sqrt((terms**2 / weight).sum(axis=1))
    return _SIGMA_PER_DEVIATION * float(np.median(off))


def _off_neighbours(positions: Array, measured: Array, weights: Array) -> Array:
    """(n - 2,), in units of what noise of 1 would give."""
    share = _share(positions)
    spread = np.sqrt(1 / weights[1:-1] + (1 - share) ** 2 / weights[:-2] + share**2 / weights[2:])
    off: Array = np.abs(measured[1:-1] / _between(share, measured) - 1) / spread
    return off


def _is_convex(positions: Array, measured: Array) -> bool:
    """Whether measurements have the shape already: no noise is needed to explain them."""
    chords = _between(_share(positions), measured)
    rises = bool(np.all(measured[1:] >= measured[:-1] * (1 - _NEGLIGIBLE)))
    return rises and bool(np.all(measured[1:-1] <= chords * (1 + _NEGLIGIBLE)))


def _share(positions: Array) -> Array:
    """(n - 2,), how far each inner place lies from the one before it to the one after it."""
    share: Array = (positions[1:-1] - positions[:-2]) / (positions[2:] - positions[:-2])
    return share


def _between(share: Array, values: Array) -> Array:
    """(n - 2,), the line between the neighbours of each inner place."""
    line: Array = (1 - share) * values[:-2] + share * values[2:]
    return line


def _first_trust(positions: Array, measured: Array, weights: Array) -> Array:
    """Weights of a first fit: 0 at peaks, since an outlier would cast doubt on its neighbours."""
    off = np.zeros(len(measured) + 2)
    off[2:-2] = inner = _off_neighbours(positions, measured, weights)
    # Bends count as noise here: where they are usual none is a peak.
    noise = max(_NEGLIGIBLE, _SIGMA_PER_DEVIATION * float(np.median(inner)))
    peak = (off[1:-1] > off[:-2]) & (off[1:-1] > off[2:]) & (off[1:-1] > _FAR * noise)
    return np.where(peak, 0.0, 1.0)


def _basis(scale: Array, *, round_bends: bool) -> Array:
    """Constant, line, and one bend per inner place; columns in that order."""
    hinges = np.maximum(0.0, scale[:, None] - scale[None, 2:-2])
    columns = [np.ones_like(scale)[:, None], scale[:, None], hinges]
    if round_bends:
        columns += [scale[:, None] ** 2, hinges**2]
    return np.hstack(columns)


def _few_bends(basis: Array, values: Array, noise: float) -> Array:
    """Least squares with no negative coefficient but the constant's, bends added one at a time."""
    price = noise**2 * math.log(max(len(values), 2))
    columns = [0, 1]
    coefficients = _nonnegative(basis, values, columns)
    remaining = values - basis @ coefficients
    norms = np.maximum(np.sum(basis**2, axis=0), _TINY)
    while len(columns) < basis.shape[1]:
        gains = basis.T @ remaining
        gains[columns] = -1.0
        candidates = np.argsort(-(np.maximum(gains, 0.0) ** 2) / norms)[:8]
        trials = [
            (_residual(basis, values, [*columns, int(column)]), int(column))
            for column in candidates
            if gains[column] > 0
        ]
        if not trials:
            break
        residual, column = min(trials)
        if float(remaining @ remaining) - residual <= price:
            break
        columns.append(column)
        coefficients = _nonnegative(basis, values, columns)
        remaining = values - basis @ coefficients
    return coefficients


def _residual(basis: Array, values: Array, columns: Sequence[int]) -> float:
    remaining = values - basis @ _nonnegative(basis, values, columns)
    return float(remaining @ remaining)


def _nonnegative(basis: Array, values: Array, columns: Sequence[int]) -> Array:
    """Least squares over some columns; those that would turn negative leave, one at a time."""
    active = list(columns)
    while True:
        solution = np.linalg.lstsq(basis[:, active], values, rcond=None)[0]
        worst = int(np.argmin(solution[1:])) + 1 if len(active) > 1 else 0
        if worst == 0 or solution[worst] >= 0:
            break
        active.pop(worst)
    full = np.zeros(basis.shape[1])
    full[active] = solution
    return full
