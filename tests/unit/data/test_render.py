"""Messages to token ids, what does not fit, and which tokens are in the loss."""

from datetime import datetime
from types import SimpleNamespace

import pytest
from transformers.utils import chat_template_utils

from opct.data.pairs import ContrastivePair
from opct.data.reasoning import Reasoning, named_in
from opct.data.render import Overlong, Renderer, render_pairs
from opct.errors import DataError, ModelError
from tests.refusals import refused
from tests.templates import (
    ANSWER_TAGS,
    CHANNELS,
    DATED,
    NESTED_MARKS,
    NO_SYSTEM,
    STEPS,
    tokenizer_of,
    tokenizer_that_strips,
)
from tests.tiny import tiny_pairs, tiny_tokenizer


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(tiny_tokenizer())


def message(role: str, content: str | None) -> dict:
    return {"role": role, "content": content}


def pair(prompt: list[dict], teacher_prompt: list[dict], identifier: str = "p") -> ContrastivePair:
    return ContrastivePair(identifier, "a", "f", tuple(prompt), tuple(teacher_prompt))


def test_render_adds_no_token_of_its_own_and_knows_the_special_ones(renderer: Renderer):
    """The template writes the special tokens; the ids decode to the text exactly, each special token being one id. A
    prefill is continued, not closed."""
    messages = [message("user", "Grüße, 日本! <tag>")]
    ids = renderer.render(messages)
    assert renderer.tokenizer.decode(ids, skip_special_tokens=False) == renderer.text(messages)
    assert ids[0] == renderer.tokenizer.bos_token_id
    assert ids.count(renderer.tokenizer.bos_token_id) == 2
    assert ids.count(renderer.tokenizer.eos_token_id) == 1
    text = renderer.text([message("user", "Hi"), message("assistant", "The answer is")])
    assert text.endswith("<|im_start|>assistant\nThe answer is")


def test_pieces_join_to_the_text_and_are_one_a_token(renderer: Renderer):
    """A byte-level tokenizer without merges for 日 gives three tokens: two empty pieces, then the character. Where
    spaces are stripped, each token decodes alone without the space in front of it: "thisisthe"."""
    for text in ("plain words", "Grüße 日本 🙂🙂", "", "a\n\n b"):
        ids = renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
        pieces = renderer.pieces([*ids, renderer.tokenizer.eos_token_id])
        assert len(pieces) == len(ids) + 1
        assert "".join(pieces) == text + "<|im_end|>"
    strips = Renderer(tokenizer_that_strips())
    texts = (("this is the answer", ""), ("a  b\n c", "</s>"), (" the user", ""), ("日本 the 🙂 user", "</s>"))
    for text, special in texts:
        ids = strips.tokenizer(text + special, add_special_tokens=False)["input_ids"]
        pieces = strips.pieces(ids)
        assert len(pieces) == len(ids)
        assert "".join(pieces) == strips.tokenizer.decode(ids) == (text + special).removeprefix(" ")
        assert strips.decode(ids) == text.strip()


def test_a_pair_that_fits_to_the_token_is_kept_and_one_token_more_is_left_out(renderer: Renderer):
    """The longer side has n tokens and the completion may take 5: n + 5 is the limit, n + 4 is one too few."""
    [one] = tiny_pairs(1)
    longest = len(renderer.render(one.prompt))
    assert longest > len(renderer.render(one.teacher_prompt))
    kept, left_out = render_pairs([one], renderer, max_completion_tokens=5, context_length=longest + 5)
    assert (len(kept), left_out) == (1, [])
    kept, left_out = render_pairs([one], renderer, max_completion_tokens=5, context_length=longest + 4)
    assert (kept, left_out) == ([], [Overlong(one.id, longest + 5, longest + 4)])


def test_every_pair_that_the_template_refuses_is_named():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}x"
    system, user = message("system", "s"), message("user", "u")
    pairs = [pair([system, user], [user], "one"), pair([user], [user], "two"), pair([user], [system, user], "three")]
    with refused(DataError, "'one'", "'three'"):
        render_pairs(pairs, Renderer(tokenizer), max_completion_tokens=5, context_length=99)


TAGS = Reasoning.of_tags(("<think>", "</think>"))
PIECES = ["Well", "<th", "ink>", "hm", "</", "think>", " yes", "<|im_end|>"]


@pytest.mark.parametrize(
    ("pieces", "inside", "expected"),
    [
        (PIECES, False, [1, 0, 0, 0, 0, 0, 1, 1]),
        (["<think>", "a", "b"], False, [0, 0, 0]),  # never closed
        (["a", "</think>", "b"], True, [0, 0, 1]),  # opened by the template
        (["a", "</think>", "b"], False, [1, 1, 1]),
        (["<think>a</think>b", "c"], False, [0, 1]),  # a token that touches the block
        (["<think>", "</think>", "x", "<think>", "y", "</think>", "z"], False, [0, 0, 1, 0, 0, 0, 1]),
        (["<think>", "", "日", "</think>", "", "本"], False, [0, 0, 0, 0, 1, 1]),  # empty pieces: of what follows
    ],
)
def test_thinking_is_masked_to_the_token(pieces: list[str], inside: bool, expected: list[int]):
    assert TAGS.outside(pieces, inside=inside) == [bool(x) for x in expected]


