"""Error bars: scales from left-out groups, and sums of correlated errors."""

import numpy as np
import pytest

from joulery.prediction import Interval
from joulery.prediction._bayes import fitted, interval_scale
from joulery.prediction.models import (
    summed_deviation,
)


def test_sums_of_correlated_errors_do_not_average_out():
    """A week of steps with one bias is as uncertain as a step."""
    ones = np.ones(100)
    assert summed_deviation(ones, 0.2 * ones, 1.0) == pytest.approx(0.2)
    assert summed_deviation(ones, 0.2 * ones, 0.0) == pytest.approx(0.02)
    assert 0.1 < summed_deviation(ones, 0.2 * ones, 0.5) < 0.2


def test_intervals_are_around_their_value():
    """The ends must hold the value and widen with the deviation."""
    narrow, wide = Interval.around(10.0, 0.1), Interval.around(10.0, 0.3)
    assert wide.low < narrow.low < 10.0 < narrow.high < wide.high


def test_shipped_scales_say_what_they_stand_on():
    """Every scale that a prediction uses must come from left-out groups."""
    for task in (
        "plans on a new system, elsewhere",
        "plans of a measured model, 1 probe",
        "power-limit curve, time, 1 limits",
        "samples to converge, other batches",
    ):
        entry = fitted()["intervals"][task]
        assert len(entry["groups"]) >= 2
        assert 0.5 <= interval_scale(task) <= 3.0
