"""Drawings of the figures with matplotlib, one or more PNG files per figure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from papers.zeus.policies import DRIFT_AT, MEAN
from papers.zeus.tables import network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from papers.zeus.tables import Figure, Table

# Okabe and Ito's colours, which colour-blind readers tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#777777", "#56b4e9")
MARKERS = ("o", "s", "^", "v", "P", "X")
INK, SOFT, PAPER = "#1b1f24", "#57606a", "#ffffff"
_POLICY_COLOURS = dict(zip(("zeus", "grid", "joulery"), COLOURS, strict=False))
_POLICY_HATCHES = {"grid": "//", "zeus": "", "joulery": ".."}  # bars differ in a grey print, too
_POLICY_LINES = {"grid": "--", "zeus": "-", "joulery": "-."}
_STYLE: dict[Any, Any] = {
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#d8dee4",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "hatch.linewidth": 0.5,
}
# Grid search may waste a hundred times what the default takes; the bars that matter are near one.
_HIGHEST_BAR = 1.75
_HIGHEST_DRIFT_COST = 6.0
_WORST_REGRET = 10.0  # optimal costs, at which the shades of a regret map end
# The publication's drifting data is a sentiment analysis, too.
_DRIFT_WORKLOAD = "sentiment140"

Drawing = tuple[str, Canvas]


def draw(figure: Figure, folder: Path) -> list[Path]:
    """Write the pictures of a figure; none for one that is only a table."""
    if figure.name not in _DRAWINGS:
        return []
    paths = []
    with rc_context(_STYLE):
        for suffix, canvas in _DRAWINGS[figure.name](figure):
            path = folder / (f"{figure.name}_{suffix}.png" if suffix else f"{figure.name}.png")
            canvas.savefig(path, dpi=150, metadata={"Software": None})
            paths.append(path)
    return paths


def _panels(names: Sequence[str], across: int, size: tuple[float, float]) -> tuple[Canvas, Any]:
    """A canvas with one titled panel per name, ``across`` in a row, each of ``size`` inches."""
    across = min(across, len(names))
    down = math.ceil(len(names) / across)
    canvas = Canvas(figsize=(size[0] * across, size[1] * down + 0.4), layout="constrained")
    axes = [canvas.add_subplot(down, across, at) for at in range(1, len(names) + 1)]
    for panel, name in zip(axes, names, strict=True):
        panel.set_title(name)
    return canvas, axes


def _legend(canvas: Canvas, axes: Any, columns: int = 6) -> None:
    """One legend for all panels, below them, with each name once."""
    handles: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    count = min(columns, len(handles))
    canvas.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=count)


def _per_workload(
    figure: Figure,
    size: tuple[float, float],
    draw_panel: Callable[[Any, Table], None],
    remark: str = "",
) -> Iterator[Drawing]:
    """One picture per GPU with a panel per workload."""
    for gpu in figure.main.distinct("gpu"):
        rows = figure.main.where(gpu=gpu)
        loads = rows.distinct("workload")
        canvas, axes = _panels([network(load) for load in loads], 3, size)
        for load, panel in zip(loads, axes, strict=True):
            draw_panel(panel, rows.where(workload=load))
        _legend(canvas, axes)
        canvas.suptitle(f"{gpu.upper()}{remark}", fontsize=10)
        yield gpu, canvas


def _per_gpu(
    figure: Figure, size: tuple[float, float], draw_panel: Callable[[Any, Table], None]
) -> Iterator[Drawing]:
    """One picture with a panel per GPU."""
    gpus = figure.main.distinct("gpu")
    canvas, axes = _panels([gpu.upper() for gpu in gpus], 2, size)
    for gpu, panel in zip(gpus, axes, strict=True):
        draw_panel(panel, figure.main.where(gpu=gpu))
    _legend(canvas, axes, 7)
    yield "", canvas


def _bars(
    panel: Any,
    names: Sequence[str],
    series: Sequence[tuple[str, list[float], str, str]],
    errors: Sequence[Any] | None = None,
) -> list[tuple[float, float]]:
    """Groups of bars, one per name; ``series`` has label, heights, colour and hatch.

    Returns the place and height of every bar.
    """
    width = 0.8 / len(series)
    bars = []
    for number, (label, heights, colour, hatch) in enumerate(series):
        places = [at + (number - (len(series) - 1) / 2) * width for at in range(len(names))]
        panel.bar(
            places,
            heights,
            0.93 * width,
            yerr=errors[number] if errors else None,
            error_kw={"ecolor": INK, "elinewidth": 0.9, "capsize": 1.5},
            color=colour,
            hatch=hatch,
            edgecolor=PAPER,
            label=label,
        )
        bars += list(zip(places, heights, strict=True))
    panel.axhline(1, color=SOFT, linewidth=1, linestyle="--")
    panel.set_xticks(range(len(names)), names)
    panel.tick_params("x", rotation=18)
    panel.grid(visible=False, axis="x")
    return bars


def _annotate(panel: Any, text: str, at: tuple[float, float], **more: Any) -> None:
    options: dict[str, Any] = {
        "xytext": (0, 2),
        "textcoords": "offset points",
        "ha": "center",
        "fontsize": 7.5,
    }
    panel.annotate(text, at, **(options | more))


def _log_axis(panel: Any) -> None:
    """Plain numbers on a logarithmic axis that has its limits already."""
    panel.set_yscale("log")
    low, high = panel.yaxis.get_view_interval()
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,)))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:,g}"))


def _policies(rows: Table) -> list[str]:
    return [policy for policy in rows.distinct("policy") if policy != "default"]


def _policy_series(
    rows: Table, column: str, least: float = -math.inf
) -> list[tuple[str, list[float], str, str]]:
    """Bars of each policy, none shorter than ``least``, as :func:`_bars` takes them."""
    return [
        (
            policy,
            [max(value, least) for value in rows.where(policy=policy).numbers(column)],
            _POLICY_COLOURS[policy],
            _POLICY_HATCHES[policy],
        )
        for policy in _policies(rows)
    ]


def _savings_potential(figure: Figure) -> Iterator[Drawing]:
    def panel_of(panel: Any, rows: Table) -> None:
        series = [
            ("best batch size", rows.numbers("batch_size_only"), COLOURS[0], "//"),
            ("best power limit", rows.numbers("limit_only"), COLOURS[1], ".."),
            ("both", rows.numbers("joint"), COLOURS[2], ""),
        ]
        bars = _bars(panel, _networks(rows), series)
        for position, height in bars[-len(rows) :]:
            text = f"−{100 * (1 - height):.1f} %"
            _annotate(panel, text, (position, 0.02), rotation=90, color=PAPER, fontweight="bold")
        panel.set_ylim(0, 1.12)
        panel.set_ylabel("energy, Default = 1")

    return _per_gpu(figure, (6.2, 3.3), panel_of)


def _fronts(figure: Figure) -> Iterator[Drawing]:
    return _per_workload(figure, (4.6, 3.7), _front, ": labels are batch size, power limit in W")


def _front(panel: Any, rows: Table) -> None:
    front, default = rows.where(pareto=True), rows.where(default=True)
    reference = default if len(default) else rows
    across, time_unit = _time_unit(reference.numbers("tta_seconds")[0])
    up, energy_unit = _energy_unit(reference.numbers("eta_joules")[0])

    def points(part: Table) -> list[tuple[float, float]]:
        pairs = zip(part.numbers("tta_seconds"), part.numbers("eta_joules"), strict=True)
        return [(seconds / across, joules / up) for seconds, joules in pairs]

    panel.scatter(*zip(*points(rows), strict=True), s=12, marker="x", color=SOFT, linewidths=0.8)
    settings = zip(front.numbers("batch_size"), front.numbers("limit_watts"), strict=True)
    labels = [f"{size:g}, {watts:g}" for size, watts in settings]
    named = sorted(zip(points(front), labels, strict=True))
    xs, ys = zip(*(point for point, _ in named), strict=True)
    panel.plot(xs, ys, color=COLOURS[2], marker="o", markersize=4.5, label="Pareto front")
    outline = [*points(default)]
    if outline:
        panel.scatter(*outline[0], s=55, marker="D", color=COLOURS[1], zorder=4, label="Default")
    for axis, limits in ((0, panel.set_xlim), (1, panel.set_ylim)):
        values = [point[axis] for point in [*points(front), *outline]]
        room = 0.16 * (max(values) - min(values)) or 0.1 * max(values)
        limits(min(values) - room, max(values) + 1.4 * room)
    _captions(panel, named)
    panel.set_xlabel(f"time to accuracy in {time_unit}")
    panel.set_ylabel(f"energy to accuracy in {energy_unit}")


def _captions(panel: Any, named: list[tuple[tuple[float, float], str]]) -> None:
    """Name the points of the front, the ends first, without covering another's name."""
    positions: list[Any] = []
    ends = {0, len(named) - 1}
    for number in sorted(range(len(named)), key=lambda at: at not in ends):
        point, text = named[number]
        position = panel.transAxes.inverted().transform(panel.transData.transform(point))
        if any(
            abs(position - other)[0] < 0.24 and abs(position - other)[1] < 0.062
            for other in positions
        ):
            continue
        positions.append(position)
        _annotate(panel, text, point, xytext=(6, 3), ha="left", fontsize=7)


