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
    member,
    shown,
    text,
    whole,
)

if TYPE_CHECKING:
    from joulery.jobs.job import Job
    from joulery.jobs.wire_members import Document

MOST_BATCH_SIZES = 64
MOST_LIMITS = 32
LARGEST_BATCH_SIZE = 2**40
MOST_EPOCHS = 10**6
MOST_PARAMETERS = 16

_SPECIFICATION = ("batch_sizes", "default", "cost", "objective", "max_epochs", "limits_watts")
# Parts of every kind of objective: numbers, unless another kind is named.
_OBJECTIVES: dict[str, dict[str, str]] = {
    "Cost": {"eta": "", "max_watts": ""},
    "EnergyDelayProduct": {},
    "EnergyDelaySum": {"k": ""},
    "FastestWithin": {"joules": ""},
    "LeastCarbon": {"signal": "ConstantSignal", "start_seconds": "", "bounds": "Bounds"},
    "LeastEnergy": {"max_slowdown": "", "deadline_seconds": ""},
    "LeastMoney": {
        "signal": "ConstantSignal",
        "rent_per_hour": "",
        "start_seconds": "",
        "bounds": "Bounds",
    },
}
_PARTS: dict[str, dict[str, str]] = {
    "Bounds": {"deadline_seconds": "", "max_slowdown": ""},
    "ConstantSignal": {"per_kilowatt_hour": ""},
}
_MAY_BE_NULL = frozenset({"deadline_seconds", "max_slowdown"})
_MAY_BE_NEGATIVE = frozenset({"per_kilowatt_hour", "start_seconds"})
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
            "cost": _part(member(document, "cost"), "cost", {"Cost": _OBJECTIVES["Cost"]}),
            "objective": None if objective is None else _part(objective, "objective", _OBJECTIVES),
            "max_epochs": checked_whole(
                document.get("max_epochs", 100), "max_epochs", 1, MOST_EPOCHS
            ),
            "limits_watts": limits,
        },
    )


def _part(document: Any, what: str, kinds: dict[str, dict[str, str]]) -> Document:
    """An objective, or a part of one, with nothing in it but what its kind has."""
    kind = text(document, "kind", "") if isinstance(document, dict) else ""
    parts = kinds.get(kind)
    if parts is None:
        raise InvalidValueError(
            f"{what} must be an object whose kind is one of {', '.join(kinds)}",
            remedy=f"give {what} as an object with a kind",
        )
    checked(document, f"{what} of kind {kind}", ("kind", *parts))
    found: Document = {"kind": kind}
    for name, inner in parts.items():
        if name in document and (document[name] is not None or name != "bounds"):
            found[name] = _value(document[name], name, inner)
    if "signal" in parts and "signal" not in found:
        raise InvalidValueError("signal is missing", remedy="add the member signal")
    for name in ("k", "joules", "per_kilowatt_hour"):
        if name in parts:
            member(document, name)
    return found


def _value(value: Any, name: str, kind: str) -> Any:
    if kind:
        return _part(value, name, {kind: _PARTS[kind]})
    if value is None and name in _MAY_BE_NULL:
        return None
    return checked_number(value, name, signed=name in _MAY_BE_NEGATIVE)


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
