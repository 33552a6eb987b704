"""From graded samples of one benchmark to its rows of `results.json`.

    accuracy         P(correct), over the replies out of which an answer could be read
    solved_rate      the same over all replies: one without a readable answer counts as not solved
    extraction_rate  P(an answer could be read)
    truncation_rate  P(the reply was cut at the token limit or the context), where replies are generated
    share_of_right   mean share of the right letter in the likelihood of all letters, where letters are scored

Of IFEval, instead of the first two: `prompt_strict` and `prompt_loose`, P(all instructions of a prompt are followed),
and `instruction_strict` and `instruction_loose`, P(an instruction is followed); loose is in the best of the forms
without first line, last line and asterisks. An empty reply follows none and counts in all four; `extraction_rate` is
there the share of replies that are not empty. Samples whose grading failed, or that do not fit the context, are
unscored in every row. Intervals are clustered by question.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from opct.evals.capability.asking import AXIS
from opct.evals.capability.ifeval import IFEVAL
from opct.evals.records import Record, Row, metric_row, was_cut

GROUP = "all"
PLAIN = {"accuracy": "is_correct", "solved_rate": "is_solved", "extraction_rate": "is_extracted"}
OF_PROMPTS = {"prompt_strict": "is_correct", "prompt_loose": "is_correct_loose", "extraction_rate": "is_extracted"}
OF_INSTRUCTIONS = {"instruction_strict": "n_followed_strict", "instruction_loose": "n_followed_loose"}


def capability_rows(suite: str, records: Sequence[Record]) -> list[Row]:
    """Every metric of one benchmark, without its settings.

    Args:
        suite: the benchmark's name.
        records: of this benchmark alone.
    """
    if not records:
        return []
    metrics = OF_PROMPTS if suite == IFEVAL else PLAIN
    rows = [_of(suite, metric, records, key) for metric, key in metrics.items()]
    if suite == IFEVAL:
        rows += [
            _of(suite, metric, instruction_records(records, key), "is_followed")
            for metric, key in OF_INSTRUCTIONS.items()
        ]
    if any(record.row["completion_tokens"] for record in records):
        rows.append(_of(suite, "truncation_rate", _with_truncation(records), "is_truncated"))
    if any(record.row["values"].get("p_correct") is not None for record in records):
        rows.append(_of(suite, "share_of_right", records, "p_correct"))
    return rows


def _of(suite: str, metric: str, records: Sequence[Record], key: str) -> Row:
    return metric_row(AXIS, suite, metric, GROUP, records, key)


def instruction_records(records: Sequence[Record], key: str) -> list[Record]:
    """One record an instruction, `is_followed` 1 for as many as `key` says; a prompt that is unscored stays one."""
    single = []
    for record in records:
        count, done = record.row["values"].get("n_instructions"), record.row["values"].get(key)
        if count is None or done is None:
            single.append(_with_value(record, "is_followed", None))
        else:
            single += [_with_value(record, "is_followed", float(i < done)) for i in range(int(count))]
    return single


def _with_truncation(records: Sequence[Record]) -> list[Record]:
    return [_with_value(record, "is_truncated", was_cut(record.row)) for record in records]


def _with_value(record: Record, key: str, value: float | None) -> Record:
    row = {**record.row, "values": {**record.row["values"], key: value}}
    return dataclasses.replace(record, row=row)
