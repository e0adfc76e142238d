"""Make and write PNG pictures with matplotlib, which is imported only here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulery.errors import FileError, MissingExtraError

if TYPE_CHECKING:
    from pathlib import Path

# Told apart by people with any kind of colour blindness when used with MARKERS; the same in pages.
COLOURS = ("#2563a8", "#b4500b", "#14743a", "#7c3aad", "#a3174f", "#57606a")
MARKERS = ("o", "s", "^")


def new_figure(width_inches: float, height_inches: float, dots_per_inch: int = 120) -> Any:
    """An empty matplotlib figure that arranges its own contents.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        # No pyplot: it would look for a display and keep the figure alive.
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(
            "matplotlib is not installed, so there is no PNG",
            remedy="pip install 'joulery[plots]'",
        ) from None
    return Figure(figsize=(width_inches, height_inches), dpi=dots_per_inch, layout="constrained")


def write_figure(figure: Any, path: Path) -> None:
    """Write ``figure`` to ``path``.

    Raises:
        FileError: The file cannot be written.
    """
    try:
        figure.savefig(path)
    except OSError as refused:
        raise FileError(
            f"cannot write {path}: {refused.strerror}", remedy="choose another folder with --out"
        ) from None
