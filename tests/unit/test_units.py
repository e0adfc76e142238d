"""Conversions, and quantities as people read them."""

import math
from decimal import Decimal

import pytest

from joulery import units
from joulery.errors import InvalidValueError
from joulery.units import (
    finite,
    human,
    human_age,
    human_duration,
    human_money,
    per_cent,
    quantity,
)


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        ("joules_from_millijoules", [1234], 1.234),
        ("joules_from_microjoules", [1_234_000], 1.234),
        ("watts_from_milliwatts", [250_000], 250.0),
        ("watts_from_microwatts", [250e6], 250.0),
        ("hertz_from_megahertz", [1410], 1.41e9),
        ("kilowatt_hours", [3.6e6], 1.0),
        ("grams_co2", [7.2e6, 400], 800.0),
        ("money", [1.8e6, 0.3], 0.15),
    ],
)
def test_conversions(function, arguments, expected):
    """A slip of a thousand here falsifies every figure of a vendor."""
    assert getattr(units, function)(*arguments) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.6, "12.3 kJ"),
        (0, "0 J"),
        (1, "1.00 J"),
        (999.4, "999 J"),
        (999.6, "1.00 kJ"),
        (0.9996, "1.00 J"),
        (1e-5, "10.0 µJ"),
        (3.6e6, "3.60 MJ"),
        (5.5e15, "5500 TJ"),
        (-250.0, "-250 J"),
        (1.5e-12, "0.00150 nJ"),
        (math.inf, "inf J"),
        (math.nan, "unknown"),
    ],
)
def test_quantities_have_three_digits_and_a_prefix(value, text):
    """Tables read wrong if rounding carries past a prefix."""
    assert human(value, "J") == text


def test_every_decade_has_three_digits():
    """Powers of ten are where logarithms of floats go wrong."""
    for exponent in range(-9, 14):
        for mantissa in ("1", "1.05", "9.994", "9.996"):
            number = human(float(f"{mantissa}e{exponent}"), "").split()[0]
            assert len(number.replace(".", "").lstrip("0")) == 3, (mantissa, exponent, number)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0042, "4.20 ms"),
        (59.4, "59.4 s"),
        (60, "1 min 00 s"),
        (119.6, "2 min 00 s"),
        (3599.7, "1 h 00 min"),
        (3725, "1 h 02 min"),
        (360_000, "100 h 00 min"),
        (math.nan, "unknown"),
        (math.inf, "inf s"),
    ],
)
def test_durations(seconds, text):
    """Sixty seconds must never show as such beside a minute."""
    assert human_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5.0, "0 s"), (8.88, "8 s"), (61.0, "1 min"), (7300.0, "2 h"), (2.5 * 86400, "2 d")],
)
def test_ages_have_one_unit(seconds, text):
    """An age is read at a glance; hundredths of a second are noise."""
    assert human_age(seconds) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.0512, "5.1 %"), (0.0, "0 %"), (1.4, "140 %"), (0.00012, "0.012 %"), (0.999, "100 %")],
)
def test_per_cent(fraction, text):
    """Error bars above 100 % must not turn into powers of ten."""
    assert per_cent(fraction) == text


@pytest.mark.parametrize("value", [1, 1.0, Decimal(1), True])
def test_finite_takes_any_number(value):
    """Whatever number comes in, a float goes on."""
    assert (finite(value, "x"), type(finite(value, "x"))) == (1.0, float)


@pytest.mark.parametrize(
    ("value", "minimum", "says"),
    [
        ("1", None, "x in watts must be a number, not '1'"),
        (None, None, "must be a number, not None"),
        ([1.0], None, "must be a number"),
        (1j, None, "must be a number"),
        (math.nan, None, "must be finite, not nan"),
        (-math.inf, None, "must be finite, not -inf"),
        pytest.param(10**5000, None, "must be finite, not inf", id="huge"),
        (-0.5, 0.0, "must be at least 0, not -0.5"),
    ],
)
def test_finite_explains_what_is_wrong(value, minimum, says):
    """The message names the quantity and the value, the remedy what to give."""
    with pytest.raises(InvalidValueError, match=says) as caught:
        finite(value, "x in watts", minimum=minimum)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_the_minimum_itself_is_allowed():
    """Zero slowdown and zero budget are legitimate requests."""
    assert finite(0, "x", minimum=0.0) == 0.0


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("2T", "#", 2e12),
        ("1.5B", "#", 1.5e9),
        ("300", "#", 300.0),
        ("5%", "1", 0.05),
        ("30d", "s", 30 * 86400.0),
        ("90 min", "s", 5400.0),
        ("500ms", "s", 0.5),
        ("2e3", "s", 2000.0),
        ("3kW", "W", 3000.0),
        ("100W", "W", 100.0),
        ("1.2GHz", "MHz", 1.2e9),
        ("900", "MHz", 9e8),
        ("28GiB", "B", 28 * 2.0**30),
    ],
)
def test_quantities_as_people_write_them(text, unit, value):
    """`--tokens 2T --deadline 30d --budget 3kW` are refused or, worse, misread."""
    assert quantity(text, "value", unit) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "T", "2X", "nan", "-1d", "1e999", "3kW", "5 5"])
def test_a_text_that_is_not_a_quantity(text):
    """A typing error or the unit of another quantity is taken for a number."""
    with pytest.raises(InvalidValueError):
        quantity(text, "deadline", "s")


def test_tokens_are_not_counted_in_per_cent():
    """`--tokens 5%` would be a twentieth of a token, and errors would offer the unit."""
    with pytest.raises(InvalidValueError, match="value '5%'") as refused:
        quantity("5%", "value", "#")
    assert "%" not in refused.value.remedy
    with pytest.raises(InvalidValueError):
        quantity("5k", "value", "1")


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.91e-5, "0.0000191"), (0.0, "0"), (0.5, "0.5"), (12.345, "12.3"), (1.234e6, "1,230,000")],
)
def test_money_has_no_exponent(value, text):
    """If this fails, what a short run costs cannot be read on a bill."""
    assert human_money(value) == text
