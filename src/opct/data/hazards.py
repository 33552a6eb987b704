"""Safety facts: a hazard, prompts that hide it, and safe look-alikes in which it is absent.

A line of a fact file (JSONL, one object a line):

    {"id": "infants/honey", "category": "infants", "group": "honey",
     "fact": "Babies under 12 months must not be given honey, ... because ...",
     "about": ["honey"], "harm": ["botul*", "12 months"], "keep": ["baby*"],
     "prompts": {"how_to": ["How do I ..."], "planning": [...], "story": [...], "aside": [...]},
     "twins": ["How do I ... for my book club?"]}

`prompts` are by style: how the hazard is hidden. `about`, `harm` and `keep` (whom or where it concerns) are the words
that the offline grader looks for in a reply (`opct.evals.graders.warning`), with `*` for any ending. Words of `about`,
`keep` and the fact are never misspelt in a prompt. `group` joins related facts (all of carbon monoxide, say) into one
split; near-duplicate facts are joined too. `group`, `keep` and `twins` may be left out.

SAGE-Eval (Chen, Davidson and Lake 2025, arXiv 2505.21828) is read in the three layouts of its authors: a JSON object of
facts, and two kinds of tables (`SAGE_COLUMNS`). It is for evaluation only, and has no words for the offline grader, so
its replies are unscored until a judge reads them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from opct.data.duplicates import near_duplicate_groups
from opct.data.questions import Split, hash_share
from opct.data.tables import (
    Fault,
    Row,
    RowFault,
    column_names,
    find_single_columns,
    parse_rows,
    read_rows,
    refuse,
)
from opct.errors import DataError

BUILTIN = "builtin"
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
        about, harm: what a warning mentions, for the grader; empty if only a judge can tell.
        keep: whom or where it concerns, for the grader; like `about` never misspelt in a prompt.
        counterparts: look-alike messages without the hazard, in which a warning would be out of place (`twins` in the
            file).
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
    counterparts: tuple[str, ...]
    is_evaluation_only: bool = False

    @property
    def split(self) -> Split:
        """The split by the sha256 of the group: 50% train, 10% validation, 40% test; the same on any machine."""
        share = hash_share(f"hazards/{self.group}")
        return "train" if share < 0.5 else "validation" if share < 0.6 else "test"

    def keeps(self, word: str) -> bool:
        """True for a word that the hazard depends on: one of `about`, of `keep`, or of the fact (4 letters or more)."""
        folded = word.casefold()
        in_fact = len(folded) > 3 and folded in re.findall(r"[a-z]+", self.fact.casefold())
        return in_fact or _fits(folded, (*self.about, *self.keep))


def _fits(word: str, stems: Iterable[str]) -> bool:
    parts = [part for stem in stems for part in stem.split(" ")]
    return any(word.startswith(part[:-1]) if part.endswith("*") else word == part for part in parts)


def is_stem(value: Any) -> bool:
    """True for words as `about`, `harm` and `keep` have them: small letters and digits, `*` for any ending."""
    return isinstance(value, str) and _STEM.fullmatch(value) is not None


@cache
def _builtin() -> tuple[SafetyFact, ...]:
    folder = resources.files("opct.data").joinpath("builtin", "hazards")
    rows: list[Row] = []
    for entry in sorted((e for e in folder.iterdir() if e.name.endswith(".jsonl")), key=lambda e: e.name):
        with resources.as_file(entry) as path:
            rows += read_rows(path)
    return tuple(facts_from_rows("the embedded safety facts", rows))


def builtin_facts(split: Split | None = None) -> list[SafetyFact]:
    """The embedded safety facts of one split, or all of them, by category."""
    return [fact for fact in _builtin() if split in (None, fact.split)]


def load_facts(
    source: str | Path = BUILTIN, *, safe_source: str | Path | None = None, augmented: bool = False
) -> list[SafetyFact]:
    """The facts of `builtin`, of a file of facts, or of SAGE-Eval; near-duplicates are in one group.

    Args:
        source: `builtin`, a file, or a hub data set at a revision (`hf:owner/name@commit`).
        safe_source: SAGE-Eval's safe prompts if they come apart (`Safe-SAGE-Eval`); only facts of `source` are kept.
        augmented: SAGE-Eval's own typos and tones too; else the prompts as they were written.

    Raises:
        DataError: the source is missing or unreadable, or (all at once, each with its place) its faults; or it is not
            SAGE-Eval and what only that has is asked for.
    """
    is_builtin = str(source) == BUILTIN
    rows = [] if is_builtin else _rows(source)
    if "safety_fact" in column_names(rows):
        return grouped(_sage_facts(source, rows, safe_source, augmented))
    if safe_source is not None or augmented:
        raise DataError(
            f"Safe prompts in a set of their own, and augmented prompts, exist only for SAGE-Eval, which {source} is "
            "not: leave them out, or use that set."
        )
    return builtin_facts() if is_builtin else grouped(facts_from_rows(str(source), rows))


def grouped(facts: Sequence[SafetyFact]) -> list[SafetyFact]:
    """The facts, near-duplicates in one group and so in one split; no group is cut.

    Joined groups take the name of the first of them in the alphabet, whatever the order of the facts.
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


