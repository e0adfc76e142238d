"""JSON lines: one object per line, as logs, journals and the sockets of this project have them."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def encode_line(document: dict[str, Any]) -> bytes:
    """The line of an object, with its end; NaN and the infinities raise a ValueError."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode_line(line: bytes) -> dict[str, Any]:
    """The object of a line.

    Raises:
        ValueError: It holds anything but a JSON object.
    """
    try:
        document = json.loads(line.decode(), parse_constant=_refuse)
    # Nesting beyond the interpreter's depth is as malformed as a missing brace.
    except RecursionError:
        document = None
    if not isinstance(document, dict):
        raise ValueError("a line does not hold a JSON object")  # noqa: TRY004 - of the text
    return document


def _refuse(constant: str) -> NoReturn:
    """NaN and the infinities are no JSON, though Python would read them."""
    raise ValueError(constant)
