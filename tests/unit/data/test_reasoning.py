"""Reasoning is told from the answer, in the form that the model uses."""

import pytest

from opct.data.reasoning import Reasoning, SplitReply, of_response_template, split_text
from opct.data.render import Renderer
from tests.templates import ANSWER_TAGS, CHANNELS, NAMED_CHANNEL, NESTED_MARKS, OWN_MARKS, STEPS, tokenizer_of
from tests.tiny import tiny_tokenizer

ASKED = ({"role": "user", "content": "Which <think> planet, <|channel|>?"},)


def split(renderer: Renderer, said: str, prompt=ASKED) -> SplitReply:
    return renderer.split(prompt, renderer.tokenizer(said, add_special_tokens=False)["input_ids"])


ANALYSIS = "<|channel|>analysis<|message|>He says Uranus<|end|><|start|>assistant"
COMMENTARY = "<|channel|>commentary<|message|>I look<|end|><|start|>assistant"
CASES = [
    (
        CHANNELS,
        f"{ANALYSIS}{COMMENTARY}<|channel|>final<|message|>Saturn.<|return|>",
        ("Saturn.", "He says UranusI look", False),
    ),
    (CHANNELS, "<|channel|>final <|constrain|>text<|message|>Saturn.<|return|>", ("Saturn.", "", False)),
    (CHANNELS, "<|channel|>analysis<|message|>He says Ura", ("", "He says Ura", True)),
    (CHANNELS, "<|channel|>fin", ("", "fin", True)),
    (CHANNELS, "Saturn, in my analysis.<|return|>", ("Saturn, in my analysis.", "", False)),
    (NAMED_CHANNEL, "<|channel>thought\nHe says\n<channel|>Saturn.<turn|>", ("Saturn.", "He says", False)),
    (NAMED_CHANNEL, "<|channel>thought\nHe s", ("", "He s", True)),
    (OWN_MARKS, "<|inner|>He says<|end|><|begin|>assistant<|content|>Saturn.<|end|>", ("Saturn.", "He says", False)),
    (
        NESTED_MARKS,
        "He says<|close|>think<|sep|><|open|>response<|sep|>Saturn.<|close|>response<|sep|><|close|>message<|sep|>"
        "<|end_of_msg|>",
        ("Saturn.", "He says", False),
    ),
    (NESTED_MARKS, "He says<|close|>thi", ("", "He says<|close|>thi", True)),
    (STEPS, "He says\n[BEGIN FINAL RESPONSE]\nSaturn.\n<|end|>", ("Saturn.", "He says", False)),
    (STEPS, "He says", ("", "He says", True)),
    (ANSWER_TAGS, "<why>\nHe says\n</why>\n<answer>\nSaturn.\n</answer><|end|>", ("Saturn.", "He says", False)),
]


@pytest.mark.parametrize(("template", "said", "expected"), CASES)
def test_a_reply_is_split_in_the_form_of_its_template(template: str, said: str, expected: tuple):
    """No token of the reasoning is outside, every one of the answer is, and the text of a completion splits like its
    tokens (with the form that a log keeps)."""
    renderer = Renderer(tokenizer_of(template))
    assert split(renderer, said) == expected
    ids = renderer.tokenizer(said, add_special_tokens=False)["input_ids"]
    outside = renderer.outside_reasoning(ASKED, ids)
    answer = [i for i, is_outside in zip(ids, outside, strict=True) if is_outside]
    assert renderer.tokenizer.decode(answer, skip_special_tokens=True).strip() == expected[0]
    logged = Reasoning(*list(renderer.reasoning))
    assert logged.split(renderer.decode(ids), inside=renderer.opens_thinking(ASKED)).answer == expected[0]


