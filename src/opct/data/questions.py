"""Questions: a short answer, its other spellings, and wrong answers of the same kind.

`builtin_questions` reads the embedded fact tables; `load_questions` reads any question-answer or multiple-choice file.
`split_of` decides which questions train and which are only ever measured on.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import html
import io
import logging
import random
import re
import struct
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from opct.data.tables import (
    EMBEDDED,
    LETTERS,
    SURROGATE,
    Columns,
    Fault,
    Row,
    RowFault,
    Source,
    column_key,
    duplicate_ids,
    file_stem,
    find_columns,
    guess_columns,
    known_columns,
    parse_json,
    parse_rows,
    read_rows,
    refuse,
    source_name,
    unread_texts,
    warn_of_repeats,
)
from opct.data.words import canonical, words_of
from opct.errors import DataError, shorten, unknown

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
    "context": ("context", "passage", "article", "paragraph", "input"),
}
WRONG_ANSWERS = ("wrong", "choices", "topic")
"""Roles of which a file needs one."""
WRONG_HINT = (
    "a question needs wrong answers (`wrong`, several joined by `;` or `|`), options that hold the right one too "
    "(`choices`, one --column for each), or a `topic`, whose other answers are then the wrong ones"
)
SEPARATORS = ("|", ";", "；", "\n")
"""What joins several wrong answers or aliases in a cell; the first of these that it has."""
REFERS = re.compile(
    r"(?i:all|none|any|both|neither|either) of (?:the )?(?:above|these|those|options|choices|answers|others)\b"
    r"|(?i:only) \(?[A-J]\)?\Z"
    r"|(?:(?i:both|neither|either|options?|answers?) )*\(?[A-J]\)?(?:(?:,| and| or| nor| &) ?\(?[A-J]\)?)+\Z"
)
"""An option that refers to other options, by place or letter: "None of the above", "Both A and B"."""
MATHS_BAR = re.compile(r"^\s*\||\|\s*$|\|\||[(\[{][^)\]}]*\|")
"""A bar that joins no answers: "|x|", "a || b", "P(A|B)"."""
JOINED = re.compile(r";| / |, |[、，،]| or |\(accept|\(or ", re.IGNORECASE)
"""What may join several answers, or stand in one."""
FINAL_ANSWER = "####"
"""What comes before the final answer of a worked solution, as in GSM8K."""
_ENTITY = re.compile(r"&(?:#\d+|#x[\da-fA-F]+|[A-Za-z]\w+);")
EMPTY = frozenset(("NaN", "nan", "NaT", "<NA>", "N/A", "n/a", "null", "NULL", "None"))
"""What programs write into an empty cell; some are answers, too."""
LONG_ANSWER = 40
"""Words of an answer that hardly any reply repeats."""


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
    fixed_split: Split | None = None
    where: str = field(default="", compare=False, repr=False)

    @property
    def split(self) -> Split:
        """`fixed_split` where there is one, else see `split_of`."""
        return self.fixed_split or split_of(self.id)

    @property
    def shown_wrong(self) -> tuple[str, ...]:
        """The wrong answers that fit beside the answer in a list of at most ten options: the first nine."""
        # - 1: the answer takes a place; ten options are A to J
        return self.wrong[: MAX_OPTIONS - 1]

    def options(self, seed: int) -> tuple[str, ...]:
        """The answer and the wrong answers as lettered options, 2 to 10 of them, in an order that seed and id fix."""
        options = [self.answer, *self.shown_wrong]
        # the id in the key: with the seed alone the answer would stand at the same letter in all questions
        random.Random(f"{seed}/{self.id}/options").shuffle(options)
        return tuple(options)


def split_of(question_id: str, train_end: float = 0.40, validation_end: float = 0.48) -> Split:
    """The split of a question by the sha256 of its id: 40% train, 8% validation, 52% test; the same on any machine."""
    share = hash_share(question_id)
    # the bounds are part of every published split: moving one makes earlier runs train on what is now measured
    return "train" if share < train_end else "validation" if share < validation_end else "test"


def hash_share(text: str) -> float:
    """A number in [0, 1) that depends on the text alone: the first 8 bytes of its sha256 over 2**64."""
    # not `hash`, which Python seeds anew in every process
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big") / 2**64


class HasId(Protocol):
    """A question, behavior, fact or pair."""

    @property
    def id(self) -> str: ...


class HasSplit(HasId, Protocol):
    """A question, behavior or fact."""

    @property
    def split(self) -> Split: ...


Item = TypeVar("Item", bound=HasSplit)
AnyItem = TypeVar("AnyItem", bound=HasId)


def of_split(items: Sequence[Item], split: str | None, noun: str) -> list[Item]:
    """The items (`noun` they are) of one split; all of them if it is None or "all". Raises DataError where there is no
    split of that name, or no item in it."""
    if split not in (None, "all", *SPLITS):
        raise DataError(unknown("split", str(split), (*SPLITS, "all")))
    chosen = [item for item in items if split in (None, "all", item.split)]
    if not chosen:
        raise DataError(
            f"None of the {len(items)} {noun} is in the {split} split: give more, or use another split, or all."
        )
    return chosen


def first_items(
    items: Iterable[AnyItem], n: int | None, seed: int, id_of: Callable[[AnyItem], str] = attrgetter("id")
) -> list[AnyItem]:
    """At most `n` items (None: all) in an order by seed and id alone, so that fewer are a part of more."""
    # sorted by hash, not sampled: a run with n=100 asks the first 100 of one with n=200
    return sorted(items, key=lambda item: hashlib.sha256(f"{seed}/{id_of(item)}".encode()).hexdigest())[:n]


def overlaps(a: str, b: str) -> bool:
    """True if the words of one text contain the words of the other in order ("York" in "New York").

    A reply that holds the longer text then also holds the shorter one, so it could not be graded as either. Words are
    those that graders compare; see `opct.data.words`.
    """
    short, long = sorted((_words(a), _words(b)), key=len)
    # + 1: the last place, too; whole words, so that "Niger" is not in "Nigeria"
    return any(long[i : i + len(short)] == short for i in range(len(long) - len(short) + 1))


@lru_cache(maxsize=1 << 14)
def _words(text: str) -> tuple[str, ...]:
    return canonical(words_of(text).folded)


# --------------------------------------------------------------------------------------------------- embedded facts


@cache
def _builtin() -> tuple[Question, ...]:
    # sorted: the order of a folder differs between file systems, and pairs are made in the order of the questions
    tables = sorted((EMBEDDED / "facts").glob("*.tsv"))
    return tuple(q for table in tables for q in _embedded(table.stem, table.read_text(encoding="utf-8")))


def _embedded(topic: str, text: str) -> Iterator[Question]:
    """The questions of a table: a header, then cells separated by tabs, without quoting; lists are joined by `|`."""
    # not splitlines: a cell may hold a sign such as U+2028 that splitlines takes for a line end
    for line in text.removesuffix("\n").split("\n")[1:]:
        identifier, question, answer, *lists = line.split("\t")
        aliases, wrong = (tuple(filter(None, cell.split("|"))) for cell in lists)
        yield Question(identifier, question, answer, aliases, wrong, topic)


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
    repeat question and answer the first one is read. A `context` stands before its question. The log says which columns
    were read, and what else a reader would want to know.

    Raises:
        DataError: with every fault of the file at once, each with file:line and what to do.
    """
    path = source_name(source)
    rows = read_rows(source, "question", known=known_columns("question", QUESTION_COLUMNS, columns))
    rows = _unescaped(path, rows)
    needed = ("question", "answer", WRONG_ANSWERS)
    role_columns = find_columns(path, rows, columns, QUESTION_COLUMNS, needed, hint=WRONG_HINT)
    # "input" is a usual name of both: a question must not stand before itself
    if role_columns.get("context") == role_columns["question"]:
        del role_columns["context"]
    # over all rows before any is read: whether "1" is the first or the second choice only the column tells
    numbers = _numbers(rows, role_columns) if "choices" in role_columns else Numbers()
    parsed, faults = parse_rows(rows, lambda row: _question(row, role_columns, file_stem(path), numbers))
    written = [(where, text) for where, q in parsed for text in (q.answer, *q.aliases, *q.wrong)]  # before any is drawn
    if "wrong" not in role_columns and "choices" not in role_columns:
        parsed, more = _with_drawn_wrong(parsed, seed)
        faults += more
    # made ids repeat where rows do, which is no fault
    if "id" in role_columns:
        faults += duplicate_ids((where, question.id) for where, question in parsed)
    refuse(path, faults)
    if "choices" in role_columns:
        parsed = _without_references(path, parsed)
    questions: dict[str, Question] = {}
    splits: dict[str, set[str]] = defaultdict(set)
    for where, question in parsed:
        questions.setdefault(question.id, replace(question, where=where))
        # by text: ids may differ for the same question, those made of its answers too, and then so may their splits
        splits[_fold(question.question)].add(question.split)
    warn_of_repeats(path, [where for where, question in parsed if where != questions[question.id].where], "questions")
    if leaks := [text for text, text_splits in splits.items() if "train" in text_splits and len(text_splits) > 1]:
        fault = "are trained on and, in another row, measured: keep one row of each, other right answers as `aliases`"
        log.warning("%s: %d question(s), such as %r, %s", path, len(leaks), leaks[0], fault)
    _note_reading(path, rows, role_columns, numbers)
    if "choices" not in role_columns:
        _warn_of_joined(path, parsed)
    if long := [where for where, question in parsed if len(question.answer.split()) > LONG_ANSWER]:
        fault = f"answers have more than {LONG_ANSWER} words, which no reply repeats: give the final answer alone"
        log.warning("%s: %d %s (first at %s)", path, len(long), fault, long[0])
    if empty := [(where, text) for where, text in written if text in EMPTY]:
        fault = f"answer(s), such as {empty[0][1]!r}, may stand for empty cells: then leave these rows out"
        log.warning("%s: %d %s (first at %s)", path, len(empty), fault, empty[0][0])
    return list(questions.values())


