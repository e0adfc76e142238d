"""Draw the charts of a sweep as one PNG, with matplotlib."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from joulery.cli.picture import COLOURS, MARKERS, new_figure, write_figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulery.cli.sweep_view.charts import Chart, Series

_COLUMNS = 2


def write_png(drawn: Sequence[Chart], title: str, path: Path) -> None:
    """Write all charts to ``path``.

    Raises:
        MissingExtraError: matplotlib is not installed.
        FileError: The file cannot be written.
    """
    rows = math.ceil(len(drawn) / _COLUMNS)
    figure = new_figure(12, 4 * rows + 0.5)
    figure.suptitle(title)
    for position, chart in enumerate(drawn, start=1):
        _draw(chart, figure.add_subplot(rows, _COLUMNS, position))
    write_figure(figure, path)


def _draw(chart: Chart, axes: Any) -> None:
    across, upwards = chart.x_axis(), chart.y_axis()
    if chart.reference is not None:
        axes.axhline(chart.reference, color="#57606a", linewidth=1, linestyle="--")
    for position, line in enumerate(chart.series):
        _draw_line(line, position, axes)
    axes.set_xlim(across.low, across.high)
    axes.set_ylim(upwards.low, upwards.high)
    if chart.x_ticks:
        axes.set_xticks(chart.x_ticks)
    axes.set_xlabel(chart.x_name)
    axes.set_ylabel(chart.y_name)
    axes.set_title(chart.title, fontsize=11)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=9)


def _draw_line(line: Series, position: int, axes: Any) -> None:
    colour = COLOURS[position % len(COLOURS)]
    across, upwards = zip(*line.points, strict=True)
    axes.errorbar(
        across,
        upwards,
        yerr=line.errors,
        label=line.name,
        color=colour,
        marker=MARKERS[position % len(MARKERS)],
        markersize=4,
        linewidth=1.4,
        capsize=2,
    )
    if line.best is not None:
        place = line.points[line.best]
        axes.scatter(*place, s=150, marker="*", color=colour, zorder=3)
        axes.annotate(
            f"{place[0]:g} W",
            place,
            xytext=(0, 9),
            textcoords="offset points",
            horizontalalignment="center",
            fontsize=9,
            fontweight="bold",
            color=colour,
        )
