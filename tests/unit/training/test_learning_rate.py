"""Learning rates follow the batch size by the kind of optimizer."""

import math

import pytest

from joulery.errors import InvalidValueError
from joulery.training._learning_rate import scaled_learning_rate


@pytest.mark.parametrize(
    ("rule", "factor"),
    [
        ("sqrt", 2.0),
        ("linear", 4.0),
        ("SGD", 4.0),
        ("Adam", 2.0),
        ("AdamW", 2.0),
        ("Adadelta", 2.0),
        ("RMSprop", 2.0),
        (type("NAdam", (), {}), 2.0),
        (type("SGD", (), {})(), 4.0),
    ],
)
def test_learning_rates_scale_by_the_kind_of_optimizer(rule, factor):
    """If this fails, large batches train with a rate that does not fit their optimizer."""
    assert scaled_learning_rate(0.1, 1024, 256, rule) == pytest.approx(0.1 * factor)


def test_momentum_is_not_adaptive():
    """If this fails, plain gradient descent gets the wrong rule."""
    assert scaled_learning_rate(0.1, 1024, 256, "SGD with momentum") == pytest.approx(0.4)
    assert scaled_learning_rate(0.1, 1024, 256, "ASGD") == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("base", "rule"), [(0.1, "cubic"), (0.1, ""), (math.nan, "sqrt"), (-0.1, "linear")]
)
def test_unknown_rules_and_wrong_rates_are_refused(base, rule):
    """If this fails, a typo trains with a learning rate that was never chosen."""
    with pytest.raises(InvalidValueError):
        scaled_learning_rate(base, 1024, 256, rule)
