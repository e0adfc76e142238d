"""Draw what policies come to: Fig. 6/23, 7/19, 9 and 14."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulery.cli.picture import COLOURS
from joulery.cli.reproduce_view.theme import (
    INK,
    PAPER,
    POLICY_COLOURS,
    POLICY_HATCHES,
    SOFT,
    legend_below,
    network,
    panels,
    per_workload,
    plain_ticks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from joulery.simulate.reproduce_rows import FigureData, Rows

_MEASURES = (
    ("eta", "energy, Default = 1"),
    ("tta", "time, Default = 1"),
)
# Grid search may waste a hundred times what Default takes; the bars that matter are near one.
_HIGHEST_BAR = 1.75


def last_five(data: FigureData) -> Iterator[tuple[str, Any]]:
    """Energy on the left, time on the right, one row per GPU."""
    gpus = data.main.distinct("gpu")
    names = [f"{str(gpu).upper()}: {what}" for gpu in gpus for what in ("energy", "time")]
    figure, axes = panels(names, 2, (6.2, 3.0))
    for row, gpu in enumerate(gpus):
        rows = data.main.where(gpu=gpu)
        for column, (measure, name) in enumerate(_MEASURES):
            panel = axes[2 * row + column]
            _policy_bars(
                panel, rows, f"{measure}_vs_default", (f"{measure}_low", f"{measure}_high")
            )
            _optimum_marks(panel, rows, f"optimal_{measure}_vs_default")
            panel.set_ylabel(name)
    legend_below(figure, axes)
    yield "", figure


def _policies(rows: Rows) -> list[str]:
    return [str(policy) for policy in rows.distinct("policy") if policy != "default"]


def _policy_bars(
    panel: Any, rows: Rows, column: str, interval: tuple[str, str] | None = None
) -> None:
    """One group of bars per workload, one bar per policy."""
    policies = _policies(rows)
    loads = rows.distinct("workload")
    width = 0.8 / len(policies)
    for position, policy in enumerate(policies):
        part = rows.where(policy=policy)
        heights = part.numbers(column)
        places = [at + (position - (len(policies) - 1) / 2) * width for at in range(len(loads))]
        errors = None
        if interval is not None:
            low, high = (part.numbers(name) for name in interval)
            errors = [
                [h - a for h, a in zip(heights, low, strict=True)],
                [b - h for h, b in zip(heights, high, strict=True)],
            ]
        panel.bar(
            places,
            heights,
            0.93 * width,
            yerr=errors,
            error_kw={"ecolor": INK, "elinewidth": 0.9, "capsize": 1.5},
            color=POLICY_COLOURS.get(policy, COLOURS[3]),
            hatch=POLICY_HATCHES.get(policy, ""),
            edgecolor=PAPER,
            label=policy,
        )
        _cut_off(panel, places, heights)
    panel.axhline(1, color=SOFT, linewidth=1, linestyle="--")
    panel.set_xticks(range(len(loads)), [network(str(load)) for load in loads])
    panel.tick_params("x", rotation=18)
    panel.set_ylim(0, min(_HIGHEST_BAR, max(1.08, 1.08 * max(rows.numbers(column)))))
    panel.grid(visible=False, axis="x")


def _cut_off(panel: Any, places: Sequence[float], heights: Sequence[float]) -> None:
    """Say how high a bar is that leaves the panel."""
    for place, height in zip(places, heights, strict=True):
        if height > _HIGHEST_BAR:
            panel.annotate(
                f"↑ {height:.3g}",
                (place, _HIGHEST_BAR),
                xytext=(0, -3),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=7.5,
                rotation=90,
                color=PAPER,
                fontweight="bold",
            )


def _optimum_marks(panel: Any, rows: Rows, column: str) -> None:
    policy = _policies(rows)[0]
    for place, height in enumerate(rows.where(policy=policy).numbers(column)):
        panel.plot(
            [place - 0.45, place + 0.45],
            [height, height],
            color=INK,
            linewidth=1.4,
            label="setting of least cost",
        )


def cluster(data: FigureData) -> Iterator[tuple[str, Any]]:
    """Energy on the left, time on the right, one row per GPU."""
    gpus = data.main.distinct("gpu")
    names = [f"{str(gpu).upper()}: {what}" for gpu in gpus for what in ("energy", "time")]
    figure, axes = panels(names, 2, (6.2, 3.0))
    for row, gpu in enumerate(gpus):
        rows = data.main.where(gpu=gpu)
        for column, (measure, name) in enumerate(_MEASURES):
            panel = axes[2 * row + column]
            _policy_bars(panel, rows, f"{measure}_vs_default")
            panel.set_ylabel(name)
    legend_below(figure, axes)
    yield "", figure


def cumulative_regret(data: FigureData) -> Iterator[tuple[str, Any]]:
    """One picture per GPU, one panel per workload."""
    return per_workload(data, (4.2, 3.0), _regret)


def _regret(panel: Any, rows: Rows) -> None:
    for policy in _policies(rows):
        part = rows.where(policy=policy)
        across = part.numbers("recurrence")
        colour = POLICY_COLOURS.get(policy, COLOURS[3])
        panel.fill_between(
            across,
            [max(value, 0.01) for value in part.numbers("regret_p10")],
            [max(value, 0.01) for value in part.numbers("regret_p90")],
            color=colour,
            alpha=0.18,
            linewidth=0,
        )
        heights = [max(value, 0.01) for value in part.numbers("regret")]
        style = {"grid": "--", "zeus": "-", "joulery": "-."}.get(policy, ":")
        panel.plot(across, heights, color=colour, linestyle=style, linewidth=1.6, label=policy)
        last = part.numbers("regret")[-1]
        panel.annotate(
            f"{last:,.0f}" if last >= 100 else f"{last:.3g}",
            (across[-1], heights[-1]),
            # Ours is mostly the lowest; the others' labels make room for it.
            xytext=(3, -4 if policy == "joulery" else 3),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=colour,
            annotation_clip=False,
        )
    panel.set_yscale("log")
    highest = max(rows.numbers("regret_p90"))
    panel.set_ylim(0.05, 2 * highest)
    plain_ticks(panel.yaxis)
    panel.set_xlabel("recurrence")
    panel.set_ylabel("regret in optimal costs")


def mean_by_gpu(data: FigureData) -> Iterator[tuple[str, Any]]:
    """One group of bars per GPU."""
    rows = data.main
    figure, (panel,) = panels(["geometric mean over workloads"], 1, (5.6, 3.0))
    gpus, policies = rows.distinct("gpu"), _policies(rows)
    width = 0.7 / len(policies)
    for position, policy in enumerate(policies):
        part = rows.where(policy=policy)
        heights = part.numbers("eta_vs_default")
        places = [at + (position - (len(policies) - 1) / 2) * width for at in range(len(gpus))]
        panel.bar(
            places,
            heights,
            0.93 * width,
            color=POLICY_COLOURS.get(policy, COLOURS[3]),
            hatch=POLICY_HATCHES.get(policy, ""),
            edgecolor=PAPER,
            label=policy,
        )
        for place, height in zip(places, heights, strict=True):
            panel.annotate(
                f"{height:.2f}",
                (place, height),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
    panel.axhline(1, color=SOFT, linewidth=1, linestyle="--")
    panel.set_xticks(range(len(gpus)), [str(gpu).upper() for gpu in gpus])
    panel.set_ylabel("energy, Default = 1")
    panel.set_ylim(0, 1.08)
    panel.grid(visible=False, axis="x")
    legend_below(figure, [panel])
    yield "", figure
