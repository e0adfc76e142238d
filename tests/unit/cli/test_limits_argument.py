import pytest

from joulery.cli.limits_argument import parse_limits
from joulery.errors import InvalidValueError


@pytest.mark.parametrize(
    ("text", "watts"),
    [
        ("100:300:50", (300.0, 250.0, 200.0, 150.0, 100.0)),
        ("100:290:50", (250.0, 200.0, 150.0, 100.0)),
        ("150", (150.0,)),
        ("150:150:10", (150.0,)),
        ("100,250,100", (250.0, 100.0)),
        ("0.1:0.4:0.1", pytest.approx((0.4, 0.3, 0.2, 0.1))),
    ],
)
def test_limits_as_people_write_them(text, watts):
    """Ranges include their end where a step reaches it; lists are sorted and freed of repeats."""
    assert parse_limits(text) == watts


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "a", "100:200", "1:2:3:4", "200:100:10", "100:200:0", "100:200:-5"),
        *("-100:200:50", "nan", "inf", "100:inf:10", "0", "1:1e9:1", "100;200"),
    ],
)
def test_nonsense_is_refused_with_a_remedy(text):
    """A bad range must end in one line, not in a traceback or an endless sweep."""
    with pytest.raises(InvalidValueError) as raised:
        parse_limits(text)
    assert raised.value.remedy
    assert "\n" not in str(raised.value)


def test_swapped_ends_are_put_right_in_the_remedy():
    """The most likely slip has an exact remedy."""
    with pytest.raises(InvalidValueError) as raised:
        parse_limits("300:100:25")
    assert "100:300:25" in raised.value.remedy
