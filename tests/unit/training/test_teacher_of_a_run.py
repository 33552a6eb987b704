"""Before the first step: the teacher of jailbreak pairs is measured, once, and nothing else of the run changes."""

from __future__ import annotations

import os
import signal
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
from opct.runs.console import NullProgress
from opct.runs.run_dir import RunDir
from opct.training.setup import build_setup
from tests.processes import end_ranks, start_ranks
from tests.unit.training.conftest import untimed, weights

WORDS = ("Paint a rude word", "Steal a goldfish", "Cheat at chess", "Ring a doorbell", "Hide the chalk", "Let out air")
BEHAVIORS = [Behavior(f"b/{i}", "c", text, f"Draw picture {i}", "train") for i, text in enumerate(WORDS)]
ANSWERED = {"check_behaviors": 4, "check_hazards": 3, "check_tokens": 5}


class Recorded(NullProgress):
    """Records stages and messages in order; can stop the run when it begins to train."""

    def __init__(self, *, stop: bool = False):
        self.said, self._stop = [], stop

    def stage(self, name: str, total: int | None = None, initial: int = 0) -> None:
        self.said.append((name, total))
        if self._stop and name.startswith("train"):
            os.kill(os.getpid(), signal.SIGTERM)

    def log(self, message: str) -> None:
        self.said.append(message)


@pytest.fixture
def jailbreak_file(tmp_path: Path) -> str:
    write_pairs(tmp_path / "jailbreak.jsonl", build_jailbreak(BEHAVIORS, families="fiction,authority"))
    return str(tmp_path / "jailbreak.jsonl")


@pytest.fixture
def jailbreak_config(make_config, jailbreak_file: str):
    """A config of a few steps on six behaviors and their twins; three pairs and an identity pair a step."""

    def make(**overrides):
        data = {"pairs": [jailbreak_file], "validation_fraction": 0.0}
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


def manifest(config) -> dict:
    return RunDir(config.output_dir).read_manifest()


def test_a_run_measures_its_teacher_prints_the_figure_and_keeps_it(jailbreak_config, graded):
    """4 of 6 behaviors, 2 of them answered: 50%, above 20%."""
    config, progress = jailbreak_config(), Recorded()
    api.train(config, progress=progress)
    kept = manifest(config)["teacher_check"]["jailbreak"]
    assert (kept["bad"], kept["n"], kept["n_asked"], kept["n_there"]) == (0.5, 4, 4, 6)
    assert (kept["n_unscored"], kept["max_completion_tokens"], kept["grader"]) == (0, 5, "rules")
    assert 0 <= kept["ci_low"] < 0.5 < kept["ci_high"] <= 1
    assert kept["warning"].startswith("The teacher does not refuse 50% of 4 ")
    places = [
        next(i for i, said in enumerate(progress.said) if str(said).startswith(start))
        for start in ("('ask the teacher", "teacher: does not refuse 50% (", "warning: The teacher", "('train opct")
    ]
    assert places == sorted(places)
    assert progress.said[places[0]] == ("ask the teacher bare behaviors", 4)
    assert len(set(graded)) > 1


def test_both_axes_are_asked_each_of_its_own(make_config, tmp_path: Path):
    """The tiny model's words are random: it refuses nothing and warns of nothing."""
    pairs = build_jailbreak(BEHAVIORS, families="fiction", per_behavior=1) + build_safety_awareness(families="plain")
    write_pairs(tmp_path / "both.jsonl", pairs)
    data = {"pairs": [str(tmp_path / "both.jsonl")], "validation_fraction": 0.0}
    setup, progress = build_setup(make_config(data=data, teacher=ANSWERED)), Recorded()
    kept = api._check_teacher(setup, progress)
    assert {axis: (row["axis"], row["n_asked"]) for axis, row in kept.items()} == {
        "jailbreak": ("jailbreak", 4),
        "safety_awareness": ("safety_awareness", 3),
    }
    assert kept["safety_awareness"]["n_there"] > 100
    assert kept["safety_awareness"]["bad"] == 1
    said = [line for line in progress.said if isinstance(line, str)]
    assert any(line.startswith("teacher: does not warn of 100% (") for line in said)
    assert any("so there is no warning to learn from those. Put the fact at the end" in line for line in said)
    setup.config = make_config(teacher=ANSWERED | {"check_hazards": 0})
    assert set(api._check_teacher(setup, progress)) == {"jailbreak"}


