"""Plans that follow the grid, against linear programs."""

from __future__ import annotations

import itertools

import highspy
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from joulery.cluster import PowerCurve, best_start, plan_work
from joulery.errors import InfeasibleError
from joulery.grid import Signal

seeds = st.integers(0, 2**32 - 1)


def random_case(seed):
    """A curve, some work, a signal and a window."""
    rng = np.random.default_rng(seed)
    knots = int(rng.integers(1, 6))
    watts = np.cumsum(rng.uniform(30, 120, knots))
    rates = np.cumsum(np.sort(rng.uniform(0.01, 1, knots))[::-1])
    curve = PowerCurve.from_points(
        zip(watts, rates, strict=True), idle_watts=float(rng.uniform(0, 20))
    )
    signal = Signal(0.0, 3600.0, tuple(rng.uniform(1, 500, 60).tolist()))
    work = float(rng.uniform(600, 20 * 3600))
    start = float(rng.uniform(0, 10 * 3600))
    return curve, work, signal, start, start + work * float(rng.uniform(1.0, 2.2)) + 1


def best_amount(curve, work, signal, start, deadline):
    """Least amount by HiGHS, with pauses at idle power until the deadline."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)  # noqa: FBT003 - the solver's own signature
    _, seconds, values = signal.window(start, deadline)
    done = []
    points = PowerCurve.from_points(
        [(curve.idle_watts, 0.0), *zip(curve.watts, curve.performance, strict=True)]
    )
    knots = list(zip(points.watts, points.performance, strict=True))
    for length, value in zip(seconds.tolist(), values.tolist(), strict=True):
        power = solver.addVariable(0.0, highspy.kHighsInf, length * value / 3.6e6)
        speed = solver.addVariable(0.0, 1.0)
        for (x0, y0), (x1, y1) in itertools.pairwise(knots):
            rise = (x1 - x0) / (y1 - y0)
            solver.addConstr(power - rise * speed >= x0 - rise * y0)
        done.append(length * speed)
    solver.addConstr(sum(done[1:], 1.0 * done[0]) >= work)
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return solver.getObjectiveValue()


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_a_plan_costs_no_more_than_the_linear_program(seed):
    """A plan with pauses emits more carbon than it must, or leaves work undone."""
    curve, work, signal, start, deadline = random_case(seed)
    plan = plan_work(curve, work, signal, start, deadline)
    assert plan.performance @ plan.seconds == pytest.approx(work)
    # The program pays for idling until the deadline; the plan stops at its end.
    assert plan.amount <= best_amount(curve, work, signal, start, deadline) * (1 + 1e-7)
    if curve.idle_watts == 0:
        assert plan.amount == pytest.approx(best_amount(curve, work, signal, start, deadline))
    assert plan.end <= deadline + 1e-6


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_without_pauses_the_job_never_stops_and_meets_its_deadline(seed):
    """A job that may not pause is paused, or is late, or pays more than at full speed."""
    curve, work, signal, start, deadline = random_case(seed)
    plan = plan_work(curve, work, signal, start, deadline, may_pause=False)
    assert plan.performance @ plan.seconds == pytest.approx(work)
    assert plan.performance.min() >= curve.performance[0] - 1e-9
    _, seconds, values = signal.window(start, start + work)
    full = float(seconds @ values) * curve.most_watts / 3.6e6
    assert plan.amount <= full * (1 + 1e-9)
    assert plan.end <= deadline + 1e-6


def test_work_beyond_the_deadline_is_refused():
    """An impossible deadline is promised."""
    signal = Signal(0.0, 3600.0, (1.0,) * 48)
    with pytest.raises(InfeasibleError, match="later deadline"):
        plan_work(PowerCurve((300.0,), (1.0,)), 7200, signal, 0, 3600)


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_no_start_is_greener_than_the_best(seed):
    """A run that waits for a greener hour starts in another one, or misses its deadline."""
    _, work, signal, now, deadline = random_case(seed)
    plan = best_start(signal, work, now, deadline)
    assert now <= plan.start <= deadline - work + 1e-6

    def mean(start):
        _, seconds, values = signal.window(start, start + work)
        return float(seconds @ values) / work

    assert plan.value == pytest.approx(mean(plan.start))
    assert plan.value_at_once == pytest.approx(mean(now))
    for start in np.linspace(now, deadline - work, 200).tolist():
        assert plan.value <= mean(start) * (1 + 1e-9)


def test_a_flat_signal_starts_at_once_and_a_short_deadline_is_refused():
    """A run waits for nothing, or starts though it cannot end in time."""
    flat = Signal(0.0, 3600.0, (100.0,) * 24)
    assert best_start(flat, 3600.0, 1800.0, 36000.0).start == 1800.0
    with pytest.raises(InfeasibleError, match="do not fit"):
        best_start(flat, 7200.0, 0.0, 3600.0)
