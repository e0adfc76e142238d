"""Serialization of posteriors: arrays as bytes and back, exactly, of any policy.

A snapshot saves folding a long history after a restart. It is never the truth: it is used only if
the same versions of the fold, of the policy and of NumPy made it, else the events are folded from
the first on.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.storage import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from joulery.jobs.policies import Policy
    from joulery.storage import Document

# To be raised when the report filter, or the order in which events reach a policy, changes.
_FOLD_VERSION = 1
_PLAIN = (int, float, bool, str, bytes, type(None))
_PREFIX = struct.Struct("<QI")  # length of the head, checksum of head and body


def fold_version(policy: Policy[Any]) -> str:
    """The versions of all that a posterior follows from, besides its events."""
    return f"fold {_FOLD_VERSION}, {policy.name} {policy.version}, numpy {np.__version__}"


def serialize(beliefs: Any, document: Document) -> bytes | None:
    """All arrays of ``beliefs`` and a document as bytes.

    None if the beliefs are made of more than arrays and constants.
    """
    try:
        arrays, layout = _layout(beliefs)
    except TypeError:
        return None
    head = to_json({"layout": layout, "document": document}).encode()
    body = b"".join(array.tobytes() for array in arrays)
    return _PREFIX.pack(len(head), zlib.crc32(body, zlib.crc32(head))) + head + body


def deserialize(beliefs: Any, content: bytes) -> Document | None:
    """Write serialized arrays into ``beliefs`` that were just started; the document with them.

    None, with nothing changed, if they do not fit.
    """
    try:
        length, check = _PREFIX.unpack_from(content)
        arrays, layout = _layout(beliefs)
    except (struct.error, TypeError):
        return None
    head, body = content[_PREFIX.size :][:length], content[_PREFIX.size + length :]
    if zlib.crc32(body, zlib.crc32(head)) != check:
        return None
    stored = json.loads(head.decode())
    if stored["layout"] != layout:
        return None
    start = 0
    for array in arrays:
        part = body[start : start + array.nbytes]
        start += array.nbytes
        if array.tobytes() != part:  # what never changes may be read-only
            array[...] = np.frombuffer(part, array.dtype).reshape(array.shape)
    document: Document = stored["document"]
    return document


def _layout(beliefs: Any) -> tuple[list[NDArray[Any]], list[str]]:
    """All arrays; and a text for each part: its path with its type and shape, or its value.

    Raises:
        TypeError: A part is neither an array nor a plain constant.
    """
    arrays: list[NDArray[Any]] = []
    layout: list[str] = []
    for path, value in _leaves(beliefs, ""):
        if isinstance(value, np.ndarray):
            arrays.append(value)
            layout.append(f"{path}: {value.dtype.str} {value.shape}")
        else:
            layout.append(f"{path}={value!r}")
    return arrays, layout


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
