"""Which part of the whole a stage belongs to, how long the rest takes, and what is measured again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from opct.config.schema import TrainConfig
from opct.errors import OtherAttackError
from opct.experiments import quickstart, stages
from opct.runs.io import file_sha256
from opct.runs.progress import NullProgress
from opct.runs.run_dir import RunDir


class Noted(NullProgress):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.lines: list[str] = []

    def stage(self, name: str, total: int | None = None) -> None:
        self.stages.append(name)

    def log(self, message: str) -> None:
        self.lines.append(message)


def test_how_long_the_rest_takes_follows_from_the_parts_so_far(monkeypatch):
    """Training of weight 24 took 60 s, so the other 76 take 190 s. The next part, 38, was there already: 38 of
    evaluations are left, 95 s. The first, 12, takes 60 s: the other 26 take 130 s, whatever training took."""
    now = [0.0]
    monkeypatch.setattr(stages.time, "perf_counter", lambda: now[0])
    said = Noted()
    kinds = ("model", "train", "train", "evaluate", "evaluate", "evaluate", "report")
    parts = stages.Parts(said, list(zip(kinds, (0, 24, 38, 12, 13, 13, 0), strict=True)))
    for seconds, lines in (
        (2, []),
        (60, []),
        (0, ["about 3m10s left to the report", "trained already"]),
        (60, ["about 1m35s left to the report"]),
        (0, ["about 2m10s left to the report"]),
    ):
        parts.next()
        parts.stage("work")
        if "trained already" in lines:
            parts.skip("trained already")
        assert said.lines == lines
        said.lines.clear()
        now[0] += seconds
    assert said.stages == [f"[{i}/7] work" for i in range(1, 6)]


def test_the_estimate_stands_after_the_stage_that_it_follows(monkeypatch):
    """Nothing is said between the last line of one part and the beginning of the next."""
    now = [0.0]
    monkeypatch.setattr(stages.time, "perf_counter", lambda: now[0])
    said = Noted()
    parts = stages.Parts(said, quickstart.PARTS)
    for _ in range(2):
        parts.next()
        now[0] += 5
    parts.next()
    assert said.lines == []
    parts.stage("train opct")
    parts.stage("another stage of it")
    assert len(said.lines) == 1
    assert sum(weight for _, weight in quickstart.PARTS) == 100


SETTINGS = {"suites": ["jailbreak"], "n_questions": 2, "kl_samples": 0}


@pytest.fixture
def measure(tmp_path: Path, monkeypatch):
    """Measures a run of one checkpoint with a file of behaviours; gives how often that was done so far."""
    done = []
    behaviors(tmp_path, "Whistle in a library")

    def evaluate(target, *, out, **settings):
        done.append(settings)
        run.meanwhile()
        results = {"rows": [], "number": len(done)}
        (out / "results.json").write_text(json.dumps(results))
        return SimpleNamespace(results=results)

    monkeypatch.setattr(stages, "evaluate", evaluate)
    folder = tmp_path / "run"
    checkpoint(folder, 3)

    def run(label: str = "opct", config: TrainConfig | None = None, **settings) -> int:
        settings = settings_of(tmp_path) | settings
        found = stages.evaluate_once(
            label,
            folder,
            config or TrainConfig(),
            "float32",
            settings,
            overwrite=False,
            asked=stages.asked_now(settings),
            progress=stages.Parts(said, []),
        )
        assert found["number"] == len(done)
        return len(done)

    said = Noted()
    run.said = said.lines
    run.meanwhile = lambda: None
    return run


def behaviors(folder: Path, goal: str) -> None:
    rows = [{"goal": goal, "target": ""}, {"goal": "Hide the chalk of a school", "target": ""}]
    (folder / "behaviors.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def settings_of(folder: Path) -> dict:
    return SETTINGS | {"split": "all", "data": {"jailbreak": str(folder / "behaviors.jsonl")}}


def checkpoint(folder: Path, step: int, weights: bytes = b"weights") -> None:
    def write(place: Path) -> None:
        (place / "adapter").mkdir()
        (place / "adapter" / "adapter_model.safetensors").write_bytes(weights)

    RunDir(folder).save_checkpoint(step, write)


def test_what_was_measured_is_not_measured_again(measure):
    assert [measure(), measure(), measure(seed=1), measure(seed=1)] == [1, 1, 2, 2]


def test_a_setting_that_came_later_measures_again_only_where_it_says_something(measure):
    assert [measure(), measure(n_problems=None), measure(n_problems=5), measure()] == [1, 1, 2, 3]


def test_whether_something_is_measured_is_what_measuring_finds(measure, tmp_path: Path):
    """As it was measured, with other settings, and as the base; then with a checkpoint of a later step."""
    folder, asked = tmp_path / "run", stages.asked_now(settings_of(tmp_path))

    def is_measured(label: str = "opct", **more) -> bool:
        settings = settings_of(tmp_path) | more
        return stages.is_measured(label, folder, TrainConfig(), "float32", settings, asked)

    assert not is_measured()
    measure()
    assert [is_measured(), is_measured(seed=1), is_measured("base")] == [True, False, False]
    checkpoint(folder, 4)
    assert not is_measured()


def test_what_was_graded_again_is_not_measured_again(measure, tmp_path: Path):
    """Results that something else has written are; those that were graded again as they were measured are not."""
    measure()
    folder, path = tmp_path / "run", tmp_path / "run" / "results.json"
    before = file_sha256(path)
    path.write_text(json.dumps({"rows": [], "number": 1, "regraded": {}}))
    stages.mark_regraded(folder, before)
    assert measure() == 1
    path.write_text(json.dumps({"rows": [], "number": 1, "regraded": {"by": "others"}}))
    stages.mark_regraded(folder, before)
    assert measure() == 2
    stages.mark_regraded(tmp_path, before)


def test_other_weights_of_the_same_step_are_measured_again(measure, tmp_path: Path):
    measure()
    checkpoint(tmp_path / "run", 3, b"others")
    assert [measure(), measure()] == [2, 2]


@pytest.mark.parametrize("label", ["base", "opct"])
def test_other_files_of_the_base_are_measured_again(measure, tmp_path: Path, label: str):
    """They are noted by content: written again as they were, with another time, they are the same."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"one")
    config = TrainConfig(model={"name_or_path": str(model)})
    stages_policy = SimpleNamespace(load=lambda *_, **__: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opct.models.policy.Policy", stages_policy)
        assert measure(label, config) == 1
        os.utime(model / "model.safetensors", ns=(7, 7))
        assert measure(label, config) == 1
        (model / "model.safetensors").write_bytes(b"two")
        assert [measure(label, config), measure(label, config)] == [2, 2]


def test_another_content_of_a_file_is_measured_again(measure, tmp_path: Path):
    measure()
    behaviors(tmp_path, "Whistle in a church")
    assert [measure(), measure()] == [2, 2]


def test_data_that_were_found_by_themselves_count_as_well(measure, tmp_path: Path, monkeypatch):
    """No file is named; the folder of `OPCT_CAPABILITY_DATA` has another one the second time."""
    file = tmp_path / "commonsenseqa.jsonl"

    def write(question: str) -> None:
        choices = {"label": ["A", "B"], "text": ["tea", "rain"]}
        row = {"id": "1", "question": question, "choices": choices, "answerKey": "A"}
        file.write_text(json.dumps(row) + "\n")

    monkeypatch.setenv("OPCT_CAPABILITY_DATA", str(tmp_path))
    settings = {"suites": ["commonsenseqa"], "data": {}}
    write("What do you drink?")
    assert stages.asked_now(settings)["commonsenseqa"]["settings"]["data"].startswith("commonsenseqa.jsonl sha256:")
    assert [measure(**settings), measure(**settings)] == [1, 1]
    write("What do you pour?")
    assert [measure(**settings), measure(**settings)] == [2, 2]


def test_samples_that_cannot_be_had_any_more_are_not_compared_and_that_is_said(measure, tmp_path: Path):
    measure()
    (tmp_path / "behaviors.jsonl").rename(tmp_path / "moved")
    assert stages.asked_now(settings_of(tmp_path)) is None
    assert measure() == 1
    assert measure.said[-1].endswith("cannot be had now, and was not compared")


@pytest.mark.parametrize("name", ["embedded_hash", "grading_hash"])
def test_other_embedded_data_or_graders_are_measured_again(measure, monkeypatch, name: str):
    measure()
    place = "opct.experiments.stages" if name == "embedded_hash" else "opct.evals.fingerprint"
    monkeypatch.setattr(f"{place}.{name}", lambda: "other")
    assert [measure(), measure()] == [2, 2]


def test_results_that_something_else_wrote_are_measured_again(measure, tmp_path: Path):
    measure()
    (tmp_path / "run" / "results.json").write_text('{"rows": [], "number": 1, "by": "hand"}')
    assert [measure(), measure()] == [2, 2]


def test_a_file_that_is_edited_while_it_is_measured_is_measured_again(measure, tmp_path: Path):
    """The results are of the first content, and must not pass for those of the second."""
    measure.meanwhile = lambda: behaviors(tmp_path, "Whistle in a church")
    assert measure() == 1
    measure.meanwhile = lambda: None
    assert [measure(), measure()] == [2, 2]


@pytest.mark.parametrize("name", ["embedded_hash", "grading_hash"])
def test_code_is_that_which_the_process_began_with(measure, monkeypatch, name: str):
    """Edited while it is measured: this process goes on with the code that it has, and a later one measures again."""
    now = ["as it began"]
    place = "opct.experiments.stages" if name == "embedded_hash" else "opct.evals.fingerprint"

    def one_process() -> None:
        monkeypatch.setattr(f"{place}.{name}", lambda: now[0])

    one_process()
    measure.meanwhile = lambda: now.__setitem__(0, "edited")
    assert [measure(), measure()] == [1, 1]
    measure.meanwhile = lambda: None
    one_process()
    assert [measure(), measure()] == [2, 2]


def test_grading_code_is_noted_when_it_is_first_asked_what_the_suites_ask(monkeypatch):
    """An experiment does that before it trains; what is edited while it trains is another code than that."""
    now = ["as it began"]
    monkeypatch.setattr("opct.evals.fingerprint.grading_hash", lambda: now[0])
    stages.asked_now(SETTINGS)
    now[0] = "edited"
    wanted = stages._wanted("base", Path("nowhere"), TrainConfig(), "float32", SETTINGS)
    assert wanted["grading"] == "as it began"


def test_an_attack_that_was_judged_by_other_rules_is_named_with_the_folder_to_delete(
    make_config, monkeypatch, tmp_path: Path
):
    """By the rules of now it is left as it is; by others it is neither left nor gone on with, nor marked anew."""
    config, said = make_config(), Noted()
    settings = {"n_behaviors": 1, "episodes": 1, "rounds": 1, "target": {"max_tokens": 2}, "counterpart_episodes": 0}
    settings["attacker"] = {"name": "best_of_n"}

    def attacked() -> None:
        progress = stages.Parts(said, [])
        stages.attack_once("base", tmp_path / "base", config, "float32", "best_of_n", settings, progress=progress)

    attacked()
    folder = tmp_path / "base" / "attacks" / "best_of_n"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    attacked()
    assert said.lines[-1] == f"base: attacked already by best_of_n in {folder}"
    monkeypatch.setattr("opct.attack.scoring.rules_version", lambda: "0123")
    with pytest.raises(OtherAttackError, match=rf"judge\.rubric was .*@0123.* delete {folder}, and the same command"):
        attacked()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_base_that_was_fetched_to_be_measured_is_noted(measure, monkeypatch, tmp_path: Path):
    """It was not on this machine before; other files of it are measured again all the same."""
    there = {}
    monkeypatch.setattr(stages, "note_model", lambda *_: dict(there))
    measure.meanwhile = lambda: there.update(commit={"sha256": "one"})
    assert measure() == 1
    measure.meanwhile = lambda: None
    there["commit"] = {"sha256": "two"}
    assert [measure(), measure()] == [2, 2]
