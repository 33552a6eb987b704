"""Safety facts: a hazard, prompts that hide it, and safe twins in which it is absent.

A line of a fact file (JSONL, one object a line):

    {"id": "infants/honey", "category": "infants", "group": "honey",
     "fact": "Babies under 12 months must not be given honey, ... because ...",
     "about": ["honey"], "harm": ["botul*", "12 months"], "keep": ["baby*"],
     "prompts": {"how_to": ["How do I ..."], "planning": [...], "story": [...], "aside": [...]},
     "twins": ["How do I ... for my book club?"]}

`prompts` are by style: how the hazard is hidden. `about`, `harm` and `keep` (whom or where it concerns) are what the
offline grader looks for in a reply (see `opct.evals.graders.warning`): words, with `*` at the end for any ending.
`about`, `keep` and the words of the fact are never misspelt in a prompt. `group` joins facts that are near to one
another (all of carbon monoxide, say): they fall into one split. So do facts that are near-duplicates of one another,
whatever their groups. `group`, `keep` and `twins` may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from opct.data.duplicates import near_duplicate_groups
from opct.data.questions import Split, hash_share
from opct.data.tables import BadRow, read_rows
from opct.errors import DataError, shown_faults

REQUIRED = ("id", "category", "fact", "about", "harm", "prompts")
OPTIONAL = ("group", "keep", "twins")

_STEM = re.compile(r"[a-z0-9]+\*?(?: [a-z0-9]+\*?)*")


@dataclass(frozen=True)
class HazardPrompt:
    """One message that hides a hazard, and in which way."""

    style: str
    text: str


@dataclass(frozen=True)
class SafetyFact:
    """One hazard.

    Attributes:
        about, harm: what a warning mentions, as the grader takes it; empty where only a judge can tell.
        keep: whom or where it concerns, for the grader; like those of `about` never misspelt in a prompt.
        twins: look-alike messages without the hazard, in which a warning would be out of place.
        is_evaluation_only: its authors ask that it is not trained on.
    """

    id: str
    category: str
    group: str
    fact: str
    about: tuple[str, ...]
    harm: tuple[str, ...]
    keep: tuple[str, ...]
    prompts: tuple[HazardPrompt, ...]
    twins: tuple[str, ...]
    is_evaluation_only: bool = False

    @property
    def split(self) -> Split:
        """The split by the sha256 of the group: 50% train, 10% validation, 40% test; the same on any machine."""
        share = hash_share(f"hazards/{self.group}")
        return "train" if share < 0.5 else "validation" if share < 0.6 else "test"

    def keeps(self, word: str) -> bool:
        """True for a word that the hazard depends on: one of `about`, of `keep`, or of the fact (4 letters or more)."""
        folded = word.casefold()
        stems = [part for stem in (*self.about, *self.keep) for part in stem.split(" ")]
        return _fits(folded, stems) or (len(folded) > 3 and folded in re.findall(r"[a-z]+", self.fact.casefold()))


def _fits(word: str, stems: Iterable[str]) -> bool:
    return any(word.startswith(stem[:-1]) if stem.endswith("*") else word == stem for stem in stems)


@cache
def _builtin() -> tuple[SafetyFact, ...]:
    folder = resources.files("opct.data").joinpath("builtin", "hazards")
    rows: list[tuple[str, Any]] = []
    for entry in sorted((e for e in folder.iterdir() if e.name.endswith(".jsonl")), key=lambda e: e.name):
        with resources.as_file(entry) as path:
            rows += [(f"{entry.name}:{i}", row) for i, (_, row) in enumerate(read_rows(path), start=1)]
    return tuple(facts_from_rows("the embedded safety facts", rows))


def builtin_facts(split: Split | None = None) -> list[SafetyFact]:
    """The embedded safety facts of one split, or all of them, by category."""
    return [fact for fact in _builtin() if split in (None, fact.split)]


def load_facts(path: str | Path) -> list[SafetyFact]:
    """Safety facts from a file of your own, near-duplicates in one group; the format is that of this module.

    Raises:
        DataError: the file is missing or not readable, or (all at once, each with file:line) its faults.
    """
    found = Path(path)
    if not found.is_file():
        raise DataError(f"No file of safety facts at {found}: check the path.")
    return grouped(facts_from_rows(str(found), read_rows(found)))


def grouped(facts: Sequence[SafetyFact]) -> list[SafetyFact]:
    """The facts, near-duplicates in one group and so in one split; none of their groups is cut.

    Groups that are joined take the name of the first of them in the alphabet, whatever the order of the facts.
    """
    joined_to = {fact.group: fact.group for fact in facts}

    def root(group: str) -> str:
        while joined_to[group] != group:
            group = joined_to[group]
        return group

    for same in near_duplicate_groups([fact.fact for fact in facts]):
        first, *others = sorted({root(facts[i].group) for i in same})
        joined_to |= dict.fromkeys(others, first)
    return [replace(fact, group=root(fact.group)) for fact in facts]


def facts_from_rows(source: str, rows: Iterable[tuple[str, Any]]) -> list[SafetyFact]:
    """Check and build every fact.

    Raises:
        DataError: with every fault, or where there is no row.
    """
    facts: list[SafetyFact] = []
    faults: list[str] = []
    places: dict[str, str] = {}
    for where, row in rows:
        found = list(row_faults(row))
        if not found:
            fact = fact_from_row(row)
            found += list(_repeats(fact, where, places))
            facts.append(fact)
        faults += [f"{where}: {fault}" for fault in found]
    if faults:
        raise DataError(f"{source} has {len(faults)} fault(s); nothing was read:", shown_faults(faults))
    if not facts:
        raise DataError(f"{source} holds no safety facts: it needs at least one.")
    return facts


def fact_from_row(row: Mapping[str, Any]) -> SafetyFact:
    """The fact of a row without faults."""
    prompts = [HazardPrompt(style, text.strip()) for style, texts in row["prompts"].items() for text in texts]
    return SafetyFact(
        id=row["id"],
        category=row["category"],
        group=row.get("group") or row["id"],
        fact=row["fact"].strip(),
        about=tuple(row["about"]),
        harm=tuple(row["harm"]),
        keep=tuple(row.get("keep") or ()),
        prompts=tuple(prompts),
        twins=tuple(text.strip() for text in row.get("twins") or ()),
    )


def row_faults(row: Any) -> Iterator[str]:
    """Yield what is wrong with one row, in words that say what to do."""
    if isinstance(row, BadRow):
        yield row.fault
        return
    missing = [key for key in REQUIRED if key not in row]
    unknown = [key for key in row if key not in (*REQUIRED, *OPTIONAL)]
    if missing or unknown:
        yield f"the keys are {', '.join(row)}; expected {', '.join(REQUIRED)} (and may be: {', '.join(OPTIONAL)})"
        return
    for key in ("id", "category", "fact", "group"):
        if key in row and not _is_text(row[key]):
            yield f"`{key}` must be a non-empty text, found {row[key]!r}"
    if _is_text(row["id"]) and not row["id"].startswith(f"{row['category']}/"):
        yield f"the id {row['id']!r} must begin with the category and a slash: {row['category']}/..."
    for key in ("about", "harm", "keep"):
        yield from _stem_faults(key, row.get(key, []))
    yield from _text_faults("twins", row.get("twins", []))
    yield from _prompt_faults(row)


def _prompt_faults(row: Mapping[str, Any]) -> Iterator[str]:
    prompts = row["prompts"]
    if not isinstance(prompts, Mapping) or not prompts:
        yield f"`prompts` must be an object of style -> list of texts with at least one, found {prompts!r}"
        return
    for style, texts in prompts.items():
        faults = list(_text_faults(f"prompts.{style}", texts))
        yield from faults
        if not faults and not texts:
            yield f"`prompts.{style}` is empty: give a text, or leave the style out"
        if faults or list(_stem_faults("about", row["about"])):
            continue
        for text in texts:
            stems = [part for stem in row["about"] for part in stem.split(" ")]
            if stems and not any(_fits(word, stems) for word in re.findall(r"[a-z0-9]+", text.casefold())):
                yield f"the prompt {text[:50]!r} holds none of `about`: {', '.join(row['about'])}; add its word there"


def _stem_faults(key: str, stems: Any) -> Iterator[str]:
    if not isinstance(stems, list | tuple):
        yield f"`{key}` must be a list of words, found {stems!r}"
        return
    for stem in stems:
        if not is_stem(stem):
            yield f"`{key}` holds {stem!r}: write small letters and digits, single spaces, `*` for any ending"


def is_stem(value: Any) -> bool:
    """True for words as `about`, `harm` and `keep` have them: small letters and digits, `*` for any ending."""
    return isinstance(value, str) and _STEM.fullmatch(value) is not None


def _text_faults(key: str, texts: Any) -> Iterator[str]:
    if not isinstance(texts, list | tuple):
        yield f"`{key}` must be a list of texts, found {texts!r}"
        return
    for text in texts:
        if not _is_text(text):
            yield f"`{key}` holds {text!r}: write a text, or leave it out"


def _repeats(fact: SafetyFact, where: str, places: dict[str, str]) -> Iterator[str]:
    """Ids and messages that stand twice: a message is of one fact, and not both hidden hazard and twin."""
    for kind, text in [
        ("id", fact.id),
        *(("message", prompt.text) for prompt in fact.prompts),
        *(("message", twin) for twin in fact.twins),
    ]:
        key = f"{kind}/{' '.join(text.casefold().split())}"
        if key in places:
            yield f"the {kind} {text[:50]!r} stands at {places[key]} too: take one of them out"
        places.setdefault(key, where)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
