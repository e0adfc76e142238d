"""Physical constants as beliefs: a prior from many devices, sharpened by few measurements.

Every model in this room is a function from a vector of log-constants to log-predictions. What is
known about the constants is a normal distribution (``Belief``). Its mean and spread come from
a population of devices or runs (``benchmarks/predict_fitting.py``); measurements on the target
update it (``Belief.update``, robust Gauss-Newton); predictions carry its spread into an error
bar. The three levels of evidence (specifications, runs elsewhere, probes on the target) are the
same object after none, many or few updates. Beliefs fitted by
``scripts/fit_predict.py`` ship with the package.

A model claims a standard deviation for each log-prediction. Whether it is right shows on groups
(devices, jobs, models) that were left out of the fit: by some factor 90 % of their errors lie
inside. Factors per task and level of evidence ship with the constants and multiply every claim.
"""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Model = Callable[[Array], Array]

_P = ParamSpec("_P")
_R = TypeVar("_R")

# A residual beyond this many standard deviations counts linearly, so that one odd measurement
# does not bend the constants; by hand.
_HUBER = 2.0
# Gauss-Newton: difference for slopes, largest step in logarithms, and steps at most; by hand.
_STEP, _LARGEST_STEP, _ITERATIONS = 1e-3, 1.0, 40
# Half-width of a 90 % interval, and the one-sided 90 % bound, in standard deviations.
NINETY, NINETY_BELOW = 1.6449, 1.2816


@dataclass(frozen=True, slots=True)
class Belief:
    """A normal distribution over the log-constants of a model.

    Attributes:
        mean: Most likely value of each log-constant.
        covariance: Uncertainty of the log-constants.
    """

    mean: Array
    covariance: Array

    @classmethod
    def independent(cls, mean: Array, deviation: Array) -> Belief:
        """Belief in constants that vary independently of each other."""
        return cls(np.asarray(mean, float), np.diag(np.asarray(deviation, float) ** 2))

    @property
    def deviation(self) -> Array:
        """Standard deviation of each log-constant."""
        return np.sqrt(np.diag(self.covariance))

    def update(
        self, model: Model, measured: Array, noise: float | Array, *, robust: bool = True
    ) -> Belief:
        """Belief after measurements.

        Args:
            model: Log-predictions of the measured quantities from log-constants.
            measured: Logarithms of the measurements.
            noise: Standard deviation of the logarithms around the model.
            robust: Whether single measurements far off count less.
        """
        huber = _HUBER if robust else np.inf
        precision = np.asarray(np.linalg.inv(self.covariance), np.float64)
        scale = np.asarray(noise, np.float64) * np.ones(len(measured))

        def misfit(at: Array) -> float:
            size = np.abs(measured - model(at)) / scale
            near = np.minimum(size, huber)
            away = at - self.mean
            return float((near * (2 * size - near)).sum() + away @ precision @ away)

        point, damping = self.mean.copy(), 1e-2
        cost = misfit(point)
        for _ in range(_ITERATIONS):
            predicted = model(point)
            residual = (measured - predicted) / scale
            weight = np.minimum(1.0, huber / np.maximum(np.abs(residual), 1e-9))
            slope = slopes(model, point, predicted) / scale[:, None]
            curvature = slope.T @ (slope * weight[:, None]) + precision
            pull = slope.T @ (weight * residual) + precision @ (self.mean - point)
            gain = 0.0
            for _ in range(8):
                damped = curvature + damping * np.diag(np.diag(curvature))
                step = np.clip(np.linalg.solve(damped, pull), -_LARGEST_STEP, _LARGEST_STEP)
                candidate = point + step
                trial = misfit(candidate)
                if trial < cost:
                    gain, cost, point = cost - trial, trial, candidate
                    damping = max(damping / 5, 1e-6)
                    break
                damping *= 4
            if gain < 1e-4 * cost + 1e-9:
                break
        slope = slopes(model, point, model(point)) / scale[:, None]
        narrowed = np.asarray(np.linalg.inv(slope.T @ slope + precision), np.float64)
        return Belief(point, narrowed)

    def covariance_of(self, model: Model) -> Array:
        """Covariance of the log-predictions that the constants' uncertainty causes."""
        slope = slopes(model, self.mean)
        return np.asarray(slope @ self.covariance @ slope.T)

    def spread(self, model: Model) -> Array:
        """Standard deviation of each log-prediction that the constants' uncertainty causes."""
        slope = slopes(model, self.mean)
        return np.asarray(np.sqrt(np.einsum("ij,jk,ik->i", slope, self.covariance, slope)))


def slopes(model: Model, point: Array, predicted: Array | None = None) -> Array:
    """Derivatives of the log-predictions by the log-constants, by differences."""
    predicted = model(point) if predicted is None else predicted
    columns = []
    for index in range(len(point)):
        shifted = point.copy()
        shifted[index] += _STEP
        columns.append((model(shifted) - predicted) / _STEP)
    return np.stack(columns, axis=1)


