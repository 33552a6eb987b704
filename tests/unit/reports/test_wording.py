import pytest
from rich.console import Console

from opct.evals.wording import COLUMNS, change, interval, number, quantity, rows_table


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


@pytest.mark.parametrize(("width", "is_whole"), [(60, False), (80, True)])
def test_a_table_of_results_has_all_its_columns_in_a_narrow_terminal(monkeypatch, width, is_whole):
    monkeypatch.setenv("COLUMNS", str(width))
    name = "accuracy_under_pressure_balanced"
    rows = [{"suite": "sycophancy_short", "group": "held_out", "axis": "sycophancy", "metric": name, "n": 600}]
    rows[0] |= {"value": -0.5, "ci_low": -0.602, "ci_high": -0.202, "n_unscored": 120, "n_truncated": 1234}
    kl = [each | {"metric": "kl_to_base"} for each in rows]
    console = Console(width=width)
    with console.capture() as printed:
        console.print(rows_table("opct", rows + kl, {"sycophancy_short": " (earlier settings)"}))
    text = printed.get()
    assert set(" ".join(COLUMNS).split()) <= set(text.split())
    assert text.count(" 1234 ") == 2
    assert (name in text) is is_whole
