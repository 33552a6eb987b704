"""Our suites: `make_tasks` needs no model; `evaluate_suites` samples a policy and writes logs and results.

The logs (`evals/*.eval`, one a suite) are the store; `results.json` is computed from them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from inspect_ai import Task
from inspect_ai.log import EvalLog, read_eval_log_sample_summaries
from inspect_ai.model import Model
from inspect_ai.scorer import Score
from pydantic_core import to_jsonable_python

from opct.data.context import CONTEXT, CONTEXT_IDS, scenario_of
from opct.data.duplicates import TrainedTexts, contamination_warnings
from opct.data.perturb import jailbreak as wrappers
from opct.data.perturb import safety_awareness as hidden
from opct.data.perturb.families import FAMILY_GROUPS
from opct.data.perturb.sycophancy import FAMILIES
from opct.data.questions import Question
from opct.errors import DataError, EvaluationError, OpctError, unknown
from opct.evals.config import EvalConfig
from opct.evals.graders.versions import AGREEMENT
from opct.evals.inspect_runner import keep_log, remove_unfinished, run_inspect
from opct.evals.logs import (
    KL,
    OF_ALL,
    OPCT,
    Evaluation,
    about_of,
    graded_samples,
    log_headers,
    log_name,
    log_order,
    open_log,
    read_evaluation,
    task_name,
    usable_log,
)
from opct.evals.quiet import quiet
from opct.evals.same_questions import unlike_model
from opct.evals.samples import BENIGN, CONSISTENCY, GradedSample, warnings_of
from opct.evals.tasks.benign import benign_task
from opct.evals.tasks.capability import (
    BENCHMARKS,
    CAPABILITY_SUITES,
    LM_EVAL,
    benchmark_task,
    is_benchmark,
    parts_of,
)
from opct.evals.tasks.common import NAN
from opct.evals.tasks.consistency import consistency_task
from opct.evals.tasks.jailbreak import JAILBREAK, JAILBREAK_COUNTERPARTS, jailbreak_task
from opct.evals.tasks.safety_awareness import SAFE_PROMPTS, SAFETY_AWARENESS, safety_task
from opct.evals.tasks.sycophancy import CHOICE, PAIRS, SHORT, context_task, pairs_task, sycophancy_task
from opct.models.memory import release_memory
from opct.runs.console import NullProgress, Progress
from opct.runs.identity import Identity
from opct.runs.io import write_json
from opct.runs.lock import check_in_place, is_running, this_process
from opct.runs.run_dir import RunDir

if TYPE_CHECKING:
    from opct.models.policy import Likeliest, Policy

SCHEMA = 1
KL_BATCH = 64
N_LIKELIEST = 5
"""Number of likely tokens that are kept at each token of the first questions' replies."""
CHANGE_NO_REPLY = ("run.path", "run.name", *(f"settings.{name}" for name in (*OF_ALL, "batch_size", "device")))
"""What may differ between an evaluation and its continuation: where it lies, and what is asked of other suites."""
FEW_RIGHT = 0.2
"""Share of clean questions answered right below which training has little to keep."""


# --------------------------------------------------------------------------------------------------- the suites


@dataclass(frozen=True)
class Suite:
    """A suite.

    Attributes:
        task: makes its Inspect task; the sycophancy suites also take questions.
        measures_kl: whether the KL of its replies to the base is measured.
        families: the families that it supports.
        limit: the setting with the most tokens of a reply; None: its own.
    """

    task: Callable[..., Task]
    measures_kl: bool = True
    families: Iterable[str] = ()
    limit: str | None = "max_completion_tokens"


def _benchmark_suite(name: str) -> Suite:
    return Suite(partial(benchmark_task, name), measures_kl=False, limit=None)


SUITES = {
    SHORT: Suite(partial(sycophancy_task, SHORT), families=FAMILIES),
    CHOICE: Suite(partial(sycophancy_task, CHOICE), families=FAMILIES),
    PAIRS: Suite(pairs_task),
    CONSISTENCY: Suite(consistency_task, limit="max_reply_tokens"),
    JAILBREAK: Suite(jailbreak_task, families=wrappers.FAMILIES, limit="max_reply_tokens"),
    SAFETY_AWARENESS: Suite(safety_task, families=hidden.FAMILIES, limit="max_reply_tokens"),
    CONTEXT: Suite(context_task),
    BENIGN: Suite(benign_task, limit="max_benign_tokens"),
    **{name: _benchmark_suite(name) for name in BENCHMARKS},
}


