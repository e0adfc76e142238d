"""One training run: report its steps, and its power is tuned while it trains.

With several batch sizes to choose from, a run is one recurrence of a job: which batch size and
power limit to run is decided from how earlier ones went.

Fails open: without a GPU, without rights, without a server, with anything going wrong, the
training goes on as it would without us, and one line on stderr says what could not be done.
"""

from __future__ import annotations

import atexit
import logging
import operator
import os
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from joulery.clock import REAL_CLOCK
from joulery.power.closing import ClosedAtTheEnd
from joulery.training.goal import Goal
from joulery.training.guard import Guard
from joulery.training.power_part import PowerPart
from joulery.training.settings import MANY_EPOCHS, Recurring
from joulery.training.site import Site

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from joulery.clock import Clock
    from joulery.hardware.device import Device
    from joulery.objectives import Objective
    from joulery.power.result import TuningResult
    from joulery.power.tuner import Agreement
    from joulery.recurring.desk_values import Decision
    from joulery.training.recurrence import Recurrence
    from joulery.training.tuning import Wishes

T = TypeVar("T")

_log = logging.getLogger("joulery")

OBJECTIVE_VARIABLE = "JOULERY_OBJECTIVE"
OBSERVE_VARIABLE = "JOULERY_OBSERVE"
DEFAULT_OBJECTIVE = "cost:eta=0.5"
_MOST_TRAININGS = 5
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
        policy: That chooses; see ``joulery.recurring.registry.policy_names()``.
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
        self._objective = objective
        self._max_epochs = max_epochs
        self._site = Site(devices, group, clock)
        self._observe = observe
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
        self._has_target = target is not None
        self._guard = Guard(
            None if batch_sizes is None else wishes,
            default if batch_size is None else batch_size,
            usual,
        )
        self._power = PowerPart(name, self._site)
        self._begun = self._closed = False
        self._interrupted = False  # what the loop runs is over before its epoch is
        self._attempting = False
        self._probing = False
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
        self._power.resume()
        before = self.total_steps
        self._guard.call(lambda part: part.begin_training(_length(batches)))
        try:
            for batch in batches:
                yield batch
                self.step()
                if self._interrupted and not self._goes_on_after_probe():
                    break
        finally:  # also where the loop is left by `break`
            self._power.pause()  # what follows until the next loop is no training
            done = self.total_steps - before
            self._guard.call(lambda part: part.end_training(done))

    def epochs(self, max_epochs: int | None = None) -> Iterator[int]:
        """Epochs from 0, until the target is reached, they cost too much, or they are over.

        Closes the run after the last, except within :meth:`attempts`.

        Args:
            max_epochs: How many at most; what the run was made with unless given, or else as many
                as the target needs.
        """
        ended = False
        self._open()
        try:
            for epoch in range(self._most_epochs(max_epochs)):
                if not self._may_begin_epoch():
                    break
                self._guard.call(lambda part: part.begin_epoch())
                yield epoch
                self._guard.call(lambda part: part.end_epoch())
                if self._interrupted:
                    break
            ended = True
        finally:
            self._end_attempt(abandoned=not ended)
            if not self._attempting:
                self.close()

    def attempts(self) -> Iterator[int]:
        """Attempts from 0: mostly one; another after an early stop, or after seconds of probing.

        Build model, optimizer and loader anew in each, by ``batch_size``. The last is never
        stopped early.
        """
        self._attempting = self._probing = True
        try:
            for attempt in range(_MOST_ATTEMPTS):
                yield attempt
                part = self._guard.part
                if part is None or not self._guard.call(lambda part: part.again()):
                    break
                self._renew(part)
        finally:
            self._attempting = False
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
            self._guard.call(lambda part: part.mark())

    def close(self) -> None:
        """Give back what was found. May be called twice; the end of the process does it too."""
        if self._closed or os.getpid() != self._process:
            return  # a copy of the process does not speak for it
        self._closed = self._begun = True
        self._end_attempt(abandoned=True)
        self._power.close(self.total_steps)
        self._guard.call(lambda part: part.close())

    # What was decided and found.

    @property
    def batch_size(self) -> int | None:
        """Samples per step over all devices; what to run is asked for on first use."""
        self._opened()
        return self._guard.batch_size

    @property
    def batch_size_per_rank(self) -> int | None:
        """Samples per step of each process, where several train together."""
        size = self.batch_size
        return None if size is None else max(1, size // self._site.processes)

    @property
    def decision(self) -> Decision | None:
        """What was decided, and why; None where nothing was."""
        part = self._opened()
        return None if part is None else part.decision

    @property
    def reached(self) -> bool:
        """Whether the target was reached."""
        return self._goal.reached

    @property
    def stopped(self) -> str | None:
        """Why the run ended without its target, in words; None if it did not."""
        part = self._guard.part
        return None if part is None else part.stopped

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

        size, default = self.batch_size, self._guard.default
        if not size or not default:
            return base
        return scaled_learning_rate(base, size, default, rule)

    # The recurring part.

    def _opened(self) -> Recurrence | None:
        """The recurring part, with something decided; None for runs that do not recur."""
        if not self._closed:
            if self._guard.open(self._new_recurrence):
                atexit.register(_close_if_alive, weakref.ref(self))
            self._guard.call(self._ask)
        return self._guard.part

    def _new_recurrence(self, settings: Recurring) -> Recurrence:
        from joulery.training.recurrence import Recurrence

        return Recurrence(settings, self._site, self._wanted, self._goal, observe=self._observes)

    def _ask(self, part: Recurrence) -> None:
        last = not self._attempting or part.trainings >= _MOST_TRAININGS - 1
        part.ask(probing=self._probing, last=last and self._attempting)

    def _most_epochs(self, wanted: int | None) -> int:
        if wanted is not None:
            return wanted
        if self._max_epochs is not None:
            return self._max_epochs
        return MANY_EPOCHS if self._has_target else 1

    def _open(self) -> None:
        self._opened()
        self._guard.call(lambda part: part.begin())

    def _may_begin_epoch(self) -> bool:
        if self._guard.part is None:
            return not (self._goal.reached or self._goal.diverged)
        return bool(self._guard.call(lambda part: part.may_begin_epoch(), otherwise=True))

    def _interrupt(self) -> None:
        self._interrupted = True

    def _goes_on_after_probe(self) -> bool:
        """Whether the batch size that was probed is trained on; else another attempt follows."""
        self._power.renew(self.total_steps)
        if not self._guard.call(lambda part: part.go_on_after_probe(), otherwise=True):
            return False
        self._interrupted = False
        self._begun = False  # the next step begins tuning as the new decision wants it
        return True

    def _end_attempt(self, *, abandoned: bool) -> None:
        part = self._guard.part
        if part is None or part.attempt is None:
            return
        self._guard.call(lambda part: part.finish(abandoned=abandoned))
        if part.stopped is not None:
            _log.warning("joulery: %s: %s", self.name, part.stopped)

    def _renew(self, part: Recurrence) -> None:
        """Make ready for another attempt."""
        self._power.renew(self.total_steps)
        self._interrupted = self._begun = False
        self._goal = part.goal = self._goal.fresh()
        part.renew()

    # The power part.

    @property
    def _observes(self) -> bool:
        if self._observe is None:
            return bool(self._site.environ.get(OBSERVE_VARIABLE))
        return self._observe

    @property
    def _wanted(self) -> Objective | str:
        return self._objective or self._site.environ.get(OBJECTIVE_VARIABLE) or DEFAULT_OBJECTIVE

    def _begin(self) -> None:
        self._begun = True
        power = self._power.begin(self._tuning)
        part = self._guard.part
        if part is not None and part.attempt is not None and power is not None:
            part.attempt.power = power
        if self._power.tuner is not None:
            atexit.register(_close_if_alive, weakref.ref(self))
            self._power.tuner.step()
        self._power.tell(self.total_steps)

    def _tuning(self) -> Wishes:
        """How the power is to be tuned."""
        from joulery.training.tuning import Wishes

        part = self._guard.part
        running = None if part is None or part.attempt is None else part
        return Wishes(
            name=self.name,
            batch_size=self._guard.batch_size,
            objective=self._wanted,
            observe=self._observes,
            plan=None if running is None else running.limit_plan(),
            meter=None if running is None else running.meter,
            probe_done=self._interrupt,
        )


def _length(batches: Iterable[Any]) -> int | None:
    """How many batches there are, if they say so."""
    try:
        return operator.length_hint(batches, 0) or None
    except Exception:  # noqa: BLE001 - somebody else's code, asked for no more than a hint
        return None


def _close_if_alive(run: weakref.ref[Run]) -> None:
    alive = run()
    if alive is not None:
        alive.close()
