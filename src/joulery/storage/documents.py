"""JSON as it is stored: strict, compact, and exact for floats."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joulery.storage.records import Document

# Keys are sorted, so that equal documents are equal texts. Python writes the shortest text that
# reads back as the same float; NaN and infinities are not JSON and are refused.
_encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True
).encode
# What is most often part of another document; it comes first by the alphabet.
_FIRST = "action"


class Written(dict[str, Any]):
    """A document that remembers its text, so that it is written and read once; not to be changed.

    Args:
        document: What it says.
        text: The same as :func:`to_text` gives it, if known.
    """

    __slots__ = ("text",)

    def __init__(self, document: Document, text: str | None = None) -> None:
        super().__init__(document)
        self.text = _encode(document) if text is None else text


def to_text(document: Document) -> str:
    """A document as one line of ASCII."""
    if isinstance(document, Written):
        return document.text
    first = document.get(_FIRST)
    if isinstance(first, Written) and len(document) > 1 and min(document) == _FIRST:
        rest = {name: value for name, value in document.items() if name != _FIRST}
        return f'{{"{_FIRST}":{first.text},{_encode(rest)[1:]}'
    return _encode(document)


def from_text(text: str) -> Document:
    """What :func:`to_text` was given."""
    document: dict[str, Any] = json.loads(text)
    return document