def _time_unit(seconds: float) -> tuple[float, str]:
    return (3600.0, "h") if seconds > 7200 else (60.0, "min") if seconds > 300 else (1.0, "s")


def _energy_unit(joules: float) -> tuple[float, str]:
    return (1e6, "MJ") if joules > 2e6 else (1e3, "kJ")


def _by_batch_size(figure: Figure) -> Iterator[Drawing]:
    def panel_of(panel: Any, rows: Table) -> None:
        up, unit = _energy_unit(max(rows.numbers("eta_joules")))
        across = rows.numbers("batch_size")
        least, largest, mean, highest = (
            [value / up for value in rows.numbers(f"eta_joules{end}")]
            for end in ("_least_run", "_most_run", "", "_at_highest_limit")
        )
        panel.fill_between(
            across, least, largest, color=COLOURS[0], alpha=0.2, label="range of runs"
        )
        panel.plot(across, mean, color=COLOURS[0], marker="o", markersize=4, label="best limit")
        panel.plot(across, highest, "--s", color=COLOURS[1], markersize=3, label="highest limit")
        for size in rows.where(default=True).numbers("batch_size"):
            panel.axvline(size, color=SOFT, linestyle=":", label="default batch size")
        panel.set_xscale("log", base=2)
        panel.set_xticks(across[:: math.ceil(len(across) / 8)])
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}"))
        panel.minorticks_off()
        if max(mean) > 8 * min(mean):
            _log_axis(panel)
        else:
            panel.set_ylim(bottom=0)
        panel.set_xlabel("batch size")
        panel.set_ylabel(f"energy in {unit}")

    return _per_workload(figure, (4.2, 2.9), panel_of)


