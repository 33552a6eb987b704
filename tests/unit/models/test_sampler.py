"""The sampler: what it draws, where it stops, and that a sample is the same in any batch."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import chisquare
from tests.tiny import tiny_model, tiny_tokenizer

from opct.errors import ModelError
from opct.models import sampler
from opct.models.policy import Policy
from opct.models.sampler import Completion, Sampling, draw, sample_seed, uniforms

PROMPTS = [[1, 40, 50, 60], [1, 70], [1, 80, 81, 82, 83, 84, 85], [1, 90, 91]]
SEEDS = [[100, 101, 102], [103], [104, 105], [106, 107, 108]]


def sharp_policy(eos_bias: float = 0.0, **options) -> Policy:
    """A tiny policy; `eos_bias` raises the logit of the stop token in every state."""
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, tie=False, **options)
    if eos_bias:
        bias = torch.zeros(len(tokenizer))
        bias[tokenizer.eos_token_id] = eos_bias
        model.lm_head.bias = torch.nn.Parameter(bias, requires_grad=False)
    return Policy(model, tokenizer)


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values)


# ------------------------------------------------------------------------------------------------ draw


def test_draw_by_hand():
    """Probabilities (1/2, 1/4, 1/4): u below 0.5 is token 0, below 0.75 token 1, else 2; a bound belongs above."""
    logits = rows([0.5, 0.25, 0.25]).log().expand(5, 3)
    u = torch.tensor([0.0, 0.49, 0.5, 0.75, 0.999999])
    tokens, log_probs = draw(logits, u, Sampling(1))
    assert tokens.tolist() == [0, 0, 1, 2, 2]
    torch.testing.assert_close(log_probs, rows([0.5, 0.5, 0.25, 0.25, 0.25]).log()[0])


@pytest.mark.parametrize("vocabulary", [255, 256, 257, 1000])
def test_draws_by_blocks_are_those_of_one_cumulative_sum(vocabulary: int):
    """2000 rows in float64; the last tokens of every row are impossible, u goes up to the largest below 1."""
    logits = 3 * torch.randn(2000, vocabulary, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[:, -3:] = -math.inf
    u = uniforms(5, 2000)
    u[-1] = 1 - 2**-53
    cumulative = logits.softmax(-1).cumsum(-1)
    target = torch.minimum(u * cumulative[:, -1], cumulative[:, -1] * (1 - 2**-52))
    expected = (cumulative <= target[:, None]).sum(-1)
    tokens, log_probs = draw(logits, u, Sampling(1))
    assert torch.equal(tokens, expected)
    assert len(set((tokens // sampler.BLOCK).tolist())) == -(-(vocabulary - 3) // sampler.BLOCK)
    torch.testing.assert_close(log_probs, logits.log_softmax(-1).gather(-1, expected[:, None])[:, 0])


def test_draw_never_takes_an_impossible_token():
    """Tokens 0 and 2 have probability 0, and so are drawn neither at u = 0 nor at the largest u below 1."""
    logits = rows([-math.inf, 0.0, -math.inf])
    for u in (0.0, 1 - 2**-53):
        tokens, _ = draw(logits, torch.tensor([u], dtype=torch.float64), Sampling(1))
        assert tokens.item() == 1


def test_sums_in_float32_draw_the_same_and_never_an_impossible_token(monkeypatch):
    """As on MPS, which has no float64: u = 1 - 2^-53 rounds to 1 there, and still falls on a token with mass."""
    assert sampler.sums_dtype(torch.device("mps")) == torch.float32
    assert sampler.sums_dtype(torch.device("cpu")) == torch.float64
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(0))
    logits[:, 40:] = -math.inf
    u = uniforms(3, 200)
    expected, _ = draw(logits, u, Sampling(1))
    monkeypatch.setattr(sampler, "sums_dtype", lambda device: torch.float32)
    found, _ = draw(logits, u.float(), Sampling(1))
    assert torch.equal(found, expected)
    last, log_probs = draw(logits, torch.full((200,), 1 - 2**-53, dtype=torch.float64).float(), Sampling(1))
    assert last.max() < 40
    assert log_probs.isfinite().all()


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.7, 1.0, 0), (1.0, 0.6, 0), (1.0, 1.0, 3)]
)
def test_drawn_frequencies_are_the_distributions(temperature: float, top_p: float, top_k: int):
    """20 000 draws over 8 tokens, chi-square against probabilities computed token by token (fixed seed, p > 0.001)."""
    logits = torch.randn(8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    p = (logits / temperature).softmax(-1)
    if top_k:
        p[p < p.sort(descending=True).values[top_k - 1]] = 0
    if top_p < 1:
        order = p.argsort(descending=True).tolist()
        kept = [i for place, i in enumerate(order) if sum(float(p[j]) for j in order[:place]) < top_p]
        p[[i for i in range(8) if i not in kept]] = 0
    p = p / p.sum()
    n = 20_000
    tokens, log_probs = draw(logits.expand(n, 8), uniforms(7, n), Sampling(1, temperature, top_p, top_k))
    counts = torch.bincount(tokens, minlength=8)
    assert counts[p == 0].sum() == 0
    assert chisquare(counts[p > 0].numpy(), (p[p > 0] * n).numpy()).pvalue > 0.001
    torch.testing.assert_close(log_probs, p[tokens].log())


def test_top_p_by_hand():
    """(0.5, 0.3, 0.15, 0.05): 0.5 is reached by the first token, 0.6 needs two, 0.81 three; one is always kept."""
    logits = rows([0.05, 0.5, 0.15, 0.3]).log()
    for top_p, kept in ((0.5, {1}), (0.6, {1, 3}), (0.81, {1, 3, 2}), (0.0, {1})):
        u = torch.linspace(0, 0.9999, 200)
        tokens, _ = draw(logits.expand(200, 4), u, Sampling(1, top_p=top_p))
        assert set(tokens.tolist()) == kept


def test_greedy_takes_the_likeliest_and_reports_temperature_1():
    """Softmax of (0, ln 3) is (1/4, 3/4)."""
    tokens, log_probs = draw(rows([0.0, math.log(3)]), torch.tensor([0.0]), Sampling(1, temperature=0.0))
    assert tokens.tolist() == [1]
    torch.testing.assert_close(log_probs, torch.tensor([math.log(0.75)]))


def test_draws_of_a_seed_do_not_depend_on_how_many_are_made():
    for n in (1, 5, 15, 17, 64):
        assert torch.equal(uniforms(11, n), uniforms(11, 200)[:n])
    assert not torch.equal(uniforms(11, 8), uniforms(12, 8))


def test_seeds_differ_by_every_part_and_fit_torch():
    """`1, 23` and `12, 3` are different names; the numbers are pinned, for a resumed run must draw them again."""
    assert sample_seed(1, 23) != sample_seed(12, 3)
    assert len({sample_seed(seed, step, i) for seed in range(5) for step in range(5) for i in range(5)}) == 125
    assert all(0 <= sample_seed(i) < 2**63 for i in range(100))
    assert sample_seed(0, "step 1", "a", 0) == sample_seed(0, "step 1", "a", 0)


# --------------------------------------------------------------------------------------------- sample


def test_a_sample_is_the_same_in_any_batch(tiny_policy: Policy):
    """All prompts at once, in another order, each sample alone, with one prompt a batch: the same tokens each time."""
    sampling = Sampling(12)
    together = tiny_policy.sample(PROMPTS, SEEDS, sampling)
    turned = tiny_policy.sample(PROMPTS[::-1], SEEDS[::-1], sampling)[::-1]
    small = tiny_policy.sample(PROMPTS, SEEDS, sampling, batch_tokens=1)
    for i, prompt in enumerate(PROMPTS):
        for j, seed in enumerate(SEEDS[i]):
            [[alone]] = tiny_policy.sample([prompt], [[seed]], sampling)
            for other in (together[i][j], turned[i][j], small[i][j]):
                assert other.token_ids == alone.token_ids
                assert (other.seed, other.prompt_tokens, other.stop_reason) == (seed, len(prompt), alone.stop_reason)
                torch.testing.assert_close(torch.tensor(other.logprobs), torch.tensor(alone.logprobs))


def test_samples_differ_by_seed_and_a_shorter_limit_is_a_prefix(tiny_policy: Policy):
    [long] = tiny_policy.sample(PROMPTS[:1], [[1, 2, 3]], Sampling(12))
    [short] = tiny_policy.sample(PROMPTS[:1], [[1, 2, 3]], Sampling(4))
    assert len({c.token_ids for c in long}) == 3
    assert all(b.token_ids == a.token_ids[:4] for a, b in zip(long, short, strict=True))


def test_log_probs_are_the_policys_own(tiny_policy: Policy):
    """At temperature 1 without truncation, scored again in another batch: equal to 1e-4."""
    groups = tiny_policy.sample(PROMPTS, SEEDS, Sampling(10))
    prompts = [p for p, own in zip(PROMPTS, groups, strict=True) for _ in own]
    completions = [c for own in groups for c in own]
    scored = tiny_policy.log_probs(prompts, [list(c.token_ids) for c in completions])
    for completion, expected in zip(completions, scored, strict=True):
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)


def test_log_probs_at_another_temperature_are_those_of_what_was_drawn(tiny_policy: Policy):
    [[completion]] = tiny_policy.sample(PROMPTS[:1], [[5]], Sampling(6, temperature=0.5))
    with torch.no_grad():
        ids = torch.tensor([[*PROMPTS[0], *completion.token_ids]])
        logits = tiny_policy.model(ids).logits[0, len(PROMPTS[0]) - 1 : -1]
    expected = (logits / 0.5).log_softmax(-1).gather(-1, torch.tensor(completion.token_ids)[:, None]).squeeze(-1)
    torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("model_seed", [0, 1, 2])
def test_greedy_equals_the_generation_of_transformers(model_seed: int):
    """The same greedy tokens as `generate(do_sample=False)`, for prompts of different lengths in one batch."""
    policy = sharp_policy(eos_bias=6.0, seed=model_seed)
    groups = policy.sample(PROMPTS, [[0]] * 4, Sampling(16, temperature=0.0))
    for prompt, [completion] in zip(PROMPTS, groups, strict=True):
        ids = torch.tensor([prompt])
        out = policy.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16, pad_token_id=0
        )
        assert list(completion.token_ids) == out[0, len(prompt) :].tolist()


def test_stop_reasons_are_real_and_the_stop_token_is_included():
    """With a raised stop logit some of 40 samples of at most 6 tokens stop, some do not; each says so truly."""
    policy = sharp_policy(eos_bias=4.5)
    [completions] = policy.sample(PROMPTS[:1], [list(range(40))], Sampling(6))
    assert {c.stop_reason for c in completions} == {"stop", "length"}
    for c in completions:
        stops = [i for i, token in enumerate(c.token_ids) if token in policy.stop_ids]
        assert len(c.logprobs) == len(c.token_ids)
        if c.stop_reason == "stop":
            assert stops == [len(c.token_ids) - 1]
        else:
            assert stops == []
            assert len(c.token_ids) == 6
        assert "<|im_end|>" not in c.text


def test_a_stop_token_at_the_limit_is_a_stop():
    policy = sharp_policy(eos_bias=100.0)
    [[completion]] = policy.sample(PROMPTS[:1], [[0]], Sampling(1))
    assert completion.token_ids == (policy.tokenizer.eos_token_id,)
    assert (completion.stop_reason, completion.text) == ("stop", "")


def test_every_stop_token_that_the_model_names_stops():
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    model.generation_config.eos_token_id = [2, 77]
    assert Policy(model, tokenizer).stop_ids == {2, 77}


def test_generation_config_is_ignored(tiny_policy: Policy):
    """A repetition penalty, a temperature and a top_k that come with the model would change whose samples these are."""
    before = tiny_policy.sample(PROMPTS, SEEDS, Sampling(8))
    config = tiny_policy.model.generation_config
    config.temperature, config.top_k, config.do_sample, config.repetition_penalty = 0.1, 1, True, 5.0
    assert tiny_policy.sample(PROMPTS, SEEDS, Sampling(8)) == before


def test_generation_config_is_used_when_asked_for(tiny_policy: Policy):
    config = tiny_policy.model.generation_config
    assert tiny_policy.generation_defaults() == {"temperature": 0.0, "top_p": 1.0, "top_k": 0}
    config.do_sample, config.temperature, config.top_p, config.top_k = True, 0.5, None, 7
    assert tiny_policy.generation_defaults() == {"temperature": 0.5, "top_p": 1.0, "top_k": 7}
    config.repetition_penalty = 1.1
    with pytest.raises(ModelError, match=r"repetition_penalty.*1\.1"):
        tiny_policy.generation_defaults()


def test_sampling_leaves_the_global_generator_and_training_mode_alone(tiny_policy: Policy):
    tiny_policy.model.train()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    tiny_policy.sample(PROMPTS[:1], [[1]], Sampling(3))
    assert torch.equal(torch.rand(1), expected)
    assert tiny_policy.model.training


def test_progress_counts_every_completion(tiny_policy: Policy):
    done: list[int] = []
    tiny_policy.sample(PROMPTS, SEEDS, Sampling(2), batch_tokens=30, on_done=done.append)
    assert sum(done) == 9
    assert len(done) > 1


def test_a_prompt_that_does_not_fit_is_refused(tiny_policy: Policy):
    tiny_policy.context_length = 10
    with pytest.raises(ModelError, match="exceed the model's context of 10"):
        tiny_policy.sample([[1] * 7], [[0]], Sampling(4))
    [[completion]] = tiny_policy.sample([[1] * 7], [[0]], Sampling(3))
    assert isinstance(completion, Completion)
