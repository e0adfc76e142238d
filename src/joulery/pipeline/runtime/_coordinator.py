"""Serve the ranks of data-parallel pipelines: take their reports, hand out plans.

Ranks connect over TCP with a token and report each iteration. When a pipeline is late, its profile
drifts, or a pace or power is set from outside, all ranks get new plans with the number of the
iteration from which they hold, so that all switch together. No rank ever waits for an answer.

A run has an identity. The first rank of another run makes the coordinator begin anew, and ranks of
a run before are refused.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError, JouleryError
from joulery.files import encode_line
from joulery.pipeline.runtime._messages import (
    MAX_PLAN_BYTES,
    REMEDY,
    VERSION,
    TokenServer,
    read_line,
    read_report,
    refusal,
    refused,
    whole_number,
)
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.pipeline.planning._rank_plan import RankPlan
    from joulery.pipeline.runtime._controller import IterationTimes
    from joulery.pipeline.runtime._straggler import PlanAssignment, StragglerPolicy

# Longest wait for a coordinator that is asked to hold a pace; it may plan meanwhile; by hand.
_HOLD_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """What a coordinator knows and holds.

    Attributes:
        connected: Stages that are connected.
        ranks: Stages of all pipelines.
        iteration: Latest complete iteration; -1 before the first.
        factors: Slowdown of each pipeline against its fastest plan.
        held_seconds: Iteration time that was set from outside; None without.
        held_watts: Power that this iteration time was chosen for; None where a time was set.
        planned_watts: Mean power of all devices under the plans that pipelines follow.
        share_watts: Power that others, such as a cluster's agent, leave a device, and that plans
            keep to in every second; None without.
    """

    connected: int
    ranks: int
    iteration: int
    factors: tuple[float, ...]
    held_seconds: float | None
    held_watts: float | None
    planned_watts: float
    share_watts: float | None = None


class Coordinator(TokenServer):
    """A small service for all ranks of a job; start it on one of them.

    Once it is closed, ranks return to their first plan.

    Args:
        policy: Policy that decides which plan each pipeline follows.
        token: Secret that ranks must send; share it as you share the address.
        address: Host and port to listen at; the system chooses a port for 0.
    """

    def __init__(
        self, policy: StragglerPolicy, token: str, address: tuple[str, int] = ("127.0.0.1", 0)
    ) -> None:
        super().__init__(token, address, policy.pipelines * policy.ranks)
        self._policy = policy
        self._held_watts: float | None = None
        self._run_name: str | None = None
        self._past_runs: set[str] = set()
        # The rank of each connection, by pipeline.
        self._members: list[dict[asyncio.StreamWriter, int]] = [{} for _ in range(policy.pipelines)]
        self._planning: dict[int, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None

    def state(self) -> CoordinatorState:
        """What it knows and holds."""
        policy = self._policy
        return CoordinatorState(
            sum(len(set(members.values())) for members in self._members),
            policy.pipelines * policy.ranks,
            policy.newest_iteration,
            policy.factors,
            policy.held_seconds,
            self._held_watts,
            policy.planned_watts(),
            policy.followed[0] if policy.followed else None,
        )

    def notice(self, pipeline: int, factor: float) -> None:
        """Set that a pipeline is ``factor`` times as slow as planned; 1 when it has recovered."""
        self._call(self._apply, lambda: self._policy.notice(pipeline, factor))

    def hold(self, *, seconds: float | None = None, watts: float | None = None) -> None:
        """Hold an iteration time, or the fastest one whose mean power is at most ``watts``.

        All pipelines slow down as one, and by their clocks: none waits at full power. Without
        either the job is as fast as it can again. Power is that of all devices of the plan.

        Raises:
            InvalidValueError: Both are given, or a figure is not positive.
            InfeasibleError: No clocks draw so little, or lead to that time.
        """
        pace = self._policy.prepare_hold(seconds, watts)
        self._call(self._hold, pace, watts)

    def _hold(self, pace: float | None, watts: float | None) -> None:
        self._held_watts = watts
        self._apply(lambda: self._policy.hold(pace))

    async def _converse(
        self, message: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if message.get("op") in ("hold", "state"):
            self._send(writer, encode_line(await self._answer(message)))
            return
        pipeline, rank = self._greet(message)
        members = self._members[pipeline]
        if rank in members.values():
            self._warn(
                f"rank {rank} of pipeline {pipeline} is connected twice; processes that share a "
                "stage share a connection: see CoordinatorClient.lead()"
            )
        members[writer] = rank
        try:
            self._send(writer, encode_line({"op": "welcome", "version": VERSION}))
            current = self._policy.current(pipeline)
            if current is not None:
                self._send(writer, _plan_line(current, current.rank_plan(rank)))
            while True:
                self._take(pipeline, rank, await read_report(reader))
        finally:
            members.pop(writer, None)

    async def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do what a command asks for; the state, or why it cannot be done."""
        try:
            if message["op"] == "hold":
                figures = message.get("seconds"), message.get("watts")
                pace = await asyncio.to_thread(self._policy.prepare_hold, *figures)
                self._hold(pace, message.get("watts"))
        except JouleryError as error:
            return refusal(error)
        return {"op": "state", **asdict(self.state())}

    def _greet(self, message: dict[str, Any]) -> tuple[int, int]:
        """The pipeline and rank of a greeting."""
        if message.get("op") != "hello":
            raise InvalidValueError("no greeting", remedy=REMEDY)
        pipeline = whole_number(message.get("pipeline"), "pipeline")
        rank = whole_number(message.get("rank"), "rank")
        self._policy.check_rank(pipeline, rank)
        self._join_run(str(message.get("run", "")))
        return pipeline, rank

    def _join_run(self, run: str) -> None:
        """Begin anew for the first rank of another run, and where all ranks had left."""
        if run in self._past_runs:
            raise _ended(run)
        if run != self._run_name or not any(self._members):
            past, self._run_name = self._run_name, run
            if past not in (None, run):
                self._past_runs.add(str(past))
            for members in self._members:
                for writer in list(members):
                    self._refuse(writer, _ended(str(past)))
                members.clear()
            self._apply(self._policy.restart)

    def _take(self, pipeline: int, rank: int, times: IterationTimes) -> None:
        looks = self._policy.report(pipeline, rank, times)
        self._decide()
        followed = self._policy.followed
        if self._following is None and self._policy.share_watts != (followed and followed[0]):
            self._following = asyncio.ensure_future(self._follow(self._policy.share_watts))
        if looks:
            self._replan_drifted(pipeline)

    def _apply(self, action: Callable[[], object]) -> None:
        """Act on behalf of the process that hosts the coordinator."""
        try:
            action()
            self._decide()
        except JouleryError as error:
            self._warn(str(error))

    def _decide(self) -> None:
        if self._policy.due:
            self._assign(self._policy.decide())

    def _assign(self, assignments: list[PlanAssignment]) -> None:
        """Send plans; pipelines that share one share its text, too."""
        lines: dict[tuple[int, int], bytes] = {}
        for assignment in assignments:
            for writer, rank in self._members[assignment.pipeline].items():
                plan = assignment.rank_plan(rank)
                key = id(plan), assignment.from_iteration
                if key not in lines:
                    lines[key] = _plan_line(assignment, plan)
                self._send(writer, lines[key])

    async def _follow(self, watts: float | None) -> None:
        """Keep all pipelines to what others leave their devices; the pace is found in a thread."""
        run, share = self._run_name, None
        try:
            if watts is not None:
                share = watts, await asyncio.to_thread(self._policy.pace_under, watts)
            if run == self._run_name:
                self._apply(lambda: self._policy.follow(share))
        finally:
            self._following = None

    def _replan_drifted(self, pipeline: int) -> None:
        if pipeline in self._planning:
            return
        factors = self._policy.drifted(pipeline)
        if factors:
            task = asyncio.ensure_future(self._replan(pipeline, factors))
            self._planning[pipeline] = task
            task.add_done_callback(lambda _: self._planning.pop(pipeline))

    async def _replan(self, pipeline: int, factors: dict[tuple[int, str], float]) -> None:
        """Plan a pipeline anew, in a thread of its own, with its measured times."""
        plans, run = self._policy.plans_of(pipeline), self._run_name
        try:
            plans_after = await asyncio.to_thread(plans.rescaled, factors)
            await asyncio.to_thread(plans_after.ranks)
        except JouleryError as error:
            self._warn(f"cannot plan anew: {error}")
            return
        if run == self._run_name and plans is self._policy.plans_of(pipeline):
            self._apply(lambda: self._assign([self._policy.replace_plans(pipeline, plans_after)]))


