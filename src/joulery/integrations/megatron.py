"""Pipeline schedules of Megatron-Core: their order, and callbacks while they run."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.integrations._pipelines import OrderedCalls, queue_marker
from joulery.pipeline import BACKWARD, FORWARD, Instruction, Schedule, dependencies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from joulery.integrations._pipelines import PipelineObserver

_STEPS = {"forward_step": FORWARD, "backward_step": BACKWARD}
_ITERATIONS = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_without_interleaving",
    "forward_backward_pipelining_with_interleaving",
)


@contextmanager
def observed(
    schedules: Any,
    observer: PipelineObserver,
    order: Iterable[Instruction],
    *,
    on_cuda: bool = True,
) -> Iterator[None]:
    """Call an observer around everything that Megatron's schedules run, within the block.

    Get the function to train with from ``get_forward_backward_func()`` within the block. Calls with
    ``forward_only`` are not observed.

    Args:
        schedules: Module ``megatron.core.pipeline_parallel.schedules``.
        observer: A ``ClockController``, or a ``ClockProfiler`` without a plan.
        order: Instructions of this rank: ``RankPlan.order``, or ``schedule.ranks[rank]``.
        on_cuda: Whether work is queued on a CUDA device.

    Raises:
        InvalidValueError: The module has no such functions.
    """
    calls = OrderedCalls(observer, order, queue_marker(on_cuda))
    functions = {name: _function(schedules, name) for name in (*_STEPS, *_ITERATIONS)}
    for name, kind in _STEPS.items():
        setattr(schedules, name, _step(calls, kind, functions[name]))
    for name in _ITERATIONS:
        setattr(schedules, name, _iteration(calls, functions[name]))
    try:
        yield
    finally:
        for name, function in functions.items():
            setattr(schedules, name, function)


def _function(schedules: Any, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] | None = getattr(schedules, name, None)
    if function is None:
        raise InvalidValueError(
            f"{schedules!r} has no function {name}",
            remedy="give the module megatron.core.pipeline_parallel.schedules, of 0.10 or newer",
        )
    return function


def _step(calls: OrderedCalls, kind: str, run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **options: calls.call(kind, lambda: run(*arguments, **options))


def _iteration(calls: OrderedCalls, run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **options: calls.iteration(
        lambda: run(*arguments, **options), training=not options.get("forward_only", False)
    )


def schedule_of(schedules: Any, ranks: int, microbatches: int, *, chunks: int = 1) -> Schedule:
    """The instructions of each rank under Megatron's schedules, by Megatron's own tables.

    Args:
        schedules: Module ``megatron.core.pipeline_parallel.schedules``.
        ranks: Size of the pipeline (``pipeline_model_parallel_size``).
        microbatches: Number of microbatches per iteration.
        chunks: Model chunks per rank (``virtual_pipeline_model_parallel_size``), 1 without.

    Raises:
        InvalidValueError: The module has no such tables, or such a pipeline cannot run.
    """
    table_of = _function(schedules, "get_schedule_table")
    counts_of = _function(schedules, "get_pp_rank_microbatches")
    # As many microbatches in a row per chunk as there are ranks, which is Megatron's default.
    table = table_of(microbatches, chunks, ranks)
    orders = []
    for rank in range(ranks):
        group = SimpleNamespace(size=lambda: ranks, rank=lambda rank=rank: rank)
        communicator = SimpleNamespace(
            pp_group=group, virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None
        )
        _, _, warmup, remainder = counts_of(
            microbatches, chunks, ranks, p2p_communicator=communicator
        )
        forward = [Instruction(c * ranks + rank, rank, FORWARD, m) for m, c in table]
        back = [Instruction((chunks - 1 - c) * ranks + rank, rank, BACKWARD, m) for m, c in table]
        steady = (pair for k in range(remainder) for pair in (forward[warmup + k], back[k]))
        orders.append((*forward[:warmup], *steady, *back[remainder:]))
    schedule = Schedule("megatron", tuple(orders))
    dependencies(schedule)
    return schedule
