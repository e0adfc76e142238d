"""Jobs and their policies as stored documents."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from joulery import objectives
from joulery.errors import InvalidValueError
from joulery.jobs.job import Job
from joulery.jobs.policies.registry import make_policy
from joulery.jobs.warm_start import Inheritance

if TYPE_CHECKING:
    from joulery.jobs.policies.base import Policy
    from joulery.storage.records import Document, NewJob

# Every kind of value that an objective may be made of.
_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        objectives.Bounds,
        objectives.ConstantSignal,
        objectives.Cost,
        objectives.EnergyDelayProduct,
        objectives.EnergyDelaySum,
        objectives.FastestWithin,
        objectives.LeastCarbon,
        objectives.LeastEnergy,
        objectives.LeastMoney,
    )
}


def job_document(job: Job) -> Document:
    """A job as JSON, without its name."""
    return {
        "batch_sizes": list(job.batch_sizes),
        "default": job.default,
        "cost": _document(job.cost),
        "objective": _document(job.objective),
        "max_epochs": job.max_epochs,
        "limits_watts": list(job.limits_watts),
    }


def job_from(name: str, document: Document) -> Job:
    """What :func:`job_document` was given."""
    return Job(
        name=name,
        batch_sizes=tuple(document["batch_sizes"]),
        default=document["default"],
        cost=_value(document["cost"]),
        objective=_value(document["objective"]),
        max_epochs=document["max_epochs"],
        limits_watts=tuple(document["limits_watts"]),
    )


def policy_from(stored: NewJob, job: Job) -> Policy[Any]:
    """The policy that decides for a stored job."""
    options = dict(stored.parameters)
    inheritance = options.pop("inherited", None)
    policy = make_policy(stored.policy, objective=job.objective, **options)
    if inheritance is None:
        return policy
    changed: Policy[Any] = dataclasses.replace(
        policy,  # type: ignore[type-var]  # only policies that are dataclasses inherit
        inherited=(inheritance_from(inheritance),),
    )
    return changed


def inheritance_document(inheritance: Inheritance) -> Document:
    """An inheritance as JSON."""
    return {
        field.name: list(value) if isinstance(value, tuple) else value
        for field in dataclasses.fields(inheritance)
        for value in (getattr(inheritance, field.name),)
    }


def inheritance_from(document: Document) -> Inheritance:
    """What :func:`inheritance_document` was given."""
    return Inheritance(
        batch_sizes=tuple(document["batch_sizes"]),
        log_epochs=tuple(document["log_epochs"]),
        log_sds=tuple(document["log_sds"]),
        shift_sd=document["shift_sd"],
        shape_sd=document["shape_sd"],
    )


def _document(value: Any) -> Any:
    if value is None or isinstance(value, (int, float)):
        return value
    kind = type(value).__name__
    if _KINDS.get(kind) is not type(value) or not dataclasses.is_dataclass(value):
        raise InvalidValueError(
            f"an objective with {kind} cannot be stored",
            remedy=f"make it of {', '.join(sorted(_KINDS))}",
        )
    parts = {part.name: _document(getattr(value, part.name)) for part in dataclasses.fields(value)}
    return {"kind": kind, **parts}


def _value(document: Any) -> Any:
    if not isinstance(document, dict):
        return document
    parts = {name: _value(part) for name, part in document.items() if name != "kind"}
    return _KINDS[document["kind"]](**parts)
