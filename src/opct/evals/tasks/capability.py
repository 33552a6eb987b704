"""Capability: what the model could do before, on public benchmarks with their published prompts and metrics.

MMLU, TruthfulQA, CommonsenseQA, GPQA, GSM8K and IFEval are lm-eval's, and so is every other task by its name
(`lm-eval:arc_easy`). MATH-500 is graded by Inspect's `math()`. None of the data is shipped: it comes from the given
file or folder, else from the folder in `OPCT_CAPABILITY_DATA`, else from the hub at a pinned revision.

GPQA's authors ask that examples are not shown in plain text online: keep its logs to yourself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from inspect_ai import Task
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, math, scorer
from inspect_ai.solver import TaskState

from opct.data.pairs import Prompt
from opct.data.questions import first_items
from opct.data.tables import hub_or_cache, parse_rows, read_rows, refuse
from opct.errors import DataError, EvaluationError, LibraryErrors
from opct.evals.config import EvalConfig
from opct.evals.graders.short_answer import Verdict
from opct.evals.samples import CAPABILITY
from opct.evals.tasks.common import EvalSample, as_score, clustered, make_task, stopped_early
from opct.evals.tasks.lm_eval_task import ASKED_SPLIT, IS_CORRECT, IS_EXTRACTED, lm_eval_task, load_tasks
from opct.runs.io import file_sha256

DATA_FOLDER = "OPCT_CAPABILITY_DATA"
LM_EVAL = "lm-eval:"
"""Prefix of a suite that is a task of lm-eval."""
MATH500 = "math500"
MATH_TIMEOUT_S = 10.0  # for a reply, since busy cores delay it: the slowest of 1,800 took 0.7 s on a quiet one
MATH_TEMPLATE = "{problem}\n\nSolve this step by step. Put the final answer in \\boxed{{}}."
MATH_TOKENS = 1024
MATH_KEYS = (IS_CORRECT, IS_EXTRACTED)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of lm-eval.

    Attributes:
        task: lm-eval's name of it, `path` the folder of its definition.
        metric: as lm-eval prints it; results call it `accuracy`.
        files: names of local files by split, also with `.gz`; the first split is asked. A file may have all splits,
            in a column `split`.
        revision: of the hub's data set.
        convert: from the authors' rows to the hub's.
    """

    task: str
    path: str | None = None
    metric: str | None = None
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    revision: str | None = None
    convert: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict


def truthfulqa_targets(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of the authors' TruthfulQA.csv with the options of lm-eval: every right and every wrong answer."""
    if "Question" not in row:
        return row
    right, wrong = (
        list(dict.fromkeys(part.strip() for part in str(row.get(name) or "").split(";") if part.strip()))
        for name in ("Correct Answers", "Incorrect Answers")
    )
    best = str(row.get("Best Answer") or "").strip()
    return {
        "question": row["Question"],
        # the right one first, as on the hub: lm-eval scores mc1 by the index 0
        "mc1_targets": {"choices": [best, *wrong], "labels": [1] + [0] * len(wrong)},
        "mc2_targets": {"choices": [*right, *wrong], "labels": [1] * len(right) + [0] * len(wrong)},
    }


LM_EVAL_BENCHMARKS = {
    "gsm8k": Benchmark(
        "gsm8k", "gsm8k", "exact_match,flexible-extract",
        {"test": ("gsm8k_test.jsonl", "gsm8k.jsonl"), "train": ("gsm8k_train.jsonl",)},
        "740312add88f781978c0658806c59bc2815b9866",
    ),
    "mmlu": Benchmark(
        "mmlu", "mmlu/default", "acc",
        {"test": ("mmlu_test.jsonl", "mmlu.jsonl", "mmlu_dev_val_test.jsonl"), "dev": ("mmlu_dev.jsonl",)},
        "c30699e8356da336a370243923dbaf21066bb9fe",
    ),
    "truthfulqa": Benchmark(
        "truthfulqa_mc2", "truthfulqa", "acc",
        {"validation": ("TruthfulQA.csv", "truthfulqa.csv")},
        "741b8276f2d1982aa3d5b832d3ee81ed3b896490", truthfulqa_targets,
    ),
    "commonsenseqa": Benchmark(
        "commonsense_qa", "commonsense_qa", "acc",
        {"validation": ("commonsenseqa_val.jsonl", "commonsenseqa.jsonl"), "train": ("commonsenseqa_train.jsonl",)},
        "94630fe30dad47192a8546eb75f094926d47e155",
    ),
    "gpqa": Benchmark(
        "gpqa_diamond_zeroshot", "gpqa/zeroshot", "acc",
        {"train": ("gpqa_diamond.csv", "gpqa.csv")}, "633f5ee89ab8ad4522a9f850766b73f62147ffdd",
    ),
    "ifeval": Benchmark(
        "ifeval", "ifeval", "prompt_level_strict_acc",
        {"train": ("ifeval_input_data.jsonl", "ifeval.jsonl")}, "966cd89545d6b6acfd7638bc708b98261ca58e84",
    ),
}  # fmt: skip
BENCHMARKS = (MATH500, *LM_EVAL_BENCHMARKS)


# Of a benchmark in a suite: at most so many questions, and tokens of a reply; None: all, and the benchmark's own limit.
Part = tuple[int | None, int | None]
CAPABILITY_SUITES: dict[str, dict[str, Part]] = {
    "capability-fast": {
        MATH500: (50, 256),
        "gsm8k": (80, None),
        "mmlu": (200, None),
        "truthfulqa": (200, None),
        "commonsenseqa": (300, None),
        "ifeval": (60, 256),
    },
    "capability": dict.fromkeys(BENCHMARKS, (None, None)),
}


def is_benchmark(name: str) -> bool:
    return name in BENCHMARKS or name.startswith(LM_EVAL)


def parts_of(names: Sequence[str]) -> dict[str, Part]:
    """How much of each benchmark is asked by `capability` or `capability-fast`, by benchmark; of both, the first."""
    parts: dict[str, Part] = {}
    for name in reversed(names):
        parts |= CAPABILITY_SUITES.get(name, {})
    return parts


def benchmark_task(name: str, config: EvalConfig) -> Task:
    """The Inspect task of a benchmark, or of any task of lm-eval (`lm-eval:NAME`). Raises EvaluationError where a
    package is missing, or there is no such task; DataError where the data is missing or faulty."""
    n, limit = (config.n_questions if config.n_problems is None else config.n_problems), None
    if part := parts_of(config.suites).get(name):
        size, limit = part
        # an explicit number overrides the size in the suite
        n = min((n for n in (size, config.problem_limit) if n is not None), default=None)
    max_tokens = config.max_problem_tokens or limit
    if name == MATH500:
        return _math500(n, max_tokens or MATH_TOKENS, config)
    if name == "ifeval":
        _check_ifeval()
    known = LM_EVAL_BENCHMARKS.get(name) or Benchmark(name.removeprefix(LM_EVAL))
    splits, origin = _local_rows(name, known, config.data.get(name))
    revision = known.revision if splits is None else None
    tasks = load_tasks(known.task, path=known.path, splits=splits, revision=revision, shots=config.shots)
    data = origin or f"{tasks[0].config.dataset_path}@{revision or 'main'}"
    return lm_eval_task(name, tasks, config, n=n, metric=known.metric, data=data, max_tokens=max_tokens)


# ------------------------------------------------------------------------------------------------------- local data


def _local_rows(name: str, known: Benchmark, data: str | None) -> tuple[dict[str, list[Any]] | None, str]:
    """A benchmark's rows by split, and the name of their source; None if there is no local file."""
    # the first is the split that is asked: order in `files` matters
    split = next(iter(known.files), ASKED_SPLIT)
    file = place = Path(data) if data is not None else _data_folder() if known.files else None
    if place is not None and place.is_dir():
        asked = known.files.get(split, ())
        file = _first_file(place, asked)
        if file is None and data is not None:
            raise DataError(f"{data} has no data of {name}: it needs {' or '.join(asked) or 'a file, not a folder'}.")
    if file is None:
        return None, ""
    rows = _rows(file, name, known)
    parts = {row.get("split") for row in rows}
    by_split = {split: rows}
    if split in parts:  # else another column "split" says something else
        by_split = {part: [row for row in rows if row.get("split") == part] for part in parts}
    for other, names in known.files.items():
        more = _first_file(file.parent, names)
        if other not in by_split and more is not None:
            by_split[other] = _rows(more, name, known)
    return by_split, f"{file.name} sha256:{file_sha256(file)[:12]}"


def _data_folder() -> Path | None:
    named = os.environ.get(DATA_FOLDER)
    if named and not Path(named).is_dir():
        raise DataError(f"{DATA_FOLDER} is {named}, which is not a folder: set it to one, or unset it.")
    return Path(named) if named else None


def _first_file(folder: Path, names: Sequence[str]) -> Path | None:
    candidates = (folder / f"{name}{ending}" for name in names for ending in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def _rows(file: Path, name: str, known: Benchmark) -> list[Any]:
    rows, faults = parse_rows(read_rows(file, f"{name} question"), known.convert)
    refuse(file, faults)
    return [row for _, row in rows]


def _check_ifeval() -> None:
    """IFEval's verifier would fetch nltk's data at its import, and draws at random to tell languages."""
    try:
        import langdetect
        import nltk
    except ImportError as error:
        raise EvaluationError("IFEval's verifier is lm-eval's: pip install 'opct[capability]'.") from error
    # unseeded, the language that it tells of a short reply, and so its score, changes from run to run
    langdetect.DetectorFactory.seed = 0
    try:
        nltk.data.find("tokenizers/punkt_tab/english/")
    except LookupError as error:
        raise EvaluationError(
            "IFEval's verifier splits sentences with nltk's punkt_tab: run `python -m nltk.downloader punkt_tab`, or "
            "set NLTK_DATA to a folder that has tokenizers/punkt_tab."
        ) from error


# --------------------------------------------------------------------------------------------------------- MATH-500


def _math500(n: int | None, max_tokens: int, config: EvalConfig) -> Task:
    if importlib.util.find_spec("latex2sympy2_extended") is None:
        raise EvaluationError("Grading mathematics needs latex2sympy2-extended: pip install 'opct[capability]'.")
    known = Benchmark(MATH500, files={"test": ("math500_test.jsonl", "math500.jsonl")})
    splits, origin = _local_rows(MATH500, known, config.data.get(MATH500))
    if splits is None:
        origin = "HuggingFaceH4/MATH-500@6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"
    items = [_math_item(row, origin) for row in (_hub_rows(*origin.split("@")) if splits is None else splits["test"])]
    selected = first_items(items, n, config.seed, attrgetter("cluster"))
    return make_task(
        MATH500,
        selected,
        math_scorer(),
        config,
        max_completion_tokens=max_tokens,
        settings={
            "graded_by": "Inspect's math()",
            "prompt_hash": hashlib.sha256(MATH_TEMPLATE.encode()).hexdigest()[:12],
            "data": origin,
            "n_asked": len(selected),
            "n_available": len(items),
        },
    )


def _hub_rows(name: str, revision: str) -> list[Any]:
    remedy = f"Give a file (--data math500=FILE), or a folder that has math500_test.jsonl in {DATA_FOLDER}."
    with LibraryErrors(DataError, f"Cannot fetch {name}", remedy):
        import datasets

        with hub_or_cache():
            return list(datasets.load_dataset(name, split="test", revision=revision))


def _math_item(row: Mapping[str, Any], origin: str) -> EvalSample:
    # `or` would take the number 0 for a missing answer
    given = [row[name] for name in ("answer", "correct_answer") if row.get(name) not in (None, "")]
    problem = row.get("problem")
    if not problem or not given:
        raise DataError(f"{origin}: a row has no problem or no answer: {dict(row)!r:.200}")
    prompt: Prompt = ({"role": "user", "content": MATH_TEMPLATE.format(problem=problem)},)
    return EvalSample(
        task=MATH500,
        axis=CAPABILITY,
        family=str(row.get("subject") or "test"),
        family_split=CAPABILITY,
        cluster=str(row.get("unique_id") or hashlib.sha256(str(problem).encode()).hexdigest()[:16]),
        prompt=prompt,
        teacher_prompt=prompt,
        grading={"answer": str(given[0])},
    )


@scorer(metrics=clustered(MATH_KEYS))
def math_scorer() -> Scorer:
    """Inspect's `math()`: a reply without an answer that can be read is wrong, one that takes too long is unscored;
    `is_extracted` counts `\\boxed`."""
    grade = math(timeout=MATH_TIMEOUT_S)

    async def score(state: TaskState, target: Target) -> Score:
        reply, stopped = state.output.completion, stopped_early(state)
        if stopped:
            return as_score(stopped, {}, keys=MATH_KEYS, answer=reply)
        try:
            score = await grade(state, Target(f"${state.metadata['grading']['answer']}$"))
        except ValueError as error:  # its own kinds: a later expression of the reply (\gcd, ...) that it does not read
            if type(error) is ValueError:  # it cannot read the right answer
                raise
            score = Score(value=INCORRECT)  # as where it reads that expression first
        except (ArithmeticError, NotImplementedError, TypeError):  # of sympy: it cannot compare the two
            return as_score(Verdict("unscored:grader_error"), {}, keys=MATH_KEYS, answer=reply)
        if score is None or (score.metadata or {}).get("math_scorer_status") in ("target_timeout", "answer_timeout"):
            return as_score(Verdict("unscored:grader_timeout"), {}, keys=MATH_KEYS, answer=reply)
        is_right = score.value == CORRECT
        # `math()` takes something from nearly any reply, so what counts is whether the answer stands where it was asked
        values = {IS_CORRECT: float(is_right), IS_EXTRACTED: float("\\boxed" in reply)}
        verdict = "correct" if is_right else "other"
        return as_score(Verdict(verdict, verdict), values, keys=MATH_KEYS, answer=str(score.answer or ""))

    return score
