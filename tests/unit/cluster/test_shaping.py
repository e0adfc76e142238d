"""Plans that follow forecasts and are corrected on the way."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from joulery.cluster import PowerCurve, follow_forecasts, plan_work
from joulery.grid import Signal

seeds = st.integers(0, 2**32 - 1)


def random_case(seed):
    """A curve, some work, a signal and a window."""
    rng = np.random.default_rng(seed)
    knots = int(rng.integers(1, 6))
    watts = np.cumsum(rng.uniform(30, 120, knots))
    rates = np.cumsum(np.sort(rng.uniform(0.01, 1, knots))[::-1])
    idle = float(rng.uniform(0, 20))
    curve = PowerCurve.from_points(zip(watts, rates, strict=True), idle)
    signal = Signal(0.0, 3600.0, tuple(rng.uniform(1, 500, 60).tolist()))
    work, start = float(rng.uniform(600, 20 * 3600)), float(rng.uniform(0, 10 * 3600))
    return curve, work, signal, start, start + work * float(rng.uniform(1.0, 2.2)) + 1


@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_a_perfect_forecast_loses_nothing(seed):
    """Planning again every hour makes a perfect forecast worse."""
    curve, work, signal, start, deadline = random_case(seed)
    curve = PowerCurve(curve.watts, curve.performance)
    planned = plan_work(curve, work, signal, start, deadline)
    followed = follow_forecasts(curve, work, signal, [signal], start, deadline)
    assert followed.amount == pytest.approx(planned.amount, rel=1e-6)
    assert followed.performance @ followed.seconds == pytest.approx(work)


@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_wrong_forecasts_never_cost_the_deadline(seed):
    """A job trusts a wrong forecast and is late."""
    curve, work, signal, start, deadline = random_case(seed)
    rng = np.random.default_rng(seed)
    wrong = [
        Signal(day * 18000.0, 3600.0, tuple(rng.uniform(1, 500, 96).tolist())) for day in range(4)
    ]
    plan = follow_forecasts(curve, work, signal, wrong, start, deadline)
    assert plan.performance @ plan.seconds == pytest.approx(work, abs=1e-3)
    assert plan.end <= deadline + 1e-6
