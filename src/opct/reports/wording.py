"""Names and lists as words."""

from __future__ import annotations

from collections.abc import Sequence

ARM_NAMES = {"base": "Base", "sft": "SFT", "opct": "OPCT", "offpolicy": "Off-policy", "dpo": "DPO", "act": "ACT"}

METHODS_IN_WORDS = {
    "base": "the model before training",
    "sft": "trained to repeat what the base answers when asked plainly",
    "opct": "trained on its own answers under pressure, towards what the base would say when asked plainly",
    "offpolicy": "the same aim as OPCT, on answers that the base gave when asked plainly",
    "dpo": "trained to prefer what the base answers when asked plainly to what it answers under pressure",
    "act": "trained to have the activations that the base has when asked plainly",
}
"""By method (the label of an untrained arm), what it is to a reader who knows none."""


def joined(words: Sequence[str]) -> str:
    """Words as prose: "a", "a and b", "a, b and c"."""
    return "".join(words) if len(words) < 2 else f"{', '.join(words[:-1])} and {words[-1]}"


def arm_name(label: str) -> str:
    """Display name of a run's label: "opct" is "OPCT"; an unknown label is unchanged."""
    return ARM_NAMES.get(label, label)


def family_name(family: str) -> str:
    """Display name of a family: "are_you_sure" is "are you sure"."""
    return family.replace("_", " ")


def inside(text: str) -> str:
    """A heading for use within a sentence: "Held-out families" is "held-out families", "GSM8K" stays as it is."""
    return text if text[1:2].isupper() or text[1:2].isdigit() else text[:1].lower() + text[1:]


def capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
