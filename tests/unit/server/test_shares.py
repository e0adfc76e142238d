"""Shares of processor time: a busy team waits for itself, and never for an idle server."""

import asyncio

import pytest

from joulery.clock import REAL_CLOCK
from joulery.server._config import Limits
from joulery.server._problems import ProblemError
from joulery.server._shares import WorkShares, run_charged

LIMITS = Limits(burst_work_seconds=0.1, work_wait_seconds=0.05)


def test_a_team_that_used_its_share_waits_while_others_are_there():
    """Pages of one team make the decisions of all others slow."""

    async def work():
        shares = WorkShares(LIMITS, REAL_CLOCK)
        shares.charge("noisy", 10.0)
        shares.note("quiet")
        shares.note("noisy")
        async with shares.turn("quiet"):
            pass
        with pytest.raises(ProblemError, match="too many pages") as refused:
            async with shares.turn("noisy"):
                pass
        assert refused.value.status_code == 429

    asyncio.run(work())


def test_nobody_waits_on_a_server_of_their_own():
    """A single team cannot use the processor that nobody else needs."""

    async def work():
        shares = WorkShares(LIMITS, REAL_CLOCK)
        shares.charge("alone", 10.0)
        shares.note("alone")
        async with shares.turn("alone"):
            return await run_charged(shares, "alone", sum, [1, 2])

    assert asyncio.run(work()) == 3


def test_one_heavy_request_of_a_team_is_worked_on_at_a_time():
    """A team fills all threads, and others wait for theirs."""

    async def work():
        shares, most, now = WorkShares(LIMITS, REAL_CLOCK), [], 0

        async def heavy():
            nonlocal now
            async with shares.turn("noisy"):
                now += 1
                most.append(now)
                await asyncio.sleep(0.001)
                now -= 1

        await asyncio.gather(*(heavy() for _ in range(5)))
        return max(most)

    assert asyncio.run(work()) == 1
