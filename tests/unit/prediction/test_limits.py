"""Power-limit and clock curves of a job."""

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.prediction import accelerator, limit_curve
from joulery.prediction._bayes import fitted_belief
from joulery.prediction._limits import clock_curve, power_limits
from joulery.prediction._power import Load
from joulery.prediction.models import (
    JOB_CONSTANTS,
    job_curve,
    response,
)

V100 = accelerator("v100")


def constants(**job):
    """Board constants as fitted, with a job of one second of arithmetic."""
    names = ("compute", "memory", "host", "loading", "fill", "waste", "activity")
    plain = {"compute": 1.0, "memory": 0.2, "host": 1e-6, "loading": 1e-6, "fill": 1e-6}
    plain["waste"] = 1e6
    values = fitted_belief("limits").mean.copy()
    values[:JOB_CONSTANTS] = np.log([{**plain, "activity": 0.8, **job}[name] for name in names])
    return values


LIMITS = np.linspace(100, 250, 7)
ONES = np.ones(7)


def test_a_lower_limit_takes_longer_and_draws_less():
    """The whole trade of time for energy rests on this."""
    seconds, watts = job_curve(constants(), V100, ONES, LIMITS)
    assert (np.diff(seconds) <= 1e-9).all()
    assert (np.diff(watts) >= -1e-9).all()
    assert watts[0] <= 101


def test_memory_bound_work_hardly_slows_down():
    """Limits on memory-bound jobs are nearly free; missing that hides the savings."""
    bound, free = (
        job_curve(constants(memory=ratio), V100, ONES, LIMITS)[0] for ratio in (0.01, 3.0)
    )
    assert free[2] / free[-1] < bound[2] / bound[-1]


def test_a_job_that_waits_for_its_host_does_not_notice_limits():
    """Host-bound jobs would be predicted to slow down."""
    seconds, watts = job_curve(constants(loading=20.0), V100, ONES, LIMITS)
    assert seconds[0] == pytest.approx(seconds[-1], rel=0.02)
    assert watts[-1] < 120


def test_small_batches_cost_host_time():
    """Seconds per epoch fall with the batch size until the device is full."""
    batch = np.array([1.0, 8.0, 64.0, 512.0])
    seconds, _ = job_curve(constants(host=50.0), V100, batch, np.full(4, 250.0))
    assert (np.diff(seconds) < 0).all()
    assert seconds[0] == pytest.approx(50.0, rel=0.05)


def test_locked_clocks_stretch_arithmetic():
    """Where no limit binds, a clock is what the user is offered."""
    clocks = V100.clock_hertz * np.array([0.5, 1.0])
    seconds, watts = clock_curve(constants(memory=0.01), V100, np.ones(2), clocks)
    assert seconds[0] == pytest.approx(2 * seconds[1], rel=0.05)
    assert watts[0] < watts[1]


def test_published_capping_of_h100_nodes():
    """75 % of the cap keeps about 93 % of the speed of training, 57 % about 82 % (published)."""
    h100 = accelerator("h100")
    slowdown, _ = response(h100, Load(1.0, 0.0, 0.45, 0.95), 700 * np.array([0.75, 0.57]))
    assert 1 / slowdown[0] == pytest.approx(0.93, abs=0.04)
    assert 1 / slowdown[1] == pytest.approx(0.82, abs=0.06)


def test_limits_span_what_the_board_takes():
    """A limit that the driver refuses would be recommended."""
    limits = power_limits(accelerator("h100"))
    assert limits[0] == accelerator("h100").min_limit_watts
    assert limits[-1] == 700


def test_a_limit_that_a_board_cannot_hold_is_exceeded():
    """An A40 under 100 W draws more than that, and does not slow down without end."""
    a40 = accelerator("a40")
    slowdown, watts = response(a40, Load(1.0, 0.0, 1.0, 0.9), np.array([100.0, 300.0]))
    assert watts[0] > 102
    assert 2 < slowdown[0] <= 5


def test_a_curve_goes_through_its_measured_limits_and_is_surer_near_them():
    """A tuner that measured three limits would get another curve than it measured."""
    measured = [(100.0, 4.2, 100.0), (200.0, 1.25, 195.0), (400.0, 1.0, 345.0)]
    curve = limit_curve("a100", measured, [100.0, 200.0, 300.0, 400.0])
    by_limit = {point.setting.power_limit_watts: point for point in curve.points}
    assert by_limit[200.0].seconds == pytest.approx(1.25)
    assert by_limit[400.0].watts == pytest.approx(345.0)
    assert 1.0 < by_limit[300.0].seconds < 1.25
    errors = {limit: point.provenance.relative_error for limit, point in by_limit.items()}
    assert errors[200.0] < errors[300.0]


@pytest.mark.parametrize(
    "measured",
    [
        [],
        [(200.0, 0.0, 100.0)],
        [(200.0, 1.0, float("nan"))],
        [(4000.0, 1.0, 300.0)],
        [(300.0, 1.0, 500.0)],
        [(300.0, 1.0, 290.0), (300.0, 1.5, 290.0)],
        [(200.0, 1.0, 190.0), (400.0, 2.0, 300.0)],
    ],
)
def test_curves_from_nothing_are_refused(measured):
    """A curve from no measurement would be invented."""
    with pytest.raises(InvalidValueError):
        limit_curve("a100", measured)
