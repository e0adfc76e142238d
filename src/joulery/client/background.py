"""Work in the background that nobody waits for, but for a moment at the end."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from joulery.client.deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("joulery")


class BackgroundWorker:
    """Does one piece of work after the other, in threads that end with the process."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._deadline = Deadline(0.0)

    def do(self, work: Callable[[], None], deadline: Deadline) -> None:
        """Begin with a piece of work once the one before is done.

        Args:
            work: To be done; what goes wrong in it is left to the log.
            deadline: How long it is waited for; to end by then is up to the work itself.
        """
        before = self._thread

        def done() -> None:
            if before is not None:
                before.join(deadline.left)
            # Nobody waits for this, so nobody could be told but by the log.
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the fail-open guard
                _log.debug("joulery: what a run found out is not kept: %s", error)

        thread = threading.Thread(target=done, name="joulery-findings", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, as at the end of the interpreter
            return
        self._thread, self._deadline = thread, deadline

    def wait(self) -> None:
        """Wait until all is done, or the deadline of the last piece has passed."""
        if self._thread is not None:
            self._thread.join(self._deadline.left)
