"""`opct attack`: what it hands on, and how it ends."""

from types import SimpleNamespace

import pytest

from tests.unit.cli.running import run


@pytest.fixture
def called(monkeypatch):
    """Stands for `run_attack`; what it was called with, and whether it is interrupted."""
    calls = SimpleNamespace(is_killed=False, note=None)

    def run_attack(target, config, **keywords):
        calls.target, calls.config, calls.keywords = target, config, keywords
        if calls.is_killed:
            stopped = KeyboardInterrupt()
            if calls.note:
                stopped.add_note(calls.note)
            raise stopped
        return SimpleNamespace(render=lambda: "rendered")

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
        (["rouns=2"], "mean rounds"),
        (["attacker.name=refin"], "refin"),
        (["target.model_args.x=a: b: sk-live-0123456789"], "model_args"),
    ],
)
def test_wrong_usage(called, capsys, words, said):
    assert run("attack", "runs/x", *words) == 1
    err = capsys.readouterr().err
    assert said in err
    assert "0123456789" not in err
