"""One training run: report its steps, and its power is tuned while it trains.

With several batch sizes to choose from, a run is one recurrence of a job: the batch size and the
power limit are decided from how earlier recurrences went.

A run fails open. Wrong arguments are refused when it is made. After that, without a GPU, without
rights, without a server, with anything going wrong, the training continues as it would without us,
and one line on stderr says what could not be done.
"""

from __future__ import annotations

import atexit
import logging
import math
import operator
import os
import sys
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from joulery.documents import check_name
from joulery.errors import InvalidValueError, JouleryError
from joulery.fail_open import fail_open
from joulery.tables import Tabular
from joulery.training._config import DecisionService, RunConfig, RunEnvironment
from joulery.training._early_stopping import TargetTracker
from joulery.training._job_energy import (
    JobEnergy,
    Sums,
    checked_sinks,
    close_sinks,
    energy_saving,
    known_slowdown,
    predicted_saving,
    write_figures,
)
from joulery.training._run_log import RunLog, RunState, logs_runs
from joulery.training._tuning import RunPower
from joulery.units import human

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import Self

    from joulery.hardware import Device
    from joulery.jobs import Decision
    from joulery.objectives import Objective
    from joulery.power import PhaseUse, ProcessGroup, TuningResult
    from joulery.training._attempt import Attempt, Recurrence
    from joulery.training._callbacks import Sink
    from joulery.training._energy import EnergyAccount
    from joulery.training._job_energy import JobMeasurement

T = TypeVar("T")

_log = logging.getLogger("joulery")
_runs: weakref.WeakSet[Run] = weakref.WeakSet()

_STATE_KEYS = {"steps", "epochs", "profile", "decision"}
_MOST_ATTEMPTS = 20  # by hand: 12 probes and some early stops
_BEGIN_SECONDS = 2.0  # longest wait for the meter before training; by hand: a slow driver's survey
_MOST_TRAININGS = 5  # by hand: the last of them is never stopped early


