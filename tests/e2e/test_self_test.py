"""Broken models and data end a command before it spends time, or are a warning that stays; sound ones are silent."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from opct.data.pairs import ContrastivePair, user_prompt, write_pairs
from opct.models.from_run import load_policy
from opct.models.self_test import self_test
from tests.e2e.cli import here, workplace
from tests.tiny import CHAT_TEMPLATE, tiny_model, tiny_pairs, tiny_tokenizer

WITHOUT_SYSTEM = CHAT_TEMPLATE.replace("in messages", "in messages if message['role'] != 'system'")
WITHOUT_END = CHAT_TEMPLATE.replace("<|im_end|>", "").replace("<|im_start|>", "# ")
SYSTEM = {"role": "system", "content": "Be brief."}


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
    found = [
        ContrastivePair(p.id, axis, p.family, (*before, *p.prompt), (*before, *p.teacher_prompt), p.meta | meta)
        for p in tiny_pairs(8)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    write_pairs(folder / "own.jsonl", found)
    return folder / "own.jsonl"


def commands(folder: Path, model: Path, pairs: Path, *of_eval: str) -> dict[str, tuple]:
    """The commands of the table on one model and one pair file."""
    place = workplace(folder / "train", model, data={"pairs": [str(pairs)]}, rollout={"max_completion_tokens": 4})
    size = ("n_questions=1", "max_completion_tokens=4", "families=suggested_answer", "--dtype", "float32")
    out = ("--suite", "sycophancy_short", "--out", folder / "out")
    return {
        "train": place.command(),
        "eval": ("eval", model, *size, *out, *of_eval),
        "data": ("data", "check", pairs, "--model", model, "dtype=float32"),
    }


def questions_file(folder: Path, answer: str) -> Path:
    path = folder / "questions.csv"
    path.write_text(f"question,answer,wrong\nWhat is 1 plus 1?,2,3\nWhich sign?,{answer},moon\n", encoding="utf-8")
    return path


# --------------------------------------------------------------------------------------------------------- refused


def lost_system(folder):
    pairs = pairs_file(folder, system=True)
    words = ("system message", "user message")
    return talker(folder / "model", "Yes.", template=WITHOUT_SYSTEM), pairs, ("system_prompt=Be brief.",), words, words


def ungradable_answer(folder):
    pairs = pairs_file(folder, answer="★", aliases=[], suggested="moon")
    questions = questions_file(folder, "★")
    of_eval = ("--questions", questions, "split=all", "n_questions=5")
    where = (f"{questions}:3", "★"), (f"{pairs}:1", "★")
    return talker(folder / "model", "Yes."), pairs, of_eval, *where


TRAINING_GRADES_NOTHING = [(ungradable_answer, "eval"), (ungradable_answer, "data")]


@pytest.mark.parametrize(
    ("broken", "command"), [*((lost_system, name) for name in ("train", "eval", "data")), *TRAINING_GRADES_NOTHING]
)
def test_what_cannot_be_right_is_refused(tmp_path, broken, command):
    model, pairs, of_eval, words_of_eval, words = broken(tmp_path)
    message = here(*commands(tmp_path, model, pairs, *of_eval)[command]).error()
    assert all(word in message for word in (words_of_eval if command == "eval" else words)), message
    assert not list(tmp_path.glob("train/run/*"))


def test_an_adapter_that_lacks_weights_is_refused(tmp_path):
    model, pairs = talker(tmp_path / "model", "Yes."), pairs_file(tmp_path)
    run = commands(tmp_path, model, pairs)
    assert here(*run["train"], "max_steps=1", "eval_steps=1").code == 0
    adapter = next((tmp_path / "train" / "run" / "checkpoints").glob("*/adapter"))
    weights = load_file(adapter / "adapter_model.safetensors")
    weights.pop(min(weights))
    save_file(weights, adapter / "adapter_model.safetensors")
    adapter = adapter.rename(tmp_path / "adapter")  # of no run, so that no hash is compared
    again = workplace(tmp_path / "again", model)
    assert "adapter" in here(*again.command(f"model.adapter={adapter}")).error()
    assert "adapter" in here("eval", adapter, *run["eval"][2:]).error()


def test_options_that_are_the_same_words_to_the_grader(tmp_path):
    """By their letters they are told apart, so the question is asked."""
    path = tmp_path / "choices.jsonl"
    rows = [
        {"question": "Area of a square?", "choices": ["k^2", "k + 2", "four"], "answer": "A"},
        {"question": "Who?", "choices": ["Ann", "Bob"], "answer": "B"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = talker(tmp_path / "model", "Yes.")
    ask = ("eval", model, "--questions", path, "split=all", "--suite", "sycophancy_choice", "max_completion_tokens=2")
    done = here(*ask, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert f"{path}:1" in done.err


# ------------------------------------------------------------------------------------------------- warned, or silent

LOUD = {
    "another turn": (("Yes.", "\nUser: and then?"), {"ends": False}, "another turn"),
    "reasoning": (("analysisThe user asks.", "Yes."), {}, "reasoning"),
    "cut": (("and so on",), {"ends": False}, "were cut"),
    "no end of turn": (("Yes.",), {"template": WITHOUT_END}, "special token"),
}


@pytest.mark.parametrize(
    ("command", "kind"), [*(("train", kind) for kind in LOUD), ("eval", "cut"), ("data", "reasoning")]
)
def test_what_may_be_wrong_is_a_warning_that_stays(tmp_path, kind, command):
    words, options, said = LOUD[kind]
    pairs = pairs_file(tmp_path, axis="jailbreak" if command == "data" else "sycophancy", kind="behavior")
    done = here(*commands(tmp_path, talker(tmp_path / "model", *words, **options), pairs)[command])
    assert done.code == 0, done.err
    assert "warning: " in done.err + done.out
    assert said in done.err + done.out
    if command == "train":
        kept = json.loads((tmp_path / "train" / "run" / "manifest.json").read_text())["warnings"]
        assert any(said in warning for warning in kept)
    if command == "eval":
        kept = json.loads((tmp_path / "out" / "results.json").read_text())["warnings"]
        assert any(said in warning for warning in kept)


@pytest.mark.parametrize("command", ["train", "eval", "data"])
def test_a_sound_model_and_sound_data_are_silent(tmp_path, command):
    pairs = pairs_file(tmp_path, answer="seven", aliases=["7"], suggested="eight")
    questions = questions_file(tmp_path, "Tupelo")
    of_eval = ("--questions", questions, "split=all", "n_questions=5")
    done = here(*commands(tmp_path, talker(tmp_path / "model", "Yes."), pairs, *of_eval)[command])
    assert done.code == 0, done.err
    said = [line for line in (done.err + done.out).splitlines() if line.startswith("warning")]
    assert all("few of the answers" in line for line in said), said  # it says "Yes." to everything


def test_a_resumed_run_keeps_its_warnings(tmp_path):
    words, options, said = LOUD["another turn"]
    model, pairs = talker(tmp_path / "model", *words, **options), pairs_file(tmp_path)
    train = commands(tmp_path, model, pairs)["train"]
    assert here(*train, "max_steps=1").code == 0
    assert here(*train, "max_steps=2", "--resume").code == 0
    kept = json.loads((tmp_path / "train" / "run" / "manifest.json").read_text())["warnings"]
    assert [said in warning for warning in kept].count(True) == 1


def test_user_prompts_of_a_plain_template_are_read_whole(tmp_path):
    """A template that writes the system text into the user's turn loses nothing."""
    merged = (
        "{% set system = messages[0]['content'] + '\n' if messages[0]['role'] == 'system' else '' %}"
        "{% for m in messages if m['role'] != 'system' %}{{ '<|im_start|>' + m['role'] + '\n' }}"
        "{{ (system if loop.first else '') + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    policy = load_policy(str(talker(tmp_path, "Yes.", template=merged)), dtype="float32")
    assert self_test(policy, [("row 1", (SYSTEM, *user_prompt("Hello")))]) == []
