"""A policy as an Inspect model: what it is asked, what it says, and how concurrent calls become batches."""

import time

import anyio
import pytest
from inspect_ai.model import ChatMessageUser, GenerateConfig, get_model

import opct.models.from_run
from opct.errors import EvaluationError
from opct.evals.provider import Batcher, as_inspect_model, prompt_seed
from opct.evals.registry import SUITE_TASKS
from tests.refusals import refused
from tests.unit.evals.fakes import FakePolicy

USER = [ChatMessageUser(content="a b c")]


def ask(policy, messages=USER, default_temperature=1.0, **config):
    api = as_inspect_model(policy, temperature=default_temperature).api
    return anyio.run(lambda: api.generate(list(messages), [], "auto", GenerateConfig(**config)))


def test_reasoning_is_no_part_of_the_answer_and_all_tokens_are_counted():
    """A block that is cut leaves nothing to grade."""
    policy = FakePolicy(lambda prompt, seed: "<think> two and two </think> four")
    output = ask(policy, max_tokens=9)
    assert (output.completion, output.message.content[0].reasoning) == ("four", "two and two")
    assert (output.usage.input_tokens, output.usage.output_tokens, output.usage.total_tokens) == (3, 6, 9)
    assert len(output.metadata["token_ids"]) == 6
    cut = ask(policy, max_tokens=3)
    assert (cut.completion, cut.stop_reason) == ("", "max_tokens")


def test_stop_reasons():
    """All said; cut at max_tokens; cut by the context of 5 after a prompt of 3; no room at all."""

    def words(prompt, seed):
        return "1 2 3 4 5 6 7 8 9"

    assert ask(FakePolicy(words), max_tokens=9).stop_reason == "stop"
    assert ask(FakePolicy(words), max_tokens=4).stop_reason == "max_tokens"
    short = ask(FakePolicy(words, context_length=5), max_tokens=4)
    assert (short.stop_reason, short.completion) == ("model_length", "1 2")
    policy = FakePolicy(words, context_length=3)
    full = ask(policy, max_tokens=4)
    assert (full.stop_reason, full.completion, full.usage.input_tokens) == ("model_length", "", 3)
    assert policy.batches == []


def test_sampling_settings_reach_the_policy_and_unknown_ones_are_refused():
    policy = FakePolicy(lambda prompt, seed: "x")
    ask(policy, max_tokens=7, temperature=0.0, top_p=0.9, top_k=5)
    ask(policy)
    ask(policy, default_temperature=0.0)
    names = ("max_completion_tokens", "temperature", "top_p", "top_k")
    given = [tuple(settings[name] for name in names) for settings in policy.settings]
    assert given == [(7, 0.0, 0.9, 5), (1024, 1.0, 1.0, 0), (1024, 0.0, 1.0, 0)]
    for name, value in {"logprobs": True, "num_choices": 2, "logit_bias": {1: 2.0}}.items():
        with refused(EvaluationError, f"{name}={value}"):
            ask(policy, **{name: value})


def test_seed_depends_on_messages_and_seed_alone_on_every_machine():
    """The first 8 bytes of sha256('[7, 1, [["user", "hi"]]]'), halved."""
    assert prompt_seed(7, ({"role": "user", "content": "hi"},)) == 0x688A72ED30F68E19
    assert prompt_seed(0, (), epoch=2) != prompt_seed(0, ())
    policy = FakePolicy(lambda prompt, seed: "x")
    for seed, text in ((0, "a b c"), (0, "a b c"), (1, "a b c"), (0, "other")):
        ask(policy, [ChatMessageUser(content=text)], seed=seed)
    assert policy.seeds[0] == policy.seeds[1] == prompt_seed(0, ({"role": "user", "content": "a b c"},)) < 2**63
    assert len(set(policy.seeds)) == 3


def test_model_by_name_loads_its_policy_when_first_asked(monkeypatch):
    """Inspect makes a model for a name more than once (to look up its context); only an answer may load weights."""
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


def test_a_task_refuses_settings_that_do_nothing_in_it():
    for setting in ("judge.model", "kl_samples", "quantization", "suites"):
        with refused(EvaluationError, setting.partition(".")[0]):
            SUITE_TASKS["benign"](**{setting: 1})
    assert len(SUITE_TASKS["benign"](n_benign=3).dataset) == 3


def gather(batcher, n, keys="a", cancelled=None):
    """The results of concurrent calls, by request; an error as its text."""
    results, scopes = {}, {}

    async def one(i):
        with anyio.CancelScope() as scopes[i]:
            try:
                results[i] = await batcher(i, keys[i % len(keys)])
            except ValueError as error:
                results[i] = str(error)

    async def main():
        async with anyio.create_task_group() as group:
            for i in range(n):
                group.start_soon(one, i)
            if cancelled is not None:
                await anyio.sleep(0.001)
                scopes[cancelled].cancel()

    anyio.run(main)
    return results


def test_full_batches_of_one_key_then_the_rest():
    seen = []

    def run(requests, key, on_results):
        seen.append((key, list(requests)))
        return [2 * x for x in requests]

    assert gather(Batcher(run, batch_size=4), 10) == {i: 2 * i for i in range(10)}
    assert seen == [("a", [0, 1, 2, 3]), ("a", [4, 5, 6, 7]), ("a", [8, 9])]
    seen.clear()
    gather(Batcher(run, batch_size=4), 6, "ab")
    assert sorted(seen) == [("a", [0, 2, 4]), ("b", [1, 3, 5])]


def test_error_reaches_the_callers_of_its_batch_only():
    def run(requests, key, on_results):
        if 1 in requests:
            raise ValueError("bad batch")
        return requests

    assert gather(Batcher(run, batch_size=2), 4) == {0: "bad batch", 1: "bad batch", 2: 2, 3: 3}


@pytest.mark.parametrize("cancelled", [0, 1])
def test_cancelled_caller_leaves_the_others_running(cancelled):
    """Caller 0 leads the batch, caller 1 waits; whichever goes away, the rest get their answers."""

    def run(requests, key, on_results):
        time.sleep(0.01)
        return requests

    batcher = Batcher(run, batch_size=8, idle_s=0.02)
    assert gather(batcher, 3, cancelled=cancelled) == {i: i for i in range(3) if i != cancelled}
