"""Warnings of a report: what may make its numbers wrong or asks for an action; and notes, for a paper."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from opct.config.schema import flat_settings
from opct.errors import shorten
from opct.evals.judges.agreement import rules_weakness
from opct.evals.samples import ATTACK, WERE_CUT
from opct.evals.stats import FEW_CLUSTERS, decides
from opct.reports.arms import BASE, OF_REPLIES
from opct.reports.axes import axis_info
from opct.reports.compare import Comparison
from opct.reports.load import EvaluatedRun, graded_apart, suite_settings
from opct.reports.table import MetricRow, is_decisive, other_questions, setting_key
from opct.reports.training import training_warnings
from opct.reports.wording import joined
from opct.runs.console import pluralize

NUMBER = re.compile(r"(?<![\w/-])\d(?:[\d,]*\d)?(?:\.\d+)?(?![\w/-])")
"""A standalone number, not one in a name or id ("gsm8k", "q0012", "facts/12")."""
LEFT_OUT = (
    ("n_unscored", 0.02, "Many replies are unscored, so in no rate: {}."),
    (
        "n_truncated",
        0.05,
        "Many replies were cut, and no rule or judge sees the rest: {}. Raise the limit of their suites.",
    ),
)
"""Counts of an estimate, the share above which there is a warning, and its text."""
_CUT = re.compile(rf"(.+?): (.+) {WERE_CUT} (.+): raise the limit\.")
"""What an evaluation says of the cut replies of a suite: the suite, how many, and the limit."""
NOT_SETTINGS = frozenset({"created", "path", "name", "time_s", "started", "device", "batch_size", "browser_questions"})
"""Evaluation settings that may differ between comparable runs."""


def find_warnings(comparison: Comparison) -> list[str]:
    """All warnings, those of the evaluations first; each says what, where, how much."""
    runs = comparison.runs
    warnings = [
        *(f"{', '.join(names)}: {text}" for names, text in _of_evaluations(runs) if not _CUT.fullmatch(text)),
        *_judges(runs),
        *_different_models(comparison),
        *_different_settings(runs),
        *_different_samples(runs),
        *_left_out(comparison),
        *_repeated_seeds(comparison),
        *(f"In training ({', '.join(names)}): {text}" for names, text in _of_trainings(runs)),
        *training_warnings(comparison.arms, comparison.pairs),
    ]
    return list(dict.fromkeys(warnings))


def _of_evaluations(runs: Sequence[EvaluatedRun]) -> Iterator[tuple[list[str], str]]:
    return merge_alike((run.name, text) for run in runs for text in run.warnings)


def _of_trainings(runs: Sequence[EvaluatedRun]) -> Iterator[tuple[list[str], str]]:
    told = []
    for run in runs:
        of_teacher = [row.get("warning") for row in (run.manifest.get("teacher_check") or {}).values()]
        told += [(run.name, str(text)) for text in [*(run.manifest.get("warnings") or ()), *filter(None, of_teacher)]]
    return merge_alike(told)


def merge_alike(told: Iterable[tuple[str, str]]) -> Iterator[tuple[list[str], str]]:
    """(names, text) of what is told of each name; texts that differ only in numbers are one, with their ranges."""
    alike: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for name, text in told:
        alike.setdefault(tuple(NUMBER.split(text)), []).append((name, text))
    for group in alike.values():
        yield list(dict.fromkeys(name for name, _ in group)), _with_spans([text for _, text in group])


def _with_spans(texts: Sequence[str]) -> str:
    """Merge texts that differ only in numbers; each number becomes a range: `118 to 238`."""
    spans = []
    # as many numbers in each: texts are grouped by what stands between them
    for column in zip(*(NUMBER.findall(text) for text in texts), strict=True):
        ordered = sorted(column, key=lambda number: float(number.replace(",", "")))
        spans.append(ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}")
    remaining = iter(spans)
    return NUMBER.sub(lambda _: next(remaining), texts[0])


def _judges(runs: Sequence[EvaluatedRun]) -> Iterator[str]:
    for run in runs:
        for row in run.rows:
            text = (row.get("settings") or {}).get("judge_warning") or rules_weakness(row)
            if text:
                yield f"{row['suite']}: {text}"


def _different_models(comparison: Comparison) -> Iterator[str]:
    models = sorted({run.model for run in comparison.runs})
    if len(models) == 1 < len(comparison.arms) and all(arm.label != "base" for arm in comparison.arms):
        yield f"No run is labeled base: differences are to {comparison.arms[0].name}, not to the untrained model."
    if len(models) > 1:
        yield (
            f"The runs use {len(models)} different models ({joined(models)}): their differences are not the effect of "
            "training."
        )


def _different_settings(runs: Sequence[EvaluatedRun]) -> Iterator[str]:
    """Warnings for evaluation settings that differ between runs, then for those of single suites."""
    bases = {run.weights for run in runs if run.label == BASE and run.weights}
    whole = dict(_unlike({run.name: flat_settings(_without_its_own(run, bases)) for run in runs if run.settings}))
    if whole:
        listed = ", ".join(f"{name} ({values})" for name, values in whole.items())
        yield (
            f"The evaluation settings of the runs differ: {listed}. They are not strictly comparable: evaluate them "
            "alike."
        )
    differing: dict[tuple[str, str], list[str]] = {}
    rows = [row for run in runs for row in run.rows]
    graded = dict.fromkeys((row["suite"], graded_apart(row["suite"], row["metric"])) for row in rows)
    for suite, metric in sorted(graded, key=lambda one: one[1] is not None):  # what differs in a suite is told once
        settings = {run.name: known for run in runs if (known := suite_settings(run, suite, metric)) is not None}
        for name, values in _unlike(settings):
            if whole.get(name) != values and suite not in differing.get((name, values), []):
                where = suite if metric is None else f"{metric} of {suite}"
                differing.setdefault((name, values), []).append(where)
    for (name, values), suites in differing.items():
        so = "no difference between them is given" if is_decisive(name) else "they are not strictly comparable"
        remedy = "run `opct eval RUN --regrade` on each" if name == "grader_version" else "evaluate them alike"
        yield f"{joined(suites)}: {name} differs between runs ({values}), so {so}: {remedy}."


def _without_its_own(run: EvaluatedRun, bases: Container[Any]) -> Mapping[str, Any]:
    """The settings of an evaluation; without a system prompt and the like that make the base an arm of its own."""
    is_prompted = run.label != BASE and run.weights in bases
    return {name: value for name, value in run.settings.items() if not (is_prompted and name in OF_REPLIES)}


def _unlike(settings: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Each setting that differs between runs, with the value of every run."""
    names = {key for each in settings.values() for key in each if key.rpartition(".")[-1] not in NOT_SETTINGS}
    for name in sorted(names):
        by_value: dict[str, tuple[object, list[str]]] = {}
        for run, each in settings.items():
            value = each.get(name)
            by_value.setdefault(setting_key(name, value), (value, []))[1].append(run)
        if len(by_value) > 1:
            yield name, "; ".join(f"{', '.join(runs)}: {shorten(value)}" for value, runs in by_value.values())


