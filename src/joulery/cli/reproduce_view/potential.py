"""Draw what knowing everything would save: Fig. 1/15, 2/16, 17 and 18."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from joulery.cli.picture import COLOURS
from joulery.cli.reproduce_view.theme import (
    INK,
    PAPER,
    SOFT,
    legend_below,
    network,
    panels,
    per_workload,
    plain_ticks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.simulate.reproduce_rows import FigureData, Rows

_BARS = (
    ("batch_size_only", "best batch size", COLOURS[0], "//"),
    ("limit_only", "best power limit", COLOURS[1], ".."),
    ("joint", "both", COLOURS[2], ""),
)


def savings_potential(data: FigureData) -> Iterator[tuple[str, Any]]:
    """Bars per workload, one panel per GPU."""
    gpus = data.main.distinct("gpu")
    figure, axes = panels([str(gpu).upper() for gpu in gpus], 2, (6.2, 3.3))
    for gpu, panel in zip(gpus, axes, strict=True):
        rows = data.main.where(gpu=gpu)
        for position, (column, label, colour, hatch) in enumerate(_BARS):
            places = [row + (position - 1) * 0.27 for row in range(len(rows))]
            heights = rows.numbers(column)
            panel.bar(
                places, heights, 0.25, color=colour, label=label, hatch=hatch, edgecolor=PAPER
            )
            if column == "joint":
                for place, height in zip(places, heights, strict=True):
                    panel.annotate(
                        f"−{100 * (1 - height):.1f} %",
                        (place, 0.02),
                        rotation=90,
                        ha="center",
                        va="bottom",
                        fontsize=8,
                        color=PAPER,
                        fontweight="bold",
                    )
        panel.axhline(1, color=SOFT, linewidth=1, linestyle="--")
        panel.set_xticks(range(len(rows)), [network(str(w)) for w in rows.column("workload")])
        panel.tick_params("x", rotation=18)
        panel.set_ylim(0, 1.12)
        panel.set_ylabel("energy, Default = 1")
        panel.grid(visible=False, axis="x")
    legend_below(figure, axes)
    yield "", figure


def fronts(data: FigureData) -> Iterator[tuple[str, Any]]:
    """One picture per GPU, one panel per workload, zoomed in on the front."""
    return per_workload(data, (4.6, 3.7), _front, ": labels are batch size, power limit in W")


def _front(panel: Any, rows: Rows) -> None:
    front = rows.where(pareto=True)
    default = rows.where(default=True)
    time, size, unit = _scaled(rows, default)
    places = sorted(zip(time(front), size(front), _settings(front), strict=True))
    panel.scatter(
        time(rows), size(rows), s=12, marker="x", color=SOFT, linewidths=0.8, label="other settings"
    )
    panel.plot(
        [x for x, _, _ in places],
        [y for _, y, _ in places],
        color=COLOURS[2],
        marker="o",
        markersize=4.5,
        linewidth=1.2,
        label="Pareto front",
    )
    panel.scatter(
        time(default), size(default), s=55, marker="D", color=COLOURS[1], zorder=4, label="Default"
    )
    _zoom(panel, places, (time(default), size(default)))
    _captions(panel, places)
    panel.set_xlabel(f"time to accuracy in {unit[0]}")
    panel.set_ylabel(f"energy to accuracy in {unit[1]}")


def _scaled(rows: Rows, default: Rows) -> tuple[Any, Any, tuple[str, str]]:
    seconds = (default if len(default) else rows).numbers("tta_seconds")[0]
    joules = (default if len(default) else rows).numbers("eta_joules")[0]
    across, hours = (
        (3600.0, "h") if seconds > 7200 else (60.0, "min") if seconds > 300 else (1, "s")
    )
    up, unit = (1e6, "MJ") if joules > 2e6 else (1e3, "kJ")
    return (
        lambda part: [value / across for value in part.numbers("tta_seconds")],
        lambda part: [value / up for value in part.numbers("eta_joules")],
        (hours, unit),
    )


def _settings(rows: Rows) -> list[str]:
    pairs = zip(rows.numbers("batch_size"), rows.numbers("limit_watts"), strict=True)
    return [f"{batch:g}, {watts:g}" for batch, watts in pairs]


def _zoom(
    panel: Any, front: list[tuple[float, float, str]], default: tuple[list[float], list[float]]
) -> None:
    """Show the front and the default with room around them; farther settings are cut off."""
    for values, limit in (
        ([x for x, _, _ in front] + default[0], panel.set_xlim),
        ([y for _, y, _ in front] + default[1], panel.set_ylim),
    ):
        low, high = min(values), max(values)
        room = 0.16 * (high - low) or 0.1 * high
        limit(low - room, high + 1.4 * room)


def _captions(panel: Any, front: list[tuple[float, float, str]]) -> None:
    """Name the points of the front, skipping those whose names would cover another's."""
    (left, right), (bottom, top) = panel.get_xlim(), panel.get_ylim()
    taken: list[tuple[float, float]] = []
    ends = {0, len(front) - 1}
    order = sorted(range(len(front)), key=lambda number: number not in ends)
    for number in order:
        x, y, text = front[number]
        place = ((x - left) / (right - left), (y - bottom) / (top - bottom))
        if any(abs(place[0] - a) < 0.24 and abs(place[1] - b) < 0.062 for a, b in taken):
            continue
        taken.append(place)
        panel.annotate(
            text,
            (x, y),
            xytext=(6, 3),
            textcoords="offset points",
            fontsize=7,
            color=INK,
            bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.65, "pad": 0.4},
        )


