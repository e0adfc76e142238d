"""Callback for the Trainer of PyTorch Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback

from joulery.training import CallbackLoop, callback_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.metering import Measurement, Meter
    from joulery.training import Run, Sink


class LightningCallback(Callback):  # type: ignore[misc]
    """Measures the energy of a fit, and tunes its power if it is given a run.

    Figures of the whole job, over all ranks, go to the trainer's loggers and ``callback_metrics``
    after every epoch, and into checkpoints.

    Args:
        run: Run whose power is tuned; without one nothing is changed.
        monitor: Name of the logged metric that is reported to the run after each validation.
        meter: Meter of the devices; one over this job's devices unless given.
        sinks: Further places that figures are written to after every epoch.

    Attributes:
        measurement: Energy of the fit; None before it has ended.

    Examples:
        >>> trainer = Trainer(callbacks=[LightningCallback()])  # doctest: +SKIP
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
        self._optimizer_steps = 0

    __repr__ = callback_text

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        self._optimizer_steps = trainer.global_step
        self._loop.begin()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin an epoch."""
        batches = trainer.num_training_batches
        is_known = isinstance(batches, int)
        self._loop.begin_epoch(batches // trainer.accumulate_grad_batches if is_known else None)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Begin a step, over all its accumulated batches."""
        self._loop.begin_step()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End a step, if the optimizer made one."""
        if trainer.global_step != self._optimizer_steps:
            self._optimizer_steps = trainer.global_step
            self._loop.end_step()
            self._stop_if_over(trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation is not training."""
        self._loop.pause()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the monitored metric."""
        if not trainer.sanity_checking:
            self._loop.report_from(trainer.callback_metrics)
            self._stop_if_over(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the figures to the loggers and to ``callback_metrics``."""
        self._loop.end_epoch()
        self._stop_if_over(trainer)
        figures = self._loop.log()
        # They are of all ranks already. Lightning would warn of metrics that are not synchronised,
        # and does not synchronise those of rank 0 alone.
        pl_module.log_dict(figures, logger=False, sync_dist=True, rank_zero_only=True)
        for logger in trainer.loggers:
            logger.log_metrics(figures, step=trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End: the run is closed, and the original limit is back in force."""
        self.measurement = self._loop.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End a fit that failed or was interrupted."""
        self.measurement = self._loop.end()

    def state_dict(self) -> dict[str, Any]:
        """Figures of the fit."""
        return dict(self._loop.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Count on from a checkpoint."""
        self._loop.load_state_dict(state_dict)

    def _stop_if_over(self, trainer: Any) -> None:
        if not self._loop.goes_on:
            trainer.should_stop = True
