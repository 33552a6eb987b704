"""Several seeds on the report: what is pooled and compared, what is not and why, and what the page says of it."""

from __future__ import annotations

import json
from dataclasses import replace
from math import hypot, sqrt

import pytest
from synthetic import write_run
from tests.unit.reports.test_report_capability import run as benchmarks

from opct.evals.stats import SeedSpread, widened
from opct.reports import report
from opct.reports.capability import MEAN
from opct.reports.compare import Comparison, compare
from opct.reports.load import EvaluatedRun, load_runs
from opct.reports.verdict import verdict
from opct.reports.warnings import find_warnings

RATE = "sycophancy_rate"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The base, SFT of one seed, OPCT of three."""
    root = tmp_path_factory.mktemp("seeds")
    runs = [("base", 0), ("sft", 1), ("opct", 1), ("opct", 2), ("opct", 3)]
    return [write_run(root, label, seed, questions=24) for label, seed in runs]


@pytest.fixture(scope="module")
def runs(folders) -> list[EvaluatedRun]:
    return load_runs(folders)


def unscored(run: EvaluatedRun, wanted) -> EvaluatedRun:
    """The run with no value in the samples that are wanted."""
    made = [s | {"values": dict.fromkeys(s["values"])} if wanted(s) else s for s in run.samples]
    return replace(run, samples=tuple(made))


def held_out(sample) -> bool:
    return sample["family_split"] == "held_out"


def with_settings(run: EvaluatedRun, **settings: object) -> EvaluatedRun:
    """The run with these settings in its rows of benign requests."""
    rows = [row | {"settings": settings} if row["suite"] == "benign" else row for row in run.rows]
    return replace(run, rows=tuple(rows))


def difference_of(found: Comparison, of: str = "opct", against: str = "base", metric: str = RATE):
    return found.difference(found.line(metric, "held_out") or found.line(metric), of, against)


def test_a_difference_has_that_of_each_seed_and_an_interval_over_them(runs):
    """Against the base, which has one run: the rate of each seed minus the base's. Nothing of SFT, a single run too."""
    found = compare(runs)
    line, difference = found.line(RATE, "held_out"), difference_of(found)
    [spread] = difference.spreads
    cells = [cell.value for cell in line.run_cells[2]]
    assert spread.values == pytest.approx([value - line.cells[0].value for value in cells], abs=0.02)
    assert difference.low <= difference.over_questions[0] < difference.over_questions[1] <= difference.high
    assert difference.high - difference.low > difference.over_questions[1] - difference.over_questions[0]
    pooled = line.cells[2]
    assert pooled.run_values == pytest.approx(cells)
    assert pooled.high - pooled.low > pooled.questions[1] - pooled.questions[0]
    single = difference_of(found, "sft")
    assert (single.spreads, single.questions, single.seeds_text) == ((), (single.low, single.high), "")


def test_the_page_and_the_json_have_the_differences_seed_by_seed(folders, runs):
    out = report(folders, folders[0].parent / "report.html")
    difference = difference_of(compare(runs))
    text, made = out.read_text(encoding="utf-8"), json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    assert difference.seeds_text.startswith("by seed \u2212")
    assert difference.seeds_text in text
    assert difference.seeds_text in out.with_suffix(".md").read_text(encoding="utf-8")
    [row] = [row for row in made["rows"] if (row["metric"], row["group"]) == (RATE, "held_out")]
    [own] = [each for each in row["differences"] if (each["of"], each["against"]) == ("opct", "base")]
    [spread] = difference.spreads
    assert own["seeds"] == [{"differences": list(spread.values), "sd": spread.sd}]
    assert own["ci_over_questions"] == list(difference.questions)
    assert len(row["arms"]["opct"]["run_values"]) == 3
    assert "Pooled over training seeds: OPCT (3 runs). Replies to one prompt" in text
    assert "SFT has one training seed: its intervals say nothing about another one." in text


def test_many_seeds_and_unlike_seeds_are_said_in_short(runs):
    many = [replace(runs[2 + i % 3], seed=i, name=f"opct-{i}") for i in range(6)]
    assert difference_of(compare([runs[0], *many])).seeds_text.startswith("6 seeds (SD ")
    others = [replace(run, label="sft", method="sft", seed=run.seed + 5) for run in runs[2:4]]
    found = difference_of(compare([runs[0], *others, *runs[2:]]), "opct", "sft")
    assert found.seeds_text.startswith("seeds of each side: SD ")
    assert [len(spread.values) for spread in found.spreads] == [3, 2]


# ------------------------------------------------------------------------------------------------- seeds that are lost


def test_a_seed_without_a_scored_sample_is_not_left_out_in_silence(runs):
    """Two of three seeds would be an `all paired` difference of their own: there is none, and the page says why."""
    found = compare([*runs[:4], unscored(runs[4], held_out)])
    line = found.line(RATE, "held_out")
    assert difference_of(found) is None
    assert found.reason(line, "opct", "base") == "no scored sample in opct-3"
    assert difference_of(found, "sft") is not None
    cell = line.cells[2]
    assert (cell.value, cell.n, cell.n_runs) == (None, 0, 3)
    assert "OPCT is not pooled: no scored sample in opct-3" in line.explanation
    assert (
        "OPCT and Base cannot be compared on sycophancy on held-out families: no scored sample in opct-3."
        in verdict(found)
    )
    assert "they cannot be compared on sycophancy on held-out families: no scored sample in opct-3" in " ".join(
        verdict(found)
    )


