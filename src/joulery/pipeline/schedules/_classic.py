"""Schedules with whole backward passes: GPipe, 1F1B, interleaved, early recomputation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError
from joulery.pipeline._instructions import BACKWARD, FORWARD, RECOMPUTE, Instruction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.pipeline._instructions import Order


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
    """How many microbatches in a row visit one chunk before the rank turns to its next chunk."""
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
