"""How the reproduced figures look: names, colours, panels, and SVG in the page's theme."""

from __future__ import annotations

import io
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from joulery.cli.picture import COLOURS, new_figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from joulery.simulate.reproduce_rows import FigureData, Rows

INK, SOFT, RULE, PAPER = "#1b1f24", "#57606a", "#d8dee4", "#ffffff"

# Networks as the publication names them.
_NETWORKS = {
    "librispeech": "DeepSpeech2",
    "squad": "BERT (QA)",
    "sentiment140": "BERT (SA)",
    "imagenet": "ResNet-50",
    "cifar100": "ShuffleNet V2",
    "movielens-1m": "NeuMF",
}

POLICY_COLOURS = {
    "default": COLOURS[5],
    "grid": COLOURS[1],
    "zeus": COLOURS[0],
    "joulery": COLOURS[2],
}
POLICY_MARKERS = {"default": "D", "grid": "s", "zeus": "o", "joulery": "^"}
# Bars keep their meaning in a grey print.
POLICY_HATCHES = {"grid": "//", "zeus": "", "joulery": ".."}

_RULES: dict[Any, Any] = {
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "hatch.linewidth": 0.5,
    "svg.fonttype": "none",
}

_REMS_PER_INCH = 6.5

# What the page calls the colours, so that a drawing changes with the reader's theme.
_VARIABLES = {
    INK: "var(--ink)",
    RULE: "var(--rule)",
    PAPER: "var(--paper)",
    **{colour: f"var(--s{number})" for number, colour in enumerate(COLOURS)},
}


def network(workload: str) -> str:
    """A workload's name for people."""
    return _NETWORKS.get(workload, workload)


@contextmanager
def themed(name: str) -> Iterator[None]:
    """Draw in our style; ``name`` keeps the parts of one SVG apart from those of others."""
    import matplotlib as mpl

    with mpl.rc_context({**_RULES, "svg.hashsalt": name}):
        yield


def panels(names: Sequence[str], across: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    """A figure with one titled panel per name, ``across`` in a row, each of ``size`` inches."""
    across = min(across, len(names))
    down = -(-len(names) // across)
    figure = new_figure(size[0] * across, size[1] * down + 0.4)
    axes = []
    for position, name in enumerate(names, start=1):
        panel = figure.add_subplot(down, across, position)
        panel.set_title(name)
        axes.append(panel)
    return figure, axes


def legend_below(figure: Any, axes: Any, columns: int = 6) -> None:
    """One legend for all panels, below them, with each name once, bars before lines."""
    found: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    found = dict(sorted(found.items(), key=lambda pair: not hasattr(pair[1], "patches")))
    figure.legend(
        found.values(), found.keys(), loc="outside lower center", ncols=min(columns, len(found))
    )


def per_workload(
    data: FigureData,
    size: tuple[float, float],
    draw: Callable[[Any, Rows], None],
    remark: str = "",
) -> Iterator[tuple[str, Any]]:
    """One picture per GPU with a panel per workload; ``draw`` gets the panel and its rows."""
    for gpu in data.main.distinct("gpu"):
        rows = data.main.where(gpu=gpu)
        loads = rows.distinct("workload")
        figure, axes = panels([network(str(load)) for load in loads], 3, size)
        for load, panel in zip(loads, axes, strict=True):
            draw(panel, rows.where(workload=load))
        legend_below(figure, axes)
        figure.suptitle(f"{str(gpu).upper()}{remark}", fontsize=10)
        yield str(gpu), figure


def plain_ticks(axis: Any) -> None:
    """Plain numbers on a logarithmic axis, and no smaller ticks, which take long to draw.

    To be called when the axis has its limits.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    narrow = high < 100 * low
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:,g}"))


def svg_text(figure: Any) -> str:
    """The drawing as SVG to put into a page, once it has been drawn as a PNG."""
    written = io.BytesIO()
    figure.set_layout_engine("none")  # the PNG has laid it out already
    figure.savefig(
        written, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
    )
    svg = written.getvalue().decode("utf-8")
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # the same in every drawing; nothing refers to them
    svg = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*pt"', r"\1", svg)
    svg = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*pt"', r"\1", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    # Never larger than drawn: a small chart would fill the page.
    widest = round(_REMS_PER_INCH * figure.get_figwidth())
    return svg.replace("<svg", f'<svg style="max-width: {widest}rem"', 1)
