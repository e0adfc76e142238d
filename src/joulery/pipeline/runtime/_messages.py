"""Shared code of a coordinator and its ranks: an event loop in the background, messages.

Messages are JSON objects, one per line.
"""

from __future__ import annotations

import asyncio
import math
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.json_lines import decode_line
from joulery.pipeline.runtime._controller import IterationTimes
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Self

VERSION = 1
# A rank reports figures; a plan of 10,000 instructions fits the other way; by hand.
MAX_REPORT_BYTES = 64 * 1024
MAX_PLAN_BYTES = 1024 * 1024
REMEDY = "speak version 1 of the coordinator's protocol"
# Ratios per kind of work in a report; by hand.
_MAX_RATIOS = 8
# Longest wait for a peer to close; by hand.
_CLOSE_SECONDS = 2.0


class Endpoint(ABC):
    """One end of the protocol: an event loop in a daemon thread, from ``start`` to ``close``."""

    def __init__(self) -> None:
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @abstractmethod
    def start(self) -> Self:
        """Begin in the background."""

    def close(self) -> None:
        """End all connections. May be called twice."""
        self._call(self._stopped.set)
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, main: Coroutine[Any, Any, None], name: str) -> None:
        self._loop = loop = asyncio.new_event_loop()

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(main)

        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Run a function in the background thread; nothing if that is not there."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *arguments)


async def read_message(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next message.

    Raises:
        ConnectionResetError: The peer closed the connection.
        InvalidValueError: The line is too long or no JSON object.
    """
    try:
        line = await reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the connection was closed")
        return decode_line(line)
    except ValueError:
        raise InvalidValueError(
            "a line does not hold a JSON object", remedy="send one per line"
        ) from None


def report_message(times: IterationTimes) -> dict[str, Any]:
    """The report of an iteration."""
    return {
        "op": "done",
        "iteration": times.iteration,
        "seconds": times.seconds,
        "planned": times.planned_seconds,
        "ratios": [
            [stage, kind, [ratio for ratio in ratios if math.isfinite(ratio)][-_MAX_RATIOS:]]
            for (stage, kind), ratios in times.ratios.items()
        ],
    }


def parse_report(message: dict[str, Any]) -> IterationTimes:
    """The inverse of ``report_message``; an InvalidValueError for anything else."""
    ratios: dict[tuple[int, str], tuple[float, ...]] = {}
    entries = message.get("ratios")
    for entry in entries if isinstance(entries, list) else []:
        if not (isinstance(entry, list) and len(entry) == 3 and isinstance(entry[2], list)):
            raise InvalidValueError("malformed ratios", remedy=REMEDY)
        key = whole_number(entry[0], "stage"), str(entry[1])
        ratios[key] = tuple(finite(value, "ratio") for value in entry[2])
    return IterationTimes(
        whole_number(message.get("iteration"), "iteration"),
        finite(message.get("seconds", 0.0), "seconds", minimum=1e-9),
        finite(message.get("planned", 0.0), "planned seconds", minimum=1e-9),
        ratios,
    )


def whole_number(value: Any, name: str) -> int:
    """A value of a message that must be a whole number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
        raise InvalidValueError(f"{name} {value!r} is no whole number", remedy=REMEDY)
    return value
