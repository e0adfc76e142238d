"""The program of the desk: the one process of a worker that decides and writes.

HTTP is spoken elsewhere, so that deciding has a core of its own. It reads errands from a socket and
answers whatever a commit has made durable, all at once. It ends when the other end does, after
finishing what it was given; signals to stop are for the other end, too.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from joulery.errors import JouleryError
from joulery.jobs.service import JobService
from joulery.server import errands
from joulery.server.frames import READY, Frames, frame_of
from joulery.server.logs import Log, libraries_told
from joulery.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

_PIECE_BYTES = 1 << 18
_THREADS = 4


class _Counter:
    """Takes errands in and hands answers out.

    Args:
        line: To whoever sends errands.
        log: Where to say what went wrong.
    """

    def __init__(self, line: socket.socket, log: Log) -> None:
        self._line = line
        self._log = log
        self._answers: deque[tuple[int, Any, Exception | None]] = deque()
        self._sending = threading.Lock()

    def serve(self, frames: Frames, store: Store) -> None:
        """Until there is nobody at the other end."""
        desk = JobService(store)
        # Decisions are the same without it; the first requests need not wait for a compiler.
        store.after_each_group(self._send)
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="joulery-errand") as threads:
            self._tell(READY, None, None)
            while piece := self._line.recv(_PIECE_BYTES):
                for number, errand, arguments in frames.feed(piece):
                    if errand in errands.SOON:
                        self._begin(number, partial(errand, desk, *arguments))
                    else:
                        work = threads.submit(errand, desk, *arguments)
                        work.add_done_callback(partial(self._ended_alone, number))

    def _begin(self, number: int, errand: Callable[[], Future[Any]]) -> None:
        try:
            errand().add_done_callback(partial(self._ended, number))
        except JouleryError as error:
            self._tell(number, None, error)

    def _ended(self, number: int, future: Future[Any]) -> None:
        """Called by the store's thread, before the group that it was part of ends."""
        error = future.exception()
        if error is None:
            self._answers.append((number, future.result(), None))
        else:
            self._answers.append((number, None, self._fit_to_tell(error)))

    def _ended_alone(self, number: int, future: Future[Any]) -> None:
        self._ended(number, future)
        self._send()

    def _tell(self, number: int, answer: Any, error: Exception | None) -> None:
        self._answers.append((number, answer, error))
        self._send()

    def _fit_to_tell(self, error: BaseException) -> Exception:
        if isinstance(error, JouleryError):
            return error
        where = "".join(traceback.format_exception(error))
        self._log.say("failed", error=repr(error)[:500], where=where[-4000:])
        return RuntimeError("an errand failed, see above")

    def _send(self) -> None:
        with self._sending, contextlib.suppress(OSError):  # nobody listens: the reader will see
            answers = [self._answers.popleft() for _ in range(len(self._answers))]
            if answers:
                self._line.sendall(frame_of(answers))


def work(number: int, line: socket.socket) -> int:
    """Serve until there is nobody at the other end, who tells the store first.

    Args:
        number: Of the worker.
        line: To whoever sends errands.

    Returns:
        An exit code.
    """
    for stopping in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stopping, signal.SIG_IGN)
    log = Log(number)
    with line, libraries_told(log):
        frames = Frames()
        try:
            for location in frames.feed(line.recv(_PIECE_BYTES)):
                with Store.open(location) as store:
                    _Counter(line, log).serve(frames, store)
        except JouleryError as error:
            log.say("desk", error=type(error).__name__, message=error.message)
            return error.exit_code
        except ConnectionError:  # the other end was killed
            return 0
        finally:
            log.close()
    return 0


if __name__ == "__main__":
    sys.exit(work(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))))
