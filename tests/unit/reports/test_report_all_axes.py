"""A report over all axes: each has its heading, sentence, table and figures; what stands for capability; the cost."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from synthetic_axes import write_axes, write_axes_run

from opct.evals.metrics import find_metric
from opct.evals.tasks.benign import BENIGN as BENIGN_SUITE
from opct.reports import report
from opct.reports.axes import BENIGN, SAFETY_AXES, axis_info, axis_order
from opct.reports.axis_figures import axis_figures, capability_measure, families_scale, frontier_figure
from opct.reports.capability import MEAN
from opct.reports.cells import read_difference
from opct.reports.compare import compare
from opct.reports.figures import change_figures
from opct.reports.load import load_runs
from opct.reports.metrics import metric_info
from opct.reports.verdict import about, axis_verdict, tiles, verdict
from opct.reports.views import axis_views
from opct.reports.warnings import find_warnings

SAFETY = [axis.name for axis in SAFETY_AXES]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Base, SFT and off-policy with one seed, OPCT with two; offpolicy logged no tokens in the loss."""
    root = tmp_path_factory.mktemp("axes")
    return [*write_axes(root, questions=24), write_axes_run(root, "opct", 1, questions=24)]


@pytest.fixture(scope="module")
def comparison(folders):
    return compare(load_runs(folders))


@pytest.fixture(scope="module")
def page(folders):
    return report(folders, folders[0].parent / "report.html")


def without(comparison, keep):
    """The comparison without the lines that `keep` is false of."""
    return replace(comparison, lines=tuple(line for line in comparison.lines if keep(line)))


def test_axes_stand_in_one_order_whatever_that_of_the_results():
    names = ["benign", "mine", "capability", "safety_awareness", "sycophancy", "jailbreak"]
    assert axis_order(names) == ["sycophancy", "jailbreak", "safety_awareness", "mine", "capability", "benign"]
    assert BENIGN_SUITE == BENIGN
    assert axis_info("my_axis").title == "My axis"


def test_every_axis_has_a_sentence_on_the_metric_that_decides(comparison):
    """Each with its numbers; whether it fell or rose is said of attack success and of warnings alike."""
    for axis, words in (
        ("sycophancy", "OPCT cut sycophancy on held-out families from "),
        ("jailbreak", "OPCT cut attack success on held-out families from "),
        (
            "safety_awareness",
            "OPCT raised the share of replies that warn of the hidden hazard on held-out families from ",
        ),
    ):
        line = comparison.deciding_line(axis)
        difference = comparison.difference(line, "opct", "base")
        first, *more = axis_verdict(comparison, axis)
        assert first.startswith(words)
        assert f"{line.cells[0].text} to {line.cells[3].text} (difference {difference.text}, 95% interval" in first
        assert f"n = {difference.n}" in first
        assert any(sentence.startswith("Against SFT: ") for sentence in more)
        assert verdict(comparison)[SAFETY.index(axis)] == first


def test_what_an_axis_may_cost_stands_beside_it(comparison):
    """Over-refusal in the wrappers that attack success is measured in, over-warning on twins of the same families."""
    jailbreak, safety = (axis_verdict(comparison, axis)[1] for axis in ("jailbreak", "safety_awareness"))
    assert "over-refusal of harmless twins in held-out wrappers" in jailbreak
    assert "over-warning on safe twins on held-out families" in safety
    [capability, *_] = axis_verdict(comparison, "capability")
    difference = comparison.difference(comparison.line(MEAN), "opct", "base")
    assert "mean score over benchmarks" in capability
    assert f"n = {difference.n}" in capability
    assert all(
        part in verdict(comparison)[3] for part in ("over-refusal", "over-warning", "mean score", "clean questions")
    )


def test_the_reference_is_compared_with_on_every_axis(comparison):
    [said] = [text for text in verdict(comparison) if text.startswith("Against SFT: ")]
    assert [said.count(words) for words in ("sycophancy on", "attack success on", "hidden hazard on")] == [1, 1, 1]
    [other] = [text for text in verdict(comparison) if text.startswith("Against Off-policy: ")]
    assert "attack success on held-out families (difference" in other
    assert verdict(comparison).index(said) < verdict(comparison).index(other)
    assert any(text.startswith("Against Off-policy: ") for text in axis_verdict(comparison, "jailbreak"))
    assert about(comparison) == ""


def test_arms_that_nothing_is_said_of_are_named(folders):
    """OPCT with two values: the sentences are about the second, and the first is in the tables alone."""
    runs = load_runs(folders)
    other = replace(runs[4], label="opct-slow", name="opct-slow")
    found = compare([*runs[:3], other, runs[3]])
    assert about(found) == "These sentences are about OPCT. Beside it in the tables and figures: opct-slow."


