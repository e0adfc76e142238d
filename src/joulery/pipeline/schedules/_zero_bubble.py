"""Schedules that split backward passes to fill bubbles: ZB-H1, ZBV, DualPipe-V.

The gradient of the inputs (I) is what the previous stage waits for; the gradient of the weights
(W) can be delayed. ZB-H1 and ZBV are by Qi et al., "Zero Bubble Pipeline Parallelism" (2023);
DualPipe-V is DeepSeek's DualPipe cut in half. In a V-shaped pipeline each rank has two stages: one
on the way down to the last rank, one on the way back up.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError
from joulery.pipeline._instructions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Instruction,
)

if TYPE_CHECKING:
    from joulery.pipeline._instructions import Order

_DOWN, _UP = 0, 1


def zb_h1(ranks: int, microbatches: int) -> Order:
    """The memory of 1F1B with about a third of its bubble: weight gradients lag by the rank."""
    order = []
    for rank in range(ranks):
        warmup = min(ranks - 1 - rank, microbatches)
        steps = [(FORWARD, microbatch) for microbatch in range(warmup)]
        weights = 0
        for microbatch in range(microbatches):
            if microbatch + warmup < microbatches:
                steps.append((FORWARD, microbatch + warmup))
            steps.append((BACKWARD_INPUT, microbatch))
            if microbatch >= rank:
                steps.append((BACKWARD_WEIGHT, weights))
                weights += 1
        steps += [(BACKWARD_WEIGHT, microbatch) for microbatch in range(weights, microbatches)]
        order.append(tuple(Instruction(rank, rank, kind, batch) for kind, batch in steps))
    return tuple(order)


def zbv(ranks: int, microbatches: int) -> Order:
    """The V without a bubble, where forward and both halves of backward take the same time."""
    return tuple(_zbv_rank(rank, ranks, microbatches) for rank in range(ranks))


def dualpipe_v(ranks: int, microbatches: int) -> Order:
    """The V whose steady state pairs a forward of one way with a backward of the other.

    The pairs run one after the other here: forward, then backward.
    """
    if microbatches < 2 * ranks:
        raise InvalidValueError(
            f"dualpipe-v on {ranks} ranks cannot work with {microbatches} microbatches",
            remedy=f"use at least {2 * ranks} microbatches",
        )
    return tuple(_dualpipe_rank(rank, ranks, microbatches) for rank in range(ranks))


class _RankOfV:
    """The order of one rank as it grows; microbatches of each kind of work come in turn."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank = rank
        self._stages = (rank, 2 * ranks - 1 - rank)
        self._next: Counter[tuple[str, int]] = Counter()
        self._pending: deque[tuple[int, int]] = deque()
        self.steps: list[Instruction] = []

    def count(self, kind: str, way: int) -> int:
        """Number of instructions of a kind on one way so far."""
        return self._next[kind, way]

    def forward(self, way: int) -> None:
        self._append(FORWARD, way, self._take(FORWARD, way))

    def backward(self, way: int, *, full: bool = True) -> None:
        """Add a backward pass; unless it is whole, its weight gradient is pending."""
        microbatch = self._take(BACKWARD_INPUT, way)
        self._append(BACKWARD if full else BACKWARD_INPUT, way, microbatch)
        if not full:
            self._pending.append((way, microbatch))

    def weight(self, way: int | None = None) -> None:
        """Add the oldest pending weight gradient, of one way if given; nothing if there is none."""
        for item in self._pending:
            if way is None or item[0] == way:
                self._pending.remove(item)
                self._append(BACKWARD_WEIGHT, *item)
                return

    def split_backward(self, way: int) -> None:
        """Add the input gradient of one way and the oldest pending weight gradient."""
        self.backward(way, full=False)
        self.weight()

    def _take(self, kind: str, way: int) -> int:
        self._next[kind, way] += 1
        return self._next[kind, way] - 1

    def _append(self, kind: str, way: int, microbatch: int) -> None:
        self.steps.append(Instruction(self._stages[way], self._rank, kind, microbatch))


def _zbv_rank(rank: int, ranks: int, microbatches: int) -> tuple[Instruction, ...]:
    # Short iterations are long ones without the microbatches that are not there.
    total = max(2 * ranks - 1, microbatches)
    rank_steps = _RankOfV(rank, ranks)
    for _ in range(2 * (ranks - rank) - 1):
        rank_steps.forward(_DOWN)
    for _ in range(rank):
        rank_steps.forward(_UP)
        rank_steps.forward(_DOWN)
    for _ in range(ranks - rank):
        rank_steps.forward(_UP)
        rank_steps.split_backward(_UP)
    while rank_steps.count(FORWARD, _UP) < total:
        if rank_steps.count(FORWARD, _DOWN) < total:
            rank_steps.forward(_DOWN)
        rank_steps.split_backward(_DOWN)
        rank_steps.forward(_UP)
        rank_steps.split_backward(_UP)
    for _ in range(rank):
        rank_steps.backward(_DOWN, full=False)
        rank_steps.backward(_UP, full=False)
    for _ in range(ranks - rank):
        rank_steps.backward(_DOWN, full=False)
        rank_steps.weight(_DOWN)
    for way in (_UP, _DOWN):
        for _ in range(total):
            rank_steps.weight(way)
    return tuple(item for item in rank_steps.steps if item.microbatch < microbatches)


def _dualpipe_rank(rank: int, ranks: int, microbatches: int) -> tuple[Instruction, ...]:
    rank_steps = _RankOfV(rank, ranks)
    above, below = rank + 1, ranks - rank - 1
    for _ in range(2 * below):
        rank_steps.forward(_DOWN)
    for _ in range(above):
        rank_steps.forward(_DOWN)
        rank_steps.forward(_UP)
    for _ in range(below):
        rank_steps.split_backward(_UP)
        rank_steps.forward(_UP)
    for _ in range(microbatches - 2 * ranks + above):
        rank_steps.forward(_DOWN)
        rank_steps.backward(_UP)
        rank_steps.forward(_UP)
        rank_steps.backward(_DOWN)
    for _ in range(below):
        rank_steps.backward(_UP)
        rank_steps.forward(_UP)
        rank_steps.backward(_DOWN)
    # No forwards are left: from half way on, backwards leave their weight gradient for the end.
    for position in range(2 * above):
        rank_steps.backward(_DOWN if position % 2 else _UP, full=position < above)
    for _ in range(below):
        rank_steps.weight()
        rank_steps.backward(_DOWN, full=False)
    for _ in range(above):
        rank_steps.weight()
    return tuple(rank_steps.steps)
