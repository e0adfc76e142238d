"""Refresh, averaging time and lag of a sensor, from its readings under bursts of known times.

The load is switched on and off at random; a sensor shows, at each refresh, the mean power over a
window before it, which it follows with a lag. Window, lag and the ramp of the board's own power are
those that explain the readings best; idle and busy watts are fitted along with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# By hand: beyond the 0.01 to 1 s and 0 to 0.22 s of the sensors in the catalog, on either side.
_WINDOWS = np.geomspace(0.004, 1.6, 28)
_LAGS = np.array([0.0, 0.01, 0.02, 0.04, 0.08, 0.12, 0.18, 0.25, 0.35, 0.5])
_RAMPS = np.array([0.0, 0.002, 0.005, 0.01, 0.02, 0.04])  # by hand: boards ramp within some 10 ms
# By hand: around the best of the values above; the second time between the first ones.
_REFINEMENTS = (np.linspace(0.8, 1.25, 10), np.linspace(0.96, 1.04, 9))
_LEAST_LAG_SECONDS = 0.004  # by hand: twice the time between two readings
_FEWEST_REFRESHES = 8  # by hand: more than the unknowns of the fit
_MOST_REFRESHES = 600  # by hand: on simulated boards more tell no more
_HISTORY_SECONDS = 2.0  # before the first reading, which long windows and lags remember
_SHORT_GAPS = 0.25  # share of the gaps between changes that are taken to be one refresh long
# By hand, as shares of a period: gaps that are off a multiple are late readings; a value is read
# well after its refresh and before the next.
_MULTIPLE_SLACK, _READ_AFTER, _READ_BEFORE = 0.3, 0.2, 0.9


@dataclass(frozen=True, slots=True)
class Refreshes:
    """Regular refreshes of a value: their period, and the time of the first."""

    period_seconds: float
    first_seconds: float


@dataclass(frozen=True, slots=True)
class SensorFit:
    """Behaviour of a sensor.

    Attributes:
        period_seconds: Time between two refreshes.
        window_seconds: Time before a refresh that a reading averages over.
        lag_seconds: Time constant with which it follows beyond that.
        idle_watts: Reading at rest.
        busy_watts: Reading under the load.
        residual_share: Standard deviation of the readings from the fit, as a share of the change
            from idle to busy.
    """

    period_seconds: float
    window_seconds: float
    lag_seconds: float
    idle_watts: float
    busy_watts: float
    residual_share: float

    @property
    def duty(self) -> float:
        """Fraction of the time that the sensor looks at."""
        return min(1.0, self.window_seconds / self.period_seconds)


def find_refreshes(times: Floats, values: Floats) -> Refreshes | None:
    """Refreshes of a value that was read often; None where it changed too rarely to tell."""
    changes = np.flatnonzero(np.diff(values) != 0)
    if len(changes) < _FEWEST_REFRESHES:
        return None
    moments = (times[changes] + times[changes + 1]) / 2
    gaps = np.diff(moments)
    period = float(np.quantile(gaps, _SHORT_GAPS))
    for _ in range(3):  # an early period is off by up to a reading, which long gaps add up
        multiples = np.rint(gaps / period)
        regular = (multiples > 0) & (np.abs(gaps / period - multiples) < _MULTIPLE_SLACK)
        if not regular.any():
            return None
        period = float(gaps[regular].sum() / multiples[regular].sum())
    turns = np.exp(2j * np.pi * (moments - times[0]) / period)
    phase = float(np.angle(turns.mean())) / (2 * np.pi) % 1.0
    return Refreshes(period, float(times[0]) + phase * period)


def values_at_refreshes(
    times: Floats, values: Floats, refreshes: Refreshes
) -> tuple[Floats, Floats]:
    """Times of all refreshes, and the value read after each; NaN where none was read in time."""
    period = refreshes.period_seconds
    moments = np.arange(refreshes.first_seconds, times[-1] - period, period)
    positions = np.searchsorted(times, moments + _READ_AFTER * period)
    late = times[positions] > moments + _READ_BEFORE * period
    return moments, np.where(late, np.nan, values[positions])


def fit_sensor(
    moments: Floats, watts: Floats, edges: Sequence[float], period_seconds: float
) -> SensorFit | None:
    """Fit window and lag of a sensor to its values at all refreshes; None where they are too few.

    Args:
        moments: Times of the refreshes.
        watts: Values at them; NaN where unknown.
        edges: Times at which the load was switched, on first.
        period_seconds: Time between two refreshes.
    """
    moments, watts = moments[:_MOST_REFRESHES], watts[:_MOST_REFRESHES]
    readable = np.isfinite(watts)
    if readable.sum() < _FEWEST_REFRESHES or np.ptp(watts[readable]) == 0:
        return None
    series = _Series(moments, watts, np.asarray(edges), period_seconds)
    # A long window and a long lag look alike on a coarse grid, so the search begins from both.
    starts = [series.search(_WINDOWS, lags, _RAMPS) for lags in (_LAGS[:1], _LAGS)]
    return min((_refine(series, start) for start in starts), key=_residual)


def _residual(fit: SensorFit) -> float:
    return fit.residual_share * abs(fit.busy_watts - fit.idle_watts)


def _refine(series: _Series, start: _Candidate) -> SensorFit:
    best = start
    for factors in _REFINEMENTS:
        lag = best.lag_seconds or _LEAST_LAG_SECONDS
        lags = np.append(lag * factors, 0.0)
        best = series.search(best.window_seconds * factors, lags, best.ramp_seconds * factors)
    return best.fit


@dataclass(frozen=True, slots=True)
class _Candidate:
    window_seconds: float
    lag_seconds: float
    ramp_seconds: float
    fit: SensorFit


@dataclass(frozen=True, slots=True)
class _Series:
    """Values at refreshes, and the edges of the load."""

    moments: Floats
    watts: Floats
    edges: Floats
    period_seconds: float

    def search(self, windows: Floats, lags: Floats, ramps: Floats) -> _Candidate:
        """The best of a grid of windows, lags and ramps."""
        period, readable = self.period_seconds, np.isfinite(self.watts)
        history = np.arange(-int(_HISTORY_SECONDS / period), 0) * period + self.moments[0]
        moments = np.append(history, self.moments)
        shares = np.vstack([_means(moments, self.edges, windows, ramp) for ramp in ramps])
        # lag × (ramp, window) × refresh
        followed = _follow(shares, period / (period + lags))[..., len(history) :]
        watts = self.watts[readable]
        residuals, slopes, levels = _regress(followed[..., readable], watts)
        lag, row = np.unravel_index(int(np.argmin(residuals)), residuals.shape)
        slope, level = float(slopes[lag, row]), float(levels[lag, row])
        share = float(np.sqrt(residuals[lag, row] / len(watts))) / (abs(slope) or 1.0)
        window, lag_seconds = float(windows[row % len(windows)]), float(lags[lag])
        fit = SensorFit(period, window, lag_seconds, level, level + slope, share)
        return _Candidate(window, lag_seconds, float(ramps[row // len(windows)]), fit)


def _means(moments: Floats, edges: Floats, windows: Floats, ramp: float) -> Floats:
    """Mean load over each window before each moment, of a load that ramps up and down."""
    spans = windows[:, None]
    ends = np.vstack([moments[None, :], moments - spans])
    busy = _busy_seconds(ends, edges, ramp)
    return np.asarray((busy[0] - busy[1:]) / spans)


def _busy_seconds(moments: Floats, edges: Floats, ramp: float) -> Floats:
    """Integral of the load up to each moment."""
    targets = np.arange(len(edges)) % 2 == 0  # on after even edges
    spans = np.append(0.0, np.cumsum(np.where(targets[:-1], np.diff(edges), 0.0)))
    position = np.searchsorted(edges, moments, side="right") - 1
    started = position >= 0
    position = np.maximum(position, 0)
    since = np.where(started, moments - edges[position], 0.0)
    busy = spans[position] + np.where(started & targets[position], since, 0.0)
    if ramp <= 0:
        return np.asarray(busy)
    # What ramps is late by the ramp: the integral lacks ramp times the level reached.
    levels = _levels(edges, targets, ramp)
    level = targets[position] + (levels[position] - targets[position]) * np.exp(-since / ramp)
    return np.asarray(busy - ramp * np.where(started, level, 0.0))


def _levels(edges: Floats, targets: NDArray[np.bool_], ramp: float) -> Floats:
    """Level of the load at each edge."""
    levels = np.zeros(len(edges))
    fades = np.exp(-np.diff(edges) / ramp)
    for position, fade in enumerate(fades):
        levels[position + 1] = targets[position] + (levels[position] - targets[position]) * fade
    return levels


def _follow(shares: Floats, follows: Floats) -> Floats:
    """Values that approach their shares by a factor at each refresh, for each factor."""
    values = np.empty((len(follows), *shares.shape))
    value = np.repeat(shares[None, :, 0], len(follows), axis=0)
    for position in range(shares.shape[1]):
        value = value + follows[:, None] * (shares[None, :, position] - value)
        values[..., position] = value
    return values


def _regress(shares: Floats, watts: Floats) -> tuple[Floats, Floats, Floats]:
    """Squared residuals, slopes and levels of watts over shares, along the last axis."""
    centred, mean = shares - shares.mean(axis=-1, keepdims=True), watts.mean()
    power = (centred**2).sum(axis=-1)
    slopes = (centred * (watts - mean)).sum(axis=-1) / np.maximum(power, 1e-12)
    residuals = ((watts - mean) ** 2).sum() - slopes**2 * power
    return np.maximum(residuals, 0.0), slopes, mean - slopes * shares.mean(axis=-1)