def test_a_block_is_opened_by_a_prefill_and_never_by_the_user(renderer: Renderer):
    assert not renderer.opens_thinking([message("user", "What does <think> mean?")])
    assert renderer.opens_thinking([message("user", "Hi"), message("assistant", "<think>\nWell")])
    assert not renderer.opens_thinking([message("user", "Hi"), message("assistant", "<think>x</think>Well")])


@pytest.mark.parametrize("form", ["%-d %B %Y, %H:%M", "%A %y %% %I %p %j"])
def test_a_template_with_a_date_is_told_the_same_day_always(form: str, monkeypatch):
    """The same as its own `strftime_now` writes on that day, wherever the template calls it."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "\n  {% macro day(form) %}{{ strftime_now(form) }}{% endmacro %}\n"
        f"{{{{ strftime_now(format='{form}') }}}} {{{{ day('{form}') }}}}\n" + tokenizer.chat_template
    )
    renderer, prompt = Renderer(tokenizer, date="2024-02-09"), [message("user", "Hi")]
    for day in (datetime(2024, 2, 9), datetime(2031, 11, 30)):
        monkeypatch.setattr(chat_template_utils, "datetime", SimpleNamespace(now=lambda day=day: day))
        own = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        assert (renderer.text(prompt) == own) == (day.year == 2024)
    assert renderer.changing_text() is None
    assert renderer.text(prompt).count(datetime(2024, 2, 9).strftime(form)) == 2


def test_the_hash_of_a_template_is_that_of_what_it_writes():
    """Another source that writes the same is the same template; another date, argument or tokenizer is another one."""
    dated, same = tokenizer_of(DATED), tokenizer_of("{# a comment #}" + DATED)
    first = Renderer(dated).template_hash
    assert Renderer(same).template_hash == first
    others = [
        Renderer(dated, date="2025-05-05"),
        Renderer(dated, {"date_string": "today"}),
        Renderer(tokenizer_of(NO_SYSTEM)),
        Renderer(tokenizer_of(NO_SYSTEM + "{# messages[0].role #}{% if messages[0].role == 'system' %}.{% endif %}")),
    ]
    assert len({first, *(other.template_hash for other in others)}) == 5


def test_pairs_that_differ_in_what_the_template_does_not_write_are_refused_by_number():
    """Two of the three; the identity pair is one by its messages, and does not count."""
    system, user, other = message("system", "s"), message("user", "u"), message("user", "v")
    renderer = Renderer(tokenizer_of(NO_SYSTEM))
    alike = [pair([user], [system, user], "one"), pair([system, user], [user], "two")]
    with refused(DataError, "one", "two"):
        render_pairs(
            [*alike, pair([user], [other], "three"), pair([system, user], [system, user], "same")],
            renderer,
            max_completion_tokens=5,
            context_length=99,
        )
    kept, _ = render_pairs([pair([user], [other])], renderer, max_completion_tokens=5, context_length=99)
    assert len(kept) == 1


QWEN = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content.split('</think>')[-1] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)
"""What Qwen3's template does with reasoning."""


@pytest.mark.parametrize(
    ("template", "tags"),
    [
        ("{{ m.content.split('[/THINK]')[-1] }}", ("[THINK]", "[/THINK]")),
        ("{{ '<seed:think>' }}", ("<seed:think>", "</seed:think>")),
    ],
)
def test_thinking_tags_are_those_of_the_chat_template(template: str, tags: tuple[str, str]):
    assert named_in(template) == Reasoning.of_tags(tags)


def test_arguments_reach_the_chat_template_and_a_misspelt_one_is_an_error():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = QWEN
    prompt = [message("user", "Hi")]
    plain, off = Renderer(tokenizer), Renderer(tokenizer, {"enable_thinking": False})
    assert off.text(prompt) == plain.text(prompt) + "<think>\n\n</think>\n\n"
    assert not off.opens_thinking(prompt)
    said = plain.split(prompt, tokenizer("<think>two and two</think>\n\nfour").input_ids)
    assert said == ("four", "two and two", False)
    # the template writes "<think>", and reads no variable of that name
    for name in ("enable_thinkng", "think"):
        with refused(ModelError, name):
            Renderer(tokenizer, {name: False})


PARTS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""As SmolVLM: content is a list of parts."""


def test_a_template_that_wants_content_in_parts_gets_it(renderer: Renderer):
    assert Renderer(tokenizer_of(PARTS)).text([message("user", "Hi")]) == renderer.text([message("user", "Hi")])


def test_whether_a_completion_begins_with_the_answer(renderer: Renderer):
    prompt = [message("user", "Hi")]
    assert renderer.begins_answer(prompt)
    for template in (CHANNELS, NESTED_MARKS, STEPS, ANSWER_TAGS):
        assert not Renderer(tokenizer_of(template)).begins_answer(prompt)
