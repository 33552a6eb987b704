"""Texts that say nearly the same: measured on character n-grams, grouped transitively.

Case, punctuation, spacing and the small words of English do not count. Two texts are near-duplicates where the n-grams
that they share are at least `THRESHOLD` of those that either has (Jaccard), for runs of four characters or for whole
words, whichever is more. So "Explain how to pick the lock of a bicycle" and "Explain how to pick a bicycle's lock,
please." are near-duplicates, and "Tell me how bicycle locks are picked" is none of them: other words for the same thing
are not understood. A behaviour and its benign twin, which share verbs and topic on purpose, are not compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from opct.data.words import normalised

THRESHOLD = 0.45
N_GRAM = 4


_Print = tuple[frozenset[str], frozenset[str]]


def near_duplicate_groups(texts: Sequence[str], threshold: float = THRESHOLD) -> list[list[int]]:
    """The places of the texts, those of near-duplicates together; a near-duplicate of one belongs to its whole group.

    Groups are in the order of their first text, places in order. A text like no other is a group of its own.
    """
    prints = [_fingerprint(text) for text in texts]
    first = list(range(len(texts)))

    def root(i: int) -> int:
        while first[i] != i:
            first[i] = first[first[i]]
            i = first[i]
        return i

    for i, j in _candidates(prints, threshold):
        a, b = root(i), root(j)
        if a != b and _alike(prints[i], prints[j]) >= threshold:
            first[max(a, b)] = min(a, b)
    groups: dict[int, list[int]] = {}
    for i in range(len(texts)):
        groups.setdefault(root(i), []).append(i)
    return list(groups.values())


def _candidates(prints: Sequence[_Print], threshold: float) -> Iterator[tuple[int, int]]:
    """Pairs (i, j), j < i, among which all near-duplicates are.

    Two sets that share `threshold` of their union share one of the rarest elements of each: of n elements, the first
    n - ceil(threshold n) + 1 in the order of rarity (prefix filtering; Bayardo, Ma, Srikant 2007).
    """
    kinds = []
    for kind in zip(*prints, strict=True):
        common = Counter(element for own in kind for element in own)
        kinds.append([sorted(own, key=lambda x: (common[x], x))[: _prefix(len(own), threshold)] for own in kind])
    seen: list[dict[str, list[int]]] = [{} for _ in kinds]
    for i in range(len(prints)):
        found: set[int] = set()
        for rarest, places in zip(kinds, seen, strict=True):
            for element in rarest[i]:
                own = places.setdefault(element, [])
                found.update(own)
                own.append(i)
        yield from ((i, j) for j in sorted(found))


def _prefix(n: int, threshold: float) -> int:
    return n - math.ceil(threshold * n - 1e-9) + 1


def crossing(texts: Sequence[str], others: Sequence[str], threshold: float = THRESHOLD) -> dict[int, int]:
    """Place of each text that is a near-duplicate of one of the others, with the place of the nearest of these."""
    prints = [_fingerprint(text) for text in others]
    found = {}
    for i, text in enumerate(texts):
        own = _fingerprint(text)
        nearest, j = max(((_alike(own, other), -j) for j, other in enumerate(prints)), default=(0.0, 0))
        if nearest >= threshold:
            found[i] = -j
    return found


def similarity(a: str, b: str) -> float:
    """How alike two texts are, in [0, 1]; see the module."""
    return _alike(_fingerprint(a), _fingerprint(b))


def _fingerprint(text: str) -> _Print:
    """The n-grams of characters and of words."""
    plain = normalised(text)
    padded = f" {plain} "
    grams = frozenset(padded[i : i + N_GRAM] for i in range(max(len(padded) - N_GRAM + 1, 1)))
    return grams, frozenset(plain.split())


def _alike(a: _Print, b: _Print) -> float:
    return max(_jaccard(x, y) for x, y in zip(a, b, strict=True))


def _jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared)
