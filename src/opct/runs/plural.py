"""A number and its noun, in the singular or the plural."""

from __future__ import annotations


def count(amount: int, noun: str, plural: str | None = None) -> str:
    """An amount and its noun: "1 sample", "12 samples", "1,200 replies"."""
    return f"{amount:,} {noun if amount == 1 else plural or noun + 's'}"
