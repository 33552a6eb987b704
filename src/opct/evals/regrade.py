"""Grade the stored replies of a finished evaluation again, by the rules of now. No model is asked.

Of the suites whose replies rules of ours read (`jailbreak`, `safety_awareness`, `gsm8k`, `math500`; of `benign` whether
a reply refuses, while its check stays); all others stay as they are, and so does what judges said. The replies are read
from `evals/samples.jsonl`, and a fact's words from the facts that were asked.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opct.data.hazards import BUILTIN, SafetyFact, load_facts
from opct.data.perturb.safety_awareness import HAZARD, SAFE_TWIN
from opct.errors import EvaluationError
from opct.evals.capability.asking import capability_values
from opct.evals.capability.gsm8k import GSM8K
from opct.evals.capability.math500 import MATH500
from opct.evals.capability.maths import GRADED_BY, math_verdict
from opct.evals.earlier import is_whole
from opct.evals.graders.math_verify import check_math_verify
from opct.evals.graders.short_answer import Verdict
from opct.evals.graders.versions import grader_version
from opct.evals.graders.warning import grade_warning
from opct.evals.metrics import Row, metric_rows
from opct.evals.samples import BENIGN, BENIGN_PREFIX, CUT, sample_from_row, warnings_of
from opct.evals.suites import sorted_by_suite
from opct.evals.tasks.benign import OVER_REFUSAL, over_refusal, refusal_of
from opct.evals.tasks.jailbreak import GRADER, JAILBREAK, jailbreak_verdict, refusal_values
from opct.evals.tasks.safety_awareness import SAFETY_AWARENESS, warning_values
from opct.runs.io import read_jsonl, write_json, write_jsonl
from opct.runs.run_dir import RunDir

MATHS = {GSM8K: "number", MATH500: "formula"}
"""Benchmark -> the kind of its answers."""
REGRADED = (JAILBREAK, SAFETY_AWARENESS, BENIGN, *MATHS)
Graded = tuple[Verdict, dict[str, float | None]]
STOPPED = ("unscored:context", "unscored:empty_earlier_turn")
"""Verdicts on what happened before the reply: no rule looks at it."""


@dataclass(frozen=True)
class Regraded:
    """What grading again changed.

    Attributes:
        results: what `results.json` holds now.
        changes: by suite, how often each verdict became which other one; of `benign`, that on whether a reply refuses.
        n: by suite, how many replies were graded.
    """

    results: dict[str, Any]
    changes: dict[str, dict[tuple[str, str], int]]
    n: dict[str, int]

    def describe(self) -> str:
        """A line for each suite and each kind of change."""
        lines = []
        for suite, count in self.n.items():
            changed = self.changes[suite]
            version = self.results["settings"]["graders"][suite]
            lines.append(f"{suite}: {sum(changed.values())} of {count} verdicts changed (rules {version})")
            lines += [f"  {before} -> {after}: {n}" for (before, after), n in sorted(changed.items())]
        return "\n".join(lines)


def regrade(out_dir: str | Path) -> Regraded:
    """Grade the stored replies of an evaluation again; rewrite `evals/samples.jsonl` and `results.json`.

    The rows of the suites, and the settings (`graders`), name the version of the rules; `regraded` says when.

    Args:
        out_dir: the folder that `opct eval` wrote to.

    Raises:
        EvaluationError: there is no evaluation, nothing in it is graded by rules, the facts are others now, or
            math-verify is needed and not installed; nothing is written then.
        DataError: the file of facts that was asked cannot be read.
        RunError: the results cannot be read or written.
    """
    run = RunDir(out_dir)
    if not (run.results_path.is_file() and run.samples_path.is_file()):
        raise EvaluationError(f"{run.path} holds no evaluation to grade again: evaluate first, with `opct eval`.")
    with run.results_lock():
        results, samples = _stored(run)
        suites = [suite for suite in REGRADED if any(row["task"] == suite for row in samples)]
        if not suites:
            raise EvaluationError(
                f"None of the suites in {run.results_path} is graded by rules of ours that can be run again "
                f"({', '.join(REGRADED)}): evaluate the others again, with `opct eval`."
            )
        old = [row for row in samples if row["task"] in suites]
        new = {suite: _graded_again(suite, samples, results["settings"], run.samples_path) for suite in suites}
        _update(results, new, old, [row for row in samples if row["task"] not in suites])
        others = [row for row in samples if row["task"] not in suites]
        write_jsonl(
            run.samples_path, sorted_by_suite([*others, *(row for rows in new.values() for row in rows)], "task")
        )
        write_json(run.results_path, results)
    return Regraded(results, _changes(old, new), {suite: len(rows) for suite, rows in new.items()})


def _changes(old: Sequence[Row], new: Mapping[str, list[Row]]) -> dict[str, dict[tuple[str, str], int]]:
    before = {row["id"]: _told(row) for row in old}
    pairs = {suite: [(before[row["id"]], _told(row)) for row in rows] for suite, rows in new.items()}
    return {suite: dict(Counter((was, now) for was, now in own if was != now)) for suite, own in pairs.items()}


def _told(row: Row) -> str:
    """What grading again may change: the verdict; of `benign`, where that is the check's, whether the reply refuses."""
    if row["task"] != BENIGN:
        return str(row["verdict"])
    if "is_over_refusal" not in row["values"]:  # of an earlier version
        return "ungraded"
    return {None: "unscored", 0.0: "not_refused", 1.0: "refused"}[row["values"]["is_over_refusal"]]


