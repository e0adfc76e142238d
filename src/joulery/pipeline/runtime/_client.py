"""A rank's connection to the coordinator: reports go out, plans come in, training never waits."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError, JouleryError
from joulery.files import encode_line
from joulery.pipeline.planning._rank_plan import RankPlan
from joulery.pipeline.runtime._messages import (
    MAX_PLAN_BYTES,
    REMEDY,
    VERSION,
    Endpoint,
    TokenServer,
    read_message,
    read_report,
    refused,
    report_message,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from joulery.pipeline.runtime._controller import ClockController, IterationTimes

_log = logging.getLogger("joulery")

# Longest wait for a connection, and pauses between attempts, doubled each time; by hand.
_CONNECT_SECONDS = 2.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0
# Reports that wait while there is no connection; by hand.
_MAX_REPORTS = 256
# What launchers call a run and its attempts.
_RUN_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
)


class CoordinatorClient(Endpoint):
    """Reports a rank's iterations to the coordinator and has its controller follow the plans.

    While there is no coordinator, the controller follows its first plan.

    Args:
        controller: Controller of the rank.
        address: Host and port of the coordinator.
        token: Token of the coordinator.
        pipeline: Number of the data-parallel copy that the rank belongs to.
        rank: Number of the rank within the pipeline.
        run: Name of the run, the same on all its ranks and another after a restart; by default what
            Slurm and torchrun call it.

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
        run: str | None = None,
    ) -> None:
        super().__init__()
        self.late_plans = 0
        self.controller = controller
        self._address = address
        self._rank = rank
        self._hello: dict[str, Any] = {
            "op": "hello",
            "version": VERSION,
            "token": token,
            "run": _run_name() if run is None else run,
            "pipeline": pipeline,
            "rank": rank,
        }
        self._group: _StageGroup | None = None
        self._reports: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_MAX_REPORTS)
        self._pause = _FIRST_PAUSE_SECONDS
        self._warned = False

    def start(self) -> Self:
        """Connect in the background, again and again if need be. May be called twice."""
        if self._thread is None:
            self.controller.on_iteration = self.report
            self.controller.follow_shares()
            self._run(self._until_stopped(), "joulery-coordinator-client")
        return self

    def lead(self, size: int) -> tuple[str, int]:
        """Also serve the other processes that share the stage, as a tensor-parallel group does.

        Only this one is connected to the coordinator. Clients of the others connect to the address
        returned, on this machine; they get the same plans, and all reports become one.

        Args:
            size: Number of processes, with this one.
        """
        if size < 1:
            raise InvalidValueError(f"{size} processes share a stage", remedy="give 1 or more")
        self._group = _StageGroup(self._hello["token"], size, self._queue).start()
        return self._group.address

    def close(self) -> None:
        """End all connections. May be called twice."""
        super().close()
        if self._group is not None:
            self._group.close()

    def report(self, times: IterationTimes) -> None:
        """Send how an iteration went. Never waits."""
        if math.isfinite(times.seconds) and times.planned_seconds > 0:
            if self._group is None:
                self._queue(times)
            else:
                self._group.report(times)

    def _queue(self, times: IterationTimes) -> None:
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
        elif message.get("op") == "refused":
            raise refused(message)
        elif message.get("op") == "plan":
            first = message.get("from")
            plan = RankPlan.from_dict(message.get("plan") or {})
            if not isinstance(first, int) or plan.rank != self._rank:
                raise InvalidValueError("a plan for another rank", remedy="check the coordinator")
            in_time = self.controller.follow(plan, first)
            self.late_plans += bool(first) and not in_time
            if self._group is not None:
                self._group.share(encode_line(message))

    def _lost(self, error: Exception) -> None:
        """Return to full speed: without a coordinator a straggler's recovery goes unnoticed."""
        self.controller.follow_first_plan()
        if self._group is not None:
            self._group.share(None)
        if not self._warned and not self._stopped.is_set():
            self._warned = True
            fate = "lost" if isinstance(error, OSError) else "not followed"
            _log.warning("pipeline coordinator %s, back to the first plan: %s", fate, error)


class _StageGroup(TokenServer):
    """The other processes of a stage: plans go to all of them, and their reports become one.

    Args:
        token: Secret that the others must send, the coordinator's.
        size: Number of processes, with that of the group itself.
        send: Function that reports an iteration of the stage.
    """

    def __init__(self, token: str, size: int, send: Callable[[IterationTimes], None]) -> None:
        super().__init__(token, ("127.0.0.1", 0), size)
        self._size = size
        self._send_report = send
        self._plan: bytes | None = None
        self._members: set[asyncio.StreamWriter] = set()
        # The iteration of which some have reported, and how many.
        self._open: tuple[int, IterationTimes] | None = None

    def report(self, times: IterationTimes) -> None:
        """Add how an iteration went on one of the processes; from any thread."""
        self._call(self._merge, times)

    def share(self, plan: bytes | None) -> None:
        """Pass a plan on; None cuts the others off, so that they return to their first plan."""
        self._call(self._share, plan)

    def _share(self, plan: bytes | None) -> None:
        self._plan = plan
        for writer in list(self._members):
            if plan is None:
                writer.close()
            else:
                self._send(writer, plan)

    async def _converse(
        self, message: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if message.get("op") != "hello":
            raise InvalidValueError("no greeting", remedy=REMEDY)
        self._members.add(writer)
        try:
            self._send(writer, encode_line({"op": "welcome", "version": VERSION}))
            if self._plan is not None:
                self._send(writer, self._plan)
            while True:
                self._merge(await read_report(reader))
        finally:
            self._members.discard(writer)

    def _merge(self, times: IterationTimes) -> None:
        """Join reports of one iteration, and send them once all are there or the next begins."""
        if self._open is not None and self._open[1].iteration != times.iteration:
            self._send_report(self._open[1])
            self._open = None
        count = 1
        if self._open is not None:
            count, earlier = self._open[0] + 1, self._open[1]
            works = {*earlier.ratios, *times.ratios}
            shares = [s for s in (earlier.share_watts, times.share_watts) if s is not None]
            times = replace(
                times,
                seconds=max(times.seconds, earlier.seconds),
                ratios={
                    work: (*earlier.ratios.get(work, ()), *times.ratios.get(work, ()))
                    for work in works
                },
                share_watts=min(shares, default=None),
            )
        self._open = count, times
        if count == self._size:
            self._send_report(times)
            self._open = None


def _run_name() -> str:
    return "/".join(os.environ.get(name, "") for name in _RUN_VARIABLES).strip("/")
