"""The embedded pair sets by name (`builtin:NAME`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, cast

from opct.data.behaviors import builtin_behaviors
from opct.data.benign import BenignRequest, builtin_benign, builtin_forms
from opct.data.builders.jailbreak import build_jailbreak
from opct.data.builders.safety_awareness import build_safety_awareness
from opct.data.builders.sycophancy import build_sycophancy
from opct.data.context import CONTEXT, builtin_context
from opct.data.duplicates import KINDS, cross_duplicates, normalize, pair_texts
from opct.data.hazards import builtin_facts
from opct.data.pairs import BUILTIN, SYCOPHANCY, ContrastivePair, MetaFaults, read_pairs
from opct.data.perturb import safety_awareness, sycophancy
from opct.data.perturb.jailbreak import BARE, OWN_FAMILIES, REFUSED_TURNS, SAFETY_SYSTEM
from opct.data.perturb.safety_awareness import TEACHERS
from opct.data.perturb.sycophancy import clean_prompt
from opct.data.questions import Question, Split, builtin_questions
from opct.data.tables import Source
from opct.errors import DataError, first_of, unknown

# name -> settings of `build_jailbreak`
JAILBREAK_SETS: dict[str, dict[str, Any]] = {
    "jailbreak": {"parts": ("behavior", "twin")},
    "jailbreak_system": {"parts": ("behavior", "twin"), "teacher_system": SAFETY_SYSTEM},
    "jailbreak_examples": {"parts": ("behavior", "bare", "twin"), "teacher_turns": REFUSED_TURNS},
    "jailbreak_anchors": {"parts": ("anchor",)},
}
SAFETY_SETS = {"safety_awareness": TEACHERS[0]} | {f"safety_awareness:{place}": place for place in TEACHERS[1:]}
"""Name -> where the teacher finds the fact."""
SYCOPHANCY_SETS = {"sycophancy": "short", "sycophancy_choice": "choice", "sycophancy_mixed": "mixed"}
"""Name -> answer format."""
FACTS = ":facts"
"""After the name of a sycophancy set: more of its pairs carry their fact."""
CLEAN = "clean"
"""Family of a question's identity pair."""
BUILTIN_NAMES = (
    *SYCOPHANCY_SETS,
    *(name + FACTS for name in SYCOPHANCY_SETS),
    *JAILBREAK_SETS,
    *SAFETY_SETS,
    "benign",
    "forms",
    "context",
)


def load_pairs(source: Source, *, split: str = "train", meta_faults: MetaFaults | None = None) -> list[ContrastivePair]:
    """The pairs of an embedded set, or every pair, read and checked, of a file, a data set, or rows in Python.

    Args:
        source: `builtin:` and the name of an embedded set (see `builtin_pairs`); or the path of a JSONL, Parquet or CSV
            file, or of a folder saved by `datasets`; or `hf:` and a dataset id on the Hugging Face hub, optionally with
            `:` and a split (or `config/split`), and `@` and a commit, tag or branch; or a list of dicts or
            `ContrastivePair`s, a pandas DataFrame, a `datasets.Dataset`.
        split: the split to read if the source is an embedded set, or a dataset with several.
        meta_faults: further checks of a source that is not embedded.

    Raises:
        DataError: with every fault in the source at once, grouped by kind, each with file:line (or row number) and the
            remedy.
    """
    if isinstance(source, str) and source.startswith(BUILTIN):
        return builtin_pairs(source, cast(Split, split))
    return read_pairs(source, split=split, meta_faults=meta_faults)


