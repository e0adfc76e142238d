"""How far predictions are from measurements: errors per task, level of evidence and method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.prediction.models import NINETY, NINETY_BELOW
from joulery.reports import table_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score:
    """Predictions of one method for one left-out group.

    Attributes:
        task: What is predicted.
        level: Evidence about the target: specs, or the number of probes.
        group: The device, system or source that was left out.
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


def scored(
    labels: tuple[str, str, str, str],
    predicted: Iterable[float],
    measured: Iterable[float],
    deviation: Iterable[float] | None = None,
) -> Score:
    """Score of predictions.

    Args:
        labels: Task, level, group and method.
        predicted: Predictions.
        measured: Measurements.
        deviation: Standard deviations of the logarithms, for intervals.
    """
    off = np.log(list(predicted)) - np.log(list(measured))
    return Score(*labels, off, None if deviation is None else np.array(list(deviation), float))


def summaries(scores: Iterable[Score]) -> list[dict[str, Any]]:
    """One row per task, level and method, ready for JSON."""
    pools: dict[tuple[str, str, str], list[Score]] = {}
    for score in scores:
        if len(score.off):
            pools.setdefault((score.task, score.level, score.method), []).append(score)
    return [_summary(key, members) for key, members in pools.items()]


def _summary(key: tuple[str, str, str], members: list[Score]) -> dict[str, Any]:
    groups: dict[str, list[Score]] = {}
    for score in members:
        groups.setdefault(score.group, []).append(score)
    errors = {
        name: 100 * float(np.concatenate([score.errors for score in own]).mean())
        for name, own in groups.items()
    }
    every = np.concatenate([score.errors for score in members])
    row: dict[str, Any] = {
        **dict(zip(("task", "level", "method"), key, strict=True)),
        "error_per_cent": round(float(np.mean(list(errors.values()))), 2),
        "rows_per_cent": round(100 * float(every.mean()), 2),
        "worst_per_cent": round(100 * float(every.max()), 2),
        "predictions": len(every),
        "groups": {name: round(value, 1) for name, value in errors.items()},
    }
    if members[0].deviation is not None:
        row |= _intervals(groups)
    return row


def _intervals(groups: dict[str, list[Score]]) -> dict[str, Any]:
    """Coverage of 90 % intervals, in all and by group, and their mean half-width."""
    covered, below, widths = {}, [], []
    for name, own in groups.items():
        off = np.concatenate([score.off for score in own])
        claimed = np.concatenate([score.deviation for score in own])  # type: ignore[misc]
        covered[name] = np.abs(off) <= NINETY * claimed
        below.append(off >= -NINETY_BELOW * claimed)
        widths.append(float(np.mean(np.expm1(NINETY * claimed))))
    every = np.concatenate(list(covered.values()))
    return {
        "covered_per_cent": round(100 * float(every.mean()), 1),
        "kept_per_cent": round(100 * float(np.concatenate(below).mean()), 1),
        "half_width_per_cent": round(100 * float(np.mean(widths)), 1),
        "covered_by_group": {
            name: round(100 * float(inside.mean()), 1) for name, inside in covered.items()
        },
    }


def report(rows: list[dict[str, Any]]) -> str:
    """One row per task, level and method; groups side by side."""
    heads = ["task", "evidence", "method", "error %", "inside %", "kept %", "± %", "left out"]

    def cell(row: dict[str, Any], name: str) -> str:
        return f"{row[name]:.0f}" if name in row else ""

    cells = [
        [
            *(row["task"], row["level"], row["method"], f"{row['error_per_cent']:.1f}"),
            *(cell(row, f"{name}_per_cent") for name in ("covered", "kept", "half_width")),
            " ".join(f"{group[:24]} {value:.0f}" for group, value in row["groups"].items()),
        ]
        for row in rows
    ]
    return table_text(heads, cells, "lllrrrr")


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Mean error per task, level and method, and the coverage of our intervals."""
    values: dict[str, float] = {}
    for row in rows:
        name = f"{row['task']}, {row['level']}, {row['method']}"
        values[name] = row["error_per_cent"]
        if "covered_per_cent" in row:
            values[f"{name}, covered"] = row["covered_per_cent"]
    return values
