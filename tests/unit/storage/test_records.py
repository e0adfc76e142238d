"""Documents as JSON text."""

import json
import math

import pytest

from joulery.storage import to_json


@pytest.mark.parametrize("value", [0.1 + 0.2, -0.0, 5e-324, 1.7976931348623157e308, 2**70, None])
def test_values_come_back_bit_for_bit(value):
    """Rebuilt beliefs would differ from those that decided."""
    back = json.loads(to_json({"value": value}))["value"]
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, float):
        assert math.copysign(1.0, back) == math.copysign(1.0, value)


def test_equal_documents_are_equal_texts():
    """Comparing what was asked twice would hang on the order of its parts."""
    assert (
        to_json({"b": 1, "a": "ü\0"})
        == to_json({"a": "ü\0", "b": 1})
        == '{"a":"\\u00fc\\u0000","b":1}'
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_json_is_refused(value):
    """Other readers of the database could not parse it."""
    with pytest.raises(ValueError, match="JSON"):
        to_json({"value": value})
