"""Power limits on the command line: ``100:300:25`` or ``100,150,250``."""

from __future__ import annotations

import math

from joulery.errors import InvalidValueError

_REMEDY = "write watts as low:high:step, such as 100:300:25, or a list, such as 100,150,250"
# More limits than this are a typing error, not a sweep.
_MOST = 1000


def parse_limits(text: str) -> tuple[float, ...]:
    """Limits in watts, highest first: a sweep starts from what is closest to the default.

    >>> parse_limits("100:200:50")
    (200.0, 150.0, 100.0)
    """
    limits = _range(text) if ":" in text else [_watts(word, text) for word in text.split(",")]
    return tuple(sorted(set(limits), reverse=True))


def _range(text: str) -> list[float]:
    words = text.split(":")
    if len(words) != 3:
        raise InvalidValueError(f"{text!r} is no range of power limits", remedy=_REMEDY)
    low, high, step = (_watts(word, text) for word in words)
    if high < low:
        raise InvalidValueError(
            f"the range of power limits {text!r} is empty",
            remedy=f"put the lower limit first: {high:g}:{low:g}:{step:g}",
        )
    # The slack keeps an end that rounding left just short.
    count = math.floor((high - low) / step + 1e-9) + 1
    if count > _MOST:
        raise InvalidValueError(
            f"{text!r} asks for {count} power limits",
            remedy=f"take a larger step; {_MOST} limits at most",
        )
    return [low + index * step for index in range(count)]


def _watts(word: str, text: str) -> float:
    try:
        watts = float(word)
    except ValueError:
        raise InvalidValueError(
            f"{word!r} in the power limits {text!r} is no number", remedy=_REMEDY
        ) from None
    if not (math.isfinite(watts) and watts > 0):
        raise InvalidValueError(
            f"{word} in the power limits {text!r} is not above 0 W", remedy=_REMEDY
        )
    return watts