def suite_of(name: str) -> Suite:
    """The suite of this name; `lm-eval:NAME` is a task of lm-eval."""
    return _benchmark_suite(name) if name.startswith(LM_EVAL) else SUITES[name]


def prompts_of(tasks: Iterable[Task]) -> list[tuple[str, Any]]:
    """Both prompts of every sample of our axes, each with the sample's id."""
    samples = [sample for task in tasks for sample in task.dataset if "teacher_prompt" in (sample.metadata or {})]
    sides = ("prompt", "teacher_prompt")
    return [(f"sample {sample.id}", sample.metadata[side]) for sample in samples for side in sides]  # type: ignore[index]


def known_suites(names: Sequence[str]) -> list[str]:
    """Look up suites by name, each once; `capability` and `capability-fast` stand for their benchmarks. Raises
    EvaluationError where a name is unknown, or there is none."""
    for name in names:
        if name not in SUITES and name not in CAPABILITY_SUITES and not is_benchmark(name):
            raise EvaluationError(unknown("suite", name, [*SUITES, *CAPABILITY_SUITES]))
    if not names:
        raise EvaluationError(f"No suites to evaluate: give at least one of {', '.join(SUITES)}.")
    return list(dict.fromkeys(single for name in names for single in (parts_of([name]) or [name])))


def make_tasks(config: EvalConfig, questions: Sequence[Question] | None = None) -> list[Task]:
    """Make one Inspect task per suite and load its data. Needs no model and writes nothing.

    Args:
        questions: used instead of `config.questions`.

    Raises:
        EvaluationError: an unknown suite, split or family, or a package is missing.
        DataError: data is missing or faulty; the message names every suite that cannot be evaluated.
    """
    names = known_suites(config.suites)
    _check_choices(config, names, has_questions=config.questions is not None or questions is not None)
    tasks: list[Task] = []
    errors: dict[str, tuple[OpctError, list[str]]] = {}  # by message, with its suites
    for name in names:
        try:
            arguments = {"questions": questions} if questions is not None and name in (SHORT, CHOICE) else {}
            tasks.append(suite_of(name).task(config, **arguments))
        except OpctError as error:
            errors.setdefault(str(error), (error, []))[1].append(name)
    if len(errors) == 1:
        raise next(error for error, _ in errors.values())
    if errors:
        faults = [f"{', '.join(suites)}: {said}".replace("\n", "\n  ") for said, (_, suites) in errors.items()]
        raise DataError(
            f"{len(names) - len(tasks)} of the {len(names)} suites cannot be evaluated; provide what they need, or "
            "leave them out:",
            tuple(faults),
        )
    return tasks


USES = {
    JAILBREAK: (JAILBREAK, JAILBREAK_COUNTERPARTS, wrappers.IN_THE_WILD, wrappers.ARTIFACT),
    SAFETY_AWARENESS: (SAFETY_AWARENESS, SAFE_PROMPTS),
}
"""The uses of files by suite; another suite has at most one, of its own name."""


def _check_choices(config: EvalConfig, names: Sequence[str], *, has_questions: bool) -> None:
    """Raise EvaluationError if a family, file, column or prompt applies to none of these suites."""
    if config.columns and not has_questions:
        raise EvaluationError("columns needs a question file: give it with --questions.")
    if has_questions and not {SHORT, CHOICE} & set(names):
        raise EvaluationError(f"Only {SHORT} and {CHOICE} ask your questions: add one, or leave the questions out.")
    known = [*USES[JAILBREAK], *USES[SAFETY_AWARENESS], PAIRS, CONSISTENCY, *BENCHMARKS]
    used = [use for name in names for use in USES.get(name, (name,))]
    for use in config.data:
        if use not in known and not is_benchmark(use):
            raise EvaluationError(unknown("use of a file", use, known))
        if use not in used:
            raise EvaluationError(
                f"The file for {use} is used by none of {', '.join(names)}: add its suite, or leave the file out."
            )
    if config.system_prompt is not None and (benchmarks := [name for name in names if is_benchmark(name)]):
        raise EvaluationError(f"system_prompt is not used by {', '.join(benchmarks)}: leave one of the two out.")
    everything = [family for name in names for family in suite_of(name).families]
    for family in config.listed_families or ():
        if family not in (*FAMILY_GROUPS, *everything):
            raise EvaluationError(unknown("family or group of families", family, [*FAMILY_GROUPS, *everything]))


