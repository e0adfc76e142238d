"""Compile the emulated NVML once per version of its source."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from joulery.errors import JouleryError, MissingExtraError

SONAME = "libnvidia-ml.so.1"
_SOURCES = ("emulator.h", "state.c", "board.c", "control.c", "nvml.c")
_FLAGS = (
    "-std=gnu11",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    f"-Wl,-soname,{SONAME}",
)
_LIBRARIES = ("-lm", "-lpthread")
# Some tools look for this program before they ask NVML.
_NVIDIA_SMI = "#!/bin/sh\necho 'NVIDIA-SMI emulated by Joulery; no such board exists'\n"


def compiler() -> str | None:
    """Path of a C compiler, if there is one."""
    return shutil.which("gcc") or shutil.which("cc")


def cache_directory() -> Path:
    """Where compiled libraries are kept: under ``XDG_CACHE_HOME``, or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "joulery" / "emulator"


def build(cache: Path | None = None) -> Path:
    """The folder with the compiled library and a stand-in for ``nvidia-smi`` in its ``bin``.

    Args:
        cache: Where to keep it; :func:`cache_directory` by default.

    Raises:
        MissingExtraError: There is no C compiler.
    """
    source = Path(__file__).parent
    digest = hashlib.sha256(" ".join((*_FLAGS, platform.machine(), _NVIDIA_SMI)).encode())
    for name in _SOURCES:
        digest.update((source / name).read_bytes())
    folder = (cache or cache_directory()) / digest.hexdigest()[:16]
    if not (folder / SONAME).exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _compile(source, Path(scratch))
            _publish(Path(scratch), folder)
    return folder


def _compile(source: Path, target: Path) -> None:
    program = compiler()
    if program is None:
        raise MissingExtraError(
            "the emulated NVML needs a C compiler and none is on the PATH",
            remedy="install gcc (Debian: apt install gcc libc6-dev)",
        )
    units = [str(source / name) for name in _SOURCES if name.endswith(".c")]
    command = [program, *_FLAGS, "-o", str(target / SONAME), *units, *_LIBRARIES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[0]
        raise JouleryError(
            f"the emulated NVML does not compile: {reason}",
            remedy=f"run it by hand: {' '.join(command)}",
        )
    (target / "bin").mkdir()
    script = target / "bin" / "nvidia-smi"
    script.write_text(_NVIDIA_SMI, encoding="utf-8")
    script.chmod(0o755)


def _publish(scratch: Path, folder: Path) -> None:
    """Move the result into place piece by piece, so that two builders at once both succeed."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (scratch / "bin" / "nvidia-smi").replace(folder / "bin" / "nvidia-smi")
    # The library last: its presence says that the folder is complete.
    (scratch / SONAME).replace(folder / SONAME)
