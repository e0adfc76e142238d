"""What more devices and larger batches change: waiting power, and samples to the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.predict._assumptions import waiting_share

if TYPE_CHECKING:
    from joulery.predict._bayes import Array


def node_watts(busy_watts: float, efficiency: float) -> float:
    """Mean power of a node that works ``efficiency`` of the time and waits for others otherwise."""
    return busy_watts * (efficiency + (1.0 - efficiency) * waiting_share())


def samples_to_target(constants: Array, batch: Array) -> Array:
    """Logarithm of the samples until the target is reached, at each batch size.

    Below the critical batch size more samples per step cost no more samples in all; above it they
    buy nothing: ``samples = least * (1 + batch / critical)``.

    Args:
        constants: Logarithms of the least samples and of the critical batch size.
        batch: Batch sizes, in the unit of the critical one.
    """
    least, critical = constants
    return np.asarray(least + np.log1p(np.asarray(batch, float) / np.exp(critical)))
