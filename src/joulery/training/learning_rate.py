"""How the learning rate follows the batch size."""

from __future__ import annotations

import math
from typing import Any

_RULES = {"sqrt": 0.5, "linear": 1.0}
# Optimizers that divide by a running size of the gradient; all others follow it linearly.
_ADAPTIVE = ("ada", "rmsprop", "rprop", "lamb", "lion", "nadam", "radam", "novograd", "shampoo")


def scaled_learning_rate(base: float, batch_size: int, default: int, rule: Any = "sqrt") -> float:
    """The learning rate for ``batch_size``, given the one for ``default``.

    With the square root for adaptive optimizers such as Adam (Granziol et al., JMLR 2022), linearly
    for plain gradient descent (Goyal et al., 2017).

    Args:
        base: Learning rate that fits the default batch size.
        batch_size: That is run.
        default: That ``base`` was found for.
        rule: ``"sqrt"``, ``"linear"``, or an optimizer: its class, its name, or the object.
    """
    exponent = _RULES.get(rule) if isinstance(rule, str) else None
    if exponent is None:
        exponent = _RULES["sqrt" if is_adaptive(rule) else "linear"]
    return base * math.pow(batch_size / default, exponent)


def is_adaptive(optimizer: Any) -> bool:
    """Whether an optimizer (its class, its name, or the object) scales gradients by their size."""
    if isinstance(optimizer, str):
        name = optimizer
    else:
        name = (optimizer if isinstance(optimizer, type) else type(optimizer)).__name__
    return any(part in name.lower() for part in _ADAPTIVE)