def _by_limit(figure: Figure) -> Iterator[Drawing]:
    def panel_of(panel: Any, rows: Table) -> None:
        up, unit = _energy_unit(max(rows.numbers("eta_joules_default")))
        watts = rows.numbers("limit_watts")
        default, best = (
            [value / up for value in rows.numbers(name)]
            for name in ("eta_joules_default", "eta_joules_best")
        )
        # Where both are the same, the default's square shows around the dot.
        panel.plot(watts, default, "-s", color=COLOURS[1], mfc="none", ms=7, label="default size")
        panel.plot(watts, best, "-o", color=COLOURS[2], ms=4, label="size of least energy")
        panel.set_ylim(bottom=0)
        panel.set_xlabel("power limit in W")
        panel.set_ylabel(f"energy in {unit}")

    return _per_workload(figure, (4.2, 2.9), panel_of)


def _energy_and_time(figure: Figure) -> Iterator[Drawing]:
    """Bars of energy on the left, of time on the right, one row of panels per GPU."""
    gpus = figure.main.distinct("gpu")
    names = [f"{gpu.upper()}: {what}" for gpu in gpus for what in ("energy", "time")]
    canvas, axes = _panels(names, 2, (6.2, 3.0))
    for row, gpu in enumerate(gpus):
        for column, name in enumerate(("eta", "tta")):
            _policy_bars(axes[2 * row + column], figure.main.where(gpu=gpu), f"{name}_vs_default")
    _legend(canvas, axes)
    yield "", canvas


