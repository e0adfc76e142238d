"""Jobs over HTTP: defined, looked at, paused and forgotten by their team."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.jobs import wire
from joulery.jobs.wire_entries import JobEntry, job_entry_document, page_document
from joulery.server import errands
from joulery.server.auth import sees
from joulery.server.calls import NOTHING, answer
from joulery.server.problems import NOT_FOUND, ProblemError

if TYPE_CHECKING:
    from joulery.server.calls import Answer, Call
    from joulery.server.service import Service
    from joulery.storage.records import JobRecord


def own_team(call: Call) -> str:
    """The team that the path names, if it is the caller's."""
    team = call.parameters["team"]
    if not sees(call.token, team):
        raise ProblemError(NOT_FOUND)
    return team


async def define_job(service: Service, call: Call) -> Answer:
    """The job of that name and device, made or changed if need be.

    The same definition gets the same job. Another specification or policy makes a new version,
    which inherits what still holds; `said` tells what.
    """
    team = own_team(call)
    wanted = wire.definition_from(call.document())
    return _job(await service.office.ask(errands.define, team, wanted))


async def list_jobs(service: Service, call: Call) -> Answer:
    """Jobs of a team by number, all versions."""
    team = own_team(call)
    after, limit, _ = call.page(service.limits.page_entries)
    found = await service.read(lambda ledger: ledger.jobs(team, after, limit + 1))
    shown = [job_entry_document(JobEntry.of(record)) for record in found[:limit]]
    following = found[limit - 1].id if len(found) > limit else None
    return answer(page_document("jobs", shown, following))


async def show_job(service: Service, call: Call) -> Answer:
    """The newest version of a job; on any device unless one is named."""
    team, name = own_team(call), call.parameters["name"]
    device = call.options("device").get("device")
    if "\0" in name + (device or ""):  # no name has one, and PostgreSQL takes none
        raise ProblemError(NOT_FOUND)
    return _job(await service.office.ask(errands.find, team, name, device))


async def pause_job(service: Service, call: Call) -> Answer:
    """Refuse decisions, or make them again."""
    job = call.number("job")
    await service.own_job(job, call.token)
    paused = wire.pause_from(call.document())
    await service.office.ask(errands.pause, job, paused)
    return answer(wire.pause_document(paused=paused))


async def forget_job(service: Service, call: Call) -> Answer:
    """Delete a job with all its history."""
    job = call.number("job")
    await service.own_job(job, call.token)
    await service.office.ask(errands.forget, job)
    return NOTHING


def _job(record: JobRecord) -> Answer:
    return answer(job_entry_document(JobEntry.of(record)))