def test_a_cost_that_cannot_be_compared_is_said_among_the_costs(runs):
    """Not left out, as if training had cost nothing."""
    said = " ".join(verdict(compare([*runs[:4], unscored(runs[4], lambda row: row["family"] == "clean")])))
    assert "OPCT and Base cannot be compared on accuracy on clean questions: no scored sample in opct-3" in said


def test_a_run_that_did_not_measure_a_metric_is_named(runs):
    """Without rows and samples of the suite: not measured, not pooled, not compared."""
    bare = replace(
        runs[4],
        rows=tuple(row for row in runs[4].rows if row["suite"] != "benign"),
        samples=tuple(s for s in runs[4].samples if s["task"] != "benign"),
    )
    found = compare([*runs[:4], bare])
    line = found.line("accuracy_identity", "benign")
    assert line.cells[2] is None
    assert "OPCT is not pooled: opct-3 did not measure it" in line.explanation
    assert found.reason(line, "opct", "base") == "no scored sample in opct-3"


def test_a_run_on_other_samples_is_named(runs):
    other = replace(runs[4], samples=tuple(s | {"id": "x" + s["id"]} for s in runs[4].samples))
    found = compare([*runs[:4], other])
    assert difference_of(found) is None
    assert found.reason(found.line(RATE, "held_out"), "opct", "base") == "no sample of opct-3 was scored in Base too"


def test_what_is_not_compared_is_in_the_json_and_on_the_page(folders, tmp_path):
    """A run without any reply of the held-out families that could be graded."""
    lost = write_run(tmp_path, "opct", 4, questions=24)
    path = lost / "evals" / "samples.jsonl"
    samples = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    for sample in filter(held_out, samples):
        sample["values"] = dict.fromkeys(sample["values"])
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples), encoding="utf-8")
    out = report([*folders[:3], lost], tmp_path / "out" / "report.html")
    made = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    [row] = [row for row in made["rows"] if (row["metric"], row["group"]) == (RATE, "held_out")]
    reason = "no scored sample in opct-4"
    assert row["not_compared"] == [{"of": "opct", "against": other, "reason": reason} for other in ("base", "sft")]
    assert [(each["of"], each["against"]) for each in row["differences"]] == [("sft", "base")]
    assert f'<span class="small">{reason}</span>' in out.read_text(encoding="utf-8")
    assert reason in out.with_suffix(".md").read_text(encoding="utf-8")


def test_what_a_part_of_the_seeds_scored_is_counted_beside_it(runs):
    """One held-out reply of seed 3 has no value: it is still in n, by the two other seeds."""
    chosen = next(s["id"] for s in runs[4].samples if held_out(s) and s["values"]["is_suggested"] is not None)
    full, part = (
        compare([*runs[:4], run]) for run in (runs[4], unscored(runs[4], lambda sample: sample["id"] == chosen))
    )
    before, after = difference_of(full), difference_of(part)
    assert (after.n, after.n_partial) == (before.n, before.n_partial + 1)
    assert after.left_out_text.endswith(f", {after.n_partial} of {after.n} scored by some seeds only")
    cell = part.line(RATE, "held_out").cells[2]
    assert f"{cell.n_partial} of {cell.n} scored by some seeds only" in cell.left_out_text
    assert cell.to_json()["n_partial"] == full.line(RATE, "held_out").cells[2].n_partial + 1
    assert after.to_json()["n_partial"] == after.n_partial


# --------------------------------------------------------------------------------------- runs that were measured unlike


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("graded_by", "letters", "texts"),
        ("grader", "rules", "words"),
        ("prompt_hash", "ab", "cd"),
        ("data", "a.jsonl sha256:12", "a.jsonl sha256:34"),
        ("graded_by", "letters", None),
    ],
)
def test_of_runs_that_were_graded_or_asked_unlike_no_difference_is_given(runs, name, value, other):
    base, sft = (with_settings(run, **{name: value}) for run in runs[:2])
    unlike = with_settings(runs[2], **({} if other is None else {name: other}))
    found = compare([base, sft, unlike])
    line = found.line("accuracy_identity", "benign")
    assert found.difference(line, "sft", "base") is not None
    assert found.difference(line, "opct", "base") is None
    assert found.reason(line, "opct", "sft") == f"measured with different {name}"
    assert difference_of(found) is not None  # another suite
    shown = "null" if other is None else f'"{other}"'
    assert (
        f'benign: {name} differs between runs (base, sft-1: "{value}"; opct-1: {shown}), so no difference between them '
        "is given: evaluate them alike."
    ) in find_warnings(found)


