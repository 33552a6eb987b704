"""Each form of the fast path can be switched off alone, to measure what it gains: `benchmarks/step.py --without NAME`.

A form stays if a step of the default training or of the quickstart takes 5% longer or 15% more memory without it. Some
stay for other reasons: `shared_rows` and `cascade` for prompts with several long completions (`long` of the benchmark),
`shared_beginnings` for many prompts of one completion each (`g1`), `fused_norm` for the memory of large models in
bfloat16, `nested_beginnings` and `length_groups` for evaluations. Beside each form stands how much longer a step takes
without it, in float32 on two cores with AVX2, where two equal steps differ by up to 7%.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

FORMS = {
    # default step 16%, quickstart none
    "fused_lora": "LoRA layers in one function",
    # default step 1%; of what is kept for the backward pass in bfloat16 10% (135M), by arithmetic 18% (8B)
    "fused_norm": "RMS norms in one function",
    # quickstart 10%, default step 4%
    "grouped_heads": "in decoding, the query heads of a key head are queries of one head",
    # default step 21%; the quickstart's 8 tokens are too few to pack for
    "packed_linear": "in decoding, weights packed once for all tokens",
    # `long` 27%; default step and quickstart have too few rows for it
    "shared_rows": "in decoding, rows share their prompt's keys and values",
    # of the prompt tokens of the quickstart's evaluation 45%, of its steps none
    "nested_beginnings": "without gradient, what several prompts begin with is computed once",
    # of the prompt tokens of the quickstart's evaluation 35%, of a default step's sampling up to half
    "length_groups": "without gradient, short prompts are computed apart from long ones",
    # quickstart 14%
    "shared_prompts": "in scoring, a prompt is computed once for its completions",
    # `g1` 10%, default step 2% to 5%
    "shared_beginnings": "in scoring, what prompts of one completion each begin with is computed once",
    # quickstart 2%, `long` 13%
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
    Raises ValueError where there is no such form."""
    if unknown := set(forms) - FORMS.keys():
        raise ValueError(f"{', '.join(sorted(unknown))}: none of {', '.join(FORMS)}")
    before = set(_off)
    _off.update(forms)
    try:
        yield
    finally:
        _off.clear()
        _off.update(before)
