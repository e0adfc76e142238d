"""Schedules of torch.distributed.pipelining: their order, and callbacks while they run."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.integrations._pipelines import ObservedCalls, queue_marker
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

    from joulery.integrations._pipelines import PipelineObserver

_REMEDY = "give a schedule of torch.distributed.pipelining, such as Schedule1F1B"


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
        InvalidValueError: The object is not a schedule with stages.
    """
    stages = _stages_of(torch_schedule)
    step = torch_schedule.step
    calls = ObservedCalls(observer, queue_marker(_on_cuda(stages[0])))

    def observed_step(*arguments: Any, **options: Any) -> Any:
        return calls.iteration(
            lambda: step(*arguments, **options),
            training=bool(getattr(torch_schedule, "_has_backward", True)),
            microbatches=getattr(torch_schedule, "_n_microbatches", None),
        )

    def observed_call(stage: Any, name: str) -> Callable[..., Any]:
        run, kind_of, number = getattr(stage, name), _KIND_OF[name], stage.stage_index

        def call(microbatch: int, *arguments: Any, **options: Any) -> Any:
            kind = kind_of(*arguments, **options)
            return calls.call(
                number, kind, microbatch, lambda: run(microbatch, *arguments, **options)
            )

        return call

    wrapped = [
        (torch_schedule, "step", observed_step),
        *((stage, name, observed_call(stage, name)) for stage in stages for name in _KIND_OF),
    ]
    for owner, name, wrapper in wrapped:
        setattr(owner, name, wrapper)
    try:
        yield
    finally:
        for owner, name, _ in wrapped:
            # The class's own method shows again.
            delattr(owner, name)


def _backward(loss: Any = None, full_backward: bool = True, *_: Any, **__: Any) -> str:  # noqa: ARG001, FBT001, FBT002 - torch's own arguments
    return BACKWARD if full_backward else BACKWARD_INPUT


# What torch calls on a stage, and the kind of instruction that it is by its other arguments.
_KIND_OF: dict[str, Callable[..., str]] = {
    "forward_one_chunk": lambda *_, **__: FORWARD,
    "backward_one_chunk": _backward,
    "backward_weight_one_chunk": lambda *_, **__: BACKWARD_WEIGHT,
}


def _on_cuda(stage: Any) -> bool:
    return bool(getattr(getattr(stage, "device", None), "type", "cpu") == "cuda")


def _stages_of(torch_schedule: Any) -> list[Any]:
    stage = getattr(torch_schedule, "_stage", None)
    stages = getattr(torch_schedule, "_stages", None) or ([] if stage is None else [stage])
    if not stages or not callable(getattr(torch_schedule, "step", None)):
        raise InvalidValueError(
            f"{type(torch_schedule).__name__} has no stages to observe", remedy=_REMEDY
        )
    return list(stages)


def schedule_of(torch_schedule: Any) -> Schedule:
    """The instructions of each rank under a schedule object of torch, such as ``Schedule1F1B``.

    Every rank's object holds the order of all ranks, so one of any rank suffices. Sends,
    receives, waiting steps and reductions are left out; a forward that torch overlaps with a
    backward comes right before it. torch itself is not imported.

    Raises:
        InvalidValueError: The object has no order, or one that cannot run.
    """
    order = getattr(torch_schedule, "pipeline_order", None)
    if not isinstance(order, dict) or not order:
        raise InvalidValueError(
            f"{type(torch_schedule).__name__} has no order of a pipeline", remedy=_REMEDY
        )
    ranks = tuple(
        _renumbered(tuple(_computations(actions, rank)))
        for rank, (_, actions) in enumerate(sorted(order.items()))
    )
    schedule = Schedule(type(torch_schedule).__name__, ranks)
    dependencies(schedule)
    return schedule


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
        replace(item, microbatch=item.microbatch - 1) if item.kind == FORWARD else item
        for item in steps
    )
