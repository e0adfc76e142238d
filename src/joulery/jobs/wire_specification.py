"""The specification of a job as others send it: every part checked before it is believed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.jobs.specification import job_from
from joulery.jobs.wire_members import (
    checked,
    checked_number,
    checked_whole,
    items,
    shown,
    text,
    whole,
)

if TYPE_CHECKING:
    from joulery.jobs.job import Job

MOST_BATCH_SIZES = 64
MOST_LIMITS = 32
LARGEST_BATCH_SIZE = 2**40
MOST_EPOCHS = 10**6
MOST_PARAMETERS = 16

_SPECIFICATION = ("batch_sizes", "default", "cost", "objective", "max_epochs", "limits_watts")
# Parameters that memory is made for, and the most of each.
_WHOLE_PARAMETERS = {"window": 1000}
# Set by the desk itself.
_RESERVED = frozenset({"inherited", "objective"})


def specification_from(name: str, document: Any) -> Job:
    """The job that :func:`joulery.jobs.specification.job_document` was given.

    Raises:
        InvalidValueError: It says nothing that makes sense, and what.
    """
    checked(document, "the specification", _SPECIFICATION)
    sizes = [
        checked_whole(size, "a batch size", 1, LARGEST_BATCH_SIZE)
        for size in items(document, "batch_sizes", MOST_BATCH_SIZES)
    ]
    limits = [
        checked_number(watts, "a power limit in watts")
        for watts in items(document, "limits_watts", MOST_LIMITS, ())
    ]
    objective = document.get("objective")
    return job_from(
        name,
        {
            "batch_sizes": sizes,
            "default": whole(document, "default", 1, LARGEST_BATCH_SIZE),
            "cost": text(document, "cost", ""),
            "objective": None if objective is None else text(document, "objective", ""),
            "max_epochs": checked_whole(
                document.get("max_epochs", 100), "max_epochs", 1, MOST_EPOCHS
            ),
            "limits_watts": limits,
        },
    )


def parameters_from(document: Any) -> dict[str, float]:
    """Parameters of a policy, each a number."""
    if not isinstance(document, dict) or len(document) > MOST_PARAMETERS:
        raise InvalidValueError(
            "parameters must be an object of numbers",
            remedy=f"give at most {MOST_PARAMETERS} of them by name, or {{}}",
        )
    for name in document:
        if not name.isidentifier() or len(name) > 40 or name in _RESERVED:
            raise InvalidValueError(
                f"no policy takes a parameter {shown(name)}", remedy="leave it out"
            )
    for name, value in document.items():
        if name in _WHOLE_PARAMETERS:
            checked_whole(value, f"parameter {name}", 0, _WHOLE_PARAMETERS[name])
        else:
            checked_number(value, f"parameter {name}")
    return dict(document)  # whole numbers stay whole
