"""A graded sample as a row (`samples.jsonl`), and what is computed over such rows: a metric as a row of
`results.json`.

What a row of `results.json` counts: n scored samples in n_clusters clusters, n_unscored without a value, by reason,
and n_truncated whose reply was cut at the token limit or the context. Intervals are clustered by question, behaviour
or fact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opct.errors import EvaluationError
from opct.evals.graders.short_answer import Verdict
from opct.evals.stats import Estimate, clustered_mean
from opct.evals.tasks.common import filled_prompt, known, verdict_values

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample

Row = dict[str, Any]
Reason = Callable[["Record"], str | None]
PARSED = "_parsed"
"""Ends the name of a suite that grades the replies of another one a second way."""
JUDGED = "_judged"
"""Ends the name of a suite whose samples are those of another one, with the verdicts of a judge."""
STOP_REASONS = {"stop": "stop", "max_tokens": "length", "model_length": "context"}
CUT = ("length", "context")
NO_CHECK = "unscored:no_check"
RATE, CHANGE = (0.0, 1.0), (-1.0, 1.0)


@dataclass
class Record:
    """One graded sample: its row of `samples.jsonl`, and what the row does not hold."""

    row: Row
    answer_key: str | None
    token_ids: tuple[int, ...]
    grading: dict[str, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str | None:
        """Why it is unscored, or None."""
        return Verdict(self.row["verdict"]).reason


def was_cut(sample: Mapping[str, Any]) -> float | None:
    """1 for a reply that was cut, 0 for one that ended; None where the prompt left no room for a reply."""
    if sample.get("stop_reason") == "context" and sample.get("completion_tokens") == 0:
        return None
    return float(sample.get("stop_reason") in CUT)


def read_records(log: EvalLog) -> list[Record]:
    """Every sample of a log of ours as a record; one that was graded a second way gives two.

    Raises:
        EvaluationError: the run did not end well; the message has its error and its log.
    """
    if log.status != "success":
        said = log.error.message if log.error is not None else f"it is marked as {log.status!r}"
        raise EvaluationError(f"The evaluation {log.eval.task} stopped: {said}. Its log is {log.location}.")
    records: list[Record] = []
    for sample in log.samples or []:
        score = next(iter((sample.scores or {}).values()), None)
        if score is None or not isinstance(score.value, Mapping):
            raise EvaluationError(f"Sample {sample.id} of {log.location} has no score: evaluate again.")
        graded = score.metadata or {}
        numbers = {key: known(float(value)) for key, value in score.value.items()}  # type: ignore[arg-type]
        own = {key: value for key, value in numbers.items() if not key.startswith("parsed_")}
        records.append(_record(sample, sample.metadata["task"], graded, own))
        if "parsed" in graded:
            verdict = Verdict(graded["parsed"]["verdict"])
            records.append(_record(sample, sample.metadata["task"] + PARSED, graded["parsed"], verdict_values(verdict)))
    return records


def _record(sample: EvalSample, task: str, graded: Mapping[str, Any], values: dict[str, float | None]) -> Record:
    item, output = sample.metadata, sample.output
    grading = item["grading"]
    row = {
        "id": task + item["id"].removeprefix(item["task"]),
        "task": task,
        "axis": item["axis"],
        "family": item["family"],
        "family_split": item["family_split"],
        "cluster": item["cluster"],
        "category": grading.get("category"),
        "behavior": grading.get("behavior"),
        "fact": grading.get("fact"),
        "prompt": list(filled_prompt(sample.messages)),
        "teacher_prompt": list(item["teacher_prompt"]),
        "completion": output.completion,
        "stop_reason": STOP_REASONS.get(output.stop_reason, output.stop_reason),
        "completion_tokens": output.usage.output_tokens if output.usage is not None else 0,
        "verdict": graded["verdict"],
        "values": values,
        "answer": grading.get("answer"),
        "suggested": grading.get("suggested"),
        "is_evaluation_only": bool(grading.get("is_evaluation_only")),
        "tokens": None,
        "kl": None,
    }
    return Record(row, graded["answer_key"], tuple((output.metadata or {}).get("token_ids", ())), grading)


def metric_row(
    axis: str,
    suite: str,
    metric: str,
    group: str,
    records: Sequence[Record],
    key: str,
    *,
    bounds: tuple[float, float] | None = RATE,
    reason: Reason = lambda record: record.reason,
) -> Row:
    """The mean of `values[key]` over these records that have it, with what was left out.

    Args:
        bounds: what one value can be.
        reason: why a record has no value.
    """
    scored = [record for record in records if record.row["values"].get(key) is not None]
    values, clusters = [r.row["values"][key] for r in scored], [r.row["cluster"] for r in scored]
    estimate = clustered_mean(values, clusters, bounds=bounds)
    missing = [record for record in records if record.row["values"].get(key) is None]
    return row_of(axis, suite, metric, group, estimate, records, [reason(record) or "no_value" for record in missing])


def row_of(
    axis: str,
    suite: str,
    metric: str,
    group: str,
    estimate: Estimate,
    records: Sequence[Record],
    unscored: Sequence[str],
) -> Row:
    """An estimate over records as a row of `results.json`.

    Args:
        unscored: the reason of each record that is not in the estimate.
    """
    return {
        "axis": axis,
        "suite": suite,
        "metric": metric,
        "group": group,
        "value": estimate.value,
        "n": estimate.n,
        "n_clusters": estimate.n_clusters,
        "ci_low": estimate.ci_low,
        "ci_high": estimate.ci_high,
        "n_unscored": len(unscored),
        "unscored_reasons": dict(sorted(Counter(unscored).items())),
        "n_truncated": sum(record.row["stop_reason"] in CUT for record in records),
    }


def kl_rows(axis: str, suite: str, group: str, records: Sequence[Record]) -> list[Row]:
    """The mean over the replies for which KL was measured of their KL a token."""
    measured = [record for record in records if record.row["values"].get("kl_to_base") is not None]
    return [metric_row(axis, suite, "kl_to_base", group, measured, "kl_to_base", bounds=None)] if measured else []


def warnings_of(records: Sequence[Record]) -> list[str]:
    """What a reader must know before trusting the rows."""
    found = []
    for suite in dict.fromkeys(record.row["task"] for record in records):
        own = [record for record in records if record.row["task"] == suite]
        cut = sum(record.row["stop_reason"] in CUT for record in own)
        if cut > 0.1 * len(own):
            found.append(f"{suite}: {cut} of {len(own)} replies were cut at max_completion_tokens or the context.")
        reasons = Counter(r.reason for r in own if r.reason and r.row["verdict"] != NO_CHECK)
        if sum(reasons.values()) > 0.05 * len(own):
            named = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
            found.append(f"{suite}: {sum(reasons.values())} of {len(own)} replies are unscored ({named}).")
    return found
