"""The chat models of an attack: a local policy and a model of Inspect, with their stop reasons."""

import threading

import anyio
import pytest
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessageAssistant,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
    get_model,
)

from opct.attack.config import Sampling, TargetConfig
from opct.attack.models import InspectModel, LocalModel
from opct.errors import DataError, EvaluationError
from opct.evals.inspect_runner import quiet
from opct.models.inference.sampler import Completion
from tests.unit.attack.scripted import user


def inspected(script, **more):
    return model_of(get_model("mockllm/model", custom_outputs=script, memoize=False), **more)


def model_of(model, role="target", **settings):
    return InspectModel(model, TargetConfig(max_completion_tokens=8, **settings), role=role)


class Script:
    """Answers by a function of the prompt; what it returns may be an error."""

    def __init__(self, answer, stop_reason="stop"):
        self.answer, self.stop_reason = answer, stop_reason
        self.asked, self.configs = [], []

    async def __call__(self, input, tools, tool_choice, config):
        self.asked.append(input[-1].text)
        self.configs.append(config)
        await anyio.sleep(0)
        said = self.answer(input[-1].text)
        if isinstance(said, BaseException):
            raise said
        output = ModelOutput.from_content("mockllm/model", said, stop_reason=self.stop_reason)
        output.usage = ModelUsage(input_tokens=5, output_tokens=3, total_tokens=8)
        return output


class HttpError(OSError):
    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status_code = status


def test_a_policy_answers_each_prompt_by_its_seed_whatever_the_batch(tiny_policy):
    model = LocalModel(tiny_policy, Sampling(max_completion_tokens=6))
    prompts = [user("one"), user("two"), user("three")]
    together = model.answer(prompts, [1, 2, 3])
    alone = [model.answer([prompt], [seed])[0] for prompt, seed in zip(prompts, [1, 2, 3], strict=True)]
    assert [reply.text for reply in together] == [reply.text for reply in alone]
    assert all(0 < reply.completion_tokens <= 6 for reply in together)
    assert {reply.stop_reason for reply in together} <= {"stop", "length"}
    assert [reply.completion.seed for reply in together] == [1, 2, 3]


def test_the_room_of_a_policy_is_what_the_prompt_leaves(tiny_policy):
    model = LocalModel(tiny_policy, Sampling(max_completion_tokens=6))
    prompt = user("one two three")
    assert model.room(prompt) == tiny_policy.context_length - len(tiny_policy.renderer.render(prompt))


def test_the_identity_of_a_policy_names_its_weights(tiny_policy):
    first = LocalModel(tiny_policy, Sampling(max_completion_tokens=6)).identity()
    with __import__("torch").no_grad():
        tiny_policy.backbone.head.weight.mul_(1.5)
    assert first["weights"] != LocalModel(tiny_policy, Sampling(max_completion_tokens=6)).identity()["weights"]
    assert first["max_tokens"] == 6


def encoded(policy, text):
    return policy.tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("text", "answer", "unfinished"),
    [
        ("the answer", "the answer", False),
        ("<think>so and so</think> the answer", "the answer", False),
        ("<think>a</think>b<think>c</think>d", "bd", False),
        ("<think>never ends", "", True),
        ("said <think>never ends", "said", True),
    ],
)
def test_the_final_answer_is_what_is_said_outside_of_thinking(tiny_policy, text, answer, unfinished):
    ids = encoded(tiny_policy, text)
    assert tiny_policy.renderer.split(user("x"), ids)[::2] == (answer, unfinished)


def test_a_block_that_the_template_opens_counts(tiny_policy):
    tiny_policy.tokenizer.chat_template += "{{ '<think>\n' if add_generation_prompt else '' }}"
    ids = encoded(tiny_policy, "so and so</think> the answer")
    assert tiny_policy.renderer.split(user("x"), ids)[::2] == ("the answer", False)
    assert tiny_policy.renderer.split(user("x"), encoded(tiny_policy, "so and so"))[::2] == ("", True)


def asked_of(said, *, tags=None, opens=None, stop_reason="stop", role="target"):
    thinking = {"thinking_tags": tags, "template_opens_thinking": opens}
    model = inspected(Script(lambda text: said, stop_reason), role=role, **thinking)
    [reply] = model.answer([user("x")], [0])
    return reply.text, reply.is_unfinished


