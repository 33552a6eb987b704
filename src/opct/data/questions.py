"""Questions: a short answer, its other spellings, and wrong answers of the same kind.

`builtin_questions` reads the embedded fact tables; `load_questions` reads any question-answer or multiple-choice file.
`split_of` decides which questions train and which are only ever measured on.
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from opct.data.tables import (
    LETTERS,
    Columns,
    Fault,
    RowFault,
    Source,
    column_key,
    column_names,
    duplicate_ids,
    file_stem,
    find_columns,
    parse_json,
    parse_rows,
    read_rows,
    refuse,
    source_name,
)
from opct.errors import DataError, unknown

log = logging.getLogger(__name__)

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

MAX_OPTIONS = 10
DRAWN_WRONG_ANSWERS = 3

# role -> usual column names in order of preference
QUESTION_COLUMNS: dict[str, tuple[str, ...]] = {
    "id": ("id", "question_id", "qid", "uid"),
    "question": ("question", "prompt", "problem", "query", "question_stem", "question_text", "stem", "input"),
    "answer": (
        *("answer", "best_answer", "correct_answer", "answer_key", "answerkey", "answer_index", "answer_idx"),
        *("correct_index", "correct_option", "correct", "label", "target", "gold", "completion"),
    ),
    "aliases": ("aliases", "answer_aliases", "correct_answers", "acceptable_answers"),
    "wrong": (
        *("best_incorrect_answer", "incorrect_answers", "incorrect_answer", "wrong", "wrong_answers", "wrong_answer"),
        *("distractors", "distractor", "incorrect"),
    ),
    "choices": ("choices", "options", "answer_choices", "endings"),
    "topic": ("topic", "category", "subject", "domain"),
}


@dataclass(frozen=True)
class Question:
    """One fact: the question, its answer, further correct forms (`aliases`) and wrong answers of the same kind.

    `where` is its place (`file:line`), for messages; "" for an embedded one.
    """

    id: str
    question: str
    answer: str
    aliases: tuple[str, ...]
    wrong: tuple[str, ...]
    topic: str
    where: str = field(default="", compare=False, repr=False)

    @property
    def split(self) -> Split:
        """See `split_of`."""
        return split_of(self.id)

    @property
    def shown_wrong(self) -> tuple[str, ...]:
        """The wrong answers that fit beside the answer in a list of at most ten options: the first nine."""
        return self.wrong[: MAX_OPTIONS - 1]

    def options(self, seed: int) -> tuple[str, ...]:
        """The answer and the wrong answers as lettered options, 2 to 10 of them, in an order that seed and id fix."""
        options = [self.answer, *self.shown_wrong]
        random.Random(f"{seed}/{self.id}/options").shuffle(options)
        return tuple(options)


def split_of(question_id: str) -> Split:
    """The split of a question by the sha256 of its id: 40% train, 8% validation, 52% test; the same on any machine."""
    share = hash_share(question_id)
    return "train" if share < 0.40 else "validation" if share < 0.48 else "test"


def hash_share(text: str) -> float:
    """A number in [0, 1) that depends on the text alone: the first 8 bytes of its sha256 over 2**64."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big") / 2**64


class HasId(Protocol):
    """A question, behaviour, fact or pair."""

    @property
    def id(self) -> str: ...


class HasSplit(HasId, Protocol):
    """A question, behaviour or fact."""

    @property
    def split(self) -> Split: ...


Item = TypeVar("Item", bound=HasSplit)
AnyItem = TypeVar("AnyItem", bound=HasId)


def of_split(items: Sequence[Item], split: str | None, noun: str) -> list[Item]:
    """The items (`noun` they are) of one split; all of them if it is None or "all".

    Raises:
        DataError: there is no split of that name, or no item in it.
    """
    if split not in (None, "all", *SPLITS):
        raise DataError(unknown("split", str(split), (*SPLITS, "all")))
    chosen = [item for item in items if split in (None, "all", item.split)]
    if not chosen:
        raise DataError(
            f"None of the {len(items)} {noun} is in the {split} split: give more, or use another split, or all."
        )
    return chosen


