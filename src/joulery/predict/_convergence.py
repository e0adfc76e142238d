"""Samples until the target is reached, against batch size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.predict._bayes import Belief
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.predict._bayes import Array

# Relative to the smallest batch and its samples; chosen on MLPerf's reference points, leaving
# each batch size out in turn.
_START = Belief.independent(np.array([0.0, 1.0]), np.array([1.0, 1.5]))
_NOISE = 0.05


@dataclass(frozen=True, slots=True)
class Convergence:
    """Samples to the target: ``least * (1 + batch / critical)``.

    Below the critical batch size more samples per step cost no more samples in all; above it they
    buy nothing.

    Attributes:
        critical_batch: Critical batch size, in samples (sequences, for language models).
    """

    critical_batch: float

    def __post_init__(self) -> None:
        finite(self.critical_batch, "critical batch size", minimum=1e-9)

    def factor(self, batch: float, reference: float) -> float:
        """Samples to the target at a batch size, relative to those at the reference."""
        return (1 + batch / self.critical_batch) / (1 + reference / self.critical_batch)

    @classmethod
    def fitted(cls, points: Sequence[tuple[float, float]]) -> Convergence:
        """Convergence through measured pairs of batch size and samples to the target."""
        if len({batch for batch, _ in points}) < 2:
            raise InvalidValueError(
                "a critical batch size needs two batch sizes",
                remedy="give the samples to the target at two batch sizes or more",
            )
        batch, samples = np.array(sorted(points), float).T

        def model(constants: Array) -> Array:
            return np.asarray(constants[0] + np.log1p(batch / batch[0] / np.exp(constants[1])))

        after = _START.update(model, np.log(samples / samples[0]), _NOISE)
        return cls(float(np.exp(after.mean[1]) * batch[0]))
