"""The figure of the safety curve, out of the rows of a run."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from synthetic_axes import write_axes

from opct.evals.metrics import GRID, curve
from opct.reports.axis_figures import axis_figures
from opct.reports.compare import compare
from opct.reports.load import load_runs
from opct.reports.safety_curve import safety_curve_figure

SAFETY = "safety_awareness"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Base and OPCT on safety awareness; 30 facts in three families each, some of them held out."""
    return load_runs(write_axes(tmp_path_factory.mktemp("curve"), labels=("opct",), axes=(SAFETY,)))


def rates(run) -> list[float]:
    """The pass rate of each fact over its scored messages in held-out families."""
    found: dict[str, list[float]] = {}
    for sample in run.samples:
        warned = sample["values"]["is_warned"]
        if sample["family_split"] == "held_out" and warned is not None:
            found.setdefault(sample["fact"], []).append(warned)
    return [sum(own) / len(own) for own in found.values()]


def polylines(figure) -> list[list[tuple[float, float]]]:
    lines = ElementTree.fromstring(str(figure.drawing)).iter("polyline")
    return [[tuple(map(float, point.split(","))) for point in line.attrib["points"].split()] for line in lines]


def test_each_arm_has_its_share_of_facts_at_each_point_of_the_grid(runs):
    """As `curve` has it of the samples, in the table and in the alternative text."""
    figure = safety_curve_figure(compare(runs), SAFETY, SAFETY)
    for run, name in zip(runs, ("Base", "OPCT"), strict=True):
        shares = {f"{tau:g}": f"{100 * share:.1f}%" for tau, share in curve(rates(run), GRID[1:]).items()}
        assert {row[1]: row[2] for row in figure.rows if row[0] == name} == shares
        assert f"{name}: {', '.join(f'{share} at {tau}' for tau, share in shares.items())}" in str(figure.drawing)
    assert "0 unscored, 0 truncated" not in figure.rows[0][5]
    assert figure.columns == ("arm", "\u03c4", "S(\u03c4)", "95% interval", "facts", "left out")


def test_the_line_goes_down_in_steps_at_the_points_of_the_grid(runs):
    """From S(0) = 1 at once to S(0.36), level until 0.36, and so on to 1: two corners a point, and the first."""
    for line in polylines(safety_curve_figure(compare(runs), SAFETY, SAFETY)):
        assert len(line) == 1 + 2 * (len(GRID) - 1)
        assert all(a[0] == b[0] for a, b in zip(line[::2], line[1::2], strict=False))
        assert all(a[1] == b[1] for a, b in zip(line[1::2], line[2::2], strict=True))
        heights = [y for _, y in line]
        assert heights == sorted(heights)  # a drawing's y goes down
        assert line[-1][0] == pytest.approx(328)


def test_arms_are_told_apart_by_dash_and_an_arm_without_facts_is_named(runs):
    figure = safety_curve_figure(compare(runs), SAFETY, SAFETY)
    assert [name for _, name, is_line in figure.legend if is_line] == ["Base", "OPCT"]
    bare = replace(runs[1], rows=tuple(row for row in runs[1].rows if row["metric"] != "share_at_98"))
    figure = safety_curve_figure(compare([runs[0], bare]), SAFETY, SAFETY)
    assert {row[0] for row in figure.rows} == {"Base"}
    assert figure.caption.endswith("Not drawn, for want of it: OPCT.")


def test_seeds_are_pooled_by_fact_at_each_point_and_compared(tmp_path):
    """Each point of two seeds is the mean of theirs; the differences at each stand in the numbers."""
    folders = write_axes(tmp_path, labels=("opct",), seeds=(0, 1), axes=(SAFETY,))
    found = compare(load_runs(folders))
    figure = safety_curve_figure(found, SAFETY, SAFETY)
    shares = [row[2] for row in figure.rows if row[0] == "OPCT"]
    curves = [curve(rates(run), GRID[1:]) for run in load_runs(folders)[1:]]
    expected = {tau: sum(c[tau] for c in curves) / 2 for tau in GRID[1:]}
    assert [float(share.rstrip("%")) for share in shares] == pytest.approx([100 * x for x in expected.values()], abs=2)
    line = found.line("share_at_68", "held_out", SAFETY)
    assert found.difference(line, "opct", "base").value > 0


def test_runs_without_the_points_have_no_curve_and_that_is_said(runs):
    bare = [replace(run, rows=tuple(r for r in run.rows if not r["metric"].startswith("share"))) for run in runs]
    assert safety_curve_figure(compare(bare), SAFETY, SAFETY) is None
    assert "Safety curve" in axis_figures(compare(bare), SAFETY)[1]
