"""Profiles and energy of jobs over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.frontier import Frontier
from joulery.recurring.desk_values import parse_decision_id
from joulery.recurring.wire_entries import (
    EnergyEntry,
    ProfileEntry,
    decision_name,
    energy_document,
    energy_from,
    page_document,
    profile_document,
    profile_from,
)
from joulery.server.calls import NOTHING, answer
from joulery.server.problems import NOT_FOUND, ProblemError
from joulery.store.listing import energy_page
from joulery.store.measurements import add_energy, profiles_of, put_profile
from joulery.store.records import EnergyRecord, ProfileRecord

if TYPE_CHECKING:
    from joulery.server.calls import Answer, Call
    from joulery.server.service import Service


async def list_profiles(service: Service, call: Call) -> Answer:
    """The frontiers of a job, by batch size."""
    job = call.number("job")
    await service.own_job(job, call.token)
    found = await service.read_of(job, lambda ledger: profiles_of(ledger, job))
    entries = [
        ProfileEntry(one.batch_size, one.device, Frontier.from_dict(one.frontier), one.wall_seconds)
        for one in found
    ]
    return answer(page_document("profiles", [profile_document(one) for one in entries], None))


async def keep_profile(service: Service, call: Call) -> Answer:
    """Keep a frontier, in place of an earlier one of the same batch size and device."""
    job = call.number("job")
    await service.own_job(job, call.token)
    profile = profile_from(call.document())
    kept = ProfileRecord(
        job,
        profile.batch_size,
        profile.device,
        profile.frontier.to_dict(),
        service.clock.wall(),
    )
    await service.write(lambda ledger: put_profile(ledger, kept), job)
    return NOTHING


async def list_energy(service: Service, call: Call) -> Answer:
    """Energy that a job has used, in the order in which it became known."""
    job = call.number("job")
    await service.own_job(job, call.token)
    after, limit, _ = call.page(service.limits.page_entries)
    found = await service.read_of(job, lambda ledger: energy_page(ledger, job, after, limit + 1))
    entries = [
        energy_document(
            EnergyEntry(
                decision_name(job, used.decision),
                used.device,
                used.seconds,
                used.joules,
                used.provenance.get("origin", "assumed"),
                used.provenance.get("source", ""),
                used.wall_seconds,
            )
        )
        for _, used in found[:limit]
    ]
    following = found[limit - 1][0] if len(found) > limit else None
    return answer(page_document("energy", entries, following))


async def note_energy(service: Service, call: Call) -> Answer:
    """Keep energy that was used."""
    job = call.number("job")
    await service.own_job(job, call.token)
    used = energy_from(call.document())
    decision = None
    if used.decision is not None:
        owner, decision = parse_decision_id(used.decision)
        if owner != job:
            raise ProblemError(NOT_FOUND)
    kept = EnergyRecord(
        job,
        decision,
        used.device,
        used.seconds,
        used.joules,
        {"origin": used.origin, "source": used.source},
        service.clock.wall(),
    )
    await service.write(lambda ledger: add_energy(ledger, kept), job)
    return NOTHING
