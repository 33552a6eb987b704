"""The words of a text as texts are compared: in lower case, the small words of English aside."""

from __future__ import annotations

import re
import unicodedata

STEM = 5
"""So many first letters stand for a word: "forge" is "forged" and "forgery" too, but "hack" is not "hacking" (see
`opct.evals.graders.encoded`)."""
_SMALL_WORDS = {
    *("a", "an", "and", "are", "as", "at", "be", "by", "can", "could", "do", "does", "for", "from", "give", "her"),
    *("his", "how", "i", "in", "is", "it", "its", "make", "me", "my", "of", "on", "or", "our", "please", "should"),
    *("tell", "that", "the", "their", "them", "they", "this", "to", "us", "we", "what", "which", "who", "will", "with"),
    *("so", "write", "you", "your"),
}


def normalised(text: str) -> str:
    """The text as it is compared: words in lower case without the small ones; all of it where nothing is left."""
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())
    kept = [word for word in words if word not in _SMALL_WORDS]
    return " ".join(kept or words) or " ".join(text.split())


def stems(text: str) -> set[str]:
    """The beginnings, of at most `STEM` letters, of its words, as `normalised` leaves them."""
    return {word[:STEM] for word in normalised(text).split()}
