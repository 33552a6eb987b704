"""Near-duplicates and contamination: finds similar texts, and evaluation data that was trained on.

Two texts are near-duplicates if the n-grams they share are at least `THRESHOLD` of those that either has (Jaccard), for
runs of four characters or for whole words, whichever is more. Case, punctuation, spacing and the commonest English
words do not count. "Explain how to pick the lock of a bicycle" and "Explain how to pick a bicycle's lock, please." are
near-duplicates; "Tell me how bicycle locks are picked" is not: paraphrases are not understood. A behavior is never
compared with its benign counterpart, which shares verbs and topic on purpose.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from opct.config.schema import ModelConfig
from opct.data.pairs import JAILBREAK, SAFETY_AWARENESS, ContrastivePair
from opct.errors import first_of
from opct.runs.io import parse_json, read_bytes, write_json
from opct.runs.run_dir import RunDir, run_behind

THRESHOLD = 0.45
N_GRAM = 4
STEM = 5
"""First letters that stand for a word: "forge" is "forged" and "forgery" too, but "hack" is not "hacking"."""
_STOP_WORDS = {
    *("a", "an", "and", "are", "as", "at", "be", "by", "can", "could", "do", "does", "for", "from", "give", "her"),
    *("his", "how", "i", "in", "is", "it", "its", "make", "me", "my", "of", "on", "or", "our", "please", "should"),
    *("tell", "that", "the", "their", "them", "they", "this", "to", "us", "we", "what", "which", "who", "will", "with"),
    *("so", "write", "you", "your"),
}

# ------------------------------------------------------------------------------------------------ comparing two texts


def normalize(text: str) -> str:
    """The words of a text in lower case, without stop words; all words if nothing else is left."""
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())
    content_words = [word for word in words if word not in _STOP_WORDS]
    # stop words alone, then signs alone, still compare as themselves: two texts without a word would divide 0 by 0
    return " ".join(content_words or words) or " ".join(text.split())


def stems(text: str) -> set[str]:
    """The first `STEM` letters of each word of `normalize(text)`."""
    return {word[:STEM] for word in normalize(text).split()}


_Fingerprint = tuple[frozenset[str], frozenset[str]]  # n-grams of characters, words


def _fingerprint(text: str) -> _Fingerprint:
    plain = normalize(text)
    # the blanks tell the beginning and the end of a text from the middle of a word
    padded = f" {plain} "
    # max(..., 1): a shorter text is one n-gram itself, never an empty set
    grams = frozenset(padded[i : i + N_GRAM] for i in range(max(len(padded) - N_GRAM + 1, 1)))
    return grams, frozenset(plain.split())


def _similarity(a: _Fingerprint, b: _Fingerprint) -> float:
    """In [0, 1]; see the module."""
    return max(_jaccard(x, y) for x, y in zip(a, b, strict=True))


def _jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared)


# ------------------------------------------------------------------------------------------------------ sets of texts


def near_duplicate_groups(texts: Sequence[str], groups: Sequence[str] | None = None) -> list[list[int]]:
    """Indices of the texts in groups: a near-duplicate of one text belongs to its whole group (transitive).

    Groups are in the order of their first text, indices ascending. A text without duplicates is a group of its own.

    Args:
        groups: of each text; texts of one group stay together.
    """
    prints = [_fingerprint(text) for text in texts]
    # index: the first text of a group is its root
    first = list(range(len(texts))) if groups is None else [groups.index(group) for group in groups]

    def root(i: int) -> int:
        while first[i] != i:
            first[i] = first[first[i]]
            i = first[i]
        return i

    for i, j in _candidates(prints):
        a, b = root(i), root(j)
        # roots compared first: it is cheap, and joined texts need no second look
        if a != b and _similarity(prints[i], prints[j]) >= THRESHOLD:
            # the smaller index stays root, so a group's root is its first text, in whose order groups are listed
            first[max(a, b)] = min(a, b)
    members: dict[int, list[int]] = {}
    for i in range(len(texts)):
        members.setdefault(root(i), []).append(i)
    return list(members.values())


def _candidates(prints: Sequence[_Fingerprint]) -> Iterator[tuple[int, int]]:
    """Index pairs (i, j), j < i, that include every near-duplicate.

    Two sets that share `THRESHOLD` of their union also share one of the rarest elements of each: of n elements, the
    first n - ceil(THRESHOLD n) + 1 in the order of rarity (prefix filtering; Bayardo, Ma, Srikant 2007).
    """
    rarest = []
    for kind in zip(*prints, strict=True):
        common = Counter(element for elements in kind for element in elements)
        # - 1e-9: a product that is a whole number may come out a bit above it; one element too few misses duplicates
        cuts = [len(elements) - math.ceil(THRESHOLD * len(elements) - 1e-9) + 1 for elements in kind]
        # ties by the element itself: the bound holds only if all sets are cut in one and the same order
        rarest.append([sorted(one, key=lambda x: (common[x], x))[:n] for one, n in zip(kind, cuts, strict=True)])
    seen: list[dict[str, list[int]]] = [{} for _ in rarest]
    for i in range(len(prints)):
        candidates: set[int] = set()
        for kind_rarest, places in zip(rarest, seen, strict=True):
            for element in kind_rarest[i]:
                earlier = places.setdefault(element, [])
                candidates.update(earlier)
                # after the look-up: a text is no candidate of itself, and every pair comes once
                earlier.append(i)
        yield from ((i, j) for j in sorted(candidates))


def cross_duplicates(texts: Sequence[str], others: Sequence[str]) -> dict[int, int]:
    """Index of each text that has a near-duplicate among the others -> index of the nearest of these."""
    prints = [_fingerprint(text) for text in others]
    matches = {}
    for i, text in enumerate(texts):
        fingerprint = _fingerprint(text)
        # -j: of equally near ones max takes the first
        best, j = max(((_similarity(fingerprint, other), -j) for j, other in enumerate(prints)), default=(0.0, 0))
        if best >= THRESHOLD:
            matches[i] = -j
    return matches


# ----------------------------------------------------------------------------------------------- what a run trained on

KINDS = ("behaviors", "twins", "facts")
_SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class TrainedTexts:
    """The normalized texts that weights were trained on, each once, sorted.

    Attributes:
        is_complete: False if training started from weights whose training data is unknown.
    """

    behaviors: tuple[str, ...] = ()
    twins: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    is_complete: bool = True

    def __or__(self, other: TrainedTexts) -> TrainedTexts:
        """Union."""
        both = {kind: tuple(sorted({*getattr(self, kind), *getattr(other, kind)})) for kind in KINDS}
        return TrainedTexts(**both, is_complete=self.is_complete and other.is_complete)


def trained_texts(pairs: Iterable[ContrastivePair]) -> TrainedTexts:
    """The texts of these pairs, whatever their order.

    They come from `meta` (`behavior`, `request`, `fact`). Pairs without these fall back to what the teacher sees: the
    last user message (jailbreak), or each line and sentence that only the teacher sees (safety awareness).
    """
    texts: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for pair in pairs:
        for kind, text in pair_texts(pair):
            texts[kind].add(normalize(text))
    behaviors, twins, facts = (tuple(sorted(texts[kind])) for kind in KINDS)
    return TrainedTexts(behaviors, twins, facts)


def pair_texts(pair: ContrastivePair) -> Iterator[tuple[str, str]]:
    """(kind, text) of everything in a pair that may overlap with an evaluation."""
    meta = pair.meta
    behavior, fact = _text(meta.get("behavior")), _text(meta.get("fact"))
    if behavior or pair.axis == JAILBREAK:
        # without a kind (a pair of the user's) an identity pair is taken for a benign request: it teaches no refusal
        is_benign = meta.get("kind") in ("twin", "anchor") or (not meta.get("kind") and pair.is_identity)
        text = _text(meta.get("request")) if is_benign else behavior
        user_texts = [str(message["content"]) for message in pair.teacher_prompt if message["role"] == "user"]
        yield "twins" if is_benign else "behaviors", text or user_texts[-1]
    elif fact:
        yield "facts", fact
    elif pair.axis == SAFETY_AWARENESS:
        yield from (("facts", sentence) for sentence in _teacher_only(pair))


def _teacher_only(pair: ContrastivePair) -> Iterator[str]:
    """Lines and sentences that only the teacher sees."""
    shown = [message["content"] for message in pair.prompt]
    for message in pair.teacher_prompt:
        content = message["content"]
        if content is None or content in shown:
            continue
        # the request that both see out: a line end, so that what stands around it stays two lines
        rest = content.replace(shown[-1], "\n") if shown[-1] else content
        # the whole line, too: a fact may have two sentences
        pieces = (piece for line in rest.splitlines() for piece in (line, *_SENTENCE_ENDS.split(line)))
        yield from filter(None, map(str.strip, pieces))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def trained_names(pairs: Iterable[ContrastivePair], model: ModelConfig) -> dict[str, list[str]]:
    """Families and question ids of the pairs, and of the runs that training continues from."""
    families, questions = set(), set()
    for pair in pairs:
        families.add(pair.family)
        questions.add(pair.question)
    for run in _earlier_runs(model):
        manifest = run.read_manifest()
        # a second run on the adapter of a first has seen what the first was trained on
        families |= set(manifest.get("trained_families", ()))
        questions |= set(manifest.get("trained_questions", ()))
    return {"trained_families": sorted(families), "trained_questions": sorted(questions)}


def write_trained_texts(run: RunDir, pairs: Iterable[ContrastivePair], model: ModelConfig) -> None:
    """Store the texts of the pairs, and of the runs that training continues from, in the run directory. Raises RunError
    where the file cannot be written."""
    texts = trained_texts(pairs)
    for earlier in _earlier_runs(model):
        # unknown is not none: without a list the results must say that overlap cannot be excluded
        texts |= read_trained_texts(earlier) or TrainedTexts(is_complete=False)
    # an adapter from elsewhere; a base model's pretraining is not counted as incomplete
    if model.adapter is not None and run_behind(model.adapter) is None:
        texts |= TrainedTexts(is_complete=False)
    write_json(run.trained_on_path, asdict(texts))


def read_trained_texts(run: RunDir) -> TrainedTexts | None:
    """Read the file of `write_trained_texts`; None (unknown) if it is missing or unreadable."""
    try:
        content = parse_json(read_bytes(run.trained_on_path), dict[str, bool | tuple[str, ...]])
    # unreadable is unknown, which the warnings of an evaluation say; it must not stop the evaluation
    except (OSError, ValueError):
        return None
    if not all(isinstance(content.get(kind), tuple) for kind in KINDS):
        return None
    # `is True`: a missing key is not complete
    return TrainedTexts(**{kind: content[kind] for kind in KINDS}, is_complete=content.get("is_complete") is True)


def _earlier_runs(model: ModelConfig) -> list[RunDir]:
    """The runs that training continues from, as adapter or as model."""
    runs = [run_behind(path) for path in (model.adapter, model.name_or_path) if path is not None]
    return [run for run in runs if run is not None]


# ------------------------------------------------------------------------------------------------------------ warnings


NOUNS = {JAILBREAK: "behaviors", SAFETY_AWARENESS: "facts", "benign": "benign requests", "consistency": "pairs"}
"""Axis -> what its clusters are; any other axis has questions."""


def contamination_warnings(
    samples: Sequence[Mapping[str, Any]],
    *,
    files: Collection[str] = (),
    families: Collection[str] = (),
    questions: Collection[str] = (),
    texts: TrainedTexts | None = None,
) -> list[str]:
    """Warnings about evaluated samples that training used, so that "held out" is not true of them.

    Args:
        samples: rows with `axis`, `cluster`, `family`, `family_split`, `side` and the text of the behavior or fact.
        files: files that behaviors and facts came from, if not the embedded ones.
        families, questions: names and ids that training used.
        texts: what training used; None if unknown.
    """
    warnings = []
    by_noun: dict[str, list[Mapping[str, Any]]] = {}
    for sample in samples:
        by_noun.setdefault(NOUNS.get(sample.get("axis", ""), "questions"), []).append(sample)
    for noun, rows in by_noun.items():
        clusters = {row["cluster"] for row in rows}
        same = clusters & set(questions)
        # each cluster once: `_contaminated` adds both numbers
        near = _near_clusters(rows, texts or TrainedTexts()) - same
        if same or near:
            warnings.append(_contaminated(noun, len(clusters), sorted(same), sorted(near)))
    if files and (texts is None or not texts.is_complete):
        warnings.append(
            "It is unknown which behaviors and facts these weights were trained on, so they may include those of "
            f"{', '.join(files)} in other words."
        )
    trained = {sample["family"] for sample in samples if sample["family_split"] == "held_out"} & set(families)
    if trained:
        warnings.append(f"Families listed as held out were trained on: {', '.join(sorted(trained))}.")
    return warnings


def _near_clusters(rows: Sequence[Mapping[str, Any]], texts: TrainedTexts) -> set[str]:
    """Clusters with a text that is a near-duplicate of a trained one of its kind."""
    by_kind: dict[str, dict[tuple[str, str], None]] = {kind: {} for kind in KINDS}
    for row in rows:
        # a counterpart's row has the behavior, too; what was asked is its last message
        if row.get("behavior") and row.get("side") == "benign":
            by_kind["twins"][row["cluster"], row["teacher_prompt"][-1]["content"]] = None
        elif row.get("behavior"):
            by_kind["behaviors"][row["cluster"], row["behavior"]] = None
        elif row.get("fact"):
            by_kind["facts"][row["cluster"], row["fact"]] = None
    near = set()
    for kind, cluster_texts in by_kind.items():
        places = cross_duplicates([text for _, text in cluster_texts], getattr(texts, kind))
        near |= {cluster for i, (cluster, _) in enumerate(cluster_texts) if i in places}
    return near


def _contaminated(noun: str, n_clusters: int, same: Sequence[str], near: Sequence[str]) -> str:
    n = len(same) + len(near)
    ways = [f"were trained on ({first_of(same)})"] if same else []
    ways += [f"are near-duplicates of ones that were trained on ({first_of(near)})"] if near else []
    counts = f" ({len(same)} and {len(near)})" if len(ways) > 1 else ""
    return (
        f"{n} of the {n_clusters} {noun} {' or '.join(ways)}{counts}: what is measured is "
        f"{'' if n == n_clusters else 'partly '}in the training data, and does not generalize to other {noun}."
    )