def condition(covariance: Array, rows: Sequence[int], noise: float) -> Array:
    """Covariance of log-predictions that remains once some of them are measured."""
    gains = covariance[:, list(rows)]
    gram = gains[list(rows)] + noise**2 * np.eye(len(rows))
    return np.asarray(covariance - gains @ np.linalg.solve(gram, gains.T))


def probe_values(
    covariance: Array, candidates: Sequence[Sequence[int]], targets: Sequence[int], noise: float
) -> Array:
    """Mean standard deviation of the log-predictions that would remain after each candidate.

    A probe shifts a belief by an amount that is not known beforehand, but narrows it by one that
    is: the smaller the remaining deviation, the better the probe.

    Args:
        covariance: Covariance of log-predictions (``Belief.covariance_of``).
        candidates: Log-predictions that each probe would measure.
        targets: Log-predictions that matter.
        noise: Standard deviation of a log-measurement around its model.
    """
    remaining = []
    for rows in candidates:
        variance = np.diag(condition(covariance, rows, noise))[targets]
        remaining.append(float(np.sqrt(np.maximum(variance, 0.0)).mean()))
    return np.array(remaining)


def krige(off: Array, among: Array, shared: Array, noise: float | Array) -> tuple[Array, Array]:
    """Residuals of some cases under the constants, from measured cases like them.

    Args:
        off: Log-measurements minus log-predictions of the measured cases.
        among: Covariance of the measured cases' unexplained parts.
        shared: Covariance between the unexplained parts of the cases (rows) and of those measured.
        noise: Standard deviation of the measurements.

    Returns:
        The expected unexplained part of each case, and by how much its variance shrinks.
    """
    weights = np.linalg.solve(among + np.diag(np.broadcast_to(noise, len(off)) ** 2), shared.T)
    return np.asarray(off @ weights), np.asarray((weights * shared.T).sum(axis=0))


_CACHES: list[Any] = []
_DOCUMENT: list[dict[str, Any]] = []


def fitted_cache(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A cache of what depends on fitted constants; ``assume`` empties it."""
    cached = lru_cache(maxsize=100_000)(function)
    _CACHES.append(cached)
    return cast("Callable[_P, _R]", cached)


@contextmanager
def assume(document: dict[str, Any]) -> Iterator[None]:
    """Predict from other constants than the shipped ones, as when a device is left out of the fit.

    Not for several threads at once.
    """
    _DOCUMENT.append(document)
    _forget()
    try:
        yield
    finally:
        _DOCUMENT.pop()
        _forget()


def _forget() -> None:
    for cached in _CACHES:
        cached.cache_clear()


@fitted_cache
def fitted_belief(name: str) -> Belief:
    """A fitted belief by name."""
    entry = fitted()["beliefs"][name]
    return Belief(np.array(entry["mean"]), np.array(entry["covariance"]))


@fitted_cache
def fitted_constants(name: str, architecture: str) -> Array:
    """Constants of one generation of devices, or of any where none of it was measured."""
    entry = fitted()["beliefs"][name]
    generation = architecture.removesuffix(" Ultra")  # a refresh of the same chip
    return np.array(entry.get("by_architecture", {}).get(generation, entry["mean"]))


def fitted() -> dict[str, Any]:
    """The whole document."""
    return _DOCUMENT[-1] if _DOCUMENT else _shipped()


@cache
def _shipped() -> dict[str, Any]:
    text = files(__package__).joinpath("fitted.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


class Interval(NamedTuple):
    """A 90 % interval."""

    low: float
    high: float

    @classmethod
    def around(cls, value: float, deviation: float) -> Interval:
        """The interval of a value whose logarithm has a standard deviation."""
        return cls(value * math.exp(-NINETY * deviation), value * math.exp(NINETY * deviation))


def interval_scale(task: str) -> float:
    """Factor of claimed deviations for a task at a level of evidence, from left-out groups."""
    return float(fitted()["intervals"].get(task, {}).get("scale", 1.0))


def correlation(task: str) -> float:
    """Correlation of two errors of the same left-out group."""
    return float(fitted()["intervals"].get(task, {}).get("correlation", 1.0))


def summed_deviation(values: Array, deviations: Array, correlated: float) -> float:
    """Relative standard deviation of a sum whose terms' errors are correlated.

    Args:
        values: Terms.
        deviations: Relative standard deviation of each.
        correlated: Correlation of any two errors; 1 for the same prediction many times.
    """
    spread = np.asarray(values, float) * np.asarray(deviations, float)
    variance = correlated * spread.sum() ** 2 + (1 - correlated) * (spread**2).sum()
    return float(math.sqrt(variance) / np.sum(values))
