"""Grade the replies in an evaluation's logs again, with the current rules. No model is loaded.

Only rule-graded suites change; likelihoods of options and judge scores are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import inspect_ai
from inspect_ai.log import EvalLog
from inspect_ai.scorer import Score, Scorer

from opct.data.context import CONTEXT
from opct.errors import EvaluationError, LibraryErrors
from opct.evals.graders.versions import VERSIONS
from opct.evals.inspect_runner import write_log
from opct.evals.logs import JUDGE, KL, OPCT, about_of, log_paths, read_log, task_name
from opct.evals.quiet import quiet
from opct.evals.run import write_results
from opct.evals.samples import BENIGN
from opct.evals.tasks.benign import OVER_REFUSAL, check_scorer
from opct.evals.tasks.common import split_output
from opct.evals.tasks.jailbreak import JAILBREAK, refusal_scorer
from opct.evals.tasks.safety_awareness import SAFETY_AWARENESS, warning_scorer
from opct.evals.tasks.sycophancy import SHORT, short_scorer
from opct.runs.run_dir import RunDir

SCORERS: dict[str, Callable[[], Scorer]] = {
    SHORT: short_scorer,
    CONTEXT: short_scorer,
    JAILBREAK: refusal_scorer,
    SAFETY_AWARENESS: warning_scorer,
    BENIGN: check_scorer,
}


@dataclass(frozen=True)
class Regraded:
    """Result of grading again.

    Attributes:
        results: the new content of `results.json`. changes: by suite, counts of (old verdict, new verdict). n: by
        suite, the number of graded replies.
    """

    results: dict[str, Any]
    changes: dict[str, dict[tuple[str, str], int]]
    n: dict[str, int]

    def describe(self) -> str:
        """A line for each suite and each kind of change."""
        lines = []
        for suite, count in self.n.items():
            changed = sum(self.changes[suite].values())
            lines.append(f"{suite}: {changed} of {count} verdicts changed (rules {VERSIONS[suite]})")
            lines += [f"  {before} -> {after}: {n}" for (before, after), n in sorted(self.changes[suite].items())]
        return "\n".join(lines)


def regrade(out_dir: str | Path) -> Regraded:
    """Grade the replies of an evaluation again; rewrite its logs and `results.json`.

    Args:
        out_dir: output folder of `opct eval`.

    Raises:
        EvaluationError: there is no evaluation, a log is incomplete, or no suite is rule-graded; nothing is written
            then.
        RunError: the results cannot be written.
    """
    run = RunDir(out_dir)
    log_paths(run.path)  # before the lock, which makes the folder
    with run.results_lock():
        logs = [read_log(path) for path in log_paths(run.path)]
        ours = [log for log in logs if task_name(log) in SCORERS]
        if not ours:
            raise EvaluationError(
                f"None of the suites in {run.evals_dir} is rule-graded ({', '.join(SCORERS)}): evaluate the others "
                "again, with `opct eval`."
            )
        graded, changes = {}, {}
        for old in ours:
            with LibraryErrors(EvaluationError, f"{old.location} cannot be graded again", "Evaluate again."):
                suite, new = task_name(old), _graded_again(old)
                graded[suite], changes[suite] = new, _changes(suite, old, new)
        for new in graded.values():
            write_log(new, Path(new.location))
        results = write_results(run)
    return Regraded(results, changes, {suite: len(new.samples or []) for suite, new in graded.items()})


def _graded_again(log: EvalLog) -> EvalLog:
    """The log with new verdicts; the KL to the base and the judge scores are kept."""
    suite = task_name(log)
    if "reasoning" not in about_of(log).get("settings", {}):  # else it was split off in the form of the model
        for sample in log.samples or []:
            split_output(sample.output)
    with quiet():
        new = inspect_ai.score(log, SCORERS[suite](), model="none/none", action="overwrite", display="none")
    for before, after in zip(log.samples or [], new.samples or [], strict=True):
        scores = {name: score for name, score in (before.scores or {}).items() if _is_not_regraded(name)}
        after.scores = {**(after.scores or {}), **scores}
    new.location, new.eval.metadata = log.location, _new_settings(suite, log.eval.metadata or {})
    return new


def _is_not_regraded(name: str) -> bool:
    return name == KL or name.startswith(JUDGE)


def _new_settings(suite: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A task's settings with the current rule version and the time of regrading."""
    settings = dict(metadata)
    if suite == BENIGN:  # these rules grade only one of its metrics
        settings["metric_settings"] = {OVER_REFUSAL: {"grader": "rules", "grader_version": VERSIONS[suite]}}
    else:
        settings["grader_version"] = VERSIONS[suite]
    stamp = datetime.now(UTC).isoformat(timespec="seconds")
    return settings | {OPCT: {**settings.get(OPCT, {}), "regraded": stamp}}


def _changes(suite: str, old: EvalLog, new: EvalLog) -> dict[tuple[str, str], int]:
    pairs = zip(old.samples or [], new.samples or [], strict=True)
    verdicts = ((_verdict(suite, before.scores), _verdict(suite, after.scores)) for before, after in pairs)
    return dict(Counter(pair for pair in verdicts if pair[0] != pair[1]))


def _verdict(suite: str, scores: Mapping[str, Score] | None) -> str:
    """The grader's verdict; for a benign request also whether the reply refuses, which is not part of its check."""
    score = next(score for name, score in (scores or {}).items() if not _is_not_regraded(name))
    word = str((score.metadata or {}).get("verdict"))
    if suite != BENIGN or not isinstance(score.value, Mapping):
        return word
    refused = {0.0: "not refused", 1.0: "refused"}.get(score.value.get("is_over_refusal"), "unscored")  # type: ignore[arg-type]
    return f"{word}, {refused}"
