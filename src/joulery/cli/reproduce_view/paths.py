"""Draw search paths over the regret of every setting: Fig. 8/20/21."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from joulery.cli.picture import new_figure
from joulery.cli.reproduce_view.theme import network

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.simulate.reproduce_rows import FigureData, Rows

# Beyond this many optimal costs a setting is just bad.
_WORST = 10.0
_EDGE = 0.28


def search_paths(data: FigureData) -> Iterator[tuple[str, Any]]:
    """One picture per GPU: a row per policy, a column per workload."""
    background = data.tables[1]
    policies = data.main.distinct("policy")
    for gpu in data.main.distinct("gpu"):
        rows = data.main.where(gpu=gpu)
        loads = rows.distinct("workload")
        figure = new_figure(2.15 * len(loads) + 0.6, 2.3 * len(policies) + 0.3)
        shades = None
        axes = []
        for down, policy in enumerate(policies):
            for across, load in enumerate(loads):
                place = down * len(loads) + across + 1
                panel = figure.add_subplot(len(policies), len(loads), place)
                shades = _heat(panel, background.where(gpu=gpu, workload=load))
                _path(
                    panel,
                    rows.where(workload=load, policy=policy),
                    panel_of=background.where(gpu=gpu, workload=load),
                )
                panel.set_title(network(str(load)) if down == 0 else "")
                if across == 0:
                    panel.set_ylabel(f"{policy}\npower limit in W")
                if down == len(policies) - 1:
                    panel.set_xlabel("batch size")
                axes.append(panel)
        bar = figure.colorbar(shades, ax=axes, shrink=0.6, pad=0.01)
        bar.set_label("regret of the setting in optimal costs")
        bar.set_ticks([0, math.log1p(0.1), math.log1p(0.5), math.log1p(2), math.log1p(_WORST)])
        bar.set_ticklabels(["0", "0.1", "0.5", "2", f"≥{_WORST:g}"])
        figure.suptitle(str(gpu).upper(), fontsize=10)
        yield str(gpu), figure


def _heat(panel: Any, rows: Rows) -> Any:
    import numpy as np

    sizes, limits = rows.distinct("batch_size"), rows.distinct("limit_watts")
    regret = np.array(rows.numbers("regret")).reshape(len(sizes), len(limits)).T
    shades = panel.imshow(
        np.log1p(np.minimum(regret, _WORST)),
        origin="lower",
        aspect="auto",
        cmap="Greys_r",
        vmin=0,
        vmax=math.log1p(_WORST),
        interpolation="nearest",
    )
    _some_ticks(panel.set_xticks, sizes, 5)
    _some_ticks(panel.set_yticks, limits, 5)
    panel.tick_params("x", rotation=45)
    panel.grid(visible=False)
    return shades


def _some_ticks(set_ticks: Any, values: list[Any], most: int) -> None:
    step = math.ceil(len(values) / most)
    places = list(range(0, len(values), step))
    set_ticks(places, [f"{values[place]:g}" for place in places])


def _path(panel: Any, rows: Rows, *, panel_of: Rows) -> None:
    import numpy as np
    from matplotlib.collections import LineCollection

    sizes, limits = panel_of.distinct("batch_size"), panel_of.distinct("limit_watts")
    count = len(rows)
    # Repeated visits are spread around the middle of their setting, so that each can be seen.
    turn = 2.399963 * np.arange(count)
    radius = _EDGE * np.sqrt((np.arange(count) + 1) / max(count, 1))
    across = np.array([sizes.index(size) for size in rows.column("batch_size")], dtype=float)
    upwards = np.array([limits.index(limit) for limit in rows.column("limit_watts")], dtype=float)
    points = np.stack((across + radius * np.cos(turn), upwards + radius * np.sin(turn)), axis=1)
    age = np.linspace(0, 1, count)
    lines = np.stack((points[:-1], points[1:]), axis=1)
    panel.add_collection(
        LineCollection(
            list(lines),
            array=age[:-1],
            cmap="plasma_r",
            clim=(-0.15, 1),
            linewidths=0.8,
            rasterized=True,
        )
    )
    panel.scatter(
        *points.T,
        c=age,
        cmap="plasma_r",
        vmin=-0.15,
        vmax=1,
        s=5,
        linewidths=0,
        zorder=3,
        rasterized=True,
    )
