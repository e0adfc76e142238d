"""Checks of the types of arguments, so that a wrong one is refused where it is given."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from reprlib import repr as short_repr
from typing import Any

from joulery.errors import InvalidValueError


def check_type(value: Any, kind: Any, rule: str, remedy: str) -> Any:
    """The value, or ``InvalidValueError`` where it is something other than a ``kind``.

    Args:
        value: Argument to check.
        kind: Class or protocol that it must be of.
        rule: Beginning of the message, such as ``a source must be text``.
        remedy: Advice to the caller.
    """
    if isinstance(value, kind):
        return value
    raise InvalidValueError(f"{rule}, not {short_repr(value)}", remedy=remedy)


def check_items(values: Any, kind: Any, rule: str, remedy: str) -> tuple[Any, ...]:
    """The values as a tuple, or ``InvalidValueError`` unless they are several of a ``kind``."""
    if isinstance(values, str | Mapping):
        raise InvalidValueError(f"{rule}, not {short_repr(values)}", remedy=remedy)
    items = check_type(values, Iterable, rule, remedy)
    return tuple(check_type(item, kind, rule, remedy) for item in items)


def check_whole(value: Any, name: str) -> int:
    """The value, a positive whole number of any integer type, or ``InvalidValueError``."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or number < 1:
        raise InvalidValueError(
            f"{name} must be a positive whole number, not {short_repr(value)}",
            remedy="give 1 or more",
        )
    return number
