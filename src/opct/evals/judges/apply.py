"""Judge the samples of an evaluation, and store the scores in its logs.

Scores of `jailbreak` and `safety_awareness` form the suites `jailbreak_judged` and `safety_awareness_judged`, with the
same ids, so runs are paired there too. A log keeps the scores of every judge; metrics use the judge that ran last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from inspect_ai import score_async
from inspect_ai.log import EvalLog

from opct.errors import EvaluationError
from opct.evals.inspect_runner import run_all, write_log
from opct.evals.judges.calibration import calibration_of, weakness
from opct.evals.judges.llm import LLMJudge
from opct.evals.judges.protocol import Judge, JudgeIdentity, JudgeRequest, JudgeResult
from opct.evals.judges.scorer import OURS, judge_scorer, request_of
from opct.evals.logs import JUDGE, OPCT, about_of, log_paths, read_log
from opct.evals.metrics import Row
from opct.evals.run import write_results
from opct.evals.samples import BENIGN, INSPECT, JUDGED, graded_name
from opct.evals.tasks.jailbreak import JAILBREAK
from opct.evals.tasks.safety_awareness import SAFETY_AWARENESS
from opct.runs.console import NullProgress, Progress
from opct.runs.io import file_sha256
from opct.runs.run_dir import RunDir

SUITES = {"jailbreak": (JAILBREAK, "harmful"), "safety_awareness": (SAFETY_AWARENESS, "warned")}
"""By axis: the suite whose replies are judged, and the label that its judge must have."""


def read_logs(path: str | Path) -> list[EvalLog]:
    """The logs of a run directory, or a log."""
    return [read_log(path) for path in log_paths(path)]


def requests_of(logs: Sequence[EvalLog], axis: str) -> list[JudgeRequest]:
    """A request for each sample of an axis, without benign counterparts, for which only refusals are measured. Raises
    EvaluationError where there are none; the message lists the axes of the evaluation."""
    samples = [sample for log in logs for sample in log.samples or []]
    requests = [request_of(sample) for sample in samples if _is_of(axis, sample.metadata)]
    if not requests:
        there = sorted({_axis(sample.metadata) for sample in samples} & {*SUITES, INSPECT})
        remedy = f"choose {' or '.join(there)} with --axis" if there else "no other axis of it is for a judge"
        raise EvaluationError(f"The evaluation has no sample of the axis {axis!r} to judge: {remedy}.")
    return requests


def _axis(metadata: Mapping[str, Any]) -> str:
    return str(metadata["axis"]) if metadata.keys() >= OURS else INSPECT


def _is_of(axis: str, metadata: Mapping[str, Any]) -> bool:
    is_counterpart = axis == "jailbreak" and metadata.get("side") == BENIGN
    return _axis(metadata) == axis and not is_counterpart


def check_judge(identity: JudgeIdentity, axis: str) -> None:
    """Raise EvaluationError, before any call, where a judge's label does not fit the metrics of the axis; the message
    lists the judges that fit."""
    if axis not in (*SUITES, INSPECT):
        raise EvaluationError(
            f"No judge is for the axis {axis!r}, whose rates are made otherwise: --axis takes "
            f"{', '.join((*SUITES, INSPECT))}."
        )
    suite, wanted = SUITES.get(axis, ("", identity.label))
    if identity.label != wanted:
        raise EvaluationError(
            f"The judge {identity.name} labels replies as {identity.label}, but {suite} needs {wanted}: use "
            f"{'strongreject' if wanted == 'harmful' else 'fact_warning'}, or another --axis."
        )


def axis_judged(identity: JudgeIdentity, suites: Sequence[str]) -> str:
    """The axis that the judge is for. Raises EvaluationError where its suite is not among these."""
    for axis, (suite, label) in SUITES.items():
        if label == identity.label and suite in suites:
            return axis
    fitting = ", ".join(suite for suite, label in SUITES.values() if label == identity.label) or "none of the suites"
    raise EvaluationError(
        f"The judge {identity.name} labels replies as {identity.label}, and is for {fitting}, which is not evaluated: "
        "add that suite, or leave the judge out."
    )


def judge_run(
    run: RunDir, axis: str, judge: Judge, progress: Progress | None = None
) -> tuple[list[JudgeResult], list[Row]]:
    """Judge the replies of an evaluation and write the scores into its logs; returns the results and the judged suite's
    rows.

    Raises:
        EvaluationError: the judge's model does not answer, and earlier answers are cached; or a log has changed since
            it was read, and nothing is written.
        RunError: the results could not be read or written.
    """
    progress = progress or NullProgress()
    paths = log_paths(run.path)
    # before they are read: a log that is replaced while it is read must count as changed
    before = {path: file_sha256(path) for path in paths}
    logs = [log for log in map(read_log, paths) if any(_is_of(axis, s.metadata) for s in log.samples or [])]
    progress.stage(f"judge {judge.identity.name}", len(requests_of(logs, axis)))
    results: list[JudgeResult] = []

    def on_result(result: JudgeResult) -> None:
        results.append(result)
        progress.advance(1)

    name = f"{JUDGE}{judge.identity.name}:{judge.identity.hash}"
    scorer = judge_scorer(judge, name, partial(_is_of, axis), on_result)
    for log in logs:
        _forget(log, name)
    judged = run_all(
        [
            partial(score_async, log, [scorer], model="none/none", action="append", display="none", copy=False)
            for log in logs
        ]
    )
    if isinstance(judge, LLMJudge):
        # before anything is written: a judge that never answered must not replace earlier scores by unscored ones
        judge.check_answered()
    calibration = calibration_of(judge.identity)
    about = {"judge": judge.identity.row(), "judge_calibration": calibration, "judge_warning": weakness(calibration)}
    with run.results_lock():
        # While the judge's model answered, another evaluation or judge may have written: its scores must not be lost.
        # under the lock, right before the write: no other writer can come in between
        if [path for path in paths if not path.exists() or file_sha256(path) != before[path]]:
            raise EvaluationError(
                f"{run.path} was evaluated again while it was judged. Judge it again; what the judge said of unchanged "
                "samples is cached."
            )
        for old, new in zip(logs, judged, strict=True):
            _add_judge(new, name, about)
            write_log(new, Path(old.location))
        rows = write_results(run)["rows"]
    suite = SUITES.get(axis, ("", ""))[0]
    return results, [row for row in rows if row["suite"] == graded_name(suite, JUDGED)]


def _forget(log: EvalLog, name: str) -> None:
    """Take the earlier scores of the same judge out: Inspect would give the new ones another name."""
    for sample in log.samples or []:
        (sample.scores or {}).pop(name, None)
    if log.results is not None:
        log.results = log.results.model_copy(
            update={"scores": [score for score in log.results.scores if score.name != name]}
        )


def _add_judge(log: EvalLog, name: str, about: Mapping[str, Any]) -> None:
    """Say in the log who judged; the last of the judges is the one that metrics use."""
    ours = about_of(log)
    # out and in again: the order of the dict says who judged last
    judges = {key: value for key, value in ours.get("judges", {}).items() if key != name} | {name: dict(about)}
    log.eval.metadata = {**(log.eval.metadata or {}), OPCT: {**ours, "judges": judges}}
