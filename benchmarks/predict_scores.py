"""How far predictions are from measurements: errors per task, level of evidence and method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from predict_fitting import conformal_scale, shared_correlation

from joulery.prediction.models import (
    NINETY,
    NINETY_BELOW,
    fitted,
    fitted_belief,
    fitted_on,
    summed_deviation,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from joulery.prediction.models import (
        Belief,
    )

    Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score:
    """Predictions of one method for one left-out group.

    Attributes:
        task: What is predicted.
        level: Evidence about the target: specs, elsewhere, or the number of probes.
        group: The device, workload or model that was left out.
        method: Ours or a simple baseline.
        off: Log-prediction minus log-measurement.
        deviation: Standard deviation that each log-prediction claims; None without intervals.
    """

    task: str
    level: str
    group: str
    method: str
    off: Array
    deviation: Array | None = None

    @property
    def errors(self) -> Array:
        """Absolute relative error of each prediction."""
        return np.abs(np.expm1(self.off))

    @property
    def mean(self) -> float:
        """Mean absolute percentage error."""
        return 100.0 * float(np.mean(self.errors))


@dataclass(frozen=True, slots=True)
class Interval:
    """How 90 % intervals of one group did.

    Attributes:
        covered: Whether each interval held its measurement.
        kept: Whether each measurement stayed below its one-sided 90 % bound, as deadlines must.
        width: Mean relative half-width.
    """

    covered: Array
    kept: Array
    width: float


def prior_of(name: str, target: str, fit: Callable[[], Belief]) -> Belief:
    """What may be known about a target: the shipped belief, unless the target stands behind it.

    Args:
        name: Name of the shipped belief.
        target: Device or system to be predicted.
        fit: Fit without the target.
    """
    return fit() if target in fitted_on(name) else fitted_belief(name)


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
    if deviation is None:
        return Score(*labels, off)
    return Score(*labels, off, np.broadcast_to(np.asarray(deviation, float), off.shape))


def pooled(scores: list[Score]) -> dict[tuple[str, str, str], list[Score]]:
    """Scores by task, level and method."""
    found: dict[tuple[str, str, str], list[Score]] = {}
    for score in scores:
        found.setdefault((score.task, score.level, score.method), []).append(score)
    return found


def by_group(members: list[Score]) -> dict[str, float]:
    """Mean error per left-out group."""
    groups: dict[str, list[float]] = {}
    for one in members:
        groups.setdefault(one.group, []).append(one.mean)
    return {group: float(np.mean(values)) for group, values in groups.items()}


def intervals(members: list[Score]) -> dict[str, Interval]:
    """90 % intervals per group.

    A group that the shipped scale stands on is judged by the scale of the other groups, any other
    by the shipped one: a group's own measurements never set the width of its intervals.
    """
    claimed = [one for one in members if one.deviation is not None]
    found = {}
    for group in dict.fromkeys(one.group for one in claimed):
        scale = _scale(group, claimed)
        own = [one for one in claimed if one.group == group]
        off = np.concatenate([one.off for one in own])
        deviation = scale * np.concatenate([one.deviation for one in own])  # type: ignore[misc]
        half = NINETY * deviation
        kept = off >= -NINETY_BELOW * deviation
        found[group] = Interval(np.abs(off) <= half, kept, float(np.mean(np.expm1(half))))
    return found


def _scale(group: str, claimed: list[Score]) -> float:
    known = fitted()["intervals"].get(family(claimed[0]))
    if known is not None and group not in known["groups"]:
        return float(known["scale"])
    return conformal_scale(by_claim([one for one in claimed if one.group != group]))


def family(score: Score) -> str:
    """Name of the shipped scale of a task at a level of evidence."""
    task = "step from operators" if "from operators" in score.task else score.task
    return f"{task}, {score.level}"


def by_claim(claimed: list[Score]) -> list[tuple[Array, Array]]:
    """Errors and claimed deviations per group."""
    groups: dict[str, list[Score]] = {}
    for one in claimed:
        groups.setdefault(one.group, []).append(one)
    return [
        (
            np.concatenate([one.off for one in own]),
            np.concatenate([one.deviation for one in own]),  # type: ignore[misc]
        )
        for own in groups.values()
    ]


SUMS, TERMS = 200, 20


def sum_row(members: list[Score]) -> dict[str, Any] | None:
    """How intervals of sums of equal terms did, with the errors' correlation and without.

    Scale and correlation come from the groups that were not left out; None with fewer than two.
    """
    groups = by_claim([one for one in members if one.deviation is not None])
    groups = [pair for pair in groups if len(pair[0]) >= TERMS]
    if len(groups) < 2:
        return None
    inside: dict[str, list[float]] = {"correlated": [], "independent": []}
    found = []
    for left, (off, claimed) in enumerate(groups):
        others = [pair for place, pair in enumerate(groups) if place != left]
        scale, together = conformal_scale(others), shared_correlation(others)
        found.append(together)
        draw = np.random.default_rng(0)
        for _ in range(SUMS):
            rows = draw.permutation(len(off))[:TERMS]
            error = abs(np.log(np.mean(np.exp(off[rows]))))
            for name, correlation in (("correlated", together), ("independent", 0.0)):
                width = summed_deviation(np.ones(TERMS), scale * claimed[rows], correlation)
                inside[name].append(float(error <= NINETY * width))
    return {
        "task": f"sum of {TERMS}: {members[0].task}",
        "level": members[0].level,
        "correlation": round(float(np.mean(found)), 2),
        "covered_per_cent": round(100 * float(np.mean(inside["correlated"])), 1),
        "covered_as_if_independent": round(100 * float(np.mean(inside["independent"])), 1),
    }


def summary(members: list[Score]) -> dict[str, Any]:
    """One row of the report, ready for JSON."""
    groups, found = by_group(members), intervals(members)
    errors = np.concatenate([one.errors for one in members])
    row: dict[str, Any] = {
        "task": members[0].task,
        "level": members[0].level,
        "method": members[0].method,
        "error_per_cent": round(float(np.mean(list(groups.values()))), 2),
        "median_per_cent": round(100 * float(np.median(errors)), 2),
        "worst_per_cent": round(100 * float(np.max(errors)), 2),
        "predictions": len(errors),
        "groups": {group: round(value, 2) for group, value in groups.items()},
    }
    if found:
        cover = np.concatenate([one.covered for one in found.values()])
        kept = np.concatenate([one.kept for one in found.values()])
        row["kept_per_cent"] = round(100 * float(np.mean(kept)), 1)
        row["covered_per_cent"] = round(100 * float(np.mean(cover)), 1)
        row["covered_by_group"] = {
            group: round(100 * float(np.mean(one.covered)), 1) for group, one in found.items()
        }
        row["half_width_per_cent"] = round(
            100 * float(np.mean([one.width for one in found.values()])), 1
        )
    return row
