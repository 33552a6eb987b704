"""Each form of the fast path can be switched off alone, to measure what it gains: `benchmarks/step.py --without NAME`.

A form that gains less than 5% of a step's time and 15% of its memory, in both the default training and the quickstart,
is to go.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

FORMS = {
    "fused_lora": "LoRA layers in one function",
    "fused_norm": "RMS norms in one function",
    "grouped_heads": "in decoding, the query heads of a key head are queries of one head",
    "packed_linear": "in decoding, weights packed once for all tokens",
    "shared_rows": "in decoding, rows share their prompt's keys and values",
    "nested_beginnings": "without gradient, what several prompts begin with is computed once",
    "length_groups": "without gradient, short prompts are computed apart from long ones",
    "shared_prompts": "in scoring, a prompt is computed once for its completions",
    "cascade": "in scoring, completions read their prompt's keys in place",
}
_off: set[str] = set()


def is_on(form: str) -> bool:
    """Whether a form is in use."""
    assert form in FORMS, form
    return form not in _off


@contextlib.contextmanager
def without(*forms: str) -> Iterator[None]:
    """Context in which these forms are off for every model; load the model inside it, which installs fused layers.

    Raises:
        ValueError: there is no such form.
    """
    if unknown := set(forms) - FORMS.keys():
        raise ValueError(f"{', '.join(sorted(unknown))}: none of {', '.join(FORMS)}")
    before = set(_off)
    _off.update(forms)
    try:
        yield
    finally:
        _off.clear()
        _off.update(before)