def _policy_bars(panel: Any, rows: Table, column: str) -> None:
    """One group of bars per workload, one bar per policy; whiskers and optimum where known."""
    parts = {policy: rows.where(policy=policy) for policy in _policies(rows)}
    series = _policy_series(rows, column)
    errors = None
    if f"{column}_low" in rows.rows[0]:
        errors = [
            np.abs([part.numbers(f"{column}_{end}") for end in ("low", "high")] - np.array(heights))
            for part, (_, heights, _, _) in zip(parts.values(), series, strict=True)
        ]
    bars = _bars(panel, _networks(rows), series, errors)
    for position, height in bars:
        if height > _HIGHEST_BAR:
            look = {"rotation": 90, "color": PAPER, "fontweight": "bold", "va": "top"}
            _annotate(panel, f"↑ {height:.3g}", (position, _HIGHEST_BAR), xytext=(0, -3), **look)
    if f"optimal_{column}" in rows.rows[0]:
        optimum = next(iter(parts.values())).numbers(f"optimal_{column}")
        starts = np.arange(len(optimum)) - 0.45
        panel.hlines(optimum, starts, starts + 0.9, color=INK, label="setting of least cost")
    panel.set_ylim(0, min(_HIGHEST_BAR, max(1.08, 1.08 * max(rows.numbers(column)))))
    panel.set_ylabel(f"{'energy' if column.startswith('eta') else 'time'}, Default = 1")


def _mean_by_gpu(figure: Figure) -> Iterator[Drawing]:
    rows = figure.main
    canvas, (panel,) = _panels(["geometric mean over workloads"], 1, (5.6, 3.0))
    series = _policy_series(rows, "eta_vs_default")
    for position, height in _bars(panel, [gpu.upper() for gpu in rows.distinct("gpu")], series):
        _annotate(panel, f"{height:.2f}", (position, height))
    panel.set_ylabel("energy, Default = 1")
    panel.set_ylim(0, 1.08)
    _legend(canvas, [panel])
    yield "", canvas


def _cumulative_regret(figure: Figure) -> Iterator[Drawing]:
    def panel_of(panel: Any, rows: Table) -> None:
        for policy in _policies(rows):
            part = rows.where(policy=policy)
            across = part.numbers("recurrence")
            mean, low, high = (
                [max(value, 0.01) for value in part.numbers(name)]
                for name in ("regret", "regret_p10", "regret_p90")
            )
            look = {"color": _POLICY_COLOURS[policy]}
            panel.fill_between(across, low, high, alpha=0.18, linewidth=0, **look)
            panel.plot(across, mean, linestyle=_POLICY_LINES[policy], label=policy, **look)
            last = part.numbers("regret")[-1]
            text = f"{last:,.0f}" if last >= 100 else f"{last:.3g}"
            # Ours is mostly the lowest; the others' labels make room for it.
            offset = (3, -4 if policy == "joulery" else 3)
            _annotate(panel, text, (across[-1], mean[-1]), xytext=offset, ha="left", **look)
        panel.set_ylim(0.05, 2 * max(rows.numbers("regret_p90")))
        _log_axis(panel)
        panel.set_xlabel("recurrence")
        panel.set_ylabel("regret in optimal costs")

    return _per_workload(figure, (4.2, 3.0), panel_of)


def _search_paths(figure: Figure) -> Iterator[Drawing]:
    """One picture per GPU: a row of panels per policy, a column per workload."""
    policies = figure.main.distinct("policy")
    for gpu in figure.main.distinct("gpu"):
        rows = figure.main.where(gpu=gpu)
        loads = rows.distinct("workload")
        size = (2.15 * len(loads) + 0.6, 2.3 * len(policies) + 0.3)
        canvas = Canvas(figsize=size, layout="constrained")
        axes = canvas.subplots(len(policies), len(loads), squeeze=False)
        for policy, line in zip(policies, axes, strict=True):
            line[0].set_ylabel(f"{policy}\npower limit in W")
            for load, panel in zip(loads, line, strict=True):
                background = figure.tables[1].where(gpu=gpu, workload=load)
                shades = _heat(panel, background)
                _path(panel, rows.where(workload=load, policy=policy), background)
        for load, first, last in zip(loads, axes[0], axes[-1], strict=True):
            first.set_title(network(load))
            last.set_xlabel("batch size")
        ticks = (0.0, 0.1, 0.5, 2.0, _WORST_REGRET)
        bar = canvas.colorbar(shades, ax=axes, shrink=0.6, pad=0.01, ticks=np.log1p(ticks))
        bar.ax.set_yticklabels([f"{tick:g}" for tick in ticks[:-1]] + [f"≥{_WORST_REGRET:g}"])
        bar.set_label("regret of the setting in optimal costs")
        canvas.suptitle(gpu.upper(), fontsize=10)
        yield gpu, canvas


