"""Boards and jobs drawn at random, for what the power benchmark has to say about unseen ones.

Every draw is a board of the catalog that no measurement stands behind, its constants shaken, under
a job of random compute, memory traffic, waiting and activity. Curves can be bent: kinks, dips of
time or power, and steps, which no board model has. No constant of the tuner was chosen on any of
them; those it was chosen on came from other seeds.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from joulery.hardware import Board, Workload, catalog, settle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Curve = NDArray[np.float64]

# Apart from seeds of noise, and from anything that was tried while the tuner was made.
FIRST_SEED = 770_000


def drawn(number: int) -> tuple[Board, Workload]:
    """The board and job of one draw."""
    chance = random.Random(FIRST_SEED + number)  # noqa: S311 - a benchmark, not a secret
    names = [name for name in catalog.names() if _unseen(name)]
    return _shaken(catalog.board(chance.choice(names)), chance), _job(chance)


def drawn_curves(number: int) -> tuple[Curve, Curve, Curve]:
    """Whole-watt limits, and the seconds and watts of one draw under each."""
    board, work = drawn(number)
    limits = range(math.ceil(board.min_limit_watts), math.floor(board.default_limit_watts) + 1)
    steady = [settle(board, work, limit) for limit in limits]
    return (
        np.array(limits, dtype=np.float64),
        np.array([each.seconds for each in steady]),
        np.array([each.watts for each in steady]),
    )


def bent(number: int, limits: Curve, seconds: Curve, watts: Curve) -> tuple[Curve, Curve]:
    """Seconds and watts with one to three kinks, dips or steps of 1 to 8 %."""
    chance = random.Random(FIRST_SEED + number)  # noqa: S311 - a benchmark, not a secret
    lowest, highest = limits[0], limits[-1]
    for _ in range(chance.randint(1, 3)):
        at, width = chance.uniform(lowest, highest), highest * chance.uniform(0.06, 0.2)
        size = chance.choice([-1, 1]) * chance.uniform(0.01, 0.08)
        dip = np.exp(size * np.maximum(0.0, 1 - np.abs(limits - at) / width))
        kind = chance.choice(["kink", "dip", "power dip", "step"])
        if kind == "kink":
            seconds = seconds * np.exp(2 * size * np.maximum(0.0, at - limits) / (highest - lowest))
        elif kind == "dip":
            seconds = seconds * dip
        elif kind == "power dip":
            watts = watts * dip
        else:
            seconds = seconds * np.where(limits < at, math.exp(abs(size) / 2), 1.0)
    return seconds, watts


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
