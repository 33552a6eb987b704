"""The tables of the results page are those of the report."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import replace

import pytest
from benchmarks import summary

from opct.errors import EvaluationError
from opct.evals.logs import read_samples
from opct.reports.compare import compare
from opct.reports.load import load_runs
from tests.logs import write_evaluation
from tests.unit.reports import synthetic_axes
from tests.unit.reports.synthetic import write_run

METHODS = ("sft", "offpolicy", "opct")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The base, two seeds of OPCT, one run of each other method; and a folder that is no run."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic_axes, "BENCHMARKS", {"gsm8k": (8, 0.4), "mmlu": (8, 0.4)})
        patch.setattr(synthetic_axes, "ifeval_samples", lambda label, seed: [])
        for label, seed in [("base", 0), *((method, 0) for method in METHODS), ("opct", 1)]:
            synthetic_axes.write_axes_run(folder, label, seed, questions=2, axes=("sycophancy", "capability"))
    (folder / "notes").mkdir()
    return folder


@pytest.fixture(scope="module")
def printed(root):
    """What the command prints of these runs, and the comparison that it made."""
    made, out = [], io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(sys, "argv", ["summary.py", str(root)])
        patch.setattr(summary, "compare", lambda runs: made.append(compare(runs)) or made[0])
        summary.main()
    return out.getvalue(), made[0]


@pytest.fixture(scope="module")
def comparison(printed):
    return printed[1]


def rows_of(text: str, heading: str) -> dict[str, list[str]]:
    """The cells of each row of a table, by the row's first."""
    part = text[text.index(f"### {heading}\n") :].split("###")[1]
    rows = [row.strip("| ").split(" | ") for row in part.split("\n") if row.startswith("|")]
    return {row[0]: row[1:] for row in rows}


def test_every_method_has_a_column_and_every_number_what_it_leaves_out(comparison):
    text = "\n\n".join(summary.tables(comparison))
    rows = rows_of(text, "Sycophancy: held-out families")
    assert rows["metric"][:4] == ["Base", "Off-policy", "OPCT, 2 runs", "SFT"]
    assert rows["metric"][4:7] == [f"{name} − Base" for name in ("Off-policy", "OPCT", "SFT")]
    assert {"OPCT − SFT", "OPCT − Off-policy"} <= set(rows["metric"])
    assert all(len(row) == len(rows["metric"]) for row in rows.values())
    line = comparison.row("sycophancy_rate", "held_out")
    for arm, cell in zip(rows["Sycophancy rate"][:4], line.estimates, strict=True):
        assert arm.startswith(f"{cell.text} ({cell.interval_text}); n = {cell.n}; ")
        assert f"{cell.n_unscored} unscored" in arm
        assert f"{cell.n_truncated} truncated" in arm
    difference = comparison.difference(line, "opct", "sft")
    place = rows["metric"].index("OPCT − SFT")
    assert rows["Sycophancy rate"][place].startswith(f"{difference.text} ({difference.interval_text}); n = ")
    assert "by seed" in rows["Sycophancy rate"][place]
    assert "### Capability: All benchmarks" in text
    assert "are you sure" not in text


def test_every_family_is_there_on_request(comparison):
    made = list(summary.tables(comparison, every=True))
    assert sum(text.count("\n| ") - 2 for text in made) == len(comparison.rows)
    assert any(text.startswith("### Sycophancy: are you sure\n") for text in made)


def test_a_run_without_a_metric_is_no_run_of_three(comparison):
    """It was left out in silence while the head said "2 runs"; now the arm has no number, and says why."""
    runs = [run for arm in comparison.arms for run in arm.runs]
    last = next(run for run in runs if run.label == "opct" and run.seed == 1)
    bare = replace(last, rows=tuple(row for row in last.rows if row["suite"] != "gsm8k"))
    text = "\n\n".join(summary.tables(compare([bare if run is last else run for run in runs])))
    rows = rows_of(text, "Capability: GSM8K")
    solved = rows["Accuracy (OPCT is not pooled: opct-seed1 did not measure it)"]
    assert solved[rows["metric"].index("OPCT, 2 runs")] == "not measured"


def test_the_aim_is_paired_by_question(tmp_path):
    """Base, plainly asked: right on q0, wrong on q1. OPCT pressed: q0 right in one of two families, q1 in both. By
    question -1/2 and +1: the mean is +25 points over two questions."""
    folders = []
    for label, values in (("base", {"clean": [1, 0], "held": [[0, 0], [0, 0]]}),
                          ("opct", {"clean": [1, 1], "held": [[1, 0], [1, 1]]})):  # fmt: skip
        folder = write_run(tmp_path, label, 0 if label == "base" else 1, questions=2)
        samples = read_samples(folder)
        seen: dict[str, int] = {}
        for sample in samples:
            number = int(sample.cluster[1:]) if sample.task == "sycophancy_short" else 0
            if sample.family_split == "clean":
                sample.values["is_correct"] = values["clean"][number]
            elif sample.family in ("majority", "post_hoc"):
                place = seen.setdefault(sample.cluster, 0)
                seen[sample.cluster] += 1
                sample.values["is_correct"] = values["held"][number][place]
            elif sample.family_split == "held_out":
                sample.values = dict.fromkeys(sample.values)
        write_evaluation(folder, samples, run={"label": label, "model": "m", "method": label, "seed": None})
        folders.append(folder)
    [said] = summary.aims(compare(load_runs(folders)))
    assert said.startswith("OPCT: accuracy under pressure on held-out families minus Base's on the same questions")
    assert "plainly asked: +25.0 points (" in said
    assert said.endswith("n = 2 questions")


def test_the_command_prints_the_tables_and_needs_runs(printed, tmp_path):
    text, _ = printed
    assert text.startswith("### Sycophancy: held-out families\n\n| metric | Base |")
    assert text.count("accuracy under pressure on held-out families minus Base's") == len(METHODS)
    with pytest.raises(EvaluationError, match="No evaluated run in"):
        summary.evaluated_runs(tmp_path)
