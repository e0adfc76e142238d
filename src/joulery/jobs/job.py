"""A job that recurs: what its owner allows and wants."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError
from joulery.units import finite

if TYPE_CHECKING:
    from joulery.objectives import Cost, Objective


@dataclass(frozen=True, slots=True)
class Job:
    """What a policy needs to know before the first recurrence.

    Attributes:
        name: Of the job, for people.
        batch_sizes: What may be chosen, ascending.
        default: What the owner would run; one of ``batch_sizes``.
        cost: What running costs, in joules: charged as a run goes on, and what early stopping
            bounds. Time is weighed by ``max_watts``.
        objective: What to minimise over a whole run; None for ``cost`` itself.
        max_epochs: A run that has not reached its target by then has failed.
        limits_watts: Power limits that may be held, ascending; empty leaves the limit alone.
    """

    name: str
    batch_sizes: tuple[int, ...]
    default: int
    cost: Cost
    objective: Objective | None = None
    max_epochs: int = 100
    limits_watts: tuple[float, ...] = field(default=())

    def __post_init__(self) -> None:
        _check_batch_sizes(self.name, self.batch_sizes, self.default)
        if self.max_epochs < 1:
            raise InvalidValueError(
                f"job {self.name!r}: max_epochs must be at least 1, not {self.max_epochs}",
                remedy="give the number of epochs after which a run gives up",
            )
        for watts in self.limits_watts:
            finite(watts, f"job {self.name!r}: power limit in watts", minimum=0.0)
        if list(self.limits_watts) != sorted(set(self.limits_watts)):
            raise InvalidValueError(
                f"job {self.name!r}: power limits must ascend without repeats",
                remedy="sort them and drop repeats",
            )


def _check_batch_sizes(name: str, batch_sizes: tuple[int, ...], default: int) -> None:
    if not batch_sizes:
        raise InvalidValueError(
            f"job {name!r} has no batch sizes to choose from",
            remedy="give at least one; a set of one leaves the batch size alone",
        )
    for size in batch_sizes:
        if not (isinstance(size, int) and not isinstance(size, bool) and 0 < size < math.inf):
            raise InvalidValueError(
                f"job {name!r}: batch size {size!r} is not a positive whole number",
                remedy="give samples per step as whole numbers",
            )
    if list(batch_sizes) != sorted(set(batch_sizes)):
        raise InvalidValueError(
            f"job {name!r}: batch sizes must ascend without repeats",
            remedy="sort them and drop repeats",
        )
    if default not in batch_sizes:
        raise InvalidValueError(
            f"job {name!r}: default batch size {default} is not in its set",
            remedy=f"add it, or choose one of {', '.join(map(str, batch_sizes))}",
        )
