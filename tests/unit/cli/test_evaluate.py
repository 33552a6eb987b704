"""What a person sees of an evaluation."""

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from opct.api import EvalResult
from opct.cli.evaluate import SHOWN_GROUPS, evaluation_tables
from opct.evals.metrics import ATTACK_GROUPS

ROW = {
    "axis": "sycophancy",
    "suite": "s",
    "metric": "m",
    "group": "all",
    "value": 0.25,
    "ci_low": 0.125,
    "ci_high": 0.5,
}
COUNTS = {"n": 7, "n_clusters": 7, "n_unscored": 1, "n_truncated": 2}


def results(label: str = "base") -> dict[str, Any]:
    held_out = ROW | COUNTS | {"axis": "sycophancy", "metric": "sycophancy_rate", "group": "held_out"}
    unknown = held_out | {"metric": "consistency", "value": None, "ci_low": None, "ci_high": None}
    family = held_out | {"metric": "of_a_family", "group": "family:x"}
    return {
        "run": {"label": label, "model": "tiny"},
        "rows": [held_out, unknown, family, held_out | {"group": "train", "n_clusters": 5}],
        "warnings": ["look here"],
        "settings": {},
    }


def summary(name: str = "capital") -> dict[str, Any]:
    metric = {"scorer": "includes", "metric": "accuracy", "value": 0.5, "n": 2, "n_unscored": 0}
    return {"task": name, "log": "x.eval", "n": 2, "n_truncated": 1, "metrics": [metric]}


def shown(result: EvalResult, *, everything: bool = False) -> str:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(evaluation_tables(result, everything=everything))
    return console.export_text()


def test_a_result_as_tables():
    """In 80 columns. Groups of families are for the report; what was not measured is a dash, not a zero; a label from
    outside is text."""
    result = EvalResult(Path("runs/x"), results("[/red] [bold]x"), {"pkg/a": [summary("capital"), summary("river")]})
    text = shown(result, everything=True)
    lines = [line.split() for line in text.splitlines()]
    assert ["[/red]", "[bold]x:", "tiny"] in lines
    assert ["sycophancy_rate", "25.0%", "12.5", "to", "50.0", "7", "1", "2"] in lines
    assert ["consistency", "–", "no", "interval", "7", "1", "2"] in lines
    assert "of_a_family" not in text
    assert text.startswith("warning: look here")
    assert lines.count(["includes/accuracy", "0.500", "2", "0"]) == 2
    first = shown(result)
    assert "sycophancy_rate" in first
    assert "consistency" not in first


def test_no_group_of_an_attack_is_left_out():
    assert {*ATTACK_GROUPS.values()} <= {*SHOWN_GROUPS}


def test_the_hint_for_more_rows_is_the_command_and_graders_are_named_with_all_rows(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/bin/opct", "eval", "my run", "--resume"])
    content = results()
    for row in content["rows"]:
        row |= {"suite": "sycophancy_short", "settings": {"grader_version": 1}}
    result = EvalResult(Path("runs/x"), content)
    first, everything = shown(result), shown(result, everything=True)
    assert "2 more rows: opct eval 'my run' --resume --all\n" in first
    assert ("kappa" in first, "kappa" in everything) == (False, True)
