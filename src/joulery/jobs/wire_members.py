"""Members of JSON documents, each read strictly: right kind, within range, nothing unknown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Collection

Document = dict[str, Any]

_SHOWN = 40  # characters of a wrong value that a message repeats
LARGEST = 1e15  # of any quantity: beyond it sums lose seconds, and squares may overflow
LEAST = 1e-12  # of any quantity that is not zero, so that quotients stay finite
LARGEST_ID = 10**18 - 1
_MISSING = object()


def checked(document: Any, what: str, names: Collection[str]) -> Document:
    """``document`` if it is an object that has no members but ``names``."""
    if not isinstance(document, dict):
        raise InvalidValueError(
            f"{what} must be an object, not {_kind(document)}",
            remedy=f"give an object with {', '.join(names)}",
        )
    for name in document:
        if name not in names:
            raise InvalidValueError(
                f"{what} has no member {shown(name)}", remedy=f"it may have {', '.join(names)}"
            )
    return document


def member(document: Document, name: str, default: Any = _MISSING) -> Any:
    """A member; an error names it where it is missing and has no default."""
    value = document.get(name, default)
    if value is _MISSING:
        raise InvalidValueError(f"{name} is missing", remedy=f"add the member {name}")
    return value


def text(document: Document, name: str, default: Any = _MISSING, *, longest: int = 200) -> str:
    """A member that is text which any database can hold and any log can show."""
    value = member(document, name, default)
    if not isinstance(value, str):
        raise _wrong(name, "text", value)
    if len(value) > longest or not value.isprintable():
        raise InvalidValueError(
            f"{name} must be at most {longest} printable characters, not {shown(value)}",
            remedy="shorten it, and leave control characters out",
        )
    return value


def text_or_none(document: Document, name: str) -> str | None:
    """A member that is text or null; null where it is missing."""
    return None if document.get(name) is None else text(document, name)


def truth(document: Document, name: str, default: Any = _MISSING) -> bool:
    """A member that is true or false."""
    value = member(document, name, default)
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def whole(document: Document, name: str, least: int = 0, most: int = LARGEST_ID) -> int:
    """A member that is a whole number."""
    return checked_whole(member(document, name), name, least, most)


def whole_or_none(document: Document, name: str) -> int | None:
    """A member that is a whole number or null; null where it is missing."""
    return None if document.get(name) is None else whole(document, name)


def number(document: Document, name: str, default: Any = _MISSING) -> float:
    """A member that is a quantity: a finite number of zero or more."""
    return checked_number(member(document, name, default), name)


def number_or_none(document: Document, name: str) -> float | None:
    """A member that is a quantity or null; null where it is missing."""
    return None if document.get(name) is None else number(document, name)


def items(document: Document, name: str, most: int, default: Any = _MISSING) -> list[Any]:
    """A member that is a list."""
    value = member(document, name, default)
    if not isinstance(value, list | tuple):
        raise _wrong(name, "a list", value)
    if len(value) > most:
        raise InvalidValueError(f"{name} has {len(value)} entries", remedy=f"give at most {most}")
    return list(value)


def checked_whole(value: Any, name: str, least: int = 0, most: int = LARGEST_ID) -> int:
    """``value`` if it is a whole number within range."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(name, "a whole number", value)
    if not least <= value <= most:
        raise InvalidValueError(
            f"{name} is out of range: {shown(value)}", remedy=f"give {least} to {most}"
        )
    return value


def checked_number(value: Any, name: str, *, signed: bool = False) -> float:
    """``value`` as a float if it is a finite number that arithmetic can bear."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(name, "a number", value)
    size = abs(value)
    # Written so that NaN, which compares as false, is refused.
    if value == 0 or (LEAST <= size <= LARGEST and (signed or value > 0)):
        return float(value)
    smallest = f"{-LARGEST:g}" if signed else "0"
    raise InvalidValueError(
        f"{name} is out of range: {shown(value)}",
        remedy=f"give a finite number from {smallest} to {LARGEST:g}, not closer to 0 than "
        f"{LEAST:g}",
    )


def shown(value: Any) -> str:
    """A wrong value as a message may repeat it."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        words = repr(value[:_SHOWN] if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # a number too long to be written, or endless nesting
        return _kind(value)
    return words if len(words) <= _SHOWN + 2 else words[:_SHOWN] + "…"


def _wrong(name: str, wanted: str, value: Any) -> InvalidValueError:
    return InvalidValueError(
        f"{name} must be {wanted}, not {_kind(value)}", remedy=f"give {name} as {wanted}"
    )


def _kind(value: Any) -> str:
    kinds = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        type(None): "null",
    }
    return kinds.get(type(value), type(value).__name__)
