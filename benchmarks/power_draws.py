"""Boards and jobs drawn at random, for what the power benchmark has to say about unseen ones.

Every draw is a board of the catalog that no measurement stands behind, its constants shaken, under
a job of random compute, memory traffic, waiting and activity. No constant of the tuner was chosen
on any of them.
"""

from __future__ import annotations

import random
from dataclasses import replace

from joulery.hardware import Board, Workload, catalog

# Apart from seeds of noise, and from anything that was tried while the tuner was made.
FIRST_SEED = 770_000


def drawn(number: int) -> tuple[Board, Workload]:
    """The board and job of one draw."""
    chance = random.Random(FIRST_SEED + number)  # noqa: S311 - a benchmark, not a secret
    names = [name for name in catalog.names() if _unseen(name)]
    return _shaken(catalog.board(chance.choice(names)), chance), _job(chance)


def _unseen(name: str) -> bool:
    board, stated = catalog.board(name), catalog.specs(name)
    roomy = board.default_limit_watts - board.min_limit_watts >= 30
    return stated.vendor == "nvidia" and not board.fitted and not stated.same_chip_as and roomy


def _shaken(board: Board, chance: random.Random) -> Board:
    lowest, highest = board.min_clock_hertz, board.max_clock_hertz
    return replace(
        board,
        clock_watts=board.clock_watts * chance.uniform(0.8, 1.25),
        dynamic_watts=board.dynamic_watts * chance.uniform(0.8, 1.25),
        memory_watts=board.memory_watts * chance.uniform(0.8, 1.25),
        voltage_floor=min(1.0, max(0.4, board.voltage_floor * chance.uniform(0.85, 1.15))),
        knee_clock_hertz=min(
            0.95 * highest, max(lowest, board.knee_clock_hertz * chance.uniform(0.8, 1.2))
        ),
    )


def _job(chance: random.Random) -> Workload:
    return Workload(
        "drawn",
        compute_seconds=1.0,
        memory_seconds=chance.choice([0.0, chance.uniform(0.0, 1.2)]),
        host_seconds=chance.choice([0.0, chance.uniform(0.0, 0.15), chance.uniform(0.0, 0.6)]),
        activity=chance.uniform(0.35, 1.0),
    )
