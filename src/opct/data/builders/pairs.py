"""Pairs from rows of one prompt: chat rows, questions, or rows in TRL's formats.

The row's prompt is the clean prompt of the policy, and of the teacher where the row has no `teacher_prompt`. Then

    teacher_system   gives the teacher a system prompt that the policy does not see
    templates        wrap the policy's prompt: pressure of your own, a pair for each template
    identity         leaves both sides the same: pairs for `data.anchors`
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opct.data.pairs import CUSTOM, ContrastivePair, Prompt, checked_pair, messages_of, prompt_faults
from opct.data.tables import (
    Columns,
    RowFault,
    Source,
    column_key,
    column_names,
    duplicate_ids,
    find_columns,
    parse_rows,
    read_rows,
    refuse,
    source_name,
)
from opct.errors import DataError

log = logging.getLogger(__name__)

CHATS = ("messages", "conversations", "conversation", "chosen")
"""Columns of whole conversations, whose last answer is left out."""
NOT_KEPT = ("completion", "rejected", *CHATS)
"""Columns of answers; the texts and numbers of other columns are kept in `meta`."""
_KEPT = str | int | float
# role -> usual column names in order of preference
PAIR_COLUMNS: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", *CHATS),
    "teacher_prompt": ("teacher_prompt",),
    "id": ("id",),
    "axis": ("axis",),
    "family": ("family",),
}
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}
Wrap = Callable[[Prompt, Mapping[str, Any]], Prompt]


def build_pairs(
    source: Source,
    columns: Columns | None = None,
    *,
    teacher_system: str | None = None,
    templates: Mapping[str, str] | None = None,
    identity: bool = False,
    axis: str = CUSTOM,
    family: str | None = None,
) -> list[ContrastivePair]:
    """Pairs from a file, a data set or rows in Python (see `read_rows`); prompts that are repeated are read once.

    Args:
        columns: role -> column, where the guess is wrong; for the roles see `PAIR_COLUMNS`.
        teacher_system: system prompt of the teacher, added to the row's own if it has one.
        templates: name -> Jinja template of the policy's prompt. It is given the columns of the row, and as `prompt`
            the text of the last user message, which it replaces.
        identity: both sides are the same, for `data.anchors`.
        axis, family: of rows without their own; the family of a template is by default its name.

    Raises:
        DataError: both sides would be the same, or differ with `identity`; a template is not valid; or (all faults at
            once) a row has no prompt that can be used.
    """
    name, rows = source_name(source), read_rows(source, "prompt", pinned=False, default_format=".jsonl")
    found = {role: names[0] for role, names in find_columns(name, rows, columns, PAIR_COLUMNS, ("prompt",)).items()}
    _check_sides(name, identity, differs=bool(teacher_system or templates or "teacher_prompt" in found))
    kept = [key for key in column_names(rows) if key not in found.values() and column_key(key) not in NOT_KEPT]
    log.info(
        "%s: %d rows; %s; in meta: %s",
        name,
        len(rows),
        ", ".join(f"{role}={column}" for role, column in found.items()),
        ", ".join(kept) or "nothing",
    )
    wraps: dict[str, Wrap] = {one: _template(one, text) for one, text in (templates or {}).items()}
    wraps = wraps or {"": lambda prompt, row: prompt}

    def pairs_of(row: Any) -> list[ContrastivePair]:
        prompt = _prompt(row, found["prompt"])
        teacher_prompt = _prompt(row, found["teacher_prompt"]) if "teacher_prompt" in found else prompt
        values = {role: row.get(found.get(role)) for role in ("id", "axis", "family")}
        own = {role: str(value) for role, value in values.items() if value not in (None, "")}
        own_axis, meta = own.get("axis", axis), _meta(row, kept, own.get("id"), _hash(teacher_prompt))
        pairs = []
        for wrapper, wrap in wraps.items():
            own_family = own.get("family") or family or wrapper or CUSTOM
            wrapped = wrap(prompt, row)
            pair_id = own.get("id") or _hash(wrapped, teacher_prompt)
            pairs.append(
                checked_pair(
                    {
                        "id": f"{own_axis}/{wrapper or own_family}/{pair_id}",
                        "axis": own_axis,
                        "family": own_family,
                        "prompt": wrapped,
                        "teacher_prompt": _with_system(teacher_prompt, teacher_system),
                        "meta": meta,
                    }
                )
            )
        return pairs

    parsed, faults = parse_rows(rows, pairs_of)
    if "id" in found:
        faults += duplicate_ids((where, pairs[0].id) for where, pairs in parsed)
    refuse(name, faults)
    pairs = [pair for _, own in parsed for pair in own]
    unique = {pair.id: pair for pair in pairs}
    if n_repeated := len(pairs) - len(unique):
        log.warning("%s: repeated pairs dropped: %d", name, n_repeated)
    return list(unique.values())


def _hash(*prompts: Prompt) -> str:
    return hashlib.sha256(json.dumps(prompts, sort_keys=True).encode()).hexdigest()[:12]


def _meta(row: Mapping[str, Any], kept: Sequence[str], row_id: str | None, clean: str) -> dict[str, Any]:
    """The kept columns, and what holds the rows of one clean prompt together in any split: they are variants."""
    meta: dict[str, Any] = {"question_id": row_id or clean}
    meta |= {key: row[key] for key in kept if isinstance(row.get(key), _KEPT)}
    meta |= row["meta"] if isinstance(row.get("meta"), Mapping) else {}
    if meta["question_id"] == row_id:
        meta.setdefault("group", clean)
    return meta


def _check_sides(name: str, identity: bool, *, differs: bool) -> None:
    if identity and differs:
        raise DataError(
            f"{name}: both prompts of an identity pair are the same: leave out the system prompt of the teacher, "
            "templates and `teacher_prompt`."
        )
    if not identity and not differs:
        raise DataError(
            f"Each row of {name} has one prompt, so both prompts of a pair would be the same. Give the teacher a "
            "system prompt (--teacher-system TEXT, in Python teacher_system), wrap the policy's prompt (--template "
            "FILE.jinja, templates), name the column of the teacher's prompt (--column teacher_prompt=COLUMN, "
            "columns), or make identity pairs (--identity, identity)."
        )


def _prompt(row: Mapping[str, Any], column: str) -> Prompt:
    """The prompt in a column, without the last answer if it is a whole conversation."""
    value = row.get(column)
    is_chat = column_key(column) in CHATS
    if is_chat and not isinstance(value, list | tuple):
        raise RowFault(f"`{column}` must be a list of messages, found {type(value).__name__}")
    if isinstance(value, list | tuple):
        value = [_message(message) for message in value]
        if is_chat and value and isinstance(value[-1], dict) and value[-1].get("role") == "assistant":
            value.pop()
    if faults := list(prompt_faults(column, value)):
        raise RowFault(*faults)
    return tuple(messages_of(value))


def _message(message: Any) -> Any:
    """The message with `role` and `content` alone, also of ShareGPT's `from` and `value`."""
    if not isinstance(message, Mapping):
        return message
    if {"from", "value"} <= set(message):
        return {"role": SHAREGPT_ROLES.get(message["from"], message["from"]), "content": message["value"]}
    return {key: value for key, value in message.items() if value is not None or key == "content"}


