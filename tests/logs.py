"""Evaluations of made-up samples, written as Inspect's logs without running Inspect."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalResults, EvalSample, EvalSpec, write_eval_log
from inspect_ai.model import ChatMessageAssistant, ModelOutput, ModelUsage
from inspect_ai.scorer import Score

from opct.evals.logs import JUDGE, KL, OPCT, STOP_REASONS
from opct.evals.run import write_results
from opct.evals.samples import JUDGED, PARSED, GradedSample, graded_name
from opct.evals.tasks.common import as_chat
from opct.runs.run_dir import RunDir

STOPS = {ours: theirs for theirs, ours in STOP_REASONS.items()}
KL_VALUES = ("kl_to_base", "kl_to_teacher")


def write_evaluation(
    folder: Path,
    samples: Sequence[GradedSample],
    *,
    run: Mapping[str, Any] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    judges: Mapping[str, Mapping[str, Any]] | None = None,
    warnings: Sequence[str] = (),
    **more: Any,
) -> dict[str, Any]:
    """Write `evals/<suite>.eval`, one a suite, and `results.json`; returns what the latter holds.

    Samples of `<suite>_parsed` and `<suite>_judged` become scores of the samples of their suite.

    Args:
        settings: by suite, of its task.
        judges: by judged suite, what its rows say of the judge.
        more: of the settings of the whole evaluation.
    """
    (folder / "evals").mkdir(parents=True, exist_ok=True)
    about = {"run": {"name": folder.name, "label": "base", "model": "tiny", **(run or {})}, "settings": dict(more)}
    graded = {sample.id: sample for sample in samples}
    for suite in dict.fromkeys(sample.task.removesuffix(f"_{sample.graded_by}") for sample in samples):
        own = {OPCT: {**about, "warnings": list(warnings)}}
        if judges and graded_name(suite, JUDGED) in judges:
            own[OPCT]["judges"] = {f"{JUDGE}made": dict(judges[graded_name(suite, JUDGED)])}
        single = [sample for sample in samples if sample.task == suite]
        log = as_log(suite, single, {**(settings or {}).get(suite, {}), **own}, about["run"]["model"], graded)
        write_eval_log(log, str(folder / "evals" / f"{suite}.eval"))
    return write_results(RunDir(folder))


def as_log(
    task: str, samples: Sequence[GradedSample], metadata: dict[str, Any], model: str, graded: Mapping[str, GradedSample]
) -> EvalLog:
    """A finished log of one suite."""
    spec = EvalSpec(
        created="2026-01-01T00:00:00+00:00",
        task=task,
        model=f"none/{model}",
        dataset=EvalDataset(name=task, samples=len(samples)),
        config=EvalConfig(),
        metadata=metadata,
    )
    results = EvalResults(total_samples=len(samples), completed_samples=len(samples))
    return EvalLog(
        status="success", eval=spec, results=results, samples=[_log_sample(sample, graded) for sample in samples]
    )


def _log_sample(sample: GradedSample, graded: Mapping[str, GradedSample]) -> EvalSample:
    output = ModelOutput.from_content("tiny", sample.completion, stop_reason=STOPS[sample.stop_reason])
    output.usage = ModelUsage(output_tokens=sample.completion_tokens)
    output.metadata = {"token_ids": list(sample.token_ids)}
    prompt = as_chat(list(sample.prompt))
    names = ("task", "axis", "family", "family_split", "side", "cluster", "grading")
    asked = {name: getattr(sample, name) for name in names} | {"id": sample.id}
    return EvalSample(
        id=sample.id,
        epoch=1,
        input=prompt,
        target="",
        messages=[*prompt, ChatMessageAssistant(content=sample.completion)],
        output=output,
        metadata=asked | {"teacher_prompt": list(sample.teacher_prompt)},
        scores=_scores(sample, graded),
    )


def _scores(sample: GradedSample, graded: Mapping[str, GradedSample]) -> dict[str, Score]:
    second = {
        by: graded.get(graded_name(sample.task, by) + sample.id.removeprefix(sample.task)) for by in (PARSED, JUDGED)
    }
    values = {name: value for name, value in sample.values.items() if name not in KL_VALUES}
    metadata = {"verdict": sample.verdict, "answer_key": sample.answer_key, "reasons": sample.reasons}
    parsed, judged = second[PARSED], second[JUDGED]
    if parsed is not None:
        values |= {f"parsed_{name}": value for name, value in parsed.values.items()}
        metadata["parsed"] = {"verdict": parsed.verdict, "answer_key": parsed.answer_key}
    scores = {"grader": _score(values, metadata)}
    kl = {name: sample.values[name] for name in KL_VALUES if name in sample.values}
    if kl or sample.kl:
        scores[KL] = _score(kl, {"tokens": sample.tokens, "kl": sample.kl, "likeliest": sample.likeliest})
    if judged is not None:
        scores[f"{JUDGE}made"] = _score(judged.values, {"verdict": judged.verdict})
    return scores


def _score(values: Mapping[str, float | None], metadata: dict[str, Any]) -> Score:
    numbers = {name: float("nan") if value is None else float(value) for name, value in values.items()}
    return Score(value=numbers, metadata=metadata)
