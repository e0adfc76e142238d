"""One training run: report its steps, and its power is tuned while it trains.

With several batch sizes to choose from, a run is one recurrence of a job: the batch size and the
power limit are decided from how earlier recurrences went.

A run fails open. Wrong arguments are refused when it is made. After that, without a GPU, without
rights, without a server, with anything going wrong, the training goes on as it would without us,
and one line on stderr says what could not be done.
"""

from __future__ import annotations

import atexit
import logging
import operator
import os
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from joulery.errors import JouleryError
from joulery.fail_open import fail_open
from joulery.training._config import RunConfig, RunEnvironment
from joulery.training._early_stopping import TargetTracker
from joulery.training._tuning import RunPower

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from joulery.hardware import Device
    from joulery.jobs import Decision
    from joulery.objectives import Objective
    from joulery.power import ProcessGroup, TuningResult
    from joulery.training._config import DecisionService
    from joulery.training._energy import EnergyAccount
    from joulery.training._session import DecisionSession

T = TypeVar("T")

_log = logging.getLogger("joulery")

_MOST_ATTEMPTS = 20
_MOST_TRAININGS = 5


class Run:
    """A training run whose power is tuned, and whose batch size is chosen if there is a choice.

    Args:
        name: Name of the job: runs of one name share what was learned.
        batch_sizes: Batch sizes to choose from, in samples per step over all devices; they make the
            run recurring.
        default_batch_size: Batch size that you would run; the middle one of ``batch_sizes`` unless
            given.
        target: Validation metric that ends the run.
        higher_is_better: Whether larger metrics are better.
        objective: Objective, or its text (``least-energy:slowdown=5%``); that of ``joulery run``
            unless given, or else ``cost:eta=0.5``.
        max_epochs: Number of epochs after which the run gives up.
        early_stop: Whether the run may be stopped at the cost limit of its decision.
        dry_run: Whether to find out what could be saved and to change neither batch size nor limit;
            as ``joulery run`` says unless given.
        store: Store or server that decides: a path, ``postgresql://…``, ``http(s)://…`` or a
            :class:`DecisionService`; ``$JOULERY_STORE`` unless given, or else a file of the user.
        devices: Boards of this job; found unless given.
        process_group: Processes of a data-parallel job, which decide together.

    Attributes:
        name: Name of the job.
        total_steps: Number of steps reported.

    Raises:
        InvalidValueError: An argument is invalid.

    Examples:
        >>> run = joulery.Run("resnet", batch_sizes=[64, 128, 256], target=0.76)   # doctest: +SKIP
        >>> loader = DataLoader(train_set, batch_size=run.batch_size)              # doctest: +SKIP
        >>> for epoch in run.epochs():                                             # doctest: +SKIP
        ...     for batch in run.steps(loader):
        ...         train(batch)
        ...     run.report(evaluate())
    """

    def __init__(  # noqa: PLR0913 - all but the name by keyword, all with a default
        self,
        name: str = "",
        *,
        batch_sizes: Sequence[int] | None = None,
        default_batch_size: int | None = None,
        target: float | None = None,
        higher_is_better: bool = True,
        objective: Objective | str | None = None,
        max_epochs: int | None = None,
        early_stop: bool = True,
        dry_run: bool | None = None,
        store: DecisionService | str | Path | None = None,
        devices: Sequence[Device] | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        self.name = name
        self.total_steps = 0
        self._config = RunConfig(
            name=name,
            batch_sizes=batch_sizes,
            default_batch_size=default_batch_size,
            target=target,
            higher_is_better=higher_is_better,
            objective=objective,
            max_epochs=max_epochs,
            early_stop=early_stop,
            dry_run=dry_run,
            store=store,
        )
        self._environment = RunEnvironment(devices, process_group)
        self._target = TargetTracker(self._config.target, higher_is_better=higher_is_better)
        self._power = RunPower(self._config, self._environment)
        self._session: DecisionSession | None = None
        self._recurs = batch_sizes is not None
        self._batch_size = self._config.default_batch_size  # without a session
        self._attempting = False  # whether the loop can be begun again
        self._probed = False  # a probe has measured all that it should
        self._left_epoch = False
        self._epoch, self._in_epoch, self._in_steps = 0, False, False
        self._closed = False
        self._process = os.getpid()

    # The loop.

    def step(self) -> None:
        """Report the end of a training step."""
        self.total_steps += 1
        tuner = self._power.tuner
        if tuner is not None:
            tuner.step()
        elif self._power.is_wanted and not self._closed:
            self._begin_tuning()

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """``batches``, with a step reported after each; none where the epoch was left."""
        return iter(()) if self._left_epoch else self._steps(batches)

    def _steps(self, batches: Iterable[T]) -> Iterator[T]:
        before = self.total_steps
        self._in_steps = True
        self._begin_training(batches)
        try:
            for batch in batches:
                yield batch
                self.step()
                limit = None if self._session is None else self._session.cost_limit
                due = self._probed or (limit is not None and limit.is_due())
                if due and not self._goes_on():
                    self._left_epoch = True
                    break
        finally:  # also where the loop is left by `break`
            self._in_steps = False
            self._end_training(self.total_steps - before)

    def epochs(self) -> Iterator[int]:
        """Epochs from 0, until the target is reached, the cost limit is, or they are over.

        After :meth:`load_state_dict`, those that are left. Closes the run after the last, except
        within :meth:`attempts`.
        """
        ended = False
        self._decide()
        self._begin_attempt()
        try:
            for epoch in range(self._epoch, self._config.most_epochs):
                if not self._begin_epoch():
                    break
                self._epoch, self._in_epoch = epoch, True
                yield epoch
                self._epoch, self._in_epoch = epoch + 1, False
                self._end_epoch()
                if self._left_epoch:
                    break
            ended = True
        finally:
            self._finish(abandoned=not ended)
            if not self._attempting:
                self.close()

    def attempts(self) -> Iterator[int]:
        """Attempts from 0: mostly one; another after an early stop, or after seconds of probing.

        Build model, optimizer and loader anew in each, by ``batch_size``. The last is never
        stopped early.
        """
        self._attempting = True
        try:
            for attempt in range(_MOST_ATTEMPTS):
                yield attempt
                if not self._begin_another():
                    break
        finally:
            self._attempting = False
            self.close()

    def report(self, metric: Any, *, higher_is_better: bool | None = None) -> None:
        """Report the validation metric of this epoch; the run ends once the target is reached.

        Never raises.

        Args:
            metric: Metric, as anything that converts to a number; one that is not finite means that
                training has diverged.
            higher_is_better: Whether larger metrics are better, from now on; as the run was made
                unless given.
        """
        if self._left_epoch or self._target.reached:
            return
        try:
            reached = self._target.report(metric, higher_is_better=higher_is_better)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            _log.warning("joulery: %r is no metric: %s", type(metric).__name__, error)
            return
        if reached:
            self._mark_target()

    def state_dict(self) -> dict[str, Any]:
        """State to keep in a checkpoint, of plain JSON values.

        It has the steps and epochs trained, the profile of power limits once one is chosen, and of
        a recurring run the decision with its seconds and joules so far. An epoch counts once its
        :meth:`steps` are over; within them, the epoch under way will begin again.
        """
        epochs = self._epoch + (self._in_epoch and not self._in_steps)
        profile = self._power.profile
        return {
            "steps": self.total_steps,
            "epochs": epochs,
            "profile": None if profile is None else profile.to_document(),
            "decision": None if self._session is None else self._session.state(epochs),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint: call this before ``batch_size``, ``epochs`` or the first step.

        Never raises; from an invalid state the run begins anew.
        """
        if self._session is not None or self.total_steps:
            _log.warning("joulery: a checkpoint is loaded before training, not within it")
            return
        try:
            self._load(state)
        except (KeyError, TypeError, ValueError, AttributeError, JouleryError) as error:
            _log.warning("joulery: the run begins anew, not from its checkpoint: %s", error)
            self._session = None

    def _load(self, state: Mapping[str, Any]) -> None:
        from joulery.power import PowerProfile

        steps, epochs = int(state["steps"]), int(state["epochs"])
        profile, decision = state["profile"], state["decision"]
        known = None if profile is None else PowerProfile.from_document(profile)
        if decision is not None and self._recurs:
            self._new_session().resume(decision)
        self.total_steps, self._epoch, self._power.known = steps, epochs, known

    def _new_session(self) -> DecisionSession:
        from joulery.training._session import DecisionSession

        steps = partial(_steps_of, weakref.ref(self))
        self._session = DecisionSession(self._config, self._environment, self._power, steps)
        atexit.register(_close_if_alive, weakref.ref(self))
        return self._session

    def close(self) -> None:
        """Restore what was found. May be called twice; the end of the process does it too."""
        if self._closed or os.getpid() != self._process:
            return  # a copy of the process does not speak for it
        self._closed = True
        self._finish(abandoned=True)
        self._power.close(self.total_steps)
        self._close_session()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What was decided and found.

    @property
    def batch_size(self) -> int | None:
        """Samples per step over all devices; what to run is asked for on first use."""
        self._decide()
        return self._batch_size if self._session is None else self._session.batch_size

    @property
    def batch_size_per_rank(self) -> int | None:
        """Samples per step of each process, where several train together."""
        size = self.batch_size
        return None if size is None else max(1, size // self._environment.processes)

    @property
    def decision(self) -> Decision | None:
        """The decision, with its reason; None where nothing was decided."""
        self._decide()
        return None if self._session is None else self._session.decision

    @property
    def limits_epochs(self) -> bool:
        """Whether the run says when training ends: at a target, or after its number of epochs."""
        return self._config.target is not None or self._config.max_epochs is not None

    @property
    def target_reached(self) -> bool:
        """Whether the target was reached."""
        return self._target.reached

    @property
    def stop_reason(self) -> str | None:
        """Reason why the run ended without its target; None if it did not."""
        return None if self._session is None else self._session.stop_reason

    @property
    def result(self) -> TuningResult | None:
        """Result of power tuning; None before the choice is made, or without tuning."""
        return self._power.result

    @property
    def tuning_skipped(self) -> str | None:
        """Reason why the power is not tuned; None while it is."""
        return self._power.skipped

    def scaled_learning_rate(self, base: float, rule: Any = "sqrt") -> float:
        """The learning rate for the batch size of this run, given the one for the default.

        Args:
            base: Learning rate that fits the default batch size.
            rule: ``"sqrt"`` for adaptive optimizers, ``"linear"`` for plain gradient descent, or an
                optimizer: its class, its name, or the object.

        Raises:
            InvalidValueError: The rule is unknown, or the learning rate is not a positive number.
        """
        from joulery.training._learning_rate import scaled_learning_rate

        default = self._config.default_batch_size or 1
        return scaled_learning_rate(base, self.batch_size or default, default, rule)

    # What may go wrong, and must not be noticed by the training.

    def fail(self, error: Exception) -> None:
        """Do without decisions because of an error; see :mod:`joulery.fail_open`."""
        _log.warning("joulery: nothing is decided any more, training goes on: %s", error)
        if self._session is not None:
            self._batch_size = self._session.batch_size
        self._session, self._recurs = None, False

    @property
    def _account(self) -> EnergyAccount | None:
        """The energy account of the attempt under way."""
        return None if self._session is None else self._session.account

    @fail_open(None)
    def _decide(self) -> None:
        """Have something decided, unless it was, or the run does not recur."""
        if self._closed or not self._recurs:
            return
        session = self._session or self._new_session()
        last = self._attempting and session.trainings >= _MOST_TRAININGS - 1
        session.decide(can_probe=self._attempting, last=last)

    @fail_open(None)
    def _begin_attempt(self) -> None:
        if self._session is not None:
            self._session.begin()

    @fail_open(True)  # noqa: FBT003 - the result
    def _begin_epoch(self) -> bool:
        """Begin an epoch, if another one is to be trained."""
        session = self._session
        if session is None:
            return not self._target.is_over
        if not session.may_begin_epoch(self._target):
            return False
        if self._account is not None:
            self._account.begin_epoch()
        return True

    @fail_open(None)
    def _end_epoch(self) -> None:
        if self._account is not None:
            self._account.end_epoch()

    @fail_open(None)
    def _begin_training(self, batches: Iterable[Any]) -> None:
        if self._power.tuner is not None:
            self._power.tuner.resume()
        self._begin_attempt()
        if self._account is not None:
            self._account.begin_training(_length(batches))

    @fail_open(None)
    def _end_training(self, steps: int) -> None:
        if self._power.tuner is not None:
            self._power.tuner.pause()  # validation follows, which is no training
        if self._account is not None:
            self._account.end_training(steps)

    @fail_open(None)
    def _begin_tuning(self) -> None:
        """Have the tuner made at the first step; take it at the step by which it is."""
        session, power = self._session, self._power
        if not power.begun:
            plan = None if session is None else session.limit_plan(self._probe_done)
            meter = None if session is None or self._account is None else session.meter
            size = self._batch_size if session is None else session.batch_size
            from joulery.governor import lease  # noqa: F401 - ends its watchdog after we closed

            atexit.register(_close_if_alive, weakref.ref(self))
            power.begin(size, plan, meter)
            power.write_report(self.total_steps)  # the process may be killed before there is more
        power.take_tuner()
        if not power.is_wanted:
            if power.tuner is not None:
                power.tuner.step()
            power.write_report(self.total_steps)

    def _probe_done(self) -> None:
        self._probed = True

    @fail_open(True)  # noqa: FBT003 - the result
    def _goes_on(self) -> bool:
        """Whether the epoch goes on: within the cost limit, or after a probe that goes on."""
        session = self._session
        if session is not None and session.stop_within_epoch():
            return False
        if not self._probed:
            return True
        self._probed = False
        self._power.close(self.total_steps)
        try:
            return session is None or session.continue_after_probe(self._target)
        finally:
            self._power.renew()  # the next step begins tuning as the new decision wants it

    @fail_open(None)
    def _mark_target(self) -> None:
        if self._account is not None:
            self._account.mark_target()

    @fail_open(None)
    def _finish(self, *, abandoned: bool) -> None:
        """Report how the attempt ended, if there is one."""
        session = self._session
        if session is None or session.account is None:
            return
        session.finish(self._target, abandoned=abandoned)
        if session.stop_reason is not None:
            _log.warning("joulery: %s: %s%s", self.name, session.stop_reason, self._advice())

    def _advice(self) -> str:
        """Words for a loop that ends without a model though another attempt could make one."""
        session = self._session
        if self._attempting or session is None or not session.needs_another_attempt(self._target):
            return ""
        return (
            ". This run ends without a model; the next one will not be stopped. To go on with "
            "another batch size, put the loop into `for attempt in run.attempts()`"
        )

    @fail_open(False)  # noqa: FBT003 - the result
    def _begin_another(self) -> bool:
        """Make ready for another attempt, if there should be one."""
        session = self._session
        if session is None or not session.needs_another_attempt(self._target):
            return False
        self._power.close(self.total_steps)
        self._power.renew()
        self._left_epoch = self._probed = False
        self._target = self._target.renewed()
        self._epoch = 0
        session.renew()
        return True

    @fail_open(None)
    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close(self._target)


def _length(batches: Iterable[Any]) -> int | None:
    """The number of batches, if they say so."""
    try:
        return operator.length_hint(batches, 0) or None
    except Exception:  # noqa: BLE001 - the caller's code, asked for no more than a hint
        return None


def _steps_of(run: weakref.ref[Run]) -> int:
    alive = run()
    return 0 if alive is None else alive.total_steps


def _close_if_alive(run: weakref.ref[Run]) -> None:
    alive = run()
    if alive is not None:
        alive.close()