def _heat(panel: Any, rows: Table) -> Any:
    sizes, limits = rows.distinct("batch_size"), rows.distinct("limit_watts")
    regret = np.array(rows.numbers("regret")).reshape(len(sizes), len(limits)).T
    shades = panel.imshow(
        np.log1p(np.minimum(regret, _WORST_REGRET)),
        origin="lower",
        aspect="auto",
        cmap="Greys_r",
        vmin=0,
        vmax=math.log1p(_WORST_REGRET),
    )
    for set_ticks, values in ((panel.set_xticks, sizes), (panel.set_yticks, limits)):
        places = range(0, len(values), math.ceil(len(values) / 5))
        set_ticks(places, [f"{float(values[at]):g}" for at in places])
    panel.tick_params("x", rotation=45)
    panel.grid(visible=False)
    return shades


def _path(panel: Any, rows: Table, background: Table) -> None:
    sizes, limits = background.distinct("batch_size"), background.distinct("limit_watts")
    count = len(rows)
    # Repeated visits are spread around the middle of their setting, so that each can be seen.
    turn = 2.399963 * np.arange(count)
    radius = 0.28 * np.sqrt((np.arange(count) + 1) / max(count, 1))
    across = np.array([sizes.index(str(size)) for size in rows.column("batch_size")])
    upwards = np.array([limits.index(str(limit)) for limit in rows.column("limit_watts")])
    points = np.stack((across + radius * np.cos(turn), upwards + radius * np.sin(turn)), axis=1)
    age = np.linspace(0, 1, count)
    lines = np.stack((points[:-1], points[1:]), axis=1)
    look: dict[str, Any] = {"cmap": "plasma_r", "clim": (-0.15, 1)}
    panel.add_collection(LineCollection(list(lines), array=age[:-1], linewidths=0.8, **look))
    panel.scatter(*points.T, c=age, cmap="plasma_r", vmin=-0.15, vmax=1, s=5, zorder=3)


def _drift(figure: Figure) -> Iterator[Drawing]:
    """One picture per GPU, a column per kind of drift: one workload's course, and all regrets."""
    for gpu in figure.main.distinct("gpu"):
        rows = figure.main.where(gpu=gpu)
        loads, kinds = rows.distinct("workload"), rows.distinct("drift")
        load = _DRIFT_WORKLOAD if _DRIFT_WORKLOAD in loads else loads[0]
        canvas, axes = _panels([*kinds, *[""] * (2 * len(kinds))], len(kinds), (4.4, 2.5))
        for column, kind in enumerate(kinds):
            part = rows.where(workload=load, drift=kind)
            cost, sizes, regret = axes[column :: len(kinds)]
            _drift_course(cost, sizes, part)
            _drift_regret(regret, figure.tables[1].where(gpu=gpu, drift=kind))
        _legend(canvas, axes)
        title = f"{gpu.upper()}, synthetic drift; first two rows {network(load)}"
        canvas.suptitle(title, fontsize=10)
        yield gpu, canvas


def _drift_course(cost: Any, sizes: Any, rows: Table) -> None:
    """Cost over recurrences in one panel, batch sizes in the other."""
    for policy in rows.distinct("policy"):
        part = rows.where(policy=policy)
        across, look = part.numbers("recurrence"), {"color": _POLICY_COLOURS[policy]}
        above = [min(value, 2 * _HIGHEST_DRIFT_COST) for value in part.numbers("cost_over_optimum")]
        cost.plot(across, above, linestyle=_POLICY_LINES[policy], label=policy, **look)
        chosen = part.numbers("batch_size_first_seed")
        sizes.plot(across, chosen, marker="o", markersize=3.5, linewidth=0.6, mfc="none", **look)
    optimal = part.numbers("optimal_batch_size")
    sizes.step(across, optimal, where="mid", color=INK, linestyle="--", label="optimal batch size")
    for panel in (cost, sizes):
        panel.axvline(DRIFT_AT + 0.5, color=SOFT, linewidth=1, linestyle=":")
    highest = max(rows.numbers("cost_over_optimum"))
    cost.set_ylim(0, min(_HIGHEST_DRIFT_COST, 1.1 * highest))
    if highest > _HIGHEST_DRIFT_COST:
        cost.text(0.02, 0.93, f"up to {highest:.3g}", transform=cost.transAxes, fontsize=8)
    cost.set_ylabel("cost, optimum = 1 (mean)")
    sizes.set_yscale("log", base=2)
    ticks = sorted({*rows.numbers("batch_size_first_seed"), *rows.numbers("optimal_batch_size")})
    sizes.set_yticks(ticks, [f"{size:g}" for size in ticks])
    sizes.minorticks_off()
    sizes.set_xlabel("recurrence")
    sizes.set_ylabel("batch size (one seed)")


