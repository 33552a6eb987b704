"""The figures: what is drawn of each axis, and the same numbers as a table."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from opct.evals.metrics import GRID
from opct.evals.samples import ATTACK, CONSISTENCY
from opct.reports.axes import MEAN, SAFETY_AXES
from opct.reports.compare import compare
from opct.reports.figures import change_figures, first_figure, frontier_figure, safety_curve_figure
from opct.reports.load import of_suites
from tests.unit.evals.fakes import curve

AWARENESS = "safety_awareness"


def marks(figure, kind: str) -> list[ElementTree.Element]:
    groups = ElementTree.fromstring(str(figure.drawing)).iter("g")
    return [group for group in groups if (" run" in group.attrib["class"]) is (kind == "run")]


@pytest.mark.parametrize("axis", [axis.name for axis in SAFETY_AXES if axis.name not in (ATTACK, CONSISTENCY)])
def test_a_point_an_arm_with_both_intervals_and_a_dot_a_seed(comparison, axis):
    figure = frontier_figure(comparison, axis, comparison.suites(axis)[0])
    points = marks(figure, "arm")
    assert len(points) == 4
    assert all(len(point.findall("line")) == 2 for point in points)
    assert len(marks(figure, "run")) == 2  # the seeds of OPCT
    assert [row[0] for row in figure.rows] == ["Base", "SFT", "Off-policy", "OPCT"]
    good, bad = comparison.row(MEAN).estimates[3], comparison.deciding_row(axis).estimates[3]
    numbers = (figure.rows[3][i] for i in (1, 2, 5, 6))
    assert tuple(numbers) == (good.text, good.interval_text, bad.text, bad.interval_text)


def test_an_arm_without_capability_is_named_and_not_drawn_at_zero(runs):
    base, _, other = (of_suites(own, ["jailbreak", "gsm8k"]) for own in runs[:3])
    figure = frontier_figure(compare([base, of_suites(runs[1], ["jailbreak"]), other]), "jailbreak", "jailbreak")
    assert [row[0] for row in figure.rows] == ["Base", "Off-policy"]
    assert "SFT" in figure.caption
    assert len(marks(figure, "arm")) == 2


def test_what_a_chart_leaves_out_for_its_unit_is_named(comparison):
    other = comparison.deciding_row("jailbreak")
    inner = replace(other, metric=replace(other.metric, unit="nats"))
    found = replace(comparison, rows=tuple(inner if row is other else row for row in comparison.rows))
    for figure in (first_figure(found), change_figures(found)[0]):
        assert figure.caption.endswith(f" Not drawn, in another unit: {found.name_of(inner)}.")
    assert "another unit" not in first_figure(comparison).caption


def rates(run) -> list[float]:
    """The pass rate of each fact in held-out families; an unscored message beside a scored one counts as 0."""
    by_fact: dict[str, list[float | None]] = {}
    for own in run.suites[AWARENESS]:
        if own.group == "held_out":
            by_fact.setdefault(own.cluster, []).append(own.values["is_warned"])
    return [sum(x or 0 for x in own) / len(own) for own in by_fact.values() if any(x is not None for x in own)]


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
