"""Evaluate a policy on our own suites and write it down; `run_task` does the same for any Inspect task.

`prepare` makes what is asked, where names, files and packages are checked and no model is needed; `measure` asks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from opct.data.duplicates import TrainedTexts, contamination_warnings
from opct.data.questions import Question
from opct.data.tables import Columns
from opct.errors import EvaluationError, unknown
from opct.evals.capability.suites import BENCHMARKS
from opct.evals.earlier import SCHEMA, earlier_suites, joined_settings
from opct.evals.external import check_task, run_task
from opct.evals.graders.versions import grader_versions
from opct.evals.inspect_runner import Counter, ProgressCallback, run_inspect
from opct.evals.kl import add_kl
from opct.evals.metrics import metric_rows
from opct.evals.provider import DEFAULT_BATCH_SIZE, EvaluatedPolicy
from opct.evals.samples import (
    BENIGN,
    GradedSample,
    add_paired_values,
    graded_samples,
    row_from_sample,
    sample_from_row,
    warnings_of,
)
from opct.evals.suites import (
    DEFAULT,
    SUITES,
    Asked,
    PerQuestion,
    check_graded_by,
    families_by_suite,
    known_files,
    known_suites,
    parts_of,
    sorted_by_suite,
    suite_warnings,
)
from opct.evals.tasks.common import made_tasks
from opct.evals.tasks.sycophancy import SHORT, split_questions
from opct.models.memory import give_back
from opct.runs.io import write_json, write_jsonl
from opct.runs.run_dir import RunDir

if TYPE_CHECKING:
    from inspect_ai import Task
    from inspect_ai.log import EvalLog

__all__ = ["asked_questions", "check_task", "evaluate", "measure", "parted", "prepare", "run_task"]

ASKING = (
    *("questions", "split", "columns", "n_questions", "families", "families_per_question", "seed", "n_benign", "data"),
    *("n_problems", "prompts_per_fact", "twins_per_fact", "behavior_columns", "leave_out", "augmented"),
    *("graded_by", "max_completion_tokens", "max_reply_tokens", "max_benign_tokens", "greedy"),
)
"""The options of `prepare`."""
MEASURING = ("batch_size", "kl_samples", "browser_questions")
"""Those of `measure` that a person may set."""


class About(TypedDict, total=False):
    """What the results say about the weights that were measured.

    label, name, method, train_seed: what the report calls this run.
    weights: what tells these weights from others of the model: step and hashes of a checkpoint, say.
    trained_families, trained_questions, trained_texts: what training used; evaluating on it is a warning. Texts that
        are None were not kept; left out, there was no training.
    """

    label: str
    name: str | None
    method: str | None
    train_seed: int | None
    weights: Mapping[str, Any] | None
    trained_families: Sequence[str]
    trained_questions: Sequence[str]
    trained_texts: TrainedTexts | None


@dataclass(frozen=True)
class Prepared:
    """What an evaluation asks: one Inspect task a suite, and what the results call the settings of all."""

    tasks: tuple[Task, ...]
    settings: dict[str, Any]


def evaluate(
    policy: EvaluatedPolicy, *, out_dir: str | Path, suites: Sequence[str] = (SHORT, BENIGN), **options: Any
) -> dict[str, Any]:
    """`prepare`, then `measure`: what `results.json` holds.

    Args:
        options: of either.
    """
    asking = {name: options.pop(name) for name in ASKING if name in options}
    return measure(policy, prepare(suites, **asking), out_dir=out_dir, **options)


def parted(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options by what takes them: `prepare`, and `measure`.

    Raises:
        EvaluationError: neither knows one.
    """
    for name in options:
        if name not in (*ASKING, *MEASURING):
            raise EvaluationError(unknown("option of an evaluation", name, [*ASKING, *MEASURING]))
    asking, measuring = ({name: options[name] for name in known if name in options} for known in (ASKING, MEASURING))
    return asking, measuring