def builtin_pairs(name: str, split: Split = "train", *, seed: int = 0, per_question: int = 2) -> list[ContrastivePair]:
    """The embedded pairs of that name, of one split.

    sycophancy           each question with two of the training families, to be answered in a short sentence
    sycophancy_choice    the same with lettered options
    sycophancy_mixed     the same, each pair in a layout, with an instruction and a context of its own
    jailbreak            each behavior and its counterpart, in two of the training families
    jailbreak_system     the same; the teacher of the behaviors has a safety system prompt
    jailbreak_examples   the same, and the bare behaviors; the teacher sees refused requests before each
    jailbreak_anchors    identity pairs of the counterparts, bare and wrapped
    safety_awareness     each message of a fact with two of the training families; safe counterparts as identity pairs.
                         The teacher finds the fact in a system message; with `:user` at the end of the last message,
                         with `:examples` there after messages that are answered with a warning
    benign, forms        an identity pair a request, whatever the keyword arguments
    context              an identity pair of each question that carries its fact, likewise

    A quarter of the pairs of the sycophancy sets are questions that carry their fact, on both sides of the pair: what
    the user suggests is to be ignored, what the prompt says is not. With `:facts` after the name each of these has
    every family, which is 44% of the training pairs.

    `per_question` is the number of families; with `:facts`, of the questions without their fact.

    Raises:
        DataError: an unknown name or split; the message has the nearest one.
    """
    name = name.removeprefix(BUILTIN)
    if name == "context":
        return [clean_pair(question, CONTEXT) for question in builtin_context(split)]
    if name in ("benign", "forms"):
        requests = builtin_benign(split) if name == "benign" else builtin_forms(split)
        return [benign_pair(request) for request in requests]
    if name in SAFETY_SETS:
        return build_safety_awareness(seed=seed, per_prompt=per_question, split=split, teacher=SAFETY_SETS[name])
    if name in JAILBREAK_SETS:
        return build_jailbreak(seed=seed, per_behavior=per_question, split=split, **JAILBREAK_SETS[name])
    plain = name.removesuffix(FACTS)
    if plain not in SYCOPHANCY_SETS:
        raise DataError(unknown("embedded pair set", name, BUILTIN_NAMES))
    build = partial(build_sycophancy, answer_format=SYCOPHANCY_SETS[plain], seed=seed, split=split)
    if name != plain:
        return [*build(builtin_questions(), per_question=per_question), *build(builtin_context(), per_question=None)]
    # in one call: families are dealt over all questions, so two calls would make other pairs
    return build([*builtin_questions(), *builtin_context()], per_question=per_question)


def builtin_families() -> set[str]:
    """The families that embedded pairs may have: what those of other names hold is not known."""
    categories = {request.category for request in (*builtin_benign(), *builtin_forms())}
    return {*sycophancy.FAMILIES, *OWN_FAMILIES, *safety_awareness.FAMILIES, CLEAN, BARE, *categories}


def clean_pair(question: Question, axis: str = SYCOPHANCY) -> ContrastivePair:
    """The identity pair of a question that is asked without pressure."""
    # seed 0: in this format nothing is drawn
    prompt = clean_prompt(question, "short", 0)
    meta = {"question_id": question.id, "split": question.split}
    return ContrastivePair(f"{axis}/clean/{question.id}", axis, CLEAN, prompt, prompt, meta)


def benign_pair(request: BenignRequest) -> ContrastivePair:
    """The identity pair of a benign request: both sides see the same prompt."""
    meta = {"question_id": request.id, "split": request.split, "check": request.check}
    return ContrastivePair(f"benign/{request.id}", "benign", request.category, request.prompt, request.prompt, meta)


def near_test_items(pairs: Iterable[ContrastivePair]) -> list[str]:
    """A warning for embedded behaviors of the test split, and one for facts, that have near-duplicates among these
    pairs."""
    behaviors, facts = builtin_behaviors("test"), builtin_facts("test")
    names: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    for pair in pairs:
        for kind, text in pair_texts(pair):
            names[kind].setdefault(normalize(text), str(pair.meta.get("question_id", pair.id)))
    near = _near_ids(names["behaviors"], {b.id: b.behavior for b in behaviors})
    for name, id_ in _near_ids(names["twins"], {b.id: b.benign for b in behaviors if b.benign is not None}).items():
        # a request that is itself near a behavior keeps that one's id
        near.setdefault(name, id_)
    overlaps = {"behaviors": near, "safety facts": _near_ids(names["facts"], {fact.id: fact.fact for fact in facts})}
    return [
        f"Embedded {what} of the test split, or near-duplicates of them, are in these pairs ({len(ids)}): "
        f"{first_of([name if name == id_ else f'{name} ({id_})' for name, id_ in ids.items()])}. A run that trains on "
        "them is partly evaluated on its training data: leave them out."
        for what, ids in overlaps.items()
        if ids
    ]


def _near_ids(names: Mapping[str, str], measured: Mapping[str, str]) -> dict[str, str]:
    """Name of each text with a near-duplicate among `measured` -> id of the nearest.

    Args:
        names: text -> its name.
        measured: id -> text.
    """
    ids, texts = list(measured), list(names)
    near = cross_duplicates(texts, list(measured.values()))
    nearest_ids: dict[str, str] = {}
    for i, j in near.items():
        # several texts of one pair or question: it is listed once
        nearest_ids.setdefault(names[texts[i]], ids[j])
    return nearest_ids
