"""What is checked and said before a model is loaded."""

import pytest
from scripted import ScriptedAttacker

from opct.attack.before import announced
from opct.attack.best_of_n import BestOfN
from opct.attack.config import AttackSettings
from opct.attack.opening import Models
from opct.attack.run import run_attack
from opct.attack.transfer import PromptTransfer
from opct.data.behaviors import builtin_behaviors
from opct.data.perturb.jailbreak import bare_prompt
from opct.errors import DataError, EvaluationError, ModelError, OtherAttackError, RunError
from opct.runs.io import append_jsonl, write_json
from opct.runs.progress import NullProgress

SMALL = {"n_behaviors": 3, "episodes": 2, "rounds": 2, "max_reply_tokens": 6}


@pytest.fixture
def no_load(monkeypatch):
    """Loading a model fails the test."""

    def load(name, **_):
        raise AssertionError(f"{name} is loaded")

    monkeypatch.setattr("opct.attack.opening.load_policy", load)


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"attacker": "transfer", "families": "held_outt"}, DataError, "held_outt"),
        ({"attacker": "best_of_n", "sigma": 4}, EvaluationError, "sigma of best_of_n is 4"),
        ({"attacker": "transfer", "prompts": "nowhere.jsonl"}, DataError, "No file at nowhere.jsonl"),
        ({"attacker_model": "./nowhere"}, ModelError, "There is no folder ./nowhere"),
        ({"attacker": "grpo", "attacker_model": "./nowhere"}, ModelError, "There is no folder ./nowhere"),
        ({"attacker_base_url": "http://x/v1"}, EvaluationError, "leave attacker_base_url and attacker_args out"),
        ({"dtype": "bf16"}, EvaluationError, "Unknown dtype 'bf16'"),
    ],
)
def test_what_needs_no_model_is_checked_before_one_is_loaded(no_load, tmp_path, monkeypatch, settings, error, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=said):
        run_attack("some/model", out=tmp_path / "a", **settings)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rounds": 1}, r"rules\.rounds was 2 and is 1"),
        ({"n_behaviors": 2}, r"behaviors\.n was 3 and is 2"),
        ({"sigma": 0.2}, r"attacker\.sigma was 0\.4 and is 0\.2"),
        ({"twin_episodes": 0}, r"twins\.n was 3 and is 0"),
        ({"judge": "refusals"}, "judge.name was"),
        ({"attacker": "refine"}, r'attacker\.attacker was "best_of_n" and is "refine"'),
        ({"attacker": "grpo"}, r'attacker\.attacker was "best_of_n" and is "grpo"'),
    ],
)
def test_a_resume_by_other_rules_is_refused_before_a_model_is_loaded(no_load, tiny_policy, tmp_path, changed, said):
    own = {"attacker": "best_of_n", "out": tmp_path / "a", **SMALL}
    run_attack(tiny_policy, max_queries=1, **own)
    with pytest.raises(OtherAttackError, match=said):
        run_attack("some/model", resume=True, **own | changed)
    with pytest.raises(AssertionError, match="some/model is loaded"):  # the same, and so is what takes its place
        run_attack("some/model", resume=True, **own)
    with pytest.raises(AssertionError, match="some/model is loaded"):
        run_attack("some/model", overwrite=True, **own | changed)


def test_a_training_is_not_resumed_by_an_attacker_that_is_not_trained(no_load, tmp_path):
    write_json(tmp_path / "training.json", {"opct_attack_training": 1})
    for attacker in ("refine", "best_of_n"):
        with pytest.raises(RunError, match="an attacker is being trained, and this one is another"):
            run_attack("some/model", resume=True, attacker=attacker, out=tmp_path, **SMALL)


def test_a_file_without_a_prompt_is_said_to_hold_none(tmp_path):
    path = tmp_path / "successful_prompts.jsonl"
    append_jsonl(path, {"opct_warning": "PRIVATE", "kind": "opct_successful_prompts", "schema": 1})
    with pytest.raises(DataError, match="holds no prompts: the attack that wrote it broke no behaviour"):
        run_attack("some/model", out=tmp_path / "a", attacker="transfer", prompts=path, n_behaviors=2)


class Said(NullProgress):
    def __init__(self):
        self.lines = []

    def stage(self, name, total=None):
        self.lines.append(name)

    def log(self, message):
        self.lines.append(message)


def test_how_large_an_attack_can_get_is_said_before_a_model_is_loaded(tmp_path, monkeypatch, tiny_policy):
    said = Said()
    monkeypatch.setattr(Models, "open", lambda self, *_: said.lines.append("load") or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_attack("some/model", out=tmp_path / "a", attacker="refine", max_queries=9, progress=said, **SMALL)
    *_, line, loaded = said.lines
    assert line == (
        "up to 18 queries to the target: 12 about 3 behaviours (2 episodes of 2 rounds each), 6 about 3 benign twins "
        "(1 episode of 2 rounds each); --max-queries ends it at 9"
    )
    assert loaded == "load"


def test_finished_prompts_and_attackers_without_twins_ask_less():
    """Of two behaviours one has 5 prompts, of which 4 have a turn, and the other none."""
    behaviors = [one for one in builtin_behaviors("test") if one.benign is not None][:2]
    settings = AttackSettings(episodes=2, rounds=2)
    finished = PromptTransfer({behaviors[0].id: [bare_prompt("p")] * 5}, episodes=2)
    assert announced(settings, behaviors, finished) == (
        "up to 4 queries to the target: 4 about 2 behaviours (finished prompts, at most 4 each; there are some for 1 "
        "of them), none about benign twins"
    )
    own = ScriptedAttacker()
    own.plays_twins = False
    without = AttackSettings(episodes=2, rounds=2, twin_episodes=0)
    for one in (announced(settings, behaviors, own), announced(without, behaviors, BestOfN())):
        assert one.startswith("up to 8 queries to the target: 8 about 2 behaviours (")
        assert one.endswith("none about benign twins")
    assert announced(settings, behaviors[:1], None).startswith("up to 6 queries to the target: 4 about 1 behaviour (")