def prepare(
    suites: Sequence[str] = (SHORT, BENIGN),
    *,
    questions: Sequence[Question] | str | Path | None = None,
    split: str = "test",
    columns: Columns | None = None,
    n_questions: int | None = 600,
    n_problems: int | None = None,
    families: str | Sequence[str] = "all",
    families_per_question: PerQuestion = DEFAULT,
    prompts_per_fact: int | None = None,
    twins_per_fact: int | None = None,
    seed: int = 0,
    max_completion_tokens: int = 32,
    max_reply_tokens: int = 96,
    max_benign_tokens: int = 64,
    n_benign: int | None = None,
    data: Mapping[str, str | Path] | None = None,
    behavior_columns: Mapping[str, str] | None = None,
    leave_out: Sequence[str] = (),
    augmented: bool = False,
    graded_by: str | None = None,
    greedy: bool = True,
) -> Prepared:
    """What these suites ask, their data read and their packages found; no model is needed, and nothing is written.

    Args:
        suites: names of `opct.evals.suites.SUITES`, or "capability" and "capability-fast", which stand for several.
        questions, split, columns: see `asked_questions`; `split` is also that of the benign requests ("all": test).
        n_questions: at most so many questions, behaviours or facts of each suite.
        n_problems: at most so many problems of each benchmark. None: as many as `capability` or `capability-fast` ask,
            and of a benchmark that is named by itself n_questions.
        families, prompts_per_fact, twins_per_fact, seed: see `sycophancy_items`, `jailbreak_items`, `safety_items`.
            Runs to be compared need the same.
        families_per_question: families that each question, behaviour or message is asked in; None for all, "default"
            for 4 of jailbreak and 2 of the others.
        max_completion_tokens, max_benign_tokens: most tokens of an answer to a question, or to a benign request.
            Benchmarks have limits of their own, which the results say.
        max_reply_tokens: most tokens of a reply in jailbreak and safety_awareness.
        n_benign: at most so many benign requests, the first of each category in turn; None for all.
        data: files by what they are for: `jailbreak` (behaviours), `jailbreak_twins` (their benign twins, where they
            come apart), `in_the_wild` (templates), `artifact` (attackers' prompts), `safety_awareness` (facts),
            `safety_awareness_safe` (the safe prompts of SAGE-Eval, where they come apart), and each benchmark.
        behavior_columns, leave_out: of the file of behaviours; see `load_behaviors`.
        augmented: ask SAGE-Eval's own typos and tones too; see `load_facts`.
        graded_by: of multiple choice: letters, texts or reply; None: as each suite has it.
        greedy: take the likeliest token each time; otherwise sample the policy itself (temperature 1).

    Raises:
        EvaluationError: an unknown suite, split or family, numbers out of range, or a package is missing.
        DataError: data cannot be had or used; where several suites cannot be asked, all of them are named.
    """
    names = known_suites(suites)
    check_graded_by(names, graded_by)
    asked, asked_name = asked_questions(questions, split, columns, seed=seed)
    chosen = families_by_suite(names, families)
    sizes: dict[str, Any] = {
        "n_questions": n_questions,
        "n_problems": n_problems,
        "families_per_question": families_per_question,
        "prompts_per_fact": prompts_per_fact,
        "twins_per_fact": twins_per_fact,
        "seed": seed,
        "greedy": greedy,
        "max_completion_tokens": max_completion_tokens,
        "max_reply_tokens": max_reply_tokens,
        "max_benign_tokens": max_benign_tokens,
    }
    if isinstance(families_per_question, str) and families_per_question != DEFAULT:
        raise EvaluationError(f"families_per_question is {families_per_question!r}: use a number, null or {DEFAULT!r}.")
    known_files(data or {})
    files = {name: str(path) for name, path in (data or {}).items()}
    chosen_alone: dict[str, Any] = {"behavior_columns": behavior_columns, "leave_out": leave_out}
    chosen_alone |= {"augmented": augmented, "graded_by": graded_by}
    given = Asked(
        asked,
        split=split,
        families=chosen,
        n_benign=n_benign,
        data=files,
        parts=parts_of(suites),
        **chosen_alone,
        **sizes,
    )
    tasks = made_tasks({name: partial(SUITES[name].make, given) for name in names})
    settings = {"questions": asked_name, "families": _families(tasks), "data": files, **sizes, **_benchmarks(tasks)}
    return Prepared(tuple(tasks), settings | {name: value for name, value in chosen_alone.items() if value})


def measure(
    policy: EvaluatedPolicy,
    prepared: Prepared,
    *,
    out_dir: str | Path,
    batch_size: int = DEFAULT_BATCH_SIZE,
    kl_samples: int = 200,
    browser_questions: int = 40,
    progress: ProgressCallback | None = None,
    **about: Unpack[About],
) -> dict[str, Any]:
    """Ask a policy; write `evals/*.eval`, `evals/samples.jsonl` and `results.json`; return what the last holds.

    Suites that an earlier evaluation of the same weights left there stay; those evaluated now are replaced.

    Args:
        out_dir: a run directory, or any folder.
        kl_samples: clean and benign replies, of each suite, whose KL to the base is measured.
        browser_questions: questions (and benign requests) whose replies get per-token KL in `samples.jsonl`.
        progress: called with (done, total) as samples are finished.
        about: see `About`.

    Raises:
        EvaluationError: the evaluation stopped.
        RunError: the results could not be written.
    """
    run = RunDir(out_dir)
    count = Counter(progress, sum(len(task.dataset) for task in prepared.tasks))
    logs = run_inspect(prepared.tasks, policy, run.evals_dir, batch_size, count)
    samples = [sample for log in logs for sample in graded_samples(log)]
    add_paired_values(samples)
    add_kl(policy, samples, kl_samples, browser_questions, count)
    give_back()
    return _write(run, policy, logs, samples, prepared.settings, about)


