"""JSON as it is stored: strict, compact, and exact for floats."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joulery.store.records import Document

# Keys are sorted, so that equal documents are equal texts. Python writes the shortest text that
# reads back as the same float; NaN and infinities are not JSON and are refused.
_encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True
).encode


def to_text(document: Document) -> str:
    """A document as one line of ASCII."""
    return _encode(document)


def from_text(text: str) -> Document:
    """What :func:`to_text` was given."""
    document: dict[str, Any] = json.loads(text)
    return document
