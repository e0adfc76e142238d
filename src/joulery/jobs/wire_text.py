"""JSON as it travels: compact to write, and nothing but plain JSON to read."""

from __future__ import annotations

import json
import math
from typing import Any

from joulery.errors import InvalidValueError

_LARGEST = 2**63 - 1
_REMEDY = "send one JSON document in UTF-8 (RFC 8259)"


class NotJsonError(InvalidValueError):
    """What came is not JSON, or not JSON that everyone reads in the same way."""


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=True).encode


def to_bytes(document: Any) -> bytes:
    """A document as one line of ASCII."""
    return _encode(document).encode("ascii")


def from_bytes(content: bytes) -> Any:
    """What :func:`to_bytes` was given.

    Raises:
        NotJsonError: Not JSON; NaN, infinities, numbers beyond 64 bits, a member twice, text that
            is not Unicode or has a NUL, or nesting too deep.
    """
    try:
        document = _decode(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise NotJsonError("the text is not UTF-8", remedy=_REMEDY) from None
    except RecursionError:
        raise NotJsonError("nested too deeply", remedy=_REMEDY) from None
    except NotJsonError:
        raise
    except ValueError as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise NotJsonError(f"not JSON{where}", remedy=_REMEDY) from None
    if b"\\u" in content:
        _check_texts(document)
    return document


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise NotJsonError("an object has a member twice", remedy="give each member once")
    return found


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise NotJsonError("a number is too large", remedy="give finite numbers")
    return number


def _int(digits: str) -> int:
    # Twenty characters hold every number of 64 bits, and turning more of them takes long.
    number = int(digits) if len(digits) <= 20 else _LARGEST + 1
    if not -_LARGEST <= number <= _LARGEST:
        raise NotJsonError("a whole number is too large", remedy="give numbers within 64 bits")
    return number


def _constant(name: str) -> Any:
    raise NotJsonError(f"{name} is not JSON", remedy="give finite numbers; null for unknown")


_decode = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_float=_float, parse_int=_int, parse_constant=_constant
).decode


def _check_texts(document: Any) -> None:
    """Refuse what escapes may smuggle in: halves of characters, and NUL."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value)
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, str) and any(
            letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value
        ):
            raise NotJsonError(
                "text has a NUL or half of a character", remedy="give Unicode text without NUL"
            )
