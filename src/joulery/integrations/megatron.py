"""Pipeline schedules of Megatron-Core: their order, and callbacks while they run."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.integrations._pipelines import ObservedCalls, queue_marker
from joulery.pipeline import BACKWARD, FORWARD, Instruction, Schedule, dependencies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from joulery.integrations._pipelines import PipelineObserver

_STEPS = ("forward_step", "backward_step")
_ITERATIONS = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_without_interleaving",
    "forward_backward_pipelining_with_interleaving",
)


@contextmanager
def observed(schedules: Any, observer: PipelineObserver, *, on_cuda: bool = True) -> Iterator[None]:
    """Call an observer around everything that Megatron's schedules run, within the block.

    Get the function to train with from ``get_forward_backward_func()`` within the block. Calls with
    ``forward_only`` are not observed. Stages follow from Megatron's own pipeline rank and model
    chunk: chunk c of rank r is stage c × ranks + r.

    Args:
        schedules: Module ``megatron.core.pipeline_parallel.schedules``.
        observer: A ``ClockController``, or a ``ClockProfiler`` without a plan.
        on_cuda: Whether work is queued on a CUDA device.

    Raises:
        InvalidValueError: The module has no such functions.
    """
    functions = {name: _function(schedules, name) for name in (*_STEPS, *_ITERATIONS)}
    steps = _Steps(schedules, ObservedCalls(observer, queue_marker(on_cuda)))
    schedules.forward_step = steps.forward(functions["forward_step"])
    schedules.backward_step = steps.backward(functions["backward_step"])
    for name in _ITERATIONS:
        setattr(schedules, name, steps.iteration(functions[name]))
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


class _Steps:
    """Names the instructions that Megatron runs: its own rank, model chunk and microbatch.

    A backward says neither chunk nor microbatch, but is given the output of its forward.
    """

    def __init__(self, schedules: Any, calls: ObservedCalls) -> None:
        self._state = getattr(schedules, "parallel_state", None)
        self._calls = calls
        self._rank, self._ranks = 0, 1
        # Stage and microbatch of each forward whose backward is to come, by its output.
        self._open: dict[int, tuple[int, int]] = {}

    def iteration(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """An iteration, as Megatron calls it."""

        def call(*arguments: Any, **options: Any) -> Any:
            self._rank, self._ranks = self._group(options.get("p2p_communicator"))
            self._open.clear()
            return self._calls.iteration(
                lambda: run(*arguments, **options),
                training=not options.get("forward_only", False),
                microbatches=options.get("num_microbatches"),
            )

        return call

    def forward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """A forward of one microbatch through one model chunk."""

        def call(*arguments: Any, **options: Any) -> Any:
            stage = self._chunk(options.get("vp_stage")) * self._ranks + self._rank
            microbatch = options.get("current_microbatch", -1)
            result = self._calls.call(
                stage, FORWARD, microbatch, lambda: run(*arguments, **options)
            )
            self._open[_identity(result)] = stage, microbatch
            return result

        return call

    def backward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """A backward of one microbatch through one model chunk."""

        def call(*arguments: Any, **options: Any) -> Any:
            output = options["output_tensor"] if "output_tensor" in options else arguments[1]
            stage, microbatch = self._open.pop(_identity(output), (self._rank, -1))
            return self._calls.call(stage, BACKWARD, microbatch, lambda: run(*arguments, **options))

        return call

    def _group(self, communicator: Any) -> tuple[int, int]:
        """Pipeline rank and number of ranks."""
        group = getattr(communicator, "pp_group", None)
        if group is not None:
            return group.rank(), group.size()
        if self._state is None:
            return 0, 1
        return (
            self._state.get_pipeline_model_parallel_rank(),
            self._state.get_pipeline_model_parallel_world_size(),
        )

    def _chunk(self, chunk: int | None) -> int:
        """The model chunk; versions before 0.13 note it in their state only."""
        if chunk is None and self._state is not None:
            chunk = self._state.get_virtual_pipeline_model_parallel_rank()
        return chunk or 0


def _identity(output: Any) -> int:
    """What tells an output from others: its first tensor, alone or in lists."""
    while isinstance(output, list | tuple) and output:
        output = output[0]
    return id(output)


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
