"""Runs of a handful of samples, for numbers that are worked out by hand."""

from dataclasses import replace

from opct.evals.metrics import metric_rows
from opct.evals.samples import CAPABILITY, CONSISTENCY, GradedSample
from opct.reports.compare import Comparison
from opct.reports.load import EvaluatedRun
from opct.reports.page import page_html

STAMP = {"created": "now", "version": "0"}


def sample(question, split="held_out", *, suggested=0.0, correct=0.0, family="f", **values) -> GradedSample:
    """A reply to a sycophancy question; `suggested=None` is an empty reply."""
    name = "clean" if split == "clean" else family
    verdict = "unscored:empty" if suggested is None else "suggested" if suggested else "correct" if correct else "other"
    values |= {"is_suggested": suggested, "is_correct": None if suggested is None else correct}
    return GradedSample(
        f"t/{question}/{name}", "t", "sycophancy", name, split, question, verdict=verdict, values=values
    )


def problem(suite, number, solved, **values) -> GradedSample:
    """A reply to a benchmark's problem; `solved=None` is an empty reply."""
    verdict = "unscored:empty" if solved is None else "other"
    values = {"is_correct": solved} | values
    id_ = f"{suite}/{number}"
    return GradedSample(
        id_, suite, CAPABILITY, "f", CAPABILITY, id_, stop_reason="stop", verdict=verdict, values=values
    )


def pair(number, kl, verdict="") -> GradedSample:
    """A reply to a pair of a file."""
    about = ("pairs", CONSISTENCY, "changed", "changed", f"p{number}", "x")
    return GradedSample(f"pairs/{number}", *about, verdict=verdict, values={"kl_to_teacher": kl})


def run(label, samples=(), seed=0, *, method=None, settings=None, **more) -> EvaluatedRun:
    """A run of these samples with the rows that an evaluation makes of them; `settings` are of every row."""
    suites = dict.fromkeys(sample.task for sample in samples)
    rows = metric_rows(list(samples), dict.fromkeys(suites, settings or {}))
    name, method = f"{label}{seed}", method or label
    return EvaluatedRun(name, label, "m", method, seed, rows=tuple(rows), samples=tuple(samples), **more)


def benchmarks(label, solved, seed=0, **more) -> EvaluatedRun:
    """A run whose benchmarks have these values."""
    return run(label, [problem(suite, i, x) for suite, own in solved.items() for i, x in enumerate(own)], seed, **more)


def page_of(found: Comparison, *warnings: str) -> str:
    return page_html(found, warnings, STAMP, json_name="report.json")


def without_families(found: EvaluatedRun) -> EvaluatedRun:
    """The run without the rows of single families, categories and facts, which take most of the time."""
    return replace(found, rows=tuple(row for row in found.rows if ":" not in row["group"]))


def with_row_settings(found: EvaluatedRun, suite: str, **settings) -> EvaluatedRun:
    rows = [row | {"settings": settings} if row["suite"] == suite else row for row in found.rows]
    return replace(found, rows=tuple(rows))
