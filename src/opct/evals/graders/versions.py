"""Which rules graded a reply: a hash of the sources that say what it means, so that verdicts of two versions are told
apart."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

_READ_BY = ("denials", "math_answers", "number_answers", "maths", "math_verifier", "math_worker")
_MATHS = tuple(f"evals/capability/{name}.py" for name in _READ_BY)
_SHARED = tuple(f"evals/{name}.py" for name in ("graders", "language", "refusals", "refusal_patterns", "refusal_rest"))
SOURCES = {
    "benign": _SHARED,
    "gsm8k": _MATHS,
    "jailbreak": (*_SHARED, "evals/encoded.py", "data/duplicates.py"),
    "math500": _MATHS,
    "safety_awareness": (*_SHARED, "evals/warnings_grader.py"),
}
"""By suite: the files whose rules grade its replies, below the package."""
HAZARDS = "data/builtin/hazards"
"""The folder of the words that warnings of the embedded facts are told by."""


@cache
def grader_version(suite: str) -> str:
    """12 hex digits of the SHA-256 of the suite's rules (of safety awareness also of the embedded facts' words).

    Ends of lines do not count; comments do, since nothing tells them from rules.
    """
    package = resources.files("opct")
    files = {name: package.joinpath(*name.split("/")) for name in SOURCES[suite]}
    if suite == "safety_awareness":
        folder = package.joinpath(*HAZARDS.split("/"))
        files |= {f"{HAZARDS}/{entry.name}": entry for entry in folder.iterdir() if entry.name.endswith(".jsonl")}
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + files[name].read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()[:12]


def grader_versions() -> dict[str, str]:
    """The version of the rules of every suite that has a grader of replies here."""
    return {suite: grader_version(suite) for suite in SOURCES}
