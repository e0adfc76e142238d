"""Profiles and energy of jobs over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.jobs.wire_entries import page_document
from joulery.jobs.wire_measurements import (
    EnergyEntry,
    ProfileEntry,
    energy_document,
    energy_from,
    profile_document,
    profile_from,
)
from joulery.server.calls import NOTHING, answer
from joulery.storage.listing import energy_page
from joulery.storage.measurements import add_energy, profiles_of, put_profile

if TYPE_CHECKING:
    from joulery.server.calls import Answer, Call
    from joulery.server.service import Service


async def list_profiles(service: Service, call: Call) -> Answer:
    """The frontiers of a job, by batch size."""
    job = call.number("job")
    await service.own_job(job, call.token)
    found = await service.read_of(job, lambda ledger: profiles_of(ledger, job))
    documents = [profile_document(ProfileEntry.of(one)) for one in found]
    return answer(page_document("profiles", documents, None))


async def keep_profile(service: Service, call: Call) -> Answer:
    """Keep a frontier, in place of an earlier one of the same batch size and device."""
    job = call.number("job")
    await service.own_job(job, call.token)
    kept = profile_from(call.document()).record(job, service.clock.wall())
    await service.write(lambda ledger: put_profile(ledger, kept), job)
    return NOTHING


async def list_energy(service: Service, call: Call) -> Answer:
    """Energy that a job has used, in the order in which it became known."""
    job = call.number("job")
    await service.own_job(job, call.token)
    after, limit, _ = call.page(service.limits.page_entries)
    found = await service.read_of(job, lambda ledger: energy_page(ledger, job, after, limit + 1))
    documents = [energy_document(EnergyEntry.of(used)) for _, used in found[:limit]]
    following = found[limit - 1][0] if len(found) > limit else None
    return answer(page_document("energy", documents, following))


async def note_energy(service: Service, call: Call) -> Answer:
    """Keep energy that was used.

    Where a decision is named, it counts once for each device, however often it is told.
    """
    job = call.number("job")
    await service.own_job(job, call.token)
    kept = energy_from(call.document()).record(job, service.clock.wall())
    await service.write(lambda ledger: add_energy(ledger, kept), job)
    return NOTHING
