"""Shared code of pipeline frameworks' integrations: observers, and calls that come in order."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

from joulery.pipeline import BACKWARD, FORWARD, OPTIMIZER, REDUCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from joulery.pipeline import Instruction

    Reached = Callable[[], object]


class PipelineObserver(Protocol):
    """Callbacks around instructions: a ``ClockController``, or a ``ClockProfiler`` without a plan.

    None of these may raise, since they run inside the training step.
    """

    def begin_iteration(self, reached: Reached | None) -> None:
        """A step of the schedule begins; ``reached`` as below."""
        ...

    def before(self, stage: int, kind: str, microbatch: int, reached: Reached | None) -> None:
        """An instruction begins; ``reached`` waits until the device gets there, if it lags."""
        ...

    def after(self, stage: int, kind: str, microbatch: int, reached: Reached | None) -> None:
        """An instruction has ended."""
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


class OrderedCalls:
    """Matches calls of a framework with instructions: each call is the next one of its kind.

    Args:
        observer: Observer to call.
        order: Instructions of this rank, first to last.
        mark: Function that marks a place in the device's queue.
    """

    def __init__(
        self,
        observer: PipelineObserver,
        order: Iterable[Instruction],
        mark: Callable[[], Reached | None],
    ) -> None:
        self._observer = observer
        self._order = tuple(order)
        self._mark = mark
        self._next: dict[str, Iterator[Instruction]] = {}

    def iteration(self, run: Callable[[], Any], *, training: bool = True) -> Any:
        """Run an iteration; its calls are observed if it is one of training."""
        if not training:
            return run()
        kinds = (FORWARD, BACKWARD, REDUCE, OPTIMIZER)
        self._next = {k: iter([item for item in self._order if item.kind == k]) for k in kinds}
        self._observer.begin_iteration(self._mark())
        try:
            return run()
        finally:
            self._next = {}

    def call(self, kind: str, run: Callable[[], Any]) -> Any:
        """Run what a framework calls for the next instruction of a kind."""
        item = next(self._next.get(kind, iter(())), None)
        if item is None:
            return run()
        self._observer.before(item.stage, item.kind, item.microbatch, self._mark())
        result = run()
        self._observer.after(item.stage, item.kind, item.microbatch, self._mark())
        return result
