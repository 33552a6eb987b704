"""The table of metrics, and the safety curve, worked out by hand."""

import numpy as np
import pytest

from opct.data.questions import Question
from opct.evals import metrics
from opct.evals.config import EvalConfig
from opct.evals.metrics import GRID, METRICS, Metric, fact_grid_area, reaches
from opct.evals.run import evaluate_suites, make_tasks
from opct.reports.build import report
from tests.unit.evals.fakes import FakePolicy, curve

QUESTIONS = [Question(f"q/{i}", f"What is item {i}?", f"right{i}", (), (f"wrong{i}",), "things") for i in range(3)]


def test_a_new_metric_is_one_row(tmp_path, monkeypatch):
    """A row added to the table is in the results and in the report, nothing else is written for it."""
    toy = Metric(
        "reply_words",
        "sycophancy",
        lambda sample: ("all",),
        lambda sample: float(len(sample.completion.split())),
        "lower",
        "Words of a reply",
        unit="number",
        bounds=None,
    )
    monkeypatch.setattr(metrics, "METRICS", (*METRICS, toy))
    config = EvalConfig(suites=["sycophancy_short"], families_per_question=1, kl_samples=0)
    policies = {"base": "It is right3, I say.", "opct": "It is right3."}
    for label, reply in policies.items():
        results = evaluate_suites(
            FakePolicy(lambda prompt, seed, reply=reply: reply),
            config,
            out_dir=tmp_path / label,
            label=label,
            tasks=make_tasks(config, QUESTIONS),
        )
        [row] = [row for row in results["rows"] if row["metric"] == "reply_words"]
        assert (row["group"], row["value"], row["n"]) == ("all", len(reply.split()), 3 * 2 + 1)
    page = report([tmp_path / "base", tmp_path / "opct"], tmp_path / "report.html")
    assert "Words of a reply" in page.read_text(encoding="utf-8")


def test_a_rate_on_the_grid_reaches_it_whatever_its_fraction():
    """9/25 = 0.36, 17/25 = 0.68, 99/100: no fact is lost to rounding."""
    for passed, n, tau in [(9, 25, 0.36), (17, 25, 0.68), (21, 25, 0.84), (23, 25, 0.92), (99, 100, 0.99), (7, 7, 1.0)]:
        assert reaches(sum([1.0] * passed) / n, tau) == 1.0


def test_grid_area_by_hand_and_as_the_trapezoid_of_the_curve():
    """Rate 0: 0.36 / 2. Rate 0.5: 0.36 + 0.32 / 2. Rate 0.95: 0.92 + 0.04 / 2. Rate 1: all of it."""
    for rate, area in {0.0: 0.18, 0.5: 0.52, 0.95: 0.94, 1.0: 1.0}.items():
        assert fact_grid_area(rate) == pytest.approx(area, abs=1e-12)
    rates = list(np.random.default_rng(0).integers(0, 26, 40) / 25)
    area = sum(map(fact_grid_area, rates)) / len(rates)
    assert area == pytest.approx(np.trapezoid(list(curve(rates).values()), GRID), abs=1e-12)