def first_items(items: Iterable[AnyItem], n: int | None, seed: int) -> list[AnyItem]:
    """At most `n` items (None: all) in an order by seed and id alone, so that fewer are a part of more."""
    return sorted(items, key=lambda item: hashlib.sha256(f"{seed}/{item.id}".encode()).hexdigest())[:n]


def overlaps(a: str, b: str) -> bool:
    """True if the words of one text contain the words of the other in order ("York" in "New York"), case aside.

    A reply that holds the longer text then also holds the shorter one, so it could not be graded as either.
    """
    short, long = sorted((_words(a), _words(b)), key=len)
    return any(long[i : i + len(short)] == short for i in range(len(long) - len(short) + 1))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


# --------------------------------------------------------------------------------------------------- embedded facts


@cache
def _builtin() -> tuple[Question, ...]:
    folder = resources.files("opct.data").joinpath("builtin", "facts")
    tables = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".tsv")), key=lambda entry: entry.name)
    return tuple(q for table in tables for q in _embedded(table.name, table.read_text(encoding="utf-8")))


def _embedded(name: str, text: str) -> Iterator[Question]:
    """The questions of a table: a header, then cells separated by tabs, without quoting; lists are joined by `|`."""
    topic = name.removesuffix(".tsv")
    for line in text.removesuffix("\n").split("\n")[1:]:
        identifier, question, answer, aliases, wrong = line.split("\t")
        yield Question(identifier, question, answer, _listed(aliases), _listed(wrong), topic)


def _listed(cell: str) -> tuple[str, ...]:
    return tuple(part for part in cell.split("|") if part)


def builtin_questions() -> list[Question]:
    """The embedded questions, by topic and in the order of their tables."""
    return list(_builtin())


# ------------------------------------------------------------------------------------------------------ other files


def load_questions(source: Source, columns: Columns | None = None, *, seed: int = 0) -> list[Question]:
    """Questions from any question-answer or multiple-choice file, data set or rows in Python; see `read_rows`.

    Args:
        columns: role -> column name (names for `choices` and `wrong`), where the guess is wrong; for the roles see
            `QUESTION_COLUMNS`.
        seed: fixes which wrong answers are drawn where the file has none: three of the answers to other questions of
            the same topic.

    Rows without an id get one from their question and answer, so that their split depends on nothing else. Of rows that
    repeat question and answer the first one is read.

    Raises:
        DataError: with every fault of the file at once, each with file:line and what to do.
    """
    path, rows = source_name(source), read_rows(source, "question")
    found = find_columns(path, rows, columns, QUESTION_COLUMNS, ("question", "answer"))
    parsed, faults = parse_rows(rows, lambda row: _question(row, found, file_stem(path)))
    if "wrong" not in found and "choices" not in found:
        parsed, more = _with_drawn_wrong(parsed, "topic" in found, seed)
        faults += more
    else:
        faults += [(where, "no wrong answer is left: give at least one") for where, q in parsed if not q.wrong]
    if "id" in found:
        faults += duplicate_ids((where, question.id) for where, question in parsed)
    refuse(path, faults)
    questions: dict[str, Question] = {}
    splits: dict[tuple[str, str], set[str]] = defaultdict(set)
    for where, question in parsed:
        questions.setdefault(question.id, replace(question, where=where))
        splits[_fold(question.question), _fold(question.answer)].add(question.split)
    if leaks := [text for (text, _), own in splits.items() if "train" in own and len(own) > 1]:
        fault = "are trained on and, under another id, measured: keep one row of each"
        log.warning("%s: %d question(s), such as %r, %s", path, len(leaks), leaks[0], fault)
    return list(questions.values())


def describe_columns(path: str | Path, chosen: Columns | None = None) -> str:
    """Describe which columns of a question file are used, and which are not."""
    rows = read_rows(path, "question")
    found = find_columns(path, rows, chosen, QUESTION_COLUMNS, ("question", "answer"))
    unused = [name for name in column_names(rows) if not any(name in columns for columns in found.values())]
    used = ", ".join(f"{role}={'+'.join(columns)}" for role, columns in found.items())
    return used + (f"; not read: {', '.join(unused)}" if unused else "")


