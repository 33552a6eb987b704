"""Evaluate a policy on our own suites and write it down; `run_task` does the same for any Inspect task."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from opct.data.benign import CATEGORIES, BenignRequest, builtin_benign
from opct.data.perturb.sycophancy import unknown
from opct.data.question_files import Columns
from opct.data.questions import SPLITS, Question
from opct.errors import EvaluationError
from opct.evals.any_task import check_task, run_task
from opct.evals.benign import BENIGN, PLAIN_QUESTION, benign_task
from opct.evals.inspecting import Counter, ProgressCallback, run_inspect
from opct.evals.provider import DEFAULT_BATCH_SIZE, EvaluatedPolicy
from opct.evals.results import SUITES, Record, Row, metric_rows, read_records, warnings_of
from opct.evals.sycophancy import CHOICE, CLEAN, SHORT, chosen_families, split_questions, sycophancy_task
from opct.files import read_jsonl, write_json, write_jsonl
from opct.runs import RunDir

__all__ = ["check_task", "evaluate", "known_suites", "run_task"]

SCHEMA = 1
KL_BATCH = 32
ORDER = [suite for suites in SUITES.values() for suite in suites]
"""Every suite that results can have, in their order."""


def evaluate(
    policy: EvaluatedPolicy,
    *,
    out_dir: str | Path,
    suites: Sequence[str] = (SHORT, BENIGN),
    questions: Sequence[Question] | str | Path | None = None,
    split: str = "test",
    columns: Columns | None = None,
    n_questions: int | None = 600,
    families: str | Sequence[str] = "all",
    families_per_question: int | None = 2,
    seed: int = 0,
    max_completion_tokens: int = 32,
    max_benign_tokens: int = 64,
    n_benign: int | None = None,
    greedy: bool = True,
    batch_size: int = DEFAULT_BATCH_SIZE,
    kl_samples: int = 200,
    browser_questions: int = 40,
    label: str = "",
    name: str | None = None,
    method: str | None = None,
    train_seed: int | None = None,
    weights: Mapping[str, Any] | None = None,
    trained_families: Sequence[str] = (),
    trained_questions: Sequence[str] = (),
    progress: ProgressCallback | None = None,
) -> dict[str, Any]:
    """Evaluate a policy; write `evals/*.eval`, `evals/samples.jsonl` and `results.json`; return what the last holds.

    Suites that an earlier evaluation of the same weights left there stay; those evaluated now are replaced.

    Args:
        out_dir: a run directory, or any folder.
        suites: of "sycophancy_short", "sycophancy_choice", "benign".
        questions: to evaluate on: a list of them, or a question file; by default the embedded ones.
        split: train, validation, test or all: which of the file's or of the embedded questions, and (but for all) which
            benign requests.
        columns: of the question file, where the guess is wrong; see `load_questions`.
        n_questions, families, families_per_question, seed: see `sycophancy_items`. Runs to be compared need the same.
        max_completion_tokens, max_benign_tokens: most tokens of a reply.
        n_benign: at most so many benign requests, the first of each category in turn; None for all.
        greedy: take the likeliest token each time; otherwise sample the policy itself (temperature 1).
        kl_samples: clean and benign replies, of each suite, whose KL to the base is measured.
        browser_questions: questions (and benign requests) whose replies get per-token KL in `samples.jsonl`.
        label, name, method, train_seed: what the report calls this run.
        weights: what tells these weights from others of the model: step and hashes of a checkpoint, say.
        trained_families, trained_questions: what training used; evaluating on it is a warning.
        progress: called with (done, total) as samples are finished.

    Raises:
        EvaluationError: an unknown suite, split or family, numbers out of range, or the evaluation stopped.
        DataError: a question cannot be used.
        RunError: the results could not be written.
    """
    asked, asked_name = _asked(questions, split, columns, seed)
    sizes: dict[str, Any] = {
        "n_questions": n_questions,
        "families_per_question": families_per_question,
        "seed": seed,
        "greedy": greedy,
        "max_completion_tokens": max_completion_tokens,
    }
    tasks = [
        benign_task(_benign("test" if split == "all" else split, n_benign), seed, max_benign_tokens, greedy)
        if suite == BENIGN
        else sycophancy_task(suite, asked, families=families, **sizes)
        for suite in known_suites(suites)
    ]
    run = RunDir(out_dir)
    count = Counter(progress, sum(len(task.dataset) for task in tasks))
    logs = run_inspect(tasks, policy, run.evals_dir, batch_size, count)
    records = [record for log in logs for record in read_records(log)]
    _add_kl(policy, records, kl_samples, browser_questions, count)
    shared = {"template_hash": policy.renderer.template_hash}
    by_task = {log.eval.task.split("/")[-1]: {**(log.eval.metadata or {}), **shared} for log in logs}
    settings = {"suites": list(by_task), "questions": asked_name, "families": chosen_families(families), **sizes}
    settings |= {"max_benign_tokens": max_benign_tokens, **shared}
    settings |= {"dtype": _dtype(policy), "device": str(policy.device)}
    about = _about_run(run, policy, label=label, name=name, method=method, seed=train_seed, weights=weights)
    trained_on = (trained_families, trained_questions)
    with run.results_lock():  # of two evaluations that end at once, the second one keeps the suites of the first
        earlier = _earlier_suites(run, about, suites)
        return _write(run, about, settings, earlier, records, metric_rows(records, by_task), trained_on)


def _write(
    run: RunDir,
    about: dict[str, Any],
    settings: Mapping[str, Any],
    earlier: _Earlier,
    records: Sequence[Record],
    rows: Sequence[Row],
    trained_on: tuple[Sequence[str], Sequence[str]],
) -> dict[str, Any]:
    """Samples and results of now and of the kept suites on the disk; the latter are returned."""
    samples = _sorted_by_suite([*earlier.samples, *(record.row for record in records)], "task")
    kept = [Record(sample, None, ()) for sample in earlier.samples]
    results = {
        "schema": SCHEMA,
        "run": about,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": _joined_settings(earlier, settings),
        "warnings": [
            *earlier.warnings,
            *warnings_of([*kept, *records]),
            *_trained_on_warnings(samples, *trained_on),
        ],
        "rows": _sorted_by_suite([*earlier.rows, *rows], "suite"),
    }
    write_jsonl(run.samples_path, samples)
    write_json(run.results_path, results)
    return results


def _about_run(
    run: RunDir,
    policy: EvaluatedPolicy,
    *,
    label: str,
    name: str | None,
    method: str | None,
    seed: int | None,
    weights: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What `results.json` says about the run that was measured."""
    return {
        "name": name or run.path.name,
        "label": label or method or "base",
        "model": policy.name,
        "method": method,
        "seed": seed,
        "path": str(run.path),
        "weights": None if weights is None else dict(weights),
        "dtype": _dtype(policy),
    }


