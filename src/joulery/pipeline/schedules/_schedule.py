"""Schedules by name: GPipe, 1F1B, interleaved, early recomputation, ZB-H1, ZBV and DualPipe-V."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.arguments import check_whole
from joulery.errors import InvalidValueError
from joulery.pipeline._instructions import BACKWARD, FORWARD, RECOMPUTE, Instruction
from joulery.pipeline.schedules._zero_bubble import dualpipe_v, zb_h1, zbv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from joulery.pipeline._instructions import Order

# Planned within a minute: random profiles of 32 stages and 20 clocks took half of it. Comparing all
# schedules plans a dozen times as many.
_MOST_INSTRUCTIONS, MOST_COMPARED = 100_000, 20_000


@dataclass(frozen=True, slots=True)
class Schedule:
    """The instructions of each rank in one iteration, in order.

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


def gpipe(ranks: int, microbatches: int) -> Order:
    """All forward passes, then all backward passes."""
    return tuple(
        tuple(
            Instruction(rank, rank, kind, microbatch)
            for kind in (FORWARD, BACKWARD)
            for microbatch in range(microbatches)
        )
        for rank in range(ranks)
    )


def one_f_one_b(ranks: int, microbatches: int) -> Order:
    """One forward, one backward in turn, after just enough forwards to fill the pipeline."""
    return tuple(
        tuple(
            Instruction(rank, rank, kind, microbatch)
            for kind, microbatch in _alternating(ranks - 1 - rank, microbatches)
        )
        for rank in range(ranks)
    )


def recomputed(ranks: int, microbatches: int) -> Order:
    """1F1B with activations recomputed before each backward, while its gradient is in transit.

    The last rank runs each backward right after its forward and still has the activations.
    """
    order = []
    for rank, instructions in enumerate(one_f_one_b(ranks, microbatches)):
        steps = []
        for item in instructions:
            if item.kind == BACKWARD and rank < ranks - 1:
                steps.append(Instruction(item.stage, rank, RECOMPUTE, item.microbatch))
            steps.append(item)
        order.append(tuple(steps))
    return tuple(order)


def interleaved(ranks: int, microbatches: int, chunks: int) -> Order:
    """1F1B over ``chunks`` stages per rank, assigned in turn (Narayanan et al., SC'21)."""
    per_round = _round_size(ranks, microbatches)
    order = []
    for rank in range(ranks):
        warmup = min((chunks - 1) * per_round + 2 * (ranks - 1 - rank), microbatches * chunks)
        forwards = _visits(rank, ranks, microbatches, range(chunks))
        backwards = _visits(rank, ranks, microbatches, range(chunks - 1, -1, -1))
        steps = []
        for kind, position in _alternating(warmup, microbatches * chunks):
            stage, microbatch = (forwards if kind == FORWARD else backwards)[position]
            steps.append(Instruction(stage, rank, kind, microbatch))
        order.append(tuple(steps))
    return tuple(order)


def _round_size(ranks: int, microbatches: int) -> int:
    """Number of microbatches that visit one chunk before the rank turns to its next chunk."""
    rounds = max(1, microbatches // ranks)
    if microbatches % rounds:
        raise InvalidValueError(
            f"{microbatches} microbatches do not fill whole rounds of {ranks} ranks",
            remedy=f"use a multiple of {ranks} microbatches",
        )
    return microbatches // rounds


def _visits(rank: int, ranks: int, microbatches: int, chunks: range) -> list[tuple[int, int]]:
    """The (stage, microbatch) pairs that a rank visits; ``chunks`` in the order of a round."""
    per_round = _round_size(ranks, microbatches)
    return [
        (chunk * ranks + rank, first + offset)
        for first in range(0, microbatches, per_round)
        for chunk in chunks
        for offset in range(per_round)
    ]


def _alternating(warmup: int, count: int) -> Iterator[tuple[str, int]]:
    """``warmup`` forwards, then forward and backward in turn, then the remaining backwards."""
    warmup = min(warmup, count)
    for position in range(warmup):
        yield FORWARD, position
    for position in range(warmup, count):
        yield FORWARD, position
        yield BACKWARD, position - warmup
    for position in range(count - warmup, count):
        yield BACKWARD, position


def check_instructions(count: int, most: int = _MOST_INSTRUCTIONS) -> None:
    """Refuse more instructions than are planned within a minute.

    Args:
        count: Number of instructions, at least a forward and a backward per stage and microbatch.
        most: Largest number to plan.

    Raises:
        InvalidValueError: There are more.
    """
    if count > most:
        others = ", or name one schedule" * (most < _MOST_INSTRUCTIONS)
        raise InvalidValueError(
            f"{count:,} instructions are more than the {most:,} that can be planned in a minute",
            remedy=f"give fewer microbatches, since the steady state repeats{others}",
        )


SCHEDULES: dict[str, Callable[..., Order]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "early-recompute": recomputed,
    "zb-h1": zb_h1,
    "interleaved": interleaved,
    "zbv": zbv,
    "dualpipe-v": dualpipe_v,
}


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
    for number, noun in ((ranks, "stages"), (microbatches, "microbatches"), (chunks, "chunks")):
        check_whole(number, noun)
    # Before the order, which would fill the memory.
    check_instructions(2 * ranks * microbatches * (chunks if name == "interleaved" else 1))
    if name not in SCHEDULES:
        raise InvalidValueError(
            f"unknown schedule {name!r}",
            remedy=f"known are {', '.join(SCHEDULES)}, or give a file with an order of your own",
        )
    options = (chunks,) if name == "interleaved" else ()
    return Schedule(name, SCHEDULES[name](ranks, microbatches, *options))
