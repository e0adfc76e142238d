"""Runs of any kind on their way to the store: now, or with a later run where none answers."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from joulery.client._backend import STORE_VARIABLE, open_backend, team_of
from joulery.client._outbox import PendingRun, deliver_waiting, report_outbox, run_outbox
from joulery.client._resilient import within
from joulery.clock import REAL_CLOCK
from joulery.errors import StoreBusyError, StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from joulery.client._backend import DecisionBackend
    from joulery.clock import Clock
    from joulery.jobs import RunEntry

_DELIVERY_SECONDS = 5.0  # by hand: what waits after a night without a server takes less


def put_run(
    run: RunEntry,
    location: str | Path | None = None,
    team: str | None = None,
    token: str | None = None,
    *,
    clock: Clock = REAL_CLOCK,
) -> None:
    """Store a run of any kind, and what earlier runs could not deliver to the same store.

    Args:
        run: Run to store.
        location: Location of the store or server, as of ``open_backend``.
        team: Team of the run.
        token: Token for a server.
        clock: Real or virtual clock.

    Raises:
        StoreError: No store answers; a run that has ended is kept for a later one.
        JouleryError: The store refuses the run.
    """
    location, team = str(location or os.environ.get(STORE_VARIABLE) or ""), team_of(team)
    try:
        backend = open_backend(location or None, team, token, clock=clock)
        with closing(backend):
            backend.put_run(run)
            _deliver_soon(backend, location, team)
    except StoreError:
        if run.ended:
            run_outbox(location).append(PendingRun(team, run))
        raise


def _deliver_soon(backend: DecisionBackend, location: str, team: str) -> None:
    """Deliver what waits, in a bounded time; the next run delivers what is left."""
    if not (report_outbox(location).waiting or run_outbox(location).waiting):
        return
    with suppress(StoreBusyError):
        within(_DELIVERY_SECONDS, lambda: deliver_waiting(backend, location, team))
