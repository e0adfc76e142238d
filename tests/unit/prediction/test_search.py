"""Samples to the target against batch size."""

import pytest

from joulery.errors import InvalidValueError
from joulery.prediction import Convergence, Work, recommend

POINTS = [(batch, 1e6 * (1 + batch / 500)) for batch in (64, 256, 1024, 4096)]


def test_the_critical_batch_is_found_again():
    """A wrong one would make large batches look free."""
    assert Convergence.fit(POINTS).critical_batch == pytest.approx(500, rel=0.1)


def test_one_batch_size_is_not_enough():
    """Nothing can be said from a point."""
    with pytest.raises(InvalidValueError):
        Convergence.fit(POINTS[:1])
    with pytest.raises(InvalidValueError):
        Convergence(0.0)


def test_a_recommendation_weighs_batch_against_samples():
    """Small critical batches must lead to small batches, large ones to what divides best."""
    model = {"layers": 16, "hidden": 2048, "heads": 16, "feedforward": 8192}
    model |= {"vocabulary": 32000, "sequence": 2048}
    small, large = (
        recommend(model, Work(1e11, 512, convergence=Convergence(size)), ["h100"], max_devices=8)
        for size in (200.0, 1e6)
    )
    assert small.best.plan.batch_size < 512
    assert small.best.joules < large.best.joules
    plain = recommend(model, Work(1e11, 512), ["h100"], max_devices=8)
    assert plain.best.plan.batch_size == 512
    assert small.best.relative_error_time > plain.best.relative_error_time
