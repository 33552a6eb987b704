"""Each form of the fast path can be switched off alone, to measure what it gains: `benchmarks/step.py --without NAME`.

A form stays if without it the default training or the quickstart takes 5% longer or 15% more memory. Three stay for
others: `shared_rows` and `cascade` for prompts with several long completions (`long` of the benchmark), `fused_norm`
for the memory of large models in bfloat16. The gains beside the forms are of float32 on two cores with AVX2, where two
steps that are the same differ by up to 7%.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

FORMS = {
    # a default step 16%
    "fused_lora": "LoRA layers in one function",
    # a default step 1%; 10% of what a model of 135M keeps for the backward pass in bfloat16, 18% of 8B by arithmetic
    "fused_norm": "RMS norms in one function",
    # a step of the quickstart 10%, a default one 4%
    "grouped_heads": "in decoding, the query heads of a key head are queries of one head",
    # a default step 21%
    "packed_linear": "in decoding, weights packed once for all tokens",
    # nothing in either, whose rows are too few; a step of `long` 27%
    "shared_rows": "in decoding, rows share their prompt's keys and values",
    # 45% of the prompt tokens of the quickstart's evaluations, none of its steps'
    "nested_beginnings": "in sampling, what several prompts begin with is computed once",
    # a third of the prompt tokens of the quickstart's evaluations, and up to half of a default step's in sampling
    "length_groups": "in sampling, short prompts are computed apart from long ones",
    # a step of the quickstart 14%
    "shared_prompts": "in scoring, a prompt is computed once for its completions",
    # a step of the quickstart 2%, of `long` 13%
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
