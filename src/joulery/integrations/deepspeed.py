"""Pipeline schedules of DeepSpeed: their order, and callbacks while they run."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.integrations._pipelines import ObservedCalls, queue_marker
from joulery.pipeline import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    REDUCE,
    Instruction,
    Schedule,
    dependencies,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from joulery.integrations._pipelines import PipelineObserver

_KINDS = {"ForwardPass": FORWARD, "BackwardPass": BACKWARD}
_ENDINGS = {"ReduceGrads": REDUCE, "OptimizerStep": OPTIMIZER}


@contextmanager
def observed(engine: Any, observer: PipelineObserver, *, on_cuda: bool = True) -> Iterator[None]:
    """Call an observer around everything that a DeepSpeed engine trains, within the block.

    ``train_batch`` is an iteration; ``eval_batch`` is not observed. The stage is the engine's own
    ``stage_id``; microbatches are counted, since the engine runs them in order.

    Args:
        engine: A ``PipelineEngine``, as ``deepspeed.initialize`` gives it.
        observer: A ``ClockController``, or a ``ClockProfiler`` without a plan.
        on_cuda: Whether work is queued on a CUDA device.

    Raises:
        InvalidValueError: The object is not a pipeline engine.
    """
    commands, train = (
        getattr(engine, "_INSTRUCTION_MAP", None),
        getattr(engine, "train_batch", None),
    )
    if not isinstance(commands, dict) or not callable(train) or not hasattr(engine, "stage_id"):
        raise InvalidValueError(
            f"{type(engine).__name__} is not a pipeline engine",
            remedy="give what deepspeed.initialize() returns for a PipelineModule",
        )
    calls = ObservedCalls(observer, queue_marker(on_cuda))
    counts: Counter[tuple[str, int]] = Counter()
    kinds = _KINDS | _ENDINGS
    engine._INSTRUCTION_MAP = {  # noqa: SLF001 - the only place that all commands pass
        command: _command(calls, counts, kinds[command.__name__], run)
        if command.__name__ in kinds
        else run
        for command, run in commands.items()
    }

    def train_batch(*arguments: Any, **options: Any) -> Any:
        counts.clear()
        return calls.iteration(
            lambda: train(*arguments, **options),
            microbatches=getattr(engine, "micro_batches", None),
        )

    engine.train_batch = train_batch
    try:
        yield
    finally:
        # The class's own show again.
        del engine._INSTRUCTION_MAP, engine.train_batch  # noqa: SLF001 - as above


def _command(
    calls: ObservedCalls, counts: Counter[tuple[str, int]], kind: str, run: Callable[..., Any]
) -> Callable[..., Any]:
    def wrapped(engine: Any, *arguments: Any, **options: Any) -> Any:
        way = options.get("phase", 0)
        microbatch = -1 if kind in _ENDINGS.values() else counts[kind, way]
        counts[kind, way] += 1
        return calls.call(
            _stage(engine.stage_id, getattr(engine, "num_stages", 1), way),
            kind,
            microbatch,
            lambda: run(engine, *arguments, **options),
        )

    return wrapped


def _stage(rank: int, ranks: int, way: int) -> int:
    """The stage of a rank; schedules with two stages per rank name the way of a microbatch."""
    return 2 * ranks - 1 - rank if way else rank


def schedule_of(schedule: Callable[..., Any], ranks: int, microbatches: int) -> Schedule:
    """The instructions of each rank under a schedule class of DeepSpeed, such as ``TrainSchedule``.

    The reduction of gradients and the optimizer step are left to ``PipelineConfig``.

    Args:
        schedule: Class from ``deepspeed.runtime.pipe.schedule``.
        ranks: Size of the pipeline (``stages`` in DeepSpeed).
        microbatches: Number of microbatches per iteration.

    Raises:
        InvalidValueError: Such a pipeline cannot run.
    """
    orders = []
    for rank in range(ranks):
        counts: Counter[tuple[str, int]] = Counter()
        steps = []
        rank_schedule = schedule(micro_batches=microbatches, stages=ranks, stage_id=rank)
        for command in (command for commands in rank_schedule.steps() for command in commands):
            kind = _KINDS.get(type(command).__name__)
            if kind is None:
                continue
            way = getattr(command, "kwargs", {}).get("phase", 0)
            steps.append(Instruction(_stage(rank, ranks, way), rank, kind, counts[kind, way]))
            counts[kind, way] += 1
        orders.append(tuple(steps))
    result = Schedule(getattr(schedule, "__name__", "deepspeed"), tuple(orders))
    dependencies(result)
    return result
