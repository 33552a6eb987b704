"""The functions behind `opct train` and `opct eval`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.config.loader import as_settings, load_settings
from opct.config.schema import TrainConfig, flat_settings
from opct.distributed import launched, map_across_ranks
from opct.errors import ConfigError, EvaluationError, OpctError
from opct.evals.config import OF_MODEL, EvalConfig
from opct.runs.console import Progress, show_warnings, shows_progress

if TYPE_CHECKING:
    from inspect_ai import Task
    from inspect_ai.model import Model
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback

    from opct.config.judge import JudgeConfig
    from opct.data.pairs import Prompt
    from opct.data.tables import Source
    from opct.evals.judges.llm import LLMJudge
    from opct.evals.run import About
    from opct.models.given import GivenModel
    from opct.models.inference.sampler import Completion
    from opct.models.policy import Policy
    from opct.runs.run_dir import RunDir
    from opct.training.setup import TrainingSetup
    from opct.training.trainer import TrainResult

TASK_OPTIONS = {"n_questions": "limit", "max_completion_tokens": "max_completion_tokens"}
"""Settings that any Inspect task takes under another name, or only where they are set."""
TASK_SETTINGS = (*TASK_OPTIONS, "seed", "greedy", "batch_size")


@dataclass
class EvalResult:
    """Result of an evaluation, and its folder.

    Attributes:
        out: folder of logs and results.
        results: the content of `results.json`; None if no suite of ours was requested.
        tasks: for each Inspect task that was asked for, what `opct.evals.inspect_runner.run_task` returns.
    """

    out: Path
    results: dict[str, Any] | None = field(default=None, repr=False)  # 100 KB, which a notebook would print
    tasks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


@shows_progress
def train(
    config: TrainConfig | Mapping[str, Any] | None = None,
    *,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    pairs: Source | None = None,
    questions: Source | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> TrainResult:
    """Train as `config` says, in `config.output_dir`; see `opct.training.trainer.train` for errors.

    Args:
        config: a `TrainConfig`, or a dict of its settings, nested or by dotted name.
        model: a loaded causal language model of transformers, of any quantization, in place of `config.model`, with its
            `tokenizer`. It is trained in its dtype on its device. The run records its name (`model.name_or_path`, or
            that of `config.model`), from which `opct eval`, `opct chat` and `opct export` load it again, and a hash of
            its weights: they refuse other weights of that name, and `resume` another model.
            The object is changed, and left so: in `eval` mode, with the fused parts of `opct.cpu` (the same numbers to
            rounding), and with the trained adapter in its layers and all else frozen, as `peft.get_peft_model` leaves
            it; `result.model` is PEFT's model around it, and `result.model.unload()` gives it back without, as
            an error does; `result.policy` is for `evaluate`. With `lora: null` its weights are made float32 and
            trained, products staying in the dtype that it had.
        callbacks: objects of `transformers.TrainerCallback`, or with some of its methods, called in every process; see
            `opct.training.callbacks.Callbacks` for what they are given.
        pairs: instead of `config.data.pairs`: dicts or `ContrastivePair`s, a DataFrame or a `datasets.Dataset`. The run
            keeps them as `pairs.jsonl`, which its config names, so that it can be resumed without them.
        questions: instead of pairs: a file, rows or `Question`s as `load_questions` takes them. Sycophancy pairs are
            made of their train split, and settings that `config` leaves out are those that `opct init` writes.
        resume: continue from the last checkpoint in the run directory.
        overwrite: replace the run that is there.
        progress: by default it is shown on stderr; `opct.runs.console.NullProgress()` shows none.

    Where pairs hold jailbreak behaviors or hazards, a new run measures its teacher; see `teacher.check_behaviors`.
    """
    from opct.data.builders.builtin import load_pairs
    from opct.data.builders.question_pairs import pairs_of_questions, settings_for_questions
    from opct.data.questions import load_questions
    from opct.data.tables import source_name
    from opct.evals.gradable import refuse_questions
    from opct.runs.run_dir import RunDir
    from opct.training.callbacks import Hooks, made_callbacks
    from opct.training.trainer import train as run_training

    config = as_settings(TrainConfig, config or {})
    given_model = None
    if model is not None or tokenizer is not None:
        config, given_model = _with_given_model(config, model, tokenizer)
    given = None if pairs is None else load_pairs(pairs)
    if questions is not None:
        if pairs is not None:
            raise ConfigError("pairs and questions contradict each other: give one of them.")
        file = (str(questions),) if isinstance(questions, str | Path) else ()
        known = load_questions(questions)
        refuse_questions(source_name(questions), known)
        given = pairs_of_questions(known, file)
        # what the caller set, and no defaults: those would undo the settings made for the questions
        explicit_settings = flat_settings(config.model_dump(mode="json", exclude_unset=True))
        question_settings = settings_for_questions(config.model.name_or_path, len(given), config.optim.prompts_per_step)
        if "num_train_epochs" in explicit_settings:
            question_settings.pop("max_steps", None)
        # checked again: `model_copy` would not check the two together
        config = load_settings(TrainConfig, base=question_settings | explicit_settings)
    if given is not None:
        data = config.data.model_copy(update={"pairs": [str(RunDir(config.output_dir).pairs_path)]})
        config = config.model_copy(update={"data": data})
    if config.engine == "verl":
        from opct.integrations import verl

        if callbacks:
            raise ConfigError("engine=verl trains in processes of its own: leave callbacks= out.")
        return verl.train_on_verl(config, pairs=given, resume=resume, overwrite=overwrite, progress=progress)
    work: Callable[..., Any] = run_training
    if launched():  # torchrun then prints the error of the rank that failed first
        from torch.distributed.elastic.multiprocessing.errors import record

        work = record(run_training)
    hooks = Hooks(_check_teacher, suites_while_training(config), made_callbacks(callbacks))
    options: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "progress": progress}
    return work(config, pairs=given, given_model=given_model, hooks=hooks, **options)


def _with_given_model(
    config: TrainConfig, model: PreTrainedModel | None, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[TrainConfig, GivenModel]:
    """A loaded model, and the settings that name it."""
    from opct.models.given import GivenModel

    if model is None or tokenizer is None:
        raise ConfigError("model and tokenizer belong together: give both, or a name as model.name_or_path.")
    for setting, engine in (("engine", config.engine), ("rollout.engine", config.rollout.engine)):
        if engine in ("verl", "vllm"):
            raise ConfigError(f"{setting}={engine} loads a model by its name, not the one that is given: leave it out.")
    given = GivenModel(model, tokenizer)
    explicit_settings = flat_settings(config.model_dump(mode="json", exclude_unset=True))
    # checked again: a quantized model, for one, cannot be trained whole
    return load_settings(TrainConfig, base=explicit_settings | given.settings(config.model)), given


NOT_IN_TRAINING = {"suites", "judge", *OF_MODEL}
"""Settings of an evaluation that `eval.settings` cannot have: the training has them, or they take a judge."""


def suites_while_training(
    config: TrainConfig,
) -> Callable[[TrainingSetup, RunDir, int, Progress], dict[str, float]] | None:
    """What asks the suites of `config.eval`; None where it has no steps.

    It writes `evals/training/step-<step>/`, a folder as `opct eval` writes, and returns `eval/SUITE/METRIC`: of each
    metric that of held-out families, else of its only group; one that was not scored is left out.

    Raises:
        ConfigError: the suites cannot be asked with these settings.
    """
    settings = config.eval
    if settings.steps is None:
        return None
    from opct.evals.run import evaluate_suites, make_tasks, prompts_of
    from opct.evals.target import trained_on
    from opct.models.self_test import self_test

    if refused := sorted(NOT_IN_TRAINING & settings.settings.keys()):
        raise ConfigError(f"eval.settings: {', '.join(refused)} cannot be set there: leave it out.")
    limits = dict.fromkeys(("n_questions", "n_problems", "n_context", "n_benign"), settings.limit)
    # the KL to the base is what the validation KL says
    defaults = {"split": "validation", **limits, "kl_samples": 0}
    try:
        chosen = load_settings(EvalConfig, base={**defaults, **settings.settings, "suites": settings.suites})
        make_tasks(chosen)  # faults are raised before a model loads
    except OpctError as error:
        raise ConfigError(f"eval.suites, eval.settings: {error}") from error
    if config.lora is None and chosen.kl_samples:
        raise ConfigError("eval.settings: with lora: null the base is not at hand in training: leave kl_samples out.")

    def evaluate(setup: TrainingSetup, run: RunDir, step: int, progress: Progress) -> dict[str, float]:
        policy, tasks = setup.policy, make_tasks(chosen)
        about: About = {
            "warnings": self_test(policy, prompts_of(tasks)),
            "label": f"{config.method}, step {step}",  # an arm of its own: as seeds of one their mean would be taken
            "method": config.method,
            "train_seed": config.seed,
            "name": f"{run.path.name}, step {step}",
            "weights": {"step": step, "hash": policy.weights_hash()},
            **trained_on(run.path, policy),
        }
        out = run.training_evals_dir / f"step-{step:06d}"
        results = evaluate_suites(policy, chosen, out_dir=out, tasks=tasks, progress=progress, **about)
        first: dict[str, float | None] = {}
        for row in results["rows"]:  # of held-out families first
            first.setdefault(f"eval/{row['suite']}/{row['metric']}", row["value"])
        return {name: value for name, value in first.items() if value is not None}

    return evaluate


def _check_teacher(setup: TrainingSetup, progress: Progress) -> dict[str, Any] | None:
    """Check the teacher of a new run; returns the result by axis, for the manifest."""
    from opct.data.pairs import JAILBREAK, SAFETY_AWARENESS
    from opct.evals.teacher_check import AXES, ask_policy, teacher_figure, teacher_sanity_check
    from opct.methods.rollouts import sampling

    settings, rows = setup.config.teacher, {}
    drawn, batch_tokens = sampling(setup.config, setup.policy), setup.config.rollout.batch_tokens
    sampled = {"max_completion_tokens": settings.check_tokens, "temperature": drawn.temperature}

    def answer(seeded_prompts: list[tuple[Prompt, int]]) -> list[Completion | None]:
        with setup.teacher() as teacher:
            return ask_policy(
                teacher,
                [prompt for prompt, _ in seeded_prompts],
                [seed for _, seed in seeded_prompts],
                settings.check_tokens,
                temperature=drawn.temperature,
                top_p=drawn.top_p,
                top_k=drawn.top_k,
                batch_tokens=batch_tokens,
                on_completions=lambda finished: progress.advance(len(finished)),
            )

    for axis, n in ((JAILBREAK, settings.check_behaviors), (SAFETY_AWARENESS, settings.check_hazards)):

        def ask(prompts: list[Prompt], seeds: list[int], axis: str = axis) -> list[Completion | None]:
            progress.stage(f"ask the teacher {AXES[axis].questions}", len(prompts))
            costs = [len(setup.policy.renderer.render(prompt)) + settings.check_tokens for prompt in prompts]
            return map_across_ranks(list(zip(prompts, seeds, strict=True)), costs, answer)

        row = teacher_sanity_check((r.pair for r in setup.data.pairs), ask, axis=axis, n=n) if n else None
        if row is not None:
            rows[axis] = row | sampled
            progress.log(f"teacher: {teacher_figure(rows[axis])}")
            if row["warning"]:
                progress.log(f"warning: {row['warning']}")
    return rows or None


@shows_progress
def evaluate(
    target: str | Path | Policy,
    config: EvalConfig | Mapping[str, Any] | None = None,
    *,
    tasks: str | Sequence[str] = (),
    questions: Source | None = None,
    out: str | Path | None = None,
    label: str | None = None,
    dtype: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> EvalResult:
    """Evaluate a run, a model or a policy on our suites and on any other Inspect task.

    Args:
        target: a run directory (its newest checkpoint), one of its `checkpoints/step-*`, a model's name or folder, a
            loaded `Policy`, or a model of Inspect (`inspect:openai/gpt-4o-mini`, `inspect:vllm/NAME`), which gives
            replies but no log-probs.
        config: settings of the evaluation, an `EvalConfig` or a dict; `settings` are over them, and both over the
            defaults of `EvalConfig`.
        tasks: Inspect tasks, as `pkg/name` or `file.py@task`; where they are named, our suites only if they are too.
        questions: instead of those of the config: a file, of which `split` is asked, or rows or `Question`s as
            `load_questions` takes them, which are all asked.
        out: folder of logs and results; by default the run directory, or `runs/eval-<target>`.
        label: name in the report: by default the run's method; without a run, "base" without an adapter and "trained"
            with one.
        dtype: to load the target in; by default that of the run, of earlier results in `out`, or the faster one here.
        resume: do not ask for replies that are in `out`, of the same weights, settings and prompts; `tasks` are always
            asked again.
        overwrite: replace results in `out` of other weights, or of the same suites on other questions or with other
            sampling.
        progress: as of `train`.
        settings: of `EvalConfig`, such as n_questions; an Inspect task takes few of them.

    Raises:
        ConfigError: an unknown setting, or a value out of range.
        EvaluationError: an unknown suite or task, a setting that a task does not take, a judge of a suite that is not
            evaluated, a run without weights, or `out` holds results that only `overwrite` replaces.
        DataError: suites lack data; raised before a model is loaded.
        RunError: `out` cannot be written to; raised before a model is loaded.
    """
    from opct.data.questions import load_questions
    from opct.evals.inspect_runner import run_task
    from opct.evals.run import about_run, evaluate_suites, make_tasks, set_aside_others, write_results
    from opct.evals.same_questions import refuse_other_questions, refuse_other_weights
    from opct.evals.target import default_out
    from opct.runs.io import check_writable
    from opct.runs.run_dir import RunDir

    assert progress is not None
    config, tasks = _eval_config(config, settings), [tasks] if isinstance(tasks, str) else tasks
    with_suites = not tasks or "suites" in config.model_fields_set
    options = _task_options(config, tasks) if tasks else {}
    if isinstance(questions, str | Path):
        config, questions = config.model_copy(update={"questions": str(questions)}), None
    loaded_questions = None if questions is None else load_questions(questions, config.columns, seed=config.seed)
    made = make_tasks(config, loaded_questions) if with_suites else []  # faults are raised before a model loads
    result = EvalResult(Path(out) if out is not None else default_out(target))
    if not overwrite:
        refuse_other_questions(result.out, made)
    judge = None if config.judge is None else open_judge(config.judge, config.suites)
    run = RunDir(result.out)
    # before the model: replies of an hour would have no place to go
    for folder in (run.path, run.evals_dir):
        check_writable(folder, "--out")
    policy, about = _opened(target, config, dtype, result.out, made, progress)
    about["label"] = label or about["label"]
    measured = about_run(run, policy, about)
    if not overwrite:
        refuse_other_weights(result.out, measured)
    if made:
        result.results = evaluate_suites(
            policy, config, tasks=made, out_dir=result.out, resume=resume, progress=progress, **about
        )
    for task in tasks:
        result.tasks[task] = run_task(
            policy, task, config, progress=progress, out_dir=result.out, run=measured, overwrite=overwrite, **options
        )
        with run.results_lock():
            show_warnings(set_aside_others(run, measured, ())[1], progress)
    if judge is not None:
        _apply_judge(*judge, result.out, progress)
    if tasks or judge:
        # after tasks and judge, whose gradings are read from the logs
        results = write_results(run)
        result.results = results if made else None
    return result


def _eval_config(config: EvalConfig | Mapping[str, Any] | None, settings: Mapping[str, Any]) -> EvalConfig:
    given = as_settings(EvalConfig, config or {})
    # set fields alone: `evaluate` tells suites that were asked for from the default ones by them
    return load_settings(EvalConfig, base={**given.model_dump(include=given.model_fields_set), **settings})


def _opened(
    target: str | Path | Policy,
    config: EvalConfig,
    dtype: str | None,
    out: Path,
    tasks: Sequence[Task],
    progress: Progress,
) -> tuple[Policy | Model, About]:
    """The model to evaluate, after the self-test on the prompts of its tasks, and its metadata for the results."""
    from opct.evals.run import prompts_of
    from opct.evals.target import describe_target, is_inspect_model, open_target, pinned
    from opct.models.self_test import self_test

    if is_inspect_model(target):
        return _open_inspect_model(str(target), config, dtype)
    target = pinned(target)
    policy = open_target(target, dtype, out, progress, **config.model_settings)
    about = describe_target(target, policy)
    if warnings := show_warnings(self_test(policy, prompts_of(tasks)), progress):
        about["warnings"] = [*about.get("warnings", ()), *warnings]
    return policy, about


def _open_inspect_model(target: str, config: EvalConfig, dtype: str | None) -> tuple[Model, About]:
    """A model of Inspect, and its metadata for the results: its label is its name without the provider."""
    from opct.evals.endpoint import open_model
    from opct.evals.target import INSPECT_MODEL

    if dtype is not None or config.model_settings != {"trust_remote_code": False}:
        raise EvaluationError(
            f"{target} is not loaded by opct: leave dtype, quantization, trust_remote_code, thinking_tags and "
            "chat_template_kwargs out."
        )
    model, name, address = open_model(target.removeprefix(INSPECT_MODEL), None, {}, what="The model", is_target=True)
    label = name.partition("@")[0].rpartition("/")[2]
    return model, {"label": label, "weights": {"model": name, **address}, "trained_texts": None}


def open_judge(config: JudgeConfig, suites: Sequence[str]) -> tuple[LLMJudge, str]:
    """The judge, and the axis that it is for. Raises EvaluationError where there is no such judge, model or suite."""
    from opct.evals.judges.apply import axis_judged
    from opct.evals.judges.llm import load_judge

    judge = load_judge(config)
    return judge, axis_judged(judge.identity, suites)


def _apply_judge(judge: LLMJudge, axis: str, out: Path, progress: Progress) -> None:
    from opct.evals.judges.apply import judge_run, read_logs, requests_of
    from opct.runs.run_dir import RunDir

    progress.log(f"judge: {judge.identity.describe()}")
    progress.log(f"usage: {judge.estimate(requests_of(read_logs(out), axis))}")
    judge_run(RunDir(out), axis, judge, progress)


def _task_options(config: EvalConfig, tasks: Sequence[str]) -> dict[str, Any]:
    """Options of `run_task` from the settings; refuses those that it lacks, and tasks that do not exist."""
    from opct.evals.inspect_runner import check_task

    given = config.model_fields_set - {"suites", *OF_MODEL}
    unknown = sorted(given - set(TASK_SETTINGS))
    if unknown:
        raise EvaluationError(
            f"The setting {unknown[0]} applies only to our own suites; an Inspect task takes "
            f"{', '.join(TASK_SETTINGS)}."
        )
    for task in tasks:
        check_task(task)
    return {option: getattr(config, name) for name, option in TASK_OPTIONS.items() if name in given}