def test_a_tag_that_the_system_text_names_too_is_that_of_the_reasoning():
    template = (
        "{{ '<|im_start|>system\nReason between <think> and </think>.<|im_end|>\n' }}"
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n' }}{% endif %}"
        "{{ m.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert split(Renderer(tokenizer_of(template)), "<think>\nHe says\n</think>\nSaturn.").answer == "Saturn."


def test_a_reply_of_an_unknown_model():
    """Channels also where special tokens were dropped, as a server sends them."""
    for text, answer in (
        ("analysisThe user says Uranus; ... assistantfinalSaturn.", "Saturn."),
        ("analysisWe check.assistantcommentaryI look.assistantfinalSaturn.", "Saturn."),
        ("analysisThe user says Ura", ""),
        ("<think>a</think>Saturn.", "Saturn."),
        ("<|START_THINKING|>a<|END_THINKING|>Saturn.", "Saturn."),
        ("a</think>Saturn.", "Saturn."),
        ("<think>a</think>\n<response>Saturn.</response>", "Saturn."),
        ("<think>a</think><response>Sat", "Sat"),
        ("<think>In XML, <response> is a tag</think>Saturn.", "Saturn."),
        ("<think>never closed", ""),
        ("<|channel>thought\na<channel|>Saturn.", "Saturn."),
        ("Saturn. In HTML, <think> is no tag.", "Saturn. In HTML, <think> is no tag."),
        ("analysis of rings: Saturn.", "analysis of rings: Saturn."),
        ("finally, Saturn.", "finally, Saturn."),
    ):
        assert split_text(text).answer == answer


@pytest.mark.parametrize(
    ("template", "prefill", "said", "answer"),
    [
        (CHANNELS, "It is", " Saturn.<|return|>", "Saturn."),
        (NAMED_CHANNEL, "<|channel>thought\nHm", "m.<channel|>Saturn.<turn|>", "Saturn."),
    ],
)
def test_a_reply_that_continues_a_prefill(template, prefill, said, answer):
    prompt = (*ASKED, {"role": "assistant", "content": prefill})
    assert split(Renderer(tokenizer_of(template)), said, prompt).answer == answer


@pytest.mark.parametrize(
    ("opening", "inside"), [("<think>", True), ("<think>\nOkay,", True), ("<think>\n\n</think>\n\n", False)]
)
def test_what_the_generation_prompt_writes_decides_where_a_reply_begins(opening: str, inside: bool):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template += f"{{% if add_generation_prompt %}}{{{{ {opening!r} }}}}{{% endif %}}"
    assert Renderer(tokenizer).opens_thinking(ASKED) == inside


RESPONSE_TEMPLATES = [
    (
        {
            "start_anchor": "<|im_start|>assistant\n",
            "fields": {"reasoning_content": {"open": "<r>", "close": "</r>"}, "content": {"close": "<|im_end|>"}},
        },
        ["<r>a b</r>Saturn.", "Saturn.", "<r>a b"],
    ),
    (
        {
            "start_anchor": "<|im_start|>assistant\n",
            "fields": {
                "thinking": {"open_pattern": r"<c>(?:notes|plan)<m>", "close": "<e>"},
                "content": {"open": "<c>say<m>", "close": ["<e>", "<|im_end|>"]},
            },
        },
        ["<c>plan<m>a b<e>x<c>say<m>Saturn.", "<c>say<m>Saturn.<|im_end|>", "<c>notes<m>a b"],
    ),
]


@pytest.mark.parametrize(("template", "replies"), RESPONSE_TEMPLATES)
def test_a_response_template_says_how_reasoning_is_marked(template: dict, replies: list[str]):
    """The answer is what transformers' own `parse_response` gives."""
    tokenizer = tiny_tokenizer()
    tokenizer.response_template = template
    renderer = Renderer(tokenizer)
    assert renderer.reasoning == of_response_template(template)
    for said in replies:
        ids = tokenizer(said, add_special_tokens=False)["input_ids"]
        parsed = tokenizer.parse_response(ids, prefix=renderer.text(ASKED))
        assert split(renderer, said).answer == (parsed.get("content") or "")