def _with_drawn_wrong(
    parsed: list[tuple[str, Question]], has_topic: bool, seed: int
) -> tuple[list[tuple[str, Question]], list[Fault]]:
    """The questions with wrong answers drawn from other answers of their topic, and the faults."""
    if not has_topic:
        remedy = (
            "add a column `wrong` (several joined by `;` or `|`), `choices`, or a `topic` to draw them from; if they "
            "have other names, use --column wrong=NAME, or --column choices=NAME for each option of a list that holds "
            "the right answer too"
        )
        fault = f"no row has wrong answers, and there is no topic column to draw them from: {remedy}"
        return parsed, [(where, fault) for where, _ in parsed[:1]]
    answers: dict[str, list[str]] = defaultdict(list)
    for _, question in parsed:
        answers[question.topic].append(question.answer)
    drawn: list[tuple[str, Question]] = []
    faults: list[Fault] = []
    for where, question in parsed:
        right = (question.answer, *question.aliases)
        pool = [text for text in dict.fromkeys(answers[question.topic]) if not any(overlaps(text, r) for r in right)]
        random.Random(f"{seed}/{question.id}/wrong").shuffle(pool)
        wrong: list[str] = []
        for text in pool:
            if len(wrong) < DRAWN_WRONG_ANSWERS and not any(overlaps(text, other) for other in wrong):
                wrong.append(text)
        if not wrong:
            fault = f"no other answer of topic {question.topic!r} can be a wrong one for {question.answer!r}"
            faults.append((where, f"{fault}: give wrong answers, or more rows of that topic"))
        drawn.append((where, replace(question, wrong=tuple(wrong))))
    return drawn, faults


# --------------------------------------------------------------------------------------------------------- one row


def _question(row: Any, columns: Mapping[str, tuple[str, ...]], stem: str) -> Question:
    """The question of one row; a wrong answer that is an alias is left out, and options count once."""
    text = _cell(row, columns, "question")
    if not isinstance(text, str) or not text.strip():
        raise RowFault(f"the question (column {columns['question'][0]!r}) is {text!r}: it must be text")
    text = text.strip()
    aliases = _texts(row, columns.get("aliases", ()))
    if "choices" in columns:
        labels, texts = _choices(row, columns["choices"])
        if len(texts) < 2:
            raise RowFault(f"{len(texts)} choice(s) in {', '.join(columns['choices'])}: a question needs at least 2")
        answer = texts[_choice_index(_cell(row, columns, "answer"), labels, texts)]
        wrong = [other for other in texts if other != answer]
    else:
        answer, more = _free_answer(_cell(row, columns, "answer"), columns["answer"][0])
        aliases += more
        wrong = _texts(row, columns.get("wrong", ()))
        if any(_fold(other) == _fold(answer) for other in wrong):
            raise RowFault(f"the wrong answers hold the answer {answer!r}: take it out of one of them")
    made_id = "q/" + hashlib.sha256(f"{text}\n{answer}".encode()).hexdigest()[:12]
    identifier = _text(_cell(row, columns, "id")) if "id" in columns else made_id
    if not identifier:
        raise RowFault(f"the id (column {columns['id'][0]!r}) is empty: write one, all different")
    aliases = [alias for alias in dict.fromkeys(aliases) if _fold(alias) != _fold(answer)]
    right = set(map(_fold, aliases))
    wrong = [other for other in dict.fromkeys(wrong) if _fold(other) not in right]
    topic = _text(_cell(row, columns, "topic")) or stem
    return Question(identifier, text, answer, tuple(aliases), tuple(wrong), topic)