def _with_system(prompt: Prompt, system: str | None) -> Prompt:
    if system is None:
        return prompt
    own = prompt[0]["content"] if prompt[0]["role"] == "system" else None
    text = system if own is None else f"{own}\n\n{system}"
    return ({"role": "system", "content": text}, *(prompt if own is None else prompt[1:]))


def _template(name: str, text: str) -> Wrap:
    from jinja2 import StrictUndefined, TemplateError, Undefined, UndefinedError
    from jinja2.meta import find_undeclared_variables
    from jinja2.sandbox import SandboxedEnvironment

    class Empty(StrictUndefined):
        """An empty cell: a template may ask whether it is filled, and not show it."""

        __bool__ = Undefined.__bool__  # type: ignore[assignment]

    environment = SandboxedEnvironment(undefined=Empty)
    try:
        template, columns = environment.from_string(text), find_undeclared_variables(environment.parse(text))
    except TemplateError as error:
        raise DataError(f"The template {name!r} is not valid Jinja: {error}. Correct it.") from error
    if not columns:
        raise DataError(f"The template {name!r} uses no column: put {{{{ prompt }}}} where the prompt belongs.")

    def wrap(prompt: Prompt, row: Mapping[str, Any]) -> Prompt:
        last = max(i for i, message in enumerate(prompt) if message["role"] == "user")
        try:
            cells = {name: value for name, value in row.items() if value not in ("", None)}
            content = template.render({**cells, "prompt": prompt[last]["content"]})
        except UndefinedError as error:
            remedy = "its cell is empty: fill it, or ask {% if COLUMN %} first"
            raise RowFault(f"the template {name!r} cannot be filled: {error}; {remedy}") from error
        except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise RowFault(f"the template {name!r} cannot be filled: {error}") from error
        return (*prompt[:last], {"role": "user", "content": content}, *prompt[last + 1 :])

    return wrap
