"""One training run: report its steps, and its power is tuned while it trains.

With several batch sizes to choose from, a run is one recurrence of a job: which batch size and
power limit to run is decided from how earlier ones went.

Fails open: without a GPU, without rights, without a server, with anything going wrong, the
training goes on as it would without us, and one line on stderr says what could not be done.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from joulery.clock import REAL_CLOCK
from joulery.power.closing import ClosedAtTheEnd
from joulery.training.config import RunConfig
from joulery.training.environment import RunEnvironment
from joulery.training.goal import Goal
from joulery.training.guard import Guard
from joulery.training.job_settings import MANY_EPOCHS, Recurring
from joulery.training.power_part import PowerPart
from joulery.training.recurring_part import RecurringPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from joulery.clock import Clock
    from joulery.hardware.device import Device
    from joulery.jobs.models import Decision
    from joulery.objectives import Objective
    from joulery.power.result import TuningResult
    from joulery.power.tuner import Agreement
    from joulery.training.recurrence import Recurrence
    from joulery.training.tuning import Wishes

T = TypeVar("T")

_log = logging.getLogger("joulery")

_MOST_ATTEMPTS = 20


class Run(ClosedAtTheEnd):
    """A training run whose power is tuned as it goes, and whose batch size is chosen if it may be.

    Args:
        name: What recurs: runs of one name share what was learned.
        objective: What to minimise, as an objective or in words (``least-energy:slowdown=5%``);
            what ``joulery run`` was told unless given, or else ``cost:eta=0.5``.
        batch_size: Samples per step over all devices, where there is nothing to choose. Beside
            ``batch_sizes`` and ``default`` it is what this run runs, whatever would be chosen.
        batch_sizes: Samples per step over all devices to choose from; makes the run recurring.
        default: The one of them that you would run.
        target: Validation metric that ends the run.
        higher_is_better: Whether larger metrics are better.
        max_epochs: After which a run gives up.
        policy: That chooses; see ``joulery.jobs.policies.registry.policy_names()``.
        store: Where decisions come from: a path, ``postgresql://…`` or ``http(s)://…``;
            ``$JOULERY_STORE`` unless given, or else a file in the user's data folder.
        team: Whose job it is; ``$JOULERY_TEAM`` unless given, or else ``default``.
        token: For a server; ``$JOULERY_TOKEN`` unless given.
        early_stop: Whether the run may be stopped when it has become too dear.
        devices: The boards of this job; found unless given.
        observe: Only find out what could be saved, and leave batch size and limit alone.
        group: The other processes of a data-parallel job, which decide together.
        clock: Real or virtual.

    Attributes:
        name: As given.
        total_steps: Steps that were reported.

    Example:
        >>> run = joulery.Run("resnet", batch_sizes=[64, 128, 256], default=128,  # doctest: +SKIP
        ...                   target=0.76)
        >>> loader = DataLoader(train_set, batch_size=run.batch_size)              # doctest: +SKIP
        >>> for epoch in run.epochs(90):                                           # doctest: +SKIP
        ...     for batch in run.steps(loader):
        ...         train(batch)
        ...     run.report(evaluate())
    """

    def __init__(  # noqa: PLR0913 - all but the name by keyword, all with a default
        self,
        name: str = "",
        *,
        objective: Objective | str | None = None,
        batch_size: int | None = None,
        batch_sizes: Sequence[int] | None = None,
        default: int | None = None,
        target: float | None = None,
        higher_is_better: bool = True,
        max_epochs: int | None = None,
        policy: str = "joulery",
        store: str | Path | None = None,
        team: str | None = None,
        token: str | None = None,
        early_stop: bool = True,
        devices: Sequence[Device] | None = None,
        observe: bool | None = None,
        group: Agreement | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.name = name
        self.total_steps = 0
        self._max_epochs = max_epochs
        self._site = RunEnvironment(devices, group, clock)
        self._wanted = RunConfig(objective, observe, self._site.environ)
        self._goal = Goal(target, higher_is_better=higher_is_better)
        usual = batch_size if default is None else default
        wishes = Recurring(
            name,
            () if batch_sizes is None else batch_sizes,
            usual,
            target,
            max_epochs,
            policy,
            store,
            team,
            token,
            early_stop,
            None if default is None else batch_size,
        )
        guard = Guard(
            None if batch_sizes is None else wishes,
            default if batch_size is None else batch_size,
            usual,
        )
        self._recurring = RecurringPart(name, guard)
        self._power = PowerPart(name, self._site)
        self._begun = self._closed = False
        self._interrupted = False  # what the loop runs is over before its epoch is
        self._process = os.getpid()

    # The loop.

    def step(self) -> None:
        """Say that a training step has ended."""
        self.total_steps += 1
        tuner = self._power.tuner
        if tuner is not None:
            tuner.step()
        elif not self._begun:
            self._begin()

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """``batches``, with a step reported after each."""
        # None where what this epoch was for is over.
        return iter(()) if self._interrupted else self._steps(batches)

    def _steps(self, batches: Iterable[T]) -> Iterator[T]:
        self._power.resume()
        before, left = self.total_steps, False
        self._recurring.begin_training(batches)
        try:
            for batch in batches:
                yield batch
                self.step()
                if self._interrupted and not self._goes_on():
                    left = True
                    break
        finally:  # also where the loop is left by `break`
            self._power.pause()  # what follows until the next loop is no training
            self._recurring.end_training(self.total_steps - before)
            self._interrupted = left  # who called after the last step was too late

    def epochs(self, max_epochs: int | None = None) -> Iterator[int]:
        """Epochs from 0, until the target is reached, they cost too much, or they are over.

        Closes the run after the last, except within :meth:`attempts`.

        Args:
            max_epochs: How many at most; what the run was made with unless given, or else as many
                as the target needs.
        """
        ended = False
        self._opened()
        self._recurring.begin()
        try:
            for epoch in range(self._most_epochs(max_epochs)):
                if not self._recurring.may_begin_epoch(self._goal):
                    break
                self._recurring.begin_epoch()
                yield epoch
                self._recurring.end_epoch()
                if self._interrupted:
                    break
            ended = True
        finally:
            self._recurring.finish(abandoned=not ended)
            if not self._recurring.attempting:
                self.close()

    def attempts(self) -> Iterator[int]:
        """Attempts from 0: mostly one; another after an early stop, or after seconds of probing.

        Build model, optimizer and loader anew in each, by ``batch_size``. The last is never
        stopped early.
        """
        self._recurring.attempt()
        try:
            for attempt in range(_MOST_ATTEMPTS):
                yield attempt
                if not self._recurring.again():
                    break
                self._power.renew(self.total_steps)
                self._interrupted = self._begun = False
                self._goal = self._goal.fresh()
                self._recurring.renew(self._goal)
        finally:
            self._recurring.attempting = False
            self.close()

    def report(self, metric: Any, *, higher_is_better: bool | None = None) -> None:
        """Tell the validation metric of this epoch; the run ends once the target is reached.

        Never raises.

        Args:
            metric: Anything that turns into a number; one that is not finite means that training
                has diverged.
            higher_is_better: From now on; as the run was made unless given.
        """
        if self._interrupted or self._goal.reached:
            return
        try:
            reached = self._goal.tell(metric, higher_is_better=higher_is_better)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            _log.warning("joulery: %r is no metric: %s", type(metric).__name__, error)
            return
        if reached:
            self._recurring.mark()

    def close(self) -> None:
        """Give back what was found. May be called twice; the end of the process does it too."""
        if self._closed or os.getpid() != self._process:
            return  # a copy of the process does not speak for it
        self._closed = self._begun = True
        self._recurring.finish(abandoned=True)
        self._power.close(self.total_steps)
        self._recurring.close()

    # What was decided and found.

    @property
    def batch_size(self) -> int | None:
        """Samples per step over all devices; what to run is asked for on first use."""
        self._opened()
        return self._recurring.batch_size

    @property
    def batch_size_per_rank(self) -> int | None:
        """Samples per step of each process, where several train together."""
        size = self.batch_size
        return None if size is None else max(1, size // self._site.processes)

    @property
    def decision(self) -> Decision | None:
        """What was decided, and why; None where nothing was."""
        self._opened()
        return self._recurring.decision

    @property
    def reached(self) -> bool:
        """Whether the target was reached."""
        return self._goal.reached

    @property
    def stopped(self) -> str | None:
        """Why the run ended without its target, in words; None if it did not."""
        return self._recurring.stopped

    @property
    def result(self) -> TuningResult | None:
        """What was found out about power; None before the choice is made, or without tuning."""
        return self._power.result

    @property
    def why_not(self) -> str | None:
        """Why the power is not tuned; None while it is."""
        return self._power.why_not

    def scaled_learning_rate(self, base: float, rule: Any = "sqrt") -> float:
        """The learning rate for the batch size of this run, given the one for the default.

        Args:
            base: Learning rate that fits the default batch size.
            rule: ``"sqrt"`` for adaptive optimizers, ``"linear"`` for plain gradient descent, or an
                optimizer: its class, its name, or the object.
        """
        from joulery.training.learning_rate import scaled_learning_rate

        size, default = self.batch_size, self._recurring.default
        if not size or not default:
            return base
        return scaled_learning_rate(base, size, default, rule)

    # The recurring part.

    def _opened(self) -> None:
        """Have something decided, unless it was, or the run does not recur."""
        if not self._closed and self._recurring.open(self._new_recurrence):
            atexit.register(_close_if_alive, weakref.ref(self))

    def _new_recurrence(self, settings: Recurring) -> Recurrence:
        from joulery.training.recurrence import Recurrence

        return Recurrence(
            settings,
            self._site,
            self._wanted.objective,
            self._goal,
            interrupt=partial(_interrupt_if_alive, weakref.ref(self)),
            observe=self._wanted.observe,
        )

    def _most_epochs(self, wanted: int | None) -> int:
        if wanted is not None:
            return wanted
        if self._max_epochs is not None:
            return self._max_epochs
        return MANY_EPOCHS if self._goal.has_target else 1

    def _interrupt(self) -> None:
        self._interrupted = True

    def _goes_on(self) -> bool:
        """Whether the epoch goes on; else it has become too dear, or was a probe that is done."""
        if self._recurring.cut():
            return False
        if self._recurring.probing:
            self._power.renew(self.total_steps)
            if not self._recurring.goes_on_after_probe():
                return False
            self._begun = False  # the next step begins tuning as the new decision wants it
        self._interrupted = False
        return True

    # The power part.

    def _begin(self) -> None:
        self._begun = True
        self._recurring.tuned(self._power.begin(self._tuning))
        if self._power.tuner is not None:
            atexit.register(_close_if_alive, weakref.ref(self))
            self._power.tuner.step()
        self._power.tell(self.total_steps)

    def _tuning(self) -> Wishes:
        """How the power is to be tuned."""
        from joulery.training.tuning import Wishes

        running = self._recurring.running
        return Wishes(
            name=self.name,
            batch_size=self._recurring.batch_size,
            objective=self._wanted.objective,
            observe=self._wanted.observe,
            plan=None if running is None else running.limit_plan(),
            meter=None if running is None else running.meter,
            probe_done=self._interrupt,
        )


def _interrupt_if_alive(run: weakref.ref[Run]) -> None:
    alive = run()
    if alive is not None:
        alive._interrupt()  # noqa: SLF001 - same module


def _close_if_alive(run: weakref.ref[Run]) -> None:
    alive = run()
    if alive is not None:
        alive.close()