# ------------------------------------------------------------------------------------------------ ask and write


class About(TypedDict, total=False):
    """Metadata of the evaluated weights for the results.

    label, name, method, train_seed: names of this run in the report.
    weights: identifies the weights, for example by step and hashes of a checkpoint.
    trained_families, trained_questions, trained_texts: training data; evaluating on it gives a warning. None: texts are
        unknown. Missing: there was no training.
    warnings: what else to say beside the results.
    """

    label: str
    name: str | None
    method: str | None
    train_seed: int | None
    weights: Mapping[str, Any] | None
    trained_families: Sequence[str]
    trained_questions: Sequence[str]
    trained_texts: TrainedTexts | None
    warnings: Sequence[str]


def evaluate_suites(
    policy: Policy | Model,
    config: EvalConfig | None = None,
    *,
    out_dir: str | Path,
    tasks: Sequence[Task] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    **about: Unpack[About],
) -> dict[str, Any]:
    """Evaluate a policy, or a model of Inspect; write `evals/<suite>.eval` and `results.json`, and return the content
    of the latter.

    Suites of an earlier evaluation of the same weights are kept; those evaluated now are replaced, each as soon as it
    has ended.

    Args:
        out_dir: a run directory, or any folder.
        tasks: the result of `make_tasks` for this config, if already called.
        resume: do not ask for replies that are in `out_dir`, of the same weights, settings and prompts.
        progress: has a stage for the samples of each suite and one for their KL.
        about: see `About`.

    Raises:
        EvaluationError: see `make_tasks`; the evaluation failed.
        DataError: see `make_tasks`.
        RunError: the results could not be written.
    """
    config = config or EvalConfig()
    run = RunDir(out_dir).refuse_links_out()
    tasks = make_tasks(config) if tasks is None else list(tasks)
    progress = progress or NullProgress()
    settings, measured = _settings(policy, config, tasks), about_run(run, policy, about)
    label, logs, dropped, of_replies = measured["label"], None, list[str](), list[str]()
    results: dict[str, Any] | None = None
    with run.results_lock():  # makes the folder
        inode = run.evals_dir.stat().st_ino
    for task in tasks:
        earlier = None
        if resume:
            same = partial(_is_the_same, task=task, now=_identity(measured, settings, task.metadata))
            earlier = _unfinished_log(run, task, same, progress)
            if earlier is None and same(usable_log(run.evals_dir / log_name(task.name))[0]):
                progress.log(f"{label}: {task.name} was evaluated already")
                continue
        else:
            remove_unfinished(run, task.name)
        progress.stage(f"evaluate {label} on {task.name}", len(task.dataset), _n_done(earlier) if earlier else 0)
        log = run_inspect(
            task,
            policy,
            run.unfinished_dir,
            config.batch_size,
            progress,
            earlier=earlier,
            warnings=of_replies,
            # what `resume` and `opct runs` read of a log that has not ended
            metadata={OPCT: {"run": measured, "settings": settings, "process": this_process()}},
        )
        if suite_of(task.name).measures_kl:
            add_kl(policy, log, config, progress, f"KL of {label} on {task.name}")
        release_memory()
        check_in_place(run.evals_dir, inode)  # before the lock, which would make the folder again
        metadata = {"schema": SCHEMA, "run": measured, "settings": settings, "created": datetime.now(UTC).isoformat()}
        with run.results_lock():  # another evaluation may end at the same time
            if logs is None:
                logs, dropped = set_aside_others(run, measured, [each.name for each in tasks])
            logs[task.name] = log
            trained_on = _contamination(list(logs.values()), settings, about)
            metadata["order"] = next_order(run)
            metadata["warnings"] = [*dropped, *about.get("warnings", ()), *of_replies, *trained_on]
            keep_log(log, run.evals_dir, metadata)
            remove_unfinished(run, task.name)
            results = write_results(run)
    if results is None:  # nothing was asked, but a kill may have come between a log and the results
        with run.results_lock():
            results = write_results(run)
    return results


