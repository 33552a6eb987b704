"""`opct attack`: what it hands on, and how it ends."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from opct.attack.config import AttackSettings
from opct.cli.app import main


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code or 0


@pytest.fixture
def called(monkeypatch):
    """Stands for `run_attack`; what it was called with, and how the attack is to have ended."""
    calls = SimpleNamespace(ended="complete", out=Path("nowhere"), note=None)

    def run_attack(*arguments, **keywords):
        calls.arguments, calls.keywords = arguments, keywords
        if calls.ended == "killed":
            stopped = KeyboardInterrupt()
            if calls.note:
                stopped.add_note(calls.note)
            raise stopped
        return SimpleNamespace(render=lambda: "rendered", ended=calls.ended, out=calls.out)

    monkeypatch.setitem(sys.modules, "opct.attack.run", SimpleNamespace(run_attack=run_attack))
    return calls


def test_options_become_settings(called, capsys):
    judge = ("--judge", "strongreject", "--judge-model", "m", "--base-url", "u", "--set", "retries=1")
    rest = ("--n", "4", "--model-arg", "a=b", "--split", "train", "--max-queries", "9")
    assert run("attack", "runs/x") == 0
    assert called.keywords["judge"] == AttackSettings().judge == "answers"
    capsys.readouterr()
    assert run("attack", "runs/x", *judge, *rest) == 0
    assert capsys.readouterr().out == "rendered\n"
    assert called.arguments == ("runs/x",)
    given = called.keywords
    assert (given["attacker"], given["episodes"], given["split"], given["max_queries"]) == ("refine", 4, "train", 9)
    assert (given["judge_base_url"], given["judge_settings"], given["judge_args"]) == ("u", {"retries": 1}, {"a": "b"})
    assert (given["resume"], given["overwrite"], given["confirm_remote"]) == (False, False, False)


def test_every_option_is_a_setting(called):
    """With every option given, nothing but settings of an attack is handed on."""
    from dataclasses import fields

    named = {field.name for field in fields(AttackSettings)}
    run("attack", "x", "--attacker-model", "m", "--families", "all", "--prompts", "p", "--sigma", "1", "--pool", "q",
        "--threshold", "0.5", "--n-behaviors", "1", "--max-tokens", "1", "--max-seconds", "1", "--label", "l",
        "--dtype", "float32", "--train", "max_steps=2", "--concurrency", "3",
        "--train-behaviors", "b", "--train-split", "validation",
            "--attacker-base-url", "v", "--attacker-arg", "a=1", "--target-base-url", "w", "--target-arg", "b=2",
        "--attacker-thinking-tags", "[A]", "[/A]", "--target-thinking-tags", "[T]", "[/T]",
        "--target-template-opens-thinking", "--no-attacker-template-opens-thinking",
        "--judge-model", "j", "--base-url", "u", "--max-queries", "1", "--out", "o")  # fmt: skip
    assert set(called.keywords) - {"out", "resume", "overwrite", "progress"} == named
    assert (called.keywords["train_behaviors"], called.keywords["train_split"]) == ("b", "validation")
    assert type(called.keywords["train_split"]) is str
    assert (called.keywords["attacker_args"], called.keywords["target_args"]) == ({"a": 1}, {"b": 2})
    assert called.keywords["attacker_thinking_tags"] == ("[A]", "[/A]")
    assert called.keywords["target_thinking_tags"] == ("[T]", "[/T]")
    opens = [called.keywords[f"{role}_template_opens_thinking"] for role in ("attacker", "target")]
    assert opens == [False, True]


def test_an_interrupted_attack_is_no_success(called):
    called.ended = "interrupted"
    assert run("attack", "runs/x") == 130
    called.ended = "queries"
    assert run("attack", "runs/x") == 0


@pytest.mark.parametrize(
    ("options", "how"), [((), "--resume"), (("--overwrite",), "--resume, without --overwrite")], ids=["new", "replaced"]
)
def test_an_interrupted_attack_says_how_to_go_on(called, capsys, tmp_path, options, how):
    """The second Ctrl-C and one in the training of an attacker included: those as a note that the attack left; nothing
    of an attack that had not begun, whatever another one left in the folder."""
    called.out = tmp_path
    (tmp_path / "attack.json").touch()
    said = f"what was tried is kept in {tmp_path}: go on with the same command and {how}\n"
    for ended, told in (("interrupted", said), ("killed", "")):
        called.ended = ended
        assert run("attack", "runs/x", *options) == 130
        assert capsys.readouterr().err == f"{told}interrupted\n"
    called.note = "how to go on"
    assert run("attack", "runs/x", *options) == 130
    assert capsys.readouterr().err == "how to go on\ninterrupted\n"
