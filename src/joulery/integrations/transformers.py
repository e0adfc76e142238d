"""Callback for the Trainer of Hugging Face transformers, and for those of TRL built on it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from joulery.training import CallbackLoop, callback_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.metering import Measurement, Meter
    from joulery.training import Run, Sink


# Callers up to transformers' list of callbacks, which it gives to none of them.
_CALLERS = 3


class TransformersCallback(TrainerCallback):  # type: ignore[misc]
    """Measures a Trainer's energy, and tunes its power if it is given a run.

    Figures of the whole job, over all ranks, join the Trainer's log entries
    (``trainer.state.log_history``), and with them all that ``report_to`` names; they are counted on
    after a resume from a checkpoint.

    Args:
        run: Run whose power is tuned; without one nothing is changed. Make the training arguments
            with ``per_device_train_batch_size=run.batch_size_per_rank`` where it chooses that.
        metric: Name of the evaluation metric that is reported to the run, ``eval_accuracy``.
        meter: Meter of the devices; one over this job's devices unless given.
        sinks: Further places that figures are written to at every log entry.

    Attributes:
        measurement: Energy of the training; None before it has ended.

    Examples:
        >>> Trainer(model, arguments, callbacks=[TransformersCallback()])  # doctest: +SKIP
    """

    def __init__(
        self,
        run: Run | None = None,
        *,
        metric: str | None = None,
        meter: Meter | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        self.measurement: Measurement | None = None
        self._loop = CallbackLoop(run, meter=meter, sinks=sinks, metric=metric)

    __repr__ = callback_text

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Come before the callbacks of ``report_to``, which take a log entry as they find it."""
        _move_to_front(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin, after the figures of the checkpoint that is resumed from."""
        _move_to_front(self)
        for entry in reversed(state.log_history):
            if "joulery/joules" in entry:
                error = entry.get("joulery/relative_error", 0.0) * entry["joulery/joules"]
                self._loop.load_state_dict(
                    {
                        "steps": state.global_step,
                        "joules": entry["joulery/joules"],
                        "standard_error_joules": error,
                        "seconds": entry["joulery/seconds"],
                    }
                )
                break
        self._loop.begin()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin an epoch."""
        epochs = state.num_train_epochs or 1
        self._loop.begin_epoch(-(-state.max_steps // epochs))

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin a step of the optimizer, over all its accumulated batches."""
        self._loop.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End a step of the optimizer."""
        self._loop.end_step()
        self._stop_if_over(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End an epoch, and the training with the last epoch of the run."""
        self._loop.end_epoch()
        self._stop_if_over(control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluation is not training."""
        self._loop.pause()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A checkpoint was written, which is not training."""
        self._loop.pause()

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any
    ) -> None:
        """Report the metric."""
        if metrics is not None:
            self._loop.report_from(metrics)
            self._stop_if_over(control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Add the figures to the log entry."""
        figures = self._loop.log()
        if logs is not None:
            logs.update(figures)
        if state.log_history:
            state.log_history[-1].update(figures)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End: the run is closed, and the original limit is back in force."""
        self.measurement = self._loop.end()

    def _stop_if_over(self, control: Any) -> None:
        if not self._loop.goes_on:
            control.should_epoch_stop = control.should_training_stop = True


def _move_to_front(callback: TrainerCallback) -> None:
    """Move a callback to the front of the list that is calling it, wherever it was added."""
    frame = inspect.currentframe()
    for _ in range(_CALLERS):
        frame = None if frame is None else frame.f_back
        handler = None if frame is None else frame.f_locals.get("self")
        callbacks = getattr(handler, "callbacks", None)
        if isinstance(callbacks, list) and callback in callbacks:
            # Callbacks that have yet to be called stay where they are.
            callbacks.remove(callback)
            callbacks.insert(0, callback)
            return