def test_a_block_that_the_template_of_an_endpoint_opens_counts_where_that_is_said():
    """The reply that is cut inside has no tag at all."""
    assert asked_of("so and so</think> the answer", opens=True) == ("the answer", False)
    assert asked_of("so and", opens=True, stop_reason="max_tokens") == ("", True)
    assert asked_of("so and", stop_reason="max_tokens") == ("so and", False)
    assert asked_of("the answer</think>", opens=False) == ("the answer</think>", False)
    assert asked_of("so</think> a <think>b</think>c", opens=True) == ("a c", False)


@pytest.mark.parametrize("role", ["target", "attacker"])
def test_a_reply_that_closes_a_block_that_it_never_opened_is_no_guess_but_an_error(role):
    with pytest.raises(EvaluationError, match=f"Set {role}.template_opens_thinking: true"):
        asked_of("so and so</think> the answer", role=role)
    with pytest.raises(EvaluationError, match=r"\[/T\]"):
        asked_of("so and so[/T] the answer", tags=("[T]", "[/T]"))
    assert asked_of("<think>a</think> b </think>") == ("b </think>", False)


@pytest.mark.parametrize("opens", [None, True, False])
def test_of_a_server_that_parses_reasoning_the_text_begins_outside_of_it(opens):
    """Whatever the template does, and also where the text has a closing tag."""

    async def answers(input, tools, tool_choice, config):
        return reasoned("let me see", "the answer </think>", "stop")

    [reply] = inspected(answers, template_opens_thinking=opens).answer([user("a")], [0])
    assert (reply.text, reply.is_unfinished) == ("the answer </think>", False)


def test_other_thinking_tags_are_read_by_either_kind_of_model(tiny_policy, monkeypatch):
    tags, said = ("[T]", "[/T]"), "[T]so and so[/T] the answer"
    assert asked_of(said, tags=tags) == ("the answer", False)
    assert asked_of("[T]so and", tags=tags, stop_reason="max_tokens") == ("", True)
    assert asked_of(said) == (said, False)
    completions = [Completion("", tuple(encoded(tiny_policy, said)), "stop", (), 1, 0)]
    monkeypatch.setattr(tiny_policy, "generate", lambda *_, **__: completions)
    [reply] = LocalModel(tiny_policy, Sampling(max_completion_tokens=6), thinking_tags=tags).answer([user("x")], [0])
    assert (reply.text, reply.is_unfinished) == ("the answer", False)


def test_how_a_model_writes_its_reasoning_is_part_of_who_it_is(tiny_policy):
    """And what is as by default is not, so that an attack from before can go on."""
    script, tags = Script(lambda text: "x"), ("[T]", "[/T]")
    default = inspected(script, thinking_tags=("<think>", "</think>"))
    assert default.identity() == inspected(script).identity()
    said = inspected(script, thinking_tags=tags, template_opens_thinking=False).identity()
    assert (said["thinking_tags"], said["template_opens_thinking"]) == (["[T]", "[/T]"], False)
    plain = LocalModel(tiny_policy, Sampling(max_completion_tokens=6)).identity()
    assert LocalModel(tiny_policy, Sampling(max_completion_tokens=6), thinking_tags=tags).identity() == plain | {
        "thinking_tags": list(tags)
    }


def test_a_tag_in_the_prompt_hides_no_reply(tiny_policy):
    """A user who writes the tag opens no block: the reply is judged."""
    ids = encoded(tiny_policy, "the answer")
    assert tiny_policy.renderer.split(user("say <think> first"), ids)[::2] == ("the answer", False)


def test_a_prefill_may_open_a_block(tiny_policy):
    prompt = (*user("x"), {"role": "assistant", "content": "<think>let me"})
    assert tiny_policy.renderer.split(prompt, encoded(tiny_policy, " see</think>yes"))[::2] == ("yes", False)


def test_a_model_of_inspect_is_asked_with_the_seed_and_the_limits():
    script = Script(lambda text: f"<think>hm</think>{text}!")
    model = inspected(script)
    replies = model.answer([user("a"), user("b")], [5, 2**62 + 6])
    assert [reply.text for reply in replies] == ["a!", "b!"]
    assert [(reply.stop_reason, reply.prompt_tokens, reply.completion_tokens) for reply in replies] == [
        ("stop", 5, 3)
    ] * 2
    assert sorted(config.seed for config in script.configs) == [5, 6]
    assert {config.max_tokens for config in script.configs} == {8}


