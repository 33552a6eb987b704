"""`opct` in the step benchmark: the trainer as it is, with hooks, and completions of a forced length."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.phases import Phases, clock_of, teacher_or_policy
from benchmarks.workloads import Workload, make_pairs
from opct.config.loader import load_config
from opct.config.schema import TrainConfig
from opct.data.pairs import write_pairs
from opct.methods.opct import OPCT
from opct.methods.rollouts import step_weights
from opct.models.policy import Policy
from opct.models.vllm import local
from opct.runs.console import NullProgress
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.training import trainer
from opct.training.accumulate import accumulate
from opct.training.setup import TrainingSetup, build_setup

NO_TOKEN = -1  # stands for the stop tokens: no completion ends before its limit


def config_of(workload: Workload, folder: Path, cell: dict[str, Any]) -> TrainConfig:
    """The settings of a run over the workload, whose pairs are in `folder`; what is not named is the default."""
    settings = {
        "output_dir": str(folder / "run"),
        "max_steps": cell["steps"],
        "save_steps": cell["steps"] + 1,
        "model.name_or_path": cell["model"],
        "model.dtype": cell["dtype"],
        "model.device": cell.get("device", "cpu"),
        "data.validation_fraction": 0.0,
        "data.validation_size": 0,
        "optim.micro_batch_tokens": cell["micro_batch"],
        "stop.divergence_factor": 1e9,
    }
    if workload.config is None:
        settings |= {
            "model.quantization": cell.get("quantization"),
            "lora": {"r": 16, "alpha": 32} if cell["training"] == "lora" else None,
            "data.pairs": [str(folder / "pairs.jsonl")],
            "data.anchors": [],
            "data.anchor_fraction": 0.0,
            "rollout.engine": cell.get("engine", "in_process"),
            "rollout.num_generations": workload.generations,
            "rollout.max_completion_tokens": workload.completion_tokens,
            "optim.learning_rate": 1e-5,
            "optim.lr_scheduler_type": "constant",
            "optim.adam_beta2": 0.999,
            "optim.prompts_per_step": workload.prompts,
        }
    return load_config(workload.config, [f"{name}={json.dumps(value)}" for name, value in settings.items()])


@contextlib.contextmanager
def written(workload: Workload, model: str) -> Iterator[Path]:
    """A folder for a while, with the workload's pairs in it."""
    from opct.config.schema import ModelConfig
    from opct.data.render import Renderer
    from opct.models.loading import load_tokenizer

    renderer = Renderer(load_tokenizer(ModelConfig(name_or_path=model)))
    with tempfile.TemporaryDirectory(prefix="opct-bench-") as name:
        write_pairs(Path(name) / "pairs.jsonl", make_pairs(renderer, workload))
        yield Path(name)


def force_lengths() -> None:
    """Let vLLM stop at the limit alone."""
    plain = local.request_settings
    local.request_settings = lambda sampling, stop_ids: plain(sampling, ()) | {"ignore_eos": True}


def prepare_forced(*arguments: Any, **options: Any) -> TrainingSetup:
    """As `build_setup`, with a policy and an engine that stop at the limit alone."""
    force_lengths()
    setup = build_setup(*arguments, **options)
    setup.policy.backbone.stop_ids = frozenset({NO_TOKEN})
    return setup


class _StepEnds(NullProgress):
    """Closes a step of `phases` each time the trainer says that it has done one."""

    def __init__(self, phases: Phases):
        self._phases = phases

    def advance(self, n: int = 1, **fields: object) -> None:
        self._phases.end_step()
        if n == 0:  # what comes before the first step
            self._phases.steps.clear()


def time_steps(workload: Workload, cell: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each step and its phases, as `Phases.end_step` has them, and the trainer's own figures beside them."""
    with written(workload, cell["model"]) as folder:
        return steps_in(folder, workload, cell)


def steps_in(folder: Path, workload: Workload, cell: dict[str, Any]) -> dict[str, Any]:
    """As `time_steps`, where the workload's pairs are in `folder`, so that several processes share one run."""
    phases = Phases(clock_of(cell.get("device", "cpu")))
    phases.wrap(OPCT, "collect", "rollout")
    phases.wrap(Policy, "score", teacher_or_policy)
    phases.wrap(trainer, "accumulate", "loss_backward")
    phases.wrap(torch.nn.utils, "clip_grad_norm_", "optimizer")
    phases.wrap(torch.optim.AdamW, "step", "optimizer")
    trainer.build_setup = prepare_forced
    config = config_of(workload, folder, cell)
    trainer.train(config, progress=_StepEnds(phases))
    rows = read_jsonl(RunDir(config.output_dir).metrics_path)
    for row in rows:
        if row["train/completion_tokens"] != workload.tokens:
            raise SystemExit(
                f"step {row['step']} has {row['train/completion_tokens']} completion tokens, not {workload.tokens}"
            )
    return {
        "steps": phases.steps,
        "trainer": [{key: row[key] for key in ("time/rollout_s", "time/step_s", "train/loss")} for row in rows],
    }


def check_loss(workload: Workload, cell: dict[str, Any]) -> dict[str, Any]:
    """The loss of one step before any update, its gradient's norm, and the completions that it is of, by pair."""
    with written(workload, cell["model"]) as folder:
        config = config_of(workload, folder, cell | {"steps": 1})
        setup = prepare_forced(config)
    method = OPCT(setup.policy, setup.teacher, config)
    rollouts = method.collect(setup.data.batch(1), 1)
    weights = step_weights(rollouts, config.loss.reduction)
    setup.policy.model.train()
    loss, _ = accumulate(method, rollouts, weights, cell["micro_batch"])
    parameters = setup.policy.trainable_parameters().values()
    completions: dict[str, list[list[int]]] = {}
    for rollout in rollouts:
        completions.setdefault(rollout.pair.id, []).append(rollout.ids)
    return {
        "loss": loss,
        "grad_norm": float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])),
        "prompt_tokens": sorted({len(r.prompt_ids) for r in rollouts}),
        "teacher_tokens": sorted({len(r.teacher_ids) for r in rollouts}),
        "completions": completions,
    }
