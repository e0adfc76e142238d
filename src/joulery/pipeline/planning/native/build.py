"""The file of the planner's compiled core, compiled on first use where need be.

Installed packages bring it along (``hatch_build.py`` compiles it). A working copy, or a package
installed without a compiler (``ziglang`` from PyPI is one), compiles it on first use into the
user's cache. Its name holds a digest of the sources, so that a change to them is compiled again and
no stale library is loaded.
"""

from __future__ import annotations

from pathlib import Path

from joulery.compiled import Sources, compile_once, exact_flags
from joulery.files import cache_folder

SOURCES = Sources(
    purpose="the pipeline planner's core, which a wheel would bring along,",
    folder=Path(__file__).parent,
    files=("native.h", "walk.c", "round.c"),
    flags=exact_flags("-O3"),
    libraries=("-lm",),
)


def file_name() -> str:
    """Name of the library made from the current sources."""
    return f"libjoulery-pipeline-{SOURCES.digest()}.so"


def library_path(cache: Path | None = None) -> Path:
    """The compiled library: next to the sources, or in the cache, compiled if need be.

    Raises:
        MissingExtraError: There is none and no C compiler to make it.
        JouleryError: The compiler refuses.
    """
    name = file_name()
    shipped = SOURCES.folder / name
    if shipped.exists():
        return shipped
    return compile_once(SOURCES, (cache or cache_folder() / "pipeline") / name)
