"""How the stress scripts print an experiment: whether its promise holds, and its figures."""

from __future__ import annotations

import textwrap
from typing import Any

INDENT = " " * 8


def experiment_text(title: str, figures: dict[str, Any], *, holds: bool) -> str:
    """A line with the verdict, and the figures below it; empty lists are left out.

    Args:
        title: Name of the experiment.
        figures: Figure by name; a dictionary is one figure for each of its keys.
        holds: Whether what was promised is true.
    """
    words = ", ".join(
        f"{name.replace('_', ' ')} {_figure(figure)}"
        for name, figure in figures.items()
        if figure != [] and name != "holds"
    )
    lines = textwrap.fill(words, 100, initial_indent=INDENT, subsequent_indent=INDENT)
    return f"{'holds' if holds else 'BROKEN':<7} {title}\n{lines}"


def _figure(figure: Any) -> str:
    if isinstance(figure, dict):
        return ", ".join(f"{key}: {count}" for key, count in figure.items()) or "none"
    if isinstance(figure, bool):
        return "yes" if figure else "no"
    if isinstance(figure, float):
        return f"{figure:,.0f}" if abs(figure) >= 1e5 else f"{figure:.5g}"
    return "none" if figure is None else str(figure)