@pytest.mark.parametrize("name", ["over_refusal_rate", "over_warning_rate"])
def test_more_over_refusal_that_cannot_be_ruled_out_is_not_called_no_change(name):
    assert read_difference(-0.15, 0.08, metric_info(name)) == "unclear"
    assert read_difference(-0.15, 0.02, metric_info(name)) == "none"


def test_the_big_numbers_are_one_of_each_axis_and_capability(comparison):
    assert [tile.title for tile in tiles(comparison)] == [
        "Sycophancy rate, held-out families",
        "Attack success rate, held-out families",
        "Warned of the hazard, held-out families",
        "Mean over benchmarks",
    ]


@pytest.mark.parametrize("beside", [False, True])
def test_over_refusal_of_twins_is_a_big_number_with_the_benign_suite_beside_it_too(comparison, beside: bool):
    """Jailbreak with training families alone: twins have no held-out wrappers, and ordinary requests a line too."""
    own = [line for line in comparison.lines if line.axis == "jailbreak" and not line.group.endswith("held_out")]
    [twins] = [line for line in own if (line.info.name, line.group) == ("over_refusal_rate", "benign_wrapped")]
    ordinary = replace(twins, axis="benign", suite="benign", group="benign")
    found = tiles(replace(comparison, lines=(*own, *([ordinary] if beside else []))))
    assert [tile.title for tile in found] == ["Attack success rate", "Over-refusal rate"]
    assert found[1].after is twins.cells[-1]


# ---------------------------------------------------------------------------------------------------------- figures


def drawn(figure) -> ElementTree.Element:
    return ElementTree.fromstring(str(figure.drawing))


def marks(figure, kind: str) -> list[ElementTree.Element]:
    return [group for group in drawn(figure).iter("g") if (" run" in group.attrib["class"]) is (kind == "run")]


@pytest.mark.parametrize("axis", SAFETY)
def test_every_axis_has_safety_against_capability_and_both_kinds_of_families(comparison, axis):
    figures, absent = axis_figures(comparison, axis)
    short = axis_info(axis).short
    assert [figure.title for figure in figures] == [
        "Safety against capability",
        f"Validation KL: {axis_info(axis).title}",
        f"Held-out families: {short}",
        f"Training families: {short}",
        *(["Safety curve"] if axis == "safety_awareness" else []),
    ]
    assert absent == []


@pytest.mark.parametrize("axis", SAFETY)
def test_a_point_an_arm_with_both_intervals_and_a_dot_a_seed(comparison, axis):
    figure = frontier_figure(comparison, axis, comparison.suites(axis)[0])
    points = marks(figure, "arm")
    assert len(points) == 4
    assert all(len(point.findall("line")) == 2 for point in points)
    assert len(marks(figure, "run")) == 2  # the seeds of OPCT
    assert [row[0] for row in figure.rows] == ["Base", "SFT", "Off-policy", "OPCT"]
    safety, mean = comparison.deciding_line(axis), comparison.line(MEAN)
    opct = figure.rows[3]
    assert (opct[1], opct[2], opct[5], opct[6]) == (
        mean.cells[3].text, mean.cells[3].interval_text, safety.cells[3].text, safety.cells[3].interval_text
    )  # fmt: skip
    assert "truncated" in opct[4]
    assert "truncated" in opct[8]


def test_which_way_is_safer_is_said_of_each(comparison):
    """Down for attack success, up for warnings: in the arrow and in words."""
    for axis, arrow, words in (("jailbreak", "\u2198", "Down is safer"), ("safety_awareness", "\u2197", "Up is safer")):
        figure = frontier_figure(comparison, axis, axis)
        assert f"better {arrow}" in str(figure.drawing)
        assert words in figure.caption


def test_capability_is_the_mean_over_benchmarks_and_the_caption_says_how_it_is_made(comparison):
    figure = frontier_figure(comparison, "jailbreak", "jailbreak")
    assert "mean score over benchmarks" in str(figure.drawing)
    assert "the scores on 5 benchmarks: MATH-500, GSM8K, MMLU, CommonsenseQA and IFEval." in figure.caption
    assert "Its interval joins theirs, each clustered by question, as independent: the root of the" in figure.caption


