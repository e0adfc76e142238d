"""What must end before what starts in a schedule, and whether the schedule can end at all."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.pipeline.schedules_words import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    OPTIMIZER,
    RECOMPUTE,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from joulery.pipeline.problem import Instruction
    from joulery.pipeline.schedules import Schedule

_REMEDY = "each microbatch needs one forward and one backward (whole, or both halves) per stage"
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Edges between instructions, numbered rank after rank in the order of the schedule.

    Attributes:
        edge_from: What must end ...
        edge_to: ... before this starts.
        crosses: Whether data travels from one rank to another in between.
    """

    edge_from: NDArray[np.int64]
    edge_to: NDArray[np.int64]
    crosses: NDArray[np.bool_]


def dependencies(schedule: Schedule) -> Dependencies:
    """The edges of a schedule: the order within ranks, and data between them.

    Raises:
        InvalidValueError: An instruction is missing, there twice or on a wrong rank, or the ranks
            would wait for each other forever.
    """
    instructions = schedule.instructions()
    where = _positions(instructions)
    _complete(schedule, where)
    ranks = [item.rank for item in instructions]
    inside = [
        (position, position + 1)
        for position in range(len(instructions) - 1)
        if ranks[position] == ranks[position + 1]
    ]
    across = []
    for before, after in _data(schedule.stages, where):
        if ranks[before] != ranks[after]:
            across.append((before, after))
        elif before > after:
            raise InvalidValueError(
                f"rank {ranks[after]} runs {instructions[after]} before {instructions[before]}",
                remedy="swap them: the one needs what the other computes",
            )
    edges = np.array(inside + across, dtype=np.int64).reshape(-1, 2)
    crosses = np.arange(len(edges)) >= len(inside)
    found = Dependencies(edges[:, 0].copy(), edges[:, 1].copy(), crosses)
    _check_ends(schedule, found)
    return found


def _positions(instructions: tuple[Instruction, ...]) -> dict[tuple[str, int, int], int]:
    where: dict[tuple[str, int, int], int] = {}
    for position, item in enumerate(instructions):
        key = (item.kind, item.stage, item.microbatch)
        if key in where:
            raise InvalidValueError(
                f"the order holds {item} twice", remedy="list each instruction once"
            )
        where[key] = position
    return where


def _complete(schedule: Schedule, where: dict[tuple[str, int, int], int]) -> None:
    if not where:
        raise InvalidValueError("the order is empty", remedy=_REMEDY)
    home: dict[int, int] = {}
    for rank, steps in enumerate(schedule.ranks):
        for item in steps:
            if item.rank != rank or home.setdefault(item.stage, rank) != rank:
                raise InvalidValueError(
                    f"{item} is in the order of rank {rank}, but stage {item.stage} lives on "
                    f"rank {home.get(item.stage, item.rank)}",
                    remedy="keep all instructions of a stage on one rank",
                )
    for stage in range(schedule.stages):
        for microbatch in range(schedule.microbatches):
            lacking = _lacking(where, stage, microbatch)
            if lacking:
                raise InvalidValueError(
                    f"the order lacks {lacking} of microbatch {microbatch} on stage {stage}",
                    remedy=_REMEDY,
                )


def _lacking(where: dict[tuple[str, int, int], int], stage: int, microbatch: int) -> str:
    whole, half, other_half = (
        (kind, stage, microbatch) in where for kind in (BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
    )
    if (FORWARD, stage, microbatch) not in where:
        return FORWARD
    if whole and (half or other_half):
        raise InvalidValueError(
            f"the order holds backward of microbatch {microbatch} on stage {stage} both whole "
            "and in halves",
            remedy=_REMEDY,
        )
    if whole or (half and other_half):
        return ""
    if half or other_half:
        return BACKWARD_WEIGHT if half else BACKWARD_INPUT
    return BACKWARD


def _data(stages: int, where: dict[tuple[str, int, int], int]) -> Iterator[tuple[int, int]]:
    """Pairs of positions: what computes, what needs the result."""
    for (kind, stage, microbatch), position in where.items():
        for other_kind, other_stage in _needs(kind, stage, stages):
            found = where.get((other_kind, other_stage, microbatch))
            if found is not None:
                yield found, position
    # The optimizer of a stage needs every gradient of it; the last one on its rank suffices.
    for (kind, stage, _), position in where.items():
        if kind in (BACKWARD, BACKWARD_WEIGHT):
            found = where.get((OPTIMIZER, stage, -1))
            if found is not None:
                yield position, found


def _needs(kind: str, stage: int, stages: int) -> list[tuple[str, int]]:
    if kind == FORWARD:
        return [(FORWARD, stage - 1)] if stage else []
    if kind in (BACKWARD, BACKWARD_INPUT):
        after = [(BACKWARD, stage + 1), (BACKWARD_INPUT, stage + 1)] if stage + 1 < stages else []
        return [(FORWARD, stage), (RECOMPUTE, stage), *after]
    if kind == BACKWARD_WEIGHT:
        return [(BACKWARD_INPUT, stage)]
    return [(FORWARD, stage)] if kind == RECOMPUTE else []


def _check_ends(schedule: Schedule, edges: Dependencies) -> None:
    """Run the order without durations; complain where ranks wait for each other forever."""
    instructions = schedule.instructions()
    waiting = np.bincount(edges.edge_to, minlength=len(instructions)).tolist()
    followers: dict[int, list[int]] = defaultdict(list)
    for before, after in zip(edges.edge_from.tolist(), edges.edge_to.tolist(), strict=True):
        followers[before].append(after)
    ready = [position for position, count in enumerate(waiting) if not count]
    left = len(instructions)
    while ready:
        left -= 1
        for after in followers[ready.pop()]:
            waiting[after] -= 1
            if not waiting[after]:
                ready.append(after)
    if left:
        stuck: dict[int, Instruction] = {}
        for item, count in zip(instructions, waiting, strict=True):
            if count:
                stuck.setdefault(item.rank, item)
        named = [f"rank {rank} at {item}" for rank, item in stuck.items()][:_MOST_NAMED]
        raise InvalidValueError(
            "the ranks wait for each other forever: " + ", ".join(named),
            remedy="reorder one of these instructions",
        )
