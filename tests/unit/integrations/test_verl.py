"""What verl is told, and how its result becomes a run; verl itself is in tests/e2e/test_verl.py."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from opct import api
from opct.config.loader import load_config
from opct.config.schema import TrainConfig, VerlConfig
from opct.errors import ConfigError, EngineError
from opct.integrations import verl
from opct.models.policy import Policy
from opct.runs.io import read_json, read_jsonl, write_jsonl
from opct.runs.run_dir import RunDir
from opct.training.setup import load_data
from tests.progress import Noted
from tests.refusals import refused
from tests.tiny import tiny_pairs

OPEN = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}, {"role": "user", "content": "b"}]


@pytest.fixture
def config(tiny_folder: Path, tmp_path: Path) -> TrainConfig:
    rows = [{"prompt": f"I say {i}. And you?", "teacher_prompt": f"What of {i}?"} for i in range(5)]
    write_jsonl(tmp_path / "pairs.jsonl", [*rows, {"id": "open", "prompt": OPEN, "teacher_prompt": "ab"}])
    return TrainConfig.model_validate(
        {
            "engine": "verl",
            "output_dir": str(tmp_path / "run"),
            "max_steps": 3,
            "model": {"name_or_path": str(tiny_folder), "dtype": "float32"},
            "lora": {"r": 4, "alpha": 8},
            "data": {"pairs": [str(tmp_path / "pairs.jsonl")], "anchors": [], "anchor_fraction": 0.0}
            | {"validation_fraction": 0.0, "validation_size": 0},
            "rollout": {"max_completion_tokens": 9},
            "loss": {"estimator": "sampled", "reduction": "sequence_mean"},
            "optim": {"prompts_per_step": 4, "lr_scheduler_type": "constant", "max_grad_norm": None},
        }
    )


def test_rows_are_the_pairs_of_the_steps_in_their_order(config: TrainConfig):
    data = load_data(config)
    rows = verl.rows_of(data)
    expected = [own.pair.id for step in (1, 2, 3) for own in data.batch(step)]
    assert [json.loads(row["extra_info"]["pair"])["id"] for row in rows] == expected
    assert len(rows) == 12
    assert {m["content"] for row in rows for m in row["prompt"]} >= {"a", "", "b"}  # verl counts no open turn


def test_held_out_pairs_are_named_by_the_metric_that_counts_them(config: TrainConfig):
    data = load_data(config)
    assert [row["extra_info"]["index"] for row in verl.validation_rows(data)] == [0]  # verl cannot do without a row
    data.validation, data.validation_anchors = data.pairs[:2], data.pairs[2:3]
    rows = verl.validation_rows(data)
    assert [row["data_source"] for row in rows] == ["validation/kl", "validation/kl", "validation/kl_identity"]
    assert json.loads(rows[2]["extra_info"]["pair"])["id"] == data.pairs[2].pair.id


def test_settings_say_what_the_run_says(config: TrainConfig, tmp_path: Path, tiny_policy: Policy):
    data = load_data(config)
    settings = verl.settings_of(config, data, tiny_policy.renderer, tmp_path, resume=True)
    actor, rollout = (settings["actor_rollout_ref"][name] for name in ("actor", "rollout"))
    teacher = settings["distillation"]["teacher_models"]["teacher_model"]["inference"]
    filled = [message | {"content": message["content"] or "."} for message in OPEN]
    longest = max(len(tiny_policy.renderer.render(filled)) + 9, *(len(pair.prompt_ids or []) for pair in data.pairs))
    assert settings["data"]["max_prompt_length"] == longest
    assert settings["data"]["max_response_length"] == 9
    assert rollout["max_model_len"] == teacher["max_model_len"] == longest + 9 + 1
    assert (rollout["gpu_memory_utilization"], teacher["gpu_memory_utilization"]) == (0.5, 0.8)
    assert actor["loss_agg_mode"] == "seq-mean-token-mean"
    assert actor["grad_clip"] == verl.NO_CLIP
    assert actor["fsdp_config"]["mixed_precision"]["param_dtype"] == "fp32"
    assert settings["actor_rollout_ref"]["model"]["lora_rank"] == 4
    assert settings["distillation"]["distillation_loss"]["use_task_rewards"] is False
    assert settings["trainer"]["test_freq"] == -1
    assert not settings["trainer"]["val_before_train"]
    # a longer prompt that is only validated on counts too
    data.validation = [replace(data.pairs[0], teacher_ids=[1] * 300)]
    settings = verl.settings_of(config, data, tiny_policy.renderer, tmp_path, resume=True)
    assert settings["data"]["max_prompt_length"] == 300
    assert settings["trainer"]["val_before_train"]
    assert settings["trainer"]["test_freq"] == 2  # the middle of three steps


def test_every_setting_without_a_counterpart_is_named(config: TrainConfig, monkeypatch):
    monkeypatch.setattr(verl.importlib.metadata, "version", lambda name: "0.9.1")
    assert verl.check(config) == "0.9.1"
    settings = {"loss": {"estimator": "exact", "thinking_tags": ("[T]", "[/T]")}, "teacher": {"kind": "ema"}}
    other = TrainConfig.model_validate(config.model_dump() | settings)
    with refused(ConfigError, "loss.estimator=exact", "loss.thinking_tags=", "teacher.kind=ema"):
        verl.check(other)
    uneven = config.model_copy(update={"verl": VerlConfig(nodes=3, gpus_per_node=2, tensor_parallel=2)})
    with refused(ConfigError, "multiple of the 6", "verl.teacher_gpus_per_node=3"):
        verl.check(uneven)
    monkeypatch.setattr(verl.importlib.metadata, "version", lambda name: "0.8.0")
    with refused(ConfigError, "0.8.0", "0.9"):
        verl.check(config)

    def missing(name: str) -> str:
        raise verl.importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(verl.importlib.metadata, "version", missing)
    with refused(ConfigError, "opct[verl]"):
        api.train(config)
    assert not Path(config.output_dir).exists()


@pytest.fixture
def verl_that_trains(config: TrainConfig, monkeypatch) -> SimpleNamespace:
    """verl replaced where it would train: its files are there, with an adapter of ones."""
    weights = Policy.load(config.model.model_copy(update={"device": "cpu"}), lora=config.lora).trainable_parameters()
    state = SimpleNamespace(begin=1, steps=3, told=None)

    def run(settings: dict[str, Any]) -> None:
        state.told = settings
        folder = Path(config.output_dir) / "verl"
        checkpoint = folder / "checkpoints" / f"global_step_{state.steps}" / "actor"
        checkpoint.mkdir(parents=True, exist_ok=True)
        ones = {name: torch.ones_like(parameter) for name, parameter in weights.items()}
        torch.save(ones, checkpoint / "model_world_size_1_rank_0.pt")
        steps = range(state.begin, state.steps + 1)
        rows = [{"step": n, "data": {"actor/distillation/loss": 1 / n, "text": "x"}} for n in steps]
        # a start validates first: two completions of 4 tokens on average, whose log-ratios sum to 6
        totals = {f"val-aux/validation/kl/{part}/mean@1": value for part, value in (("kl", 6.0), ("tokens", 4.0))}
        rows.insert(0, {"step": state.begin - 1, "data": totals})
        write_jsonl(Path(settings["ray_kwargs"]["ray_init"]["runtime_env"]["env_vars"]["VERL_FILE_LOGGER_PATH"]), rows)

    monkeypatch.setattr(verl, "check", lambda config: "0.9.1")
    monkeypatch.setattr(verl, "composed", lambda settings, overrides: settings)
    monkeypatch.setattr(verl, "run_verl", run)
    return state


def test_the_result_is_an_ordinary_run(config: TrainConfig, verl_that_trains: SimpleNamespace):
    config, progress = config.model_copy(update={"loss": config.loss.model_copy(update={"top_k": 7})}), Noted()
    result = api.train(config, progress=progress)
    assert any(line.startswith("pairs: 6 in ") for line in progress.lines)
    assert any(line.startswith("warning: loss.top_k=7 has no effect") for line in progress.lines)
    run = RunDir.open(config.output_dir)
    assert (result.status, result.step) == ("finished", 3)
    rows = read_jsonl(run.metrics_path)
    assert [(row["step"], row.get("train/loss")) for row in rows] == [(0, None), (1, 1), (2, 0.5), (3, 1 / 3)]
    assert rows[0]["validation/kl"] == 1.5
    manifest = read_json(run.manifest_path)
    assert manifest["trained_with"] == "verl 0.9.1"
    saved = run.latest_checkpoint() / "adapter"
    loaded = Policy.load(config.model.model_copy(update={"adapter": str(saved), "device": "cpu"}), lora=config.lora)
    assert all((own == 1).all() for own in loaded.trainable_parameters().values())
    verl_that_trains.told = None
    again = api.train(config, resume=True)  # nothing is left to do
    assert (again.step, verl_that_trains.told) == (3, None)


def test_a_run_that_verl_did_not_finish_says_so_and_can_be_resumed(config: TrainConfig, verl_that_trains):
    """Also one on pairs that were given in Python, of which it has a copy."""
    verl_that_trains.steps = 2
    with refused(EngineError, "--resume"):
        api.train(config, pairs=tiny_pairs(9))
    assert verl_that_trains.told["trainer"]["resume_mode"] == "disable"
    verl_that_trains.begin, verl_that_trains.steps = 2, 3  # from its last checkpoint, with a file of its own
    own = load_config(RunDir(config.output_dir).config_path)
    assert api.train(own, resume=True).step == 3
    assert verl_that_trains.told["trainer"]["resume_mode"] == "auto"
    rows = read_jsonl(RunDir(config.output_dir).metrics_path)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert (rows[1]["train/loss"], rows[1]["validation/kl"]) == (1, 1.5)  # step 1 was validated by the second start


def test_a_checkpoint_of_another_model_is_refused(config: TrainConfig, tmp_path: Path):
    policy = Policy.load(config.model.model_copy(update={"device": "cpu"}), lora=config.lora)
    torch.save(dict(list(policy.trainable_parameters().items())[1:]), tmp_path / "model_world_size_1_rank_0.pt")
    with refused(EngineError, next(iter(policy.trainable_parameters()))):
        verl.load_result(policy, tmp_path)
