"""The recurring part of a run as its loop sees it: attempts, epochs, what is decided and told.

Fails open: whatever goes wrong in here, the training goes on with the batch size that it has.
"""

from __future__ import annotations

import logging
import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from joulery.jobs.models import Decision
    from joulery.training.attempt import AttemptPower
    from joulery.training.goal import Goal
    from joulery.training.guard import Guard
    from joulery.training.job_settings import Recurring
    from joulery.training.recurrence import Recurrence

_log = logging.getLogger("joulery")

_MOST_TRAININGS = 5


class RecurringPart:
    """Asks and tells for a run, if it recurs.

    Args:
        name: Of the run.
        guard: Holds what may go wrong.

    Attributes:
        attempting: Whether the loop can be begun afresh, so that others may be tried after a stop.
    """

    def __init__(self, name: str, guard: Guard) -> None:
        self.attempting = False
        self._probing = False
        self._name = name
        self._guard = guard

    def attempt(self) -> None:
        """The loop can be begun afresh: probes can be made from now on."""
        self.attempting = self._probing = True

    def open(self, make: Callable[[Recurring], Recurrence]) -> bool:
        """Have something decided, unless it was; whether that is the first time."""
        opened = self._guard.open(make)
        self._guard.call(self._ask)
        return opened

    def _ask(self, part: Recurrence) -> None:
        last = self.attempting and part.trainings >= _MOST_TRAININGS - 1
        part.ask(probing=self._probing, last=last)

    # What was decided.

    @property
    def batch_size(self) -> int | None:
        """Samples per step over all devices, as far as they are known."""
        return self._guard.batch_size

    @property
    def default(self) -> int | None:
        """Batch size that the learning rate was chosen for."""
        return self._guard.default

    @property
    def decision(self) -> Decision | None:
        """What was decided; None where nothing was."""
        part = self._guard.part
        return None if part is None else part.decision

    @property
    def stopped(self) -> str | None:
        """Why the last attempt ended before its target, in words; None if it did not."""
        part = self._guard.part
        return None if part is None else part.stopped

    @property
    def running(self) -> Recurrence | None:
        """The recurrence, while an attempt of it is being run."""
        part = self._guard.part
        return None if part is None or part.attempt is None else part

    # The loop.

    def begin(self) -> None:
        """Begin to run what was decided."""
        self._guard.call(lambda part: part.begin())

    def may_begin_epoch(self, goal: Goal) -> bool:
        """Whether another epoch is to be trained."""
        if self._guard.part is None:
            return not goal.over
        return bool(self._guard.call(lambda part: part.may_begin_epoch(), otherwise=True))

    def begin_epoch(self) -> None:
        """An epoch begins."""
        self._guard.call(lambda part: part.begin_epoch())

    def end_epoch(self) -> None:
        """An epoch has ended."""
        self._guard.call(lambda part: part.end_epoch())

    def begin_training(self, batches: Iterable[Any]) -> None:
        """Steps of training follow."""
        self._guard.call(lambda part: part.begin_training(_length(batches)))

    def end_training(self, steps: int) -> None:
        """They have ended; how many there were."""
        self._guard.call(lambda part: part.end_training(steps))

    def tuned(self, power: AttemptPower | None) -> None:
        """What tunes the power of the attempt from now on."""
        part = self.running
        if part is not None and part.attempt is not None and power is not None:
            part.attempt.power = power

    def mark(self) -> None:
        """The target is reached: what comes after does not count."""
        self._guard.call(lambda part: part.mark())

    # The end of an attempt.

    def cut(self) -> bool:
        """Whether the epoch is to be left, since it has become too dear; it is over then."""
        return bool(self._guard.call(lambda part: part.cut(), otherwise=False))

    @property
    def probing(self) -> bool:
        """Whether what runs is but a probe, as far as it is known."""
        return bool(self._guard.call(lambda part: part.probing, otherwise=True))

    def goes_on_after_probe(self) -> bool:
        """Whether the batch size that was probed is trained on; else another attempt follows."""
        return bool(self._guard.call(lambda part: part.go_on_after_probe(), otherwise=True))

    def finish(self, *, abandoned: bool) -> None:
        """Tell how the attempt ended, if there is one."""
        part = self.running
        if part is None:
            return
        self._guard.call(lambda part: part.finish(abandoned=abandoned))
        if part.stopped is not None:
            _log.warning("joulery: %s: %s", self._name, part.stopped)

    def again(self) -> bool:
        """Whether another attempt should be made."""
        return bool(self._guard.call(lambda part: part.again(), otherwise=False))

    def renew(self, goal: Goal) -> None:
        """Make ready for another attempt."""
        part = self._guard.part
        if part is not None:
            part.goal = goal
            part.renew()

    def close(self) -> None:
        """Let go of everything."""
        self._guard.call(lambda part: part.close())


def _length(batches: Iterable[Any]) -> int | None:
    """How many batches there are, if they say so."""
    try:
        return operator.length_hint(batches, 0) or None
    except Exception:  # noqa: BLE001 - somebody else's code, asked for no more than a hint
        return None
