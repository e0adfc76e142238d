"""A rank's line to the coordinator: reports go out, plans come in, training never waits."""

from __future__ import annotations

import logging
import math
import queue
import selectors
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError, JouleryError
from joulery.pipeline.coordinator_lines import MAX_PLAN_BYTES, VERSION, Lines, connected, encode
from joulery.pipeline.rank_plan import RankPlan

if TYPE_CHECKING:
    from typing import Self

    from joulery.pipeline.controller import ClockController
    from joulery.pipeline.coordinator_lines import Address
    from joulery.pipeline.iteration_times import IterationTimes

_log = logging.getLogger("joulery")

_PATIENCE_SECONDS = 2.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0
# Reports that wait while nobody listens, and ratios per kind of work in a report.
_MOST_REPORTS, _MOST_RATIOS = 256, 8


@dataclass(frozen=True, slots=True)
class Place:
    """Where a coordinator is, and who calls it.

    Attributes:
        address: Of the coordinator.
        token: Its token.
        pipeline: Which data-parallel copy this rank belongs to.
        rank: Its rank within the pipeline.
    """

    address: Address
    token: str
    pipeline: int = 0
    rank: int = 0


class CoordinatorClient:
    """Tells the coordinator how iterations go, and the controller which plan to follow.

    While there is no coordinator, the controller follows its first plan.

    Args:
        place: Whom to call, and as whom.
        controller: Whose plans change. Give :meth:`report` to it as ``on_iteration``.

    Attributes:
        late_plans: Plans that came after the iteration they were for had begun.
    """

    def __init__(self, place: Place, controller: ClockController | None = None) -> None:
        self.late_plans = 0
        self.controller = controller
        self._place = place
        self._reports: queue.Queue[dict[str, Any]] = queue.Queue(_MOST_REPORTS)
        self._wake: socket.socket | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._said = False

    def start(self) -> Self:
        """Call in the background, again and again if need be. May be called twice."""
        if self._thread is None:
            self._wake, woken = socket.socketpair()
            self._wake.setblocking(False)  # noqa: FBT003 - takes no keyword
            self._thread = threading.Thread(
                target=self._run, args=(self._wake, woken), name="joulery-rank", daemon=True
            )
            self._thread.start()
        return self

    def report(self, times: IterationTimes) -> None:
        """Say how an iteration went. Never waits."""
        if math.isfinite(times.seconds) and times.planned_seconds > 0:
            ratios = [
                [stage, kind, [r for r in found if math.isfinite(r)][-_MOST_RATIOS:]]
                for (stage, kind), found in times.ratios.items()
            ]
            self._post(
                {
                    "op": "done",
                    "iteration": times.iteration,
                    "seconds": times.seconds,
                    "planned": times.planned_seconds,
                    "ratios": ratios,
                }
            )

    def notice(self, factor: float) -> None:
        """Say that this pipeline is ``factor`` times as slow as planned; 1 when it recovered."""
        self._post({"op": "notice", "factor": float(factor)})

    def close(self) -> None:
        """Hang up. May be called twice."""
        self._stopped.set()
        self._nudge()
        if self._thread is not None:
            self._thread.join(_PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _post(self, message: dict[str, Any]) -> None:
        # A report that finds no room is of no use later either.
        with suppress(queue.Full):
            self._reports.put_nowait(message)
        self._nudge()

    def _nudge(self) -> None:
        # Full means that it has not looked since; it will.
        if self._wake is not None:
            with suppress(OSError):
                self._wake.send(b"\0")

    def _run(self, wake: socket.socket, woken: socket.socket) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._stopped.is_set():
            try:
                with connected(self._place.address, _PATIENCE_SECONDS) as channel:
                    if self._converse(channel, woken):
                        pause = _FIRST_PAUSE_SECONDS
            except (OSError, JouleryError) as error:
                self._lost(error)
            self._stopped.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        wake.close()
        woken.close()

    def _converse(self, channel: socket.socket, woken: socket.socket) -> bool:
        """Talk until one hangs up; whether we were welcome."""
        place = self._place
        hello = {"op": "hello", "version": VERSION, "token": place.token}
        channel.sendall(encode({**hello, "pipeline": place.pipeline, "rank": place.rank}))
        lines = Lines(MAX_PLAN_BYTES)
        welcome = False
        with selectors.DefaultSelector() as selector:
            selector.register(channel, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while not self._stopped.is_set():
                ready = {key.fileobj for key, _ in selector.select()}
                if woken in ready:
                    woken.recv(4096)
                    while not self._reports.empty():
                        channel.sendall(encode(self._reports.get_nowait()))
                if channel in ready:
                    data = channel.recv(65536)
                    if not data:
                        raise ConnectionResetError("the coordinator hung up")
                    for message in lines.feed(data):
                        self._hear(message)
                        welcome = True
        return welcome

    def _hear(self, message: dict[str, Any]) -> None:
        if message.get("op") == "welcome":
            self._said = False
        elif message.get("op") == "plan" and self.controller is not None:
            first = message.get("from")
            plan = RankPlan.from_dict(message.get("plan") or {})
            if not isinstance(first, int) or plan.rank != self._place.rank:
                raise InvalidValueError("a plan for nobody", remedy="check the coordinator")
            in_time = self.controller.follow(plan, first)
            self.late_plans += bool(first) and not in_time

    def _lost(self, error: Exception) -> None:
        """Without a coordinator nobody says when a straggler has recovered: hurry."""
        if self.controller is not None:
            self.controller.follow_first_plan()
        if not self._said and not self._stopped.is_set():
            self._said = True
            _log.warning("pipeline coordinator lost, back to the first plan: %s", error)


def joined(controller: ClockController, place: Place) -> CoordinatorClient:
    """Have a controller report to a coordinator and follow its plans, from now on."""
    client = CoordinatorClient(place, controller)
    controller.on_iteration = client.report
    return client.start()
