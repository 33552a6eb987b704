"""Versions of the grading rules of each suite, so that verdicts of different versions are not mixed.

A version is one integer. Whoever changes a rule so that a reply may get another verdict raises it, here, of every
suite that the rule grades.
"""

from __future__ import annotations

VERSIONS = {"benign": 2, "jailbreak": 2, "safety_awareness": 3}


def grader_version(suite: str) -> int:
    """The version of a suite's rules."""
    return VERSIONS[suite]