# ------------------------------------------------------------------------------------------------- files of our format


def facts_from_rows(source: str, rows: Iterable[Row]) -> list[SafetyFact]:
    """Check and build every fact.

    Raises:
        DataError: with every fault; or there is no row.
    """
    facts, faults = parse_rows(rows, _fact)
    refuse(source, [*faults, *_repeats(facts)])
    if not facts:
        raise DataError(f"{source} holds no safety facts: it needs at least one.")
    return [fact for _, fact in facts]


def _fact(row: Mapping[str, Any]) -> SafetyFact:
    if faults := list(_row_faults(row)):
        raise RowFault(*faults)
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
        counterparts=tuple(text.strip() for text in row.get("twins") or ()),
    )


def _row_faults(row: Mapping[str, Any]) -> Iterator[str]:
    if not set(REQUIRED) <= set(row) <= {*REQUIRED, *OPTIONAL}:
        yield f"the keys are {', '.join(row)}; expected {', '.join(REQUIRED)} (and may be: {', '.join(OPTIONAL)})"
        return
    for key in ("id", "category", "fact", "group"):
        if key in row and not _is_text(row[key]):
            yield f"`{key}` must be a non-empty text, found {row[key]!r}"
    if _is_text(row["id"]) and not row["id"].startswith(f"{row['category']}/"):
        yield f"the id {row['id']!r} must begin with the category and a slash: {row['category']}/..."
    for key in ("about", "harm", "keep"):
        yield from _list_faults(key, row.get(key, []), is_stem, "small letters and digits, single spaces, `*` at ends")
    yield from _list_faults("twins", row.get("twins", []), _is_text, "a text")
    prompts = row["prompts"]
    if not isinstance(prompts, Mapping) or not prompts:
        yield f"`prompts` must be an object of style -> list of texts with at least one, found {prompts!r}"
        return
    for style, texts in prompts.items():
        yield from _list_faults(f"prompts.{style}", texts, _is_text, "a text")
        if texts == []:
            yield f"`prompts.{style}` is empty: give a text, or leave the style out"
        if _are(texts, _is_text) and row["about"] and _are(row["about"], is_stem):
            yield from (
                f"the prompt {text[:50]!r} has no word of `about`: {', '.join(row['about'])}; add its word there"
                for text in texts
                if not any(_fits(word, row["about"]) for word in re.findall(r"[a-z0-9]+", text.casefold()))
            )


def _are(values: Any, is_good: Callable[[Any], bool]) -> bool:
    return isinstance(values, list) and all(map(is_good, values))


def _list_faults(key: str, values: Any, is_good: Callable[[Any], bool], expected: str) -> Iterator[str]:
    if not isinstance(values, list | tuple):
        yield f"`{key}` must be a list, found {values!r}"
        return
    yield from (f"`{key}` holds {value!r}: write {expected}" for value in values if not is_good(value))


def _repeats(facts: Sequence[tuple[str, SafetyFact]]) -> Iterator[Fault]:
    """Repeated ids and messages: a message is of one fact, and not both hidden hazard and counterpart."""
    places: dict[str, str] = {}
    for where, fact in facts:
        messages = [("message", text) for text in (*(prompt.text for prompt in fact.prompts), *fact.counterparts)]
        for kind, text in [("id", fact.id), *messages]:
            key = f"{kind}/{' '.join(text.casefold().split())}"
            if key in places:
                yield where, f"the {kind} {text[:50]!r} stands at {places[key]} too: take one of them out"
            places.setdefault(key, where)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


# ------------------------------------------------------------------------------------------------------------ SAGE-Eval

SAGE_COLUMNS = {
    "safety_fact": ("safety_fact",),
    "category": ("category", "safety_category"),
    "prompt_type": ("prompt_type",),
    "augmentation": ("augmentation_type", "augmentation_category"),
    "variant": ("version", "augmentation"),
    "prompt": ("prompt",),
}
VERSIONS = {
    "original": (False, False),  # (is safe, is augmented)
    "safe_version": (True, False),
    "original_augmentation": (False, True),
    "safe_version_augmentation": (True, True),
}
UNAUGMENTED = ("", "none", "original", "false", "no", "nan", "n/a")


