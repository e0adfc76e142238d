"""Shared code of pipeline frameworks' integrations: observers, and calls that are observed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    Reached = Callable[[], object]


class PipelineObserver(Protocol):
    """Callbacks around instructions: a ``ClockController``, or a ``ClockProfiler`` without a plan.

    None of these may raise, since they run inside the training step.
    """

    def begin_iteration(self, reached: Reached | None, *, microbatches: int | None = None) -> None:
        """A step of the schedule begins, with so many microbatches; ``reached`` as below."""
        ...

    def before(self, stage: int, kind: str, microbatch: int, reached: Reached | None) -> None:
        """An instruction begins; ``reached`` waits until the device gets there, if it lags."""
        ...

    def after(self, stage: int, kind: str, microbatch: int, reached: Reached | None) -> None:
        """An instruction has ended."""
        ...

    def end_iteration(self, reached: Reached | None) -> None:
        """The step of the schedule has ended, as planned or not."""
        ...


def queue_marker(on_cuda: bool) -> Callable[[], Reached | None]:  # noqa: FBT001 - its only argument
    """A function that marks a place in the device's queue; None where work is done at once."""
    if not on_cuda:
        return lambda: None

    cuda: Any = importlib.import_module("torch").cuda

    def mark() -> Reached:
        # Blocking: the waiting thread sleeps, instead of keeping a core and Python's lock busy.
        event = cuda.Event(blocking=True)
        event.record()
        reached: Reached = event.synchronize
        return reached

    return mark


class ObservedCalls:
    """Calls an observer around what a framework runs, by the framework's own numbers.

    Args:
        observer: Observer to call.
        mark: Function that marks a place in the device's queue.
    """

    def __init__(self, observer: PipelineObserver, mark: Callable[[], Reached | None]) -> None:
        self._observer = observer
        self._mark = mark
        self._training = False

    def iteration(
        self, run: Callable[[], Any], *, training: bool = True, microbatches: int | None = None
    ) -> Any:
        """Run an iteration; its calls are observed if it is one of training."""
        if not training:
            return run()
        self._training = True
        self._observer.begin_iteration(self._mark(), microbatches=microbatches)
        reached: Reached | None = None
        try:
            result = run()
            reached = self._mark()
        finally:
            # After an error the device's queue is left alone: it may be what has failed.
            self._training = False
            self._observer.end_iteration(reached)
        return result

    def call(self, stage: int, kind: str, microbatch: int, run: Callable[[], Any]) -> Any:
        """Run an instruction; outside of training nothing is observed."""
        if not self._training:
            return run()
        self._observer.before(stage, kind, microbatch, self._mark())
        result = run()
        self._observer.after(stage, kind, microbatch, self._mark())
        return result
