"""Tell apart what a setting does to a job and what time does to it.

Jobs get faster while caches fill and slower as their inputs grow, and boards get hot. A setting
that is measured after the reference would be compared with a job that no longer is. So slices of
both alternate, and the logarithm of each is taken for a level, which wanders with time, plus the
effect of its setting, plus noise. How fast the level wanders is weighed by the slices themselves;
where it does not, all of them count together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

# Variances that the level may gain from one slice to the next, and their probabilities; by hand:
# most jobs are steady, and two slices are enough to tell that one is not.
_WANDERING = np.array([1e-10, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2])
_PROBABILITY = np.array([0.95, 0.03, 0.015, 0.004, 8e-4, 3e-4, 5e-5])
# Passes in which the slices say when the level wandered, and the share of it that may happen at any
# time; by hand.
_PASSES, _CALM = 3, 0.02
# Standard deviation of an effect before it is measured, in logarithms: a factor of three.
_EFFECT = 1.0
# Latest slices of the reference, by number or time, whose fastest is the job as it is; a hot board
# or a neighbour makes steps slower for a while, never faster; by hand.
_LATEST, LATEST_SECONDS = 4, 600.0
# Longest period of steps that is looked for, and how often it must be seen; by hand.
LONGEST_PERIOD, PERIODS = 16, 3
# Error of an effect per difference of level, for slices slower and faster than the job as it is. A
# ceiling on a hot board hides all of a limit's effect, so the first is 1; the second by hand.
_SLOWER, _FASTER = 1.0, 0.3


class TimedSlices(NamedTuple):
    """Slices of one quantity in the order of time: when, at which setting, logarithm and error."""

    times: Array
    positions: NDArray[np.intp]
    values: Array
    errors: Array


class Effects(NamedTuple):
    """Level of the reference as the job is now, and effects on it, in logarithms.

    Attributes:
        level: Level of the reference.
        anchor: Slice at which it is that.
        levels: Level at each slice.
        means: Effect of each position, 0 for the reference.
        errors: Standard errors of these.
    """

    level: float
    anchor: int
    levels: Array
    means: dict[int, float]
    errors: dict[int, float]


def separate(slices: TimedSlices, reference: int, anchor: int | None = None) -> Effects:
    """Effects of positions relative to a reference, whatever the level did between slices.

    Args:
        slices: Slices in the order of time.
        reference: Position whose effect is 0.
        anchor: Slice at which the job was as it is now; the one of the lowest level among the
            latest of the reference unless given.
    """
    others = [int(at) for at in dict.fromkeys(slices.positions.tolist()) if at != reference]
    design = (slices.positions[:, None] == np.array(others, dtype=np.intp)).astype(np.float64)
    aged, pace = np.zeros(len(slices.times)), slices.times - slices.times[0]
    for _ in range(_PASSES):
        means, variances, levels = _average(slices, design, aged, pace)
        at = _find_anchor(slices, levels, reference) if anchor is None else anchor
        gaps = levels - levels[at]
        aged = np.where(gaps > 0, _SLOWER, -_FASTER) * gaps * design.any(axis=1)
        pace = _wandering_time(levels)
    return Effects(
        float(levels[at]),
        at,
        levels,
        dict(zip([reference, *others], [0.0, *means.tolist()], strict=True)),
        dict(zip([reference, *others], [0.0, *np.sqrt(variances).tolist()], strict=True)),
    )


def _find_anchor(slices: TimedSlices, levels: Array, reference: int) -> int:
    at = np.flatnonzero(slices.positions == reference)
    if len(at) == 0:
        return len(levels) - 1
    recent = at[slices.times[at] >= slices.times[-1] - LATEST_SECONDS]
    latest = np.union1d(at[-_LATEST:], recent)
    return int(latest[levels[latest].argmin()])


def _wandering_time(levels: Array) -> Array:
    """Time that passes where the level wanders and hardly where it does not."""
    moves = np.diff(levels) ** 2
    moves = moves / moves.sum() if moves.sum() > 0 else np.ones_like(moves)
    return np.concatenate([[0.0], np.cumsum(moves + _CALM / max(1, len(moves)))])


def _average(
    slices: TimedSlices, design: Array, aged: Array, times: Array
) -> tuple[Array, Array, Array]:
    """Effects, their variances and levels, averaged over how fast the level may wander."""
    spacing = times[-1] / max(1, len(times) - 1)
    shared = np.minimum(times[:, None], times) / (spacing if spacing > 0 else 1.0)
    middle = float(np.median(slices.values))
    values = slices.values - middle
    # Generalised least squares, once for each way in which the level may wander.
    wandering = _WANDERING[:, None, None] * shared + 1.0
    total = wandering + np.diag(slices.errors**2 + aged**2)
    inverse = np.linalg.inv(total)
    precision = design.T @ inverse @ design + np.eye(design.shape[1]) / _EFFECT**2
    covariance = np.linalg.inv(precision)
    effects = np.einsum("qij,qj->qi", covariance, (inverse @ values) @ design)
    residuals = values - effects @ design.T
    weighed = np.einsum("qij,qj->qi", inverse, residuals)
    misfit = (residuals * weighed).sum(axis=1) + (effects**2).sum(axis=1) / _EFFECT**2
    volume = np.linalg.slogdet(total)[1] + np.linalg.slogdet(precision)[1]
    likely = np.log(_PROBABILITY) - 0.5 * (misfit + volume)
    weights = np.exp(likely - likely.max())
    weights /= weights.sum()
    mean = weights @ effects
    variances = np.diagonal(covariance, axis1=1, axis2=2)
    levels = np.einsum("qij,qj->qi", wandering, weighed)
    return mean, weights @ (variances + (effects - mean) ** 2), middle + weights @ levels


def find_period(values: Sequence[float]) -> int:
    """The number of steps after which their lengths repeat; 1 where they do not.

    Args:
        values: Logarithms of the lengths of consecutive steps.
    """
    lengths = np.asarray(values, dtype=np.float64)
    count = len(lengths)
    if count < 2 * PERIODS:
        return 1
    usual = float(lengths.var(ddof=1))
    for period in range(2, min(LONGEST_PERIOD, count // PERIODS) + 1):
        phases = [lengths[phase::period] for phase in range(period)]
        within = sum(float(((phase - phase.mean()) ** 2).sum()) for phase in phases)
        if within / (count - period) < _REPEATS * usual:
            return period
    return 1


# Share of the variance of steps that is left once a period is taken out of it; by hand.
_REPEATS = 0.2
