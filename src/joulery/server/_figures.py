"""Figures of jobs that pages show, worked out again only for jobs to which something happened."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from joulery.jobs import job_beliefs, job_totals
from joulery.storage import job_heads

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.jobs import JobBeliefs, JobTotals
    from joulery.reports import Report
    from joulery.server._auth import ServerContext
    from joulery.storage import JobHead, JobRecord, Transaction

_CHUNK_JOBS = 200  # jobs added up in one query: below SQLite's limit of variables
_READ_SECONDS = 0.25  # by hand: time that a page spends on adding up
_FRESH_SECONDS = 1.0  # by hand: age up to which the list of jobs is not read again
_MOST_OVERVIEWS = 64  # by hand: teams, ranges and time zones that are looked at in a minute
_MOST_BELIEFS = 500  # by hand: jobs whose beliefs stay in memory, some kilobytes each


class FiguresCache:
    """Figures of all jobs, of which only jobs to which something happened are added up again."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._heads: list[JobHead] = []
        self._totals: dict[int, JobTotals] = {}
        self._read_seconds = float("-inf")
        self._outstanding = 0

    def current(self) -> tuple[list[JobTotals], int]:
        """Figures as far as they could be added up in time, and how many are still to come."""
        # Of many who look at the same moment one adds up, and the others need not wait for it.
        if self._lock.acquire(blocking=not self._totals):
            try:
                self._add_up(self._context.clock.now())
            finally:
                self._lock.release()
        return list(self._totals.values()), self._outstanding

    def _add_up(self, start_seconds: float) -> None:
        if start_seconds - self._read_seconds > _FRESH_SECONDS:
            self._heads = self._context.read(job_heads)
            self._read_seconds = start_seconds
            alive = {head.id for head in self._heads}
            self._totals = {job: totals for job, totals in self._totals.items() if job in alive}
        stale = [head for head in self._heads if self._head_of(head.id) != head]
        while stale and self._context.clock.now() - start_seconds < _READ_SECONDS:
            chunk, stale = stale[:_CHUNK_JOBS], stale[_CHUNK_JOBS:]
            totals = self._context.read(lambda store, heads=chunk: job_totals(store, heads))  # type: ignore[misc]
            self._totals = self._totals | {job.head.id: job for job in totals}
        self._outstanding = len(stale)

    def _head_of(self, job: int) -> JobHead | None:
        totals = self._totals.get(job)
        return None if totals is None else totals.head


class OverviewCache:
    """Overviews that many readers look at, made once a minute unless something happened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pages: dict[Any, tuple[Report, Report]] = {}  # the oldest first

    def get(self, key: Any, make: Callable[[], tuple[Report, Report]]) -> tuple[Report, Report]:
        """The overview of a key, of which few readers wait for the same one."""
        page = self._pages.get(key)
        if page is None:
            page = make()
            with self._lock:
                self._pages[key] = page
                while len(self._pages) > _MOST_OVERVIEWS:
                    del self._pages[next(iter(self._pages))]
        return page


class BeliefsCache:
    """Beliefs of policies, folded from the events of a job again only when there are new ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._beliefs: dict[int, tuple[JobRecord, JobBeliefs]] = {}  # least recently used first

    def of(self, transaction: Transaction, job: int) -> JobBeliefs:
        """Present beliefs of a job's policy."""
        record = transaction.job(job)
        with self._lock:
            cached = self._beliefs.pop(job, None)
        beliefs = cached[1] if cached and cached[0] == record else job_beliefs(transaction, record)
        with self._lock:
            self._beliefs[job] = record, beliefs
            while len(self._beliefs) > _MOST_BELIEFS:
                del self._beliefs[next(iter(self._beliefs))]
        return beliefs
