"""Compilation of the emulated NVML, once per version of its source."""

from __future__ import annotations

import tempfile
from pathlib import Path

from joulery.compiled import Sources, compiler
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
# Some tools require this program before they use NVML.
_NVIDIA_SMI = "#!/bin/sh\necho 'NVIDIA-SMI emulated by Joulery; no such board exists'\n"


def cache_directory() -> Path:
    """Folder of compiled libraries: under ``XDG_CACHE_HOME``, or ``~/.cache``."""
    return cache_folder() / "emulator"


def build(cache: Path | None = None) -> Path:
    """The folder with the compiled library and a stand-in for ``nvidia-smi`` in its ``bin``.

    Args:
        cache: Folder to keep it in; ``cache_directory`` by default.

    Raises:
        MissingExtraError: There is no C compiler.
    """
    folder = (cache or cache_directory()) / _SOURCES.digest(_NVIDIA_SMI)
    if not (folder / SONAME).exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _compile(Path(scratch))
            _publish(Path(scratch), folder)
    return folder


def _compile(target: Path) -> None:
    _SOURCES.compile(target / SONAME)
    (target / "bin").mkdir()
    script = target / "bin" / "nvidia-smi"
    script.write_text(_NVIDIA_SMI, encoding="utf-8")
    script.chmod(0o755)


def _publish(scratch: Path, folder: Path) -> None:
    """Move the result into place piece by piece, so that two builders at once both succeed."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (scratch / "bin" / "nvidia-smi").replace(folder / "bin" / "nvidia-smi")
    # The library last: its presence means that the folder is complete.
    (scratch / SONAME).replace(folder / SONAME)
