"""A policy as an Inspect model: what it is asked, and what it says."""

import anyio
import pytest
from inspect_ai.model import ChatMessageUser, GenerateConfig, get_model

from opct.errors import EvaluationError
from opct.evals.provider import as_inspect_model, as_prompt, prompt_seed
from tests.refusals import refused
from tests.unit.evals.fakes import FakePolicy

USER = [ChatMessageUser(content="a b c")]


def ask(policy, messages=USER, tools=(), **config):
    api = as_inspect_model(policy, temperature=config.pop("default_temperature", 1.0)).api
    return anyio.run(lambda: api.generate(list(messages), list(tools), "auto", GenerateConfig(**config)))


def test_reply_with_real_counts():
    output = ask(FakePolicy(lambda prompt, seed: "one two"), max_tokens=5)
    assert (output.completion, output.stop_reason) == ("one two", "stop")
    assert (output.usage.input_tokens, output.usage.output_tokens, output.usage.total_tokens) == (3, 2, 5)
    assert len(output.metadata["token_ids"]) == 2


def test_reasoning_is_no_part_of_the_answer():
    """A block that is cut leaves nothing to grade."""
    policy = FakePolicy(lambda prompt, seed: "<think> two and two </think> four")
    output = ask(policy, max_tokens=9)
    assert (output.completion, output.message.content[0].reasoning) == ("four", "two and two")
    assert len(output.metadata["token_ids"]) == 6
    cut = ask(policy, max_tokens=3)
    assert (cut.completion, cut.stop_reason) == ("", "max_tokens")


def test_stop_reasons():
    """Cut at max_tokens; cut by the context of 5 after a prompt of 3; no room at all."""

    def words(prompt, seed):
        return "1 2 3 4 5 6 7 8 9"

    assert ask(FakePolicy(words), max_tokens=4).stop_reason == "max_tokens"
    short = ask(FakePolicy(words, context_length=5), max_tokens=4)
    assert (short.stop_reason, short.completion) == ("model_length", "1 2")
    policy = FakePolicy(words, context_length=3)
    full = ask(policy, max_tokens=4)
    assert (full.stop_reason, full.completion, full.usage.input_tokens) == ("model_length", "", 3)
    assert policy.batches == []


def test_sampling_settings_reach_the_policy():
    policy = FakePolicy(lambda prompt, seed: "x")
    ask(policy, max_tokens=7, temperature=0.0, top_p=0.9, top_k=5)
    ask(policy)
    ask(policy, default_temperature=0.0)
    assert policy.settings == [
        {"max_completion_tokens": 7, "temperature": 0.0, "top_p": 0.9, "top_k": 5},
        {"max_completion_tokens": 1024, "temperature": 1.0, "top_p": 1.0, "top_k": 0},
        {"max_completion_tokens": 1024, "temperature": 0.0, "top_p": 1.0, "top_k": 0},
    ]


def test_seed_depends_on_messages_and_seed_alone():
    policy = FakePolicy(lambda prompt, seed: "x")
    for seed in (0, 0, 1):
        ask(policy, seed=seed)
    ask(policy, [ChatMessageUser(content="other")], seed=0)
    assert policy.seeds[0] == policy.seeds[1]
    assert len(set(policy.seeds)) == 3
    assert policy.seeds[0] == prompt_seed(0, ({"role": "user", "content": "a b c"},)) < 2**63
    assert prompt_seed(0, (), epoch=2) != prompt_seed(0, ())


def test_seed_is_the_same_on_every_machine():
    """The first 8 bytes of sha256('[7, 1, [["user", "hi"]]]'), halved."""
    assert prompt_seed(7, ({"role": "user", "content": "hi"},)) == 0x688A72ED30F68E19


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"logprobs": True}, "logprobs=True"),
        ({"num_choices": 2}, "num_choices=2"),
        ({"logit_bias": {1: 2}}, "logit_bias"),
    ],
)
def test_unknown_settings_are_refused(config, message):
    with refused(EvaluationError, message):
        ask(FakePolicy(lambda prompt, seed: "x"), **config)


def test_model_by_name_loads_its_policy_when_first_asked(monkeypatch):
    """Inspect makes a model for a name more than once (to look up its context); only an answer may load weights."""
    import opct.evals.registry
    import opct.models.from_run

    loaded = []
    policy = FakePolicy(lambda prompt, seed: "x")
    monkeypatch.setattr(
        opct.models.from_run, "load_policy", lambda path, **settings: loaded.append((path, settings)) or policy
    )
    model = get_model("opct/runs/demo", memoize=False, dtype="float32")
    assert loaded == []
    assert (str(model), model.api.policy) == ("opct/runs/demo", policy)
    assert model.api.policy is policy
    assert loaded == [("runs/demo", {"dtype": "float32"})]


@pytest.mark.parametrize("setting", ["judge.model", "kl_samples", "quantization", "suites"])
def test_a_task_refuses_settings_that_do_nothing_in_it(setting):
    from opct.evals.registry import SUITE_TASKS

    with refused(EvaluationError, setting.partition(".")[0]):
        SUITE_TASKS["benign"](**{setting: 1})
    assert len(SUITE_TASKS["benign"](n_benign=3).dataset)


def test_options_are_scored_after_the_batch_whose_replies_came_early():
    policy = FakePolicy(lambda prompt, seed: "one", option_scores=lambda prompt, options: [0.0], delay_s=0.05)
    api, scored = as_inspect_model(policy).api, []

    async def answer_then_score(i):
        prompt = ChatMessageUser(content=f"question {i}")
        await api.generate([prompt], [], "auto", GenerateConfig(max_tokens=2))
        scored.append(await api.option_logprobs(as_prompt([prompt]), ["a"]))

    async def main():
        async with anyio.create_task_group() as group:
            for i in range(3):
                group.start_soon(answer_then_score, i)

    anyio.run(main)
    assert (policy.batches, scored) == ([3], [[0.0]] * 3)
