"""The instructions of IFEval: followed or not, paired by prompt."""

from __future__ import annotations

import pytest

from opct.evals.stats import clustered_mean
from opct.reports.compare import compare
from opct.reports.load import EvaluatedRun
from opct.reports.values import sample_clusters, sample_values


def sample(suite: str, number: int, values: dict[str, float | None]) -> dict:
    row = {"id": f"{suite}/{number}", "task": suite, "axis": "capability", "family": "f", "family_split": "capability"}
    return row | {"cluster": f"{suite}-{number}", "stop_reason": "stop", "verdict": "other", "values": values}


def prompt(number: int, count: int | None, strict: int | None, loose: int | None = None) -> dict:
    values: dict[str, float | None] = {}
    for name, done in (("inst_level_strict_acc", strict), ("inst_level_loose_acc", strict if loose is None else loose)):
        values |= {name: None if done is None else done / count, f"{name}/n": None if count is None else float(count)}
    return sample("ifeval", number, values)


def ifeval_run(label: str, samples: list[dict]) -> EvaluatedRun:
    rows = [
        {"axis": "capability", "suite": "ifeval", "metric": metric, "group": "all", "value": None, "n": 0}
        for metric in ("inst_level_strict_acc", "inst_level_loose_acc")
    ]
    return EvaluatedRun(None, label, label, "m", label, 0, "", {}, (), tuple(rows), tuple(samples))  # type: ignore[arg-type]


def test_instructions_are_paired_by_prompt_and_not_counted_as_prompts():
    """Prompts of 1, 2 and 3 instructions; base follows 0, 1, 3 of them and OPCT 1, 1, 1: 4 of 6 against 3 of 6.

    Differences of the sums +1, 0, -2 over three clusters: mean -1/6, and e_g = 1 + 1/6, 0 + 2/6, -2 + 3/6.
    """
    base = [prompt(1, 1, 0), prompt(2, 2, 1), prompt(3, 3, 3)]
    opct = [prompt(1, 1, 1), prompt(2, 2, 1), prompt(3, 3, 1)]
    line = compare([ifeval_run("base", base), ifeval_run("opct", opct)]).line("inst_level_strict_acc")
    difference = line.differences[0]
    assert difference.value == pytest.approx(-1 / 6)
    assert (difference.n, difference.n_clusters, difference.left_out) == (6, 3, 0)
    expected = clustered_mean([1, 0, 0, -2 / 3, -2 / 3, -2 / 3], [1, 2, 2, 3, 3, 3], bounds=(-1, 1))
    assert (difference.low, difference.high) == pytest.approx((expected.ci_low, expected.ci_high))


def test_a_prompt_that_one_run_could_not_verify_is_in_no_difference():
    """Its two instructions are unpaired; strict and loose have counts of their own."""
    base = [prompt(1, 1, 0, 1), prompt(2, 2, 1, 2)]
    opct = [prompt(1, 1, 1, 1), prompt(2, None, None)]
    compared = compare([ifeval_run("base", base), ifeval_run("opct", opct)])
    strict, loose = (compared.line(name).differences[0] for name in ("inst_level_strict_acc", "inst_level_loose_acc"))
    assert (strict.value, strict.n, strict.left_out) == (1.0, 1, 2)
    assert (loose.value, loose.n) == (0.0, 1)


def test_instruction_values_are_those_of_the_evaluation():
    samples = [prompt(1, 3, 2), prompt(2, None, None), sample("gsm8k", 1, {"is_correct": 1.0})]
    assert sample_values(samples, "ifeval", "inst_level_strict_acc", "all") == {
        "ifeval/1#0": 1.0, "ifeval/1#1": 1.0, "ifeval/1#2": 0.0, "ifeval/2#0": None
    }  # fmt: skip
    assert sample_values(samples, "gsm8k", "inst_level_strict_acc", "all") == {}
    clusters = sample_clusters([ifeval_run("base", samples)])
    assert {clusters[f"ifeval/1#{i}"] for i in range(3)} == {clusters["ifeval/1"]} == {"ifeval-1"}
