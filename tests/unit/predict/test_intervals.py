"""Error bars: scales from left-out groups, and sums of correlated errors."""

import numpy as np
import pytest

from joulery.predict import Interval
from joulery.predict._bayes import fitted
from joulery.predict._intervals import interval_scale
from joulery.predict.models import (
    NINETY,
    conformal_scale,
    shared_correlation,
    summed_deviation,
)


def groups(count, bias, seed=0, size=400):
    """Groups of errors with a common bias each, all claimed to deviate by 1."""
    draw = np.random.default_rng(seed)
    return [
        (bias * draw.standard_normal() + draw.standard_normal(size), np.ones(size))
        for _ in range(count)
    ]


def test_honest_claims_need_no_scale():
    """Intervals would be wider or narrower than what is known."""
    assert conformal_scale(groups(40, bias=0.0)) == pytest.approx(1.0, abs=0.05)


def test_claims_that_are_too_narrow_are_widened_for_the_next_group():
    """A device whose errors are three times the claim must still be covered."""
    known, new = groups(10, 0.0), groups(1, 0.0, seed=1)[0]
    narrow = [(off, claimed / 3) for off, claimed in known]
    scale = conformal_scale(narrow)
    inside = np.abs(new[0]) <= NINETY * scale * new[1] / 3
    assert 0.88 <= inside.mean() <= 0.94


def test_few_groups_widen_and_no_group_leaves_claims_alone():
    """Two devices say little about a third."""
    many, few = groups(20, 0.0), groups(2, 0.0)
    assert conformal_scale(few) > 1.05 * conformal_scale(many)
    assert conformal_scale([]) == 1.0


def test_sums_of_correlated_errors_do_not_average_out():
    """A week of steps with one bias is as uncertain as a step."""
    ones = np.ones(100)
    assert summed_deviation(ones, 0.2 * ones, 1.0) == pytest.approx(0.2)
    assert summed_deviation(ones, 0.2 * ones, 0.0) == pytest.approx(0.02)
    assert 0.1 < summed_deviation(ones, 0.2 * ones, 0.5) < 0.2


@pytest.mark.parametrize(("bias", "low", "high"), [(0.0, 0.0, 0.1), (3.0, 0.75, 1.0)])
def test_correlation_is_what_groups_share(bias, low, high):
    """A sum would be taken as surer than it is."""
    assert low <= shared_correlation(groups(20, bias)) <= high


def test_intervals_are_around_their_value():
    """The ends must hold the value and widen with the deviation."""
    narrow, wide = Interval.around(10.0, 0.1), Interval.around(10.0, 0.3)
    assert wide.low < narrow.low < 10.0 < narrow.high < wide.high


def test_shipped_scales_say_what_they_stand_on():
    """Every scale that a prediction uses must come from left-out groups."""
    for task in (
        "plans on a new system, elsewhere",
        "plans of a measured model, 1 probe",
        "step from operators, specs",
        "GEMM power, specs",
        "samples to converge, other batches",
    ):
        entry = fitted()["intervals"][task]
        assert len(entry["groups"]) >= 2
        assert 0.5 <= interval_scale(task) <= 3.0