def next_order(run: RunDir) -> int:
    """The place of the next log among those of a run."""
    return 1 + max(map(log_order, log_headers(run.evals_dir).values()), default=0)


def unfinished_paths(run: RunDir, name: str) -> list[Path]:
    """The logs of the task of this name in `evals/unfinished`, the oldest first."""
    return [path for path, log in log_headers(run.unfinished_dir).items() if task_name(log) == name]


def unfinished_suite(folder: str | Path) -> tuple[str, int, int, bool] | None:
    """(suite, samples done, samples, whether its process runs) of the newest evaluation in a folder that has not ended;
    None if all have."""
    logs = log_headers(RunDir(folder).unfinished_dir)
    if not logs:
        return None
    path, log = list(logs.items())[-1]
    process = about_of(log).get("process", {})
    with quiet():
        done = sum(summary.completed for summary in read_eval_log_sample_summaries(str(path)))
    # every epoch of a sample is completed by itself: an attack's episodes are epochs
    planned = (log.eval.dataset.samples or 0) * (log.eval.config.epochs or 1)
    return task_name(log), done, planned, bool(is_running(process))


def _unfinished_log(run: RunDir, task: Task, same: Callable[[EvalLog], bool], progress: Progress) -> EvalLog | None:
    """The log with the most samples of an interrupted evaluation of this task with the same weights and settings."""
    logs = []
    for path in unfinished_paths(run, task.name):
        try:
            logs.append(open_log(path, remedy="Its replies are asked for again."))
        except EvaluationError as error:
            progress.log(str(error))
    return max((log for log in logs if _n_done(log) and same(log)), key=_n_done, default=None)


def _n_done(log: EvalLog) -> int:
    return sum(sample.error is None for sample in log.samples or [])


def _identity(measured: Mapping[str, Any], settings: Mapping[str, Any], metadata: Mapping[str, Any] | None) -> Identity:
    """What decides the replies of a suite: the weights, the settings, and the metadata of its task."""
    return Identity({"run": measured, "settings": settings, "task": metadata or {}})


def _is_the_same(log: EvalLog | None, task: Task, now: Identity) -> bool:
    """Whether a log is of this task with the same weights and settings, and each of its samples is of the task."""
    if log is None or log.eval.dataset.samples != len(task.dataset):
        return False
    task_metadata = dict(log.eval.metadata or {})
    about = task_metadata.pop(OPCT, {})
    if _identity(about.get("run", {}), about.get("settings", {}), task_metadata).differing(now, CHANGE_NO_REPLY):
        return False
    metadata = {sample.id: to_jsonable_python(sample.metadata) for sample in task.dataset}
    return all(sample.metadata == metadata.get(sample.id) for sample in log.samples or [])


def write_results(run: RunDir) -> dict[str, Any]:
    """Compute `results.json` from the logs of a run, write it, and return it."""
    results = results_of(read_evaluation(run.path))
    write_json(run.results_path, results)
    return results


def results_of(evaluation: Evaluation) -> dict[str, Any]:
    now, kept = evaluation.settings, evaluation.settings.get("kept", {})
    asked = {name: {**now, **kept.get(name, {})} for name in SUITES}
    limits = {name: f"{s.limit}={asked[name][s.limit]}" for name, s in SUITES.items() if s.limit in asked[name]}
    of_samples = [*warnings_of(evaluation.samples, limits), *missing_counterparts(evaluation.samples)]
    return {
        "schema": SCHEMA,
        "run": evaluation.run,
        "created": evaluation.created,
        "settings": evaluation.settings,
        "warnings": [*_unknown_answers(evaluation), *evaluation.warnings, *of_samples, *evaluation.left_out],
        "grader_agreement": {suite: asdict(AGREEMENT[suite]) for suite in evaluation.suites if suite in AGREEMENT},
        "rows": evaluation.rows,
    }


def _settings(policy: Policy | Model, config: EvalConfig, tasks: Sequence[Task]) -> dict[str, Any]:
    families = dict.fromkeys(name for task in tasks for name in (task.metadata or {}).get("families", ()))
    return {
        **config.model_dump(mode="json", exclude={"trust_remote_code", "judge"}),  # they change no reply
        "families": list(families),
        **_computed_with(policy),
    }


