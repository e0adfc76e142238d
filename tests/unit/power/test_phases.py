"""A bound on the slowdown that is one of all phases of a job."""

import numpy as np
import pytest

from joulery.objectives import Bounds, LeastEnergy
from joulery.power import ClockKnob, PhaseTuner
from joulery.power._model import SAMPLES, Curves, ObjectiveScorer
from joulery.power._phases import _Share, bound_together
from support.training_loop import TrainingLoop, held_here

VALUES = np.linspace(0.5, 1.0, 51)
STEPS = (100, 300)


def posterior(stretch, seed):
    """Samples of a job that is slower at lower clocks by a power of them, known to 0.3 %."""
    noise = 0.003 * np.random.default_rng(seed).standard_normal((SAMPLES, 1)) * (VALUES < 1)
    watts = 300.0 * VALUES**1.5
    return Curves(noise - stretch * np.log(VALUES), np.tile(np.log(watts), (SAMPLES, 1)))


def chosen(bounds, curves):
    """The position that is chosen under these bounds."""
    objective = _Share(LeastEnergy(max_slowdown=0.05))
    objective.bounds = bounds
    return ObjectiveScorer(objective).score(curves).position


def test_phases_share_a_slowdown_and_its_risk():
    """Each phase would stay as far below the bound as if alone, or all break it together."""
    # One phase hardly waits for the clock, the other does.
    posteriors = [posterior(0.1, 1), posterior(0.8, 2)]
    alone, bounds = Bounds(max_slowdown=0.05), LeastEnergy(max_slowdown=0.05).bounds
    slowdowns, joules = [], []
    for each in ([alone, alone], bound_together(bounds, STEPS, posteriors)):
        positions = [chosen(b, curves) for b, curves in zip(each, posteriors, strict=True)]
        seconds = [
            count * np.exp(curves.log_seconds[:, at])
            for count, curves, at in zip(STEPS, posteriors, positions, strict=True)
        ]
        slowdowns.append(np.sum(seconds, axis=0) / sum(STEPS) - 1)
        joules.append(
            sum(t.mean() * VALUES[at] ** 1.5 for t, at in zip(seconds, positions, strict=True))
        )
    assert (slowdowns[1] <= 0.05).mean() >= 0.99
    assert slowdowns[1].mean() > 0.04
    assert joules[1] < joules[0]


def test_a_setting_that_is_known_well_is_preferred():
    """What is hardly known of one setting would keep another phase from the time it needs."""
    curves = [posterior(0.4, 1), posterior(0.8, 2)]
    noise = 0.1 * np.random.default_rng(3).standard_normal((SAMPLES, len(VALUES)))
    every_fifth = np.arange(len(VALUES)) % 5 == 0
    curves[0].log_seconds[:, ~every_fifth] += noise[:, ~every_fifth]
    bounds = bound_together(LeastEnergy(max_slowdown=0.05).bounds, (100, 100), curves)
    positions = [chosen(bound, curve) for bound, curve in zip(bounds, curves, strict=True)]
    assert every_fifth[positions[0]]
    joules = [
        np.exp(curve.log_seconds + curve.log_watts).mean(axis=0)[at]
        for curve, at in zip(curves, positions, strict=True)
    ]
    assert sum(joules) < 550, "557 where all settings are taken for known alike"


def test_a_phase_continues_after_one_inside_it():
    """The outer phase would lose its time, energy and visits without a word."""
    loop = TrainingLoop()
    knob = ClockKnob(loop.gpus, held_here)
    tuner = PhaseTuner(loop.gpus, LeastEnergy(max_slowdown=0.05), knob, clock=loop.clock)
    for _ in range(5):
        tuner.enter("outer")
        loop.clock.sleep(2.0)
        tuner.enter("inner")
        loop.clock.sleep(1.0)
        tuner.leave()
        loop.clock.sleep(3.0)
        tuner.leave()
    tuner.close()
    assert tuner.failure is None
    outer, inner = (tuner.phases[name] for name in ("outer", "inner"))
    assert (outer.visits, inner.visits) == (5, 5)
    assert (outer.seconds, inner.seconds) == pytest.approx((25.0, 5.0))
    assert outer.joules == pytest.approx(5 * inner.joules, rel=0.02)
