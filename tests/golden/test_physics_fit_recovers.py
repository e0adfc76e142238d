"""Fits recover what generated the measurements."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.hardware import Workload, catalog
from joulery.hardware.simulated import _physics as physics

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "physics_fit.py"
SPEC = importlib.util.spec_from_file_location("physics_fit", FILE)
fit = sys.modules[SPEC.name] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(fit)

BOARD = catalog.board("V100")
LIMITS = (100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0)
WORKS = (
    Workload("mixed", 0.6, 0.4, 0.1, 0.8),
    Workload("compute", 1.0, 0.05, 0.02, 0.9),
    Workload("memory", 0.3, 0.9, 0.1, 0.7),
    Workload("host", 0.02, 0.01, 1.0, 0.3),
)


def sweep(work, board=BOARD, limits=LIMITS):
    """What would be measured if ``board`` were real."""
    states = [physics.settle(board, work, limit) for limit in limits]
    return [
        fit.SweepPoint(limit, state.seconds, state.watts)
        for limit, state in zip(limits, states, strict=True)
    ]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_fit_reproduces_a_sweep_of_the_model_itself(work):
    """A fit that cannot follow its own model cannot follow a board."""
    found = fit.fit_workload(BOARD, sweep(work), "again")
    assert found.workload.name == "again"
    assert max(map(abs, found.seconds_errors)) < 0.02
    assert max(map(abs, found.watts_errors)) < 0.02
    assert found.loss < 0.01


def test_fit_predicts_limits_that_it_did_not_see():
    """Four numbers from four limits must hold at the limits between, or they overfit."""
    for work in WORKS[:2]:
        found = fit.fit_workload(BOARD, sweep(work, limits=LIMITS[::2]))
        for limit in LIMITS[1::2]:
            ours = physics.settle(BOARD, found.workload, limit)
            truth = physics.settle(BOARD, work, limit)
            assert ours.seconds == pytest.approx(truth.seconds, rel=0.02)
            assert ours.watts == pytest.approx(truth.watts, rel=0.02)


def test_one_bad_measurement_does_not_bend_the_fit():
    """A hiccup at one limit would spoil the whole curve."""
    points = sweep(WORKS[0])
    points[3] = replace(points[3], seconds=points[3].seconds * 1.5)
    found = fit.fit_workload(BOARD, points)
    assert found.seconds_error < 0.01
    assert abs(found.seconds_errors[3]) > 0.25


def test_vectorised_settling_equals_the_formulas():
    """Fits would be to another model than the one that is used."""
    shapes = np.array([[0.5, 0.2, 0.7], [0.0, 0.0, 1.0], [3.0, 20.0, 0.1]])
    seconds, watts = fit.settled(BOARD, np.array(BOARD.clocks()), shapes, LIMITS)
    for row, (memory, host, activity) in enumerate(shapes):
        work = Workload("w", 1.0, memory, host, activity)
        for column, limit in enumerate(LIMITS):
            expected = physics.settle(BOARD, work, limit)
            assert seconds[row, column] == pytest.approx(expected.seconds, rel=1e-12)
            assert watts[row, column] == pytest.approx(expected.watts, rel=1e-12)


def test_many_fits_equal_one_by_one_and_report_progress():
    """Sharing the grid between sweeps would change results."""
    sweeps = {work.name: sweep(work) for work in WORKS[:2]}
    seen = []
    fits = fit.fit_workloads(BOARD, sweeps, seen.append)
    assert seen == list(sweeps)
    for name, points in sweeps.items():
        assert fits[name] == fit.fit_workload(BOARD, points, name)


def mean_loss(board, sweeps):
    """How far the best fits on ``board`` stay from ``sweeps``."""
    fits = fit.fit_workloads(board, {str(i): points for i, points in enumerate(sweeps)})
    return fmean(one.loss for one in fits.values())


def test_board_fit_moves_towards_the_board_that_was_measured():
    """Calibrating a board would leave it as wrong as before."""
    truth = replace(BOARD, awake_watts=45.0, clock_watts=12.0)
    sweeps = [sweep(work, truth) for work in WORKS]
    found = fit.fit_board(BOARD, sweeps, rounds=2, source="a test")
    assert found.fitted
    assert found.source == "a test"
    assert abs(found.awake_watts - 45.0) < abs(BOARD.awake_watts - 45.0)
    assert mean_loss(found, sweeps) < 0.5 * mean_loss(BOARD, sweeps)


@pytest.mark.parametrize("points", [[], [fit.SweepPoint(100.0, 1.0, 90.0)] * 3])
def test_too_few_limits_are_refused(points):
    """A curve through one limit would be invented."""
    with pytest.raises(InvalidValueError, match="two or more"):
        fit.fit_workload(BOARD, points)


def test_failed_measurements_are_refused():
    """The logarithm of zero seconds would poison the fit."""
    with pytest.raises(InvalidValueError, match="above zero"):
        fit.SweepPoint(100.0, 0.0, 90.0)
