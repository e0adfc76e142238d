"""The log of the server: JSON lines on stderr, written by a thread so that requests never wait."""

from __future__ import annotations

import json
import logging
import logging.handlers
import queue
import sys
import threading
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

_CAPACITY = 2000
_LONGEST = 4000
_STOP_SECONDS = 2.0


class JsonFormatter(logging.Formatter):
    """One JSON object per record; records of other packages get the event ``library``.

    Records of the server carry their members as ``extra={"fields": {…}}``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line = {"wall_seconds": record.created, "level": record.levelname.lower()}
        if record.name.startswith("joulery.server"):
            line["event"] = record.getMessage()
            line |= getattr(record, "fields", {})
        else:
            text = record.getMessage()[:_LONGEST]
            line |= {"event": "library", "logger": record.name, "message": text}
        if record.exc_info:
            line["where"] = "".join(traceback.format_exception(*record.exc_info))[-_LONGEST:]
        return json.dumps(line, separators=(",", ":"), default=str)


class _DroppingHandler(logging.handlers.QueueHandler):
    """Hands records to the thread that writes; drops them where it cannot keep up."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # stays in this process, so nothing has to be made picklable

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """The queue is full: losing a line is better than delaying a request."""


class _Listener(logging.handlers.QueueListener):
    """Writes records in a thread of its own."""

    def enqueue_sentinel(self) -> None:
        """Wait for room in the queue, which may be full."""
        waiting: Any = self.queue  # has more than logging needs
        waiting.put(None)


@contextmanager
def json_log(stream: TextIO | None = None) -> Iterator[None]:
    """Within it, all log records and warnings are JSON lines.

    Args:
        stream: Text stream for the lines; stderr unless given.
    """
    records: queue.Queue[logging.LogRecord | None] = queue.Queue(_CAPACITY)
    writer = logging.StreamHandler(stream or sys.stderr)
    writer.setFormatter(JsonFormatter())
    listener = _Listener(records, writer)
    handler, root = _DroppingHandler(records), logging.getLogger()
    server = logging.getLogger("joulery.server")
    level = server.level
    root.addHandler(handler)
    server.setLevel(logging.INFO)
    logging.captureWarnings(True)  # noqa: FBT003 - its only argument
    listener.start()
    try:
        yield
    finally:
        logging.captureWarnings(False)  # noqa: FBT003
        server.setLevel(level)
        root.removeHandler(handler)
        # The process ends even if stderr is blocked.
        stopping = threading.Thread(target=listener.stop, daemon=True)
        stopping.start()
        stopping.join(_STOP_SECONDS)
