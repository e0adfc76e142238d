"""Hangs up on a database that does not answer at all, so that nobody waits for ever.

PostgreSQL ends statements that take too long by itself, as long as it is alive. A server that was
halted, or a network that swallows everything, ends nothing; and a thread that waits for an answer
cannot be reached but through its connection.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy import event

from joulery.clock import REAL_CLOCK

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.pool import ConnectionPoolEntry

    from joulery.clock import Clock

# Marks a connection, in its ``info``, whose questions may take any time until it is given back.
UNHURRIED = "joulery_unhurried"
_LOOK_SECONDS = 0.25


class Watch:
    """Over the connections of an engine.

    Args:
        seconds: For which one question may remain without an answer.
        clock: Real, or a test's.
    """

    def __init__(self, seconds: float, clock: Clock = REAL_CLOCK) -> None:
        self._seconds = seconds
        self._clock = clock
        # By connection of the driver; changed by whoever uses it, read by the thread below.
        self._deadlines: dict[Any, float] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def over(self, engine: Engine) -> None:
        """Begin with the first connection, end when the engine is disposed of."""
        event.listen(engine, "connect", self._connected)
        event.listen(engine, "before_cursor_execute", self._asks)
        event.listen(engine, "after_cursor_execute", self._answered)
        event.listen(engine, "commit", self._ends_transaction)
        event.listen(engine, "rollback", self._ends_transaction)
        event.listen(engine, "checkin", self._given_back)
        event.listen(engine, "close", self._given_back)
        event.listen(engine, "engine_disposed", self._disposed)

    def _connected(self, _: object, __: object) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._ended = threading.Event()
            self._thread = threading.Thread(
                target=self._work, args=(self._ended,), name="joulery-watch", daemon=True
            )
            self._thread.start()

    def _asks(self, connection: Connection, cursor: Any, *_: object) -> None:
        self._await(connection, cursor.connection)

    def _answered(self, _: object, cursor: Any, *__: object) -> None:
        self._deadlines.pop(cursor.connection, None)

    def _ends_transaction(self, connection: Connection) -> None:
        # Nothing is told once it has ended; but then the next statement comes, or it is given back.
        if not connection.invalidated:
            self._await(connection, connection.connection.dbapi_connection)

    def _await(self, connection: Connection, driver: Any) -> None:
        if UNHURRIED not in connection.info:
            self._deadlines[driver] = self._clock.now() + self._seconds

    def _given_back(self, driver: Any, record: ConnectionPoolEntry) -> None:
        record.info.pop(UNHURRIED, None)
        self._deadlines.pop(driver, None)

    def _disposed(self, _: object) -> None:
        self._ended.set()

    def _work(self, ended: threading.Event) -> None:
        while not ended.wait(_LOOK_SECONDS):
            now = self._clock.now()
            for driver, deadline in self._deadlines.copy().items():
                if now > deadline and self._deadlines.pop(driver, None) is not None:
                    _hang_up(driver)


def _hang_up(driver: Any) -> None:
    """Let whoever waits for an answer read the end of the connection instead."""
    if driver.closed:
        return
    with suppress(OSError), socket.socket(fileno=os.dup(driver.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
