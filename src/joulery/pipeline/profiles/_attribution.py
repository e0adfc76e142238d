"""Attribute the energy between counter refreshes to the kinds of instructions that ran.

Counters refresh every 20-100 ms, which may span several instructions. The energy between two
refreshes is the sum over kinds of power times the kind's time in between, waiting being a kind too;
the mixture differs from span to span, so least squares finds the power of each. Power follows the
load with a lag; the lag that fits best is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Time constants with which a board's power may follow its load.
_LAGS_SECONDS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05)
# Weight of the guess that all kinds draw the mean, which decides only what spans cannot.
_GUESS = 1e-5
# A span that took this much longer than usual saw something else, such as a pause.
_LONGEST_SPAN = 5.0


@dataclass(frozen=True, slots=True)
class TimedWork:
    """One instruction as it ran; ``kind`` counts from 0."""

    kind: int
    begin_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True)
class KindPowers:
    """The power of each kind of instruction.

    Attributes:
        watts: (kinds,), power while the kind runs.
        relative_errors: (kinds,), one sigma; NaN where there are too few spans.
        waiting_watts: Power while none runs; NaN where there was no waiting.
        spans: Number of refreshes that the figures rest on.
        span_seconds: Typical time between them.
    """

    watts: NDArray[np.float64]
    relative_errors: NDArray[np.float64]
    waiting_watts: float
    spans: int
    span_seconds: float


def attribute_power(
    knots: Sequence[tuple[float, float]], works: Sequence[TimedWork], kinds: int
) -> KindPowers | None:
    """The power of each kind, from (seconds, joules) at the counter's refreshes.

    Returns:
        None where there are not even two refreshes.
    """
    at = np.array([knot[0] for knot in knots])
    joules = np.diff([knot[1] for knot in knots])
    lengths = np.diff(at)
    if not len(lengths) or not works:
        return None
    usual = float(np.median(lengths))
    kept = (lengths > 0) & (lengths < _LONGEST_SPAN * usual)
    if not kept.any():
        return None
    solutions = (
        _solved(
            np.diff(_cumulated(at, works, kinds, lag), axis=0)[kept],
            lengths[kept],
            joules[kept],
            usual,
        )
        for lag in _LAGS_SECONDS
    )
    return min(solutions, key=lambda solution: solution[0])[1]


def _cumulated(
    at: NDArray[np.float64], works: Sequence[TimedWork], kinds: int, lag: float
) -> NDArray[np.float64]:
    """Seconds of each kind until each moment, as they show in power that lags behind."""
    total = np.zeros((len(at), kinds))
    for kind in range(kinds):
        begins = np.array([work.begin_seconds for work in works if work.kind == kind])
        ends = np.array([work.end_seconds for work in works if work.kind == kind])
        if len(begins):
            total[:, kind] = _response(at, begins, lag) - _response(at, ends, lag)
    return total


def _response(
    at: NDArray[np.float64], steps: NDArray[np.float64], lag: float
) -> NDArray[np.float64]:
    """The integral of what a lagging sensor shows after unit steps, summed over them."""
    since = np.maximum(0.0, at[:, None] - steps[None, :])
    if lag > 0:
        since = since + lag * np.expm1(-since / lag)
    total: NDArray[np.float64] = since.sum(axis=1)
    return total


def _solved(
    shares: NDArray[np.float64],
    lengths: NDArray[np.float64],
    joules: NDArray[np.float64],
    usual: float,
) -> tuple[float, KindPowers]:
    kinds = shares.shape[1]
    waiting = lengths - shares.sum(axis=1)
    waits = bool(waiting.sum() > 0.01 * lengths.sum())
    matrix = np.column_stack([shares, waiting]) if waits else shares
    mean = joules.sum() / lengths.sum()
    strength = np.sqrt(_GUESS) * np.sqrt((matrix**2).sum(axis=0).mean())
    rows = np.vstack([matrix, strength * np.eye(matrix.shape[1])])
    found, *_ = np.linalg.lstsq(
        rows, np.concatenate([joules, np.full(matrix.shape[1], strength * mean)]), rcond=None
    )
    found = np.maximum(found, 0.0)
    left = joules - matrix @ found
    free = len(joules) - matrix.shape[1]
    errors = np.full(matrix.shape[1], np.nan)
    if free > 0:
        inverse = np.linalg.pinv(rows.T @ rows)
        variances = np.diag(inverse) * float(left @ left) / free
        # Where the guess decides, the figure is off by about as far as it moved from the guess.
        pulled = np.diag(inverse) * strength**2 * (found - mean)
        errors = np.sqrt(variances + pulled**2) / np.maximum(found, 1e-9)
    return float(left @ left), KindPowers(
        found[:kinds],
        errors[:kinds],
        float(found[kinds]) if waits else float("nan"),
        len(joules),
        usual,
    )
