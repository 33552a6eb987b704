"""The sampler: what it draws, where it stops, and that a sample is the same in any batch."""

import itertools
from collections import Counter

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from opct.cpu import install, shared_rows
from opct.cpu.shared_rows import no_shared_rows_reason
from opct.errors import ModelError
from opct.models.inference import decode
from opct.models.inference import rows as rows_module
from opct.models.inference.sampler import Sampling, rows_that_fit, sample_seed
from opct.models.policy import Policy
from tests.refusals import refused
from tests.tiny import tiny_model, tiny_tokenizer

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


def installed(policy: Policy) -> Policy:
    """The policy on the fast path."""
    install(policy.backbone.bare_model)
    return Policy(policy.model, policy.tokenizer)


def test_seeds_differ_by_every_part_and_fit_torch():
    """A number is pinned, for a resumed run must draw it again."""
    assert sample_seed(0, "step 1", "a", 0) == 2831829133640869907
    assert sample_seed(1, 23) != sample_seed(12, 3)
    assert all(0 <= sample_seed(i) < 2**63 for i in range(100))


def test_a_sample_is_the_same_in_any_batch(tiny_policy: Policy):
    """All prompts at once, in another order, each sample alone, with one prompt a batch: the same tokens each time.

    Another seed is another sample; a shorter limit gives a prefix.
    """
    sampling, done, finished = Sampling(6), [], []
    together = tiny_policy.sample(PROMPTS, SEEDS, sampling)
    assert len({c.token_ids for c in together[0]}) == 3
    [short] = tiny_policy.sample(PROMPTS[:1], SEEDS[:1], Sampling(2))
    assert [c.token_ids for c in short] == [c.token_ids[:2] for c in together[0]]
    turned = tiny_policy.sample(PROMPTS[::-1], SEEDS[::-1], sampling)[::-1]
    small = tiny_policy.sample(
        PROMPTS, SEEDS, sampling, batch_tokens=1, on_done=done.append, on_completions=finished.extend
    )
    assert sum(done) == 9
    assert len(done) > 1
    assert Counter(finished) == Counter((i, one) for i, own in enumerate(small) for one in own)
    for i, prompt in enumerate(PROMPTS):
        for j, seed in enumerate(SEEDS[i]):
            [[alone]] = tiny_policy.sample([prompt], [[seed]], sampling)
            for other in (together[i][j], turned[i][j], small[i][j]):
                assert other.token_ids == alone.token_ids
                assert (other.seed, other.prompt_tokens, other.stop_reason) == (seed, len(prompt), alone.stop_reason)
                torch.testing.assert_close(torch.tensor(other.logprobs), torch.tensor(alone.logprobs))


def test_stop_reasons_are_real_and_the_stop_token_is_included():
    """With a raised stop logit some of 40 samples of at most 6 tokens stop, some do not; each says so truly."""
    policy = sharp_policy(eos_bias=4.5)
    [completions] = policy.sample(PROMPTS[:1], [list(range(40))], Sampling(6))
    assert {c.stop_reason for c in completions} == {"stop", "length"}
    for c in completions:
        stops = [i for i, token in enumerate(c.token_ids) if token in policy.backbone.stop_ids]
        assert len(c.logprobs) == len(c.token_ids)
        if c.stop_reason == "stop":
            assert stops == [len(c.token_ids) - 1]
        else:
            assert stops == []
            assert len(c.token_ids) == 6
        assert "<|im_end|>" not in c.text


def test_rows_that_are_done_do_not_run_beyond_the_context(monkeypatch):
    """12 prompts of 16 tokens in a context of 32 that is a table of positions; many stop early and wait for others."""
    monkeypatch.setattr(decode.DecodeBatch, "check_every", staticmethod(lambda device: 16))
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=320, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    policy = Policy(GPT2LMHeadModel(config).eval(), tiny_tokenizer())
    policy.backbone.stop_ids = frozenset(range(20))
    prompts = [[5 + (i + j) % 300 for j in range(16)] for i in range(12)]
    seeds = [[100 * i + j for j in range(3)] for i in range(12)]
    found = policy.sample(prompts, seeds, Sampling(16), batch_tokens=6 * (16 + 32))
    assert [len(own) for own in found] == [3] * 12
    assert {c.stop_reason for own in found for c in own} == {"stop", "length"}


