"""A training step by verl itself on the CPU equals this package's.

Needs an interpreter that has verl and what opct needs: OPCT_VERL_PYTHON names one (CONTRIBUTING.md says how).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from opct.runs.io import write_jsonl
from tests.conftest import REPOSITORY

LIMIT_S = 600  # Ray and verl's imports take a minute, and many times that where others compute
ON_CPU = (
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.use_torch_compile=false",
    "actor_rollout_ref.model.use_remove_padding=false",
    "actor_rollout_ref.model.override_config.attn_implementation=sdpa",
)
SURE = [
    {"role": "user", "content": "Name a colour."},
    {"role": "assistant", "content": None},
    {"role": "user", "content": "Are you sure?"},
]
PAIRS = [
    {"id": "biased", "prompt": "I think 2 + 2 is 5. What is it?", "teacher_prompt": "What is 2 + 2?"},
    {"id": "open turn", "prompt": SURE, "teacher_prompt": "Name a colour, please; take your time."},
]

pytestmark = pytest.mark.timeout(2 * LIMIT_S)


@pytest.fixture(scope="module")
def python() -> str:
    if (named := os.environ.get("OPCT_VERL_PYTHON")) is None:
        pytest.skip("OPCT_VERL_PYTHON names no interpreter that has verl")
    return named


@pytest.mark.parametrize("lora", [None, {"r": 4, "alpha": 8}], ids=["every weight", "adapter"])
def test_a_step_by_verl_is_a_step_of_ours(python: str, tiny_folder: Path, tmp_path: Path, lora: dict | None):
    """Same completions: loss and gradient to 1e-4; the weights that verl saved are loaded, each moved by the rate."""
    write_jsonl(tmp_path / "pairs.jsonl", PAIRS)
    settings: dict[str, Any] = {
        "engine": "verl",
        "output_dir": str(tmp_path / "run"),
        "max_steps": 1,
        "model": {"name_or_path": str(tiny_folder), "dtype": "float32", "device": "cpu"},
        "lora": lora,
        "data": {
            "pairs": [str(tmp_path / "pairs.jsonl")],
            "anchor_fraction": 0.0,
            "anchors": [],
            "validation_fraction": 0.0,
            "validation_size": 0,
        },
        "rollout": {"num_generations": 2, "max_completion_tokens": 5},
        "loss": {"estimator": "sampled"},
        "optim": {"prompts_per_step": 2, "lr_scheduler_type": "constant", "learning_rate": 0.01},
        "verl": {"overrides": list(ON_CPU)},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    command = [python, "-m", "tests.e2e.verl_step", str(tmp_path / "config.yaml")]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "src"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tokens"] == [5, 5, 5, 5]
    assert found["verl"]["loss"] == pytest.approx(found["loss"], rel=1e-4)
    if lora is None:  # the adapters begin with other random matrices
        assert found["verl"]["grad_norm"] == pytest.approx(found["grad_norm"], rel=1e-4)
    steps = [x for name, x in found["moved"].items() if lora is None or "lora_B" in name]
    assert steps
    assert all(0.001 < x < 0.011 for x in steps)  # AdamW's first step is the learning rate where there is a gradient
