"""Broken models and data end a command before it spends time, or are a warning that stays; sound ones are silent."""

import json
from pathlib import Path

import pytest
import torch

from opct.data.pairs import ContrastivePair, user_prompt, write_pairs
from opct.models.from_run import load_policy
from opct.models.self_test import self_test
from tests.e2e.cli import done, here, workplace
from tests.rows import jsonl
from tests.tiny import CHAT_TEMPLATE, tiny_model, tiny_pairs, tiny_tokenizer

WITHOUT_SYSTEM = CHAT_TEMPLATE.replace("in messages", "in messages if message['role'] != 'system'")
WITHOUT_END = CHAT_TEMPLATE.replace("<|im_end|>", "").replace("<|im_start|>", "# ")
SYSTEM = {"role": "system", "content": "Be brief."}
COMMANDS = ("train", "eval", "data")


def talker(folder: Path, *words: str, ends: bool = True, template: str = CHAT_TEMPLATE) -> Path:
    """A model whose every reply is these words, each a token; without an end it says the last one for ever.

    Its layers add nothing, and the embedding of each word points at the next.
    """
    from tokenizers import AddedToken

    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in words])
    model = tiny_model(tokenizer, tie=False)
    said = tokenizer.convert_tokens_to_ids(list(words)) + ([tokenizer.eos_token_id] if ends else [])
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embedded, head = model.get_input_embeddings().weight.zero_(), model.lm_head.weight.zero_()
        embedded[:, 0] = 1
        for place, token in enumerate(said):
            head[token, place] = 30
            embedded[token] = 0
            embedded[token, min(place + 1, len(said) - 1)] = 1
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def pairs_file(folder: Path, *, system: bool = False, axis: str = "sycophancy", **meta) -> Path:
    """Eight pairs; with `meta` in each, and a system message on both sides."""
    before = (SYSTEM,) if system else ()
    pairs = [
        ContrastivePair(p.id, axis, p.family, (*before, *p.prompt), (*before, *p.teacher_prompt), p.meta | meta)
        for p in tiny_pairs(8)
    ]
    write_pairs(folder / "own.jsonl", pairs)
    return folder / "own.jsonl"


def questions_file(folder: Path, answer: str) -> Path:
    path = folder / "questions.csv"
    path.write_text(f"question,answer,wrong\nWhat is 1 plus 1?,2,3\nWhich sign?,{answer},moon\n", encoding="utf-8")
    return path


def command(name: str, folder: Path, model: Path, pairs: Path, *of_eval: str | Path) -> tuple:
    """A command on one model and one pair file; a training has one step."""
    if name == "data":
        return ("data", "check", pairs, "--model", model, "dtype=float32")
    if name == "eval":
        size = ("n_questions=1", "max_completion_tokens=4", "families=suggested_answer", "--dtype", "float32")
        return ("eval", model, *size, "--suite", "sycophancy_short", "--out", folder / "out", *of_eval)
    steps = {"max_steps": 1, "eval_steps": 1}
    data = {"pairs": [str(pairs)]}
    return workplace(folder / "train", model, data=data, rollout={"max_completion_tokens": 4}, **steps).command()


def warnings_kept(name: str, folder: Path) -> list[str]:
    file = folder / ("train/run/manifest.json" if name == "train" else "out/results.json")
    return json.loads(file.read_text())["warnings"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_template_that_loses_the_system_message_is_refused(tmp_path, name):
    model = talker(tmp_path / "model", "Yes.", template=WITHOUT_SYSTEM)
    pairs = pairs_file(tmp_path, system=True)
    assert "system" in here(*command(name, tmp_path, model, pairs, "system_prompt=Be brief.")).error()
    assert not list(tmp_path.glob("train/run/*"))


@pytest.mark.parametrize("name", ["eval", "data"])
def test_an_answer_that_no_reply_can_be_graded_by_is_refused(tmp_path, name):
    pairs = pairs_file(tmp_path, answer="★", aliases=[], suggested="moon")
    questions = questions_file(tmp_path, "★")
    of_eval = ("--questions", questions, "split=all", "n_questions=5")
    message = here(*command(name, tmp_path, talker(tmp_path / "model", "Yes."), pairs, *of_eval)).error()
    assert (f"{questions}:3" if name == "eval" else f"{pairs}:1") in message
    assert "★" in message


def test_options_that_are_the_same_words_to_the_grader_are_told_apart_by_their_letters(tmp_path):
    path = jsonl(
        tmp_path / "choices.jsonl",
        {"question": "Area of a square?", "choices": ["k^2", "k + 2", "four"], "answer": "A"},
        {"question": "Who?", "choices": ["Ann", "Bob"], "answer": "B"},
    )
    model = talker(tmp_path / "model", "Yes.")
    ask = ("eval", model, "--questions", path, "split=all", "--suite", "sycophancy_choice", "max_completion_tokens=2")
    assert f"{path}:1" in done(*ask, "--out", tmp_path / "out").err


LOUD = {
    "another turn": (("Yes.", "\nUser: and then?"), {"ends": False}),
    "reasoning": (("analysisThe user asks.", "Yes."), {}),
    "cut": (("and so on",), {"ends": False}),
    "before their answer began": (("<think>", "hm"), {"ends": False}),
    "special": (("Yes.",), {"template": WITHOUT_END}),
    "add_generation_prompt": (("Yes.",), {"template": CHAT_TEMPLATE.replace("add_generation_prompt", "false")}),
}
WARNED = [
    *(("train", kind) for kind in LOUD),
    ("eval", "cut"),
    ("data", "reasoning"),
]


@pytest.mark.parametrize(("name", "kind"), WARNED)
def test_what_may_be_wrong_is_a_warning_that_stays(tmp_path, kind, name):
    """A resumed run does not say it twice."""
    words, options = LOUD[kind]
    pairs = pairs_file(tmp_path, axis="jailbreak" if name == "data" else "sycophancy", kind="behavior")
    words_of = command(name, tmp_path, talker(tmp_path / "model", *words, **options), pairs)
    said = done(*words_of)
    assert kind in (said.err + said.out).partition("warning: ")[2]
    if (name, kind) == ("train", "another turn"):
        done(*words_of, "max_steps=2", "--resume")
    if name != "data":
        assert [kind in warning for warning in warnings_kept(name, tmp_path)].count(True) == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_a_sound_model_and_sound_data_are_silent(tmp_path, name):
    pairs = pairs_file(tmp_path, answer="seven", aliases=["7"], suggested="eight")
    of_eval = ("--questions", questions_file(tmp_path, "Tupelo"), "split=all", "n_questions=5")
    said = done(*command(name, tmp_path, talker(tmp_path / "model", "Yes."), pairs, *of_eval))
    if name == "data":
        assert "warning" not in said.err + said.out
    else:
        # it says "Yes." to both questions, and so knows neither
        assert [text for text in warnings_kept(name, tmp_path) if "(n = 2)" not in text] == []


def test_a_template_that_writes_the_system_text_into_the_users_turn_loses_nothing(tmp_path):
    merged = (
        "{% set system = messages[0]['content'] + '\n' if messages[0]['role'] == 'system' else '' %}"
        "{% for m in messages if m['role'] != 'system' %}{{ '<|im_start|>' + m['role'] + '\n' }}"
        "{{ (system if loop.first else '') + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    policy = load_policy(str(talker(tmp_path, "Yes.", template=merged)), dtype="float32")
    assert self_test(policy, [("row 1", (SYSTEM, *user_prompt("Hello")))]) == []