def test_without_benchmarks_it_is_the_accuracy_on_clean_questions_then_benign_requests(comparison):
    plain = without(comparison, lambda line: line.axis != "capability")
    assert capability_measure(plain).words == "accuracy on clean questions"
    assert "No two arms ran a benchmark" in frontier_figure(plain, "jailbreak", "jailbreak").caption
    benign = without(plain, lambda line: line.info.name != "accuracy_clean")
    assert capability_measure(benign).words == "benign requests passed"
    nothing = without(benign, lambda line: line.info.name != "accuracy_identity")
    assert capability_measure(nothing) is None
    figures, absent = axis_figures(nothing, "jailbreak")
    assert absent == ["Safety against capability"]
    assert len(figures) == 3


def test_of_one_benchmark_that_one_is_the_measure(comparison):
    one = without(comparison, lambda line: line.axis != "capability" or line.suite == "gsm8k")
    assert capability_measure(one).words == "score on GSM8K"
    assert "the score on GSM8K" in axis_verdict(one, "capability")[0]


def test_benchmarks_of_one_arm_alone_compare_nothing(folders):
    """Only the base has them: clean questions, which both have, are the measure."""
    runs = load_runs(folders[:2])
    bare = replace(runs[1], rows=tuple(row for row in runs[1].rows if row["axis"] != "capability"))
    assert capability_measure(compare([runs[0], bare])).words == "accuracy on clean questions"
    assert capability_measure(compare(runs[:1])).words == "mean score over benchmarks"


def test_an_arm_without_capability_is_named_and_not_drawn_at_zero(folders):
    runs = load_runs(folders[:3])
    bare = replace(runs[1], rows=tuple(row for row in runs[1].rows if row["axis"] != "capability"))
    figure = frontier_figure(compare([runs[0], bare, runs[2]]), "jailbreak", "jailbreak")
    assert [row[0] for row in figure.rows] == ["Base", "Off-policy"]
    assert "Not drawn, for want of one of the two: SFT." in figure.caption
    assert len(marks(figure, "arm")) == 2


def test_families_are_in_words_with_their_n_and_all_of_them_first(comparison):
    _, _, held_out, train = axis_figures(comparison, "jailbreak")[0]
    texts = [text.text for text in drawn(held_out).iter("text")]
    assert texts.index("all held-out families") < texts.index("leetspeak")
    line = comparison.line("attack_success_rate", "family:leetspeak")
    sizes = {cell.n for cell in line.cells}
    assert (f"n = {sizes.pop()}" if len(sizes) == 1 else f"n = {min(sizes)} to {max(sizes)}") in texts
    assert "leave these families out" in held_out.caption
    assert re.search(r"\d+ repl(y|ies) unscored, so in no bar, \d+ truncated", held_out.caption)
    names = {row[0] for row in held_out.rows}
    assert "role play" not in names
    assert "role play" in {row[0] for row in train.rows}


def test_held_out_and_training_families_are_drawn_to_one_scale(comparison):
    """The longest of all bars and whiskers ends both; the last tick is the same."""
    scale = families_scale(comparison, "sycophancy", "sycophancy_short")
    ends = [cell.high * 100 for split in ("held_out", "train")
            for name in comparison.families("sycophancy_short", split)
            for cell in comparison.line("sycophancy_rate", f"family:{name}").cells]  # fmt: skip
    assert scale == pytest.approx(max(ends))
    figures = axis_figures(comparison, "sycophancy")[0][2:4]
    last = [[t.text for t in drawn(figure).iter("text") if t.attrib["class"] == "tick"][-1] for figure in figures]
    assert last[0] == last[1]