def _stored(run: RunDir) -> tuple[dict[str, Any], list[Row]]:
    try:
        results = json.loads(run.results_path.read_text(encoding="utf-8"))
    except ValueError:
        results = None
    if not is_whole(results):
        raise EvaluationError(f"{run.results_path} is no results of this version: evaluate again, with `opct eval`.")
    return results, read_jsonl(run.samples_path)


def _graded_again(suite: str, samples: Sequence[Row], settings: Mapping[str, Any], where: Path) -> list[Row]:
    own = [row for row in samples if row["task"] == suite]
    by_suite = {JAILBREAK: _refusal, BENIGN: _over_refusal, **dict.fromkeys(MATHS, _mathematics)}
    if suite in MATHS:
        check_math_verify()
    grade = by_suite[suite] if suite in by_suite else _warning_by(_facts(own, settings, where))
    return [row if row["verdict"] in STOPPED else _with(row, *grade(row)) for row in own]


def _with(row: Row, verdict: Verdict, values: Mapping[str, float | None]) -> Row:
    """The sample with a new verdict; values that no rule gives, such as the KL, stay."""
    return {**row, "verdict": verdict.verdict, "values": {**row["values"], **values}}


def _refusal(row: Row) -> Graded:
    [*_, bare] = row["teacher_prompt"]
    verdict = jailbreak_verdict(
        row["completion"], bare["content"], row["family"], row["prompt"], is_cut=row["stop_reason"] in CUT
    )
    is_twin = str(row["family_split"]).startswith(BENIGN_PREFIX)
    return verdict, refusal_values(verdict, "twin" if is_twin else "behavior")


def _over_refusal(row: Row) -> Graded:
    """The verdict is that of the request's check, which is not kept with the sample."""
    verdict = Verdict(row["verdict"])
    return verdict, {"is_over_refusal": over_refusal(refusal_of(row["completion"], verdict, row["stop_reason"] in CUT))}


def _mathematics(row: Row) -> Graded:
    verdict = math_verdict(
        MATHS[row["task"]], row["completion"], f"${row['answer']}$", is_cut=row["stop_reason"] in CUT
    )
    return verdict, capability_values(verdict)


def _warning_by(facts: Mapping[str, SafetyFact]) -> Callable[[Row], Graded]:
    def grade(row: Row) -> Graded:
        fact, reply = facts[row["cluster"]], row["completion"]
        verdict = grade_warning(reply, fact.about, fact.harm, fact.keep)
        return verdict, warning_values(verdict, SAFE_TWIN if row["family_split"] == SAFE_TWIN else HAZARD, reply)

    return grade


def _facts(rows: Sequence[Row], settings: Mapping[str, Any], where: Path) -> dict[str, SafetyFact]:
    """The facts that were asked, by id.

    Raises:
        EvaluationError: one is gone, or says something else now.
    """
    asked = {**settings, **settings.get("kept", {}).get(SAFETY_AWARENESS, {})}
    source = (asked.get("data") or {}).get(SAFETY_AWARENESS, BUILTIN)
    facts = {fact.id: fact for fact in load_facts(source)}
    unlike = {
        row["cluster"] for row in rows if row["cluster"] not in facts or facts[row["cluster"]].fact != row["fact"]
    }
    if unlike:
        raise EvaluationError(
            f"{len(unlike)} facts of {where} (first {min(unlike)}) are not in {source} as they were asked, so their "
            f"words are not known: evaluate again, with `opct eval --suite {SAFETY_AWARENESS}`."
        )
    return facts


def _update(results: dict[str, Any], new: Mapping[str, list[Row]], old: Sequence[Row], others: Sequence[Row]) -> None:
    """Put rows, warnings and the version of the rules into the results."""
    rows = [row for row in results["rows"] if row["suite"] not in new]
    for suite, samples in new.items():
        before: Row = next((row for row in results["rows"] if row["suite"] == suite), {})
        settings = {**before.get("settings", {}), "grader_version": grader_version(suite)}
        if suite in MATHS:
            settings["graded_by"] = GRADED_BY[MATHS[suite]]
        if suite == BENIGN:  # one of its rows alone is graded by these rules, and has them itself
            settings = {name: value for name, value in settings.items() if name not in ("grader", "grader_version")}
            own = {"grader": GRADER, "grader_version": grader_version(suite)}
            settings["metric_settings"] = {OVER_REFUSAL: own}
        rows += metric_rows([sample_from_row(sample) for sample in samples], {suite: settings})
    results["rows"] = sorted_by_suite(rows, "suite")
    was = set(warnings_of([sample_from_row(row) for row in (*others, *old)]))
    now = warnings_of([sample_from_row(row) for row in (*others, *(row for own in new.values() for row in own))])
    results["warnings"] = [*(text for text in results["warnings"] if text not in was), *now]
    settings = results["settings"]
    settings["graders"] = {**settings.get("graders", {}), **{suite: grader_version(suite) for suite in new}}
    for suite, own in settings.get("kept", {}).items():
        if suite in new:
            own.pop("graders", None)
    stamp = datetime.now(UTC).isoformat(timespec="seconds")
    results["regraded"] = {**results.get("regraded", {}), **dict.fromkeys(new, stamp)}
