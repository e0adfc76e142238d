"""Whose turn it is to write to an SQLite file.

SQLite lets whoever is lucky write next, and the others look again after up to a tenth of a second:
among busy processes one may wait for seconds. With turns, a process that waits is the next one.
Nothing depends on them but patience: who cannot get a turn in time goes on to SQLite's own lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from joulery.clock import Clock

# Two bytes of a file that holds nothing. Whoever waits holds the second until it has the first, so
# that the one who has just written comes after it.
_WRITING, _NEXT = 0, 1
_LOOK_SECONDS = 0.0005
_TAKEN = (errno.EACCES, errno.EAGAIN)


class Turns:
    """Turns among the processes that have the same store open.

    Args:
        path: Of a file for nothing else; made if missing.
        patience_seconds: How long to wait for a turn.
        clock: Real or virtual.
    """

    def __init__(self, path: Path, patience_seconds: float, clock: Clock = REAL_CLOCK) -> None:
        self._patience_seconds = patience_seconds
        self._clock = clock
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        except OSError:  # the store itself will say what is wrong with the folder, if anything is
            self._file = -1

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for a turn; it ends with the block, and with the process."""
        if self._file < 0:
            yield
            return
        deadline = self._clock.now() + self._patience_seconds
        self._wait(_NEXT, deadline)
        self._wait(_WRITING, deadline)
        self._release(_NEXT)
        try:
            yield
        finally:
            self._release(_WRITING)

    def _wait(self, place: int, deadline: float) -> None:
        while self._file >= 0:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except OSError as error:
                if error.errno not in _TAKEN:
                    self.close()  # a file system without locks
                elif self._clock.now() >= deadline:
                    return
                else:
                    self._clock.sleep(_LOOK_SECONDS)
            else:
                return

    def _release(self, place: int) -> None:
        if self._file >= 0:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
