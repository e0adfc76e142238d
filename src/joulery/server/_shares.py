"""Shares of processor time: heavy requests of one team must not slow down those of others.

Heavy are pages, lists and large bodies. They run in threads, few of a team at a time, and a team
that has used up its share waits while other teams are there; decisions and reports are light and
never wait here.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections import Counter, OrderedDict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.concurrency import run_in_threadpool

from joulery.rate_limit import RateLimiter
from joulery.server._problems import later

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from fastapi import Request

    from joulery.clock import Clock
    from joulery.server._config import Limits

Answer = TypeVar("Answer")

_POLL_SECONDS = 0.02  # by hand: between two looks whether a share is free
_ACTIVE_SECONDS = 2.0  # by hand: a team that made no request for longer is not there
_TOKENS_PER_SECOND = 1000.0  # of processor time, since buckets count whole tokens


class WorkShares:
    """Processor time of heavy requests by team.

    Args:
        limits: Limits of the server.
        clock: Monotonic clock.
    """

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        rate = limits.team_work_share * _TOKENS_PER_SECOND
        burst = limits.burst_work_seconds * _TOKENS_PER_SECOND
        self._used = RateLimiter(rate, burst, limits.remembered)
        self._gates: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()
        self._latest: OrderedDict[str, float] = OrderedDict()  # requests of the latest two teams

    def note(self, team: str) -> None:
        """Note that a team makes a request of any kind."""
        self._latest[team] = self._clock.now()
        self._latest.move_to_end(team)
        if len(self._latest) > 2:
            self._latest.popitem(last=False)

    def _is_alone(self, team: str) -> bool:
        """Whether no other team has made a request lately, so that no one has to be spared."""
        start = self._clock.now() - _ACTIVE_SECONDS
        return all(name == team or seconds < start for name, seconds in self._latest.items())

    @asynccontextmanager
    async def turn(self, team: str) -> AsyncIterator[None]:
        """Wait until a heavy request of a team may be worked on.

        Raises:
            ProblemError: The team has waited too long for its own requests.
        """
        gate = self._gates.setdefault(team, asyncio.Semaphore(self._limits.team_workers))
        self._users[team] += 1
        try:
            async with gate:
                await self._wait_for_share(team)
                yield
        finally:
            self._users[team] -= 1
            if not self._users[team]:
                del self._users[team], self._gates[team]

    async def _wait_for_share(self, team: str) -> None:
        end = self._clock.now() + self._limits.work_wait_seconds
        while self._used.exhausted(team, self._clock.now()) and not self._is_alone(team):
            if self._clock.now() >= end:
                raise later("too many pages, lists and large bodies of this team", 429)
            await asyncio.sleep(_POLL_SECONDS)

    def charge(self, team: str, seconds: float) -> None:
        """Count processor time that a team has used."""
        self._used.reserve_seconds(team, self._clock.now(), seconds * _TOKENS_PER_SECOND)


async def run_charged(
    shares: WorkShares, team: str, work: Callable[..., Answer], *arguments: Any
) -> Answer:
    """The result of work in a thread, whose processor time is counted."""

    def measure() -> Answer:
        start = time.thread_time()
        try:
            return work(*arguments)
        finally:
            shares.charge(team, time.thread_time() - start)

    return await run_in_threadpool(measure)


def charged(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """An endpoint that runs in a thread, with its processor time counted; others as they are."""
    if inspect.iscoroutinefunction(endpoint):
        return endpoint

    @functools.wraps(endpoint)
    def measure(*arguments: Any, request: Request, **options: Any) -> Any:
        start = time.thread_time()
        try:
            return endpoint(*arguments, request=request, **options)
        finally:
            team = request.scope.get("joulery.team")
            if team is not None:
                seconds = time.thread_time() - start
                request.app.state.context.shares.charge(team, seconds)

    return measure