def _different_samples(runs: Sequence[EvaluatedRun]) -> Iterator[str]:
    for suite in dict.fromkeys(suite for run in runs for suite in run.suites):
        if reason := other_questions([run for run in runs if suite in run.suites], suite):
            yield f"{suite}: the runs were {reason}, so their rates are not compared: evaluate them alike."


def find_notes(comparison: Comparison) -> list[str]:
    """What a paper should say beside the warnings: few clusters behind the headline, one note an axis."""
    notes = []
    for axis in comparison.axes:
        small: dict[str, int] = {}
        for section in comparison.headline(axis):
            rows = [row for row in section.rows if row.metric.unit == "rate"]
            counts = [one.n_clusters for row in rows for one in row.estimates if one is not None and one.n_clusters]
            if counts and min(counts) < FEW_CLUSTERS:
                small[section.title] = min(counts)
        if small:
            least, max_n = min(small.values()), max(small.values())
            span = pluralize(max_n, axis_info(axis).cluster)
            span = span if least == max_n else f"{least} to {span}"
            behind = f"only {span} (clusters) behind {joined(list(small))}, which {decides(max_n)}."
            notes.append(f"{axis_info(axis).title}: {behind}")
    return notes


def _left_out(comparison: Comparison) -> Iterator[str]:
    """Unscored and truncated shares above their bounds: one warning each.

    Cut replies are in the words of the evaluations, which name the setting, for each suite that they warn of.
    """
    cut = [
        (names, found.groups()) for names, text in _of_evaluations(comparison.runs) if (found := _CUT.fullmatch(text))
    ]
    told = {suite for _, (suite, *_) in cut}
    for count, limit, text in LEFT_OUT:
        most = _most_left_out(comparison, count, limit, told if count == "n_truncated" else set())
        parts = [f"{axis_info(axis).title} ({', '.join(arms)})" for axis, arms in most.items()]
        if count == "n_truncated":
            parts = [f"{suite}: {n} at {bound} ({', '.join(names)})" for names, (suite, n, bound) in cut] + parts
        if parts:
            yield text.format("; ".join(parts))


def _most_left_out(comparison: Comparison, count: str, limit: float, told: Collection[str]) -> dict[str, list[str]]:
    """By axis, "OPCT 16 of 48" of each arm above the limit: of the headline metric that leaves out most, but for the
    suites in `told`.
    """
    most: dict[str, dict[str, tuple[float, str]]] = {}
    for axis in comparison.axes:
        # an attack's rows count behaviors, of which each has several replies; its log warns of cut ones itself
        if axis == ATTACK and count == "n_truncated":
            continue
        rows = [row for section in comparison.headline(axis) for row in section.rows if _counts_replies(row)]
        rows = [row for row in rows if row.suite not in told]
        for row, (i, arm) in product(rows, enumerate(comparison.arms)):
            known = [one for one in row.run_estimates[i] if one is not None]
            amount, total = sum(getattr(one, count) for one in known), sum(one.n + one.n_unscored for one in known)
            share = amount / total if total else 0.0
            # a single reply is not many, however small the sample
            if amount > 1 and share > max(limit, most.get(axis, {}).get(arm.name, (0.0, ""))[0]):
                most.setdefault(axis, {})[arm.name] = (share, f"{arm.name} {amount:,} of {total:,}")
    return {axis: [text for _, text in arms.values()] for axis, arms in most.items()}


def _counts_replies(row: MetricRow) -> bool:
    """Whether a row is of all replies: a partial metric leaves some out by its definition, and KL is of a few."""
    return not row.metric.is_partial and row.metric.unit != "nats"


def _repeated_seeds(comparison: Comparison) -> Iterator[str]:
    for arm in comparison.arms:
        n_seeds = len({run.seed for run in arm.runs})
        if arm.has_seeds and n_seeds < len(arm.runs):
            yield (
                f"{arm.name}: {len(arm.runs)} runs are pooled but name only {n_seeds} different training seeds; "
                "the same run counted twice shows too small a spread."
            )
