"""Health, metrics and the description of the server: open to all, and telling of no job."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from joulery.errors import JouleryError
from joulery.server import errands
from joulery.server.calls import Answer, answer
from joulery.server.problems import DRAINING, ProblemError, later
from joulery.storage.listing import totals

if TYPE_CHECKING:
    from joulery.server.calls import Call
    from joulery.server.service import Service

_PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"
_READY_SECONDS = 5.0  # whoever asks does not wait much longer


async def live(service: Service, call: Call) -> Answer:  # noqa: ARG001 - as all handlers
    """Whether the process answers at all."""
    return answer({"status": "live"})


async def ready(service: Service, call: Call) -> Answer:  # noqa: ARG001 - as all handlers
    """Whether requests are welcome.

    The store answers, the latest write was kept (unless it is a while ago: then it takes another
    one to know), and nobody is stopping the server.
    """
    if service.draining:
        raise ProblemError(DRAINING)
    try:
        async with asyncio.timeout(_READY_SECONDS):
            await service.read(lambda ledger: ledger.jobs("", 0, 1))
            failure = await service.office.ask(errands.write_failure)
    except (JouleryError, TimeoutError) as error:
        raise ProblemError(later("the store does not answer")) from error
    if failure or service.store.write_failure:
        raise ProblemError(later("the store does not take what is written"))
    return answer({"status": "ready"})


async def metrics(service: Service, call: Call) -> Answer:  # noqa: ARG001 - as all handlers
    """Figures for Prometheus, of all workers together."""
    service.metrics.note_waiting(service.waiting_for_store)
    try:
        counted = await service.read(totals)
    except JouleryError:
        counted = None  # the rest is worth more than ever
    return Answer(service.metrics.text(counted).encode("utf-8"), media_type=_PROMETHEUS)


async def openapi(service: Service, call: Call) -> Answer:  # noqa: ARG001 - as all handlers
    """What this server offers, for people and for generators of clients."""
    from joulery.server.description import described

    return Answer(await service.threaded(described))
