"""`opct train engine=verl` by verl itself, on two nodes of Ray without a GPU.

Needs an interpreter that has verl and what opct needs: OPCT_VERL_PYTHON names one (CONTRIBUTING.md says how).
"""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from opct.runs.io import write_jsonl
from tests.conftest import REPOSITORY

LIMIT_S = 1800  # four minutes on two busy cores, twelve where forty processes want them
FEW_PROCESSES = (
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "reward.num_workers=1",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "data.dataloader_num_workers=0",
    "actor_rollout_ref.actor.use_torch_compile=false",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
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
HELD_OUT = [
    {"id": f"held out {i}", "prompt": f"I think {i} + 1 is 9. What is it?", "teacher_prompt": f"What is {i} + 1?"}
    for i in range(3)
]

pytestmark = pytest.mark.timeout(2 * LIMIT_S)


@pytest.fixture(scope="module")
def python() -> str:
    if (named := os.environ.get("OPCT_VERL_PYTHON")) is None:
        pytest.skip("OPCT_VERL_PYTHON names no interpreter that has verl")
    return named


def printed(python: str, folder: Path, module: str, config: dict[str, Any], *arguments: str) -> Any:
    """What a module prints in verl's interpreter, given the config; its processes end with it."""
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | {"HF_HUB_OFFLINE": "1"}
    environment |= {"PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [python, "-m", f"tests.e2e.{module}", str(folder / "config.yaml"), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, start_new_session=True, **pipes)
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # the nodes die with the process that started them
    assert process.returncode == 0, err[-5000:]
    return json.loads(out.splitlines()[-1])


def config_in(folder: Path, model: Path, lora: dict[str, Any] | None) -> dict[str, Any]:
    write_jsonl(folder / "pairs.jsonl", PAIRS)
    write_jsonl(folder / "held_out.jsonl", HELD_OUT)
    data = {"pairs": [str(folder / "pairs.jsonl")], "validation_pairs": [str(folder / "held_out.jsonl")]}
    return {
        "engine": "verl",
        "output_dir": str(folder / "run"),
        "max_steps": 2,
        "model": {"name_or_path": str(model), "dtype": "float32", "device": "cpu"},
        "lora": lora,
        "data": data | {"anchor_fraction": 0.0, "anchors": []},
        "rollout": {"num_generations": 2, "max_completion_tokens": 5},
        "loss": {"estimator": "sampled"},
        "optim": {"prompts_per_step": 2, "lr_scheduler_type": "constant", "learning_rate": 0.01},
        # verl's check of an adapter on vLLM imports vLLM, which is not needed here
        "verl": {"nodes": 2, "rollout": "sglang" if lora else "vllm", "overrides": list(FEW_PROCESSES)},
    }


def test_verl_takes_every_setting_and_its_own_checks_refuse(python: str, tiny_folder: Path, tmp_path: Path):
    """No key of ours is unknown to verl, whose merge would keep it and never read it."""
    refused = [
        "verl.overrides=[actor_rollout_ref.rollout.pipeline_model_parallel_size=2]",
        "verl.overrides=[distillation.n_gpus_per_node=3,distillation.teacher_models.teacher_model.inference."
        "tensor_model_parallel_size=4]",
        "verl.overrides=[distillation.teacher_models.teacher_model.inference.max_model_len=8]",
    ]
    accepted = [
        [],
        ["lora=null", "verl.rollout=vllm", "verl.gpus_per_node=2", "verl.teacher_gpus_per_node=8"],
        ["optim.lr_scheduler_type=cosine", "loss.reduction=sequence_mean", "data.validation_size=0"],
    ]
    config = config_in(tmp_path, tiny_folder, {"r": 4, "alpha": 8})
    outcomes = printed(
        python, tmp_path, "verl_checks", config, json.dumps([*accepted, *([words] for words in refused)])
    )
    # fields of verl's classes that its files leave out, and what Ray takes
    others = ["actor.fsdp_config.mixed_precision", "rollout.agent.agent_loop_manager_class"]
    runtime = [f"ray_kwargs.ray_init.runtime_env.{name}" for name in ("py_modules", "env_vars")]
    known = {*(f"actor_rollout_ref.{name}" for name in others), *runtime}
    for outcome in outcomes[: len(accepted)]:
        assert set(outcome["unknown"]) == known, outcome
    reasons = [outcome["refused"] for outcome in outcomes[len(accepted) :]]
    assert all(reason.startswith("verl refuses these settings: ") and "\n" not in reason for reason in reasons)
    for reason, word in zip(
        reasons, ("pipeline_model_parallel_size", "per_replica_world_size", "max_model_len"), strict=True
    ):
        assert word in reason


@pytest.mark.parametrize("lora", [None, {"r": 4, "alpha": 8}], ids=["every weight", "adapter"])
def test_verl_on_two_nodes_trains_as_this_package(python: str, tiny_folder: Path, tmp_path: Path, lora: dict | None):
    """Same completions: loss, gradient and validation KL; the last checkpoint is what verl's servers had at the end."""
    found = printed(python, tmp_path, "verl_cluster", config_in(tmp_path, tiny_folder, lora))
    assert (found["nodes"], found["samplers"]) == (2, 2)
    assert found["tokens"] == [5, 5, 5, 5]
    rows = {row["step"]: row for row in found["metrics"]}
    assert list(rows) == [0, 1, 2]
    assert rows[1]["train/loss"] == pytest.approx(found["loss"], rel=1e-5)
    if lora is None:  # adapters begin with other random matrices
        assert rows[1]["actor/grad_norm"] == pytest.approx(found["grad_norm"], rel=1e-5)
    assert rows[0]["validation/kl"] == pytest.approx(found["kl_0"], rel=1e-5)
    assert rows[2]["validation/kl"] == pytest.approx(found["kl_2"], rel=1e-5)
    assert rows[0]["validation/kl"] != rows[2]["validation/kl"]
    assert found["final_distance"] < 1e-4