def _families(tasks: Sequence[Task]) -> list[str]:
    """Every family that is asked, by name, as the tasks say."""
    return list(dict.fromkeys(name for task in tasks for name in (task.metadata or {}).get("families", ())))


def _benchmarks(tasks: Sequence[Task]) -> dict[str, Any]:
    """What is asked of each benchmark and how, under "benchmarks", as the tasks say; empty where none is asked."""
    told = ("n_asked", "n_available", "max_completion_tokens", "graded_by")
    asked = {task.name: task.metadata for task in tasks if task.name in BENCHMARKS and task.metadata}
    found = {name: {key: settings[key] for key in told} for name, settings in asked.items()}
    return {"benchmarks": found} if found else {}


def _write(
    run: RunDir,
    policy: EvaluatedPolicy,
    logs: Sequence[EvalLog],
    measured_now: Sequence[GradedSample],
    settings: Mapping[str, Any],
    about: About,
) -> dict[str, Any]:
    """Samples and results of now and of the kept suites on the disk; the latter are returned."""
    template = {"template_hash": policy.renderer.template_hash}
    settings_of = {log.eval.task.split("/")[-1]: {**(log.eval.metadata or {}), **template} for log in logs}
    suites = list(settings_of)
    settings_of = {name: settings_of[suite] for suite in suites for name in SUITES[suite].graded}
    settings = {"suites": suites, **settings, **template}
    settings |= {"dtype": _dtype(policy), "device": str(policy.device), "graders": grader_versions()}
    measured = _about_run(run, policy, about)
    with run.results_lock():  # of two evaluations that end at once, the second one keeps the suites of the first
        earlier = earlier_suites(run, measured, suites)
        samples = sorted_by_suite([*earlier.samples, *map(row_from_sample, measured_now)], "task")
        graded = [*map(sample_from_row, earlier.samples), *measured_now]
        settings = joined_settings(earlier, settings)
        results = {
            "schema": SCHEMA,
            "run": measured,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "settings": settings,
            "warnings": [
                *earlier.warnings,
                *warnings_of(graded),
                *suite_warnings(graded),
                *contamination_warnings(
                    samples,
                    files=list(dict.fromkeys(_own_files(settings))),
                    families=about.get("trained_families", ()),
                    questions=about.get("trained_questions", ()),
                    texts=about.get("trained_texts", TrainedTexts()),
                ),
            ],
            "rows": sorted_by_suite([*earlier.rows, *metric_rows(measured_now, settings_of)], "suite"),
        }
        write_jsonl(run.samples_path, samples)
        write_json(run.results_path, results)
    return results


def _own_files(settings: Mapping[str, Any]) -> Iterator[str]:
    """The files that behaviours and facts come from, those of suites that were kept included."""
    for suite, uses in (("jailbreak", ("jailbreak", "artifact")), ("safety_awareness", ("safety_awareness",))):
        if suite in settings["suites"]:
            data = settings.get("kept", {}).get(suite, {}).get("data", settings["data"])
            yield from (str(data[use]) for use in uses if use in data)


def _about_run(run: RunDir, policy: EvaluatedPolicy, about: About) -> dict[str, Any]:
    """What `results.json` says about the run that was measured."""
    method, weights = about.get("method"), about.get("weights")
    return {
        "name": about.get("name") or run.path.name,
        "label": about.get("label") or method or "base",
        "model": policy.name,
        "method": method,
        "seed": about.get("train_seed"),
        "path": str(run.path),
        "weights": None if weights is None else dict(weights),
        "dtype": _dtype(policy),
    }


def _dtype(policy: EvaluatedPolicy) -> str:
    return str(policy.dtype).removeprefix("torch.")


def asked_questions(
    questions: Sequence[Question] | str | Path | None = None,
    split: str = "test",
    columns: Columns | None = None,
    *,
    seed: int = 0,
) -> tuple[Sequence[Question], str]:
    """The questions of a sycophancy suite, and what the settings call them.

    Args:
        questions: a list of them, all of which are asked, or a question file; by default the embedded ones.
        split: train, validation, test or all: which of the file's or of the embedded questions.
        columns: of the question file, where the guess is wrong; see `load_questions`.
        seed: of the wrong answers that are drawn where the file has none.

    Raises:
        EvaluationError: an unknown split, no question in it, or columns without a file.
        DataError: a question cannot be used.
    """
    if isinstance(questions, str | Path):
        return split_questions(split, questions, columns, seed=seed), f"{Path(questions).name}:{split}"
    if columns:
        raise EvaluationError("Columns are those of a question file, and none is given: name it with --questions.")
    return (split_questions(split), f"builtin:{split}") if questions is None else (questions, "given")
