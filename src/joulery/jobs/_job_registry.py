"""Jobs in the store: defined once each, with a warm start from other versions or devices."""

from __future__ import annotations

import dataclasses
import reprlib
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.jobs._models import Job
from joulery.jobs.policies import CarriesOver, WarmStart, make_policy, policy_parameters

if TYPE_CHECKING:
    from joulery.jobs._posterior import PosteriorCache
    from joulery.jobs.policies import Policy
    from joulery.storage import Document, JobRecord, Transaction

_MOST_SIBLINGS = 4  # devices that a job is looked for on to start from; by hand: more add reads
# Standard deviations by which log epochs of a changed job may be off together, and those of each
# batch size besides; by hand: new data may change epochs by a third, rarely their order.
_SHIFT_SD, _SHAPE_SD = 0.3, 0.1


def job_from(record: JobRecord) -> Job:
    """A stored job as its policy sees it; the specification is its document without the name."""
    return Job.from_document(record.specification | {"name": record.name})


def policy_from(record: JobRecord, job: Job) -> Policy[Any]:
    """The policy that decides for a stored job.

    Raises:
        InvalidValueError: There is no such policy, or it takes no such parameter.
    """
    options, inherited = own_parameters(record), record.parameters.get("inherited")
    context = {
        "objective": job.objective,
        "warm_start": None if inherited is None else _warm_start_from(inherited),
    }
    parameters = policy_parameters(record.policy)
    unknown = sorted(options.keys() - parameters)
    if unknown:
        raise InvalidValueError(
            f"the policy {record.policy} takes no parameter {reprlib.repr(unknown)[1:-1]}",
            remedy=f"give {', '.join(sorted(parameters))} or none"
            if parameters
            else "leave it out",
        )
    return make_policy(record.policy, **options | context)


def _warm_start_from(document: Document) -> WarmStart:
    return WarmStart(
        tuple(document["batch_sizes"]),
        tuple(document["log_epochs"]),
        tuple(document["log_sds"]),
        document["shift_sd"],
        document["shape_sd"],
    )


def define_job(cache: PosteriorCache, definition: JobRecord, transaction: Transaction) -> JobRecord:
    """The newest version of a job on its device if it is as wanted, else a new version.

    A changed job starts from the version before, with doubt. The first on a device starts from the
    device where the job has run most, without: epochs to the target do not depend on the device
    (You et al., NSDI'23, section 7).
    """
    newest = transaction.newest(definition.team, definition.name, definition.device)
    if newest is not None and _same(newest, definition):
        return newest
    if newest is not None:
        sources = [newest]
        definition = dataclasses.replace(definition, inherits=newest.id)
    else:
        sources = transaction.siblings(definition.team, definition.name, _MOST_SIBLINGS)
    for source in sources:
        start = _experience(cache, transaction, source, definition)
        if start is not None:
            if newest is not None:
                start = dataclasses.replace(start, shift_sd=_SHIFT_SD, shape_sd=_SHAPE_SD)
            return transaction.add_job(_warm_started(definition, source, start))
    return transaction.add_job(definition)


def _experience(
    cache: PosteriorCache, transaction: Transaction, source: JobRecord, definition: JobRecord
) -> WarmStart | None:
    """What the runs of another job have shown, if anything."""
    if definition.policy != source.policy:
        return None
    # Not locked: operations lock one job only, and what is committed does not change.
    state = cache.current(transaction, source)
    if not isinstance(state.policy, CarriesOver):
        return None
    start = state.policy.experience(state.beliefs)
    return start if start.batch_sizes else None


def _warm_started(definition: JobRecord, source: JobRecord, start: WarmStart) -> JobRecord:
    document: Document = {"source": {"version": source.version, "device": source.device}}
    for name, value in dataclasses.asdict(start).items():
        document[name] = list(value) if isinstance(value, tuple) else value
    parameters = definition.parameters | {"inherited": document}
    return dataclasses.replace(definition, inherits=source.id, parameters=parameters)


def warm_start_text(record: JobRecord) -> str:
    """Source of a job's warm start, in words; empty without one."""
    document = record.parameters.get("inherited")
    if document is None:
        return ""
    sizes, source = document["batch_sizes"], document["source"]
    if len(sizes) == 1:
        what = f"epochs of batch size {sizes[0]}"
    else:
        what = f"epochs of {len(sizes)} batch sizes ({min(sizes)} to {max(sizes)})"
    shift = document["shift_sd"]
    if shift > 0:
        return (
            f"the job has changed: {what} carry over from version {source['version']}, "
            f"within {shift:.0%} until runs show more"
        )
    device = source["device"] or "runs on no particular device"
    return f"{what} carry over from {device}; what an epoch costs here is measured anew"


def own_parameters(job: JobRecord) -> Document:
    """The parameters of a job's policy as its owner gave them."""
    return {name: value for name, value in job.parameters.items() if name != "inherited"}


def _same(stored: JobRecord, definition: JobRecord) -> bool:
    return (stored.specification, stored.policy, own_parameters(stored)) == (
        definition.specification,
        definition.policy,
        definition.parameters,
    )