def _choices(row: Mapping[str, Any], names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """(labels, texts) of a list, `{"text": [...], "label": [...]}`, a list or object of these, or several columns."""
    value: Any = row.get(names[0])
    labels: Any = None
    if len(names) > 1:
        value = [_text(row.get(name)) for name in names]
        while value and not value[-1]:
            value.pop()
    elif isinstance(value, str):
        value = parse_json(value) if value.strip().startswith(("[", "{")) else _split(value)
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        labels = [item.get("label", letter) for item, letter in zip(value, LETTERS, strict=False)]
        value = {"text": [item.get("text") for item in value], "label": labels}
    if isinstance(value, Mapping):
        is_table = isinstance(value.get("text"), list)
        texts, labels = (value["text"], value.get("label")) if is_table else (list(value.values()), list(value))
    elif isinstance(value, list):
        texts = value
    else:
        raise RowFault(
            f"the choices (column {names[0]!r}) are {value!r}: write a list, or {{'text': [...], 'label': [...]}}"
        )
    texts, labels = [_text(text) for text in texts], [_text(label) for label in labels or LETTERS[: len(texts)]]
    if len(labels) != len(texts):
        raise RowFault(
            f"{len(texts)} choices but {len(labels)} labels: give one label a choice (at most {len(LETTERS)})"
        )
    if "" in texts:
        raise RowFault(f"choice {texts.index('') + 1} of {len(texts)} is empty: write it, or leave it out")
    return labels, texts


def _choice_index(answer: Any, labels: list[str], texts: list[str]) -> int:
    """Which choice is right: by label, then by letter, then by text, then by 0-based index."""
    shown = ", ".join(labels)
    if isinstance(answer, bool) or not isinstance(answer, str | int):
        raise RowFault(f"the answer is {answer!r}: give a label ({shown}), the text of a choice, or a 0-based index")
    text = str(answer).strip()
    index = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else None
    if text in labels:
        return labels.index(text)
    if isinstance(answer, str):
        if len(text) == 1 and text.upper() in LETTERS[: len(texts)]:
            return LETTERS.index(text.upper())
        if text in texts:
            if index is not None and index < len(texts) and texts[index] != text:
                raise RowFault(
                    f"the answer {text!r} is both the text of a choice and the index of another: give its letter"
                )
            return texts.index(text)
    if index is None or index >= len(texts):
        raise RowFault(
            f"the answer {answer!r} is no choice: give a label ({shown}), a text, or an index of 0..{len(texts) - 1}"
        )
    return index


def _free_answer(value: Any, column: str) -> tuple[str, list[str]]:
    """The answer and further correct forms, from text, a number, a list, or {"value" or "text", "aliases"}."""
    more: list[Any] = []
    if isinstance(value, Mapping):
        more = list(value.get("aliases") or [])
        value = value.get("value", value.get("text"))
    if isinstance(value, list):
        value, more = (value[0] if value else None), [*value[1:], *more]
    answer = _text(value)
    if not answer:
        raise RowFault(f"the answer (column {column!r}) is empty: write it, or leave the row out")
    return answer, [_text(item) for item in more if _text(item)]


def _texts(row: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The texts of several columns: one each in `best_incorrect_answer` and numbered ones, maybe a list in others."""
    found: list[str] = []
    for name in names:
        value, key = row.get(name), column_key(name)
        if isinstance(value, list | tuple):
            found += [_text(item) for item in value]
        elif key == "best_incorrect_answer" or key[-1:].isdigit() or not isinstance(value, str):
            found.append(_text(value))
        else:
            found += _split(_text(value))
    return [text for text in found if text]


def _split(text: str) -> list[str]:
    if text.startswith("["):
        return [_text(item) for item in parse_json(text, list)]
    return [part.strip() for part in text.split("|" if "|" in text else ";") if part.strip()]


def _cell(row: Mapping[str, Any], columns: Mapping[str, tuple[str, ...]], role: str) -> Any:
    return row.get(columns[role][0]) if role in columns else None


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():  # a column of whole numbers with an empty cell
        value = int(value)
    return "" if value is None else " ".join(str(value).split())


def _fold(text: str) -> str:
    return " ".join(text.split()).casefold()
