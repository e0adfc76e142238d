"""How jobs come to be in the store: defined once, with what still holds of others inherited."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.jobs.policies.bayesian.beliefs import BayesianBeliefs
from joulery.jobs.specification import inheritance_document, inheritance_from
from joulery.jobs.warm_start import Inheritance
from joulery.units import finite

if TYPE_CHECKING:
    from joulery.jobs.posterior import PosteriorCache
    from joulery.storage.records import Document, JobRecord, NewJob
    from joulery.storage.transaction import Transaction

# Of the devices that a job runs on, so many are asked what they have shown.
_MOST_SIBLINGS = 4


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """How a desk works.

    Attributes:
        lease_seconds: How long a holder may be silent.
        cached_jobs: Jobs whose beliefs are kept in memory.
        shift_sd: How far the epochs of a changed job may be off together, as a logarithm.
        shape_sd: How far those of each batch size may be off besides.
    """

    lease_seconds: float = 600.0
    cached_jobs: int = 2000
    shift_sd: float = 0.3
    shape_sd: float = 0.1

    def __post_init__(self) -> None:
        finite(self.lease_seconds, "lease in seconds", minimum=0.0)


DEFAULT_CONFIG = ServiceConfig()


class JobRegistry:
    """Defines jobs.

    Args:
        cache: Knows what jobs have shown.
        terms: How the desk works.
    """

    def __init__(self, cache: PosteriorCache, terms: ServiceConfig) -> None:
        self._cache = cache
        self._terms = terms

    def defined(self, ledger: Transaction, wanted: NewJob, now: float) -> JobRecord:
        """The newest version of a job on its device if it is as wanted, else a new version.

        A changed job inherits from the version before, with doubt. The first on a device inherits
        from the device where the job has shown most, without: epochs to the target do not hang on
        the device (You et al., NSDI'23, section 7).
        """
        newest = ledger.newest(wanted.team, wanted.name, wanted.device)
        if newest is not None and _same(newest.job, wanted):
            return newest
        heir = wanted
        if newest is None:
            for sibling in ledger.siblings(wanted.team, wanted.name, _MOST_SIBLINGS):
                shown = self._shown(ledger, sibling, wanted)
                if shown is not None:
                    heir = _heir(wanted, sibling, shown)
                    break
        else:
            shown = self._shown(ledger, newest, wanted)
            if shown is None:
                heir = dataclasses.replace(wanted, inherits=newest.id)
            else:
                terms = self._terms
                heir = _heir(wanted, newest, shown.doubted(terms.shift_sd, terms.shape_sd))
        return ledger.add_job(heir, now)

    def _shown(self, ledger: Transaction, source: JobRecord, wanted: NewJob) -> Inheritance | None:
        """What there is to hand on, if anything."""
        if wanted.policy != source.job.policy:
            return None
        # Not locked: operations lock one job only, and what is committed does not change.
        beliefs = self._cache.glimpse(ledger, source).beliefs
        if not isinstance(beliefs, BayesianBeliefs):
            return None
        shown = Inheritance.of(beliefs, 0)
        received = source.job.parameters.get("inherited")
        if received is not None:
            shown = shown.beside(inheritance_from(received))
        return shown if shown.batch_sizes else None


def _heir(wanted: NewJob, source: JobRecord, handed_on: Inheritance) -> NewJob:
    document: Document = inheritance_document(handed_on)
    document["source"] = {"version": source.version, "device": source.device}
    parameters = wanted.parameters | {"inherited": document}
    return dataclasses.replace(wanted, inherits=source.id, parameters=parameters)


def inheritance_said(record: JobRecord) -> str:
    """In words, what a job started from; empty if from nothing."""
    document = record.job.parameters.get("inherited")
    if document is None:
        return ""
    sizes, source = document["batch_sizes"], document.get("source", {})
    if len(sizes) == 1:
        what = f"epochs of batch size {sizes[0]}"
    else:
        what = f"epochs of {len(sizes)} batch sizes ({min(sizes)} to {max(sizes)})"
    shift = document["shift_sd"]
    if shift > 0:
        version = source.get("version", record.version - 1)
        return (
            f"the job has changed: {what} carry over from version {version}, within {shift:.0%} "
            "until runs tell more"
        )
    device = source.get("device") or "runs on no particular device"
    return f"{what} carry over from {device}; what an epoch costs here is measured anew"


def _same(stored: NewJob, wanted: NewJob) -> bool:
    parameters = {name: value for name, value in stored.parameters.items() if name != "inherited"}
    return (stored.specification, stored.policy, parameters) == (
        wanted.specification,
        wanted.policy,
        wanted.parameters,
    )