def test_generation_config_is_ignored_unless_wanted(tiny_policy: Policy):
    """A repetition penalty, a temperature and a top_k that come with the model would change whose samples these are."""
    before = tiny_policy.sample(PROMPTS, SEEDS, Sampling(8))
    config = tiny_policy.model.generation_config
    config.temperature, config.top_k, config.do_sample, config.repetition_penalty = 0.1, 1, True, 5.0
    assert tiny_policy.sample(PROMPTS, SEEDS, Sampling(8)) == before
    config.temperature, config.top_k, config.do_sample, config.repetition_penalty = 1.0, 50, False, 1.0
    assert tiny_policy.generation_defaults() == {"temperature": 0.0, "top_p": 1.0, "top_k": 0}
    config.do_sample, config.temperature, config.top_p, config.top_k = True, 0.5, None, 7
    assert tiny_policy.generation_defaults() == {"temperature": 0.5, "top_p": 1.0, "top_k": 7}
    config.repetition_penalty = 1.1
    with refused(ModelError, "repetition_penalty", 1.1):
        tiny_policy.generation_defaults()


@pytest.fixture
def entered(monkeypatch) -> list[int]:
    """How many prompts entered a running batch, one number each time."""
    counts: list[int] = []
    admit = decode.DecodeBatch.admit
    monkeypatch.setattr(decode.DecodeBatch, "admit", lambda self, e: counts.append(len(e)) or admit(self, e))
    return counts


@pytest.fixture
def dropped(monkeypatch) -> list[int]:
    """How many columns were dropped, one number each time."""
    counts: list[int] = []
    shift = rows_module.shift
    monkeypatch.setattr(rows_module, "shift", lambda cache, n: counts.append(n) or shift(cache, n))
    return counts


@pytest.mark.parametrize(("attention", "check_every"), [("sdpa", 1), ("shared", 3)])
def test_prompts_that_enter_a_running_batch_get_the_samples_that_they_get_in_one_batch(
    monkeypatch, entered: list[int], dropped: list[int], attention: str, check_every: int
):
    """20 prompts of 2 to 9 tokens, some with two completions, four to six rows at a time; some stop early.

    Looked at every third token only, as on an accelerator, rows go on for a while after they are done.
    """
    policy = sharp_policy(eos_bias=4.0)
    if attention == "shared":
        policy = installed(policy)
        monkeypatch.setattr(shared_rows, "SHARE_AT", 0.0)
        assert no_shared_rows_reason(policy.backbone) is None
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 10, (20,), generator=generator).tolist()
    prompts = [torch.randint(5, 90, (n,), generator=generator).tolist() for n in lengths]
    seeds = [[i, 1000 + i] if i % 5 == 0 else [i] for i in range(20)]
    expected = policy.sample(prompts, seeds, Sampling(10))
    assert not entered
    monkeypatch.setattr(decode.DecodeBatch, "check_every", staticmethod(lambda device: check_every))
    done: list[int] = []
    found = policy.sample(prompts, seeds, Sampling(10), batch_tokens=6 * 29, on_done=done.append)
    assert sum(entered) > 8
    assert dropped
    assert sum(done) == 24
    for a, b in zip(itertools.chain(*found), itertools.chain(*expected), strict=True):
        assert (a.token_ids, a.seed) == (b.token_ids, b.seed)
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4, rel=1e-4)


def test_what_fits_into_a_batch():
    """Shared: 8 rows of a prompt of 1000 take 1000 / 8 + 2 x 64 each; the fewest samples of a prompt count."""
    assert rows_that_fit([8] * 64, 1000, 64, 16384, shared=True) == (64, 8)
    assert rows_that_fit([8] * 64, 1000, 64, 16384, shared=False) == (14, 14)
    assert rows_that_fit([1] * 15 + [49], 1000, 10, 2000, shared=True) == (49, 1)
    assert rows_that_fit([8] * 2, 1000, 64, 16384, shared=True) == (16, 2)
    assert rows_that_fit([], 0, 64, 16384, shared=True) == (1, 1)
