"""Before the first step: the teacher of jailbreak pairs is measured, once, and nothing else of the run changes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from opct import api, distributed
from opct.config.schema import ParallelConfig
from opct.data.behaviors import Behavior
from opct.data.builders.jailbreak import build_jailbreak
from opct.data.builders.safety_awareness import build_safety_awareness
from opct.data.pairs import ContrastivePair, write_pairs
from opct.evals import teacher_check
from opct.evals.graders.short_answer import Verdict
from opct.evals.teacher_check import teacher_sanity_check
from opct.runs.run_dir import RunDir
from tests.processes import end_ranks, start_ranks
from tests.progress import Noted
from tests.unit.training.conftest import untimed, weights

WORDS = ("Paint a rude word", "Steal a goldfish", "Cheat at chess", "Ring a doorbell", "Hide the chalk", "Let out air")
BEHAVIORS = [Behavior(f"b/{i}", "c", text, f"Draw picture {i}", "train") for i, text in enumerate(WORDS)]
ANSWERED = {"check_behaviors": 4, "check_hazards": 3, "check_tokens": 5}


@pytest.fixture
def config_of(make_config, tmp_path: Path):
    """A config of one step on pairs, by default on six behaviors and their twins; three pairs and an identity pair."""

    def make(pairs: list[ContrastivePair] | None = None, **overrides):
        write_pairs(tmp_path / "pairs.jsonl", pairs or build_jailbreak(BEHAVIORS, families="fiction,authority"))
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


def test_each_axis_is_asked_what_it_is_about(config_of):
    """The tiny model's words are random: it refuses nothing and warns of nothing."""
    pairs = build_jailbreak(BEHAVIORS, families="fiction", per_behavior=1) + build_safety_awareness(families="plain")
    config = config_of(pairs)
    api.train(config)
    rows = found(config)
    assert {axis: (row["axis"], row["n_asked"]) for axis, row in rows.items()} == {
        "jailbreak": ("jailbreak", 4),
        "safety_awareness": ("safety_awareness", 3),
    }
    assert rows["safety_awareness"]["n_there"] > 100
    assert rows["safety_awareness"]["bad"] == 1
    assert rows["safety_awareness"]["warning"]


def test_nothing_else_of_the_run_changes(config_of, tmp_path: Path):
    """With the check and without, bit for bit; dropout draws from the global generator."""
    lora = {"r": 4, "alpha": 8, "dropout": 0.2}
    configs = [config_of(output_dir=str(tmp_path / str(n)), lora=lora, teacher={"check_behaviors": n}) for n in (4, 0)]
    for config in configs:
        api.train(config)
    assert found(configs[0]) is not None
    assert found(configs[1]) is None
    assert weights(configs[0]) == weights(configs[1])
    assert untimed(configs[0]) == untimed(configs[1])


def test_a_resumed_run_is_not_measured_again(config_of, tmp_path: Path, monkeypatch, graded):
    """Nor where the setting has changed; it equals an uninterrupted one, and its manifest says what was found."""
    calls = []
    monkeypatch.setattr(
        teacher_check, "teacher_sanity_check", lambda *a, **k: calls.append(k["axis"]) or teacher_sanity_check(*a, **k)
    )
    config, whole = (config_of(output_dir=str(tmp_path / name)) for name in ("a", "b"))
    assert api.train(config, progress=Noted("train opct")).step == 0
    before = found(config)
    more = config_of(output_dir=config.output_dir, teacher={"check_behaviors": 0, "check_tokens": 7})
    assert api.train(more, resume=True).status == "finished"
    assert calls == ["jailbreak", "safety_awareness"]
    graded.clear()
    api.train(whole)
    assert found(config) == found(whole) == before
    assert weights(config) == weights(whole)
    assert untimed(config) == untimed(whole)


def train_here(config) -> None:
    with distributed.session(ParallelConfig(), "cpu"):
        api.train(config)
    distributed.leave(0)


@pytest.mark.skipif(sys.platform == "win32", reason="gloo in data parallel is tested on POSIX systems")
def test_two_processes_find_what_one_does(config_of, tmp_path: Path):
    """Each asks a part."""
    together, alone = (
        config_of(output_dir=str(tmp_path / name), optim={"learning_rate": 1e-4}) for name in ("two", "one")
    )
    log = tmp_path / "log.txt"
    assert end_ranks(start_ranks(2, log, train_here, together)) == [0, 0], log.read_text()
    api.train(alone)
    assert found(together) == found(alone)
    assert found(together)["jailbreak"]["n_asked"] == 4
