"""Draw a frontier as a PNG, with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.cli.frontier_view.axis import joules_axis, seconds_axis
from joulery.cli.frontier_view.view import Kind
from joulery.cli.picture import COLOURS, new_figure, write_figure

if TYPE_CHECKING:
    from pathlib import Path

    from joulery.cli.frontier_view.view import FrontierView

# Marker, colour and area in square points.
_STYLES = {
    Kind.DOMINATED: ("x", "#8a8f98", 40.0),
    Kind.FRONTIER: ("o", COLOURS[0], 36.0),
    Kind.DEFAULT: ("D", "#c2570c", 64.0),
    Kind.CHOSEN: ("*", "#15803d", 220.0),
}


def write_png(view: FrontierView, path: Path) -> None:
    """Write the drawing to ``path``.

    Raises:
        MissingExtraError: matplotlib is not installed.
        FileError: The file cannot be written.
    """
    figure = new_figure(8, 5, 150)
    axes = figure.add_subplot()
    time = seconds_axis([point.seconds for point in view.points])
    energy = joules_axis([point.joules for point in view.points])
    axes.plot(
        [point.seconds / time.unit.size for point in view.frontier],
        [point.joules / energy.unit.size for point in view.frontier],
        color=COLOURS[0],
        linewidth=1.2,
        alpha=0.6,
    )
    for mark in view.marks():
        place = (mark.point.seconds / time.unit.size, mark.point.joules / energy.unit.size)
        named = mark.kind in (Kind.DEFAULT, Kind.CHOSEN)
        marker, colour, area = _STYLES[mark.kind]
        axes.scatter(*place, s=area, marker=marker, color=colour, zorder=3)
        # To the right of its mark, except where it would leave the frame.
        fits = time.share(mark.point.seconds) < 0.85
        axes.annotate(
            view.caption(mark),
            place,
            xytext=(8 if fits else -8, 6),
            textcoords="offset points",
            horizontalalignment="left" if fits else "right",
            fontsize=9,
            color=colour if named else "black",
        )
    axes.set_xlim(time.low, time.high)
    axes.set_ylim(energy.low, energy.high)
    axes.set_xlabel(f"time in {time.unit.name} ({view.origin})")
    axes.set_ylabel(f"energy in {energy.unit.name} ({view.origin})")
    axes.set_title(view.title)
    axes.grid(alpha=0.25)
    write_figure(figure, path)