def _dtype(policy: EvaluatedPolicy) -> str:
    return str(policy.dtype).removeprefix("torch.")


def _asked(
    questions: Sequence[Question] | str | Path | None, split: str, columns: Columns | None, seed: int
) -> tuple[Sequence[Question], str]:
    """The questions of a sycophancy suite, and what the settings call them."""
    if questions is None or isinstance(questions, str | Path):
        name = "builtin" if questions is None else Path(questions).name
        return split_questions(split, questions, columns, seed=seed), f"{name}:{split}"
    return questions, "given"


def known_suites(suites: Sequence[str]) -> list[str]:
    """The suites of these names, each once.

    Raises:
        EvaluationError: one is unknown, or none is named.
    """
    for suite in suites:
        if suite not in SUITES:
            raise EvaluationError(unknown("suite", suite, SUITES))
    if not suites:
        raise EvaluationError(f"No suites to evaluate: name at least one of {', '.join(SUITES)}.")
    return list(dict.fromkeys(suites))


def _benign(split: str, limit: int | None) -> list[BenignRequest]:
    if split not in SPLITS:
        raise EvaluationError(unknown("split", split, SPLITS))
    requests = builtin_benign(split)  # type: ignore[arg-type]
    place: dict[str, int] = dict.fromkeys(CATEGORIES, 0)
    order: list[tuple[int, int, BenignRequest]] = []
    for request in requests:
        order.append((place[request.category], len(order), request))
        place[request.category] += 1
    return [request for _, _, request in sorted(order, key=lambda entry: entry[:2])][:limit]


# ------------------------------------------------------------------------------------------------ earlier suites


@dataclass(frozen=True)
class _Earlier:
    """What an earlier evaluation left of the suites that are not evaluated now."""

    rows: list[Row] = field(default_factory=list)
    samples: list[Row] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def suites(self) -> list[str]:
        """The kept suites, in the order of the results."""
        return _in_order({row["suite"] for row in self.rows})


def _earlier_suites(run: RunDir, about: Mapping[str, Any], evaluated: Sequence[str]) -> _Earlier:
    """The rows and samples in a folder of suites other than those evaluated now; with other weights, only a warning.

    Args:
        about: `results["run"]` of the evaluation now.
        evaluated: the suites evaluated now.

    Raises:
        RunError: the samples cannot be read.
    """
    if not run.results_path.is_file():
        return _Earlier()
    try:
        results = json.loads(run.results_path.read_text(encoding="utf-8"))
    except ValueError:
        results = None
    if not isinstance(results, dict) or results.get("schema") != SCHEMA:
        return _Earlier(warnings=[f"The earlier {run.results_path.name} could not be read and was replaced."])
    now = {name for suite in evaluated for name in SUITES[suite]}
    rows = [row for row in results["rows"] if row["suite"] not in now]
    if not rows:
        return _Earlier()
    before = results["run"]
    measured = ("weights", "dtype") if about["weights"] else ("model", "weights", "dtype")
    unlike = [name for name in measured if before.get(name) != about[name]]
    if unlike:
        named = "; ".join(f"{name}: {_shown(before.get(name))} then, {_shown(about[name])} now" for name in unlike)
        left = ", ".join(_in_order({row["suite"] for row in rows}))
        return _Earlier(warnings=[f"Earlier results of {left} were dropped, for they are of another model ({named})."])
    samples = [sample for sample in read_jsonl(run.samples_path) if sample["task"] not in now]
    return _Earlier(rows, samples, dict(results["settings"]))


