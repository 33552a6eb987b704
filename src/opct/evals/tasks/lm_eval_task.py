"""Any task of lm-eval as an Inspect task: its prompts, its filters and its metrics, asked through Inspect's model.

lm-eval builds each request (`construct_requests`), filters the answers and scores them (`process_results`). Inspect
does the rest: sampling, batches, logs. So a score is that of `lm_eval --apply_chat_template
--fewshot_as_multiturn`, with one difference: the few-shot examples are drawn once for a task and not for each question,
so that a question has the same prompt in any subset, and the examples are computed once for many questions.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from inspect_ai import Task
from inspect_ai.model import GenerateConfig, ModelOutput, get_model
from inspect_ai.scorer import Score, Scorer, Target, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver

from opct.data.pairs import Prompt
from opct.data.questions import first_items
from opct.data.tables import hub_or_cache
from opct.errors import DataError, EvaluationError, LibraryErrors, unknown
from opct.evals.config import EvalConfig
from opct.evals.graders.short_answer import Verdict
from opct.evals.samples import CAPABILITY, INSPECT
from opct.evals.tasks.common import (
    EvalSample,
    as_chat,
    as_score,
    clustered,
    make_task,
    option_logprobs,
    stopped_early,
    without_reasoning,
)

MAX_TOKENS = 256
"""lm-eval's default for the longest reply, in tokens."""
IS_CORRECT, IS_EXTRACTED = "is_correct", "is_extracted"
INVALID = "[invalid]"
"""Output of lm-eval's filters for a reply without an answer."""
COUNT = "/n"
"""Suffix of the number of values that a sample's metric is the mean of, if there are several."""
EXAMPLES_SEED = 1234
"""lm-eval's seed: the examples are those that it shows the first question of a task."""
ASKED_SPLIT = ""
"""Placeholder for the test split of a task."""
SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")
Splits = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Question:
    """One question of a task, with lm-eval's requests; `id` is lm-eval's `doc_hash`."""

    task: Any
    doc: Mapping[str, Any]
    id: str
    requests: tuple[Any, ...] = ()

    @property
    def prompt(self) -> Prompt:
        return _prompt(self.requests[0].args[0])


def load_tasks(
    name: str,
    *,
    path: str | None = None,
    splits: Splits | None = None,
    revision: str | None = None,
    shots: int | None = None,
) -> list[Any]:
    """The tasks of lm-eval with this name: a single task, or all tasks of a group or tag.

    Args:
        path: the folder of its definition among lm-eval's tasks; reading all folders takes ten seconds.
        splits: rows by split, instead of the hub's.
        revision: of the hub's data set.
        shots: examples in each prompt; by default the number in lm-eval's task.

    Raises:
        EvaluationError: lm-eval is not installed, has no such task, or the task is of an unsupported type.
        DataError: the data cannot be loaded.
    """
    manager = _manager(path)
    if name not in manager.task_index:
        raise EvaluationError(unknown("lm-eval task", name, manager.all_tasks))
    spec: Any = name
    if splits is not None or revision is not None:
        leaves = [(leaf, manager.task_index[leaf["task"]].cfg) for leaf in _leaves(manager.task_index, name)]
        if splits is not None and len(leaves) > 1:
            # a file with few subjects of a group: a task without rows would fail to load
            leaves = [(leaf, config) for leaf, config in leaves if any(_rows_of(config, splits).values())]
        members = [leaf | _overrides(config, splits, revision, shots) for leaf, config in leaves]
        spec = {"group": "opct", "task": members}
    remedy = "Give a file with its columns: --data SUITE=FILE."
    failed = f"Cannot load the data of lm-eval's {name}"
    with _as_lm_eval_runs(), hub_or_cache(), LibraryErrors(DataError, failed, remedy):
        tasks = list(manager.load(spec)["tasks"].values())
    for task in tasks:
        if shots is not None:
            task.set_config("num_fewshot", shots)
        _check(task)
    return tasks


