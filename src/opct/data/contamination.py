"""What a run was trained on, kept so that an evaluation can tell what it asks from what was trained on.

Beside the names of families and questions (in the manifest) these are texts, of which near-duplicates are looked for
(see `opct.data.near_duplicates`): behaviours, their benign twins, and safety facts. They come from a pair's `meta`
(`behavior`, `request`, `fact`), as `opct data build` writes it. Of a pair of the two axes without them, they are what
its teacher sees: of jailbreak the last message of the user, of safety awareness each line and each sentence that the
teacher alone is told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from opct.config.schema import ModelConfig
from opct.data.behaviors import builtin_behaviors
from opct.data.hazards import builtin_facts
from opct.data.near_duplicates import crossing
from opct.data.pairs import ContrastivePair
from opct.data.perturb.jailbreak import AXIS as JAILBREAK
from opct.data.perturb.safety_awareness import AXIS as SAFETY_AWARENESS
from opct.data.words import normalised
from opct.runs.io import write_json
from opct.runs.run_dir import RunDir, run_behind

KINDS = ("behaviors", "twins", "facts")
SHOWN = 3
_SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class TrainedTexts:
    """The texts that weights were trained on, as they are compared (`normalised`), each once, in alphabetical order.

    Attributes:
        is_complete: False where the weights that training began with had been trained on what is not known.
    """

    behaviors: tuple[str, ...] = ()
    twins: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    is_complete: bool = True

    def __or__(self, other: TrainedTexts) -> TrainedTexts:
        """Those of both."""
        both = {kind: {*getattr(self, kind), *getattr(other, kind)} for kind in KINDS}
        return _of_kinds(both, is_complete=self.is_complete and other.is_complete)


def trained_texts(pairs: Iterable[ContrastivePair]) -> TrainedTexts:
    """The texts of these pairs, the same in whichever order the pairs are."""
    found: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for pair in pairs:
        for kind, text in _texts(pair):
            found[kind].add(normalised(text))
    return _of_kinds(found)


def trained_names(pairs: Iterable[ContrastivePair], model: ModelConfig) -> dict[str, list[str]]:
    """Families and questions (`meta.question_id`) of the pairs, and of the runs whose weights `model` begins with."""
    families, questions = set(), set()
    for pair in pairs:
        families.add(pair.family)
        questions |= {str(pair.meta["question_id"])} if "question_id" in pair.meta else set()
    for run in _begun_with(model):
        manifest = run.read_manifest()
        families |= set(manifest.get("trained_families", ()))
        questions |= set(manifest.get("trained_questions", ()))
    return {"trained_families": sorted(families), "trained_questions": sorted(questions)}


def write_trained_texts(run: RunDir, pairs: Iterable[ContrastivePair], model: ModelConfig) -> None:
    """Keep the texts of the pairs, and those of the runs whose weights `model` begins with, in the run's folder.

    Raises:
        RunError: the file cannot be written.
    """
    before = [read_trained_texts(earlier) or TrainedTexts(is_complete=False) for earlier in _begun_with(model)]
    if model.adapter is not None and run_behind(model.adapter) is None:
        before.append(TrainedTexts(is_complete=False))
    texts = trained_texts(pairs)
    for earlier in before:
        texts |= earlier
    write_json(run.trained_on_path, asdict(texts))


def read_trained_texts(run: RunDir) -> TrainedTexts | None:
    """What `write_trained_texts` kept; None of a run that kept nothing, or what can no longer be read."""
    try:
        kept = json.loads(run.trained_on_path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    texts: dict[str, Any] = {kind: kept.get(kind) for kind in KINDS} if isinstance(kept, dict) else {}
    if not texts or not all(isinstance(own, list) and all(isinstance(x, str) for x in own) for own in texts.values()):
        return None
    return _of_kinds(texts, is_complete=kept.get("is_complete") is True)


def _of_kinds(texts: Mapping[str, Iterable[str]], *, is_complete: bool = True) -> TrainedTexts:
    behaviors, twins, facts = (tuple(sorted(texts[kind])) for kind in KINDS)
    return TrainedTexts(behaviors, twins, facts, is_complete)


def near_test_items(pairs: Iterable[ContrastivePair]) -> list[str]:
    """A warning for behaviours, and one for facts, that are near-duplicates of embedded ones of the test split.

    Each names the first few by `meta.question_id` (else by the pair's id), with the embedded one in brackets.
    """
    names: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    for pair in pairs:
        for kind, text in _texts(pair):
            names[kind].setdefault(normalised(text), str(pair.meta.get("question_id", pair.id)))
    behaviors, facts = builtin_behaviors("test"), builtin_facts("test")
    like = _like(names["behaviors"], {b.id: b.behavior for b in behaviors})
    for name, id_ in _like(names["twins"], {b.id: b.benign for b in behaviors if b.benign is not None}).items():
        like.setdefault(name, id_)
    found = {"behaviours": like, "safety facts": _like(names["facts"], {fact.id: fact.fact for fact in facts})}
    return [_near_test_words(what, own) for what, own in found.items() if own]


def _like(names: Mapping[str, str], measured: Mapping[str, str]) -> dict[str, str]:
    """Name of each text that is a near-duplicate of one that is measured, with the id of the nearest."""
    ids, own = list(measured), list(names)
    near = crossing(own, list(measured.values()))
    found: dict[str, str] = {}
    for i, j in near.items():
        found.setdefault(names[own[i]], ids[j])
    return found


def _near_test_words(what: str, like: Mapping[str, str]) -> str:
    shown = ", ".join(name if name == id_ else f"{name} ({id_})" for name, id_ in list(like.items())[:SHOWN])
    more = ", ..." if len(like) > SHOWN else ""
    return (
        f"Embedded {what} of the test split, or near-duplicates of them, are in these pairs ({len(like)}): "
        f"{shown}{more}. What `opct eval` measures of a run that trains on them is partly held in: leave them out."
    )


def _texts(pair: ContrastivePair) -> Iterator[tuple[str, str]]:
    """(kind, text) of everything in a pair that a later evaluation may ask."""
    meta = pair.meta
    behavior, fact = _text(meta.get("behavior")), _text(meta.get("fact"))
    if behavior or pair.axis == JAILBREAK:
        is_twin = meta.get("kind") in ("twin", "anchor") or (not meta.get("kind") and pair.is_identity)
        text = (_text(meta.get("request")) if is_twin else behavior) or _asked(pair)
        yield "twins" if is_twin else "behaviors", text
    elif fact:
        yield "facts", fact
    elif pair.axis == SAFETY_AWARENESS:
        yield from (("facts", sentence) for sentence in _told(pair))


def _asked(pair: ContrastivePair) -> str:
    """The last message of the user as the teacher sees it: the bare request."""
    return next(str(m["content"]) for m in reversed(pair.teacher_prompt) if m["role"] == "user")


def _told(pair: ContrastivePair) -> Iterator[str]:
    """The lines, and the sentences, that the teacher is told and the policy is not."""
    shown = [message["content"] for message in pair.prompt]
    for message in pair.teacher_prompt:
        content = message["content"]
        if content is None or content in shown:
            continue
        told = content.replace(shown[-1], "\n") if shown[-1] else content
        pieces = (piece for line in told.splitlines() for piece in (line, *_SENTENCE_ENDS.split(line)))
        yield from filter(None, map(str.strip, pieces))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _begun_with(model: ModelConfig) -> list[RunDir]:
    """The runs whose weights training begins with, be it as adapter or as model."""
    found = [run_behind(path) for path in (model.adapter, model.name_or_path) if path is not None]
    return [run for run in found if run is not None]