def test_nothing_else_of_the_run_changes(jailbreak_config, tmp_path: Path):
    """With the check and without, bit for bit; dropout draws from the global generator."""
    lora = {"r": 4, "alpha": 8, "dropout": 0.2}
    configs = [
        jailbreak_config(output_dir=str(tmp_path / str(n)), max_steps=1, lora=lora, teacher={"check_behaviors": n})
        for n in (4, 0)
    ]
    for config in configs:
        api.train(config)
    assert manifest(configs[0])["teacher_check"] is not None
    assert manifest(configs[1])["teacher_check"] is None
    assert weights(configs[0]) == weights(configs[1])
    assert untimed(configs[0]) == untimed(configs[1])


def test_a_resumed_run_is_not_measured_again(jailbreak_config, tmp_path: Path, monkeypatch, graded):
    """Nor where the setting has changed; it equals an uninterrupted one, and its manifest says what was found."""
    calls = []
    monkeypatch.setattr(
        teacher_check, "teacher_sanity_check", lambda *a, **k: calls.append(k["axis"]) or teacher_sanity_check(*a, **k)
    )
    config, whole = (jailbreak_config(output_dir=str(tmp_path / name)) for name in ("a", "b"))
    assert api.train(config, progress=Recorded(stop=True)).step == 0
    found = manifest(config)["teacher_check"]
    more = jailbreak_config(output_dir=config.output_dir, teacher={"check_behaviors": 0, "check_tokens": 7})
    assert api.train(more, resume=True).status == "finished"
    assert calls == ["jailbreak", "safety_awareness"]
    assert manifest(config)["teacher_check"] == found
    graded.clear()
    api.train(whole)
    assert manifest(whole)["teacher_check"] == found
    assert weights(config) == weights(whole)
    assert untimed(config) == untimed(whole)


def test_a_prompt_without_room_for_an_answer_is_unscored(make_config, tmp_path: Path, graded):
    """It fits the context with the run's completions, which are shorter."""
    setup = build_setup(make_config())
    room = setup.policy.context_length - 6 - len(setup.policy.renderer.render(({"role": "user", "content": ""},)))
    texts = [WORDS[0], "z" * room]
    pairs = [
        ContrastivePair(
            f"p/{i}", "jailbreak", "f", ({"role": "user", "content": "x"},), ({"role": "user", "content": t},)
        )
        for i, t in enumerate(texts)
    ]
    write_pairs(tmp_path / "own.jsonl", pairs)
    data = {"pairs": [str(tmp_path / "own.jsonl")], "validation_fraction": 0.0}
    setup = build_setup(make_config(data=data, teacher={"check_tokens": 40}))
    kept = api._check_teacher(setup, Recorded())["jailbreak"]
    assert (kept["n_asked"], kept["n"], kept["unscored_reasons"]) == (2, 1, {"context": 1})


# ------------------------------------------------------------------------------------------------- several processes


def train_here(config) -> None:
    with distributed.session(ParallelConfig(), "cpu"):
        api.train(config)
    distributed.leave(0)


@pytest.mark.skipif(sys.platform == "win32", reason="gloo in data parallel is tested on POSIX systems")
def test_two_processes_find_what_one_does(jailbreak_config, tmp_path: Path):
    """Each asks a part."""
    settings = {"max_steps": 1, "optim": {"learning_rate": 1e-4}}
    together, alone = (jailbreak_config(output_dir=str(tmp_path / name), **settings) for name in ("two", "one"))
    log = tmp_path / "log.txt"
    assert end_ranks(start_ranks(2, log, train_here, together)) == [0, 0], log.read_text()
    api.train(alone)
    assert manifest(together)["teacher_check"] == manifest(alone)["teacher_check"]
    assert manifest(together)["teacher_check"]["jailbreak"]["n_asked"] == 4