def test_a_reply_whose_tokens_nobody_counted_counts_as_the_longest():
    async def uncounted(input, tools, tool_choice, config):
        output = ModelOutput.from_content("mockllm/model", "x")
        output.usage = None
        return output

    class Silent:
        """mockllm counts by itself, and asks the network how."""

        api = None

        def __str__(self):
            return "some/model"

        async def generate(self, messages, config):
            return await uncounted(messages, [], None, config)

    [reply] = model_of(Silent()).answer([user("a")], [0])
    assert reply.completion_tokens == 8


@pytest.mark.parametrize(
    ("stop_reason", "told"), [("max_tokens", "length"), ("content_filter", "filtered"), ("model_length", "context")]
)
def test_why_a_model_of_inspect_stopped(stop_reason, told):
    [reply] = inspected(Script(lambda text: "x", stop_reason)).answer([user("a")], [0])
    assert reply.stop_reason == told


def reasoned(reasoning, text, stop_reason, *, counted=None):
    """What Inspect makes of the reply of a server that parses reasoning itself, and may count what it does not show."""
    parts = [] if reasoning is None else [ContentReasoning(reasoning=reasoning)]
    message = ChatMessageAssistant(content=[*parts, ContentText(text=text)])
    usage = ModelUsage(input_tokens=5, output_tokens=8, total_tokens=13, reasoning_tokens=counted)
    return ModelOutput(model="m", choices=[ChatCompletionChoice(message=message, stop_reason=stop_reason)], usage=usage)


@pytest.mark.parametrize(
    ("output", "unfinished"),
    [
        (reasoned("let me see", "", "max_tokens"), True),
        (reasoned("let me see", "", "model_length"), True),
        (reasoned(None, "", "max_tokens", counted=8), True),
        (reasoned("let me see", "The ans", "max_tokens"), False),  # the answer was cut
        (reasoned("let me see", "", "stop"), False),  # it ended without an answer
        (reasoned(None, "", "max_tokens", counted=0), False),  # it does not reason
    ],
)
def test_a_reply_that_was_cut_in_reasoning_that_the_server_parsed_is_unfinished(output, unfinished):
    async def answers(input, tools, tool_choice, config):
        return output

    [reply] = inspected(answers).answer([user("a")], [0])
    assert reply.is_unfinished is unfinished


def test_a_prompt_that_an_endpoint_rejects_is_told_apart():
    model = inspected(Script(lambda text: HttpError(400) if text == "bad" else "fine"))
    replies = model.answer([user("bad"), user("good")], [0, 1])
    assert [(reply.text, reply.stop_reason) for reply in replies] == [("", "rejected"), ("fine", "stop")]


def test_an_endpoint_that_rejects_everything_is_an_error_and_no_defence():
    with pytest.raises(EvaluationError, match=r"rejected 2 request.s. in a row: HTTP 400"):
        inspected(Script(lambda text: HttpError(400))).answer([user("a"), user("b")], [0, 1])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (HttpError(503), "did not answer 1 request.*HTTP 503.*continue with --resume"),
        (HttpError(401), "refuses the key"),
        (TypeError("no attribute choices"), "did not answer 1 request"),  # a page in place of a completion
    ],
)
def test_an_endpoint_that_fails_ends_everything_with_one_error(error, said):
    with pytest.raises(EvaluationError, match=said):
        inspected(Script(lambda text: error)).answer([user("a")], [0])


def test_an_error_of_ours_comes_through_as_it_is():
    with pytest.raises(DataError, match="of ours"):
        inspected(Script(lambda text: DataError("one of ours"))).answer([user("a"), user("b")], [0, 1])


def test_what_keeps_inspect_quiet_may_be_used_by_several_threads(monkeypatch):
    """The first to leave must not undo it for the other, and the last restores what was there before either."""
    import os

    monkeypatch.setenv("XDG_DATA_HOME", "/mine")
    inside, leave = threading.Event(), threading.Event()

    def other():
        with quiet():
            inside.set()
            leave.wait(10)

    with quiet():
        scratch = os.environ["XDG_DATA_HOME"]
        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(10)
    assert os.environ["XDG_DATA_HOME"] == scratch != "/mine"
    leave.set()
    thread.join()
    assert os.environ["XDG_DATA_HOME"] == "/mine"
