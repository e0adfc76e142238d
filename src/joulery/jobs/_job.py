"""A job that recurs: what its owner allows and wants."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Annotated

from joulery.errors import InvalidValueError
from joulery.jobs._schema import LARGEST, Codec, Constraint, JsonModel, Name, Quantity
from joulery.objectives import Cost, Objective, objective_text, parse_objective
from joulery.units import finite

BatchSize = Annotated[int, Constraint(minimum=1, maximum=2**40, examples=[128])]
PowerLimit = Quantity


def _read_objective(value: object, name: str) -> Objective:
    if not isinstance(value, str) or len(value) > 200:
        raise InvalidValueError(
            f"{name} must be an objective as text, not {shown(value)}",
            remedy="write it as on the command line, such as least-energy:slowdown=5%",
        )
    objective = parse_objective(value)
    figures = (getattr(objective, one.name) for one in dataclasses.fields(objective))  # type: ignore[arg-type]
    if any(isinstance(figure, float) and abs(figure) > LARGEST for figure in figures):
        raise InvalidValueError(
            f"{name} has a figure out of range: {shown(value)}",
            remedy=f"give numbers up to {LARGEST:g}",
        )
    return objective


def _read_cost(value: object, name: str) -> Cost:
    cost = _read_objective(value, name)
    if not isinstance(cost, Cost):
        raise InvalidValueError(
            f"{name} is no cost: {shown(value)}", remedy="write cost:eta=0.5,max_watts=300"
        )
    return cost


_TEXT = {"type": "string", "maxLength": 200}
_OBJECTIVE = Codec(
    objective_text, _read_objective, _TEXT | {"examples": ["least-energy:slowdown=5%"]}
)
_COST = Codec(objective_text, _read_cost, _TEXT | {"examples": ["cost:eta=0.5,max_watts=300"]})


@dataclass(frozen=True, slots=True)
class Job(JsonModel):
    """What a policy needs to know before the first recurrence.

    Attributes:
        name: Name of the job, for people.
        batch_sizes: Batch sizes that may be chosen, ascending.
        default: Batch size that the owner would run; one of `batch_sizes`.
        cost: Cost of running in joules, charged as a run goes on and bounded by early stopping:
            `cost:eta=…,max_watts=…`, where `max_watts` turns seconds into joules.
        objective: Objective to minimise over a whole run, as on the command line; null for `cost`.
        max_epochs: Epochs after which a run that has not reached its target has failed.
        limits_watts: Power limits that may be held, ascending; empty leaves the limit alone.
    """

    name: Name
    batch_sizes: Annotated[tuple[BatchSize, ...], Constraint(minItems=1, maxItems=64)]
    default: BatchSize
    cost: Annotated[Cost, _COST]
    objective: Annotated[Objective, _OBJECTIVE] | None = None
    max_epochs: Annotated[int, Constraint(minimum=1, maximum=10**6)] = 100
    limits_watts: Annotated[tuple[PowerLimit, ...], Constraint(maxItems=32)] = ()

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
