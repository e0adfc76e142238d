"""How far predictions are from measurements: errors per task, level of evidence and method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

# Half-width of a 90 % interval in standard deviations.
NINETY = 1.645


@dataclass(frozen=True, slots=True)
class Score:
    """Predictions of one method for one left-out group.

    Attributes:
        task: What is predicted.
        level: Evidence about the target: specs, elsewhere, or the number of probes.
        group: The device, workload or model that was left out.
        method: Ours or a simple baseline.
        errors: Absolute relative error of each prediction.
        covered: Whether the 90 % interval holds each measurement; None without intervals.
        width: Mean relative half-width of the intervals.
    """

    task: str
    level: str
    group: str
    method: str
    errors: Array
    covered: Array | None = None
    width: float = 0.0

    @property
    def mean(self) -> float:
        """Mean absolute percentage error."""
        return 100.0 * float(np.mean(self.errors))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        cover = None if self.covered is None else round(100 * float(np.mean(self.covered)), 1)
        return {
            "task": self.task,
            "level": self.level,
            "group": self.group,
            "method": self.method,
            "error_per_cent": round(self.mean, 2),
            "median_per_cent": round(100 * float(np.median(self.errors)), 2),
            "predictions": len(self.errors),
            "covered_per_cent": cover,
            "half_width_per_cent": round(100 * self.width, 1),
        }


def scored(
    labels: tuple[str, str, str, str],
    predicted: Array,
    measured: Array,
    deviation: Array | float | None = None,
) -> Score:
    """Score of log-predictions.

    Args:
        labels: Task, level, group and method.
        predicted: Logarithms of the predictions.
        measured: Logarithms of the measurements.
        deviation: Standard deviation of the log-predictions, for intervals.
    """
    off = np.asarray(predicted) - np.asarray(measured)
    errors = np.abs(np.expm1(off))
    if deviation is None:
        return Score(*labels, errors)
    half = NINETY * np.broadcast_to(np.asarray(deviation, float), off.shape)
    return Score(*labels, errors, np.abs(off) <= half, float(np.mean(np.expm1(half))))


def pooled(scores: list[Score]) -> dict[tuple[str, str, str], list[Score]]:
    """Scores by task, level and method."""
    found: dict[tuple[str, str, str], list[Score]] = {}
    for score in scores:
        found.setdefault((score.task, score.level, score.method), []).append(score)
    return found
