"""Find, compile and load the compiled decision.

A process that decides a lot calls :func:`prepare`. All others use what is there already, beside
the sources or in the user's cache, and never start a compiler: nobody's training waits for one.
The file's name holds a digest of the sources, and its last bytes one of what comes before them, so
that neither a stale nor a torn file is ever loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
from ctypes import c_int, c_int64, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.compiled import Sources, cache_directory, compile_once, exact_flags
from joulery.errors import JouleryError

if TYPE_CHECKING:
    from collections.abc import Callable

    Decide = Callable[[int, int, int, int], int]


class SealedSources(Sources):
    """Sources of a library that can be told from a torn one without loading it."""

    def compile(self, target: Path) -> None:
        """Write the shared library ``target``, and its digest behind it."""
        super().compile(target)
        with target.open("r+b") as file:
            file.write(_seal(file.read()))  # after what was read: loaders ignore what follows


SOURCES = SealedSources(
    purpose="the compiled decision",
    folder=Path(__file__).parent,
    files=("decide.h", "decide.c"),
    flags=exact_flags("-O2"),
    libraries=("-lm",),
)


class _Held:
    """What this process has found."""

    def __init__(self) -> None:
        self.decide: Decide | None = None
        self.looked = False
        self.prepared = False


_held = _Held()


def file_name() -> str:
    """Of the library made from the sources as they are."""
    return f"libjoulery-recurring-{SOURCES.digest()}.so"


def loaded() -> Decide | None:
    """The compiled decision, if it is there; looked for once per process, never compiled."""
    if not _held.looked:
        _held.decide = _found()
        _held.looked = True
    return _held.decide


def prepare() -> bool:
    """Compile the decision unless it is there; whether it can be used now.

    Without it decisions are the same and take longer, so nothing is raised.
    """
    if loaded() is None and not _held.prepared:
        _held.decide = _made()
    _held.prepared = True
    return _held.decide is not None


def _found() -> Decide | None:
    try:
        name = file_name()
        return _load(SOURCES.folder / name) or _load(cache_directory("recurring") / name)
    except (OSError, RuntimeError):  # sources not readable; no home directory
        return None


def _made() -> Decide | None:
    try:
        target = cache_directory("recurring") / file_name()
        found = _load(target)  # another process may have been faster
        if found is None:
            target.unlink(missing_ok=True)  # torn, and would stay so
            found = _load(compile_once(SOURCES, target))
    except (OSError, RuntimeError, JouleryError):  # not writable; no home; no compiler
        return None
    return found


def _seal(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _load(path: Path) -> Decide | None:
    """The function, unless the file is missing, torn or foreign."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    end = len(content) - len(_seal(b""))
    if end <= 0 or _seal(content[:end]) != content[end:]:
        return None
    try:
        # Keeps the interpreter's lock: beliefs stand still, and microseconds are not worth its
        # release.
        decide = ctypes.PyDLL(str(path)).joulery_decide
    except (OSError, AttributeError):
        return None
    decide.restype = c_int
    decide.argtypes = [c_void_p, c_void_p, c_int64, c_void_p]
    found: Decide = decide
    return found
