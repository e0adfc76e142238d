"""When an attempt has become too dear: between its epochs, and within one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from joulery.units import human

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.clock import Clock
    from joulery.training.attempt import Attempt

LOOK_SECONDS = 5.0  # between two looks, at least


def why_no_epoch(attempt: Attempt) -> str | None:
    """Why another epoch would be too dear, by what the last one cost; None if it would not."""
    if not attempt.epochs:
        return None
    cost, ceiling = attempt.cost() + attempt.last_epoch_cost(), attempt.decision.cost_ceiling_joules
    if not cost > ceiling:
        return None
    passed = f"another one would make {human(cost, 'J')} of at most {human(ceiling, 'J')}"
    return f"stopped at its cost ceiling after {attempt.epochs} epochs: {passed} {_what(attempt)}"


def _why_not_on(attempt: Attempt, cost: float) -> str:
    ceiling = attempt.decision.cost_ceiling_joules
    return (
        f"stopped at its cost ceiling within epoch {attempt.epochs + 1}, at {human(cost, 'J')} of "
        f"at most {human(ceiling, 'J')} {_what(attempt)}"
    )


def _what(attempt: Attempt) -> str:
    return f"(batch size {attempt.decision.batch_size}: {attempt.decision.reason})"


class CeilingWatch:
    """Looks now and then whether an attempt that trains has passed its ceiling.

    It looks from a thread of its own, so that steps take no longer; whether the loop is left is
    decided by the thread that trains.

    Args:
        attempt: To look at; of a process that trains alone.
        max_watts: The most that its cost can grow by in a second, in joules; 0 if that is unknown.
        clock: Real or virtual.
        interrupt: Called once it has passed, while it trains.
    """

    def __init__(
        self, attempt: Attempt, max_watts: float, clock: Clock, interrupt: Callable[[], None]
    ) -> None:
        self._attempt = attempt
        self._max_watts = max_watts
        self._clock = clock
        self._interrupt = interrupt
        self._lock = threading.Lock()
        self._training = False
        self._not_before = 0.0
        self._why: str | None = None

    @property
    def why(self) -> str | None:
        """Why the training is to be left, in words; None while it may go on."""
        return self._why

    def begin(self) -> None:
        """Steps of training follow, which can be left."""
        with self._lock:
            self._training = True

    def end(self) -> None:
        """They have ended: what follows is not interrupted, nor is a whole epoch cut after all."""
        with self._lock:
            self._training = False
            self._why = None

    def beat(self) -> None:
        """Look, unless it is too early for that."""
        now = self._clock.now()
        if now < self._not_before:
            return
        cost, ceiling = self._attempt.cost_here(), self._attempt.decision.cost_ceiling_joules
        if not cost > ceiling:
            # It cannot be there before this, so nobody needs to look.
            left = (ceiling - cost) / self._max_watts if self._max_watts > 0 else 0.0
            self._not_before = now + left if left > 0 else now
            return
        with self._lock:
            if self._training and self._why is None:
                self._why = _why_not_on(self._attempt, cost)
                self._interrupt()
