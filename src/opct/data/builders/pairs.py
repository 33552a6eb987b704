"""Pairs from rows of one prompt: chat rows, questions, or rows in the formats of TRL, Alpaca and ShareGPT.

The row's prompt is the clean prompt of the policy, and of the teacher where the row has no `teacher_prompt`. What else
belongs to it is added (`CONTEXT_COLUMNS`); columns that are not read are named in a warning. Then

    teacher_system   gives the teacher a system prompt that the policy does not see
    templates        wrap the policy's prompt: other pressure, a pair for each template
    identity         leaves both sides the same: pairs for `data.anchors`
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any

from opct.bounds import try_in_bounds
from opct.data.pairs import CUSTOM, ContrastivePair, Message, Prompt, checked_pair, messages_of, prompt_faults
from opct.data.questions import QUESTION_COLUMNS, is_quoted
from opct.data.tables import (
    Columns,
    Row,
    RowFault,
    Source,
    column_key,
    column_names,
    duplicate_ids,
    find_columns,
    known_columns,
    parse_rows,
    read_rows,
    refuse,
    source_name,
    unread_texts,
    warn_of_repeats,
)
from opct.errors import DataError, shorten

log = logging.getLogger(__name__)

CHATS = ("messages", "conversations", "conversation", "chosen")
"""Columns of whole conversations, whose last answer is left out."""
ANSWERS = (
    *("completion", "chosen", "rejected", "response", "output", "answers", "meta"),
    *(name for role in ("answer", "aliases", "wrong") for name in QUESTION_COLUMNS[role]),
)
"""Columns that are left out of prompts without a warning: what there is to answer, and what is for `meta`."""
NO_META = ("completion", "rejected", *CHATS)
"""Columns of answers; the texts and numbers of other columns are kept in `meta`."""
_META_VALUE = str | int | float
CONTEXT_COLUMNS: dict[str, tuple[str, ...]] = {
    "system": ("system", "system_prompt", "system_message"),
    "history": ("history",),
    "context": tuple(name for name in QUESTION_COLUMNS["context"] if name != "input"),
    "input": ("input",),
}
"""Role -> usual names of columns that belong to the prompt: a system message, earlier turns (messages, or lists of a
user's message and its answer), a text before the last user message and one after it (Alpaca's)."""
# role -> usual column names in order of preference
PAIR_COLUMNS: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "instruction", *CHATS, "input"),
    "teacher_prompt": ("teacher_prompt",),
    "id": ("id",),
    "axis": ("axis",),
    "family": ("family",),
    **CONTEXT_COLUMNS,
}
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
        teacher_system: system prompt of the teacher, added to the row's system prompt if it has one.
        templates: name -> Jinja template of the policy's prompt. It is given the columns of the row, and as `prompt`
            the text of the last user message, which it replaces.
        identity: both sides are the same, for `data.anchors`.
        axis, family: of rows whose cells are empty; the family of a template is by default its name.

    Raises:
        DataError: both sides would be the same, or differ with `identity`; a template is not valid; or (all faults at
            once) a row has no prompt that can be used.
    """
    name, known = source_name(source), known_columns("prompt", PAIR_COLUMNS, columns)
    rows = read_rows(source, "prompt", pinned=False, default_format=".jsonl", known=known)
    found = find_columns(name, rows, columns, PAIR_COLUMNS, ("prompt",))
    role_columns = {role: names[0] for role, names in found.items()}
    _check_sides(name, identity, differs=bool(teacher_system or templates or "teacher_prompt" in role_columns))
    made = {one: _template(one, text) for one, text in (templates or {}).items()}
    wraps: dict[str, Wrap] = {one: wrap for one, (wrap, _) in made.items()} or {"": lambda prompt, row: prompt}
    shown = {column for _, used in made.values() for column in used}
    role_columns, meta_columns = _used_columns(name, rows, role_columns, shown)

    def pairs_of(row: Any) -> list[ContrastivePair]:
        prompt = _prompt(row, "prompt", role_columns)
        teacher_prompt = _prompt(row, "teacher_prompt", role_columns) if "teacher_prompt" in role_columns else prompt
        values = {role: row.get(role_columns.get(role)) for role in ("id", "axis", "family")}
        # 0 is an id: only None and "" are empty
        cells = {role: str(value) for role, value in values.items() if value not in (None, "")}
        pair_axis, meta = cells.get("axis", axis), _meta(row, meta_columns, cells.get("id"), _hash(teacher_prompt))
        pairs = []
        for wrapper, wrap in wraps.items():
            pair_family = cells.get("family") or family or wrapper or CUSTOM
            wrapped = wrap(prompt, row)
            # before the teacher's system prompt is added: the same rows with another one keep their ids
            pair_id = cells.get("id") or _hash(wrapped, teacher_prompt)
            pair = {
                "id": f"{pair_axis}/{wrapper or pair_family}/{pair_id}",
                "axis": pair_axis,
                "family": pair_family,
                "prompt": wrapped,
                "teacher_prompt": _with_system(teacher_prompt, teacher_system),
                "meta": meta,
            }
            pairs.append(checked_pair(pair))
        return pairs

    parsed, faults = parse_rows(rows, pairs_of)
    if "id" in role_columns:
        # the first is enough: with templates all pairs of a row repeat or none
        faults += duplicate_ids((where, pairs[0].id) for where, pairs in parsed)
    refuse(name, faults)
    unique: dict[str, ContrastivePair] = {}
    repeated = []
    for where, row_pairs in parsed:
        repeated += [where for pair in row_pairs if pair.id in unique]
        for pair in row_pairs:
            unique.setdefault(pair.id, pair)  # the first row's `meta`: the warning says that later ones are dropped
    warn_of_repeats(name, repeated, "pairs")
    _warn_of_endings(name, rows, role_columns["prompt"], [row_pairs[0] for _, row_pairs in parsed])
    return list(unique.values())


