"""Attacks of an experiment, from its file to its report, on the tiny model."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from opct.data.behaviors import builtin_behaviors
from opct.errors import DataError, EvaluationError, RunError
from opct.experiments.runner import run_experiment
from opct.runs.console import NullProgress
from tests.tiny import TINY_TRAINING, save_tiny

EXPERIMENT = """
output_dir: {out}
train: shared.yaml
seeds: [0]
arms: {{sft: {{method: sft}}}}
evaluation: {{suites: [sycophancy_short], n_questions: 2, families_per_question: 1, max_completion_tokens: 3}}
attacks:
  attackers:
    - {{name: transfer, families: train}}
    - {{name: grpo, model: {model}, max_tokens: 5, training: {{max_steps: 1, optim: {{prompts_per_step: 2}}}},
        train_split: validation}}
  settings: {{n_behaviors: 2, episodes: 2, rounds: 1, target: {{max_tokens: 5}}}}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    values = {"model": json.dumps(str(save_tiny(tmp_path / "tiny"))), "out": json.dumps(str(tmp_path / "out"))}
    (tmp_path / "shared.yaml").write_text(TINY_TRAINING.format(**values))
    path = tmp_path / "experiment.yaml"
    path.write_text(EXPERIMENT.format(**values))
    return path


class Noted(NullProgress):
    """Keeps what it was told; asks to stop, as Ctrl-C does, at the first stage with `stop_at` in its name."""

    def __init__(self, stop_at: str | None = None):
        self.stages: list[str] = []
        self.lines: list[str] = []
        self.stop_at = stop_at

    def stage(self, name: str, total: int | None = None) -> None:
        self.stages.append(name)
        if self.stop_at is not None and self.stop_at in name:
            self.stop_at = None
            os.kill(os.getpid(), signal.SIGINT)

    def log(self, message: str) -> None:
        self.lines.append(message)


def results(out: Path) -> dict[str, dict]:
    found = {}
    for path in out.glob("*/attacks/*/result.json"):
        result = json.loads(path.read_text())
        found[f"{path.parents[2].name}/{path.parent.name}"] = result | {"created": "then"}
    return found


def tried(out: Path) -> dict[Path, int]:
    """When each file of tries was written last."""
    names = ("attempts.jsonl",)
    return {path: path.stat().st_mtime_ns for path in out.glob("*/attacks/*/*.jsonl") if path.name in names}


def test_the_base_and_every_run_are_attacked_alike_and_each_by_attackers_of_its_own(path: Path, tmp_path: Path):
    """Then the same command asks nothing; other rules are an error that says what to delete."""
    run_experiment(path)
    found = results(tmp_path / "out")
    assert sorted(found) == ["base/grpo", "base/transfer", "sft-seed0/grpo", "sft-seed0/transfer"]
    assert {one["label"] for one in found.values()} == {"base", "sft"}
    assert all(one["ended"] == "complete" and len(one["behaviors"]) == 2 for one in found.values())
    assert found["base/transfer"]["attacker"]["families"] == found["sft-seed0/transfer"]["attacker"]["families"]
    against = [
        json.loads(path.read_text())["target"] for path in (tmp_path / "out").glob("*/attacks/grpo/identity.json")
    ]
    assert len({target["weights"] for target in against}) == 2
    validation = len(builtin_behaviors("validation"))
    assert [found[f"{name}/grpo"]["training"]["trained_on"]["n"] for name in ("base", "sft-seed0")] == [validation] * 2
    assert "training" not in found["base/transfer"]["attacker"]
    page = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [[row["arm"] for row in view["attacks"]] for view in page["attacks"]] == [["base", "sft"]] * 2

    kept = tried(tmp_path / "out")
    assert len(kept) == 4
    run_experiment(path)
    assert kept == tried(tmp_path / "out")
    assert results(tmp_path / "out") == found
    noted = Noted()
    run_experiment(path, progress=noted)
    assert sum("attacked already by" in line for line in noted.lines) == 4
    assert not any("attack" in stage or "round" in stage for stage in noted.stages)

    path.write_text(path.read_text().replace("episodes: 2", "episodes: 3"))
    with pytest.raises(RunError, match=r"rules.episodes was 2 and is 3.*delete \S*sft-seed0\S*transfer, or replace it"):
        run_experiment(path)


def test_an_experiment_that_is_stopped_in_an_attack_goes_on_with_it(path: Path, tmp_path: Path):
    """Stopped before the second round of the first attack; then all is as if it had not been."""
    text = path.read_text().replace("rounds: 1", "rounds: 2")
    start = text.index("    - {name: grpo")
    text = text[:start] + text[text.index("  settings:", start) :]
    path.write_text(text)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(path, progress=Noted(stop_at="round 2"))
    assert results(tmp_path / "out")["sft-seed0/transfer"]["ended"] == "interrupted"
    run_experiment(path)
    cut = results(tmp_path / "out")
    path.write_text(text.replace(json.dumps(str(tmp_path / "out")), json.dumps(str(tmp_path / "whole"))))
    run_experiment(path)
    whole = results(tmp_path / "whole")
    assert [one["ended"] for one in cut.values()] == ["complete"] * 2
    for name, one in whole.items():
        assert (one["behaviors"], one["rows"]) == (cut[name]["behaviors"], cut[name]["rows"])


@pytest.mark.parametrize(
    ("setting", "other", "said"),
    [
        ("n_behaviors: 2", "behaviors: nowhere.jsonl", r"nowhere\.jsonl"),
        ("n_behaviors: 2", "judge: {name: strongrejct}", "judge of an attack 'strongrejct'"),
        ("families: train", "families: helt_out", "helt_out"),
    ],
)
def test_what_there_is_not_costs_no_training(path: Path, tmp_path: Path, setting: str, other: str, said: str):
    path.write_text(path.read_text().replace(setting, other))
    with pytest.raises((DataError, EvaluationError), match=said):
        run_experiment(path)
    assert not (tmp_path / "out").exists()
