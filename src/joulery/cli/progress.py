"""Say on stderr how far long work has come, without littering logs."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK

if TYPE_CHECKING:
    from joulery.clock import Clock

_SILENT_SECONDS = 2.0  # by hand
_GROWTH = 2.0  # by hand: each wait is twice as long as the one before


class Progress:
    """A line that overwrites itself on a terminal, and comes ever more rarely anywhere else.

    There, the same line comes once.

    Nothing is said in the first two seconds of work that is over by then.
    """

    def __init__(self, clock: Clock = REAL_CLOCK, *, silent_seconds: float = 0.0) -> None:
        self._clock = clock
        self._started = clock.now()
        self._next = max(silent_seconds, 0.0 if sys.stderr.isatty() else _SILENT_SECONDS)
        self._width = 0
        self._logged = ""

    def show(self, text: str) -> None:
        """Replace the line by ``text``, or print it when it is time for another."""
        elapsed = self._clock.now() - self._started
        if elapsed < self._next:
            return
        if sys.stderr.isatty():
            # A line that wraps could not be overwritten.
            text = text[: max(1, shutil.get_terminal_size().columns - 1)]
            sys.stderr.write("\r" + text.ljust(self._width))
            self._width = len(text)
        elif text != self._logged:
            sys.stderr.write(text + "\n")
            self._logged = text
            self._next = _GROWTH * elapsed
        sys.stderr.flush()

    def done(self) -> None:
        """Clear the line."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0
