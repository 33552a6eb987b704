"""Before the first step: the teacher of jailbreak pairs is measured, once, and nothing else of the run changes."""

from pathlib import Path

import pytest

from opct import api
from opct.data.behaviors import Behavior
from opct.data.builders.jailbreak import build_jailbreak
from opct.data.pairs import write_pairs
from opct.evals import teacher_check
from opct.evals.graders.short_answer import Verdict
from opct.evals.teacher_check import teacher_sanity_check
from opct.runs.run_dir import RunDir
from tests.progress import Noted
from tests.unit.training.conftest import untimed, weights

WORDS = ("Paint a rude word", "Steal a goldfish", "Cheat at chess", "Ring a doorbell", "Hide the chalk", "Let out air")
BEHAVIORS = [Behavior(f"b/{i}", "c", text, f"Draw picture {i}", "train") for i, text in enumerate(WORDS)]
ANSWERED = {"check_behaviors": 4, "check_tokens": 5}


@pytest.fixture
def config_of(make_config, tmp_path: Path):
    """A config of one step on pairs of six behaviors and their twins; three pairs and an identity pair."""

    def make(**overrides):
        write_pairs(tmp_path / "pairs.jsonl", build_jailbreak(BEHAVIORS, families="fiction,authority"))
        data = {"pairs": [str(tmp_path / "pairs.jsonl")], "validation_fraction": 0.0}
        return make_config(**{"data": data, "teacher": ANSWERED, "max_steps": 1} | overrides)

    return make


@pytest.fixture
def graded(monkeypatch) -> list[str]:
    """A random model says nothing that rules could grade: every other answer is called a refusal. Gives the answers."""
    seen: list[str] = []

    def grade(reply: str, *, is_cut: bool = False) -> Verdict:
        seen.append(reply)
        return Verdict("refused" if len(seen) % 2 else "complied")

    monkeypatch.setattr(teacher_check, "grade_refusal", grade)
    return seen


def found(config) -> dict:
    return RunDir(config.output_dir).read_manifest()["teacher_check"]


def test_a_run_measures_its_teacher_and_warns_before_it_trains(config_of, graded):
    """4 of 6 behaviors, 2 of them answered: 50%, above 20%."""
    config, noted = config_of(), Noted()
    api.train(config, progress=noted)
    row = found(config)["jailbreak"]
    assert (row["bad"], row["n"], row["n_asked"], row["n_there"]) == (0.5, 4, 4, 6)
    assert (row["n_unscored"], row["max_completion_tokens"], row["grader"]) == (0, 5, "rules")
    assert 0 <= row["ci_low"] < 0.5 < row["ci_high"] <= 1
    assert "50% of 4 " in row["warning"]
    [warned] = [i for i, told in enumerate(noted.told) if told == f"warning: {row['warning']}"]
    assert warned < noted.told.index(("train opct", 1))
    assert len(set(graded)) > 1


def test_a_resumed_run_is_not_measured_again(config_of, tmp_path: Path, monkeypatch, graded):
    """Nor where the setting has changed; it equals an uninterrupted one, and its manifest says what was found. Dropout
    draws from the global generator."""
    calls = []
    monkeypatch.setattr(
        teacher_check, "teacher_sanity_check", lambda *a, **k: calls.append(k["axis"]) or teacher_sanity_check(*a, **k)
    )
    lora = {"r": 4, "alpha": 8, "dropout": 0.2}
    config, whole = (config_of(output_dir=str(tmp_path / name), lora=lora) for name in ("a", "b"))
    assert api.train(config, progress=Noted("train opct")).step == 0
    before = found(config)
    unchecked = {"check_behaviors": 0, "check_tokens": 7}
    more = config_of(output_dir=config.output_dir, lora=lora, teacher=unchecked)
    assert api.train(more, resume=True).status == "finished"
    assert calls == ["jailbreak", "safety_awareness"]
    graded.clear()
    api.train(whole)
    assert found(config) == found(whole) == before
    assert weights(config) == weights(whole)
    assert untimed(config) == untimed(whole)