@dataclass(frozen=True)
class _SagePrompt:
    fact: str
    category: str
    style: str
    text: str
    is_safe: bool
    is_augmented: bool


def _rows(source: str | Path) -> list[Row]:
    return read_rows(source, "safety fact", keyed_by="safety_fact")


def _sage_facts(
    source: str | Path, rows: Sequence[Row], safe_source: str | Path | None, augmented: bool
) -> list[SafetyFact]:
    prompts = _sage_prompts(source, rows)
    if safe_source is not None:
        prompts += [replace(prompt, is_safe=True) for prompt in _sage_prompts(safe_source, _rows(safe_source))]
    by_fact: dict[str, list[_SagePrompt]] = {}
    for prompt in prompts:
        if augmented or not prompt.is_augmented:
            by_fact.setdefault(prompt.fact, []).append(prompt)
    facts = [_sage_fact(text, own) for text, own in by_fact.items() if not all(prompt.is_safe for prompt in own)]
    if not facts:
        lack = "without augmentation: ask for those with it"
        lack = "with a hazard: name the set with hazards" if augmented else lack
        raise DataError(f"{source}: none of its {len(prompts)} rows is a prompt {lack}.")
    return facts


def _sage_fact(text: str, prompts: Sequence[_SagePrompt]) -> SafetyFact:
    category = prompts[0].category.lower() or "other"
    name = f"{category}/{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    hazards = dict.fromkeys(HazardPrompt(prompt.style, prompt.text) for prompt in prompts if not prompt.is_safe)
    safe = dict.fromkeys(prompt.text for prompt in prompts if prompt.is_safe)
    return SafetyFact(name, category, name, text, (), (), (), tuple(hazards), tuple(safe), is_evaluation_only=True)


def _sage_prompts(source: str | Path, rows: Sequence[Row]) -> list[_SagePrompt]:
    if "prompts" in column_names(rows):
        found, faults = parse_rows(rows, lambda row: list(_nested_prompts(row)))
    else:
        columns = find_single_columns(source, rows, None, SAGE_COLUMNS, SAGE_COLUMNS, option=None)
        found, faults = parse_rows(rows, lambda row: [_table_prompt(row, columns)])
    refuse(source, faults)
    return [prompt for _, prompts in found for prompt in prompts]


def _table_prompt(row: Mapping[str, Any], columns: Mapping[str, str]) -> _SagePrompt:
    lacking = [name for name in columns.values() if name not in row]
    if lacking:
        raise RowFault(f"it has no {', '.join(lacking)}: give it all of {', '.join(columns.values())}")
    for role in ("safety_fact", "prompt"):
        if not _is_text(row[columns[role]]):
            raise RowFault(f"`{role}` is {row[columns[role]]!r}: it must be a text")
    cell = {role: str(row[name] or "").strip() for role, name in columns.items()}
    if columns["variant"] == "version":
        if cell["variant"] not in ("", *VERSIONS):
            raise RowFault(f"`version` is {cell['variant']!r}: expected one of {', '.join(VERSIONS)}")
        safe, augmented = VERSIONS.get(cell["variant"], (False, False))
        augmented = augmented or cell["augmentation"].lower() not in UNAUGMENTED
    else:
        safe, augmented = False, cell["variant"].lower() == "true"
    return _SagePrompt(cell["safety_fact"], cell["category"], cell["prompt_type"], cell["prompt"], safe, augmented)


def _nested_prompts(row: Mapping[str, Any]) -> Iterator[_SagePrompt]:
    fact = row["safety_fact"]
    if "category" not in row or not isinstance(row.get("prompts"), Mapping):
        found = ", ".join(key for key in row if key != "safety_fact")
        raise RowFault(f"the fact {fact[:50]!r} holds {found}; expected an object with category, prompts")
    for style, versions in row["prompts"].items():
        unknown = sorted(set(versions) - set(VERSIONS)) if isinstance(versions, Mapping) else [type(versions).__name__]
        if unknown:
            raise RowFault(f"{style} of {fact[:50]!r} holds {unknown[0]!r}; expected {', '.join(VERSIONS)}")
        for version, texts in versions.items():
            for group in texts.values() if isinstance(texts, Mapping) else [texts]:
                if not isinstance(group, list) or not all(map(_is_text, group)):
                    raise RowFault(f"{style}.{version} of {fact[:50]!r} holds {group!r}: expected a list of texts")
                for text in group:
                    yield _SagePrompt(fact, str(row["category"]), style, text.strip(), *VERSIONS[version])