class Run(Tabular):
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
            or ``cost:eta=0.5`` unless given.
        max_epochs: Number of epochs after which the run gives up.
        max_steps: Number of steps that the run will take, which a deadline or a budget of joules
            needs; ``max_epochs`` times the length of the loader unless given.
        knob: Knob to tune: "limit", "clock", or "auto" for limits, and clocks where limits cannot
            save more; $JOULERY_KNOB, or auto unless given.
        early_stop: Whether the run may be stopped at the cost limit of its decision.
        dry_run: Whether to find out what could be saved and to change neither batch size nor limit;
            as ``joulery run`` says unless given.
        store: Store or server that decides: a path, ``postgresql://…``, ``http(s)://…`` or a
            ``DecisionService``; ``$JOULERY_STORE`` unless given, or else a file of the user.
        devices: Boards of this job; found unless given.
        process_group: Processes of a data-parallel job, which decide together.
        sinks: Places that figures of the whole job are written to after every epoch and at the end.

    Attributes:
        name: Name of the job.
        energy: Account of the energy of the job, over all its processes.

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
        max_steps: int | None = None,
        knob: str | None = None,
        early_stop: bool = True,
        dry_run: bool | None = None,
        store: DecisionService | str | Path | None = None,
        devices: Sequence[Device] | None = None,
        process_group: ProcessGroup | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        self.name = name
        self._config = RunConfig(
            name=name,
            batch_sizes=batch_sizes,
            default_batch_size=default_batch_size,
            target=target,
            higher_is_better=higher_is_better,
            objective=objective,
            max_epochs=max_epochs,
            max_steps=max_steps,
            knob=knob,
            early_stop=early_stop,
            dry_run=dry_run,
            store=store,
        )
        self._environment = RunEnvironment(devices, process_group)
        self._target = TargetTracker(self._config.target, higher_is_better=higher_is_better)
        self._power = RunPower(self._config, self._environment)
        self.energy = JobEnergy(self._environment)
        self._before: Sums | None = Sums()  # None from a checkpoint that does not know its energy
        self._sinks = checked_sinks(sinks)
        self._log = self._new_log()
        self._recurrence: Recurrence | None = None
        self._attempt: Attempt | None = None
        self._recurs = batch_sizes is not None
        self._batch_size = self._config.default_batch_size  # where nothing is decided
        self._attempting = False  # whether the loop can be begun again
        self._left_epoch = False
        self._epoch, self._in_epoch, self._in_steps = 0, False, False
        self._closed = False
        self._said_ended = False
        self._process = os.getpid()
        _runs.add(self)
        _replace_earlier(self)

    def _new_log(self) -> RunLog | None:
        """The report of this run to the store; None where no store is named."""
        service, environment = self._config.store, self._environment
        if not isinstance(service, DecisionService) or (
            environment.group is not None and environment.group.rank
        ):
            return None
        recurs = self._config.batch_sizes is not None
        if not logs_runs(service.location or recurs, environment.environ):
            return None
        return RunLog(
            self.name,
            "run",
            service,
            self.energy,
            self._log_state,
            environment.environ,
        )

    def _log_state(self) -> RunState:
        power, attempt = self._power, self._attempt
        result, size = self.result, self._batch_size
        watts = power.chosen_watts()
        if result is not None and not self._config.dry_run:
            watts = result.chosen.setting.power_limit_watts
        if attempt is not None:
            size = attempt.decision.batch_size
        parts = [] if watts is None else [f"{watts:.0f} W"]
        parts += [f"batch size {size}"] if size else []
        return RunState(
            self.total_steps - power.earlier_steps,  # as the energy of this part
            power.phase(),
            ", ".join(parts),
            self._config.objective_label,
            energy_saving(result),
            known_slowdown(result),
            "" if attempt is None else attempt.decision.id,
        )

    # The loop.

    def step(self) -> None:
        """Report the end of a training step."""
        if self._closed:
            self._say_ended()
            return
        power = self._power
        power.steps += 1
        tuner = power.tuner
        if tuner is not None:
            tuner.step()
        elif power.is_due:
            self._begin_tuning()

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """``batches``, with a step reported after each; none where the epoch was left."""
        if self._closed:
            self._say_ended()
            return iter(batches)
        return iter(()) if self._left_epoch else self._steps(batches)

    def _steps(self, batches: Iterable[T]) -> Iterator[T]:
        before = self.total_steps
        self._in_steps = True
        self._begin_energy()
        self._begin_training(batches)
        try:
            for batch in batches:
                yield batch
                self.step()
                limit = None if self._attempt is None else self._attempt.cost_limit
                due = self._power.probed or (limit is not None and limit.is_due())
                if due and not self._continues():
                    self._left_epoch = True
                    break
        finally:  # also where the loop is left by `break`
            self._in_steps = False
            self._end_training(self.total_steps - before)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Tune a phase of the training by itself, and keep its time and energy in ``phases``.

        For work of different kinds that alternates, seconds at least at a time: generation and
        updates of reinforcement learning, training and evaluation. The same phase does about the
        same work each time, or the same in each of its ``step`` calls. Recurring runs have none.

        Args:
            name: Name of the phase.

        Raises:
            InvalidValueError: The name is not a text, empty, too long or not printable.

        Examples:
            >>> run = Run()
            >>> for _ in range(3):
            ...     with run.phase("rollout"):
            ...         pass  # generate
            ...     with run.phase("update"):
            ...         run.step()
        """
        if not (isinstance(name, str) and name):
            raise InvalidValueError(
                f"{name!r} is not the name of a phase", remedy='write run.phase("rollout")'
            )
        check_name(name, "the name of a phase")
        return self._phase(name)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        before = self.total_steps
        if self._closed:
            self._say_ended()
        elif not self._recurs:
            self._begin_energy()
            self._power.enter_phase(name)
        try:
            yield
        finally:
            self._power.leave_phase(self.total_steps - before)

    @property
    def phases(self) -> dict[str, PhaseUse]:
        """Time, energy and setting of each phase."""
        return self._power.phases

    def epochs(self) -> Iterator[int]:
        """Epochs from 0, until the target is reached, the cost limit is, or they are over.

        After ``load_state_dict``, the epochs that are left. Closes the run after the last,
        except within ``attempts``. A run without ``max_epochs`` and target has one epoch, and says
        so. A run that has ended trains its epochs again, untuned and not counted, and says so.
        """
        if self._config.max_epochs is None and self._config.target is None:
            _log.warning("joulery: one epoch, since neither max_epochs nor a target is given")
        if self._closed:
            self._say_ended()
            self._epoch, self._left_epoch, self._target = 0, False, self._target.renewed()
        ended = False
        self._begin_energy()
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
            _log.warning("joulery: %r is not a metric: %s", type(metric).__name__, error)
            return
        if self._log is not None:
            self._log.note_metric(float(metric))
        if reached:
            self._mark_target()

    def state_dict(self) -> dict[str, Any]:
        """State to keep in a checkpoint, of plain JSON values.

        It has the steps and epochs trained, the joules and seconds that they took, the profile of
        power limits once one is chosen, and of a recurring run the decision with the seconds and
        joules of its attempt. An epoch counts once its
        ``steps`` are over; within them, the epoch under way will begin again.
        """
        epochs = self._epoch + (self._in_epoch and not self._in_steps)
        profile = self._power.profile
        return {
            "steps": self.total_steps,
            "epochs": epochs,
            "profile": None if profile is None else profile.to_document(),
            "decision": None if self._attempt is None else self._attempt.state(epochs),
            **(self._sums() or dict.fromkeys(Sums._fields)),
        }

    def _sums(self) -> dict[str, Any] | None:
        """Energy of all parts of the run; None where that of one is unknown."""
        measured, before = self.energy.total(), self._before
        if before is None or not measured.seconds:
            return before and before._asdict()
        return before.plus(measured)._asdict() if math.isfinite(measured.joules) else None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint: steps, joules and seconds count on from there.

        Call this before ``batch_size``, ``epochs`` or the first step. Never raises; from an invalid
        state the run begins anew.
        """
        if self._recurrence is not None or self.total_steps:
            _log.warning("joulery: a checkpoint is loaded before training, not within it")
            return
        try:
            self._load(state)
        except (KeyError, TypeError, ValueError, AttributeError, JouleryError) as error:
            _log.warning("joulery: the run begins anew, not from its checkpoint: %s", error)
            self._recurrence = None

    def _load(self, state: Mapping[str, Any]) -> None:
        from joulery.power import PowerProfile

        if not isinstance(state, Mapping) or not state.keys() >= _STATE_KEYS:
            raise InvalidValueError(
                f"it is not a state of a run, but {_describe(state)}",
                remedy="give what run.state_dict() returned",
            )
        steps, epochs = (_count(state[key], key) for key in ("steps", "epochs"))
        profile, decision = state["profile"], state["decision"]
        earlier = None if profile is None else PowerProfile.from_document(profile)
        before = None if state.get("joules") is None else Sums.from_state(state)
        if decision is not None and self._recurs:
            self._new_recurrence().resume(decision)
        self._power.steps = self._power.earlier_steps = steps
        self._epoch, self._power.earlier_profile, self._before = epochs, earlier, before

    def _new_recurrence(self) -> Recurrence:
        from joulery.training._attempt import Recurrence

        self._recurrence = Recurrence(self._config, self._environment, self._power)
        atexit.register(_close_if_alive, weakref.ref(self))
        return self._recurrence

    def close(self) -> None:
        """Restore the original limit. May be called twice; the end of the process does it too."""
        if self._closed or os.getpid() != self._process:
            return  # a copy of the process does not speak for it
        self._closed = True
        self._finish(abandoned=True)
        if self._log is not None:
            self._log.freeze()
        self._power.close()
        self._close_recurrence()
        self._end_energy()

    def _say_ended(self) -> None:
        """Say once that what follows the end of the run is none of it."""
        if not self._said_ended:
            _log.warning(
                "joulery: %s has ended; what follows is trained, but not tuned: make a new "
                "joulery.Run for each training",
                self.name or "this run",
            )
        self._said_ended = True

    def __enter__(self) -> Self:
        self._begin_energy()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What was decided and measured.

    @property
    def measurement(self) -> JobMeasurement:
        """Energy of all devices of the job, on all nodes, until now or until it was closed.

        After ``load_state_dict``, that of the earlier parts too; its devices are of this part.
        """
        return self.energy.total().continued_from(self._before or Sums())

    @property
    def joules(self) -> float:
        """Energy of the job; NaN where nothing measures it."""
        return self.measurement.joules

    @property
    def kwh(self) -> float:
        """Energy of the job in kilowatt-hours; NaN where nothing measures it."""
        return self.measurement.kwh

    @property
    def seconds(self) -> float:
        """Time from the first step or epoch until now or the end, of all parts of the run."""
        return self.measurement.seconds

    def __str__(self) -> str:
        name, count = self.name or "run", self._measured_steps
        steps = (
            f"{count} step{'s' * (count != 1)}{' since the checkpoint' * (self._before is None)}"
        )
        measurement = self.measurement
        if not (self.energy.begun and measurement.seconds):
            steps = f"{steps}, nothing is measured yet" if count else "no step yet"
            return f"{name}: {steps}"
        return "; ".join(filter(None, [f"{name}: {measurement}", steps, self._tuning_text()]))

    def rows(self) -> list[dict[str, Any]]:
        """A row per device of the job: its joules, mean watts and their source."""
        return self.measurement.rows()

    def to_dict(self) -> dict[str, Any]:
        """The run as a JSON document: its energy, steps and result of tuning."""
        result = self.result
        return {
            **self.measurement.to_dict(),
            "name": self.name,
            "steps": self._measured_steps,
            "kwh": None if math.isnan(self.kwh) else self.kwh,
            "tuning": None if result is None else result.to_dict(),
            "phases": {name: use.to_dict() for name, use in self.phases.items()},
            "tuning_skipped": self.tuning_skipped,
        }

    @property
    def total_steps(self) -> int:
        """Number of steps reported, earlier parts of a resumed run included."""
        return self._power.steps

    @property
    def _measured_steps(self) -> int:
        """Number of steps that the joules are of."""
        return self.total_steps - (self._power.earlier_steps if self._before is None else 0)

    @property
    def batch_size(self) -> int | None:
        """Samples per step over all devices; what to run is asked for on first use."""
        self._decide()
        return self._batch_size if self._attempt is None else self._attempt.decision.batch_size

    @property
    def batch_size_per_rank(self) -> int | None:
        """Samples per step of each process, where several train together."""
        size = self.batch_size
        return None if size is None else max(1, size // self._environment.processes)

    @property
    def decision(self) -> Decision | None:
        """The decision, with its reason; None where nothing was decided."""
        self._decide()
        return None if self._attempt is None else self._attempt.decision

    @property
    def limits_epochs(self) -> bool:
        """Whether the run says when training ends: at a target, or after its number of epochs."""
        return self._config.target is not None or self._config.max_epochs is not None

    @property
    def in_last_epoch(self) -> bool:
        """Whether the epoch under way is the last, whatever its metric."""
        return self._in_epoch and self._epoch + 1 >= self._config.most_epochs

    @property
    def target_reached(self) -> bool:
        """Whether the target was reached."""
        return self._target.reached

    @property
    def stop_reason(self) -> str | None:
        """Reason why the run ended without its target; None if it did not."""
        return None if self._attempt is None else self._attempt.stop_reason

    @property
    def result(self) -> TuningResult | None:
        """Result of power tuning; None before the choice is made, or without tuning."""
        return self._power.result

    @property
    def summary(self) -> str:
        """The limit that was chosen and what it saves, or why there is none; see ``result``."""
        return self._tuning_text() or "no limit is chosen yet"

    def _tuning_text(self) -> str:
        text, joules = self._power.summary, predicted_saving(self.result, self.energy.total())
        return (
            text
            if math.isnan(joules)
            else f"{text}; by that, {human(joules, 'J')} less here (predicted)"
        )

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
        """Do without decisions because of an error; see ``joulery.fail_open``."""
        _log.warning("joulery: nothing is decided any more, training continues: %s", error)
        if self._attempt is not None:
            self._batch_size = self._attempt.decision.batch_size
        self._attempt, self._recurs = None, False

    @property
    def _account(self) -> EnergyAccount | None:
        """The energy account of the attempt under way."""
        return None if self._attempt is None else self._attempt.account

    @fail_open(None)
    def _decide(self) -> None:
        """Have something decided, unless it was, or the run does not recur."""
        if self._closed or not self._recurs or self._attempt is not None:
            return
        recurrence = self._recurrence or self._new_recurrence()
        is_last = self._attempting and recurrence.trainings >= _MOST_TRAININGS - 1
        self._attempt = recurrence.next_attempt(can_probe=self._attempting, is_last=is_last)

    @fail_open(None)
    def _begin_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt.begin()

    @fail_open(True)  # noqa: FBT003 - the result
    def _begin_epoch(self) -> bool:
        """Begin an epoch, if another one is to be trained."""
        if self._attempt is None:
            return not self._target.is_over
        return self._attempt.begin_epoch(self._target)

    @fail_open(None)
    def _end_epoch(self) -> None:
        if self._closed:
            return
        if self._attempt is not None:
            self._attempt.end_epoch()
        if self._environment.group is not None:
            self.energy.gather(self._environment.group)
        self._write_figures()

    @fail_open(None)
    def _begin_energy(self, wait_seconds: float = _BEGIN_SECONDS) -> None:
        if not (self.energy.begun or self._closed):
            atexit.register(_close_if_alive, weakref.ref(self))
            self.energy.begin_soon(wait_seconds)
            if self._log is not None:
                self._log.start()

    @fail_open(None)
    def _end_energy(self) -> None:
        if self.energy.begun:
            total = self.energy.end()
            self._write_figures()
            if self._log is not None:
                self._log.end(total)
        close_sinks(self._sinks)

    def _write_figures(self) -> None:
        if self._sinks:
            steps = self.total_steps - self._power.earlier_steps
            figures = self.energy.figures(steps, self.result, self._before)
            write_figures(self._sinks, figures, self.total_steps)

    @fail_open(None)
    def _begin_training(self, batches: Iterable[Any]) -> None:
        if self._power.tuner is not None:
            self._power.tuner.resume()
        self._begin_attempt()
        length = _length(batches)
        self._power.note_length(length)
        if self._account is not None:
            self._account.begin_training(length)

    @fail_open(None)
    def _end_training(self, steps: int) -> None:
        if self._power.tuner is not None:
            self._power.tuner.pause()  # validation follows, which is not training
        if self._account is not None:
            self._account.end_training(steps)

    @fail_open(None)
    def _begin_tuning(self) -> None:
        """Have the tuner made at the first step; take it at the step by which it is."""
        attempt, power = self._attempt, self._power
        if not power.begun:
            from joulery.governor import lease  # noqa: F401 - ends its watchdog after we closed

            self._begin_energy(wait_seconds=0.0)  # within a step
            atexit.register(_close_if_alive, weakref.ref(self))
            self._take_boards_over()
            if attempt is None:
                power.begin(self._batch_size)
            else:
                power.begin(attempt.decision.batch_size, attempt.limit_plan(), attempt.meter)
            power.write_report()  # the process may be killed before there is more
        power.take_tuner()
        if not power.is_due:
            if power.tuner is not None:
                power.tuner.step()
            power.write_report()

    def _take_boards_over(self) -> None:
        """Have earlier runs of this process give back the boards that this one is to tune."""
        for run in {*_tuning_runs} - {self}:  # which tunes anew in each attempt
            if not run._closed and run._environment.shares_boards(self._environment):  # noqa: SLF001
                _log.warning("joulery: an earlier run was not closed; its power tuning ends here")
                run._power.close()  # noqa: SLF001 - of the same class
                _tuning_runs.discard(run)
        _tuning_runs.add(self)

    @fail_open(True)  # noqa: FBT003 - the result
    def _continues(self) -> bool:
        """Whether the epoch continues: within the cost limit, or after a probe of its own size."""
        attempt, power = self._attempt, self._power
        if attempt is not None and attempt.stop_within_epoch():
            return False
        if not power.probed:
            return True
        power.close()
        try:
            if attempt is None or self._recurrence is None or not attempt.is_probe:
                return True
            self._attempt = self._recurrence.follow_probe(attempt, self._target)
            return self._attempt.ended or self._attempt.account is not None
        finally:
            power.renew()  # the next step begins tuning as the new decision asks for

    @fail_open(None)
    def _mark_target(self) -> None:
        if self._account is not None:
            self._account.mark_target()

    @fail_open(None)
    def _finish(self, *, abandoned: bool) -> None:
        """Report how the attempt ended, if there is one under way."""
        attempt = self._attempt
        if attempt is None or attempt.account is None:
            return
        attempt.finish(self._target, abandoned=abandoned)
        if attempt.stop_reason is not None:
            _log.warning("joulery: %s: %s%s", self.name, attempt.stop_reason, self._advice())

    def _advice(self) -> str:
        """Words for a loop that ends without a model though another attempt could make one."""
        if self._attempting or not self._needs_another():
            return ""
        return (
            ". This run ends without a model; the next one will not be stopped. To go on with "
            "another batch size, put the loop into `for attempt in run.attempts()`"
        )

    def _needs_another(self) -> bool:
        """Whether another attempt should be made, after an early stop or a probe."""
        attempt = self._attempt
        if attempt is None or self._closed or self._target.reached:
            return False
        if attempt.ended:
            return attempt.stop_reason is not None and not attempt.is_last
        return attempt.account is None  # decided after a probe, to be begun

    @fail_open(False)  # noqa: FBT003 - the result
    def _begin_another(self) -> bool:
        """Make ready for another attempt, if there should be one."""
        if not self._needs_another():
            return False
        self._power.close()
        self._power.renew()
        self._left_epoch = False
        self._target = self._target.renewed()
        self._epoch = 0
        if self._attempt is not None and self._attempt.ended:
            self._attempt = None
        return True

    @fail_open(None)
    def _close_recurrence(self) -> None:
        if self._attempt is not None:
            self._attempt.withdraw()
        if self._recurrence is not None:
            self._recurrence.close()


_tuning_runs: weakref.WeakSet[Run] = weakref.WeakSet()  # of this process
_notebook_runs: dict[str, tuple[int, weakref.ref[Run]]] = {}  # with the execution of their cell


def _replace_earlier(run: Run) -> None:
    """In a notebook, close the run of the same name that another execution of a cell has made.

    A cell that is run again would leave the board held by the run before, which a variable or the
    history of outputs keeps alive.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None:
        return
    execution = int(shell.execution_count)
    earlier_execution, reference = _notebook_runs.get(run.name, (execution, None))
    earlier = None if reference is None else reference()
    if earlier is not None and earlier_execution != execution:
        earlier.close()
    _notebook_runs[run.name] = execution, weakref.ref(run)


def _length(batches: Iterable[Any]) -> int | None:
    """The number of batches, if they say so."""
    try:
        return operator.length_hint(batches, 0) or None
    except Exception:  # noqa: BLE001 - the caller's code, asked for no more than a hint
        return None


def _leave_to_parent() -> None:
    """In a forked child, which has neither the threads nor the boards of its parent's tuning."""
    for run in tuple(_runs):
        run._power.leave_to_parent()  # noqa: SLF001 - same module


os.register_at_fork(after_in_child=_leave_to_parent)


def _close_if_alive(run: weakref.ref[Run]) -> None:
    alive = run()
    if alive is not None:
        alive.close()


def _describe(state: object) -> str:
    """What a state that is none has instead, on one line."""
    if not isinstance(state, Mapping):
        return type(state).__name__
    missing = ", ".join(sorted(_STATE_KEYS - state.keys()))
    return f"a document without {missing}"


def _count(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidValueError(
            f"its {name} are {value!r}", remedy="give what run.state_dict() returned"
        )
    return value