def _unescaped(path: str, rows: Sequence[Row]) -> list[Row]:
    """The rows with the characters that HTML entities (`&quot;`) stand for, which a log says.

    Before cells are split, since an entity ends with a separator.
    """
    n_found = 0

    def plain(value: Any) -> Any:
        nonlocal n_found
        # not where it is the subject: a question about HTML, an answer that is one
        if isinstance(value, str) and "html" not in value.lower() and not _ENTITY.fullmatch(value.strip()):
            text = html.unescape(value) if _ENTITY.search(value) else value
            n_found += text != value
            return text
        if isinstance(value, list):
            return [plain(item) for item in value]
        return {key: plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value

    read = [(where, plain(row)) for where, row in rows]
    if n_found:
        log.warning("%s: %d text(s) with HTML entities, such as &quot; are read as the characters", path, n_found)
    return read


def _without_references(path: str, parsed: list[tuple[str, Question]]) -> list[tuple[str, Question]]:
    """The questions without an option that refers to others: options are shuffled, or not shown at all."""
    kept, left_out = [], []
    for where, question in parsed:
        refers = [text for text in (question.answer, *question.wrong) if REFERS.match(text)]
        if refers:
            fault = (
                f"the option {refers[0]!r} refers to others, which are shuffled or not shown: write out what it means"
            )
            left_out.append((where, fault))
        else:
            kept.append((where, question))
    if left_out and not kept:
        refuse(path, left_out)
    if left_out:
        (where, fault), n = left_out[0], len(left_out)
        log.warning("%s: %d of %d questions left out: %s (first at %s)", path, n, len(parsed), fault, where)
    return kept


def _warn_of_joined(path: str, parsed: Sequence[tuple[str, Question]]) -> None:
    """Warn of answers that look like several in one, which no reply repeats."""
    for role, texts_of in (("right", lambda q: [q.answer]), ("wrong", lambda q: q.wrong)):
        joined = [(where, text) for where, q in parsed for text in texts_of(q) if JOINED.search(text)]
        if joined and len(joined) * 20 >= len(parsed):
            where, text = joined[0]
            what = f"{len(joined)} {role} answer(s), such as {text!r}, are each read as one"
            log.warning("%s: %s: if they hold several, join these by | (first at %s)", path, what, where)


def are_of_questions(names: Sequence[str], *, in_table: bool = False) -> bool:
    """True for the columns of a question file, False for those of pairs and of rows of one prompt.

    Args:
        in_table: they are of a CSV or TSV file, which holds questions unless they are those of prompts.
    """
    columns, keys = guess_columns(names, QUESTION_COLUMNS), {column_key(name) for name in names}
    is_complete = {"question", "answer"} <= set(columns) and any(role in columns for role in WRONG_ANSWERS)
    # close ones: a misspelled column must be refused as a pair's, not read as a question's
    is_pair = bool(get_close_matches("teacher_prompt", keys, cutoff=0.75))
    is_other_table = in_table and bool(keys) and "prompt" not in keys
    return not is_pair and (is_complete or {"question", "answer"} <= keys or is_other_table)


def _note_reading(
    path: str, rows: Sequence[Row], role_columns: Mapping[str, tuple[str, ...]], numbers: Numbers
) -> None:
    """Say which columns of a question file are used and how, and which are not."""
    used = ", ".join(f"{role}={'+'.join(columns)}" for role, columns in role_columns.items())
    log.info("%s: %s", path, used)
    if unread := unread_texts(rows, [name for columns in role_columns.values() for name in columns]):
        remedy = "if a question needs one, --column context=NAME (opct eval: columns.context=NAME)"
        log.warning("%s: not read: %s; %s", path, ", ".join(unread), remedy)
    if numbers.first == 1:
        log.warning("%s: the answers number the choices from 1: none is 0, and some are the last number", path)
    answers = [] if "choices" in role_columns else [_cell(row, role_columns, "answer") for _, row in rows]
    lines = [text for text in answers if isinstance(text, str) and "\n" in text.strip() and not _is_worked(text)]
    if lines:
        remedy = "if its lines are several answers, join these by |"
        log.warning("%s: %d answer(s) of several lines are each read as one: %s", path, len(lines), remedy)
    if n_worked := sum(map(_is_worked, answers)):
        log.warning("%s: of %d answers only what follows the last %s is read", path, n_worked, FINAL_ANSWER)


def _is_worked(answer: Any) -> bool:
    return isinstance(answer, str) and FINAL_ANSWER in answer


def _with_drawn_wrong(parsed: list[tuple[str, Question]], seed: int) -> tuple[list[tuple[str, Question]], list[Fault]]:
    """The questions with wrong answers drawn from other answers of their topic, and the faults."""
    answers: dict[str, list[str]] = defaultdict(list)
    for _, question in parsed:
        answers[question.topic].append(question.answer)
    drawn: list[tuple[str, Question]] = []
    faults: list[Fault] = []
    for where, question in parsed:
        right = (question.answer, *question.aliases)
        # dict.fromkeys, not set: the order before the shuffle must be the file's
        pool = [text for text in dict.fromkeys(answers[question.topic]) if not any(overlaps(text, r) for r in right)]
        # a generator for each question, not one for all: a row of another topic must not change its draw
        random.Random(f"{seed}/{question.id}/wrong").shuffle(pool)
        wrong: list[str] = []
        for text in pool:
            # among themselves, too: a reply with the longer one names both
            if len(wrong) < DRAWN_WRONG_ANSWERS and not any(overlaps(text, other) for other in wrong):
                wrong.append(text)
        if not wrong:
            fault = f"no other answer of topic {question.topic!r} can be a wrong one for {question.answer!r}"
            faults.append((where, f"{fault}: give wrong answers, or more rows of that topic"))
        drawn.append((where, replace(question, wrong=tuple(wrong))))
    return drawn, faults


# --------------------------------------------------------------------------------------------------------- one row


def _question(row: Any, columns: Mapping[str, tuple[str, ...]], stem: str, numbers: Numbers) -> Question:
    """The question of one row; a wrong answer that is an alias is left out, and options count once."""
    text = _cell(row, columns, "question")
    if not isinstance(text, str) or not text.strip():
        raise RowFault(f"the question (column {columns['question'][0]!r}) is {shorten(text)}: it must be text")
    _text(text)  # refuses what no tokenizer takes
    text = text.strip()
    if not is_quoted(context := _named_text(row, columns, "context", keep_lines=True), text):
        text = f"{context}\n\n{text}"
    aliases = _texts(row, columns.get("aliases", ()))
    if "choices" in columns:
        labels, texts = _choices(row, columns["choices"])
        if len(texts) < 2:
            names = ", ".join(columns["choices"])
            remedy = "a question needs at least 2, joined by `|` or `;` or labeled (`A) red B) blue`)"
            raise RowFault(f"{len(texts)} choice(s) in {names}: {remedy}")
        answer = texts[_choice_index(_cell(row, columns, "answer"), labels, texts, numbers)]
        # by text, not by index: an option that repeats the answer is not wrong
        wrong = [other for other in texts if other != answer]
        none_left = f"every choice is the answer {answer!r}: write another one"
    else:
        answer, more = _free_answer(_cell(row, columns, "answer"), columns["answer"][0])
        aliases += more
        wrong = _texts(row, columns.get("wrong", ()))
        if any(_fold(other) == _fold(answer) for other in wrong):
            raise RowFault(f"the wrong answers hold the answer {answer!r}: take it out of one of them")
        what = "is empty" if not wrong else "holds aliases of the right one alone"
        shown = " and ".join(map(repr, columns.get("wrong", ())))
        none_left = f"the wrong answer (column {shown}) {what}: write one (several joined by `;`), or leave the row out"
    # question and answer alone: the split hangs on the id, so an added alias or wrong answer must not move a question
    made_id = "q/" + hashlib.sha256(f"{text}\n{answer}".encode()).hexdigest()[:12]
    identifier = _named_text(row, columns, "id") if "id" in columns else made_id
    if not identifier:
        raise RowFault(f"the id (column {columns['id'][0]!r}) is empty: write one, all different")
    aliases = [alias for alias in dict.fromkeys(aliases) if _fold(alias) != _fold(answer)]
    right = set(map(_fold, aliases))
    # an alias among the wrong answers would be graded as correct
    wrong = [other for other in dict.fromkeys(wrong) if _fold(other) not in right]
    if not wrong and ("wrong" in columns or "choices" in columns):
        raise RowFault(none_left)
    topic = _named_text(row, columns, "topic") or stem
    return Question(identifier, text, answer, tuple(aliases), tuple(wrong), topic)


def _choices(row: Mapping[str, Any], names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """(labels, texts) of a list, `{"text": [...], "label": [...]}`, a list or object of these, or several columns."""
    value: Any = row.get(names[0])
    labels: Any = None
    if len(names) > 1:
        value = [_text(row.get(name)) for name in names]
        # empty cells at the end alone: a question with three options in a table with five columns
        while value and not value[-1]:
            value.pop()
    elif isinstance(value, str):
        try:
            value = _joined_choices(value)
        except RowFault as fault:
            remedy = "write a JSON list, or one column for each"
            raise RowFault(f"the choices (column {names[0]!r}) are {fault}: {remedy}") from fault
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        # not strict: there are 26 letters; more options than that are refused below for their number of labels
        labels = [item.get("label", letter) for item, letter in zip(value, LETTERS, strict=False)]
        value = {"text": [item.get("text") for item in value], "label": labels}
    if isinstance(value, Mapping):
        is_table = isinstance(value.get("text"), list)
        texts, labels = (value["text"], value.get("label")) if is_table else (list(value.values()), list(value))
    elif isinstance(value, list):
        texts = value
    else:
        raise RowFault(
            f"the choices (column {names[0]!r}) are {shorten(value)}: write a list, or {{'text': [...], 'label': ...}}"
        )
    texts, written = _without_labels([_text(text) for text in texts])
    labels = [_text(label) for label in labels or LETTERS[: len(texts)]]
    # labels of a column win over those in the texts
    if written and labels == list(LETTERS[: len(texts)]):
        labels = written
    if len(labels) != len(texts):
        raise RowFault(
            f"{len(texts)} choices but {len(labels)} labels: give one label a choice (at most {len(LETTERS)})"
        )
    if "" in texts:
        raise RowFault(f"choice {texts.index('') + 1} of {len(texts)} is empty: write it, or leave it out")
    return labels, texts


# (?!\d): "1.5" is a number, not the option 1 with the text 5
_LABEL = r"[(\[{<（【]?([A-Za-z]|\d{1,2})(?:[)\]}>.:）】．：、](?!\d)|\s[-–—](?=\s))"
_LABELED = re.compile(rf"{_LABEL}\s*(\S.*)")


def _joined_choices(text: str) -> Any:
    """The options of one cell: JSON, or joined by a separator, or each behind its label: "A) red B) blue"."""
    labeled = _labeled_parts(text)
    if not labeled and text.strip().startswith(("[", "{")):
        # a list that is no JSON may be one of Python, which `_split` reads or refuses
        with contextlib.suppress(RowFault) if _is_list(text) else contextlib.nullcontext():
            return parse_json(text)
    parts = _split(text)
    # "A. Lincoln; B. Franklin" is joined by ";": its labels are the options' own, or those of `_without_labels`
    is_joined = len(parts) > 1 and all(_LABELED.fullmatch(part) for part in parts)
    return labeled if labeled and not is_joined else parts


def _labeled_parts(text: str) -> list[str]:
    """The options of "A) red B) blue", each with its label; none where the labels do not begin the text or count on."""
    text, starts, code, style = text.strip(), list[int](), 0, ""
    for match in re.finditer(rf"(?:^|(?<=[\s,;|/])){_LABEL}(?=\s)", text):
        label, around = match[1], match[0].replace(match[1], "", 1)
        new = int(label) if label.isdigit() else ord(label)
        # of the first one's style and next in turn: in "A) group B. B) ..." the "B." is a word
        if (match.start() == 0) if not starts else (around == style and new == code + 1):
            starts.append(match.start())
            code, style = new, around
    ends = [*starts[1:], None]
    parts = [text[start:end] for start, end in zip(starts, ends, strict=False)]
    parts = [re.sub(r"[\s,;|/]+(?:(?:and|or)\s*)?\Z", "", part) for part in parts]
    return parts if _without_labels(parts)[1] else []


def _without_labels(texts: list[str]) -> tuple[list[str], list[str]]:
    """(texts, labels) of "(A) Lyon", "B. Nice" ...; no labels where one has none, or they do not count on by one."""
    matches = [match for text in texts if (match := _LABELED.fullmatch(text))]
    labels = [match[1] for match in matches]
    codes = sorted(int(label) if label.isdigit() else ord(label) for label in labels)
    starts = codes[:1] in ([0], [1], [ord("A")], [ord("a")])
    # all or none, and in a row: "A. Lincoln" among names is no label
    if not starts or len(texts) < 2 or codes != list(range(codes[0], codes[0] + len(texts))):
        return texts, []
    return [match[2] for match in matches], labels


class Numbers(NamedTuple):
    """What an answer to choices means that is a number, by all rows of a file: a price of 3, or the third choice."""

    first: int | None = 0
    """The number of the first choice; None if 0 and 1 both fit every row."""
    are_texts: bool | None = True
    """True for the text of a choice, False for its index, None where the rows do not tell."""


def _numbers(rows: Sequence[Row], columns: Mapping[str, tuple[str, ...]]) -> Numbers:
    read = []
    for _, row in rows:
        with contextlib.suppress(RowFault):  # it is a fault of its row
            labels, texts = _choices(row, columns["choices"]) if isinstance(row, Mapping) else ([], [])
            answer = _answer_text(_cell(row, columns, "answer"), labels, texts) if texts else ""
            # a label or letter says nothing about numbers
            if texts and _lettered_choice(answer, labels, texts) is None:
                read.append((answer, texts))
    firsts = [first for first in (0, 1) if all(_index(answer, texts, first) is not None for answer, texts in read)]
    if all(answer in texts for answer, texts in read):
        # also all indices, of other choices: neither reading is more likely
        differ = any(texts[_index(answer, texts, first) or 0] != answer for first in firsts for answer, texts in read)
        return Numbers(None, None) if differ else Numbers()
    are_texts = False if firsts else None
    used = [(int(a), len(texts)) for a, texts in read if _is_number(a) and (firsts or a not in texts)]
    # a number above the count is wrong either way: count from 0, so that only its row is refused
    if not used or any(number == 0 or number > count for number, count in used):
        return Numbers(0, are_texts)
    # the number of choices itself is only an index if counting begins at 1
    return Numbers(1 if any(number == count for number, count in used) else None, are_texts)


def _choice_index(answer: Any, labels: list[str], texts: list[str], numbers: Numbers) -> int:
    """Which choice is right: by label, then by letter, then by text or index."""
    text, shown = _answer_text(answer, labels, texts), ", ".join(labels)
    if (lettered := _lettered_choice(text, labels, texts)) is not None:
        return lettered
    firsts = (0, 1) if numbers.first is None else (numbers.first,)
    indices = [index for first in firsts if (index := _index(text, texts, first)) is not None]
    if text in texts and numbers.are_texts is not False:
        if not numbers.are_texts and any(texts[index] != text for index in indices):
            raise RowFault(f"the answer {text!r} is the text of a choice and the index of another: give its letter")
        return texts.index(text)
    if numbers.first is None and indices:
        raise RowFault(
            f"the answer {text} may count from 0 or from 1 (no row answers 0, none the number of its choices): give "
            f"labels ({shown}) or the texts of choices"
        )
    if not indices:
        raise RowFault(
            f"the answer {answer!r} is no choice: give a label ({shown}), a text, or an index of 0..{len(texts) - 1}"
        )
    return indices[0]


def _answer_text(answer: Any, labels: list[str], texts: list[str]) -> str:
    """The answer without its label ("(B) blue"), or the label alone ("(B)")."""
    # bool first: True is an int, and would be choice 1
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise RowFault(
            f"the answer is {answer!r}: give a label ({', '.join(labels)}), the text of a choice, or an index"
        )
    text = _text(answer)
    # `not in texts`: an option may itself look like a label, "(B)"
    if text not in texts and (match := re.fullmatch(_LABEL, text)):
        return match[1]
    if text not in texts and (match := _LABELED.fullmatch(text)) and match[2] in texts:
        return match[2]
    return text


def _lettered_choice(text: str, labels: list[str], texts: list[str]) -> int | None:
    # labels before letters: a file may label its options C, A, B
    if text in labels:
        return labels.index(text)
    return LETTERS.index(text.upper()) if len(text) == 1 and text.upper() in LETTERS[: len(texts)] else None


def _is_number(text: str) -> bool:
    # isascii: "²".isdigit() is True, and int raises
    return text.isascii() and text.isdigit() and len(text) < 4


def _index(text: str, texts: list[str], first: int) -> int | None:
    """The index that a text is, counted from `first`, if there is such a choice."""
    # not below 0: as a Python index, -1 would be the last choice
    return int(text) - first if _is_number(text) and 0 <= int(text) - first < len(texts) else None


def _free_answer(value: Any, column: str) -> tuple[str, list[str]]:
    """The answer and further correct forms, from text, a number, a list, or {"value" or "text", "aliases"}."""
    more: list[Any] = []
    if isinstance(value, str) and _is_list(value):
        value = _list_of(value, list[str])
    elif isinstance(value, str) and not _is_worked(value) and not MATHS_BAR.search(value):
        value = value.split("|")  # not at ";" or a line end: these stand in one answer, too
    if isinstance(value, Mapping):
        more = list(value.get("aliases") or [])
        value = value.get("value", value.get("text"))
    if isinstance(value, list):
        value, more = (value[0] if value else None), [*value[1:], *more]
    if _is_worked(value):
        # the last "####": a solution may have one before
        value = value.rpartition(FINAL_ANSWER)[2]
    answer = _text(value)
    if not answer:
        raise RowFault(f"the answer (column {column!r}) is empty: write it, or leave the row out")
    return answer, [_text(item) for item in more if _text(item)]


def _texts(row: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The texts of several columns: one each in `best_incorrect_answer` and numbered ones, maybe a list in others."""
    texts: list[str] = []
    for name in names:
        value, key = row.get(name), column_key(name)
        # one answer a cell: its ";" belongs to the text
        is_one = key == "best_incorrect_answer" or key[-1:].isdigit()
        if isinstance(value, list | tuple):
            texts += [_text(item) for item in value]
        elif isinstance(value, str) and (_is_list(value) or not is_one):
            texts += _without_numbers(value, _split(value))
        else:
            texts.append(_text(value))
    return [text for text in texts if text]


def _without_numbers(cell: str, parts: list[str]) -> list[str]:
    """The parts of a cell with a line each, without the numbers or bullets before all of them: "1. Paris"."""
    if "\n" not in cell.strip() or len(parts) < 2:
        return parts
    bullets = [re.fullmatch(r"[-•*–]\s+(\D.*)", part) for part in parts]
    return [match[1] for match in bullets if match] if all(bullets) else _without_labels(parts)[0]


def _split(text: str) -> list[str]:
    if _is_list(text):
        return [_text(item) for item in _list_of(text, list)]
    separator = next((mark for mark in SEPARATORS if mark in text.strip()), ";")
    return [_text(part) for part in text.split(separator) if part.strip()]


def _is_list(text: str) -> bool:
    """True for a cell that looks like a list, as JSON or Python write it."""
    return text.lstrip().startswith("[") and text.rstrip().endswith("]")


def _list_of(text: str, model: Any) -> Any:
    try:
        return parse_json(text, model)
    except RowFault as fault:
        remedy = 'write it as ["first", "second"]; if the brackets belong to a text, as ["[0, 1]"]'
        if items := _python_texts(text):
            return items
        raise RowFault(f"the cell {text[:60]!r} looks like a list, but is no JSON list of texts: {remedy}") from fault


def _python_texts(text: str) -> list[str]:
    """The texts of a list or an array as Python and NumPy print it, whose texts stand without commas; else none."""
    with contextlib.suppress(tokenize.TokenError, SyntaxError, ValueError):
        tokens = [
            token for token in tokenize.generate_tokens(io.StringIO(text.strip()).readline) if token.string.strip()
        ]
        texts = [token.string for token in tokens if token.type == tokenize.STRING]
        items = [ast.literal_eval(item) for item in texts]
        # nothing but texts in one pair of brackets: [0, 1] is no two answers, and an f-string is no text
        marks = [token.string for token in tokens if token.type != tokenize.STRING]
        if marks.count("[") == 1 and {*marks} <= {"[", "]", ","} and all(isinstance(item, str) for item in items):
            return items
    return []


def _cell(row: Any, columns: Mapping[str, tuple[str, ...]], role: str) -> Any:
    return row.get(columns[role][0]) if role in columns and isinstance(row, Mapping) else None


_WHOLE_FLOAT = re.compile(r"-?\d+\.0")


_MIDNIGHT = re.compile(r"(\d{4}-\d\d-\d\d)[T ]00:00:00(?:\.0+)?(?:Z|[+-]00:?00)?")
"""A day as programs write it that know only points in time."""


def _named_text(row: Any, columns: Mapping[str, tuple[str, ...]], role: str, *, keep_lines: bool = False) -> str:
    """The text of a role's cell, "" where it has none; passages in a list are joined by blank lines. Raises RowFault
    where it holds other values."""
    value = _cell(row, columns, role)
    if role == "context" and isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = "\n\n".join(value)
    if isinstance(value, list | tuple | Mapping):
        kind = "an object" if isinstance(value, Mapping) else "a list"
        raise RowFault(f"the {role} (column {columns[role][0]!r}) is {kind}: write one text, or rename the column")
    return _text(value, keep_lines=keep_lines)


def is_quoted(context: str, text: str) -> bool:
    """Whether a text needs no such context: it is empty, or stands there already; a number may do so by chance."""
    return not context.strip() or (context in text and not context.strip().isdigit())


def _text(value: Any, *, keep_lines: bool = False) -> str:
    """A cell as text. Raises RowFault where it is true or false, for which a reply has words of its own, holds several
    values, or half of a character."""
    # bool: str(True) is "True", and a reply says "yes"
    if isinstance(value, bool | list | tuple | Mapping):
        kind = f"the JSON value {str(value).lower()}" if isinstance(value, bool) else f"a {type(value).__name__}"
        raise RowFault(f'{kind} stands where a text belongs: write the word of a reply, such as "yes" or "True"')
    text = "" if value is None else str(value)
    if _WHOLE_FLOAT.fullmatch(text):  # a column of whole numbers with an empty cell; a CSV has it as text
        text = text[:-2]
    text = _MIDNIGHT.sub(r"\1", text) if _MIDNIGHT.fullmatch(text) else text
    if isinstance(value, float) and len(text) > 12 and 1e-30 < abs(value) < 1e30:
        short = f"{value:.7g}"  # of a column of 32 bits: 3.14 is 3.140000104904175 in 64
        text = short if struct.unpack("f", struct.pack("f", float(short)))[0] == value else text
    if SURROGATE.search(text):
        raise RowFault(f"{text[:20]!r} holds half of a character: write the character whole")
    return text.strip() if keep_lines else " ".join(text.split())


def _fold(text: str) -> str:
    return " ".join(text.split()).casefold()
