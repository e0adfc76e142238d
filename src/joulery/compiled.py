"""Compile C sources that ship with the package, once per version of the sources."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from joulery.errors import JouleryError, MissingExtraError


def exact_flags(level: str) -> tuple[str, ...]:
    """Compiler flags for the same results on every machine: no contraction of operations.

    Args:
        level: Level of optimisation, such as "-O2".
    """
    exact = ("-std=c11", level, "-ffp-contract=off")
    return (*exact, "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")


@dataclass(frozen=True, slots=True)
class Sources:
    """Source files and options of one shared library.

    Attributes:
        purpose: Name of the library in messages: "the emulated NVML".
        folder: Folder of the files.
        files: Sources and headers; files that end in ``.c`` are compiled.
        flags: Flags of the compiler.
        libraries: Libraries for the linker.
    """

    purpose: str
    folder: Path
    files: tuple[str, ...]
    flags: tuple[str, ...]
    libraries: tuple[str, ...] = ()

    def digest(self) -> str:
        """Changes with the sources, how they are compiled, and the kind of machine."""
        settings = (*self.flags, *self.libraries, platform.machine())
        hasher = hashlib.sha256(" ".join(settings).encode())
        for name in self.files:
            hasher.update((self.folder / name).read_bytes())
        return hasher.hexdigest()[:16]

    def compile(self, target: Path) -> None:
        """Write the shared library ``target``.

        Raises:
            MissingExtraError: There is no C compiler.
            JouleryError: The compiler refuses.
        """
        program = compiler()
        if program is None:
            raise MissingExtraError(
                f"{self.purpose} needs a C compiler and there is none",
                remedy="apt install gcc libc6-dev, or without root: pip install ziglang",
            )
        units = [str(self.folder / name) for name in self.files if name.endswith(".c")]
        command = [*program, *self.flags, "-o", str(target), *units, *self.libraries]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode != 0:
            reason = (process.stderr.strip().splitlines() or ["no message"])[0]
            raise JouleryError(
                f"{self.purpose} does not compile: {reason}",
                remedy=f"run it by hand: {' '.join(command)}",
            )


def compiler() -> tuple[str, ...] | None:
    """Command of a C compiler, if there is one: that of the system, or ``ziglang`` from PyPI."""
    program = shutil.which("gcc") or shutil.which("cc")
    if program is not None:
        return (program,)
    if importlib.util.find_spec("ziglang") is None:
        return None
    # Zig compiles for the very processor unless told otherwise, and homes are shared by machines.
    return (sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline")


def compile_once(sources: Sources, target: Path) -> Path:
    """``target``, compiled unless it is there; two processes at once both succeed."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            fresh = Path(scratch) / target.name
            sources.compile(fresh)
            fresh.replace(target)
    return target
