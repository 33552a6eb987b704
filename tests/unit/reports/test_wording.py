from opct.evals.wording import change, interval, number, quantity


def test_a_quantity_has_digits_and_unit_and_what_is_no_number_is_a_dash_never_zero():
    for value, unit, expected in (
        (0.4567, "rate", "45.7%"),
        (0.0, "rate", "0.0%"),
        (1.0, "rate", "100.0%"),
        (0.0123, "nats", "0.012 nats"),
        (3.5, "number", "3.500"),
        (None, "rate", "–"),
        (float("inf"), "nats", "–"),
    ):
        assert quantity(value, unit) == expected
    assert number(float("nan"), "rate") == "–"
    assert change(-0.0001, "rate") == "0.0 points"  # without a sign
    assert number(0.0, "rate", signed=True) == "0.0"
    assert interval(-0.44, -0.34, "rate", signed=True) == "−44.0 to −34.0"
    assert interval(None, 0.3, "rate") == "no interval"
