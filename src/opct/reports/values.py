"""The values of a metric by sample id, from rows of `samples.jsonl`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opct.evals.metrics import find_metric, metrics_of, units_of
from opct.evals.metrics import sample_values as values_of
from opct.evals.samples import sample_from_row
from opct.reports.load import EvaluatedRun, Row

Value = float | None


def sample_clusters(runs: Iterable[EvaluatedRun]) -> dict[str, str]:
    """The cluster of every id by which the runs are paired."""
    found: dict[str, str] = {}
    for run in runs:
        by_suite: dict[str, list[Row]] = {}
        for row in run.samples:
            by_suite.setdefault(str(row["task"]), []).append(row)
        for rows in by_suite.values():
            samples = [sample_from_row(row) for row in rows]
            found |= {sample.id: sample.cluster for sample in samples}
            for metric in metrics_of(samples):
                if metric.units is not None:
                    found |= units_of(metric, [s for s in samples if metric.groups_of(s)]).clusters
    return found


def sample_values(samples: Sequence[Row], suite: str, metric: str, group: str) -> dict[str, Value]:
    """The value of each sample of a group, None where it has none; empty where no sample carries the metric."""
    own = [sample_from_row(row) for row in samples if row.get("task") == suite]
    return dict(values_of(find_metric(own[0].axis, metric), own, suite, group).values) if own else {}
