"""What runs beside an attempt: its signs of life, and a look at its ceiling now and then."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulery.training.ceiling import LOOK_SECONDS, CeilingWatch
from joulery.training.heartbeat import Heartbeat, beat_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.clock import Clock
    from joulery.jobs.job import Job
    from joulery.training.attempt import Attempt
    from joulery.training.heartbeat import Alive


class BackgroundTasks:
    """Starts what runs beside an attempt, and stops it.

    Args:
        clock: Real or virtual.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._hearts: list[Heartbeat] = []
        self._watch: CeilingWatch | None = None

    def tell(self, who: Alive, expires_wall_seconds: float) -> None:
        """Have signs of life given, so that a lease goes on."""
        self._start(who, beat_seconds(expires_wall_seconds - self._clock.wall()))

    def watch(self, attempt: Attempt, job: Job, interrupt: Callable[[], None]) -> None:
        """Have ``interrupt`` called if the attempt passes its ceiling while it trains."""
        if math.isfinite(attempt.decision.cost_ceiling_joules):
            self._watch = CeilingWatch(attempt, job.cost.max_watts, self._clock, interrupt)
            self._start(self._watch, LOOK_SECONDS)

    def begin_training(self) -> None:
        """Steps follow that can be left."""
        if self._watch is not None:
            self._watch.begin()

    def end_training(self) -> None:
        """They have ended."""
        if self._watch is not None:
            self._watch.end()

    @property
    def too_dear(self) -> str | None:
        """Why the training is to be left, in words; None while it may go on."""
        return None if self._watch is None else self._watch.why

    def stop(self) -> None:
        """Stop all of it; what is under way may still end."""
        self._watch = None
        while self._hearts:
            self._hearts.pop().stop()

    def _start(self, who: Alive, interval_seconds: float) -> None:
        heart = Heartbeat(who, interval_seconds, self._clock)
        self._hearts.append(heart)
        heart.start()
