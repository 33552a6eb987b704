"""The pair of a perturbed and a clean prompt: one training row, and the only place that reads and checks pair files.

`prompt` is the perturbed prompt, which the policy answers. `teacher_prompt` is the clean prompt, after which the
teacher scores the same tokens: the same request without the biased hint or the wrapper; for safety awareness, with the
fact that the policy has to see by itself. `opct.data.perturb` makes both.

A line of a JSONL file (or a row of a table, of a Hugging Face dataset, of a DataFrame, with these columns):

    {"prompt": [{"role", "content"}, ...], "teacher_prompt": [...],
     "id": str, "axis": str, "family": str, "meta": {...}}

Only the two prompts are required. A prompt may be a string, which is one user message. Messages may be written as
ShareGPT's `from` and `value`, and their content as a list of text parts, which are joined by line ends. Without an `id`
the pair gets a hash of its prompts; `axis` and `family` are `custom` by default.

`content` may be null for an assistant turn that is followed by another turn: the policy answers that turn itself, with
its current weights, before the rollout. A teacher prompt holds no such turn. If a prompt ends with an assistant message
it is a prefill: both prompts then end with the same one.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opct.data.tables import (
    HUB,
    SURROGATE,
    Row,
    RowFault,
    Source,
    column_names,
    duplicate_ids,
    parse_rows,
    read_rows,
    refuse,
    source_name,
)
from opct.errors import DataError, shorten
from opct.runs.io import write_jsonl

Message = dict[str, str | None]
Prompt = tuple[Message, ...]
MetaFaults = Callable[[dict[str, Any]], Iterable[str]]
"""What is wrong with the `meta` of a pair, such as `opct.evals.graders.self_grading.faults_of_meta`."""


def user_prompt(text: str) -> Prompt:
    """A prompt of one user message."""
    return ({"role": "user", "content": text},)


COLUMNS = ("id", "axis", "family", "prompt", "teacher_prompt", "meta")
SIDES = ("prompt", "teacher_prompt")
ROLES = ("system", "developer", "user", "assistant", "tool", "observation")
"""Which of them a model knows is a matter of its chat template."""
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}
BUILTIN = "builtin:"
SYCOPHANCY, JAILBREAK, SAFETY_AWARENESS = "sycophancy", "jailbreak", "safety_awareness"
GRADED_BY = {SYCOPHANCY: "sycophancy_short", JAILBREAK: JAILBREAK, SAFETY_AWARENESS: SAFETY_AWARENESS}
"""By axis, the suite that grades its replies; `consistency` compares those of any other."""
TEST_PAIRS = "TEST.jsonl"
CUSTOM = "custom"
EVALUATION_ONLY = "is_evaluation_only"
"""Key in `meta` of pairs from a set that its authors do not want trained on."""
QUESTION_FILE = "question_file"
"""Key in `meta` of pairs made of a file of questions: its path, then ROLE=NAME of each column that was named."""


@dataclass(frozen=True)
class ContrastivePair:
    """One training row: the perturbed prompt of the policy and the clean prompt of the teacher (`teacher_prompt`)."""

    id: str
    axis: str
    family: str
    prompt: Prompt
    teacher_prompt: Prompt
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def is_identity(self) -> bool:
        """True when both sides see the same prompt, which anchors the model to itself."""
        return self.prompt == self.teacher_prompt

    @property
    def question(self) -> str:
        """What names the question that the pair is about: its `question_id`, else a hash of its clean prompt."""
        clean = json.dumps(self.teacher_prompt, sort_keys=True)
        return str(self.meta.get("question_id", hashlib.sha256(clean.encode()).hexdigest()[:12]))

    def to_json(self) -> dict[str, Any]:
        """The pair as the JSON object that `read_pairs` reads."""
        return vars(self) | {"prompt": list(self.prompt), "teacher_prompt": list(self.teacher_prompt)}


def question_options(pairs: Iterable[ContrastivePair]) -> str:
    """` --questions FILE --column ROLE=NAME`: how `opct eval` asks the other questions of the file behind these pairs.

    Empty where there is no such file, or more than one.
    """
    files = {tuple(map(str, file)) for pair in pairs if isinstance(file := pair.meta.get(QUESTION_FILE), list)}
    # a command can name one file: with pairs of two it would ask the questions of one of them alone
    if len(files) != 1:
        return ""
    [(path, *columns)] = files
    if not (path.startswith("hf:") or Path(path).exists()):  # named from another folder, or moved
        path = f"PATH/TO/{Path(path).name}"
    return f" --questions {shlex.quote(path)}" + "".join(f" --column {shlex.quote(column)}" for column in columns)


def eval_options(pairs: Iterable[ContrastivePair]) -> str:
    """How `opct eval` asks what these pairs train; empty where its defaults do. `TEST_PAIRS` stands for a file of pairs
    that are not trained on, for axes whose replies no suite grades."""
    pairs = list(pairs)
    formats = dict.fromkeys((pair.axis, pair.meta.get("answer_format")) for pair in pairs if not pair.is_identity)
    suites = [
        "sycophancy_choice" if (axis, form) == (SYCOPHANCY, "choice") else GRADED_BY.get(axis, "consistency")
        for axis, form in formats
    ]
    if {*suites} <= {GRADED_BY[SYCOPHANCY]}:
        return question_options(pairs)
    options = "".join(f" --suite {suite}" for suite in dict.fromkeys([*suites, "context_use", "benign"]))
    return options + question_options(pairs) + f" --data consistency={TEST_PAIRS}" * ("consistency" in suites)


def messages_of(prompt: Any) -> Any:
    """A prompt as messages of `role` and `content`: a text is one user message; what is neither stays as it is."""
    if isinstance(prompt, str):
        return user_prompt(prompt)
    return tuple(map(_message_of, prompt)) if isinstance(prompt, list | tuple) else prompt


def _message_of(message: Any) -> Any:
    """A message of any usual shape with `role` and `content`, a text; one of another shape as it is."""
    if not isinstance(message, Mapping):
        return message
    if {"from", "value"} <= set(message):
        role = SHAREGPT_ROLES.get(str(message["from"]).lower(), message["from"])
        message = {"role": role, "content": message["value"]}
    # a copy without nulls, which Arrow adds ("tool_calls": null); content null is a turn to be sampled
    message = {key: value for key, value in message.items() if value is not None or key == "content"}
    if (role := str(message.get("role")).lower()) in ROLES:
        message["role"] = role
    parts = message.get("content")
    if isinstance(parts, list | tuple) and parts:
        texts = [part["text"] if _is_text_part(part) else part for part in parts]
        if all(isinstance(text, str) for text in texts):
            message["content"] = "\n".join(texts)
    return message


def _is_text_part(part: Any) -> bool:
    # exactly these two: an image beside the text must be refused, not dropped
    return isinstance(part, Mapping) and {key for key, value in part.items() if value is not None} == {"type", "text"}


# -------------------------------------------------------------------------------------------------------------- faults

OTHER_SHAPES = {
    "chosen rejected": "TRL's preference rows",
    "prompt completion": "TRL's prompt-completion rows",
    "messages": "chat rows",
    "conversations": "chat rows",
    "question answer": "questions and answers",
    "instruction": "Alpaca's rows",
    "prompt": "rows of one prompt",
}
"""Columns of rows that are no pairs -> what such rows are."""
REMEDY = "`opct data build pairs --from FILE --teacher-system TEXT` (or `--template FILE.jinja`) makes pairs of these"
QUESTION_REMEDY = "`opct data build sycophancy --from FILE` adds wrong suggestions"


def row_faults(row: Any) -> Iterator[str]:
    """Yield what is wrong with one row, in words that say what to do."""
    if not isinstance(row, Mapping):
        yield f"expected a JSON object with the keys {', '.join(COLUMNS)}, found {type(row).__name__}"
        return
    unknown = sorted(map(str, set(row) - set(COLUMNS)))
    meant = {key: near[0] for key in unknown if (near := difflib.get_close_matches(key, COLUMNS, n=1, cutoff=0.75))}
    missing = [side for side in SIDES if side not in {*row, *meant.values()}]
    # in order: "prompt", the last one, is also in rows of the shapes above
    shape = next((names for names in OTHER_SHAPES if set(names.split()) <= set(row)), None)
    if "teacher_prompt" in missing and shape:
        more = f"; {QUESTION_REMEDY}" if shape == "question answer" else ""
        yield f"`teacher_prompt` is missing, as in {OTHER_SHAPES[shape]}: add it, or {REMEDY}{more}"
        return
    for key in ("id", "axis", "family"):
        value = row.get(key)
        is_number = key == "id" and isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not is_number and (not isinstance(value, str) or not value.strip()):
            yield f"`{key}` must be a non-empty string (or left out), found {value!r}"
    for key in unknown:
        advice = "what the model has to see belongs into the prompts, your own fields under `meta`."
        remedy = f"did you mean {meant[key]!r}?" if key in meant else advice
        yield f"unknown key {key!r}: {remedy} The keys are {', '.join(COLUMNS)}"
    if row.get("meta") is not None and not isinstance(row["meta"], Mapping):
        yield f"`meta` must be an object, found {type(row['meta']).__name__}"
    elif row.get("meta"):
        try:
            # NaN is no JSON: Python would write it, and other readers of the pair file fail on it
            json.dumps(dict(row["meta"]), allow_nan=False)
        except (TypeError, ValueError) as error:
            yield f"`meta` must hold JSON values: {error}"
    yield from (f"`{side}` is missing: add a text, or a list of messages" for side in missing)
    # not `missing`, which lacks a misspelled side: that fault stands above, and there is no prompt to look at
    if any(side not in row for side in SIDES):
        return
    faults = [fault for side in SIDES for fault in prompt_faults(side, row[side])]
    # `or`: the last messages are only compared where both sides have sound ones
    yield from faults or _side_by_side_faults(*(messages_of(row[side]) for side in SIDES))


_MESSAGES_AS_TEXT = re.compile(r"\s*\[\s*\{\s*['\"](role|content)['\"]")


def prompt_faults(side: str, prompt: Any) -> Iterator[str]:
    """What is wrong with a prompt, a text or messages; `side` is its column, such as `prompt` or `teacher_prompt`."""
    if isinstance(prompt, str):
        if _MESSAGES_AS_TEXT.match(prompt):
            yield f"`{side}` is a list of messages written as text, as in a CSV: give the list itself, as in JSONL"
        else:
            yield from _text_faults(f"`{side}`", prompt)
        return
    if not isinstance(prompt, list | tuple) or not prompt:
        yield f"`{side}` must be a text or a non-empty list of messages, found {shorten(prompt)}"
        return
    messages = messages_of(prompt)
    for i, message in enumerate(messages):
        where = f"`{side}[{i}]`"
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            yield f"{where} must be an object with exactly `role` and `content`, found {shorten(message)}"
            continue
        role, content = message["role"], message["content"]
        if role not in ROLES:
            yield f"{where}.role is {role!r}: use one of {', '.join(ROLES)}"
        elif role == "system" and i > 0:
            yield f"{where} is a system message after the first turn: put it first"
        elif content is None:
            yield from _sampled_turn_faults(side, where, role, last=i == len(prompt) - 1)
        else:
            yield from _text_faults(f"{where}.content", content)
    if not any(isinstance(m, Mapping) and m.get("role") == "user" for m in messages):
        yield f"`{side}` has no user message: the model has nothing to answer"


def _text_faults(where: str, text: Any) -> Iterator[str]:
    if isinstance(text, list | tuple):
        yield f"{where} must be a text or a list of text parts, found {shorten(text)}"
    elif not isinstance(text, str):
        yield f"{where} must be a string, found {type(text).__name__}"
    elif not text.strip():
        yield f"{where} is empty: write the text, or remove it"
    elif SURROGATE.search(text):  # no tokenizer and no file takes it
        yield f"{where} holds half of a character: write the character whole"


def _sampled_turn_faults(side: str, where: str, role: str, *, last: bool) -> Iterator[str]:
    if role != "assistant":
        yield f"{where}.content is null, which is for assistant turns only: write the text"
    elif side == "teacher_prompt":
        yield f"{where}.content is null: a teacher prompt cannot hold a turn sampled from the policy"
    elif last:
        yield f"{where}.content is null in the last turn: leave the turn out, the completion is sampled anyway"


def _side_by_side_faults(prompt: Iterable[Mapping], teacher_prompt: Iterable[Mapping]) -> Iterator[str]:
    last, teacher_last = list(prompt)[-1], list(teacher_prompt)[-1]
    # equal, not only both there: the completion goes on after it, so its tokens must follow the same words
    prefills = [m["content"] if m["role"] == "assistant" else None for m in (last, teacher_last)]
    if prefills[0] != prefills[1]:
        yield (
            "one side ends with an assistant message (a prefill) that the other side does not end with: "
            "end both with the same assistant message, or neither"
        )


# --------------------------------------------------------------------------------------------------------------- files


_KNOWN = {*SIDES, *" ".join(OTHER_SHAPES).split()}


def _rows(source: Source, split: str) -> list[Row]:
    if (name := source_name(source)) in ("", HUB):
        raise DataError(f"{name!r} names no pairs: give a pair file, the folder of a dataset, or hf:owner/name.")
    return read_rows(source, "pair", split=split, pinned=False, default_format=".jsonl", known=_KNOWN)


def row_columns(source: str) -> list[str]:
    """The columns of a file that may hold pairs; none of embedded pairs."""
    return [] if source.startswith(BUILTIN) else column_names(_rows(source, "train"))


def read_pairs(source: Source, *, split: str = "train", meta_faults: MetaFaults | None = None) -> list[ContrastivePair]:
    """Read and check every pair of a source that is not embedded; see `opct.load_pairs`. Raises DataError with every
    fault in the source at once."""
    name = source_name(source)
    rows = _rows(source, split)

    def parse(row: Any) -> ContrastivePair:
        pair = checked_pair(row)
        if meta_faults is not None and (problems := list(meta_faults(pair.meta))):
            raise RowFault(*problems)
        return pair

    pairs, faults = parse_rows(rows, parse)
    refuse(name, [*faults, *duplicate_ids((where, pair.id) for where, pair in pairs)])
    if not pairs:
        raise DataError(f"{name} holds no pairs: it needs at least one row.")
    return [pair for _, pair in pairs]


def checked_pair(row: Any) -> ContrastivePair:
    """The pair of a row. Raises RowFault with every fault of the row."""
    if faults := list(row_faults(row)):
        raise RowFault(*faults)
    # role first: the group of a pair may be its clean prompt as JSON, and files differ in the order of keys
    prompts = {side: tuple({"role": m["role"], **m} for m in messages_of(row[side])) for side in SIDES}
    # prompts alone, keys sorted: the id must not change with `meta`, nor with the order of role and content
    text = json.dumps(prompts, sort_keys=True)
    return ContrastivePair(
        id=f"p/{hashlib.sha256(text.encode()).hexdigest()[:12]}" if row.get("id") is None else str(row["id"]),
        axis=row.get("axis") or CUSTOM,
        family=row.get("family") or CUSTOM,
        meta=dict(row.get("meta") or {}),
        **prompts,
    )


def write_pairs(path: str | Path, pairs: Iterable[ContrastivePair | dict[str, Any]], *, mode: int = 0o666) -> int:
    """Write pairs as JSONL (UTF-8, one object a line), whole or not at all, and return how many were written.

    Args:
        pairs: dicts are checked as `load_pairs` does.
        mode: see `atomic_write`.

    Raises:
        DataError: a dict is no sound pair.
        RunError: the file cannot be written.
    """
    # a list: counted after it is written, when a generator is used up
    given: list[Any] = list(pairs)
    if not all(isinstance(pair, ContrastivePair) for pair in given):
        given = read_pairs(given)
    write_jsonl(path, [pair.to_json() for pair in given], mode=mode)
    return len(given)
