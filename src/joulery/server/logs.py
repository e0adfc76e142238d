"""The log: JSON lines, written by a thread of its own so that a slow reader delays no request."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from typing import TYPE_CHECKING, Any

from joulery.clock import REAL_CLOCK
from joulery.jobs.wire_text import to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.clock import Clock

_CAPACITY = 2000
_STDERR = 2


class Log:
    """Says what happens, one JSON object per line; never a token or a body.

    Args:
        worker: Number of the process, told with every line.
        requests: Whether every request is told, or only those that went wrong or took long.
        clock: For the time of each line.
        descriptor: Where lines go.
    """

    def __init__(
        self,
        worker: int = 0,
        *,
        requests: bool = False,
        clock: Clock = REAL_CLOCK,
        descriptor: int = _STDERR,
    ) -> None:
        self.requests = requests
        self.dropped = 0
        self._worker = worker
        self._clock = clock
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(_CAPACITY)
        self._thread = threading.Thread(target=self._write, name="joulery-log", daemon=True)
        self._started = False

    def say(self, event: str, **members: Any) -> None:
        """Tell of something."""
        line = {"wall_seconds": self._clock.wall(), "worker": self._worker, "event": event}
        if not self._started:
            self._started = True
            self._thread.start()
        try:
            self._lines.put_nowait(to_bytes(line | members) + b"\n")
        except queue.Full:
            self.dropped += 1

    def close(self, patience_seconds: float = 1.0) -> None:
        """Write what waits, as far as somebody reads it."""
        if not self._started:
            return
        try:
            self._lines.put(None, timeout=patience_seconds)
        except queue.Full:
            return
        self._thread.join(patience_seconds)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:  # nobody listens; there is no other place to say so
                self.dropped += 1


class _Library(logging.Handler):
    """Has what libraries log told in our way."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Tell one record."""
        self._log.say("library", logger=record.name, message=record.getMessage()[:2000])


@contextlib.contextmanager
def libraries_told(log: Log) -> Iterator[None]:
    """Within it, warnings and what libraries log are lines of the log like any other."""
    handler = _Library(log)
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(True)  # noqa: FBT003 - its only argument
    try:
        yield
    finally:
        logging.captureWarnings(False)  # noqa: FBT003
        logging.getLogger().removeHandler(handler)
