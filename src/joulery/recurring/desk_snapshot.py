"""Beliefs as bytes and back, exactly, whatever policy they are of.

A snapshot saves folding a long history after a restart. It is never the truth: it is used only if
the very same code made it, else the events are folded from the first on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_PLAIN = (int, float, bool, str, bytes, type(None))
_CONSTANTS = "constants"


@cache
def code_fingerprint() -> str:
    """Names the code that folds events: this package's sources and NumPy."""
    digest = hashlib.sha256(np.__version__.encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:32]


def freeze(beliefs: Any) -> bytes | None:
    """All arrays of ``beliefs``; None where they are made of more than arrays and constants."""
    try:
        parts = _parts(beliefs)
    except TypeError:
        return None
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **parts)
    return content.getvalue()


def thaw(beliefs: Any, content: bytes) -> bool:
    """Put frozen arrays into ``beliefs`` that were just started; False where they do not fit."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as frozen:
            stored = {name: frozen[name] for name in frozen.files}
        places = _parts(beliefs)
    except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile):
        return False
    if places.keys() != stored.keys() or not all(
        _fits(array, stored[name], constant=name == _CONSTANTS) for name, array in places.items()
    ):
        return False
    for name, array in places.items():
        if array.tobytes() != stored[name].tobytes():  # what never changes may be read-only
            array[...] = stored[name]
    return True


def _fits(place: NDArray[Any], stored: NDArray[Any], *, constant: bool) -> bool:
    if (place.shape, place.dtype) != (stored.shape, stored.dtype):
        return False
    return not constant or bool((place == stored).all())


def _parts(beliefs: Any) -> dict[str, NDArray[Any]]:
    """Every array by the path to it, and everything else as one text.

    Raises:
        TypeError: Something may change that is neither an array nor in that text.
    """
    arrays: dict[str, NDArray[Any]] = {}
    constants: list[str] = []
    for path, value in _leaves(beliefs, ""):
        if isinstance(value, np.ndarray):
            arrays[path] = value
        else:
            constants.append(f"{path}={value!r}")
    return arrays | {_CONSTANTS: np.array(["\n".join(constants)])}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (np.ndarray, *_PLAIN)):
        yield path, value
    elif dataclasses.is_dataclass(value):
        for part in dataclasses.fields(value):
            yield from _leaves(getattr(value, part.name), f"{path}.{part.name}")
    elif isinstance(value, tuple):
        for number, inner in enumerate(value):
            yield from _leaves(inner, f"{path}.{number}")
    else:
        raise TypeError(path)
