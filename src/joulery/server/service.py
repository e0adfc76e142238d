"""What every handler works with: the desk's office, the store, and ways to wait for both."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from joulery.clock import REAL_CLOCK
from joulery.server.auth import Signer, TokenCache, sees
from joulery.server.limits import LIMITS, Limits
from joulery.server.metrics import Metrics
from joulery.server.problems import NOT_FOUND, ProblemError, later
from joulery.storage.tokens import find_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.clock import Clock
    from joulery.server.desk_line import Office
    from joulery.storage.records import JobRecord
    from joulery.storage.store import Store
    from joulery.storage.tokens import TokenRecord
    from joulery.storage.transaction import Transaction

Found = TypeVar("Found")
_THREADS = 8  # no more than the store has connections for


class Service:
    """Made in the event loop that serves.

    Args:
        store: Opened.
        office: Where decisions are made.
        secret: Of the store, see :func:`joulery.storage.tokens.decision_secret`.
        limits: On what is taken on.
        metrics: That count.
        clock: Real, or a test's.
    """

    def __init__(
        self,
        store: Store,
        office: Office,
        secret: bytes,
        limits: Limits = LIMITS,
        metrics: Metrics | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.store = store
        self.clock = clock
        self.limits = limits
        self.metrics = metrics or Metrics()
        self.office = office
        self.signer = Signer(secret)
        self.doorkeeper = TokenCache(self._find_token, clock, limits.remembered)
        self.draining = False
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="joulery-read")
        self._closed = False
        self._teams: OrderedDict[int, str] = OrderedDict()

    @property
    def waiting_for_store(self) -> int:
        """Operations that were handed in and have not come back."""
        return self.office.waiting

    def threaded(self, work: Callable[[], Found]) -> asyncio.Future[Found]:
        """Wait for something that blocks."""
        if self._closed:  # a request that outlived the patience of a server that stops
            raise ProblemError(later("the server is stopping"))
        return self._loop.run_in_executor(self._threads, work)

    def write(
        self, operation: Callable[[Transaction], Found], job: int = 0
    ) -> asyncio.Future[Found]:
        """Have something written, durably."""
        return self.threaded(lambda: self.store.write(operation, job))

    def read(self, look: Callable[[Transaction], Found]) -> asyncio.Future[Found]:
        """Look something up."""

        def work() -> Found:
            with self.store.reading() as ledger:
                return look(ledger)

        return self.threaded(work)

    def read_of(self, job: int, look: Callable[[Transaction], Found]) -> asyncio.Future[Found]:
        """Look something up about a job, which may have been forgotten since its team was noted.

        Raises (from the future):
            UnknownRecordError: There is no such job.
        """

        def look_at(ledger: Transaction) -> Found:
            ledger.job(job)
            return look(ledger)

        return self.read(look_at)

    async def own_job(self, job: int, caller: TokenRecord) -> None:
        """Go on only if a job is of the caller's team.

        Raises:
            ProblemError: It is not, or there is none: nobody can tell which.
        """
        team = self._teams.get(job)
        if team is None:
            record: JobRecord = await self.read(lambda ledger: ledger.job(job))
            team = record.job.team
            self._teams[job] = team  # for ever: numbers of jobs are not used again
            if len(self._teams) > self.limits.remembered:
                self._teams.popitem(last=False)
        if not sees(caller, team):
            raise ProblemError(NOT_FOUND)

    def _find_token(self, digest: bytes) -> asyncio.Future[TokenRecord | None]:
        return self.read(lambda ledger: find_token(ledger, digest))

    def close(self) -> None:
        """Let go of threads; the store is the caller's to close."""
        self._closed = True
        self._threads.shutdown()
