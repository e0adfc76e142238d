"""The learning rate as a function of the batch size."""

from __future__ import annotations

import math
from typing import Any

from joulery.errors import InvalidValueError
from joulery.units import finite

_RULES = {"sqrt": 0.5, "linear": 1.0}
# Parts of the names of optimizers that divide by a running size of the gradient, and of others.
_ADAPTIVE = ("ada", "rmsprop", "rprop", "lamb", "lion", "nadam", "radam", "novograd", "shampoo")
_PLAIN = ("sgd", "momentum", "nesterov", "lars")


def scaled_learning_rate(base: float, batch_size: int, default: int, rule: Any = "sqrt") -> float:
    """The learning rate for ``batch_size``, given the one for ``default``.

    It grows with the square root for adaptive optimizers such as Adam (Granziol et al., JMLR 2022)
    and linearly for plain gradient descent (Goyal et al., 2017).

    Raises:
        InvalidValueError: The rule is unknown, or the learning rate is not a positive number.
    """
    finite(base, "learning rate", minimum=0.0)
    return base * math.pow(batch_size / default, _exponent(rule))


def _exponent(rule: Any) -> float:
    if isinstance(rule, str):
        name = rule.lower()
    else:
        name = (rule if isinstance(rule, type) else type(rule)).__name__.lower()
    if name in _RULES:
        return _RULES[name]
    if any(part in name for part in _ADAPTIVE):
        return _RULES["sqrt"]
    if isinstance(rule, str) and not any(part in name for part in _PLAIN):
        raise InvalidValueError(
            f"unknown rule {rule!r} for the learning rate",
            remedy='give "sqrt", "linear" or the optimizer',
        )
    return _RULES["linear"]
