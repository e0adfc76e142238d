"""Fit constants and error bars of ``joulery.prediction`` to measurements, and choose probes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.prediction.models import NINETY, STREAM, Belief, Kernels, condition, wanted_power

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from joulery.prediction import Accelerator

    Array = NDArray[np.float64]
    Model = Callable[[Array], Array]

# Added to variances, so that a population without any scatter still has an inverse.
_JITTER = 1e-6
# A member of a population counts for so many independent measurements at most.
_EFFECTIVE = 100
# A model's own claim counts like so many left-out groups; chosen on the tasks of
# benchmarks/predict.py, leaving each group out in turn.
_CLAIM_GROUPS = 3
# How sharply the power limit cuts.
_LIMIT_EDGE = 8


def population(
    members: Sequence[tuple[Model, Array]],
    start: Belief,
    noise: float,
    *,
    weights: Sequence[float] | None = None,
    rounds: int = 4,
) -> Belief:
    """Belief in the constants of a further member of a population (empirical Bayes).

    Each round fits every member with the population as its prior, then takes mean and spread of
    the fits. The spread never falls below the starting one: few members say little about it. With
    many members the constants' correlations count as well.

    Args:
        members: A model and the logarithms of its measurements per device or run; without any, the
            first guess stands.
        start: First guess; its deviations are the smallest that the result may have.
        noise: Standard deviation of a measurement around the model.
        weights: How much each member counts; alike where None.
        rounds: Number of alternations.
    """
    if not members:
        return start
    share = np.ones(len(members)) if weights is None else np.asarray(weights, float)
    share = share / share.sum()
    belief = Belief.independent(start.mean, 2.0 * start.deviation)
    for _ in range(rounds):
        fits = np.array(
            [
                belief.update(
                    model, measured, noise * max(1.0, len(measured) / _EFFECTIVE) ** 0.5
                ).mean
                for model, measured in members
            ]
        )
        mean = share @ fits
        away = fits - mean
        scatter = away.T @ (share[:, None] * away) / max(1 - (share**2).sum(), 1e-9)
        if len(fits) < 3 * len(mean):  # too few to tell how the constants hang together
            scatter = np.diag(np.diag(scatter))
        missing = np.maximum(start.deviation**2 - np.diag(scatter), 0.0)
        belief = Belief(mean, scatter + np.diag(missing + _JITTER))
    return belief


def best_probes(covariance: Array, count: int, noise: float) -> list[int]:
    """The cases to measure, one after the other, so that least variance remains in all."""
    chosen: list[int] = []
    for _ in range(count):
        removed = (covariance**2).sum(axis=0) / (np.diag(covariance) + noise**2)
        removed[chosen] = 0.0
        chosen.append(int(np.argmax(removed)))
        covariance = condition(covariance, chosen[-1:], noise)
    return chosen


def conformal_scale(groups: Sequence[tuple[Array, Array]]) -> float:
    """Factor of claimed deviations at which 90 % intervals hold for a further group.

    Every group counts alike, and the claim itself like three groups that it fits. Few groups say
    little about the next one, so the factor is that of Student's distribution.

    Args:
        groups: Log-errors and claimed standard deviations per left-out group.
    """
    if not groups:
        return 1.0
    found = [(np.quantile(np.abs(off) / claimed, 0.9) / NINETY) ** 2 for off, claimed in groups]
    known = len(groups) + _CLAIM_GROUPS
    variance = (sum(found) + _CLAIM_GROUPS) / known
    return float(variance**0.5) * _student(known) / NINETY


def _student(freedom: int) -> float:
    """95 % quantile of Student's distribution, within 1 % from 4 degrees of freedom on."""
    z = NINETY
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def shared_correlation(groups: Sequence[tuple[Array, Array]]) -> float:
    """Correlation of two errors of the same group, every group counting alike.

    Errors are in units of their claims; few groups say little, so the correlation grows by a part
    of what is missing to 1.
    """
    pairs, total = 0.0, 0.0
    for off, claimed in groups:
        ratio, count = off / claimed, len(off)
        squares = float((ratio**2).sum())
        if count > 1:
            pairs += (float(ratio.sum()) ** 2 - squares) / (count * (count - 1))
            total += squares / count
    if not total:
        return 1.0
    found = min(max(pairs / total, 0.0), 1.0)
    return found + (1 - found) * 0.3 / len(groups)


def matmuls(
    shape: Sequence[Array],
    element_bytes: float,
    rates: tuple[float, float],
    copies: float = np.inf,
) -> Kernels:
    """Columns of plain matrix products.

    Args:
        shape: Batch, rows, columns and inner dimension of each.
        element_bytes: Bytes of an element.
        rates: Peak of single kernels and of long dense work, as :meth:`Accelerator.rates`.
        copies: Number of weight matrices that are used in turn before one comes again.
    """
    batch, rows, columns, inner = (np.asarray(part, float) for part in shape)
    weights = batch * columns * inner * element_bytes
    ones = np.ones_like(rows)
    return Kernels(
        kind=0 * ones,
        batch=batch,
        rows=rows,
        columns=columns,
        inner=inner,
        operations=2 * batch * rows * columns * inner,
        weight_bytes=weights,
        activation_bytes=batch * rows * (columns + inner) * element_bytes,
        weight_footprint=weights * copies,
        element_bytes=element_bytes * ones,
        peak=rates[0] * ones,
        fed=rates[1] * ones,
        count=ones,
    )


def streams(activation_bytes: Array, weight_bytes: Array | float = 0.0) -> Kernels:
    """Columns of operators that only move data."""
    traffic = np.asarray(activation_bytes, float)
    ones, zeros = np.ones_like(traffic), np.zeros_like(traffic)
    return Kernels(
        kind=STREAM * ones,
        batch=ones,
        rows=zeros,
        columns=zeros,
        inner=zeros,
        operations=zeros,
        weight_bytes=weight_bytes + zeros,
        activation_bytes=traffic,
        weight_footprint=np.inf * ones,
        element_bytes=ones,
        peak=ones,
        fed=ones,
        count=ones,
    )


def joined(parts: Sequence[Kernels]) -> Kernels:
    """Columns of several sets of operators, one below the other."""
    return Kernels(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in Kernels.__slots__)
    )


def kernel_power(constants: Array, device: Accelerator, kernels: Kernels, seconds: Array) -> Array:
    """Watts while kernels run for ``seconds`` each, under the default power limit."""
    wanted = wanted_power(constants, device, kernels, seconds)
    return np.asarray(device.limit_watts * (wanted**-_LIMIT_EDGE + 1.0) ** (-1 / _LIMIT_EDGE))
