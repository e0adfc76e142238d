"""Jobs and their policies as stored documents."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.jobs.job import Job
from joulery.jobs.policies.registry import make_policy
from joulery.jobs.warm_start import Inheritance
from joulery.objectives import Cost, objective_text, parse_objective

if TYPE_CHECKING:
    from joulery.jobs.policies.base import Policy
    from joulery.storage.records import Document, NewJob


def job_document(job: Job) -> Document:
    """A job as JSON, without its name."""
    return {
        "batch_sizes": list(job.batch_sizes),
        "default": job.default,
        "cost": objective_text(job.cost),
        "objective": None if job.objective is None else objective_text(job.objective),
        "max_epochs": job.max_epochs,
        "limits_watts": list(job.limits_watts),
    }


def job_from(name: str, document: Document) -> Job:
    """What :func:`job_document` was given."""
    return Job(
        name=name,
        batch_sizes=tuple(document["batch_sizes"]),
        default=document["default"],
        cost=_cost(document["cost"]),
        objective=None if document["objective"] is None else parse_objective(document["objective"]),
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


def _cost(text: str) -> Cost:
    cost = parse_objective(text)
    if not isinstance(cost, Cost):
        raise InvalidValueError(f"{text!r} is no cost", remedy="write cost:eta=0.5,max_watts=300")
    return cost
