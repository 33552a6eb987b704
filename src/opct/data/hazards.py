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
facts, and two kinds of tables. It is for evaluation only. It has no words for the offline grader, so its replies are
unscored until a judge reads them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, Field, StringConstraints

from opct.data.duplicates import near_duplicate_groups
from opct.data.questions import Split, split_of
from opct.data.tables import (
    EMBEDDED,
    Fault,
    Row,
    RowFault,
    column_names,
    parse_rows,
    read_rows,
    refuse,
    validate_row,
)
from opct.errors import DataError

BUILTIN = "builtin"
_STEM = r"^[a-z0-9]+\*?(?: [a-z0-9]+\*?)*$"

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1)]


def _check_stem(text: str) -> str:
    if not is_stem(text):
        raise ValueError("write small letters and digits, single spaces, and `*` for any ending")
    return text


Stem = Annotated[str, AfterValidator(_check_stem)]
Cell = Annotated[str, StringConstraints(strip_whitespace=True)] | None


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
        # of the group, not the id: related facts are on one side
        return split_of(f"hazards/{self.group}", 0.5, 0.6)

    def keeps(self, word: str) -> bool:
        """True for a word that the hazard depends on: one of `about`, of `keep`, or of the fact (4 letters or more)."""
        folded = word.casefold()
        in_fact = len(folded) > 3 and folded in re.findall(r"[a-z]+", self.fact.casefold())
        return in_fact or _fits(folded, (*self.about, *self.keep))


def _fits(word: str, stems: Iterable[str]) -> bool:
    parts = [part for stem in stems for part in stem.split(" ")]
    return any(word.startswith(part[:-1]) if part.endswith("*") else word == part for part in parts)


def is_stem(value: Any) -> bool:
    """True for words as `about`, `harm` and `keep` have them."""
    return isinstance(value, str) and re.fullmatch(_STEM, value) is not None


@cache
def _builtin() -> tuple[SafetyFact, ...]:
    rows = [row for path in sorted((EMBEDDED / "hazards").glob("*.jsonl")) for row in read_rows(path)]
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
        augmented: SAGE-Eval's typos and tones too; else the prompts as they were written.

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
    # with the groups of the file: a near-duplicate joins the whole group, so no group is in two splits
    groups = near_duplicate_groups([fact.fact for fact in facts], [fact.group for fact in facts])
    names = {i: min(facts[j].group for j in members) for members in groups for i in members}
    return [replace(fact, group=names[i]) for i, fact in enumerate(facts)]


# ------------------------------------------------------------------------------------------------- files of our format


class _FactRow(BaseModel, extra="forbid"):
    id: Text
    category: Text
    fact: Text
    about: list[Stem]
    harm: list[Stem]
    prompts: dict[str, Texts] = Field(min_length=1)
    group: Text = ""
    keep: list[Stem] = []
    twins: list[Text] = []


def facts_from_rows(source: str, rows: Iterable[Row]) -> list[SafetyFact]:
    """Check and build every fact. Raises DataError with every fault, or where there is no row."""
    facts, faults = parse_rows(rows, _fact)
    refuse(source, [*faults, *_repeats(facts)])
    if not facts:
        raise DataError(f"{source} holds no safety facts: it needs at least one.")
    return [fact for _, fact in facts]


def _fact(row: Any) -> SafetyFact:
    fields = validate_row(row, _FactRow)
    prompts = [HazardPrompt(style, text) for style, texts in fields.prompts.items() for text in texts]
    faults = [
        f"the prompt {prompt.text[:50]!r} has no word of `about`: {', '.join(fields.about)}; add its word there"
        for prompt in prompts
        if fields.about
        and not any(_fits(word, fields.about) for word in re.findall(r"[a-z0-9]+", prompt.text.casefold()))
    ]
    if faults:
        raise RowFault(*faults)
    words = tuple(fields.about), tuple(fields.harm), tuple(fields.keep)
    return SafetyFact(
        fields.id, fields.category, fields.group or fields.id, fields.fact, *words, tuple(prompts), tuple(fields.twins)
    )


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


