"""Attacks of an experiment, from its file to its report, on the tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opct.data.behaviors import builtin_behaviors
from opct.errors import DataError, EvaluationError, RunError
from opct.experiments.runner import run_experiment
from tests.progress import Noted
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
    - {{name: grpo, model: {model}, max_completion_tokens: 5, train_split: validation,
        training: {{max_steps: 1, optim: {{prompts_per_step: 2}}}}}}
  settings: {{n_behaviors: 2, episodes: 2, rounds: 2, target: {{max_completion_tokens: 5}}}}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    values = {"model": json.dumps(str(save_tiny(tmp_path / "tiny"))), "out": json.dumps(str(tmp_path / "out"))}
    (tmp_path / "shared.yaml").write_text(TINY_TRAINING.format(**values))
    path = tmp_path / "experiment.yaml"
    path.write_text(EXPERIMENT.format(**values))
    return path


def results(out: Path) -> dict[str, dict]:
    found = {}
    for path in out.glob("*/attacks/*/result.json"):
        result = json.loads(path.read_text())
        found[f"{path.parents[2].name}/{path.parent.name}"] = result | {"created": "then"}
    return found


def attempts(out: Path) -> dict[str, bytes]:
    """What is in the journal of each attack."""
    return {str(path.relative_to(out)): path.read_bytes() for path in out.glob("*/attacks/*/attempts.jsonl")}


def test_the_base_and_every_run_are_attacked_alike_and_each_by_attackers_of_its_own(path: Path, tmp_path: Path):
    """Stopped before the second round of the first attack, and continued; then the same command asks nothing, and other
    rules are an error that says what to delete."""
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_experiment(path, progress=Noted(stop_at="round 2"))
    assert results(out)["sft-seed0/transfer"]["ended"] == "interrupted"
    [(first, tried)] = attempts(out).items()
    noted = Noted()
    run_experiment(path, progress=noted)
    assert [line.split(":")[0] for line in noted.lines if "already" in line] == ["sft, seed 0", "sft"]
    assert attempts(out)[first].startswith(tried)

    found = results(out)
    assert sorted(found) == ["base/grpo", "base/transfer", "sft-seed0/grpo", "sft-seed0/transfer"]
    assert {one["label"] for one in found.values()} == {"base", "sft"}
    assert all(one["ended"] == "complete" and len(one["behaviors"]) == 2 for one in found.values())
    assert found["base/transfer"]["attacker"]["families"] == found["sft-seed0/transfer"]["attacker"]["families"]
    against = [json.loads(path.read_text())["target"] for path in out.glob("*/attacks/grpo/identity.json")]
    assert len({target["weights"] for target in against}) == 2
    validation = len(builtin_behaviors("validation"))
    assert [found[f"{name}/grpo"]["training"]["trained_on"]["n"] for name in ("base", "sft-seed0")] == [validation] * 2
    assert "training" not in found["base/transfer"]["attacker"]
    page = json.loads((out / "report.json").read_text())
    assert [[row["arm"] for row in view["attacks"]] for view in page["attacks"]] == [["base", "sft"]] * 2

    kept, noted = attempts(out), Noted()
    run_experiment(path, progress=noted)
    assert (attempts(out), results(out)) == (kept, found)
    assert sum("attacked already by" in line for line in noted.lines) == 4
    assert not any("attack" in stage or "round" in stage for stage in noted.stages)

    path.write_text(path.read_text().replace("episodes: 2", "episodes: 3"))
    with pytest.raises(RunError, match=r"rules.episodes was 2 and is 3.*delete \S*sft-seed0\S*transfer, or replace it"):
        run_experiment(path)


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
