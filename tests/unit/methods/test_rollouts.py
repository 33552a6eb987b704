"""Who answers what, with which seed, and which tokens are in the loss."""

from types import SimpleNamespace

import pytest

from opct.data.pairs import ContrastivePair
from opct.data.render import render_pairs
from opct.methods.rollouts import in_loss, kl_metrics, policy_rollouts, sampling
from opct.models.inference.sampler import Sampling, sample_seed
from opct.models.policy import Policy
from opct.training.setup import TrainingData
from tests.tiny import tiny_pairs


def user(content: str) -> dict:
    return {"role": "user", "content": content}


OPEN = {"role": "assistant", "content": None}


@pytest.fixture
def rendered(tiny_policy: Policy):
    def render(pairs):
        return render_pairs(pairs, tiny_policy.renderer, max_completion_tokens=6, context_length=2048)[0]

    return render


@pytest.fixture
def config(make_config):
    return make_config(seed=7, rollout={"num_generations": 2, "max_completion_tokens": 6})


def test_every_pair_is_answered_with_seeds_of_its_own(tiny_policy, rendered, config):
    """Seed = f(run seed, occasion, pair, index): the same whatever other pairs are in the step."""
    pairs = rendered(tiny_pairs(3))
    rollouts = policy_rollouts(tiny_policy, pairs, config, "step 4")
    assert [(r.pair.id, r.index) for r in rollouts] == [(f"sum/{i}", j) for i in range(3) for j in range(2)]
    assert [r.completion.seed for r in rollouts] == [
        sample_seed(7, "step 4", f"sum/{i}", j) for i in range(3) for j in range(2)
    ]
    for r, pair in zip(rollouts[::2], pairs, strict=True):
        assert (r.prompt_ids, r.teacher_ids) == (pair.prompt_ids, pair.teacher_ids)
    alone = policy_rollouts(tiny_policy, pairs[1:2], config, "step 4")
    assert [(r.ids, r.completion.seed) for r in alone] == [(r.ids, r.completion.seed) for r in rollouts[2:4]]
    other_step = policy_rollouts(tiny_policy, pairs, config, "step 5")
    assert [r.ids for r in other_step] != [r.ids for r in rollouts]


def test_sampling_follows_the_config_and_the_generation_config_where_it_says_so(make_config, tiny_policy):
    settings = {"max_completion_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 3}
    assert sampling(make_config(method="sft", rollout=settings), tiny_policy) == Sampling(9, 0.5, 0.9, 3)
    theirs = tiny_policy.model.generation_config
    theirs.do_sample, theirs.temperature, theirs.top_p, theirs.top_k = True, 0.6, 0.8, 5
    config = make_config(method="sft", rollout={"max_completion_tokens": 9, "use_generation_config": True})
    assert sampling(config, tiny_policy) == Sampling(9, 0.6, 0.8, 5)
    assert sampling(make_config(rollout={"max_completion_tokens": 9}), tiny_policy) == Sampling(9)


def test_open_turns_are_answered_by_the_policy_first_to_last(tiny_policy, rendered, config):
    """Each open turn is the policy's own answer to the turns before it, sampled with a seed of that turn."""
    prompt = (user("a"), OPEN, user("sure?"), OPEN, user("really?"))
    [pair] = rendered([ContrastivePair("multi", "a", "f", prompt, (user("a"),))])
    [first, second] = policy_rollouts(tiny_policy, [pair], config, "step 1")
    filled = [dict(m) for m in prompt]
    for turn, place in enumerate((1, 3)):
        ids = tiny_policy.renderer.render(filled[:place])
        seed = sample_seed(7, "step 1", "multi", f"turn {turn}")
        [[answer]] = tiny_policy.sample([ids], [[seed]], Sampling(6))
        filled[place]["content"] = answer.text
    for r in (first, second):
        assert list(r.pair.prompt) == filled
        assert r.prompt_ids == tiny_policy.renderer.render(filled)
        assert r.teacher_ids == tiny_policy.renderer.render((user("a"),))
    assert first.ids != second.ids


def test_a_pair_that_stands_in_a_step_again_has_other_samples(tiny_policy, rendered, make_config):
    """Its first ones are those of a pair that stands there once; its open turns are answered anew, too."""
    config = make_config(rollout={"num_generations": 2, "max_completion_tokens": 6}, optim={"prompts_per_step": 4})
    pairs = rendered([ContrastivePair("multi", "a", "f", (user("a"), OPEN, user("sure?")), (user("a"),))])
    data = TrainingData(config, {}, pairs, [], [], [], [])
    step = data.batch(1)
    assert [pair.occurrence for pair in step] == [0, 1, 2, 3]
    assert step[0] is pairs[0]
    assert data.visited() == pairs
    rollouts = policy_rollouts(tiny_policy, step, config, "step 1")
    assert [r.completion.seed for r in rollouts] == [sample_seed(config.seed, "step 1", "multi", i) for i in range(8)]
    assert len({str(r.pair.prompt) for r in rollouts}) == 4
    assert [r.ids for r in rollouts[:2]] == [r.ids for r in policy_rollouts(tiny_policy, pairs, config, "step 1")]


def test_what_is_cut_or_thinking_is_in_the_loss_unless_left_out(tiny_policy, rendered, make_config):
    """A prefill that opens a block hides the whole of a completion that never closes it."""
    pairs = rendered(tiny_pairs(2))
    for left_out in (False, True):
        rollouts = policy_rollouts(tiny_policy, pairs, make_config(loss={"mask_truncated": left_out}), "step 1")
        assert any(r.completion.stop_reason == "length" for r in rollouts)
        for r in rollouts:
            assert r.mask == (not (left_out and r.completion.stop_reason == "length"),) * len(r.ids)
    prefill = {"role": "assistant", "content": "<think>so"}
    pairs = rendered([ContrastivePair("p", "a", "f", (user("a"), prefill), (user("b"), prefill))])
    for masked in (False, True):
        rollouts = policy_rollouts(tiny_policy, pairs, make_config(loss={"mask_thinking": masked}), "step 1")
        assert all(r.mask == (not masked,) * len(r.ids) for r in rollouts)


def test_kl_is_logged_by_axis_if_there_are_several():
    """Tokens in the loss: [1, 3] of one axis, [5] of another, [0] of an identity pair; the masked 9 is in none."""

    def rollout(axis, mask, identity=False):
        return SimpleNamespace(pair=SimpleNamespace(axis=axis, is_identity=identity), mask=mask)

    rollouts = [rollout("a", (True, True)), rollout("b", (True, False)), rollout("benign", (True,), identity=True)]
    kl = [[1.0, 3.0], [5.0, 9.0], [0.0]]
    assert kl_metrics("train/kl", rollouts, in_loss(rollouts, kl)) == {
        "train/kl": 3.0, "train/kl_identity": 0.0, "train/kl_a": 2.0, "train/kl_b": 5.0
    }  # fmt: skip
    two = in_loss(rollouts[::2], kl[::2])
    assert kl_metrics("train/kl", rollouts[::2], two) == {"train/kl": 2.0, "train/kl_identity": 0.0}
    assert kl_metrics("train/kl", rollouts[:1], in_loss(rollouts[:1], [None])) == {}
