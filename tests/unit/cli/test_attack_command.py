"""`opct attack`: what it hands on, and how it ends."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.cli.running import run


@pytest.fixture
def called(monkeypatch):
    """Stands for `run_attack`; what it was called with, and how the attack is to have ended."""
    calls = SimpleNamespace(ended="complete", out=Path("nowhere"), note=None)

    def run_attack(target, config, **keywords):
        calls.target, calls.config, calls.keywords = target, config, keywords
        if calls.ended == "killed":
            stopped = KeyboardInterrupt()
            if calls.note:
                stopped.add_note(calls.note)
            raise stopped
        return SimpleNamespace(render=lambda: "rendered", ended=calls.ended, out=calls.out)

    monkeypatch.setattr("opct.attack.run.run_attack", run_attack)
    return calls


def test_a_file_words_and_options_become_settings(called, capsys, tmp_path):
    """Words go over the file, and options beside them."""
    path = tmp_path / "attack.yaml"
    path.write_text("rounds: 5\nepisodes: 4\nattacker: {sigma: 0.2}\n")
    words = ("rounds=2", "judge.name=refusals", "target.max_completion_tokens=7")
    options = ("--attacker", "best_of_n", "--n-behaviors", "3", "--label", "mine", "--confirm-remote", "--resume")
    assert run("attack", "runs/x", str(path), *words, *options) == 0
    assert capsys.readouterr().out == "rendered\n"
    config = called.config
    assert (called.target, config.attacker.name, config.attacker.sigma) == ("runs/x", "best_of_n", 0.2)
    assert (config.rounds, config.episodes, config.n_behaviors, config.judge.name) == (2, 4, 3, "refusals")
    assert (config.target.label, config.target.confirm_remote, config.target.max_completion_tokens) == ("mine", True, 7)
    assert (called.keywords["resume"], called.keywords["overwrite"]) == (True, False)
    assert run("attack", "runs/x") == 0
    assert (called.config.attacker.name, called.config.judge.name) == ("refine", "answers")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rouns=2"], "did you mean rounds"),
        (["attacker.name=refin"], "refin"),
        (["target.model_args.x=a: b: sk-live-0123456789"], "model_args"),
    ],
)
def test_wrong_usage(called, capsys, words, said):
    assert run("attack", "runs/x", *words) == 1
    err = capsys.readouterr().err
    assert said in err
    assert "0123456789" not in err


def test_an_interrupted_attack_is_no_success(called):
    called.ended = "interrupted"
    assert run("attack", "runs/x") == 130
    called.ended = "queries"
    assert run("attack", "runs/x") == 0


@pytest.mark.parametrize(
    ("options", "how"), [((), "--resume"), (("--overwrite",), "--resume, without --overwrite")], ids=["new", "replaced"]
)
def test_an_interrupted_attack_says_how_to_resume(called, capsys, tmp_path, options, how):
    """The second Ctrl-C and one in the training of an attacker included: those as a note that the attack left; nothing
    of an attack that had not begun, whatever another one left in the folder."""
    called.out = tmp_path
    (tmp_path / "identity.json").touch()
    said = f"finished attempts are kept in {tmp_path}: continue with the same command and {how}\n"
    for ended, told in (("interrupted", said), ("killed", "")):
        called.ended = ended
        assert run("attack", "runs/x", *options) == 130
        assert capsys.readouterr().err == f"{told}interrupted\n"
    called.note = "how to resume"
    assert run("attack", "runs/x", *options) == 130
    assert capsys.readouterr().err == "how to resume\ninterrupted\n"
