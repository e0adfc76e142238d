"""The dependencies between instructions of a schedule, and whether the schedule can finish."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joulery.errors import InvalidValueError
from joulery.pipeline._instructions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    OPTIMIZER,
    RECOMPUTE,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from joulery.pipeline._instructions import Instruction
    from joulery.pipeline.schedules._schedule import Schedule

    Positions = dict[tuple[int, str, int], int]

_REMEDY = "each microbatch needs one forward and one backward (whole, or both halves) per stage"
# Ranks to name in an error; by hand.
_MAX_NAMED = 4


class Dependencies(NamedTuple):
    """Edges between instructions, numbered rank after rank in the order of the schedule.

    An edge ``crosses`` where data travels from one rank to another.
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
    positions = _positions(instructions)
    _check_complete(schedule, positions)
    ranks = [item.rank for item in instructions]
    inside = [
        (position, position + 1)
        for position in range(len(instructions) - 1)
        if ranks[position] == ranks[position + 1]
    ]
    across = []
    for before, after in _data_edges(schedule.stages, positions):
        if ranks[before] != ranks[after]:
            across.append((before, after))
        elif before > after:
            raise InvalidValueError(
                f"rank {ranks[after]} runs {instructions[after]} before {instructions[before]}",
                remedy="swap them: the one needs what the other computes",
            )
    edges = np.array(inside + across, dtype=np.int64).reshape(-1, 2)
    crosses = np.arange(len(edges)) >= len(inside)
    edges_between = Dependencies(edges[:, 0].copy(), edges[:, 1].copy(), crosses)
    topological_order(instructions, edges_between.edge_from, edges_between.edge_to)
    return edges_between


def topological_order(
    instructions: Sequence[Instruction], edge_from: NDArray[np.int64], edge_to: NDArray[np.int64]
) -> list[int]:
    """Positions of instructions, each after all that it waits for (Kahn).

    Raises:
        InvalidValueError: There is no such order; says where each rank is stuck.
    """
    count = len(instructions)
    missing = np.bincount(edge_to, minlength=count).tolist()
    by_node = np.argsort(edge_from, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(edge_from, minlength=count))]).tolist()
    followers = edge_to[by_node].tolist()
    order = [i for i in range(count) if not missing[i]]
    for i in order:
        for j in followers[first[i] : first[i + 1]]:
            missing[j] -= 1
            if not missing[j]:
                order.append(j)
    if len(order) < count:
        stuck: dict[int, Instruction] = {}
        for position in sorted(set(range(count)) - set(order)):
            stuck.setdefault(instructions[position].rank, instructions[position])
        names = [f"rank {rank} at {item}" for rank, item in stuck.items()][:_MAX_NAMED]
        raise InvalidValueError(
            "the ranks wait for each other forever: " + ", ".join(names),
            remedy="change the order of the instructions of one rank",
        )
    return order


def _positions(instructions: tuple[Instruction, ...]) -> Positions:
    positions: Positions = {}
    for position, item in enumerate(instructions):
        if item.key in positions:
            raise InvalidValueError(
                f"the order holds {item} twice", remedy="list each instruction once"
            )
        positions[item.key] = position
    return positions


def _check_complete(schedule: Schedule, positions: Positions) -> None:
    if not positions:
        raise InvalidValueError("the order is empty", remedy=_REMEDY)
    rank_of: dict[int, int] = {}
    for rank, steps in enumerate(schedule.ranks):
        for item in steps:
            if item.rank != rank or rank_of.setdefault(item.stage, rank) != rank:
                raise InvalidValueError(
                    f"{item} is in the order of rank {rank}, but stage {item.stage} is on "
                    f"rank {rank_of.get(item.stage, item.rank)}",
                    remedy="keep all instructions of a stage on one rank",
                )
    for stage in range(schedule.stages):
        for microbatch in range(schedule.microbatches):
            missing = _missing_kind(positions, stage, microbatch)
            if missing:
                raise InvalidValueError(
                    f"the order lacks {missing} of microbatch {microbatch} on stage {stage}",
                    remedy=_REMEDY,
                )


def _missing_kind(positions: Positions, stage: int, microbatch: int) -> str:
    complete, half, other_half = (
        (stage, kind, microbatch) in positions
        for kind in (BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
    )
    if (stage, FORWARD, microbatch) not in positions:
        return FORWARD
    if complete and (half or other_half):
        raise InvalidValueError(
            f"the order holds backward of microbatch {microbatch} on stage {stage} both whole "
            "and in halves",
            remedy=_REMEDY,
        )
    if complete or (half and other_half):
        return ""
    if half or other_half:
        return BACKWARD_WEIGHT if half else BACKWARD_INPUT
    return BACKWARD


def _data_edges(stages: int, positions: Positions) -> Iterator[tuple[int, int]]:
    """Pairs of positions: the instruction that computes, the one that needs the result."""
    for (stage, kind, microbatch), position in positions.items():
        for other_kind, other_stage in _needs(kind, stage, stages):
            source = positions.get((other_stage, other_kind, microbatch))
            if source is not None:
                yield source, position
    # The optimizer of a stage needs every gradient of it; the last one on its rank suffices.
    for (stage, kind, _), position in positions.items():
        if kind in (BACKWARD, BACKWARD_WEIGHT):
            source = positions.get((stage, OPTIMIZER, -1))
            if source is not None:
                yield position, source


def _needs(kind: str, stage: int, stages: int) -> list[tuple[str, int]]:
    if kind == FORWARD:
        return [(FORWARD, stage - 1)] if stage else []
    if kind in (BACKWARD, BACKWARD_INPUT):
        after = [(BACKWARD, stage + 1), (BACKWARD_INPUT, stage + 1)] if stage + 1 < stages else []
        return [(FORWARD, stage), (RECOMPUTE, stage), *after]
    if kind == BACKWARD_WEIGHT:
        return [(BACKWARD_INPUT, stage)]
    return [(FORWARD, stage)] if kind == RECOMPUTE else []
