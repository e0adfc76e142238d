"""Draw the charts of a sweep as one PNG, with matplotlib."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from joulery.errors import FileError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulery.cli.sweep_view.charts import Chart, Series

_COLOURS = ("#2563a8", "#b4500b", "#14743a", "#7c3aad", "#a3174f", "#57606a")
_MARKERS = ("o", "s", "^")
_COLUMNS = 2


def write_png(drawn: Sequence[Chart], title: str, path: Path) -> None:
    """Write all charts to ``path``.

    Raises:
        MissingExtraError: matplotlib is not installed.
        FileError: The file cannot be written.
    """
    try:
        # No pyplot: it would look for a display and keep the figure alive.
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(
            "matplotlib is not installed, so there is no PNG",
            remedy="pip install 'joulery[plots]'",
        ) from None
    rows = math.ceil(len(drawn) / _COLUMNS)
    figure = Figure(figsize=(12, 4 * rows + 0.5), dpi=120, layout="constrained")
    figure.suptitle(title)
    for position, chart in enumerate(drawn, start=1):
        _draw(chart, figure.add_subplot(rows, _COLUMNS, position))
    try:
        figure.savefig(path)
    except OSError as refused:
        raise FileError(
            f"cannot write {path}: {refused.strerror}", remedy="choose another folder with --out"
        ) from None


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
    colour = _COLOURS[position % len(_COLOURS)]
    across, upwards = zip(*line.points, strict=True)
    axes.errorbar(
        across,
        upwards,
        yerr=line.errors,
        label=line.name,
        color=colour,
        marker=_MARKERS[position % len(_MARKERS)],
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
