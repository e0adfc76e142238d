"""Serve the ranks of data-parallel pipelines: take their reports, hand out plans.

Ranks connect over TCP or a Unix socket with a token and report each iteration. When a pipeline is
late or its profile drifts, all ranks get new plans with the number of the iteration from which
they hold, so that all switch together. No rank ever waits for an answer.
"""

from __future__ import annotations

import hmac
import logging
import selectors
import socket
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.clock import REAL_CLOCK
from joulery.errors import InvalidValueError, JouleryError
from joulery.pipeline.coordinator_lines import (
    MAX_PLAN_BYTES,
    MAX_REPORT_BYTES,
    VERSION,
    Lines,
    encode,
    listening,
)
from joulery.pipeline.drift import rescaled
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from joulery.pipeline.coordinator_lines import Address
    from joulery.pipeline.pace_setting import Assignment, PaceSetting

_log = logging.getLogger("joulery")

_GREETING_SECONDS = 5.0
_TICK_SECONDS = 1.0
_SPARE_CALLERS = 64
_CLOSE_SECONDS = 2.0
_REMEDY = "speak version 1 of the coordinator's protocol"


@dataclass(slots=True, eq=False)
class _Caller:
    """A connection, of a rank once it has greeted."""

    channel: socket.socket
    since: float
    lines: Lines = field(default_factory=lambda: Lines(MAX_REPORT_BYTES))
    waiting: bytearray = field(default_factory=bytearray)
    place: tuple[int, int] | None = None