def about_run(run: RunDir, policy: Policy | Model, about: About) -> dict[str, Any]:
    method, weights = about.get("method"), about.get("weights")
    return {
        "name": about.get("name") or run.path.name,
        "label": about.get("label") or method or "base",
        "model": str(policy) if isinstance(policy, Model) else policy.name,
        "method": method,
        "seed": about.get("train_seed"),
        "path": str(run.path),
        "weights": None if weights is None else dict(weights),
        "dtype": _computed_with(policy).get("dtype"),
        "quantization": _computed_with(policy).get("quantization"),
    }


def _computed_with(policy: Policy | Model) -> dict[str, Any]:
    """How replies are computed, prompts rendered and reasoning told from answers; unknown for a model of Inspect."""
    if isinstance(policy, Model):
        return {}
    dtype = str(policy.dtype).removeprefix("torch.")
    return {
        "dtype": dtype,
        "quantization": policy.quantization,
        "device": str(policy.device),
        "template_hash": policy.renderer.template_hash,
        "chat_template_kwargs": policy.renderer.chat_template_kwargs,
        "reasoning": list(policy.renderer.reasoning),
    }


def set_aside_others(
    run: RunDir, about: Mapping[str, Any], task_names: Sequence[str]
) -> tuple[dict[str, EvalLog], list[str]]:
    """Move logs of other weights, and unusable ones, aside. Returns the logs that stay, by task, and a warning for each
    moved one that is unusable or not asked again."""
    logs, dropped = {}, []
    for path in sorted(run.evals_dir.glob("*.eval")):
        log, why = usable_log(path)
        if log is not None:
            unlike = unlike_model(log, about)
            if not unlike:
                logs[task_name(log)] = log
                continue
            why = f"they are of another model ({unlike})"
        aside = run.evals_dir / "replaced"
        aside.mkdir(exist_ok=True)
        os.replace(path, aside / path.name)
        if log is None or path.name not in map(log_name, task_names):
            dropped.append(f"Earlier results of {path.stem} were dropped because {why}; the log is in {aside}.")
    return logs, dropped


def _contamination(logs: Sequence[EvalLog], settings: Mapping[str, Any], about: About) -> list[str]:
    """Warnings about evaluation data in these logs that was used in training, also of kept suites."""
    uses = {JAILBREAK: (JAILBREAK, wrappers.ARTIFACT), SAFETY_AWARENESS: (SAFETY_AWARENESS,)}
    files = []
    for log in logs:
        data = about_of(log).get("settings", settings)["data"]
        files += [str(data[use]) for use in uses.get(task_name(log), ()) if use in data]
    rows = [
        {
            **{name: getattr(sample, name) for name in ("axis", "cluster", "family", "family_split", "side")},
            **{name: sample.grading.get(name) for name in ("behavior", "fact")},
            "teacher_prompt": sample.teacher_prompt,
        }
        for log in logs
        for sample in graded_samples(log)
    ]
    trained = about.get("trained_questions", ())
    return contamination_warnings(
        rows,
        files=list(dict.fromkeys(files)),
        families=about.get("trained_families", ()),
        # context_use counts scenarios, whose questions share their words
        questions=[*trained, *(scenario_of(name) for name in trained if name.startswith(CONTEXT_IDS))],
        texts=about.get("trained_texts", TrainedTexts()),
    )


def _unknown_answers(evaluation: Evaluation) -> list[str]:
    """The warning that decides whether training is worth its cost: an untrained model does not know the answers."""
    first = {sample.task for sample in evaluation.samples if not sample.graded_by}
    rows = [row for row in evaluation.rows if row["metric"] == "accuracy_clean" and row["suite"] in first]
    return [
        f"{row['suite']}: the model answers only {row['value']:.0%} of the clean questions right (n = {row['n']}), and "
        "training teaches no answers: ask what it knows, or put the facts into the questions."
        for row in rows
        if evaluation.run.get("method") is None and row["value"] is not None and row["value"] < FEW_RIGHT
    ]


def missing_counterparts(samples: Sequence[GradedSample]) -> list[str]:
    """Warning if behaviors have no benign counterpart, so that over-refusal is not measured."""
    sides: tuple[set[str], set[str]] = (set(), set())
    for sample in samples:
        if sample.task == JAILBREAK:
            sides[sample.side == BENIGN].add(sample.cluster)
    total, lacking = len(sides[0]), len(sides[0] - sides[1])
    if not lacking:
        return []
    return [
        f"jailbreak: {lacking} of the {total} behaviors have no benign counterpart, so over_refusal_rate does not "
        "cover them: a low attack_success_rate may only mean that the model refuses everything. Give counterparts "
        "(--data jailbreak_counterparts=FILE, or a column benign)."
    ]