def _joined_settings(earlier: _Earlier, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of now, all suites of the results, and under "kept" what was otherwise for those that were kept."""
    if not earlier.rows:
        return dict(settings)
    kept = [suite for suite in earlier.settings["suites"] if suite in earlier.suites]
    was = {key: value for key, value in earlier.settings.items() if key not in ("suites", "kept")}
    own: dict[str, dict[str, Any]] = {}
    for suite in kept:
        full = was | earlier.settings.get("kept", {}).get(suite, {})
        unlike = {key: value for key, value in full.items() if key not in settings or settings[key] != value}
        if unlike:
            own[suite] = unlike
    return dict(settings) | {"suites": _in_order({*kept, *settings["suites"]})} | ({"kept": own} if own else {})


def _sorted_by_suite(rows: Iterable[Row], key: str) -> list[Row]:
    """Rows (`key` "suite") or samples ("task") in the order of the suites, whichever was evaluated first."""
    return sorted(rows, key=lambda row: _place(row[key]))


def _in_order(suites: Collection[str]) -> list[str]:
    """Suites in the order in which results have them."""
    return sorted(suites, key=_place)


def _place(suite: str) -> tuple[int, str]:
    return (ORDER.index(suite) if suite in ORDER else len(ORDER), suite)


def _shown(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else text[:57] + "..."


def _trained_on_warnings(samples: Sequence[Row], families: Collection[str], questions: Collection[str]) -> list[str]:
    """Where "held out" is not true of the weights that were measured.

    Args:
        families, questions: names and ids of those that training used, as the run's manifest has them.
    """
    asked = {sample["cluster"] for sample in samples}
    seen = asked & set(questions)
    shown = {sample["family"] for sample in samples if sample["family_split"] == "held_out"} & set(families)
    found = []
    if seen:
        found.append(
            f"{len(seen)} of the {len(asked)} questions were trained on: their rates do not show what holds for "
            "other questions."
        )
    if shown:
        found.append(f"Families shown as held out were trained on: {', '.join(sorted(shown))}.")
    return found


# ------------------------------------------------------------------------------------------------------------- KL


def _add_kl(
    policy: EvaluatedPolicy, records: Sequence[Record], kl_samples: int, browser_questions: int, count: Counter
) -> None:
    """Fill in KL(policy | prompt || base | teacher_prompt): means where nothing is pushed, tokens for the browser."""
    shown = _browser_subset(records, browser_questions)
    taken: dict[str, int] = {}
    wanted = []
    for record in records:
        if not record.token_ids or record.row["task"] not in (SHORT, CHOICE, BENIGN):
            continue
        plain = _is_plain(record)
        taken[record.row["task"]] = taken.get(record.row["task"], 0) + plain
        if record.row["id"] in shown or (plain and taken[record.row["task"]] <= kl_samples):
            wanted.append(record)
    count.add(len(wanted))
    plain_first = [[r for r in wanted if _is_plain(r)], [r for r in wanted if not _is_plain(r)]]
    batches = [part[i : i + KL_BATCH] for part in plain_first for i in range(0, len(part), KL_BATCH)]
    for batch in batches:  # apart, so that equal prompts are padded alike on both sides: KL of the base to itself is 0
        values = policy.token_kl(
            [tuple(record.row["prompt"]) for record in batch],
            [tuple(record.row["teacher_prompt"]) for record in batch],
            [SimpleNamespace(token_ids=record.token_ids) for record in batch],
        )
        for record, kl in zip(batch, values, strict=True):
            record.row["values"]["kl_to_base" if _is_plain(record) else "kl_to_teacher"] = sum(kl) / len(kl)
            if record.row["id"] in shown:
                record.row["tokens"] = list(policy.renderer.pieces(record.token_ids))
                record.row["kl"] = [round(float(value), 5) for value in kl]
        count.step(len(batch))


def _is_plain(record: Record) -> bool:
    """Nothing is pushed: the prompt is its own teacher prompt."""
    return record.row["family_split"] in (CLEAN, BENIGN, PLAIN_QUESTION)


def _browser_subset(records: Sequence[Record], n_clusters: int) -> set[str]:
    """The ids of all samples of the first questions of each task; the families take turns, so these show them all."""
    first: dict[str, dict[str, None]] = {}
    for record in records:
        clusters = first.setdefault(record.row["task"], {})
        if len(clusters) < n_clusters:
            clusters.setdefault(record.row["cluster"])
    return {record.row["id"] for record in records if record.row["cluster"] in first[record.row["task"]]}