def _used_columns(
    name: str, rows: Sequence[Row], columns: Mapping[str, str], shown: Collection[str]
) -> tuple[dict[str, str], list[str]]:
    """The columns of prompts by role, and those that are kept in `meta`; says both, and which are in no prompt.

    A column of context is not used if it is the prompt itself, if a template shows it (`shown`), or if it has cells of
    another type: texts, and numbers as texts.
    """
    cells = {key: [row.get(key) for _, row in rows if isinstance(row, Mapping)] for key in column_names(rows)}
    kinds: dict[str, Any] = {role: list if role == "history" else str | int | float for role in CONTEXT_COLUMNS}
    unusable = {
        role
        for role, kind in kinds.items()
        if (column := columns.get(role)) is not None
        and (
            column in (columns["prompt"], *shown)
            or any(not isinstance(cell, kind | None) or isinstance(cell, bool) for cell in cells[column])
        )
    }
    used = {role: column for role, column in columns.items() if role not in unusable}
    # answers out: what is in `meta` goes on into pair files and logs
    meta_columns = [key for key in cells if key not in used.values() and column_key(key) not in NO_META]
    # that name decides which pairs are held out together, and half of a file may be one group
    meta_columns = [key for key in meta_columns if key != "group"]
    said = ", ".join(f"{role}={column}" for role, column in used.items())
    log.info("%s: %d rows; %s; in meta: %s", name, len(rows), said, ", ".join(meta_columns) or "nothing")
    unread = unread_texts(rows, [*used.values(), *shown])
    if unread := [key for key in unread if column_key(key) not in ANSWERS]:
        remedy = "if a prompt needs one, --column context=NAME (or system, input), or show it in a template"
        log.warning("%s: not in the prompts: %s; %s", name, ", ".join(unread), remedy)
    return used, meta_columns


def _warn_of_endings(name: str, rows: Sequence[Row], column: str, pairs: Sequence[ContrastivePair]) -> None:
    """Say where a conversation lost more than one message, and where a prompt ends with a prefill."""
    if column_key(column) in CHATS:
        chats = (messages_of(row.get(column)) for _, row in rows if isinstance(row, Mapping))
        if n := sum(_n_closing(chat) > 1 for chat in chats):
            log.warning(
                "%s: %d conversation(s) end with several answers, which are all left out of the prompt", name, n
            )
    elif n := sum(pair.prompt[-1]["role"] == "assistant" for pair in pairs):
        log.warning("%s: %d prompt(s) end with an assistant message, which the completion continues", name, n)


def _n_closing(chat: Any) -> int:
    """How many messages at the end of a chat are the assistant's."""
    if not isinstance(chat, tuple):
        return 0
    said = takewhile(lambda message: isinstance(message, Mapping) and message.get("role") == "assistant", chat[::-1])
    return len(list(said))


def _hash(*prompts: Prompt) -> str:
    return hashlib.sha256(json.dumps(prompts, sort_keys=True).encode()).hexdigest()[:12]


def _meta(row: Mapping[str, Any], meta_columns: Sequence[str], row_id: str | None, clean: str) -> dict[str, Any]:
    """The kept columns, and what holds the rows of one clean prompt together in any split: they are variants."""
    # first: a `question_id` in the row or its `meta` replaces it
    meta: dict[str, Any] = {"question_id": row_id or clean}
    meta |= {key: row[key] for key in meta_columns if isinstance(row.get(key), _META_VALUE)}
    meta |= row["meta"] if isinstance(row.get("meta"), Mapping) else {}
    # rows with ids of their own but one clean prompt: the group keeps them on the same side of the split
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


def _prompt(row: Mapping[str, Any], side: str, columns: Mapping[str, str]) -> Prompt:
    """A row's prompt with its context; of a whole conversation without the answers that close it."""
    column = columns[side]
    value = row.get(column)
    is_chat = column_key(column) in CHATS
    if is_chat and not isinstance(value, list | tuple):
        raise RowFault(f"`{column}` must be a list of messages, found {type(value).__name__}")
    value = messages_of(value)
    if is_chat:
        # len - n, not -n: [:-0] would be empty
        value = value[: len(value) - _n_closing(value)]
    if faults := list(prompt_faults(column, row.get(column) if isinstance(row.get(column), str) else value)):
        raise RowFault(*faults)
    return _with_context(value, row, columns)