def lm_eval_task(
    name: str,
    tasks: Sequence[Any],
    config: EvalConfig,
    *,
    n: int | None,
    metric: str | None,
    data: str,
    max_tokens: int | None = None,
) -> Task:
    """The Inspect task `name` over questions of tasks of lm-eval.

    Args:
        n: maximum number of questions, chosen by a hash of seed and question; a smaller n gives a subset.
        metric: the metric of lm-eval that results call `accuracy`; None: each keeps lm-eval's name, on the axis of
            other Inspect tasks.
        data: where the questions came from, for the settings.
        max_tokens: longest reply; by default what lm-eval says.
    """
    axis = CAPABILITY if metric else INSPECT
    available = [question for task in tasks for question in _questions(task)]
    # the id is a hash of the question: where a data set repeats one, two samples would have the same id
    each = list({(question.task.task_name, question.id): question for question in available}.values())
    selected = [_with_requests(question) for question in first_items(each, n, config.seed)]
    items = [_item(name, question, axis) for question in selected]
    by_id = {item.id: question for item, question in zip(items, selected, strict=True)}
    limits = [int((task.config.generation_kwargs or {}).get("max_gen_toks", MAX_TOKENS)) for task in tasks]
    shots = sorted({task.config.num_fewshot or 0 for task in tasks})
    shown = ", ".join(map(str, shots)) + "-shot" + (f" with seed {EXAMPLES_SEED}" if any(shots) else "")
    return make_task(
        name,
        items,
        _scorer(by_id, metric),
        config,
        # the longest of a group: one limit holds for the whole Inspect task, and a shorter one would cut replies
        max_completion_tokens=max_tokens or max(limits),
        settings={
            "graded_by": f"lm-eval {metadata.version('lm_eval')}, {shown}, {metric or 'its metrics'}",
            "data": data,
            "n_asked": len(selected),
            "n_available": len(each),
            "n_repeated": len(available) - len(each),
        },
        solver=_answer(by_id),
    )


@cache
def _manager(path: str | None) -> Any:
    if importlib.util.find_spec("lm_eval") is None:
        raise EvaluationError("Benchmarks are lm-eval's, which is not installed: pip install 'opct[capability]'.")
    import lm_eval.tasks

    root = Path(lm_eval.tasks.__file__).parent
    return lm_eval.tasks.TaskManager(include_defaults=path is None, include_path=root / path if path else None)


