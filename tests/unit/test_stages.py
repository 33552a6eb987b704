"""Which part of the whole a stage belongs to, how long the rest takes, and what is measured again."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from opct import quickstart, stages
from opct.config import TrainConfig
from opct.files import file_sha256
from opct.progress import NullProgress
from opct.runs import RunDir


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


@pytest.fixture
def measure(tmp_path: Path, monkeypatch):
    """Measures a run of one checkpoint with a file of behaviours; gives how often that was done so far."""
    done = []
    (tmp_path / "behaviors.jsonl").write_text("{}")

    def evaluate(target, *, out, **settings):
        done.append(settings)
        results = {"rows": [], "number": len(done)}
        (out / "results.json").write_text(json.dumps(results))
        return SimpleNamespace(results=results)

    monkeypatch.setattr(stages, "evaluate", evaluate)
    monkeypatch.setattr(RunDir, "checkpoints", lambda self: [(3, self.path / "step3")])
    folder = tmp_path / "run"
    folder.mkdir()

    def run(**settings) -> int:
        settings = {"data": {"jailbreak": str(tmp_path / "behaviors.jsonl"), "benchmark": "hf:a/b@c"}} | settings
        config, parts = TrainConfig(), stages.Parts(Noted(), [])
        found = stages.evaluate_once("opct", folder, config, "float32", settings, overwrite=False, progress=parts)
        assert found["number"] == len(done)
        return len(done)

    return run


def test_what_was_measured_is_not_measured_again(measure):
    assert [measure(), measure(), measure(seed=1), measure(seed=1)] == [1, 1, 2, 2]


def test_a_setting_that_came_later_measures_again_only_where_it_says_something(measure):
    assert [measure(), measure(n_problems=None), measure(n_problems=5), measure()] == [1, 1, 2, 3]


def test_whether_something_is_measured_is_what_measuring_finds(measure, tmp_path: Path, monkeypatch):
    """As it was measured, with other settings, and as the base; then with a checkpoint of a later step."""
    settings = {"data": {"jailbreak": str(tmp_path / "behaviors.jsonl"), "benchmark": "hf:a/b@c"}}
    folder = tmp_path / "run"

    def is_measured(label: str = "opct", **more) -> bool:
        return stages.is_measured(label, folder, TrainConfig(), "float32", settings | more)

    assert not is_measured()
    measure()
    assert [is_measured(), is_measured(seed=1), is_measured("base")] == [True, False, False]
    monkeypatch.setattr(RunDir, "checkpoints", lambda self: [(3, self.path / "step3"), (4, self.path / "step4")])
    assert not is_measured()
    monkeypatch.setattr(RunDir, "checkpoints", lambda self: [])
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


def test_another_content_of_a_file_is_measured_again(measure, tmp_path: Path):
    measure()
    (tmp_path / "behaviors.jsonl").write_text("{} ")
    assert [measure(), measure()] == [2, 2]


def test_other_embedded_data_is_measured_again(measure, monkeypatch):
    measure()
    monkeypatch.setattr(stages, "embedded_hash", lambda: "other")
    assert [measure(), measure()] == [2, 2]


def test_results_that_something_else_wrote_are_measured_again(measure, tmp_path: Path):
    measure()
    (tmp_path / "run" / "results.json").write_text('{"rows": [], "number": 1, "by": "hand"}')
    assert [measure(), measure()] == [2, 2]
