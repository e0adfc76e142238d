"""One deadline over all that a call does: no part of it may take longer than what is left."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from joulery.clock import REAL_CLOCK
from joulery.errors import StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Deadline:
    """A moment on the machine's own monotonic clock.

    Sockets and threads wait in real time, whatever clock the training runs on.

    Args:
        seconds: From now.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = REAL_CLOCK.now() + seconds

    @property
    def left(self) -> float:
        """Seconds until then; 0 once it has passed."""
        return max(0.0, self._end - REAL_CLOCK.now())

    def check(self, what: str) -> float:
        """The seconds left.

        Raises:
            StoreBusyError: There are none.
        """
        left = self.left
        if not left:
            raise StoreBusyError(
                f"{what} did not answer within {self._seconds:g} s",
                remedy="make the same request again",
            )
        return left


def within(seconds: float, what: str, function: Callable[[], T]) -> T:
    """``function()``, given up after ``seconds``, whatever it is waiting for.

    Args:
        seconds: To wait.
        what: Is being waited for.
        function: Goes on in the background where it is given up.

    Raises:
        StoreBusyError: It took longer.
    """
    answers: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again by the one who waits
            errors.append(error)

    thread = threading.Thread(target=work, name="joulery-client", daemon=True)
    deadline = Deadline(seconds)
    try:
        thread.start()
    except RuntimeError:  # no more threads, as at the end of the interpreter
        return function()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        deadline.check(what)
        raise StoreBusyError(f"{what} did not answer", remedy="make the same request again")
    return answers[0]
