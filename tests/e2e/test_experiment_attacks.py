"""Attacks of an experiment, from its file to its report, on the tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opct.errors import DataError, EvaluationError, RunError
from opct.experiment import run_experiment
from tests.tiny import save_tiny

SHARED = """
max_steps: 1
lora: {{r: 2}}
model: {{name_or_path: {model}, device: cpu, dtype: float32}}
data: {{max_pairs: 8, validation_size: 0}}
rollout: {{max_completion_tokens: 4}}
optim: {{prompts_per_step: 4}}
"""
EXPERIMENT = """
output_dir: {out}
train: shared.yaml
seeds: [0]
arms: {{sft: {{method: sft}}}}
evaluation: {{suites: [sycophancy_short], n_questions: 2, families_per_question: 1, max_completion_tokens: 3}}
attacks:
  attackers: [transfer, grpo]
  settings:
    {{n_behaviors: 2, episodes: 2, rounds: 1, max_reply_tokens: 5, max_attack_tokens: 5, attacker_model: {model},
     families: train, training: ["max_steps=1", "optim.prompts_per_step=2"]}}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    values = {"model": json.dumps(str(save_tiny(tmp_path / "tiny"))), "out": json.dumps(str(tmp_path / "out"))}
    (tmp_path / "shared.yaml").write_text(SHARED.format(**values))
    path = tmp_path / "experiment.yaml"
    path.write_text(EXPERIMENT.format(**values))
    return path


def results(out: Path) -> dict[str, dict]:
    found = {}
    for path in out.glob("*/attacks/*/result.json"):
        result = json.loads(path.read_text())
        found[f"{path.parents[2].name}/{path.parent.name}"] = result | {"created": "then"}
    return found


def tried(out: Path) -> dict[Path, int]:
    """When each file of tries was written last."""
    names = ("tries.jsonl", "transcripts.jsonl")
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
        json.loads(path.read_text())["target"] for path in (tmp_path / "out").glob("*/attacks/grpo/training.json")
    ]
    assert len({target["weights"] for target in against}) == 2
    assert "training" not in found["base/transfer"]["attacker"]
    page = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [[row["arm"] for row in view["attacks"]] for view in page["attacks"]] == [["base", "sft"]] * 2

    kept = tried(tmp_path / "out")
    assert len(kept) == 8
    run_experiment(path)
    assert kept == tried(tmp_path / "out")
    assert results(tmp_path / "out") == found

    path.write_text(path.read_text().replace("episodes: 2", "episodes: 3"))
    with pytest.raises(RunError, match=r"rules.episodes was 2 and is 3.*delete \S*sft-seed0\S*transfer, and the same"):
        run_experiment(path)


@pytest.mark.parametrize(
    ("setting", "said"),
    [("behaviors: nowhere.jsonl", r"nowhere\.jsonl"), ("judge: strongrejct", "No judge 'strongrejct'")],
)
def test_behaviours_and_judges_that_there_are_not_cost_no_training(path: Path, tmp_path: Path, setting: str, said: str):
    path.write_text(path.read_text().replace("n_behaviors: 2", setting))
    with pytest.raises((DataError, EvaluationError), match=said):
        run_experiment(path)
    assert not (tmp_path / "out").exists()
