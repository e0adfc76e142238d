"""A rank's connection to the coordinator: reports go out, plans come in, training never waits."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError, JouleryError
from joulery.json_lines import encode_line
from joulery.pipeline.planning._rank_plan import RankPlan
from joulery.pipeline.runtime._messages import (
    MAX_PLAN_BYTES,
    VERSION,
    Endpoint,
    read_message,
    report_message,
)

if TYPE_CHECKING:
    from typing import Self

    from joulery.pipeline.runtime._controller import ClockController, IterationTimes

_log = logging.getLogger("joulery")

# Longest wait for a connection, and pauses between attempts, doubled each time; by hand.
_CONNECT_SECONDS = 2.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0
# Reports that wait while there is no connection; by hand.
_MAX_REPORTS = 256


class CoordinatorClient(Endpoint):
    """Reports a rank's iterations to the coordinator and has its controller follow the plans.

    While there is no coordinator, the controller follows its first plan.

    Args:
        controller: Controller of the rank.
        address: Host and port of the coordinator.
        token: Token of the coordinator.
        pipeline: Number of the data-parallel copy that the rank belongs to.
        rank: Number of the rank within the pipeline.

    Attributes:
        late_plans: Plans that came after the iteration they were for had begun.
    """

    def __init__(
        self,
        controller: ClockController,
        address: tuple[str, int],
        token: str,
        *,
        pipeline: int = 0,
        rank: int = 0,
    ) -> None:
        super().__init__()
        self.late_plans = 0
        self.controller = controller
        self._address = address
        self._rank = rank
        self._hello = {
            "op": "hello",
            "version": VERSION,
            "token": token,
            "pipeline": pipeline,
            "rank": rank,
        }
        self._reports: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_MAX_REPORTS)
        self._pause = _FIRST_PAUSE_SECONDS
        self._warned = False

    def start(self) -> Self:
        """Connect in the background, again and again if need be. May be called twice."""
        if self._thread is None:
            self.controller.on_iteration = self.report
            self._run(self._until_stopped(), "joulery-coordinator-client")
        return self

    def report(self, times: IterationTimes) -> None:
        """Send how an iteration went. Never waits."""
        if math.isfinite(times.seconds) and times.planned_seconds > 0:
            self._call(self._enqueue, report_message(times))

    def _enqueue(self, message: dict[str, Any]) -> None:
        # A report that finds no room is of no use later either.
        with suppress(asyncio.QueueFull):
            self._reports.put_nowait(message)

    async def _until_stopped(self) -> None:
        connecting = asyncio.ensure_future(self._connect_forever())
        await self._stopped.wait()
        connecting.cancel()

    async def _connect_forever(self) -> None:
        while True:
            try:
                await self._converse()
            except (OSError, JouleryError) as error:
                self._lost(error)
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)

    async def _converse(self) -> None:
        """Exchange messages until the connection ends, which raises."""
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(*self._address, limit=MAX_PLAN_BYTES)
        writer.write(encode_line(self._hello))
        sending = asyncio.ensure_future(self._send_reports(writer))
        try:
            while True:
                self._take(await read_message(reader))
        finally:
            sending.cancel()
            writer.close()

    async def _send_reports(self, writer: asyncio.StreamWriter) -> None:
        # The reading side notices a broken connection, too.
        with suppress(OSError):
            while True:
                writer.write(encode_line(await self._reports.get()))
                await writer.drain()

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("op") == "welcome":
            self._warned = False
            self._pause = _FIRST_PAUSE_SECONDS
        elif message.get("op") == "plan":
            first = message.get("from")
            plan = RankPlan.from_dict(message.get("plan") or {})
            if not isinstance(first, int) or plan.rank != self._rank:
                raise InvalidValueError("a plan for another rank", remedy="check the coordinator")
            in_time = self.controller.follow(plan, first)
            self.late_plans += bool(first) and not in_time

    def _lost(self, error: Exception) -> None:
        """Return to full speed: without a coordinator a straggler's recovery goes unnoticed."""
        self.controller.follow_first_plan()
        if not self._warned and not self._stopped.is_set():
            self._warned = True
            _log.warning("pipeline coordinator lost, back to the first plan: %s", error)
