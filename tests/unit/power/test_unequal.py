"""Shares of ranks whose boards differ, on arrays: sans I/O, so every step is exact."""

import numpy as np
import pytest

from joulery.objectives import LeastEnergy
from joulery.power import KnobRange, Reading, TunerConfig, TuningMachine, UnequalBoards
from joulery.power._model import limit_curves

LIMITS = np.arange(150.0, 301.0)
RANKS, BOUND, STEPS = 4, 0.05, 3000


def step(limits, needs):
    """Seconds and joules of a step: each board needs some watts for full speed."""
    own = 0.1 * np.maximum(1.0, needs / limits) ** 0.6
    return own.max(), float((np.minimum(limits, needs) * own.max()).sum())


def held_limits(needs):
    """Limits at the end of a job, and the choice."""
    chance, objective, config = np.random.default_rng(3), LeastEnergy(BOUND), TunerConfig()
    span = KnobRange(LIMITS, lambda watts: limit_curves(LIMITS, watts / RANKS))
    alike = TuningMachine(span, objective, config)
    machine = UnequalBoards(alike, span, objective, config, RANKS)
    now = joules = 0.0
    steps, command = 0, machine.start(Reading(0.0, 0.0, 0.1, 0))
    while steps < STEPS:
        limits = LIMITS[command.position] * np.array(command.shares or [1.0] * RANKS)
        seconds, energy = step(np.maximum(LIMITS[0], limits), needs)
        work = float((1 + 0.004 * chance.standard_normal(command.steps)).sum())
        now, joules, steps = now + work * seconds, joules + work * energy, steps + command.steps
        command = machine.send(Reading(now, joules, 0.1, steps))
    choice = machine.choice
    return LIMITS[choice.position] * np.array(choice.shares or [1.0] * RANKS), choice


def test_better_boards_get_lower_limits_at_the_same_pace():
    """All boards would draw what the worst one needs."""
    needs = np.array([250.0, 290.0, 265.0, 240.0])
    limits, choice = held_limits(needs)
    assert max(choice.shares) == choice.shares[1] == 1.0
    assert limits / limits.max() == pytest.approx(needs / needs.max(), rel=0.03)
    seconds, joules = step(limits, needs)
    full, _ = step(np.full(RANKS, LIMITS[-1]), needs)
    assert seconds <= (1 + BOUND) * full
    assert joules < 0.97 * step(np.full(RANKS, limits.max()), needs)[1]


def test_equal_boards_keep_one_limit():
    """Noise would be taken for boards that differ, and ranks would wait for each other."""
    limits, choice = held_limits(np.full(RANKS, 280.0))
    assert choice.shares == ()
    assert len(set(limits)) == 1
