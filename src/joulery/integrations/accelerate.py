"""Tracker for Hugging Face accelerate."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from accelerate.tracking import GeneralTracker, on_main_process
from torch.nn.modules.module import register_module_forward_pre_hook

from joulery.training import CallbackLoop, callback_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.metering import Measurement, Meter
    from joulery.training import Sink


class AccelerateTracker(GeneralTracker):  # type: ignore[misc]
    """Measures the energy of all ranks from the first training step to ``end_training``.

    The first step is the first forward pass of a module in training mode after ``init_trackers``;
    where something is logged before it, or no module is called, all counts from ``init_trackers``.
    Whenever something is logged, the energy of the job goes to the sinks. Make the tracker on every
    rank, as examples of accelerate do: it calls that of the first alone.

    Args:
        meter: Meter of the devices; one over this job's devices unless given.
        sinks: Places to write to, such as ``FileSink("energy.jsonl")``.

    Attributes:
        measurement: Energy of the training; None before it has ended.

    Examples:
        >>> accelerator = Accelerator(log_with=[AccelerateTracker()])   # doctest: +SKIP
        >>> accelerator.init_trackers("bert")                           # doctest: +SKIP
    """

    name = "joulery"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self, *, meter: Meter | None = None, sinks: Sequence[Sink] = ()) -> None:
        super().__init__()
        self.measurement: Measurement | None = None
        self._loop = CallbackLoop(meter=meter, sinks=sinks)
        self._hook: Any = None
        if os.environ.get("RANK", "0") != "0":
            self._loop.follow()
            self._await_first_step()

    __repr__ = callback_text

    @property
    def tracker(self) -> CallbackLoop:
        """The loop whose energy is measured."""
        return self._loop

    @on_main_process  # type: ignore[untyped-decorator]
    def start(self) -> None:
        """Begin to measure."""
        self._loop.begin()
        self._await_first_step()

    def _await_first_step(self) -> None:
        """Leave out models, data and checkpoints that are loaded before the first step."""

        def restart(module: Any, _inputs: Any) -> None:
            if module.training and self._hook is not None:
                self._stop_waiting()
                self._loop.restart()

        self._hook = register_module_forward_pre_hook(restart)

    def _stop_waiting(self) -> None:
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    @on_main_process  # type: ignore[untyped-decorator]
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """The configuration is left to other trackers."""

    @on_main_process  # type: ignore[untyped-decorator]
    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Write the figures, at the step of this log entry."""
        self._stop_waiting()
        if step is not None:
            self._loop.steps = step
        self._loop.log()

    @on_main_process  # type: ignore[untyped-decorator]
    def finish(self) -> None:
        """End."""
        self._stop_waiting()
        self.measurement = self._loop.end()
