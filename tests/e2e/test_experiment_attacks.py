"""Attacks of an experiment, from its file to its report, on the tiny model."""

import json
from pathlib import Path
from typing import Any

import pytest

from opct.data.behaviors import builtin_behaviors
from opct.errors import DataError, EvaluationError, RunError
from opct.evals.logs import read_log
from opct.experiments.runner import run_experiment
from tests.progress import Noted
from tests.refusals import refused
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


def logs(out: Path) -> dict[str, Any]:
    """The log of each attack that has ended."""
    return {f"{path.parents[1].name}/{path.stem}": read_log(path) for path in out.glob("*/evals/attack_*.eval")}


def attempts(out: Path) -> dict[str, Any]:
    """What each attack tried."""
    return {
        name: {(sample.id, sample.epoch): sample.store["attempts"] for sample in log.samples}
        for name, log in logs(out).items()
    }


def test_the_base_and_every_run_are_attacked_alike_and_each_by_attackers_of_its_own(path: Path, tmp_path: Path):
    """The same command then asks nothing, and other rules are an error that says what to delete."""
    out, of_grpo = tmp_path / "out", ("base/attack_grpo", "sft-seed0/attack_grpo")
    run_experiment(path)
    ended = logs(out)
    assert sorted(ended) == sorted([*of_grpo, "base/attack_transfer", "sft-seed0/attack_transfer"])
    about = {name: log.eval.metadata["opct"] for name, log in ended.items()}
    assert {one["run"]["label"] for one in about.values()} == {"base", "sft"}
    assert all(one["ended"] == "complete" for one in about.values())
    first, second = (log.eval.metadata["task_args"] for name, log in ended.items() if name.endswith("transfer"))
    assert first == second
    assert len({about[name]["identity"]["target_model"]["weights"] for name in of_grpo}) == 2
    trained_on = [about[name]["training"]["trained_on"]["n"] for name in of_grpo]
    assert trained_on == [len(builtin_behaviors("validation"))] * 2
    page = json.loads((out / "report.json").read_text())
    rates = [(row["suite"], list(row["arms"])) for row in page["rows"] if row["metric"] == "defense_success_rate"]
    assert rates == [("attack_grpo", ["base", "sft"]), ("attack_transfer", ["base", "sft"])]

    before, noted = attempts(out), Noted()
    run_experiment(path, progress=noted)
    assert attempts(out) == before
    assert not any("attack" in stage or "round" in stage for stage in noted.stages)

    path.write_text(path.read_text().replace("episodes: 2", "episodes: 3"))
    with refused(RunError, "rules.episodes", "sft-seed0"):
        run_experiment(path)


def test_what_there_is_not_costs_no_training(path: Path, tmp_path: Path):
    text = path.read_text()
    for setting, other, named in (
        ("n_behaviors: 2", "behaviors: nowhere.jsonl", "nowhere.jsonl"),
        ("n_behaviors: 2", "judge: {name: strongrejct}", "strongrejct"),
        ("families: train", "families: helt_out", "helt_out"),
    ):
        path.write_text(text.replace(setting, other))
        with refused((DataError, EvaluationError), named):
            run_experiment(path)
        assert not (tmp_path / "out").exists()
