"""Beliefs as bytes and back, exactly, whatever policy they are of.

A snapshot saves folding a long history after a restart. It is never the truth: it is used only if
the very same code made it, else the events are folded from the first on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.storage.documents import from_text, to_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from joulery.storage.records import Document

_PLAIN = (int, float, bool, str, bytes, type(None))
_PREFIX = struct.Struct("<QI")  # length of the head, checksum of head and body


@cache
def code_fingerprint() -> str:
    """Names the code that folds events: this package's sources and NumPy."""
    digest = hashlib.sha256(np.__version__.encode())
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(
            str(source.relative_to(Path(__file__).parent)).encode() + b"\0" + source.read_bytes()
        )
    return digest.hexdigest()[:32]


def serialize(beliefs: Any, beside: Document) -> bytes | None:
    """All arrays of ``beliefs``, and a document besides.

    None where beliefs are made of more than arrays and constants.
    """
    try:
        arrays, constants = _parts(beliefs)
    except TypeError:
        return None
    head = to_text({"shape": _shape(arrays, constants), "beside": beside}).encode()
    body = b"".join(array.tobytes() for array in arrays)
    return _PREFIX.pack(len(head), zlib.crc32(body, zlib.crc32(head))) + head + body


def deserialize(beliefs: Any, content: bytes) -> Document | None:
    """Put frozen arrays into ``beliefs`` that were just started; the document frozen with them.

    None, and nothing changed, where they do not fit.
    """
    try:
        length, check = _PREFIX.unpack_from(content)
        arrays, constants = _parts(beliefs)
    except (struct.error, TypeError):
        return None
    head, body = content[_PREFIX.size :][:length], content[_PREFIX.size + length :]
    if zlib.crc32(body, zlib.crc32(head)) != check:
        return None
    stored = from_text(head.decode())
    if stored["shape"] != _shape(arrays, constants):
        return None
    start = 0
    for array in arrays:
        part = body[start : start + array.nbytes]
        start += array.nbytes
        if array.tobytes() != part:  # what never changes may be read-only
            array[...] = np.frombuffer(part, array.dtype).reshape(array.shape)
    beside: Document = stored["beside"]
    return beside


def _shape(arrays: list[NDArray[Any]], constants: list[str]) -> list[Any]:
    return [constants, [[array.dtype.str, list(array.shape)] for array in arrays]]


def _parts(beliefs: Any) -> tuple[list[NDArray[Any]], list[str]]:
    """Every array, and the path to it or what else is there as text.

    Raises:
        TypeError: Something may change that is neither an array nor in that text.
    """
    arrays: list[NDArray[Any]] = []
    constants: list[str] = []
    for path, value in _leaves(beliefs, ""):
        if isinstance(value, np.ndarray):
            arrays.append(value)
            constants.append(path)
        else:
            constants.append(f"{path}={value!r}")
    return arrays, constants


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