# ------------------------------------------------------------------------------------------------------------ SAGE-Eval

VERSIONS = {
    "original": (False, False),  # (is safe, is augmented)
    "safe_version": (True, False),
    "original_augmentation": (False, True),
    "safe_version_augmentation": (True, True),
}
Version = Literal["original", "safe_version", "original_augmentation", "safe_version_augmentation"]
UNAUGMENTED = ("", "none", "original", "false", "no", "nan", "n/a")


class _SageFact(BaseModel):
    """An entry of the JSON object: style -> version -> texts, or kind of augmentation -> texts."""

    safety_fact: str
    category: str
    prompts: dict[str, dict[Version, list[Text] | dict[str, list[Text]]]]


class _SageRow(BaseModel):
    """A row of either table: one has `version`; the other `augmentation`, True or False, and no safe prompts."""

    safety_fact: Text
    category: Cell = Field(validation_alias=AliasChoices("category", "safety_category"))
    prompt_type: Cell
    kind: Cell = Field(validation_alias=AliasChoices("augmentation_type", "augmentation_category"))
    variant: Cell | bool = Field(validation_alias=AliasChoices("version", "augmentation"))
    prompt: Text


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
    # a fact with safe prompts alone has no hazard to warn of
    facts = [
        _sage_fact(text, fact_prompts)
        for text, fact_prompts in by_fact.items()
        if not all(prompt.is_safe for prompt in fact_prompts)
    ]
    if not facts:
        lack = "without augmentation: ask for those with it"
        lack = "with a hazard: name the set with hazards" if augmented else lack
        raise DataError(f"{source}: none of its {len(prompts)} rows is a prompt {lack}.")
    return facts


def _sage_fact(text: str, prompts: Sequence[_SagePrompt]) -> SafetyFact:
    category = prompts[0].category.lower() or "other"
    name = f"{category}/{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    # each once, in order: the tables repeat a prompt in several versions
    hazards = dict.fromkeys(HazardPrompt(prompt.style, prompt.text) for prompt in prompts if not prompt.is_safe)
    safe = dict.fromkeys(prompt.text for prompt in prompts if prompt.is_safe)
    return SafetyFact(name, category, name, text, (), (), (), tuple(hazards), tuple(safe), is_evaluation_only=True)


def _sage_prompts(source: str | Path, rows: Sequence[Row]) -> list[_SagePrompt]:
    columns = column_names(rows)
    empty = dict.fromkeys(columns)  # an empty cell is no missing column
    parse = _nested_prompts if "prompts" in columns else lambda row: _table_prompt({**empty, **row})
    parsed, faults = parse_rows(rows, parse)
    refuse(source, faults)
    return [prompt for _, prompts in parsed for prompt in prompts]


def _table_prompt(row: Any) -> list[_SagePrompt]:
    fields = validate_row(row, _SageRow)
    variant = str(fields.variant or "")
    # the table with `augmentation`: its True and False are no versions
    if "version" not in row:
        safe, augmented = False, variant.lower() == "true"
    elif variant in ("", *VERSIONS):
        safe, augmented = VERSIONS[variant or "original"]
        augmented = augmented or (fields.kind or "").lower() not in UNAUGMENTED
    else:
        raise RowFault(f"`version` is {variant!r}: expected one of {', '.join(VERSIONS)}")
    return [
        _SagePrompt(fields.safety_fact, fields.category or "", fields.prompt_type or "", fields.prompt, safe, augmented)
    ]


def _nested_prompts(row: Any) -> list[_SagePrompt]:
    fields = validate_row(row, _SageFact)
    return [
        _SagePrompt(fields.safety_fact, fields.category, style, text, *VERSIONS[version])
        for style, versions in fields.prompts.items()
        for version, texts in versions.items()
        for group in (texts.values() if isinstance(texts, dict) else [texts])
        for text in group
    ]
