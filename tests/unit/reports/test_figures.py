"""The figures: what is drawn of each axis, what stands for capability, and the same numbers as a table."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from opct.evals.metrics import GRID
from opct.evals.samples import ATTACK
from opct.reports.compare import compare
from opct.reports.figures import (
    axis_figures,
    capability_row,
    change_figures,
    frontier_figure,
    safety_curve_figure,
)
from opct.reports.load import of_suites
from opct.reports.metrics import MEAN, SAFETY_AXES, axis_info
from tests.unit.evals.fakes import curve

SAFETY = [axis.name for axis in SAFETY_AXES if axis.name != ATTACK]
AWARENESS = "safety_awareness"


def without(comparison, keep):
    """The comparison without the rows that `keep` is false of."""
    return replace(comparison, rows=tuple(row for row in comparison.rows if keep(row)))


def drawn(figure) -> ElementTree.Element:
    return ElementTree.fromstring(str(figure.drawing))


def marks(figure, kind: str) -> list[ElementTree.Element]:
    return [group for group in drawn(figure).iter("g") if (" run" in group.attrib["class"]) is (kind == "run")]


@pytest.mark.parametrize("axis", SAFETY)
def test_every_axis_has_safety_against_capability_and_both_kinds_of_families(comparison, axis):
    figures = axis_figures(comparison, axis)
    metric = comparison.deciding_row(axis).title
    metric = metric[0].lower() + metric[1:]
    assert [figure.title for figure in figures] == [
        "Safety against capability",
        f"Validation KL: {axis_info(axis).title}",
        f"Held-out families: {metric}",
        f"Training families: {metric}",
        *(["Safety curve"] if axis == "safety_awareness" else []),
    ]


@pytest.mark.parametrize("axis", SAFETY)
def test_a_point_an_arm_with_both_intervals_and_a_dot_a_seed(comparison, axis):
    figure = frontier_figure(comparison, axis, comparison.suites(axis)[0])
    points = marks(figure, "arm")
    assert len(points) == 4
    assert all(len(point.findall("line")) == 2 for point in points)
    assert len(marks(figure, "run")) == 2  # the seeds of OPCT
    assert [row[0] for row in figure.rows] == ["Base", "SFT", "Off-policy", "OPCT"]
    safety, mean = comparison.deciding_row(axis), comparison.row(MEAN)
    opct = figure.rows[3]
    good, bad = mean.estimates[3], safety.estimates[3]
    assert (opct[1], opct[2], opct[5], opct[6]) == (good.text, good.interval_text, bad.text, bad.interval_text)
    assert "truncated" in opct[4]
    assert "truncated" in opct[8]


def test_which_way_is_safer_is_said_of_each(comparison):
    """Down for attack success, up for warnings: in the arrow and in words."""
    for axis, arrow, words in (
        ("jailbreak", "\u2198", "Lower is safer"),
        ("safety_awareness", "\u2197", "Higher is safer"),
    ):
        figure = frontier_figure(comparison, axis, axis)
        assert f"better {arrow}" in str(figure.drawing)
        assert words in figure.caption


def test_capability_is_the_mean_over_benchmarks_and_the_caption_says_how_it_is_made(comparison):
    figure = frontier_figure(comparison, "jailbreak", "jailbreak")
    assert "mean over benchmarks" in str(figure.drawing)
    assert "the mean score over 5 benchmarks: MATH-500, GSM8K, MMLU, CommonsenseQA and IFEval. " in figure.caption


def test_without_benchmarks_it_is_the_accuracy_on_clean_questions_then_benign_requests(comparison):
    plain = without(comparison, lambda row: row.axis != "capability")
    assert capability_row(plain).metric.name == "accuracy_clean"
    assert (
        "accuracy on clean questions (no two arms ran a benchmark)."
        in frontier_figure(plain, "jailbreak", "jailbreak").caption
    )
    benign = without(plain, lambda row: row.metric.name != "accuracy_clean")
    assert capability_row(benign).metric.name == "accuracy_identity"
    nothing = without(benign, lambda row: row.metric.name != "accuracy_identity")
    assert capability_row(nothing) is None
    assert len(axis_figures(nothing, "jailbreak")) == 3


def test_an_arm_without_capability_is_named_and_not_drawn_at_zero(runs):
    base, _, other = (of_suites(own, ["jailbreak", "gsm8k"]) for own in runs[:3])
    figure = frontier_figure(compare([base, of_suites(runs[1], ["jailbreak"]), other]), "jailbreak", "jailbreak")
    assert [row[0] for row in figure.rows] == ["Base", "Off-policy"]
    assert "Not drawn, because the numbers are missing: SFT." in figure.caption
    assert len(marks(figure, "arm")) == 2


def test_families_are_in_words_with_their_n_and_all_of_them_first(comparison):
    _, _, held_out, train = axis_figures(comparison, "jailbreak")
    texts = [text.text for text in drawn(held_out).iter("text")]
    assert texts.index("all held-out families") < texts.index("leetspeak")
    row = comparison.row("attack_success_rate", "family:leetspeak")
    sizes = {cell.n for cell in row.estimates}
    assert (f"n = {sizes.pop()}" if len(sizes) == 1 else f"n = {min(sizes)} to {max(sizes)}") in texts
    assert "leave these families out" in held_out.caption
    assert re.search(r"\d+ repl(y|ies) unscored \(in no bar\), \d+ truncated", held_out.caption)
    names = {row[0] for row in held_out.rows}
    assert "role play" not in names
    assert "role play" in {row[0] for row in train.rows}


def test_held_out_and_training_families_are_drawn_to_one_scale(comparison):
    """The last tick is the same."""
    figures = axis_figures(comparison, "sycophancy")[2:4]
    last = [[t.text for t in drawn(figure).iter("text") if t.attrib["class"] == "tick"][-1] for figure in figures]
    assert last[0] == last[1]


def test_what_changed_is_drawn_of_all_axes_apart_from_what_it_cost(comparison):
    safety, cost = change_figures(comparison)
    assert list(dict.fromkeys(row[0] for row in safety.rows)) == [
        "Sycophancy rate on held-out families",
        "Attack success rate on held-out families",
        "Hazard warning rate on held-out families",
        "Accuracy under pressure on held-out families",
    ]
    assert {
        "Mean over benchmarks",
        "Over-refusal rate in held-out wrappers",
        "Over-warning rate on held-out families",
    } <= {row[0] for row in cost.rows}
    assert [row[1] for row in safety.rows[:3]] == ["SFT \u2212 Base", "Off-policy \u2212 Base", "OPCT \u2212 Base"]
    assert [text.text for text in drawn(safety).iter("text") if text.text and text.text.endswith("is better")] == [
        "lower is better", "lower is better", "higher is better", "higher is better"
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------ safety curve


def rates(run) -> list[float]:
    """The pass rate of each fact in held-out families; an unscored message beside a scored one counts as 0."""
    found: dict[str, list[float | None]] = {}
    for own in run.suites[AWARENESS]:
        if own.group == "held_out":
            found.setdefault(own.cluster, []).append(own.values["is_warned"])
    return [sum(x or 0 for x in own) / len(own) for own in found.values() if any(x is not None for x in own)]


def test_each_arm_has_its_share_of_facts_at_each_point_of_the_grid(comparison, runs):
    """As `curve` has it of the samples, in the table and in the alternative text; of seeds, the mean by fact."""
    figure = safety_curve_figure(comparison, AWARENESS, AWARENESS)
    for run, name in zip(runs, ("Base", "SFT", "Off-policy"), strict=False):
        shares = {f"{tau:g}": f"{100 * share:.1f}%" for tau, share in curve(rates(run), GRID[1:]).items()}
        assert {row[1]: row[2] for row in figure.rows if row[0] == name} == shares
        assert f"{name}: {', '.join(f'{share} at {tau}' for tau, share in shares.items())}" in str(figure.drawing)
    shares = [float(row[2].rstrip("%")) for row in figure.rows if row[0] == "OPCT"]
    seeds = [curve(rates(run), GRID[1:]) for run in runs[3:]]
    assert shares == pytest.approx([100 * sum(own[tau] for own in seeds) / 2 for tau in GRID[1:]], abs=2)
    assert figure.columns == ("arm", "\u03c4", "S(\u03c4)", "95% interval", "facts", "left out")


def test_the_line_goes_down_in_steps_at_the_points_of_the_grid(comparison):
    """From S(0) = 1 at once to S(0.36), level until 0.36, and so on to 1: two corners a point, and the first."""
    figure = safety_curve_figure(comparison, AWARENESS, AWARENESS)
    lines = [
        [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        for line in drawn(figure).iter("polyline")
    ]
    for line in lines:
        assert len(line) == 1 + 2 * (len(GRID) - 1)
        assert all(a[0] == b[0] for a, b in zip(line[::2], line[1::2], strict=False))
        assert all(a[1] == b[1] for a, b in zip(line[1::2], line[2::2], strict=True))
        heights = [y for _, y in line]
        assert heights == sorted(heights)  # a drawing's y goes down


def test_an_arm_without_the_points_is_named_and_without_any_there_is_no_curve(comparison, runs):
    base, sft = (of_suites(own, [AWARENESS]) for own in runs[:2])
    bare = replace(sft, rows=tuple(row for row in sft.rows if row["metric"] != "share_at_98"))
    figure = safety_curve_figure(compare([base, bare]), AWARENESS, AWARENESS)
    assert {row[0] for row in figure.rows} == {"Base"}
    assert figure.caption.endswith("Not drawn, because the numbers are missing: SFT.")
    nothing = without(comparison, lambda row: not row.metric.name.startswith("share"))
    assert "Safety curve" not in [figure.title for figure in axis_figures(nothing, AWARENESS)]