class Coordinator:
    """A small service for all ranks of a job; start it on one of them.

    Args:
        setting: Decides who follows which plan.
        token: What ranks must know; share it as you share the address.
        address: Host and port, or the path of a Unix socket; the system chooses a port for 0.

    Attributes:
        address: Where it listens, once started.
    """

    def __init__(
        self,
        setting: PaceSetting,
        token: str,
        address: Address = ("127.0.0.1", 0),
    ) -> None:
        if not token:
            raise InvalidValueError("a coordinator needs a token", remedy="secrets.token_hex()")
        self.address = address
        self._setting = setting
        self._token = token
        self._selector: selectors.BaseSelector
        self._callers: set[_Caller] = set()
        self._asked: deque[Callable[[], None]] = deque()
        self._wake: socket.socket | None = None
        self._stopped = False
        self._planning: set[int] = set()
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Listen, and serve in the background.

        Raises:
            InvalidValueError: The address cannot be used.
        """
        try:
            self._listener = listening(self.address)
        except OSError as error:
            raise InvalidValueError(
                f"cannot listen at {self.address}: {error}", remedy="choose another address"
            ) from None
        if not isinstance(self.address, Path):
            self.address = self._listener.getsockname()[:2]
        self._wake, woken = socket.socketpair()
        woken.setblocking(False)  # noqa: FBT003 - takes no keyword
        selector = selectors.DefaultSelector()
        selector.register(self._listener, selectors.EVENT_READ, self._accept)
        selector.register(woken, selectors.EVENT_READ, lambda _: self._hear_own(woken))
        self._selector = selector
        self._thread = threading.Thread(
            target=self._serve, args=(woken,), name="joulery-paces", daemon=True
        )
        self._thread.start()
        return self

    def close(self) -> None:
        """Hang up on everybody; ranks go back to their first plan. May be called twice."""
        self._stopped = True
        self._ask(lambda: None)
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
        if isinstance(self.address, Path):
            self.address.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def state(self) -> tuple[int, int, int, tuple[float, ...]]:
        """Ranks that are connected, ranks there are, the newest iteration, paces of pipelines."""
        places = {caller.place for caller in tuple(self._callers)} - {None}
        setting = self._setting
        every = setting.pipelines * setting.ranks
        return len(places), every, setting.newest_iteration, setting.factors

    def notice(self, pipeline: int, factor: float) -> None:
        """Say that a pipeline is ``factor`` times as slow as planned; 1 when it has recovered."""
        self._ask(lambda: self._setting.notice(pipeline, factor))

    def wait_for(self, seconds: float) -> None:
        """Say that something outside takes so long per iteration anyway; 0 for no longer."""
        self._ask(lambda: self._setting.wait_for(seconds))

    def _ask(self, action: Callable[[], None]) -> None:
        self._asked.append(action)
        if self._wake is not None:
            with suppress(OSError):
                self._wake.send(b"\0")

    def _serve(self, woken: socket.socket) -> None:
        try:
            while not self._stopped:
                for key, events in self._selector.select(_TICK_SECONDS):
                    key.data(events)
                self._turn_away()
        finally:
            # Whatever ends this, ranks must see that nobody is there any more.
            for caller in tuple(self._callers):
                self._drop(caller)
            for channel in (self._listener, woken, self._wake):
                if channel is not None:
                    channel.close()
            self._selector.close()

    def _accept(self, _: int) -> None:
        assert self._listener is not None  # noqa: S101 - it is what woke us
        with suppress(OSError):
            channel, _address = self._listener.accept()
            most = self._setting.pipelines * self._setting.ranks + _SPARE_CALLERS
            if len(self._callers) >= most:
                channel.close()
                return
            channel.setblocking(False)  # noqa: FBT003 - takes no keyword
            caller = _Caller(channel, REAL_CLOCK.now())
            self._callers.add(caller)
            self._watch(caller)

    def _watch(self, caller: _Caller) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if caller.waiting else 0)
        if caller.channel not in self._selector.get_map():
            self._selector.register(caller.channel, events, lambda e: self._talk(caller, e))
        else:
            self._selector.modify(caller.channel, events, lambda e: self._talk(caller, e))

    def _hear_own(self, woken: socket.socket) -> None:
        with suppress(OSError):
            woken.recv(4096)
        while self._asked:
            self._guarded(self._asked.popleft())
        self._guarded(self._decide)

    def _talk(self, caller: _Caller, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                del caller.waiting[: caller.channel.send(caller.waiting)]
                self._watch(caller)
            if events & selectors.EVENT_READ:
                data = caller.channel.recv(65536)
                if not data:
                    raise ConnectionResetError("hung up")
                for message in caller.lines.feed(data):
                    self._hear(caller, message)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, JouleryError):
            # Who hangs up or talks nonsense is cut off; it can call again.
            self._drop(caller)

    def _hear(self, caller: _Caller, message: dict[str, Any]) -> None:
        operation = message.get("op")
        if caller.place is None:
            if operation != "hello" or message.get("version") != VERSION:
                raise InvalidValueError("no greeting", remedy=_REMEDY)
            self._welcome(caller, message)
        elif operation == "done":
            self._report(caller.place, message)
            self._decide()
            self._replan(caller.place[0])
        elif operation == "notice":
            self._setting.notice(caller.place[0], finite(message.get("factor", 1.0), "factor"))
            self._decide()
        else:
            raise InvalidValueError(f"unknown operation {operation!r}", remedy=_REMEDY)

    def _welcome(self, caller: _Caller, message: dict[str, Any]) -> None:
        given = str(message.get("token")).encode()
        if not hmac.compare_digest(given, self._token.encode()):
            raise InvalidValueError("a wrong token", remedy="share the coordinator's token")
        place = _whole(message, "pipeline"), _whole(message, "rank")
        if place[0] >= self._setting.pipelines or place[1] >= self._setting.ranks:
            raise InvalidValueError(f"there is no place {place}", remedy=_REMEDY)
        caller.place = place
        self._send(caller, {"op": "welcome", "version": VERSION})
        current = self._setting.current(place[0])
        if current is not None:
            self._send_plan(caller, current)

    def _report(self, place: tuple[int, int], message: dict[str, Any]) -> None:
        measured = finite(message.get("seconds", 0.0), "seconds", minimum=1e-9)
        planned = finite(message.get("planned", 0.0), "planned seconds", minimum=1e-9)
        found = message.get("ratios")
        ratios: dict[tuple[int, str], list[float]] = {}
        for entry in found if isinstance(found, list) else []:
            if not (isinstance(entry, list) and len(entry) == 3 and isinstance(entry[2], list)):
                raise InvalidValueError("ratios that are none", remedy=_REMEDY)
            stage = _whole({"stage": entry[0]}, "stage")
            ratios[stage, str(entry[1])] = [finite(value, "ratio") for value in entry[2]]
        iteration = _whole(message, "iteration")
        self._setting.done(*place, iteration, (measured, planned), ratios)

    def _decide(self) -> None:
        for assignment in self._setting.decide():
            self._send_all(assignment)

    def _send_all(self, assignment: Assignment) -> None:
        for caller in tuple(self._callers):
            if caller.place is not None and caller.place[0] == assignment.pipeline:
                self._send_plan(caller, assignment)

    def _send_plan(self, caller: _Caller, assignment: Assignment) -> None:
        assert caller.place is not None  # noqa: S101 - only ranks get plans
        plan = assignment.paces.ranks(assignment.factor)[caller.place[1]]
        self._send(
            caller,
            {"op": "plan", "from": assignment.from_iteration, "plan": plan.to_dict()},
        )

    def _send(self, caller: _Caller, message: dict[str, Any]) -> None:
        if len(caller.waiting) > 2 * MAX_PLAN_BYTES:
            self._drop(caller)  # it does not listen
            return
        caller.waiting += encode(message)
        if caller in self._callers:
            self._watch(caller)

    def _replan(self, pipeline: int) -> None:
        """Plan a pipeline anew, in a thread of its own, if its profile drifted."""
        factors = self._setting.drifted(pipeline)
        if not factors or pipeline in self._planning:
            return
        self._planning.add(pipeline)
        paces = self._setting.paces_of(pipeline)

        def work() -> None:
            try:
                made = paces.of(rescaled(paces.problem, factors))
                made.ranks()
                self._ask(lambda: self._send_all(self._setting.replan(pipeline, made)))
            except JouleryError as error:
                _log.warning("pipeline coordinator: cannot plan anew: %s", error)
            finally:
                self._ask(lambda: self._planning.discard(pipeline))

        threading.Thread(target=work, name="joulery-replan", daemon=True).start()

    def _turn_away(self) -> None:
        """Hang up on those who do not greet."""
        latest = REAL_CLOCK.now() - _GREETING_SECONDS
        for caller in tuple(self._callers):
            if caller.place is None and caller.since < latest:
                self._drop(caller)

    def _drop(self, caller: _Caller) -> None:
        if caller in self._callers:
            self._callers.discard(caller)
            self._selector.unregister(caller.channel)
            caller.channel.close()

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except JouleryError as error:
            _log.warning("pipeline coordinator: %s", error)


def _whole(message: dict[str, Any], name: str) -> int:
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
        raise InvalidValueError(f"{name} {value!r} is no whole number", remedy=_REMEDY)
    return value
