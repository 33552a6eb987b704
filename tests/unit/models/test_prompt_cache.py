"""The teacher's kept prompts: which they are, that they are computed once, and that scores are those without."""

from __future__ import annotations

import pytest
import torch
from tests.tiny import tiny_adapter_policy

from opct.models.kernels.attention import use_grouped_attention
from opct.models.policy import Policy
from opct.models.teacher_cache import PromptCache, Visits, visits_of

A, B, C, D = (1, 40, 50, 60), (1, 70), (1, 80, 81, 82, 83), (1, 9, 9)
STEPS = [[A, B], [C, D], [A, C], [C, A]]
COMPLETIONS = [[10, 11, 12, 2], [20, 2], [30]]


def planned(steps, *, most_bytes: float = 1e9, batch_tokens: int = 100, single_too: bool = False) -> PromptCache:
    """A token is 10 bytes, a prompt 1 more."""
    return PromptCache(
        visits_of(steps),
        token_bytes=10,
        prompt_bytes=1,
        most_bytes=most_bytes,
        batch_tokens=batch_tokens,
        single_too=single_too,
    )


class Computed:
    """Gives each prompt a tensor, and remembers the batches."""

    def __init__(self):
        self.batches: list[list] = []

    def __call__(self, prompts):
        self.batches.append(list(prompts))
        return [[torch.tensor(prompt)] for prompt in prompts]


def test_visits_by_hand():
    assert visits_of(STEPS) == {A: Visits(1, 4, 3), B: Visits(1, 1, 1), C: Visits(2, 4, 3), D: Visits(2, 2, 1)}


def test_what_comes_again_is_kept_until_the_bytes_are_full():
    """A has 4 tokens, 41 bytes; C 5, 51 bytes. B and D come once."""
    cache = planned(STEPS)
    assert (cache.prompts, cache.most_bytes) == (2, 92)
    compute = Computed()
    assert cache.states([A, B], compute).keys() == {A}
    assert cache.end_step(1, [A, B])["time/prompt_cache_hit_fraction"] == 0
    assert cache.states([C, D], compute).keys() == {C}
    cache.end_step(2, [C, D])
    assert cache.states([A, C], compute).keys() == {A, C}
    assert cache.end_step(3, [A, C])["time/prompt_cache_hit_fraction"] == 1
    assert compute.batches == [[A], [C]]
    assert planned(STEPS, most_bytes=91).prompts == 1
    assert planned(STEPS, most_bytes=40).prompts == 0


def test_a_prompt_is_dropped_after_the_last_step_that_visits_it():
    cache = planned([[A, C], [A], [C]])
    cache.states([A, C], Computed())
    assert cache.bytes == 8 * (4 + 5)
    assert cache.end_step(1, [A, C])["memory/prompt_cache_gb"] == 72e-9
    assert cache.bytes == 72
    cache.end_step(2, [A])
    assert cache.bytes == 40
    cache.end_step(3, [C])
    assert cache.bytes == 0


def test_the_same_prompts_are_computed_together_whenever_one_is_missing():
    """As after a resumption, which begins with nothing: C is asked for, and A is computed with it."""
    steps, compute = [[A, C, B], [B], [C, A]], Computed()
    planned(steps).states([A], compute)
    planned(steps).states([C], compute)
    assert compute.batches == [[C, A, B], [C, A, B]]
    planned(steps, batch_tokens=10).states([B], compute)
    assert compute.batches[2:] == [[B]]


def test_a_run_that_may_go_on_has_the_same_batches_however_far_it_is_planned():
    for most_bytes in (1e9, 100):
        short = planned(STEPS[:1], most_bytes=most_bytes, single_too=True)
        whole = planned(STEPS, most_bytes=most_bytes, single_too=True)
        assert all(whole._batch_of[prompt] == batch for prompt, batch in short._batch_of.items())
        assert short._batch_of.keys() == whole._batch_of.keys() & {A, B}
    assert (planned(STEPS[:1], single_too=True).prompts, planned(STEPS[:1], single_too=True).most_bytes) == (0, 0)


def scored(policy: Policy, prompts, cache: PromptCache | None) -> torch.Tensor:
    with policy.adapter_off(), policy.inference():
        return policy.score(prompts, COMPLETIONS, prefix=policy.shared_prefix(prompts, cache=cache)).hidden


@pytest.mark.parametrize("attention", ["sdpa", "eager", "cascade"])
def test_scores_with_kept_prompts_are_those_without(attention: str):
    """Bit for bit where the same prompts are computed together; to rounding where B is computed without the others."""
    policy = tiny_adapter_policy()
    if attention == "cascade":
        use_grouped_attention(policy.backbone.bare_model)
    else:
        policy.backbone.decoder.config._attn_implementation = attention
    plain = scored(policy, [A, B, C], None)
    together, apart = planned([[A, B, C]] * 2), planned([[A, C]] * 2)
    assert torch.equal(scored(policy, [A, B, C], together), plain)
    together.end_step(1, [])
    forwards = []
    policy.backbone.decoder.register_forward_pre_hook(
        lambda _, args, kwargs: forwards.append(kwargs["input_ids"]), with_kwargs=True
    )
    assert torch.equal(scored(policy, [A, B, C], together), plain)
    assert len(forwards) == 1  # the completions'
    torch.testing.assert_close(scored(policy, [A, B, C], apart), plain, rtol=1e-5, atol=1e-5)
    assert torch.equal(scored(policy, [B, C, A], together), scored(policy, [B, C, A], None))
