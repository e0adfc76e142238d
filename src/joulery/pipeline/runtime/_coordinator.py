"""Serve the ranks of data-parallel pipelines: take their reports, hand out plans.

Ranks connect over TCP with a token and report each iteration. When a pipeline is
late or its profile drifts, all ranks get new plans with the number of the iteration from which
they hold, so that all switch together. No rank ever waits for an answer.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError, JouleryError
from joulery.json_lines import encode_line
from joulery.pipeline.runtime._messages import (
    MAX_PLAN_BYTES,
    MAX_REPORT_BYTES,
    REMEDY,
    VERSION,
    Endpoint,
    parse_report,
    read_message,
    whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from joulery.pipeline.runtime._straggler import PlanAssignment, StragglerPolicy

_log = logging.getLogger("joulery")

# Longest wait for a greeting, and connections beyond one per rank; by hand.
_GREETING_SECONDS = 5.0
_SPARE_CONNECTIONS = 64


class Coordinator(Endpoint):
    """A small service for all ranks of a job; start it on one of them.

    Once it is closed, ranks return to their first plan.

    Args:
        policy: Policy that decides which plan each pipeline follows.
        token: Secret that ranks must send; share it as you share the address.
        address: Host and port to listen at; the system chooses a port for 0.

    Attributes:
        address: Address at which it listens, once started.
    """

    def __init__(
        self, policy: StragglerPolicy, token: str, address: tuple[str, int] = ("127.0.0.1", 0)
    ) -> None:
        if not token:
            raise InvalidValueError("a coordinator needs a token", remedy="secrets.token_hex()")
        super().__init__()
        self.address = address
        self._policy = policy
        self._token = token
        # The (pipeline, rank) of each connection once it has greeted.
        self._connections: dict[asyncio.StreamWriter, tuple[int, int] | None] = {}
        self._planning: dict[int, asyncio.Task[None]] = {}

    def start(self) -> Self:
        """Listen, and serve in the background.

        Raises:
            InvalidValueError: The address cannot be used.
        """
        try:
            listener = socket.create_server(self.address, backlog=128)
        except OSError as error:
            raise InvalidValueError(
                f"cannot listen at {self.address}: {error}", remedy="choose another address"
            ) from None
        self.address = listener.getsockname()[:2]
        self._run(self._serve(listener), "joulery-coordinator")
        return self

    def state(self) -> tuple[int, int, int, tuple[float, ...]]:
        """Connected ranks, all ranks, the newest iteration, slowdowns of the pipelines."""
        connected, policy = set(self._connections.values()) - {None}, self._policy
        ranks = policy.pipelines * policy.ranks
        return len(connected), ranks, policy.newest_iteration, policy.factors

    def notice(self, pipeline: int, factor: float) -> None:
        """Set that a pipeline is ``factor`` times as slow as planned; 1 when it has recovered."""
        self._call(self._apply, lambda: self._policy.notice(pipeline, factor))

    async def _serve(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._handle, sock=listener, limit=MAX_REPORT_BYTES)
        await self._stopped.wait()
        server.close()
        for writer in self._connections:
            writer.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        limit = self._policy.pipelines * self._policy.ranks + _SPARE_CONNECTIONS
        try:
            if len(self._connections) >= limit:
                return
            self._connections[writer] = None
            async with asyncio.timeout(_GREETING_SECONDS):
                pipeline, rank = self._greet(await read_message(reader))
            self._welcome(writer, pipeline, rank)
            while True:
                self._take(pipeline, rank, await read_message(reader))
        except (OSError, JouleryError):
            # A client that hangs up or sends nonsense is cut off; it can connect again.
            return
        finally:
            self._connections.pop(writer, None)
            writer.close()

    def _greet(self, message: dict[str, Any]) -> tuple[int, int]:
        """The pipeline and rank of a greeting."""
        if message.get("op") != "hello" or message.get("version") != VERSION:
            raise InvalidValueError("no greeting", remedy=REMEDY)
        token = str(message.get("token")).encode()
        if not hmac.compare_digest(token, self._token.encode()):
            raise InvalidValueError("a wrong token", remedy="share the coordinator's token")
        pipeline = whole_number(message.get("pipeline"), "pipeline")
        rank = whole_number(message.get("rank"), "rank")
        if pipeline >= self._policy.pipelines or rank >= self._policy.ranks:
            raise InvalidValueError(f"there is no rank {rank} of {pipeline}", remedy=REMEDY)
        return pipeline, rank

    def _welcome(self, writer: asyncio.StreamWriter, pipeline: int, rank: int) -> None:
        self._connections[writer] = pipeline, rank
        self._send(writer, {"op": "welcome", "version": VERSION})
        current = self._policy.current(pipeline)
        if current is not None:
            self._send_plan(writer, rank, current)

    def _take(self, pipeline: int, rank: int, message: dict[str, Any]) -> None:
        if message.get("op") != "done":
            raise InvalidValueError(f"unknown operation {message.get('op')!r}", remedy=REMEDY)
        self._policy.report(pipeline, rank, parse_report(message))
        self._decide()
        self._replan_drifted(pipeline)

    def _apply(self, action: Callable[[], object]) -> None:
        """Act on behalf of the process that hosts the coordinator."""
        try:
            action()
            self._decide()
        except JouleryError as error:
            _log.warning("pipeline coordinator: %s", error)

    def _decide(self) -> None:
        for assignment in self._policy.decide():
            self._send_all(assignment)

    def _send_all(self, assignment: PlanAssignment) -> None:
        for writer, member in self._connections.items():
            if member is not None and member[0] == assignment.pipeline:
                self._send_plan(writer, member[1], assignment)

    def _send_plan(
        self, writer: asyncio.StreamWriter, rank: int, assignment: PlanAssignment
    ) -> None:
        plan = assignment.plans.ranks(assignment.factor)[rank].to_dict()
        self._send(writer, {"op": "plan", "from": assignment.from_iteration, "plan": plan})

    def _send(self, writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        if writer.transport.get_write_buffer_size() > 2 * MAX_PLAN_BYTES:
            writer.transport.abort()  # it does not read
        elif not writer.is_closing():
            writer.write(encode_line(message))

    def _replan_drifted(self, pipeline: int) -> None:
        factors = self._policy.drifted(pipeline)
        if factors and pipeline not in self._planning:
            task = asyncio.ensure_future(self._replan(pipeline, factors))
            self._planning[pipeline] = task
            task.add_done_callback(lambda _: self._planning.pop(pipeline))

    async def _replan(self, pipeline: int, factors: dict[tuple[int, str], float]) -> None:
        """Plan a pipeline anew, in a thread of its own, with its measured times."""
        plans = self._policy.plans_of(pipeline)
        try:
            plans_after = await asyncio.to_thread(plans.rescaled, factors)
            await asyncio.to_thread(plans_after.ranks)
        except JouleryError as error:
            _log.warning("pipeline coordinator: cannot plan anew: %s", error)
            return
        self._apply(lambda: self._send_all(self._policy.replace_plans(pipeline, plans_after)))
