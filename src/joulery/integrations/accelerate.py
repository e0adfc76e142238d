"""Tracker for Hugging Face accelerate."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from accelerate.tracking import GeneralTracker, on_main_process

from joulery.training import CallbackLoop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.metering import Measurement, Meter
    from joulery.training import Sink


class AccelerateTracker(GeneralTracker):  # type: ignore[misc]
    """Measures the energy of all ranks from ``Accelerator.init_trackers`` to ``end_training``.

    Whenever something is logged in between, the energy of the job goes to the sinks. Make the
    tracker on every rank, as examples of accelerate do: it calls that of the first alone, and the
    others measure their devices from where they are made.

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
        if os.environ.get("RANK", "0") != "0":
            self._loop.follow()

    @property
    def tracker(self) -> CallbackLoop:
        """The loop whose energy is measured."""
        return self._loop

    @on_main_process  # type: ignore[untyped-decorator]
    def start(self) -> None:
        """Begin to measure."""
        self._loop.begin()

    @on_main_process  # type: ignore[untyped-decorator]
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """The configuration is left to other trackers."""

    @on_main_process  # type: ignore[untyped-decorator]
    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Write the figures, at the step of this log entry."""
        if step is not None:
            self._loop.steps = step
        self._loop.log()

    @on_main_process  # type: ignore[untyped-decorator]
    def finish(self) -> None:
        """End."""
        self.measurement = self._loop.end()
