"""Tails of the normal distribution, on arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from joulery.recurring.draws import Floats

# Chebyshev fit of erfcx on t = 1/(1 + z/2), relative error below 1.2e-7 for every z >= 0
# (Press et al., Numerical Recipes, "Special functions", erfcc).
_ERFCX = (
    0.17087277,
    -0.82215223,
    1.48851587,
    -1.13520398,
    0.27886807,
    -0.18628806,
    0.09678418,
    0.37409196,
    1.00002368,
    -1.26551223,
)
_FAR_BELOW = -6.0  # where the lower tail no longer shows in double precision of a mean


def _scaled_tail(z: Floats) -> Floats:
    """exp(z²)·erfc(z) for z >= 0."""
    t = 1.0 / (1.0 + 0.5 * z)
    return np.asarray(t * np.exp(np.polyval(_ERFCX, t)))


def density(z: Floats) -> Floats:
    """Of a standard normal variable."""
    return np.asarray(np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi))


def survival(z: Floats) -> Floats:
    """Probability that a standard normal variable exceeds ``z``."""
    x = np.abs(z) / np.sqrt(2.0)
    upper = 0.5 * np.exp(-x * x) * _scaled_tail(x)
    return np.asarray(np.where(z >= 0, upper, 1.0 - upper))


def hazard(z: Floats) -> Floats:
    """Density over survival at ``z``: the mean of a standard normal variable known to exceed it.

    Stays accurate where both underflow.
    """
    beyond = np.sqrt(2.0 / np.pi) / _scaled_tail(np.maximum(z, 0.0) / np.sqrt(2.0))
    below = np.clip(z, _FAR_BELOW, 0.0)
    return np.asarray(np.where(z >= 0, beyond, density(below) / survival(below)))