def _leaves(index: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Each single task of a task, group or tag, with the settings of its groups."""
    entry = index[name]
    if entry.kind.name not in ("GROUP", "TAG"):
        return [{"task": name}]
    leaves = []
    for member in entry.cfg["task"] if entry.kind.name == "GROUP" else sorted(entry.tags):
        spec = dict(member) if isinstance(member, Mapping) else {"task": member}
        below = _leaves(index, spec.get("task") or spec["group"])
        leaves += [{key: value for key, value in spec.items() if key != "group"} | leaf for leaf in below]
    return leaves


def _overrides(
    config: Mapping[str, Any], splits: Splits | None, revision: str | None, shots: int | None
) -> dict[str, Any]:
    """Settings with which a task reads these rows, or this revision."""
    if splits is None:
        return {"dataset_kwargs": {**(config.get("dataset_kwargs") or {}), "revision": revision}}
    name, of_test = config["task"], str(config.get("test_split") or config.get("validation_split"))
    splits = {key or of_test: rows for key, rows in splits.items()}
    if not splits.get(of_test):
        raise DataError(f"The data of {name} has no rows of its split {of_test}: give a file with them.")
    # None for a split without rows: lm-eval would look it up in the data set, and fail
    split_names: dict[str, Any] = {key: config[key] if config.get(key) in splits else None for key in SPLITS}
    examples = split_names["fewshot_split"] or split_names["training_split"]
    if shots is None:
        shots = config.get("num_fewshot") or 0
    if shots and not examples and "samples" not in (config.get("fewshot_config") or {}):
        wanted = config.get("fewshot_split") or config.get("training_split") or "training"
        raise DataError(
            f"{name} shows {shots} examples of its split {wanted}, which is missing: add it, or set shots=0."
        )
    rows = _rows_of(config, splits)

    def dataset(**_: Any) -> Any:
        import datasets

        return datasets.DatasetDict({key: datasets.Dataset.from_list(list(given)) for key, given in rows.items()})

    return {**split_names, "custom_dataset": dataset, "dataset_kwargs": {}}


def _rows_of(config: Mapping[str, Any], splits: Splits) -> dict[str, list[Any]]:
    """The rows of one task of a group; a column `subject` names the task."""
    part = config.get("dataset_name")
    return {split: [row for row in rows if row.get("subject", part) == part] for split, rows in splits.items()}


@contextlib.contextmanager
def _as_lm_eval_runs() -> Iterator[None]:
    """Seed Python's generator as lm-eval does, for tasks that shuffle their options, and hide lm-eval's warnings."""
    import datasets

    state, log = random.getstate(), logging.getLogger("lm_eval")
    level, had_bars = log.level, datasets.is_progress_bar_enabled()
    # 0 is lm-eval's: GPQA shuffles its options while it loads, and another order gives another score
    random.seed(0)
    log.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        # what the caller draws next must not depend on whether a benchmark was loaded
        random.setstate(state)
        if had_bars:
            datasets.enable_progress_bars()
        log.setLevel(level)


def _check(task: Any) -> None:
    is_known = task.OUTPUT_TYPE in ("multiple_choice", "loglikelihood", "generate_until") and hasattr(task, "config")
    # refused, not run: with one reply in place of several the score would not be lm-eval's
    if not is_known or task.config.repeats > 1 or "acc_mutual_info" in task.aggregation():
        raise EvaluationError(
            f"{task.task_name} (type {task.OUTPUT_TYPE}) needs several answers to a prompt, or likelihoods without a "
            "prompt, which is not supported: choose another task."
        )


def _questions(task: Any) -> Iterator[Question]:
    from lm_eval.utils import handle_non_serializable, hash_string

    for doc in task.task_docs:
        # indent and all as lm-eval writes it: the hash of this text is its `doc_hash`
        text = json.dumps(doc, indent=2, default=handle_non_serializable, ensure_ascii=False)
        yield Question(task, doc, hash_string(text)[:16])


def _with_requests(question: Question) -> Question:
    task, doc = question.task, question.doc
    # before every question: the generator moves on with each context, and the examples would differ by question
    task.set_fewshot_seed(EXAMPLES_SEED)
    context = task.fewshot_context(
        doc=doc,
        num_fewshot=task.config.num_fewshot or 0,
        apply_chat_template=True,
        fewshot_as_multiturn=True,
        chat_template=_as_json,
        gen_prefix=task.doc_to_prefix(doc),
    )
    requests = task.construct_requests(
        doc=doc, ctx=context, metadata=(task.task_name, 0, 1), apply_chat_template=True, chat_template=_as_json
    )
    return Question(task, doc, question.id, tuple(requests if isinstance(requests, list) else [requests]))


def _as_json(messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
    """In place of a chat template: lm-eval's contexts become messages, which the policy renders itself."""
    return json.dumps(list(messages))


def _prompt(context: str) -> Prompt:
    return tuple({"role": message["role"], "content": message["content"]} for message in json.loads(context))


def _item(name: str, question: Question, axis: str) -> EvalSample:
    answer = question.task.doc_to_target(question.doc)
    return EvalSample(
        task=name,
        axis=axis,
        family=question.task.task_name,
        family_split=axis,
        cluster=question.id,
        prompt=question.prompt,
        teacher_prompt=question.prompt,
        grading={"answer": str(answer), "options": [request.args[1] for request in question.requests]},
    )


def _answer(questions: Mapping[str, Question]) -> Solver:
    """Generates a reply, or computes the likelihoods of the continuations; these are in the sample's `store`."""

    @solver(name="lm_eval_requests")
    def build() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            question = questions[str(state.sample_id)]
            state.messages = as_chat(question.prompt)
            if question.task.OUTPUT_TYPE == "generate_until":
                until = question.requests[0].args[1].get("until") or []
                # a text: list("abc") would stop at each of its letters
                stops = [until] if isinstance(until, str) else list(until)
                return without_reasoning(await generate(state, tool_calls="none", stop_seqs=stops))
            likelihoods = await _likelihoods(question)
            best = ""
            if isinstance(likelihoods, str):
                state.store.set("unscored", likelihoods)
            else:
                state.store.set("likelihoods", likelihoods)
                # for the log alone; the score is that of `process_results`, from the likelihoods
                best = question.requests[max(range(len(likelihoods)), key=lambda i: likelihoods[i][0])].args[1]
            state.output = ModelOutput.from_content(model=str(state.model), content=best.strip())
            return state

        return solve

    return build()


async def _likelihoods(question: Question) -> list[tuple[float, bool]] | str:
    """Each continuation's log-probability and whether it is the likeliest reply of all; or why there are none."""
    contexts = list(dict.fromkeys(request.args[0] for request in question.requests))
    likelihoods: dict[tuple[str, str], tuple[float, bool]] = {}
    for context in contexts:
        prompt, options = _prompt(context), [r.args[1] for r in question.requests if r.args[0] == context]
        logprobs = await option_logprobs(prompt, options)
        if isinstance(logprobs, str):
            return logprobs
        asks_likeliest = question.task.OUTPUT_TYPE == "loglikelihood"
        for option, logprob in zip(options, logprobs, strict=True):
            likelihoods[context, option] = (logprob, asks_likeliest and await _is_likeliest(prompt, option))
    # in the order of the requests, which `process_results` counts on; two may share context and continuation
    return [likelihoods[request.args[0], request.args[1]] for request in question.requests]


async def _is_likeliest(prompt: Prompt, continuation: str) -> bool:
    """Does the greedy reply begin with these tokens?"""
    model: Any = get_model()
    wanted = list(model.api.policy.renderer.tokenizer(continuation, add_special_tokens=False)["input_ids"])
    output = await model.generate(as_chat(prompt), config=GenerateConfig(max_tokens=len(wanted), temperature=0.0))
    return bool(wanted) and list(output.metadata["token_ids"]) == wanted


def _scorer(questions: Mapping[str, Question], metric: str | None) -> Scorer:
    """lm-eval's metrics of a sample. As in lm-eval, a reply without an answer is wrong; `is_extracted` counts it.

    Metrics that lm-eval does not average over questions are left out.
    """
    keys = sorted({key for question in questions.values() for key in _keys(question.task, metric)})

    @scorer(name="lm_eval", metrics=clustered(keys))
    def build() -> Scorer:
        async def score(state: TaskState, target: Target) -> Score:
            question, reply = questions[str(state.sample_id)], state.output.completion
            stopped = stopped_early(state)
            values = None if stopped else scores_of(question, state.store.get("likelihoods") or [reply], metric)
            if values is None:
                return as_score(stopped or Verdict("unscored:grader_error"), {}, keys=keys, answer=reply)
            main = values.get(IS_CORRECT, next(iter(values.values()), 0.0))
            verdict = "correct" if main >= 0.5 else "other"
            return as_score(Verdict(verdict, verdict), values, keys=[*keys, *(set(values) - set(keys))], answer=reply)

        return score

    return build()


def _keys(task: Any, metric: str | None) -> list[str]:
    filters = [ensemble["name"] for ensemble in task.config.filter_list or [{"name": "none"}]]
    averaged = [name for name, how in task.aggregation().items() if metric or getattr(how, "__name__", "") == "mean"]
    named = [_key(name, chosen_filter) for name in averaged for chosen_filter in filters]
    return [IS_CORRECT if name == metric else name for name in named] + ([IS_EXTRACTED] if _extracts(task) else [])


def _key(metric: str, filter_name: str) -> str:
    """As lm-eval prints it: `acc`, `exact_match,strict-match`."""
    return metric if filter_name == "none" else f"{metric},{filter_name}"


def _extracts(task: Any) -> bool:
    steps = [step["function"] for ensemble in task.config.filter_list or [] for step in ensemble["filter"]]
    return any("regex" in step for step in steps)


def scores_of(question: Question, answers: Sequence[Any], metric: str | None) -> dict[str, float] | None:
    """lm-eval's metrics of one question, by name; None where lm-eval fails at this reply.

    Args:
        answers: the reply to each request, or its likelihood.
        metric: the one that results call `accuracy`; its filter decides whether an answer was extracted.
    """
    task, requests = question.task, list(question.requests)
    # no await from here to `process_results`: the task is shared by samples that are scored at the same time
    for request, answer in zip(requests, answers, strict=True):
        request.resps = [tuple(answer) if isinstance(answer, list) else answer]
    task._instances = requests  # what `apply_filters` works on; lm-eval has no setter
    task.apply_filters()
    values: dict[str, float] = {}
    for filter_name in requests[0].filtered_resps:
        filtered = [request.filtered_resps[filter_name] for request in requests]
        try:
            metrics = task.process_results(question.doc, filtered)
        except (ValueError, TypeError, KeyError, IndexError, ArithmeticError, RecursionError, re.error):
            return None
        for name, value in metrics.items():
            key = _key(name, filter_name)
            is_main = key == metric
            values |= _numbers(IS_CORRECT if is_main else key, value, task.aggregation().get(name))
            if _extracts(task) and (is_main or IS_EXTRACTED not in values):
                values[IS_EXTRACTED] = float(filtered[0] != INVALID)
    return values if metric else {key: value for key, value in values.items() if not key.endswith(COUNT)}


def _numbers(name: str, value: Any, aggregation: Any) -> dict[str, float]:
    """A metric of one sample as a number; for several values their mean, and their number as `name/n`."""
    if isinstance(value, list) and value:
        return {name: sum(map(float, value)) / len(value), name + COUNT: float(len(value))}
    if getattr(aggregation, "__name__", "") != "mean" or isinstance(value, list | tuple | str):
        return {}
    return {name: float(value)}