def by_batch_size(data: FigureData) -> Iterator[tuple[str, Any]]:
    """One picture per GPU: ETA over batch size, with the spread of the runs."""
    return per_workload(data, (4.2, 2.9), _over_batch_size)


def _over_batch_size(panel: Any, rows: Rows) -> None:
    up, unit = _joules(rows.numbers("eta_joules"))
    across = rows.numbers("batch_size")

    def scaled(column: str) -> list[float]:
        return [value / up for value in rows.numbers(column)]

    panel.fill_between(
        across,
        scaled("eta_joules_least_run"),
        scaled("eta_joules_most_run"),
        color=COLOURS[0],
        alpha=0.2,
        linewidth=0,
        label="range over runs",
    )
    panel.plot(
        across,
        scaled("eta_joules"),
        color=COLOURS[0],
        marker="o",
        markersize=4,
        label="best limit",
    )
    panel.plot(
        across,
        scaled("eta_joules_at_highest_limit"),
        color=COLOURS[1],
        linestyle="--",
        marker="s",
        markersize=3,
        linewidth=1,
        label="highest limit",
    )
    _mark_default(panel, rows)
    panel.set_xscale("log", base=2)
    _whole_ticks(panel, across)
    _energy_scale(panel, scaled("eta_joules"))
    panel.set_xlabel("batch size")
    panel.set_ylabel(f"energy in {unit}")


def _energy_scale(panel: Any, heights: list[float]) -> None:
    """Logarithmic where the worst batch sizes would press the interesting ones to the ground."""
    if max(heights) > 8 * min(heights):
        panel.set_yscale("log")
        plain_ticks(panel.yaxis)
    else:
        panel.set_ylim(bottom=0)


def _mark_default(panel: Any, part: Rows) -> None:
    found = part.where(default=True).numbers("batch_size")
    if found:
        panel.axvline(found[0], color=SOFT, linewidth=1, linestyle=":", label="default batch size")


def _whole_ticks(panel: Any, across: list[float]) -> None:
    """At most eight batch sizes below the axis, apart enough to read."""
    wanted = [across[0]]
    span = math.log2(across[-1] / across[0]) or 1.0
    for value in across[1:]:
        if math.log2(value / wanted[-1]) >= span / 8:
            wanted.append(value)
    panel.set_xticks(wanted, [f"{value:g}" for value in wanted])
    panel.minorticks_off()


def _joules(values: list[float]) -> tuple[float, str]:
    return (1e6, "MJ") if max(values) >= 2e6 else (1e3, "kJ")


def by_limit(data: FigureData) -> Iterator[tuple[str, Any]]:
    """One picture per GPU: ETA over the power limit."""
    return per_workload(data, (4.2, 2.9), _over_limit)


def _over_limit(panel: Any, rows: Rows) -> None:
    up, unit = _joules(rows.numbers("eta_joules_default"))
    for column, label, colour, marker in (
        ("eta_joules_default", "default batch size", COLOURS[1], "s"),
        ("eta_joules_best", "batch size of least energy", COLOURS[2], "o"),
    ):
        heights = [value / up for value in rows.numbers(column)]
        panel.plot(
            rows.numbers("limit_watts"),
            heights,
            color=colour,
            marker=marker,
            # Where both are the same, the default's square shows around the dot.
            markersize=7 if marker == "s" else 4,
            markerfacecolor="none" if marker == "s" else colour,
            label=label,
        )
    panel.set_ylim(bottom=0)
    panel.set_xlabel("power limit in W")
    panel.set_ylabel(f"energy in {unit}")
