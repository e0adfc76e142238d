"""Decisions over HTTP: asked for by a team, kept alive and reported on by whoever holds one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.jobs import wire
from joulery.jobs.wire_entries import DecisionEntry, decision_entry_document, page_document
from joulery.server import errands
from joulery.server.calls import answer
from joulery.storage.listing import outcomes_between

if TYPE_CHECKING:
    from joulery.server.calls import Answer, Call
    from joulery.server.service import Service
    from joulery.storage.transaction import Transaction


async def decide(service: Service, call: Call) -> Answer:
    """What to run next.

    The answer is durable when it arrives. The same key gets the same decision, so that a request
    whose answer was lost can be sent again. Unless the decision is heard of by heartbeat or report
    until `expires_wall_seconds`, it counts as abandoned.
    """
    job = call.number("job")
    await service.own_job(job, call.token)
    request = wire.request_from(call.document())
    decision = await service.office.ask(errands.decide, job, request)
    document = wire.decision_document(decision)
    document["token"] = service.signer.token(decision.id)
    return answer(document)


async def heartbeat(service: Service, call: Call) -> Answer:
    """Say that a decision is being worked on.

    Prolongs its lease. What `progress` tells counts if nothing more is ever heard.
    """
    progress = wire.heartbeat_from(call.document())
    lease = await service.office.ask(errands.heartbeat, call.parameters["decision"], progress)
    return answer(wire.lease_document(lease))


async def report(service: Service, call: Call) -> Answer:
    """Tell how a decision ended.

    Counts once, however late and however often it is sent: the same report gets the same receipt,
    another one is refused. Figures must be possible: no longer than the decision is old, no more
    energy than all boards can draw.
    """
    outcome, key = wire.report_from(call.document())
    receipt = await service.office.ask(errands.report, call.parameters["decision"], outcome, key)
    return answer(wire.receipt_document(receipt))


async def list_decisions(service: Service, call: Call) -> Answer:
    """Decisions with how they ended, in order."""
    job = call.number("job")
    await service.own_job(job, call.token)
    after, limit, _ = call.page(service.limits.page_entries)

    def look(ledger: Transaction) -> tuple[list[DecisionEntry], int | None]:
        found = ledger.decisions(job, after, limit + 1)
        shown = found[:limit]
        told = outcomes_between(ledger, job, shown[0].sequence, shown[-1].sequence) if shown else {}
        entries = [DecisionEntry.of(one, told.get(one.sequence)) for one in shown]
        return entries, shown[-1].sequence if len(found) > limit else None

    entries, following = await service.read_of(job, look)
    documents = [decision_entry_document(entry) for entry in entries]
    return answer(page_document("decisions", documents, following))
