"""Schedules by name: GPipe, 1F1B, interleaved, early recomputation, ZB-H1, ZBV and DualPipe-V."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError
from joulery.pipeline.schedules._classic import gpipe, interleaved, one_f_one_b, recomputed
from joulery.pipeline.schedules._zero_bubble import dualpipe_v, zb_h1, zbv

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.pipeline._instructions import Instruction, Order

# More instructions than this would fill the memory before a result is shown.
_MAX_INSTRUCTIONS = 4_000_000


@dataclass(frozen=True, slots=True)
class Schedule:
    """What each rank runs in one iteration, in order.

    Attributes:
        name: Name to show.
        ranks: (ranks,), the instructions of each rank, first to last.
    """

    name: str
    ranks: Order

    @property
    def stages(self) -> int:
        """Number of pipeline stages; several may share a rank."""
        return 1 + max((item.stage for rank in self.ranks for item in rank), default=-1)

    @property
    def microbatches(self) -> int:
        """Number of microbatches per iteration."""
        return 1 + max((item.microbatch for rank in self.ranks for item in rank), default=-1)

    @property
    def chunks(self) -> int:
        """Stages per rank, where they are spread evenly."""
        return max(1, self.stages // max(1, len(self.ranks)))

    def instructions(self) -> tuple[Instruction, ...]:
        """All instructions, rank after rank."""
        return tuple(item for rank in self.ranks for item in rank)


_BY_NAME: dict[str, Callable[[int, int], Order]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "early-recompute": recomputed,
    "zb-h1": zb_h1,
    "zbv": zbv,
    "dualpipe-v": dualpipe_v,
}
SCHEDULES = ("gpipe", "1f1b", "early-recompute", "zb-h1", "interleaved", "zbv", "dualpipe-v")


def make_schedule(name: str, ranks: int, microbatches: int, *, chunks: int = 2) -> Schedule:
    """The schedule of a known name.

    Args:
        name: One of ``SCHEDULES``.
        ranks: Devices, or groups of devices, in the pipeline.
        microbatches: Pieces of the batch that travel through it.
        chunks: Stages per rank of ``interleaved``; ``zbv`` and ``dualpipe-v`` always have two.

    Raises:
        InvalidValueError: There is no such schedule, or not for these numbers.

    Examples:
        >>> [str(item) for item in make_schedule("1f1b", 2, 2).ranks[1]][:2]
        ['forward of microbatch 0 on stage 1', 'backward of microbatch 0 on stage 1']
    """
    for number, what in ((ranks, "stages"), (microbatches, "microbatches"), (chunks, "chunks")):
        if number < 1:
            raise InvalidValueError(
                f"a pipeline with {number} {what} has nothing to do",
                remedy=f"give at least 1 of {what}",
            )
    if 4 * ranks * microbatches * chunks > _MAX_INSTRUCTIONS:
        raise InvalidValueError(
            f"{ranks} stages with {microbatches} microbatches are too many to plan",
            remedy="plan one repetition of the steady state instead",
        )
    if name == "interleaved":
        return Schedule(name, interleaved(ranks, microbatches, chunks))
    if name not in _BY_NAME:
        raise InvalidValueError(
            f"unknown schedule {name!r}",
            remedy=f"known are {', '.join(SCHEDULES)}, or give a file with an order of your own",
        )
    return Schedule(name, _BY_NAME[name](ranks, microbatches))