def test_seeds_that_were_graded_unlike_are_not_pooled(runs):
    found = compare([with_settings(run, graded_by="texts" if run.seed == 3 else "letters") for run in runs])
    line = found.line("accuracy_identity", "benign")
    assert line.cells[2].value is None
    assert "OPCT is not pooled: measured with different graded_by" in line.explanation


def test_other_settings_of_a_suite_are_a_warning_and_said_once(runs):
    """Of two suites in one line; what the run's own settings say already is not said again; a judge has his own."""
    base, opct = runs[0], runs[2]

    def asked(run, n, judge):
        rows = [row | {"settings": {"n_asked": n, "tokens": n, "judge": judge}} for row in run.rows]
        return replace(run, rows=tuple(rows), settings={"tokens": n})

    found = compare([asked(base, 5, {"hash": "a"}), asked(opct, 6, {"hash": "a", "threshold": 0.5})])
    said = [text for text in find_warnings(found) if "differs between runs" in text]
    assert said == [
        "The evaluation setting tokens differs between runs (base: 5; opct-1: 6), so they are not strictly comparable: "
        "evaluate them alike.",
        "sycophancy_short and benign: n_asked differs between runs (base: 5; opct-1: 6), so they are not strictly "
        "comparable: evaluate them alike.",
    ]
    assert difference_of(found) is not None


def test_data_of_the_same_content_may_have_another_name(runs):
    found = compare([with_settings(run, data=f"{run.name}.jsonl sha256:12ab") for run in runs[:3]])
    assert found.difference(found.line("accuracy_identity", "benign"), "opct", "base") is not None
    assert not any("data differs" in text for text in find_warnings(found))


# ------------------------------------------------------------------------------------------------- means of benchmarks


def test_seeds_are_the_same_in_all_benchmarks():
    """GSM8K: 4 and 0 of 4, MMLU: 4 and 2 of 4; the base none of either. The means of the seeds are 1 and 1/4, SD 0.530,
    which is more than the 0.395 that SDs of 0.707 and 0.354, taken for independent, would make."""
    runs = [benchmarks("base", {"gsm8k": [0, 0, 0, 0], "mmlu": [0, 0, 0, 0]})]
    runs += [benchmarks("opct", {"gsm8k": [1, 1, 1, 1], "mmlu": [1, 1, 1, 1]}, 1)]
    runs += [benchmarks("opct", {"gsm8k": [0, 0, 0, 0], "mmlu": [1, 1, 0, 0]}, 2)]
    line = compare(runs).line(MEAN)
    difference, cell = line.differences[0], line.cells[1]
    assert (cell.run_values, difference.spreads[0].values) == ((1.0, 0.25), (1.0, 0.25))
    assert cell.between_run_sd == pytest.approx(0.75 / sqrt(2))
    spread = SeedSpread((1.0, 0.25))
    assert (difference.low, difference.high) == widened(0.625, difference.questions, 7, [spread], (-1.0, 1.0))
    assert (cell.low, cell.high) == widened(0.625, cell.questions, 7, [spread], (0.0, 1.0)) == (0.0, 1.0)
    parts = [found.line("accuracy", "all", suite) for found in [compare(runs)] for suite in ("gsm8k", "mmlu")]
    below = [each.differences[0].value - each.differences[0].questions[0] for each in parts]
    assert difference.questions[0] == pytest.approx(0.625 - hypot(*below) / 2)
    own = [each.cells[1].value - each.cells[1].questions[0] for each in parts]
    assert cell.questions[0] == pytest.approx(0.625 - hypot(*own) / 2)


def test_a_benchmark_without_a_difference_leaves_the_mean_without_one():
    """MMLU of seed 2 was graded in another way: the mean would be of GSM8K alone."""
    ask = {"gsm8k": [1, 0], "mmlu": [1, 0]}
    runs = [benchmarks("base", ask), benchmarks("opct", ask, 1), benchmarks("opct", ask, 2)]
    graded = [row | {"settings": {"graded_by": "texts"}} if row["suite"] == "mmlu" else row for row in runs[2].rows]
    found = compare([*runs[:2], replace(runs[2], rows=tuple(graded))])
    line = found.line(MEAN)
    assert line.differences == (None,)
    assert found.reason(line, "opct", "base") == "MMLU: measured with different graded_by"
    assert line.cells[1] is None


@pytest.mark.parametrize("before", [{}, {"grader_version": "0123"}])
def test_what_one_row_of_benign_is_graded_by_keeps_none_of_its_rows_from_being_compared(tmp_path, before):
    """Results of before had no grader there, and the version in every row."""
    base, opct = load_runs([write_run(tmp_path, label, questions=6) for label in ("base", "opct")])
    own = {"grader": "rules", "grader_version": "0123"}
    rows = [row | {"settings": before} if row["suite"] == "benign" else row for row in base.rows]
    last = next(row for row in opct.rows if row["suite"] == "benign") | {"metric": "over_refusal_rate", "settings": own}
    found = compare([replace(base, rows=tuple(rows)), replace(opct, rows=(*opct.rows, last))])
    assert found.difference(found.line("accuracy_identity"), "opct", "base") is not None
    assert not any("grader" in text for text in find_warnings(found))
