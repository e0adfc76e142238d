"""A training loop that belongs to a framework: it calls back, and a run and a meter follow."""

from __future__ import annotations

import logging
import math
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol

from joulery.errors import InvalidValueError
from joulery.fail_open import fail_open
from joulery.metering import Meter
from joulery.training._config import DecisionService, RunEnvironment
from joulery.training._job_energy import JobEnergy, Sums, checked_sinks, close_sinks, write_figures
from joulery.training._run_log import RunLog, RunState, logs_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulery.metering import Measurement
    from joulery.training._run import Run

_log = logging.getLogger("joulery")

_NO_FIGURES: Mapping[str, float] = {}


class Sink(Protocol):
    """A place that figures are written to: a file, a tracker, an exporter."""

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write the figures of one moment, by name."""
        ...

    def close(self) -> None:
        """Write what is pending and let go of the place."""
        ...


def callback_text(callback: Any) -> str:
    """A framework's callback, for people: its class, and what its loop has used."""
    return f"<{type(callback).__name__}: {callback._loop}>"  # noqa: SLF001 - each has one


class CallbackLoop:
    """The events of a training loop that is not ours, passed on to a meter and to a run.

    Integrations translate the callbacks of their framework into these calls. None of them raises.
    A run that may choose the batch size, stop early or probe is driven exactly as by the loop
    ``for epoch in run.epochs(): for batch in run.steps(loader): …``.

    Args:
        run: Run whose power is tuned; without one, energy is measured and nothing is changed.
        meter: Meter of the devices; one over this job's devices unless given.
        sinks: Places that ``log`` writes to.
        metric: Name of the metric that ``report_from`` reports.

    Attributes:
        steps: Number of training steps, earlier parts of a resumed training included.
        goes_on: Whether to train on; False once the run's target or cost limit is reached.

    Raises:
        InvalidValueError: The run, the meter, a sink or the name is something else.
    """

    def __init__(
        self,
        run: Run | None = None,
        *,
        meter: Meter | None = None,
        sinks: Sequence[Sink] = (),
        metric: str | None = None,
    ) -> None:
        self.steps = 0
        self.goes_on = True
        _check(run, meter, metric)
        self._run = run
        self._energy = _energy_of(run, meter)
        self._sinks = checked_sinks(sinks)
        self._before = Sums()
        self._earlier_steps = 0
        self._epochs: Iterator[int] | None = None
        self._batches: Iterator[Any] | None = None
        self._epoch_steps: int | None = None
        self._measurement: Measurement | None = None
        self._metric = metric
        self._metric_seen = False
        self._metric_names: set[str] = set()
        self._failed = False
        self._run_log: RunLog | None = None

    def __str__(self) -> str:
        return str(self._energy if self._run is None else self._run)

    @fail_open(None)
    def begin(self) -> None:
        """Training begins: anew, unless ``load_state_dict`` has continued an earlier one."""
        self.goes_on = True
        if self._measurement is not None:  # an earlier training has ended, and is not resumed
            self._measurement, self._before = None, Sums()
            self.steps = self._earlier_steps = 0
        if self._energy.ended:  # that of a run which another training has used
            self._energy = self._energy.renewed()
        if not self._energy.begun:
            self._energy.begin()
            self._begin_log()

    @fail_open(None)
    def restart(self) -> None:
        """Training begins only now: what was used since ``begin`` is left out."""
        self._energy.restart()

    def _begin_log(self) -> None:
        """Report to the store, if one is named, unless the run does it itself."""
        if self._run is not None or not logs_runs(None):
            return
        self._run_log = RunLog(
            "",
            "callback",
            DecisionService(),
            self._energy,
            lambda: RunState(self.steps - self._earlier_steps),
        )
        self._run_log.start()

    @fail_open(None)
    def follow(self) -> None:
        """Measure for rank 0 alone, in a process whose framework calls back no more."""
        self._energy.follow()

    @fail_open(None)
    def begin_epoch(self, steps: int | None = None) -> None:
        """An epoch begins.

        Args:
            steps: Number of training steps in it, where known.
        """
        self._stop_batches()
        self._epoch_steps = steps
        if self._run is None or not self._run.limits_epochs:
            return
        if self._epochs is None:
            self._epochs = self._run.epochs()
        self.goes_on = next(self._epochs, None) is not None

    @fail_open(None)
    def end_epoch(self) -> None:
        """The steps of an epoch have ended; its metric may follow."""
        self._stop_batches()
        if self._epochs is not None and self._run is not None and self._run.in_last_epoch:
            self.goes_on = False

    def begin_step(self) -> None:
        """A training step begins."""
        if self._batches is None and self._run is not None:
            self._begin_batches()

    @fail_open(None)
    def _begin_batches(self) -> None:
        self._note_missing_metric()
        if self._run is not None:
            self._batches = self._run.steps(_Batches(self._epoch_steps))
            next(self._batches, None)

    def end_step(self) -> None:
        """A training step has ended."""
        self.steps += 1
        if self._batches is not None:
            self._end_batch()

    @fail_open(None)
    def _end_batch(self) -> None:
        if self._batches is not None and next(self._batches, self) is self:
            self.goes_on = False

    @fail_open(None)
    def pause(self) -> None:
        """Something other than training follows, such as validation, until the next step."""
        self._stop_batches()

    @fail_open(None)
    def report(self, metric: Any) -> None:
        """The validation metric of this epoch; see ``joulery.Run.report``."""
        if self._run is not None:
            self._run.report(metric)
            self.goes_on = self.goes_on and not self._run.target_reached

    @fail_open(None)
    def report_from(self, metrics: Mapping[str, Any]) -> None:
        """Report the metric of this name among those of an evaluation.

        Of several evaluations in a row each may have other metrics; once training continues, one
        line says that none of them had it.
        """
        if self._metric is None or self._run is None:
            return
        if self._metric in metrics:
            self._metric_seen = True
            self.report(metrics[self._metric])
        self._metric_names.update(name for name in metrics if not name.startswith("joulery/"))

    def _note_missing_metric(self) -> None:
        """Say once that evaluations lack the metric."""
        if self._metric_names and not self._metric_seen:
            self._metric_seen = True
            names = ", ".join(sorted(self._metric_names))
            _log.warning("joulery: no %r among %s: the run gets no metric", self._metric, names)

    def log(self) -> dict[str, float]:
        """Write the figures to the sinks; one that fails is written to no more.

        Returns:
            Figures of the whole job by name: joules, kWh, CO2, seconds and the relative error in
            total, watts and joules per step since the last call, the number of boards and nodes,
            the energy saving of the run. Unknown ones are left out.
        """
        figures = dict(self._figures())
        write_figures(self._sinks, figures, self.steps)
        return figures

    @fail_open(_NO_FIGURES)
    def _figures(self) -> Mapping[str, float]:
        if not self._energy.begun:
            return _NO_FIGURES
        result = None if self._run is None else self._run.result
        return self._energy.figures(self.steps - self._earlier_steps, result, self._before)

    def end(self) -> Measurement | None:
        """Training has ended: the run is closed; the measurement of all devices of the job."""
        self._close_run()
        self._end()
        return self._measurement

    @fail_open(None)
    def _end(self) -> None:
        if not self._energy.begun:
            return
        self._measurement = self._energy.end()
        if self._run_log is not None:
            self._run_log.end(self._measurement)
            self._run_log = None
        self.log()
        close_sinks(self._sinks)
        self._before = self._sums()
        self._energy = self._energy.renewed()

    @fail_open(None)
    def _close_run(self) -> None:
        self._stop_batches()
        self._note_missing_metric()
        if self._epochs is not None:
            next(self._epochs, None)  # ends the last epoch
            self._epochs.close()  # type: ignore[attr-defined]
            self._epochs = None
        if self._run is not None:
            self._run.close()

    def state_dict(self) -> dict[str, Any]:
        """Steps, joules, their standard error and origin, seconds, and the state of the run."""
        state = {**self._sums()._asdict(), "steps": self.steps}
        if self._run is not None:
            state["run"] = self._run.state_dict()
        return state

    def _sums(self) -> Sums:
        measured = self._energy.total()
        return self._before.plus(measured) if math.isfinite(measured.joules) else self._before

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the state in a checkpoint: figures count on from there."""
        if self._run is not None and "run" in state:
            self._run.load_state_dict(state["run"])
        self._measurement = None
        self.steps = self._earlier_steps = int(state["steps"])
        self._before = Sums.from_state(state)

    def fail(self, error: Exception) -> None:
        """Do without the call that failed; see ``joulery.fail_open``."""
        if not self._failed:
            _log.warning("joulery: figures may be missing, training continues: %s", error)
        self._failed = True

    def _stop_batches(self) -> None:
        batches, self._batches = self._batches, None
        if batches is not None and hasattr(batches, "close"):
            batches.close()


def _check(run: object, meter: object, metric: object) -> None:
    if not (run is None or hasattr(run, "state_dict")):
        raise InvalidValueError(f"{run!r} is not a run", remedy='give joulery.Run("resnet")')
    if not (meter is None or isinstance(meter, Meter)):
        raise InvalidValueError(f"{meter!r} is not a meter", remedy="give joulery.Meter()")
    if not (metric is None or (isinstance(metric, str) and metric)):
        raise InvalidValueError(
            f"{metric!r} is not the name of a metric", remedy='give "eval_accuracy" or alike'
        )


def _energy_of(run: Run | None, meter: Meter | None) -> JobEnergy:
    """The account of a run's energy; one of its own for another meter, or without a run."""
    if run is not None and meter is None:
        return run.energy
    return JobEnergy(RunEnvironment(), meter)


class _Batches:
    """Batches of a loop that is not ours: as many as it takes, with the length of an epoch."""

    def __init__(self, count: int | None) -> None:
        self._count = count

    def __length_hint__(self) -> int:
        return self._count or 0

    def __iter__(self) -> Iterator[None]:
        return repeat(None)
