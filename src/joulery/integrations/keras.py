"""Callback for ``Model.fit`` of Keras 3, on any of its backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keras.callbacks import Callback

from joulery.training import CallbackLoop, callback_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.metering import Measurement, Meter
    from joulery.training import Run, Sink


class KerasCallback(Callback):  # type: ignore[misc]
    """Measures the energy of a fit, and tunes its power if it is given a run.

    Figures join the logs of every epoch, so ``History`` has them too.

    Args:
        run: Run whose power is tuned; without one nothing is changed.
        monitor: Name of the metric that is reported to the run after each epoch, ``val_accuracy``.
        meter: Meter of the devices; one over this job's devices unless given.
        sinks: Further places that figures are written to after every epoch.

    Attributes:
        measurement: Energy of the fit; None before it has ended.

    Examples:
        >>> model.fit(x, y, batch_size=64, callbacks=[KerasCallback()])  # doctest: +SKIP
    """

    def __init__(
        self,
        run: Run | None = None,
        *,
        monitor: str | None = None,
        meter: Meter | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        super().__init__()
        self.measurement: Measurement | None = None
        self._loop = CallbackLoop(run, meter=meter, sinks=sinks, metric=monitor)
        self._is_of_training = monitor is None or not monitor.startswith("val_")

    __repr__ = callback_text

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin."""
        self._loop.begin()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin an epoch."""
        self._loop.begin_epoch(self.params.get("steps"))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begin a step."""
        self._loop.begin_step()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """End a step."""
        self._loop.end_step()
        self._stop_if_over()

    def on_test_begin(self, logs: Any = None) -> None:
        """Validation is not training."""
        self._loop.pause()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Report the monitored metric, and add the figures to the logs."""
        self._loop.end_epoch()
        self._stop_if_over()
        figures = self._loop.log()
        if logs is not None:
            # Epochs between validations (validation_freq) lack their metrics.
            if self._is_of_training or any(name.startswith("val_") for name in logs):
                self._loop.report_from(logs)
                self._stop_if_over()
            logs.update(figures)

    def on_train_end(self, logs: Any = None) -> None:
        """End: the run is closed, and the original limit is back in force."""
        self.measurement = self._loop.end()

    def _stop_if_over(self) -> None:
        if not self._loop.goes_on:
            self.model.stop_training = True