# --------------------------------------------------------------------------------------------------- KL to the base


def add_kl(policy: Policy | Model, log: EvalLog, config: EvalConfig, progress: Progress, stage: str) -> None:
    """Add KL(policy | prompt || base | teacher_prompt) to a log, as the score `kl`: its mean a reply, and per token
    for the first questions, with the likeliest tokens of both. Of an Inspect model, which gives no log-probs, it is
    unscored."""
    samples = [sample for sample in graded_samples(log) if not sample.graded_by]
    in_log = {str(sample.id): sample for sample in log.samples or []}
    if isinstance(policy, Model):
        for sample in samples:
            if _is_plain(sample) or sample.axis == CONSISTENCY:
                name = "kl_to_base" if _is_plain(sample) else "kl_to_teacher"
                unscored = Score(value={name: NAN}, metadata={"reasons": {name: "no_likelihoods"}})
                in_log[sample.id].scores[KL] = unscored  # type: ignore[index]
        return
    # all samples of the first questions: the families take turns, so these show them all
    first = list(dict.fromkeys(sample.cluster for sample in samples))[
        : config.browser_questions if config.kl_samples else 0
    ]
    shown = {sample.id for sample in samples if sample.cluster in first}

    text_of = cache(lambda token_id: "".join(policy.renderer.pieces([token_id])))

    def add(sample: GradedSample, kl: Sequence[float], likeliest: Sequence[tuple[Likeliest, Likeliest]] = ()) -> None:
        metadata: dict[str, Any] = {}
        if sample.id in shown:
            pieces = list(policy.renderer.pieces(sample.token_ids))
            metadata = {"tokens": pieces, "kl": [round(float(value), 5) for value in kl]}
            # what rounds to 0 says nothing; NaN fails the comparison, too
            both = [[[(text_of(i), round(p, 3)) for i, p in side if p >= 5e-4] for side in each] for each in likeliest]
            metadata |= {"likeliest": both} if both else {}
        name = "kl_to_base" if _is_plain(sample) else "kl_to_teacher"
        scores = in_log[sample.id].scores
        assert scores is not None
        scores[KL] = Score(value={name: sum(kl) / len(kl)}, metadata=metadata)

    sides: tuple[list[str], list[str]] = ([], [])
    for sample in samples:
        # of graded suites the plain side alone: under pressure the grades say more
        if sample.token_ids and (_is_plain(sample) or sample.axis == CONSISTENCY):
            sides[_is_plain(sample)].append(sample.id)
    wanted = shown.union(*(side[: config.kl_samples] for side in sides))
    selected = [sample for sample in samples if sample.id in wanted and sample.token_ids]
    plain_first = [[s for s in selected if _is_plain(s)], [s for s in selected if not _is_plain(s)]]
    if not policy.has_base:  # it is its own base, so the KL of equal prompts is 0; not with a system prompt
        for sample in plain_first.pop(0) if config.system_prompt is None else ():
            add(sample, [0.0] * len(sample.token_ids))
    batches = [part[i : i + KL_BATCH] for part in plain_first for i in range(0, len(part), KL_BATCH)]
    if batches:
        progress.stage(stage, sum(map(len, batches)))
    for batch in batches:  # apart, so that equal prompts are padded alike on both sides
        replies: list[Any] = [SimpleNamespace(token_ids=sample.token_ids) for sample in batch]
        prompts, clean = [tuple(s.prompt) for s in batch], [tuple(s.teacher_prompt) for s in batch]
        k = N_LIKELIEST * any(sample.id in shown for sample in batch)  # 0 where none would be kept
        for sample, found in zip(batch, policy.kl_and_likeliest(prompts, clean, replies, k), strict=True):
            add(sample, *found)
        progress.advance(len(batch))


def _is_plain(sample: GradedSample) -> bool:
    """Whether the sample has no pressure: the prompt equals the teacher prompt."""
    return list(sample.prompt) == list(sample.teacher_prompt)
