"""What every route works with: the job service, the store, and the callers that are known."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeVar

from starlette.concurrency import run_in_threadpool

from joulery.clock import REAL_CLOCK
from joulery.jobs import JobService
from joulery.server._auth import Signer, TokenCache
from joulery.server._limits import LIMITS, Limits, RateLimiter
from joulery.server._metrics import Metrics
from joulery.storage import find_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.clock import Clock
    from joulery.storage import Store, TokenRecord, Transaction

Found = TypeVar("Found")


class ServerContext:
    """The state of one server process.

    Args:
        store: Opened store.
        secret: Secret of the store; see :func:`joulery.storage._tokens.decision_secret`.
        limits: Limits on requests and callers.
        clock: Real clock, or a test's.
        log_requests: Whether every request is logged, or only those that failed or took long.
    """

    def __init__(
        self,
        store: Store,
        secret: bytes,
        limits: Limits = LIMITS,
        clock: Clock = REAL_CLOCK,
        *,
        log_requests: bool = False,
    ) -> None:
        self.store = store
        self.clock = clock
        self.limits = limits
        self.log_requests = log_requests
        self.jobs = JobService(store, clock)
        self.metrics = Metrics()
        self.signer = Signer(secret)
        self.tokens = TokenCache(self._find_token, clock, limits.remembered)
        self.calls = RateLimiter(limits.calls_per_second, limits.burst_calls, limits.remembered)
        self.failures = RateLimiter(
            limits.failures_per_second, 10 * limits.failures_per_second, limits.remembered
        )
        self.draining = False
        self._teams: OrderedDict[int, str] = OrderedDict()

    def read(self, look: Callable[[Transaction], Found]) -> Found:
        """Read from the store in this thread."""
        with self.store.reading() as transaction:
            return look(transaction)

    async def team_of(self, job: int) -> str:
        """The team of a job.

        Raises:
            UnknownRecordError: There is no such job.
        """
        team = self._teams.get(job)
        if team is None:
            record = await run_in_threadpool(self.read, lambda one: one.job(job))
            team = self._teams[job] = record.job.team  # for ever: numbers are not used again
            if len(self._teams) > self.limits.remembered:
                self._teams.popitem(last=False)
        return team

    async def _find_token(self, digest: bytes) -> TokenRecord | None:
        return await run_in_threadpool(self.read, lambda one: find_token(one, digest))