def _with_context(prompt: Prompt, row: Mapping[str, Any], columns: Mapping[str, str]) -> Prompt:
    """The prompt with what other columns of its row add; see `CONTEXT_COLUMNS`."""
    named = {role: row.get(columns[role]) for role in CONTEXT_COLUMNS if role in columns}
    cell: dict[str, Any] = {
        role: str(value) if isinstance(value, int | float) else value
        for role, value in named.items()
        if value == 0 or (value and (not isinstance(value, str) or value.strip()))
    }
    head, turns = (prompt[:1], prompt[1:]) if prompt[0]["role"] == "system" else ((), prompt)
    if "system" in cell and head and head[0]["content"] != cell["system"]:
        raise RowFault(f"`{columns['system']}` differs from the system message of the prompt: keep one of the two")
    if "system" in cell:
        head = ({"role": "system", "content": cell["system"]},)
    last = _last_user(turns)
    said = turns[last]["content"] or ""
    before, after = ("" if is_quoted(cell.get(role, ""), said) else cell[role] for role in ("context", "input"))
    message: Message = {"role": "user", "content": "\n\n".join(text for text in (before, said, after) if text)}
    return (*head, *_earlier_turns(cell.get("history", [])), *turns[:last], message, *turns[last + 1 :])


def _earlier_turns(history: Sequence[Any]) -> Prompt:
    turns: list[Message] = []
    for turn in history:
        if isinstance(turn, list) and len(turn) == 2:
            turns += [{"role": role, "content": text} for role, text in zip(("user", "assistant"), turn, strict=True)]
        else:
            (message,) = messages_of([turn])
            if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
                remedy = "give messages of role and content, or lists of a user's message and its answer"
                raise RowFault(f"the earlier turn {shorten(turn)} is no message: {remedy}")
            turns.append(dict(message))
    return tuple(turns)


def _last_user(prompt: Prompt) -> int:
    return max(i for i, message in enumerate(prompt) if message["role"] == "user")


def _with_system(prompt: Prompt, system: str | None) -> Prompt:
    if system is None:
        return prompt
    row_system = prompt[0]["content"] if prompt[0]["role"] == "system" else None
    # the row's first, as the policy has it; then what the teacher alone is told
    text = system if row_system is None else f"{row_system}\n\n{system}"
    return ({"role": "system", "content": text}, *(prompt if row_system is None else prompt[1:]))


def _template(name: str, text: str) -> tuple[Wrap, set[str]]:
    """What wraps a prompt, and the columns that it shows."""
    from jinja2 import StrictUndefined, TemplateError, Undefined, UndefinedError
    from jinja2.meta import find_undeclared_variables
    from jinja2.sandbox import SandboxedEnvironment

    class Empty(StrictUndefined):
        """An empty cell: a template may ask whether it is filled, and not show it."""

        __bool__ = Undefined.__bool__  # type: ignore[assignment]

    # sandboxed: a template from elsewhere cannot reach Python's objects
    environment = SandboxedEnvironment(undefined=Empty)
    try:
        template, columns = environment.from_string(text), find_undeclared_variables(environment.parse(text))
    except TemplateError as error:
        raise DataError(f"The template {name!r} is not valid Jinja: {error}. Correct it.") from error
    if not columns:
        raise DataError(f"The template {name!r} uses no column: put {{{{ prompt }}}} where the prompt belongs.")
    if "prompt" not in columns:
        log.warning("The template %r does not show {{ prompt }}: does %s hold what is asked?", name, ", ".join(columns))

    def wrap(prompt: Prompt, row: Mapping[str, Any]) -> Prompt:
        last = _last_user(prompt)
        try:
            # without empty cells: StrictUndefined then reports them, else the template would show "None"
            cells = {name: value for name, value in row.items() if value not in ("", None)}
            # "prompt" last: a column of that name must not hide the message that is wrapped
            values = {**cells, "prompt": prompt[last]["content"]}
            try_in_bounds(lambda: template.render(values), text, f"The template {name!r}", DataError)
            content = template.render(values)
        except UndefinedError as error:
            there = ", ".join(map(str, row))
            column = re.match(r"'(\w+)' is undefined", str(error))  # the first that failed; others may, too
            is_missing = column[1] not in row if column else columns - {*row, "prompt"}
            remedy = (
                f"this row has {there} alone"
                if is_missing
                else "its cell is empty: fill it, or ask {% if COLUMN %} first"
            )
            raise RowFault(f"the template {name!r} cannot be filled: {error}; {remedy}") from error
        except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise RowFault(f"the template {name!r} cannot be filled: {error}") from error
        return (*prompt[:last], {"role": "user", "content": content}, *prompt[last + 1 :])

    return wrap, columns