def _drift_regret(panel: Any, rows: Table) -> None:
    series = _policy_series(rows, "regret_after_drift", 0.1)
    heights = [height for _, height in _bars(panel, _networks(rows), series)]
    panel.set_ylim(min(0.6 * min(heights), 0.05 * max(heights)), 1.6 * max(heights))
    _log_axis(panel)
    panel.set_ylabel("regret after the drift")


def _networks(rows: Table) -> list[str]:
    return [network(load) for load in rows.distinct("workload")]


def _eta_sweep(figure: Figure) -> Iterator[Drawing]:
    def panel_of(panel: Any, rows: Table) -> None:
        for policy, marker in (("zeus", "o"), ("joulery", "^")):
            part = rows.where(policy=policy)
            across, upwards = part.numbers("tta_vs_default"), part.numbers("eta_vs_default")
            look = {"color": _POLICY_COLOURS[policy]}
            line = f"{_POLICY_LINES[policy]}{marker}"
            panel.plot(across, upwards, line, ms=5, linewidth=1, label=policy, **look)
            if policy == "zeus":
                for at, offset in ((0, (5, 5)), (-1, (5, -12))):
                    text = f"{part.numbers('eta')[at]:g}"
                    _annotate(panel, text, (across[at], upwards[at]), xytext=offset, **look)
        panel.scatter([1], [1], s=45, marker="D", color=COLOURS[1], zorder=4, label="Default")
        panel.margins(0.16)
        panel.set_xlabel("time, Default = 1")
        panel.set_ylabel("energy, Default = 1")

    return _per_workload(figure, (4.2, 3.1), panel_of, ": labels are eta")


def _beta_sweep(figure: Figure) -> Iterator[Drawing]:
    def panel_of(panel: Any, rows: Table) -> None:
        for number, load in enumerate(rows.distinct("workload")):
            part = rows.where(workload=load)
            look: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "linewidth": 1}
            look["marker"] = MARKERS[number % len(MARKERS)]
            if load == MEAN:
                look = {"color": INK, "linewidth": 2.2, "marker": "D", "zorder": 4}
            ratios = part.numbers("total_eta_vs_usual")
            panel.plot(part.numbers("beta"), ratios, ms=4, label=network(load), **look)
        panel.axhline(1, color=SOFT, linewidth=0.8, linestyle="--")
        panel.set_xlabel("early-stopping threshold beta")
        panel.set_ylabel("energy, beta 2 = 1")

    return _per_gpu(figure, (5.6, 3.2), panel_of)


def _ablation(figure: Figure) -> Iterator[Drawing]:
    def panel_of(panel: Any, rows: Table) -> None:
        column = "total_eta_vs_whole"
        variants = rows.distinct("variant")[1:]
        looks = zip(variants, COLOURS[1:], ("", "//", ".."), strict=False)
        series = [
            (variant, rows.where(variant=variant).numbers(column), colour, hatch)
            for variant, colour, hatch in looks
        ]
        for position, height in _bars(panel, _networks(rows), series):
            _annotate(panel, f"{height:.3g}", (position, max(height, 1)), rotation=90, va="bottom")
        heights = rows.numbers(column)
        panel.set_ylim(0.9 * min(*heights, 1), 2.2 * max(heights))
        _log_axis(panel)
        panel.set_ylabel("energy, whole Zeus = 1")

    return _per_gpu(figure, (6.4, 3.4), panel_of)


_DRAWINGS: dict[str, Callable[[Figure], Iterator[Drawing]]] = {
    "fig01_15_savings_potential": _savings_potential,
    "fig02_16_fronts": _fronts,
    "fig06_23_last_five": _energy_and_time,
    "fig07_19_cumulative_regret": _cumulative_regret,
    "fig08_20_21_search_paths": _search_paths,
    "fig09_cluster": _energy_and_time,
    "fig10_drift": _drift,
    "fig11_22_eta_sweep": _eta_sweep,
    "fig12_beta_sweep": _beta_sweep,
    "fig13_ablation": _ablation,
    "fig14_mean_by_gpu": _mean_by_gpu,
    "fig17_energy_by_batch_size": _by_batch_size,
    "fig18_energy_by_limit": _by_limit,
}
