"""Compilation of the emulated NVML, once per version of its source."""

from __future__ import annotations

from pathlib import Path

from joulery.compiled import Sources, compile_once, compiler
from joulery.files import cache_folder

__all__ = ["SONAME", "build", "cache_directory", "compiler"]

SONAME = "libnvidia-ml.so.1"
_SOURCES = Sources(
    purpose="the emulated NVML",
    folder=Path(__file__).parent,
    files=("emulator.h", "state.c", "board.c", "control.c", "nvml.c"),
    flags=(
        "-std=gnu11",
        "-O2",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
        f"-Wl,-soname,{SONAME}",
    ),
    libraries=("-lm", "-lpthread"),
)


def cache_directory() -> Path:
    """Folder of compiled libraries: under ``XDG_CACHE_HOME``, or ``~/.cache``."""
    return cache_folder() / "emulator"


def build(cache: Path | None = None) -> Path:
    """The folder with the compiled library.

    Args:
        cache: Folder to keep it in; ``cache_directory`` by default.

    Raises:
        MissingExtraError: There is no C compiler.
    """
    folder = (cache or cache_directory()) / _SOURCES.digest()
    return compile_once(_SOURCES, folder / SONAME).parent
