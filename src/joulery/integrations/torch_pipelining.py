"""Schedules of torch.distributed.pipelining: their order, and callbacks while they run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.integrations._pipelines import queue_marker
from joulery.pipeline import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    LETTERS,
    Instruction,
    Schedule,
    dependencies,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from joulery.integrations._pipelines import PipelineObserver, Reached


@contextmanager
def observed(torch_schedule: Any, observer: PipelineObserver) -> Iterator[None]:
    """Call an observer around everything that a schedule object of torch runs, within the block.

    The forwards and backwards of the schedule's stages on this rank are wrapped, and its
    ``step``. Evaluation (``eval``) is not observed. On CUDA devices work is queued, so an event is
    recorded at each edge, for the observer to wait on in its own thread.

    Args:
        torch_schedule: Schedule such as ``Schedule1F1B``, with its stages.
        observer: Observer to call.

    Raises:
        InvalidValueError: The object is no schedule with stages.
    """
    stages = _stages_of(torch_schedule)
    wrappers = _Wrappers(observer)
    wrapped: list[tuple[Any, str]] = [(torch_schedule, "step")]
    torch_schedule.step = wrappers.step(
        torch_schedule, torch_schedule.step, queue_marker(_on_cuda(stages[0]))
    )
    for stage in stages:
        for name, kind_of in _EDGES.items():
            setattr(stage, name, wrappers.instruction(stage, getattr(stage, name), kind_of))
            wrapped.append((stage, name))
    try:
        yield
    finally:
        for owner, name in wrapped:
            # The class's own method shows again.
            delattr(owner, name)


class _Wrappers:
    """Makes the wrappers around a schedule's and its stages' methods."""

    def __init__(self, observer: PipelineObserver) -> None:
        self._observer = observer
        self._training = False

    def step(
        self, schedule: Any, run: Callable[..., Any], mark: Callable[[], Reached | None]
    ) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            self._training = bool(getattr(schedule, "_has_backward", True))
            if self._training:
                self._observer.begin_iteration(mark())
            try:
                return run(*arguments, **named)
            finally:
                self._training = False

        return wrapped

    def instruction(
        self, stage: Any, run: Callable[..., Any], kind_of: Callable[..., str]
    ) -> Callable[..., Any]:
        number, observer = stage.stage_index, self._observer
        mark = queue_marker(_on_cuda(stage))

        def wrapped(microbatch: int, *arguments: Any, **named: Any) -> Any:
            if not self._training:
                return run(microbatch, *arguments, **named)
            kind = kind_of(*arguments, **named)
            observer.before(number, kind, microbatch, mark())
            result = run(microbatch, *arguments, **named)
            observer.after(number, kind, microbatch, mark())
            return result

        return wrapped


def _forward(*_: Any, **__: Any) -> str:
    return FORWARD


def _weight(*_: Any, **__: Any) -> str:
    return BACKWARD_WEIGHT


def _backward(loss: Any = None, full_backward: bool = True, *_: Any, **__: Any) -> str:  # noqa: ARG001, FBT001, FBT002 - torch's own arguments
    return BACKWARD if full_backward else BACKWARD_INPUT


# What torch calls on a stage, and the kind of instruction that it is.
_EDGES: dict[str, Callable[..., str]] = {
    "forward_one_chunk": _forward,
    "backward_one_chunk": _backward,
    "backward_weight_one_chunk": _weight,
}


def _on_cuda(stage: Any) -> bool:
    return bool(getattr(getattr(stage, "device", None), "type", "cpu") == "cuda")


def _stages_of(torch_schedule: Any) -> list[Any]:
    one = getattr(torch_schedule, "_stage", None)
    stages = getattr(torch_schedule, "_stages", None) or ([] if one is None else [one])
    if not stages or not callable(getattr(torch_schedule, "step", None)):
        raise InvalidValueError(
            f"{type(torch_schedule).__name__} has no stages to observe",
            remedy="give a schedule of torch.distributed.pipelining, such as Schedule1F1B",
        )
    return list(stages)


def schedule_of(torch_schedule: Any) -> Schedule:
    """What each rank runs under a schedule object of torch, such as ``Schedule1F1B``.

    Every rank knows the order of all, so one object of any rank suffices. Sends, receives, waiting
    steps and reductions are left out; a forward that torch overlaps with a backward comes right
    before it. torch itself is not imported.

    Raises:
        InvalidValueError: The object has no order, or one that cannot run.
    """
    order = _order_of(torch_schedule)
    ranks = tuple(
        _renumbered(tuple(_computations(actions, rank)))
        for rank, (_, actions) in enumerate(sorted(order.items()))
    )
    schedule = Schedule(type(torch_schedule).__name__, ranks)
    dependencies(schedule)
    return schedule


def _order_of(torch_schedule: Any) -> dict[int, list[Any]]:
    order = getattr(torch_schedule, "pipeline_order", None)
    if not isinstance(order, dict) or not order:
        raise InvalidValueError(
            f"{type(torch_schedule).__name__} has no order of a pipeline",
            remedy="give a schedule of torch.distributed.pipelining, such as Schedule1F1B",
        )
    return order


def _computations(actions: Iterable[Any], rank: int) -> Iterator[Instruction]:
    for action in actions:
        if action is None:
            continue
        if action.sub_actions:
            yield from _computations(action.sub_actions, rank)
            continue
        kind = LETTERS.get(action.computation_type.value)
        if kind is not None:
            yield Instruction(action.stage_index, rank, kind, action.microbatch_index)


def _renumbered(steps: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """Correct an error of torch: its 1F1B order counts the last rank's forwards from 1, not 0.

    The step that torch runs is right; only the stated order is not.
    """
    forwards = [item.microbatch for item in steps if item.kind == FORWARD]
    if not forwards or min(forwards) == 0:
        return steps
    return tuple(
        Instruction(item.stage, item.rank, item.kind, item.microbatch - 1)
        if item.kind == FORWARD
        else item
        for item in steps
    )
