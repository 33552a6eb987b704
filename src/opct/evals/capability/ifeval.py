"""IFEval: instructions that a rule can check. Zhou et al. 2023, arXiv 2311.07911; verified by lm-eval.

An empty reply follows no instruction, as lm-eval counts it: it is scored, or saying nothing would raise a score.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import partial
from typing import Any

from inspect_ai import Task, task
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import TaskState

from opct.data.tables import RowFault
from opct.evals.capability.asking import KEYS, Problem, capability_score, capability_task
from opct.evals.capability.sources import Source, load_rows, parse_rows, text_of
from opct.evals.graders.ifeval import INSTRUCTIONS, Followed, check_verifier, followed
from opct.evals.graders.short_answer import Verdict
from opct.evals.tasks.common import stopped_early

IFEVAL = "ifeval"
TEMPLATE = "{prompt}"
GRADED_BY = "lm-eval's verifier of instructions (rules)"
NOTHING_SAID = "wrong:empty"
IFEVAL_KEYS = (*KEYS, "is_correct_loose", "n_instructions", "n_followed_strict", "n_followed_loose")
SOURCE = Source(
    name=IFEVAL,
    columns={
        "prompt": ("prompt",),
        "instructions": ("instruction_id_list",),
        "arguments": ("kwargs",),
        "key": ("key",),
    },
    files=("ifeval_input_data.jsonl", "ifeval.jsonl"),
    hub="google/IFEval",
    split="train",
    revision="966cd89545d6b6acfd7638bc708b98261ca58e84",
)


@task
def ifeval(
    n: int | None = None,
    data: str | None = None,
    seed: int = 0,
    max_completion_tokens: int = 1280,
    greedy: bool = True,
) -> Task:
    """IFEval, zero-shot; graded by lm-eval's verifier."""
    check_verifier()
    rows = load_rows(SOURCE, data)
    return capability_task(
        IFEVAL,
        parse_rows(SOURCE, rows, _problem),
        ifeval_scorer(),
        template=TEMPLATE,
        origin=rows.origin,
        graded_by=GRADED_BY,
        n=n,
        seed=seed,
        max_completion_tokens=max_completion_tokens,
        greedy=greedy,
    )


def _problem(row: Mapping[str, Any]) -> Problem:
    prompt, names, arguments = text_of(row, "prompt"), row.get("instructions"), row.get("arguments")
    if not isinstance(names, list) or not isinstance(arguments, list) or not names or len(names) != len(arguments):
        raise RowFault(f"instructions {names!r} and arguments {arguments!r}: they must be lists of one length")
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise RowFault(f"instruction {wrong[0]!r} is no text: it must be a name, as {next(iter(INSTRUCTIONS))!r}")
    given = [_given(name, each) for name, each in zip(names, arguments, strict=True)]
    if row.get("key") is None:
        raise RowFault("the key is missing: it must be a number or text that no other row has")
    return Problem(
        id=str(row["key"]),
        family=names[0].partition(":")[0],
        text=TEMPLATE.format(prompt=prompt),
        grading={"prompt": prompt, "instructions": names, "arguments": given},
    )


def _given(name: str, arguments: Any) -> dict[str, Any]:
    """The arguments of one instruction that are set; the hub's rows have all names, most of them null."""
    if name not in INSTRUCTIONS:
        close = difflib.get_close_matches(name, INSTRUCTIONS, n=1)
        raise RowFault(f"unknown instruction {name!r}{f': did you mean {close[0]!r}?' if close else ''}")
    if not isinstance(arguments, Mapping | None):
        raise RowFault(f"arguments {arguments!r} of {name!r}: they must be an object of names and values, or null")
    given = {key: value for key, value in (arguments or {}).items() if value is not None}
    missing = [key for key in INSTRUCTIONS[name] if not given.get(key)]
    if missing:
        raise RowFault(f"instruction {name!r} has no {', '.join(missing)}: the verifier would draw it at random")
    return {key: _whole(given[key]) for key in INSTRUCTIONS[name]}


def _whole(value: Any) -> Any:
    """3.0 as 3: a table with empty cells turns counts into floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


@scorer(metrics={key: [mean(), stderr(cluster="cluster")] for key in IFEVAL_KEYS})
def ifeval_scorer() -> Scorer:
    """Verify every instruction of a prompt: `is_correct` where the reply as it is follows them all.

    `is_extracted` is 0 of an empty reply and 1 of any other.
    """

    async def score(state: TaskState, target: Target) -> Score:
        import anyio.to_thread

        reply, stopped = state.output.completion, stopped_early(state)
        if stopped:
            return capability_score(Verdict(f"unscored:{stopped}"), reply, keys=IFEVAL_KEYS)
        asked = state.metadata["grading"]
        if not reply.strip():
            return capability_score(Verdict("other", NOTHING_SAID), reply, _of_nothing(asked), IFEVAL_KEYS)
        verify = partial(followed, asked["prompt"], asked["instructions"], asked["arguments"], reply)
        found = await anyio.to_thread.run_sync(verify)
        if found is None:
            return capability_score(Verdict("unscored:grader_error"), reply, keys=IFEVAL_KEYS)
        verdict = Verdict("correct", "correct") if all(found.strict) else Verdict("other", _broken(asked, found))
        return capability_score(verdict, reply, _values(found), IFEVAL_KEYS)

    return score


def _of_nothing(asked: Mapping[str, Any]) -> dict[str, float | None]:
    """What an empty reply scores: none of its instructions is followed, and nothing could be read."""
    none = (False,) * len(asked["instructions"])
    return {"is_extracted": 0.0, **_values(Followed(none, none))}


def _values(found: Followed) -> dict[str, float | None]:
    return {
        "is_correct_loose": float(all(found.loose)),
        "n_instructions": float(len(found.strict)),
        "n_followed_strict": float(sum(found.strict)),
        "n_followed_loose": float(sum(found.loose)),
    }


def _broken(asked: Mapping[str, Any], found: Followed) -> str:
    """The first instruction that the reply does not follow."""
    name = next(name for name, is_followed in zip(asked["instructions"], found.strict, strict=True) if not is_followed)
    return f"wrong:{name}"
