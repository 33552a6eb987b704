"""Text as base64, rot13, leetspeak or pieces."""

from __future__ import annotations

import base64
import codecs
import random
import unicodedata
from collections.abc import Callable
from itertools import pairwise

_TO_LEET = str.maketrans("aeiostAEIOST", "431057431057")
_JOINERS = {"\u200d", "\ufe0f", "\ufe0e"}


ENCODERS: dict[str, Callable[[str], str]] = {
    "base64": lambda text: base64.b64encode(text.encode("utf-8")).decode("ascii"),
    "rot13": lambda text: codecs.encode(text, "rot13"),
    "leetspeak": lambda text: text.translate(_TO_LEET),
}
"""By family: what its template's {encoded} holds."""


def split_payload(text: str, rng: random.Random, parts: int = 3) -> tuple[str, ...]:
    """The text in `parts` pieces that give it exactly when joined, cut after spaces where there are enough.

    No combining mark or joiner is cut from its letter. Pieces are empty where the text has too few characters.
    """
    places = [i for i in range(1, len(text)) if text[i - 1].isspace() and not text[i].isspace()]
    if len(places) < parts - 1:
        places = [i for i in range(1, len(text)) if not _belongs_to_the_last(text[i - 1], text[i])]
    cuts = sorted(rng.sample(places, min(parts - 1, len(places))))
    edges = [0, *cuts, *[len(text)] * (parts - len(cuts))]
    return tuple(text[start:end] for start, end in pairwise(edges))


def _belongs_to_the_last(before: str, character: str) -> bool:
    return bool(unicodedata.combining(character)) or character in _JOINERS or before in _JOINERS


def stays_plain(text: str, family: str) -> bool:
    """True if the family's code changes nothing of a text, or most of its letters are of another alphabet.

    rot13 and leetspeak change Latin letters only: a request in Arabic or Russian would stay readable.
    """
    letters = [c for c in text if c.isalpha()]
    latin = sum(c.isascii() for c in letters)
    return ENCODERS[family](text) == text or (family != "base64" and 2 * latin < len(letters))
