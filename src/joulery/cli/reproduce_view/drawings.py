"""Which drawing belongs to which figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulery.cli.picture import write_figure
from joulery.cli.reproduce_view import paths, policies, potential, sensitivity
from joulery.cli.reproduce_view.theme import svg_text, themed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from joulery.simulate.reproduce_rows import FigureData

_DRAWINGS: dict[str, Callable[[FigureData], Iterator[tuple[str, Any]]]] = {
    "fig01_15_savings_potential": potential.savings_potential,
    "fig02_16_fronts": potential.fronts,
    "fig06_23_last_five": policies.last_five,
    "fig07_19_cumulative_regret": policies.cumulative_regret,
    "fig08_20_21_search_paths": paths.search_paths,
    "fig09_cluster": policies.cluster,
    "fig10_drift": sensitivity.drift,
    "fig11_22_eta_sweep": sensitivity.eta_sweep,
    "fig12_beta_sweep": sensitivity.beta_sweep,
    "fig13_ablation": sensitivity.ablation,
    "fig14_mean_by_gpu": policies.mean_by_gpu,
    "fig17_energy_by_batch_size": potential.by_batch_size,
    "fig18_energy_by_limit": potential.by_limit,
}


def draw(data: FigureData, folder: Path) -> list[tuple[Path, str]]:
    """Write the figure's pictures; each file, and the same drawing as SVG for a page.

    Raises:
        MissingExtraError: matplotlib is not installed.
        FileError: A file cannot be written.
    """
    if data.name not in _DRAWINGS:
        return []
    drawn = []
    with themed(data.name):
        for suffix, figure in _DRAWINGS[data.name](data):
            path = folder / (f"{data.name}_{suffix}.png" if suffix else f"{data.name}.png")
            write_figure(figure, path)
            drawn.append((path, svg_text(figure)))
    return drawn
