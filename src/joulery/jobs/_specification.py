"""Jobs and their policies as stored documents."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from joulery.jobs._job import Job
from joulery.jobs._warm_start import WarmStart
from joulery.jobs.policies import make_policy

if TYPE_CHECKING:
    from joulery.jobs.policies import Policy
    from joulery.storage import Document, NewJob


def job_document(job: Job) -> Document:
    """A job as its stored specification: its document without the name."""
    document = job.to_document()
    del document["name"]
    return document


def job_from(name: str, document: Document) -> Job:
    """The job that :func:`job_document` was given."""
    return Job.from_document(document | {"name": name})


def policy_from(stored: NewJob, job: Job) -> Policy[Any]:
    """The policy that decides for a stored job."""
    options = dict(stored.parameters)
    inheritance = options.pop("inherited", None)
    policy = make_policy(stored.policy, objective=job.objective, **options)
    if inheritance is None:
        return policy
    changed: Policy[Any] = dataclasses.replace(
        policy,  # type: ignore[type-var]  # only policies that are dataclasses inherit
        warm_starts=(inheritance_from(inheritance),),
    )
    return changed


def inheritance_document(inheritance: WarmStart) -> Document:
    """The JSON form of an inheritance."""
    return {
        field.name: list(value) if isinstance(value, tuple) else value
        for field in dataclasses.fields(inheritance)
        for value in (getattr(inheritance, field.name),)
    }


def inheritance_from(document: Document) -> WarmStart:
    """The inheritance that :func:`inheritance_document` was given."""
    return WarmStart(
        batch_sizes=tuple(document["batch_sizes"]),
        log_epochs=tuple(document["log_epochs"]),
        log_sds=tuple(document["log_sds"]),
        shift_sd=document["shift_sd"],
        shape_sd=document["shape_sd"],
    )
