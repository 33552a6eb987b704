import pytest

from opct.evals.wording import change, interval, number, quantity


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.4567, "rate", "45.7%"),
        (0.0, "rate", "0.0%"),
        (1.0, "rate", "100.0%"),
        (0.0123, "nats", "0.012 nats"),
        (3.5, "number", "3.500"),
        (None, "rate", "–"),
    ],
)
def test_quantity_has_digits_and_unit(value, unit, expected):
    assert quantity(value, unit) == expected


def test_a_change_that_rounds_to_zero_carries_no_sign():
    assert change(-0.0001, "rate") == "0.0 points"
    assert number(0.0, "rate", signed=True) == "0.0"


def test_not_a_number_is_a_dash_never_zero():
    assert number(float("nan"), "rate") == "–"
    assert quantity(float("inf"), "nats") == "–"


def test_interval_says_when_there_is_none():
    assert interval(-0.44, -0.34, "rate", signed=True) == "−44.0 to −34.0"
    assert interval(None, 0.3, "rate") == "no interval"
