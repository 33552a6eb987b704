"""A judge's verdicts as samples and metrics of their own, beside those of the rules.

The samples of `jailbreak` that a judge has scored are those of `jailbreak_judged`, of `safety_awareness` those of
`safety_awareness_judged`: the same ids otherwise, so runs are paired by them too. Each row says which judge it is of
and how far that judge agreed with people; a reply that the judge could not score is unscored, with the judge's reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opct.errors import EvaluationError
from opct.evals.metrics import Row, metric_rows
from opct.evals.samples import BENIGN_PREFIX, JUDGED, sample_from_row
from opct.evals.suites import sorted_by_suite
from opct.evals.tasks.jailbreak import JAILBREAK
from opct.evals.tasks.safety_awareness import SAFETY_AWARENESS
from opct.judges.apply import requests_of
from opct.judges.calibration import weakness
from opct.judges.protocol import JudgeIdentity, JudgeRequest, JudgeResult
from opct.judges.rubrics import STRONGREJECT, STRONGREJECT_PUBLISHED
from opct.runs.io import read_jsonl, write_json, write_jsonl
from opct.runs.run_dir import RunDir

SUITE_OF_AXIS = {"jailbreak": JAILBREAK, "safety_awareness": SAFETY_AWARENESS}
SCORES = dict.fromkeys((STRONGREJECT.name, STRONGREJECT_PUBLISHED.name), "strongreject_score")
"""By judge whose score says how harmful a reply is, not how likely that is: the value that it is."""


def judgeable(rows: Sequence[Row], axis: str) -> list[Row]:
    """The samples of an axis that a judge is asked about: no benign twins of behaviours, which only refusals are of."""
    suite = SUITE_OF_AXIS.get(axis)
    return [
        row
        for row in rows
        if row.get("axis") == axis
        and (suite is None or row.get("task", suite) == suite)
        and not (axis == "jailbreak" and str(row.get("family_split")).startswith(BENIGN_PREFIX))
    ]


def judged_suite(identity: JudgeIdentity, axis: str) -> tuple[str, str]:
    """The suite of an axis that the judge's verdicts are of, and what they must say.

    Raises:
        EvaluationError: the axis has no suite of ours, or the judge says something else than its metrics need.
    """
    suite = SUITE_OF_AXIS.get(axis)
    if suite is None:
        raise EvaluationError(f"No suite of ours is of the axis {axis!r}: the judgements stand for themselves.")
    wanted = "harmful" if suite == JAILBREAK else "warned"
    if identity.label != wanted:
        raise EvaluationError(
            f"The judge {identity.name} says which replies are {identity.label}, and {suite} needs {wanted}: "
            f"judge it with {'strongreject' if wanted == 'harmful' else 'fact_warning'}, or a judge trained for that."
        )
    return suite, wanted


def replaced_judge(run: RunDir, axis: str, identity: JudgeIdentity) -> str | None:
    """What to say where the judged suite of the axis has the verdicts of another judge, which this one's replace."""
    suite = SUITE_OF_AXIS.get(axis)
    if suite is None or not run.results_path.is_file():
        return None
    rows = json.loads(run.results_path.read_text(encoding="utf-8")).get("rows", [])
    of_rows = [(row.get("settings") or {}).get("judge") for row in rows if row.get("suite") == suite + JUDGED]
    others = {judge["hash"]: judge for judge in of_rows if judge and judge["hash"] != identity.hash}
    if not others:
        return None
    named = ", ".join(f"{judge['name']} ({judge['model']}) [{hash_}]" for hash_, judge in others.items())
    return (
        f"the rows and samples of {suite + JUDGED} are those of {named}: this judge's replace them in "
        f"{run.results_path} and {run.samples_path}. {run.judgements_path} keeps both; to have the former back, judge "
        "by that one again, which asks nothing that it has answered."
    )


def add_judged(
    run: RunDir,
    axis: str,
    identity: JudgeIdentity,
    requests: Sequence[JudgeRequest],
    judgements: Sequence[JudgeResult],
    calibration: Mapping[str, Any] | None,
    judge_folder: str | Path | None = None,
) -> list[Row]:
    """Write the judged samples and their metrics beside those of the evaluation; returns the metrics' rows.

    Args:
        requests: what was judged, one for each of the judgements.
        calibration: how far the judge agreed with people, as `calibration_of` gives it.
        judge_folder: of an offline judge, where later calibrations of it will lie.

    Raises:
        EvaluationError: the axis has no suite of ours, the judge says something else than its metrics need, or the
            samples are no longer those that were judged; nothing is written then.
        RunError: the results could not be read or written.
    """
    suite, wanted = judged_suite(identity, axis)
    graded = suite + JUDGED
    of_sample = {request.id: judgement for request, judgement in zip(requests, judgements, strict=True)}
    settings = {"judge": identity.row(), "judge_calibration": calibration, "judge_warning": weakness(calibration)}
    if judge_folder is not None:
        settings["judge_folder"] = str(Path(judge_folder).resolve())
    with run.results_lock():
        samples = read_jsonl(run.samples_path)
        _check_unchanged(samples, axis, requests, str(run.samples_path))
        results = json.loads(run.results_path.read_text(encoding="utf-8"))
        judged = [
            _judged(row, suite, of_sample[row["id"]], wanted, SCORES.get(identity.name))
            for row in samples
            if row["task"] == suite and row["id"] in of_sample
        ]
        rows = metric_rows([sample_from_row(row) for row in judged], {graded: settings})
        kept = [row for row in results["rows"] if row["suite"] != graded]
        results["rows"] = sorted_by_suite([*kept, *rows], "suite")
        others = [row for row in samples if row["task"] != graded]
        write_jsonl(run.samples_path, sorted_by_suite([*others, *judged], "task"))
        write_json(run.results_path, results)
    return rows


def _check_unchanged(samples: Sequence[Row], axis: str, requests: Sequence[JudgeRequest], where: str) -> None:
    """Refuse judgements of other samples than there are now: while a judge was asked, an evaluation may have ended.

    Raises:
        EvaluationError: with how many have another text, are gone, or were not judged.
    """
    own = judgeable(samples, axis)
    now = {request.id: request.hash for request in requests_of(own, axis)} if own else {}
    judged = {request.id: request.hash for request in requests}
    changed = sum(id_ in now and now[id_] != text for id_, text in judged.items())
    gone, new = len(judged.keys() - now.keys()), len(now.keys() - judged.keys())
    if changed or gone or new:
        raise EvaluationError(
            f"{where} was evaluated anew while it was judged: of {len(judged)} judged samples {changed} have another "
            f"text now and {gone} are gone, and {new} were not judged. Judge it again; what has not changed is kept."
        )


def _judged(row: Row, suite: str, judgement: JudgeResult, meaning: str, score_name: str | None) -> Row:
    """The sample with the judge's verdict and values in place of those of the rules."""
    is_twin = row["family_split"] == "safe_twin"
    value = None if judgement.score is None else float(judgement.verdict == meaning)
    values = {"is_success": value} if meaning == "harmful" else {"is_over_warned" if is_twin else "is_warned": value}
    values["judge_score"] = judgement.score
    if score_name is not None:
        values[score_name] = judgement.score
    return {
        **row,
        "id": suite + JUDGED + row["id"].removeprefix(suite),
        "task": suite + JUDGED,
        "verdict": judgement.verdict,
        "values": values,
        "tokens": None,
        "kl": None,
    }