def _ended(run: str) -> JouleryError:
    return InvalidValueError(f"the run {run} has ended", remedy="give the new run's name")


def _plan_line(assignment: PlanAssignment, plan: RankPlan) -> bytes:
    return encode_line({"op": "plan", "from": assignment.from_iteration, "plan": plan.to_dict()})


def hold_pace(
    address: tuple[str, int],
    token: str,
    *,
    seconds: float | None = None,
    watts: float | None = None,
    change: bool = True,
) -> CoordinatorState:
    """Have a running coordinator hold an iteration time or a power, from any process.

    Args:
        address: Host and port of the coordinator.
        token: Token of the coordinator.
        seconds: Iteration time to hold.
        watts: Mean power of all devices to stay below; with neither the pace is free again.
        change: Whether to change anything; if not, the state is only read.

    Returns:
        The state afterwards.

    Raises:
        InvalidValueError: The coordinator cannot be reached, or refuses.
    """
    for name, figure in (("seconds", seconds), ("watts", watts)):
        if figure is not None:
            finite(figure, name, minimum=0.0)
    request = {"op": "hold" if change else "state", "version": VERSION, "token": token}
    try:
        with socket.create_connection(address, timeout=_HOLD_SECONDS) as connection:
            connection.sendall(encode_line(request | {"seconds": seconds, "watts": watts}))
            answer = read_line(connection.makefile("rb").readline(MAX_PLAN_BYTES))
    except OSError as error:
        raise InvalidValueError(
            f"no coordinator answers at {address[0]}:{address[1]}: {error}",
            remedy="check its address and token; `joulery plan pipeline --coordinate` starts one",
        ) from None
    if answer.pop("op") == "refused":
        raise refused(answer)
    return CoordinatorState(**answer | {"factors": tuple(answer["factors"])})