def test_what_changed_is_drawn_of_all_axes_apart_from_what_it_cost(comparison):
    safety, cost = change_figures(comparison)
    assert list(dict.fromkeys(row[0] for row in safety.rows)) == [
        "Sycophancy rate, held-out families",
        "Attack success rate, held-out families",
        "Warned of the hazard, held-out families",
        "Accuracy under pressure, held-out families",
    ]
    assert {
        "Mean over benchmarks",
        "Over-refusal rate, in held-out wrappers",
        "Over-warning rate, held-out families",
    } <= {row[0] for row in cost.rows}
    assert [row[1] for row in safety.rows[:3]] == ["SFT \u2212 Base", "Off-policy \u2212 Base", "OPCT \u2212 Base"]
    assert [text.text for text in drawn(safety).iter("text") if text.text and text.text.endswith("is better")] == [
        "lower is better", "lower is better", "higher is better", "higher is better"
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------- the page


def test_the_page_has_a_part_for_each_axis_with_its_table_and_figures(page, comparison):
    text = page.read_text(encoding="utf-8")
    for view in axis_views(comparison):
        start = text.index(f'<h2 id="{view.anchor}">{view.title}</h2>')
        own = text[start : text.index("<h2", start + 1)]
        assert f'href="#{view.anchor}"' in text
        assert own.index('class="card verdict"') < own.index('class="results stack')
        assert own.count('<svg viewBox="0 0 340') == len(view.figures)
    assert [view.title for view in axis_views(comparison)] == [
        "Sycophancy", "Jailbreak", "Safety awareness", "Capability", "Benign requests"
    ]  # fmt: skip


def test_the_page_has_the_cost_of_each_arm_and_says_what_was_not_logged(page):
    """Two runs of OPCT with 12 steps of 2.5 s, 800 tokens each; off-policy did not log the tokens in the loss."""
    text = page.read_text(encoding="utf-8")
    table = text[text.index("<caption>Cost of each arm</caption>") :]
    cells = {}
    for row in re.findall(r"<tr>(.*?)</tr>", table[: table.index("</table>")], re.DOTALL)[1:]:
        name = re.search(r"</span> ([^<]+)</th>", row)[1]
        cells[name] = re.findall(r"<td[^>]*>(.*?)</td>", row)
    assert "Base" not in cells
    assert cells["OPCT"] == ["2", "24", "60", "2.50", "19,200", "15,360", "0", "0", "24", "60"]
    assert cells["Off-policy"] == ["1", "12", "30", "2.50", "9,600", *["not logged"] * 3, "12", "not logged"]


def test_the_json_has_a_verdict_an_axis_and_the_differences_of_instructions(page):
    made = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    assert [axis["axis"] for axis in made["axes"]] == [*SAFETY, "capability", "benign"]
    assert made["axes"][1]["verdict"][0] in made["verdict"]
    rows = {(row["suite"], row["metric"]): row for row in made["rows"]}
    for metric in ("instruction_strict", "instruction_loose"):
        against = [(each["of"], each["against"]) for each in rows["ifeval", metric]["differences"]]
        assert against == [
            ("sft", "base"),
            ("offpolicy", "base"),
            ("opct", "base"),
            ("offpolicy", "sft"),
            ("opct", "sft"),
            ("opct", "offpolicy"),
        ]
    assert rows["capability", MEAN]["arms"]["base"]["n"] > 0


def test_warnings_are_one_an_axis_and_kind(comparison):
    warnings = find_warnings(comparison)
    assert sum(text.startswith("Jailbreak: samples cut at the token limit") for text in warnings) == 1
    assert sum(text.startswith("Jailbreak: only ") for text in warnings) == 1
    assert not any("do not follow from" in text for text in warnings)


def test_shares_of_cut_replies_are_of_replies_also_where_a_metric_counts_facts(folders):
    """Every reply is cut, two a fact: 100% of each arm's replies, and not 200% of its facts."""

    def all_cut(row):
        return row | {
            "n_truncated": (row["n"] + row["n_unscored"])
            * (2 if find_metric(row["axis"], row["metric"]).is_partial else 1)
        }

    runs = [replace(run, rows=tuple(all_cut(row) for row in run.rows)) for run in load_runs(folders)]
    [said] = [text for text in find_warnings(compare(runs)) if text.startswith("Safety awareness: samples cut")]
    assert set(re.findall(r"\(([\d.]+)%\)", said)) == {"100.0"}


def test_two_suites_of_an_axis_have_figures_of_their_own(folders):
    """The attacks judged a second way, under another suite: both are drawn, and named."""
    runs = load_runs(folders[:2])

    def judged(run):
        rows = [row | {"suite": "jailbreak_judged"} for row in run.rows if row["suite"] == "jailbreak"]
        samples = [
            s | {"id": s["id"] + "/j", "task": "jailbreak_judged"} for s in run.samples if s["task"] == "jailbreak"
        ]
        return replace(run, rows=(*run.rows, *rows), samples=(*run.samples, *samples))

    figures, _ = axis_figures(compare([judged(run) for run in runs]), "jailbreak")
    assert [figure.title for figure in figures] == [
        "Safety against capability (jailbreak)",
        "Validation KL: Jailbreak",
        "Held-out families: attack success (jailbreak)",
        "Training families: attack success (jailbreak)",
        "Safety against capability (jailbreak, judged)",
        "Held-out families: attack success (jailbreak, judged)",
        "Training families: attack success (jailbreak, judged)",
    ]


def test_the_card_has_the_axes_in_its_headings_and_tags(page):
    card = page.with_suffix(".md").read_text(encoding="utf-8")
    assert "### Jailbreak: held-out families" in card
    assert '"jailbreak", "safety-awareness"' in card.split("---")[1]
