"""Error per left-out device and per method as charts, for the benchmark's page."""

from __future__ import annotations

from typing import Any

from joulery.reports import Axis, Chart, Heading, Report, Series, Table


def error_report(rows: list[dict[str, Any]]) -> Report:
    """One chart per task: every method over what was left out, and a table of the means."""
    parts: list[Any] = []
    for task in dict.fromkeys((row["task"], row["level"]) for row in rows):
        mine = [row for row in rows if (row["task"], row["level"]) == task]
        if mine[0]["groups"]:
            parts += [Heading(", ".join(task)), _chart(task, mine), _table(mine)]
    return Report("How far predictions are off", "measured", tuple(parts), "benchmarks/predict.py")


def _chart(task: tuple[str, str], rows: list[dict[str, Any]]) -> Chart:
    groups = list(dict.fromkeys(group for row in rows for group in row["groups"]))
    series = tuple(
        Series(
            row["method"],
            tuple((float(groups.index(group)), error) for group, error in row["groups"].items()),
            tips=tuple(
                f"{row['method']}, {group}: {e:.1f} %" for group, e in row["groups"].items()
            ),
            line="",
            symbol="star" if row["method"] == "ours" else "dot",
            colour=colour,
            emphasis=row["method"] == "ours",
        )
        for colour, row in enumerate(rows)
    )
    names = ", ".join(f"{place} {group}" for place, group in enumerate(groups))
    return Chart(
        f"{task[0]}, {task[1]}",
        Axis(f"left out: {names}", ticks=tuple(float(place) for place in range(len(groups)))),
        Axis("mean absolute error in %"),
        series,
        f"Mean absolute percentage error of each method for {names}.",
    )


def _table(rows: list[dict[str, Any]]) -> Table:
    groups = list(dict.fromkeys(group for row in rows for group in row["groups"]))
    cells = [
        [
            row["method"],
            f"{row['error_per_cent']:.1f}",
            *(f"{row['groups'][g]:.1f}" if g in row["groups"] else "" for g in groups),
        ]
        for row in rows
    ]
    return Table(["method", "mean", *groups], cells, "l" + "r" * (1 + len(groups)))
