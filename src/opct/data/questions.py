"""Questions: a short answer, the other ways to write it, and wrong answers of the same kind.

`builtin_questions` reads the embedded fact tables (written for this package); `load_questions` reads any
question-answer or multiple-choice file. `split_of` decides which questions train and which are only ever measured on.
"""

from __future__ import annotations

import hashlib
import random
import re
import unicodedata
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from opct.data.question_files import Columns, RowFault, RowParts, find_columns, parse_row
from opct.data.tables import BadRow, file_stem, read_rows
from opct.errors import DataError, shown_faults

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

FACT_COLUMNS = ("id", "question", "answer", "aliases", "wrong")
MAX_OPTIONS = 10
DRAWN_WRONG_ANSWERS = 3


@dataclass(frozen=True)
class Question:
    """One fact: the question, its answer, further correct forms (`aliases`) and wrong answers of the same kind."""

    id: str
    question: str
    answer: str
    aliases: tuple[str, ...]
    wrong: tuple[str, ...]
    topic: str

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
    questions: list[Question] = []
    for table in sorted(
        (entry for entry in folder.iterdir() if entry.name.endswith(".tsv")), key=lambda entry: entry.name
    ):
        questions += facts_from_tsv(table.name, table.read_text(encoding="utf-8"))
    return tuple(questions)


def builtin_questions() -> list[Question]:
    """The embedded facts, by topic and in the order of their tables."""
    return list(_builtin())


def facts_from_tsv(name: str, text: str) -> list[Question]:
    """Read one embedded fact table: tab-separated, no quoting, lists joined by `|`, the topic being the table's name.

    Raises:
        DataError: with every fault of the table.
    """
    header, *lines = text.removesuffix("\n").split("\n")
    if tuple(header.split("\t")) != FACT_COLUMNS:
        raise DataError(f"{name}:1: the header is {header!r}: it must be {' '.join(FACT_COLUMNS)}, separated by tabs.")
    questions, faults = [], []
    for number, line in enumerate(lines, start=2):
        cells = line.split("\t")
        if len(cells) != len(FACT_COLUMNS):
            faults.append(f"{name}:{number}: {len(cells)} cells, expected {len(FACT_COLUMNS)}")
            continue
        identifier, question, answer, aliases, wrong = cells
        topic = name.removesuffix(".tsv")
        found = Question(identifier, question, answer, _listed(aliases), _listed(wrong), topic)
        if not (identifier and question and answer and found.wrong):
            faults.append(f"{name}:{number}: only `aliases` may be empty")
        questions.append(found)
    if faults:
        raise DataError(f"The fact table {name} has {len(faults)} fault(s):", tuple(faults))
    return questions


def _listed(cell: str) -> tuple[str, ...]:
    return tuple(part for part in cell.split("|") if part)


# ------------------------------------------------------------------------------------------------------ other files


def load_questions(path: str | Path, columns: Columns | None = None, *, seed: int = 0) -> list[Question]:
    """Questions from any question-answer or multiple-choice file (JSONL, a JSON list, CSV, TSV; also gzipped).

    Args:
        path: the file.
        columns: which column holds what, where the guess is wrong: role -> column name, or names for `choices` and
        `wrong`.
            The roles are id, question, answer, aliases, wrong, choices, topic.
        seed: fixes which wrong answers are drawn where the file has none.

    Where a file names no wrong answers, three are drawn from the answers to other questions of the same topic. Rows
    without an id get one from their question and answer, so that neither their order nor other rows nor the name of the
    file change their split; of rows that repeat question and answer the first one is read.

    Raises:
        DataError: with every fault of the file at once, each with file:line and what to do.
    """
    path = Path(path)
    rows = read_rows(path)
    if not rows:
        raise DataError(f"{path} holds no questions: it needs at least one row.")
    found = find_columns(path, rows, columns)
    parsed: list[tuple[str, Question]] = []
    faults: list[str] = []
    for where, row in rows:
        try:
            parsed.append((where, _question(path, _parts(row, found))))
        except RowFault as fault:
            faults.append(f"{where}: {fault}")
    if "wrong" not in found and "choices" not in found:
        parsed, more = _with_drawn_wrong(parsed, "topic" in found, seed)
        faults += more
    else:
        faults += [f"{where}: no wrong answer is left: give at least one" for where, q in parsed if not q.wrong]
    questions, more = _distinct(parsed, "id" in found)
    faults += more
    if faults:
        raise DataError(f"{path} has {len(faults)} fault(s); nothing was read:", shown_faults(faults))
    return questions


def _parts(row: Any, found: Mapping[str, tuple[str, ...]]) -> RowParts:
    if isinstance(row, BadRow):
        raise RowFault(row.fault)
    parts = parse_row(row, found)
    if "id" in found and parts.id is None:
        raise RowFault(f"the id (column {found['id'][0]!r}) is empty: write one, all different")
    return parts


def _question(path: Path, parts: RowParts) -> Question:
    content = f"{parts.question}\n{parts.answer}"
    made = f"q/{hashlib.sha256(content.encode('utf-8')).hexdigest()[:12]}"
    topic = parts.topic or file_stem(path)
    return Question(parts.id or made, parts.question, parts.answer, parts.aliases, parts.wrong, topic)


def _distinct(parsed: list[tuple[str, Question]], has_id: bool) -> tuple[list[Question], list[str]]:
    seen: dict[str, str] = {}
    questions, faults = [], []
    for where, question in parsed:
        if question.id not in seen:
            questions.append(question)
        elif has_id:
            faults.append(f"{where}: duplicate id {question.id!r}, first at {seen[question.id]}: ids must differ")
        seen.setdefault(question.id, where)
    return questions, faults


def _with_drawn_wrong(
    parsed: list[tuple[str, Question]], has_topic: bool, seed: int
) -> tuple[list[tuple[str, Question]], list[str]]:
    """The questions with wrong answers drawn from other answers of their topic, and what stands in the way of that."""
    if not has_topic:
        remedy = (
            "add a column `wrong` (several joined by `;` or `|`), `choices`, or a `topic` to draw them from; where "
            "they have other names, say --column wrong=NAME"
        )
        return parsed, [f"no row has wrong answers, and there is no topic column to draw them from: {remedy}"]
    answers: dict[str, list[str]] = defaultdict(list)
    for _, question in parsed:
        answers[question.topic].append(question.answer)
    drawn, faults = [], []
    for where, question in parsed:
        right = (question.answer, *question.aliases)
        pool = [text for text in dict.fromkeys(answers[question.topic]) if not any(overlaps(text, r) for r in right)]
        random.Random(f"{seed}/{question.id}/wrong").shuffle(pool)
        wrong: list[str] = []
        for text in pool:
            if len(wrong) < DRAWN_WRONG_ANSWERS and not any(overlaps(text, other) for other in wrong):
                wrong.append(text)
        if not wrong:
            faults.append(
                f"{where}: no other answer of topic {question.topic!r} can be a wrong one for {question.answer!r}: "
                "give wrong answers, or more rows of that topic"
            )
        drawn.append((where, replace(question, wrong=tuple(wrong))))
    return drawn, faults
