"""Train with verl: Ray, FSDP, and vLLM or SGLang, for models and machines beyond `opct.training.trainer`.

Pairs, their order and their anchors are those of `opct train`. verl samples, scores and updates; the log-probs of the
teacher come from a server of the base model, after `teacher_prompt` (see `verl_workers`), in training and validation.
The result is an ordinary run: its last checkpoint, its metrics under verl's names, its manifest.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard

from opct.config.methods import OpctLoss
from opct.config.schema import TrainConfig
from opct.config.section import Section
from opct.data.pairs import ContrastivePair, eval_options, write_pairs
from opct.data.render import RenderedPair, Renderer
from opct.errors import ConfigError, EngineError
from opct.models.loading import resolve_model, with_weights
from opct.models.policy import Policy
from opct.runs.console import NullProgress, Progress
from opct.runs.io import read_jsonl, write_jsonl
from opct.runs.run_dir import RunDir
from opct.training.resume import Counters, write_checkpoint
from opct.training.setup import TrainingData, build_setup, describe_data
from opct.training.trainer import TrainResult, begin

WORKERS = "opct.integrations.verl_workers"
REDUCTIONS = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean"}
NO_CLIP = 1e9
LOSS = "train/loss"
VALIDATION = ("validation/kl", "validation/kl_identity")


def train_on_verl(
    config: TrainConfig,
    *,
    pairs: Sequence[ContrastivePair] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> TrainResult:
    """As `opct.training.trainer.train`, with verl; the base model is loaded here too, on the CPU.

    Raises:
        ConfigError: verl is not installed, or has no such setting; every fault in one message.
        EngineError: verl did not end with a checkpoint of the last step; `resume` continues from its last one.
    """
    progress = progress or NullProgress()
    version = check(config)
    config = config.model_copy(update={"model": with_weights(config.model)})
    # on the CPU: verl's workers need the whole GPU
    here = config.model_copy(update={"model": config.model.model_copy(update={"device": "cpu"})})
    with (
        RunDir.create(config.output_dir, resume=resume, overwrite=overwrite) as run,
        contextlib.closing(build_setup(here, pairs)) as setup,
    ):
        setup.config = config  # what a later reader takes, with its own device
        for line in describe_data(setup):
            progress.log(line)
        if overwrite:
            run.clear(config.data.pairs if pairs is None else ())
        if pairs is not None and "data" not in run.read_manifest():  # before the config that names the file
            write_pairs(run.pairs_path, pairs)
        optimizer, counters = begin(run, setup, {"trained_with": f"verl {version}"}, resume=resume)
        folder, steps = run.verl_dir, setup.data.total_steps
        if counters.step < steps:
            write_jsonl(folder / "pairs.jsonl", rows_of(setup.data))
            write_jsonl(folder / "validation.jsonl", validation_rows(setup.data))
            progress.stage(f"verl {version}: {steps} steps")
            settings = settings_of(config, setup.data, setup.policy.renderer, folder.resolve(), resume=resume)
            run_verl(composed(settings, config.verl.overrides))
            progress.stage("load the result")
            # before the checkpoint is written: it is the loaded weights that are saved
            load_result(setup.policy, folder / "checkpoints" / f"global_step_{steps}" / "actor")
            write_jsonl(run.metrics_path, metrics_of(folder))
            write_checkpoint(run, setup, optimizer, Counters(step=steps))
        last = read_jsonl(run.metrics_path)[-1]
    questions = eval_options(rendered.pair for rendered in setup.data.pairs)
    return TrainResult(run.path, "finished", steps, steps, {LOSS: last[LOSS]}, questions=questions)


def check(config: TrainConfig) -> str:
    """The version of verl that is installed. Raises ConfigError where none is, or verl cannot do what the settings
    say."""
    faults, version = list(faults_of(config)), "none"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("verl")
    if not version.startswith("0.9."):
        faults.append(f"verl: {version} is installed, needed is 0.9: pip install 'opct[verl]' (docs/how-to/verl.md)")
    if faults:
        raise ConfigError("\n  ".join(["These settings cannot be trained with engine=verl:", *faults]))
    return version


def faults_of(config: TrainConfig) -> Iterator[str]:
    """Settings that verl has no counterpart for, one line each."""
    loss, optim, lora = config.loss, config.optim, config.lora
    allowed: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "method": (config.method, ("opct",)),
        "model.adapter": (config.model.adapter, (None,)),
        "model.quantization": (config.model.quantization, (None,)),
        "teacher.kind": (config.teacher.kind, ("base",)),
        "eval.steps": (config.eval.steps, (None,)),
        "optim.lr_scheduler_type": (optim.lr_scheduler_type, ("constant", "cosine")),
    }
    if isinstance(loss, OpctLoss):
        allowed |= {
            **_at_defaults("loss", loss, but=("estimator", "reduction", "ppo_clip", "jsd_weight", "top_k")),
            "loss.estimator": (loss.estimator, ("sampled",)),
            "loss.reduction": (loss.reduction, tuple(REDUCTIONS)),
        }
    if lora is not None:
        allowed |= _at_defaults("lora", lora, but=("r", "alpha", "target_modules", "exclude_modules"))
    for name, (value, accepted) in allowed.items():
        if value not in accepted:
            yield f"{name}={value}: set it to {' or '.join(map(str, accepted))}"
    yield from _uneven(config)


def _at_defaults(name: str, section: Section, but: Sequence[str]) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """The settings of a section with their values and the one that each may have: its default."""
    fields = {key: field for key, field in type(section).model_fields.items() if key not in but}
    return {f"{name}.{key}": (getattr(section, key), (field.get_default(),)) for key, field in fields.items()}


def _uneven(config: TrainConfig) -> Iterator[str]:
    """What cannot be shared out over the GPUs; verl would say so in the first update, or when servers start."""
    gpus, nodes = config.verl.nodes * config.verl.gpus_per_node, config.verl
    rows = config.optim.prompts_per_step * config.rollout.num_generations
    if rows % gpus:
        yield f"optim.prompts_per_step x rollout.num_generations={rows}: make it a multiple of the {gpus} training GPUs"
    for name, count in (("gpus_per_node", gpus), ("teacher_gpus_per_node", nodes.nodes * nodes.teacher_gpus_per_node)):
        if count % nodes.tensor_parallel:
            yield f"verl.tensor_parallel={nodes.tensor_parallel}: it must divide verl.nodes x verl.{name}={count}"


def rows_of(data: TrainingData) -> list[dict[str, Any]]:
    """The pairs of all steps in their order, as rows of verl's `RLHFDataset`."""
    batches = [data.batch(step) for step in range(1, data.total_steps + 1)]
    return [_row(i, rendered, data) for i, rendered in enumerate(itertools.chain.from_iterable(batches))]


def validation_rows(data: TrainingData) -> list[dict[str, Any]]:
    """The held-out pairs; their source is the metric that they are counted in."""
    held_out = zip(VALIDATION, (data.validation, data.validation_anchors), strict=True)
    sources = [(name, rendered) for name, pairs in held_out for rendered in pairs]
    # verl wants a file with a row, also where nothing is held out and it is not read
    return [_row(i, rendered, data, name) for i, (name, rendered) in enumerate(sources)] or rows_of(data)[:1]


def _row(index: int, rendered: RenderedPair, data: TrainingData, source: str | None = None) -> dict[str, Any]:
    pair = rendered.pair
    info = {"index": index, "pair": json.dumps(pair.to_json(), ensure_ascii=False)}
    info["template_date"] = data.config.model.template_date
    # "" for an open turn: this column is for verl's dataset, the agent loop reads the pair in `extra_info`
    prompt = [message | {"content": message["content"] or ""} for message in pair.prompt]
    return {"data_source": source or f"opct/{pair.axis}", "prompt": prompt, "extra_info": info}


def settings_of(
    config: TrainConfig, data: TrainingData, renderer: Renderer, folder: Path, *, resume: bool
) -> dict[str, Any]:
    """The settings of verl that differ from verl's defaults.

    Args:
        folder: gets the checkpoints and the metrics; every node must see it.
    """
    optim, rollout, nodes = config.optim, config.rollout, config.verl
    answer = rollout.max_completion_tokens
    scored = [*data.visited(), *data.validation, *data.validation_anchors]
    longest = max(longest_prompt(rendered, renderer, answer) for rendered in scored)
    path = resolve_model(config.model.name_or_path, config.model.revision)
    sampler = {
        "name": nodes.rollout,
        "dtype": dtype_of(config),
        "tensor_model_parallel_size": nodes.tensor_parallel,
        # without it a server reserves memory for the model's whole context. + 1: after a whole answer the teacher
        # must still have room to sample the one token that a server cannot do without
        "max_model_len": longest + answer + 1,
    }
    metrics = folder / f"metrics-{len(list(folder.glob('metrics-*.jsonl'))) + 1:03d}.jsonl"  # verl would empty the old
    return {
        "data": {
            "train_files": str(folder / "pairs.jsonl"),
            "val_files": str(folder / "validation.jsonl"),
            "train_batch_size": optim.prompts_per_step,
            "max_prompt_length": longest,
            "max_response_length": answer,
            # the rows are in the order of the steps: shuffled, a step would hold other pairs than in `opct train`
            "shuffle": False,
            "apply_chat_template_kwargs": dict(config.model.chat_template_kwargs),
        },
        "actor_rollout_ref": {
            "model": model_settings(config, path),
            "actor": actor_settings(config, longest + answer),
            "rollout": {
                **sampler,
                "gpu_memory_utilization": nodes.gpu_memory_utilization,
                "n": rollout.num_generations,
                "temperature": rollout.temperature,
                "top_p": rollout.top_p,
                # -1 is vLLM's "all tokens", where our settings have null or 0
                "top_k": rollout.top_k or -1,
                "seed": config.seed,
                "load_format": "dummy" if config.lora is None else "safetensors",
                # one answer a pair at temperature 1: only then its mean log-ratio estimates the reverse KL
                "val_kwargs": {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "n": 1, "do_sample": True},
                "agent": {"default_agent_loop": "opct_pair", "agent_loop_manager_class": f"{WORKERS}.PairManager"},
            },
        },
        "algorithm": {"adv_estimator": "grpo", "rollout_correction": {"bypass_mode": True}},
        "distillation": distillation_settings(config, path, sampler),
        "trainer": trainer_settings(config, data, folder) | {"resume_mode": "auto" if resume else "disable"},
        "ray_kwargs": {"ray_init": {"runtime_env": runtime_env(metrics)}},
    }


def trainer_settings(config: TrainConfig, data: TrainingData, folder: Path) -> dict[str, Any]:
    """Machines, steps, checkpoints and validation."""
    validated = data.validation_steps
    return {
        "nnodes": config.verl.nodes,
        "n_gpus_per_node": config.verl.gpus_per_node,
        "total_epochs": 1,
        "total_training_steps": data.total_steps,
        "save_freq": config.save_steps,
        "max_actor_ckpt_to_keep": config.save_total_limit,
        "val_before_train": bool(validated),
        # after 0, `validation_steps` are the multiples of the first, and the last
        "test_freq": validated[1] if validated else -1,
        "default_local_dir": str(folder / "checkpoints"),
        "project_name": "opct",
        "experiment_name": folder.parent.name,
        "logger": ["console", "file", *config.report_to],
    }


def runtime_env(metrics: Path) -> dict[str, Any]:
    """What Ray gives every worker on every node: this package, as it is here, and the file for verl's metrics."""
    package = Path(__file__).parents[1]
    return {"py_modules": [str(package)], "env_vars": {"VERL_FILE_LOGGER_PATH": str(metrics)}}


def dtype_of(config: TrainConfig) -> str:
    return "bfloat16" if config.model.dtype == "auto" else config.model.dtype


def model_settings(config: TrainConfig, path: str) -> dict[str, Any]:
    """The policy's model, and its adapter if there is one."""
    lora, lora_settings = config.lora, {}
    if lora is not None:
        lora_settings = {"lora_rank": lora.r, "lora_alpha": lora.alpha}
        lora_settings |= lora.model_dump(include={"target_modules", "exclude_modules"})
    return lora_settings | {
        "path": path,
        "trust_remote_code": config.model.trust_remote_code,
        "enable_gradient_checkpointing": config.optim.gradient_checkpointing,
        # verl's default fails where flash-attn is not installed; sdpa masks packed sequences by their positions
        "override_config": {"attn_implementation": "flash_attention_2" if find_spec("flash_attn") else "sdpa"},
    }


def actor_settings(config: TrainConfig, longest: int) -> dict[str, Any]:
    """The update: one a step."""
    optim = config.optim
    clip = optim.max_grad_norm or NO_CLIP
    return {
        "strategy": "fsdp2",
        "ppo_mini_batch_size": optim.prompts_per_step,
        "use_dynamic_bsz": True,
        # verl fails on a sequence that is longer than a micro-batch
        "ppo_max_token_len_per_gpu": max(optim.fixed_micro_batch_tokens, longest),
        "loss_agg_mode": REDUCTIONS[config.loss.reduction],
        "grad_clip": clip,
        "fsdp_config": {"mixed_precision": {"param_dtype": "fp32" if dtype_of(config) == "float32" else "bf16"}},
        "optim": {
            "lr": optim.learning_rate,
            "lr_scheduler_type": optim.lr_scheduler_type,
            "lr_warmup_steps": optim.warmup_steps,
            "weight_decay": optim.weight_decay,
            "betas": [optim.adam_beta1, optim.adam_beta2],
            "clip_grad": clip,
            "override_optimizer_config": {"eps": optim.adam_epsilon},
        },
    }


def distillation_settings(config: TrainConfig, path: str, sampler: dict[str, Any]) -> dict[str, Any]:
    """The teacher's servers, and the loss: the log-ratio of each sampled token as its advantage, nothing else."""
    assert isinstance(config.loss, OpctLoss)  # `faults_of` refuses other methods
    # verl has no "off": a range that no ratio leaves
    clip = config.loss.ppo_clip or NO_CLIP
    return {
        "enabled": True,
        "n_gpus_per_node": config.verl.teacher_gpus_per_node,
        "nnodes": config.verl.nodes,
        "teacher_models": {
            "teacher_model": {
                "model_path": path,
                "inference": sampler | {"gpu_memory_utilization": config.verl.teacher_gpu_memory_utilization},
            }
        },
        "distillation_loss": {
            "loss_mode": "k1",
            "use_task_rewards": False,
            "use_policy_gradient": True,
            "clip_ratio": clip,
            "clip_ratio_low": clip,
            "clip_ratio_high": clip,
        },
    }


def longest_prompt(rendered: RenderedPair, renderer: Renderer, answer: int) -> int:
    """Most tokens that either prompt of a pair may have; each open turn may take `answer` more."""
    open_turns = sum(message["content"] is None for message in rendered.pair.prompt)
    filled = [message | {"content": message["content"] or "."} for message in rendered.pair.prompt]
    return max(len(renderer.render(filled)) + open_turns * answer, len(rendered.teacher_ids))


def composed(settings: dict[str, Any], overrides: Sequence[str]) -> Any:
    """verl's whole configuration: its defaults, our settings over them, the user's over both. Raises ConfigError where
    an override is not NAME=VALUE."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=["actor_rollout_ref.rollout.name=vllm"])
    OmegaConf.set_struct(config, False)
    if faults := [override for override in overrides if "=" not in override]:
        raise ConfigError(f"verl.overrides holds NAME=VALUE entries, and these are not: {', '.join(faults)}")
    # the user's last: the later one wins
    return OmegaConf.merge(config, settings, OmegaConf.from_dotlist(list(overrides)))


def run_verl(config: Any) -> None:
    """Train, on the Ray cluster of RAY_ADDRESS or on one that is started here. Raises ConfigError, before anything is
    started, where verl refuses the configuration; EngineError where a worker fails."""
    from ray.exceptions import RayError
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    validate(config)
    try:
        run_ppo(config, task_runner_class=TaskRunnerV1)
    except RayError as error:
        reason = str(error).strip().splitlines()[-1]
        raise EngineError(f"verl ended with {reason}; its output above says where. Continue with --resume.") from error


def validate(config: Any) -> None:
    """Raise ConfigError where verl's own checks refuse the configuration, which else fails in a worker, later."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config
    from verl.utils.device import auto_set_device

    auto_set_device(config)
    try:
        validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
        for section in (config.actor_rollout_ref.rollout, config.distillation, config.algorithm):
            omega_conf_to_dataclass(section)
    except (AssertionError, ValueError, NotImplementedError, HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"verl refuses these settings: {' '.join(str(error).split())}") from error


@torch.no_grad()
def load_result(policy: Policy, checkpoint: Path) -> None:
    """Load verl's weights into the policy's trained ones, as they are: verl's own merger rounds them to bfloat16.

    Args:
        checkpoint: verl's `actor` folder, with a file for each rank.

    Raises:
        EngineError: there is no such checkpoint, or it holds other weights.
    """
    files = sorted(checkpoint.glob("model_world_size_*.pt"), key=lambda file: int(file.stem.rpartition("_")[2]))
    if not files:
        raise EngineError(f"verl ended without {checkpoint}; its output above says why. Continue with --resume.")
    # not weights alone: shards are pickled with their place; mmap: all weights of all ranks
    shards = [torch.load(file, map_location="cpu", weights_only=False, mmap=True) for file in files]
    trained = policy.trainable_parameters()
    if lost := [name for name in trained if name not in shards[0]]:
        raise EngineError(f"{checkpoint} holds other weights than the model: without {', '.join(lost[:5])}")
    for name, parameter in trained.items():
        parameter.copy_(whole([shard[name] for shard in shards]))


def whole(shards: Sequence[Any]) -> torch.Tensor:
    """The tensor of which each rank has a shard."""
    first = shards[0]
    if not isinstance(first, DTensor):
        return first
    # ranks after the mesh's last dimension hold copies
    parts = [shard.to_local() for shard in shards[: first.device_mesh.mesh.shape[-1]]]
    place = first.placements[-1]
    return torch.cat(parts, place.dim) if isinstance(place, Shard) else parts[0]


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """The numbers of each step under verl's names, loss and validation under ours; of a repeated step, the last."""
    rows: dict[int, dict[str, Any]] = {}
    for path in sorted(folder.glob("metrics-*.jsonl")):  # one for each start
        for row in read_jsonl(path):
            numbers = {name: value for name, value in row["data"].items() if isinstance(value, int | float)}
            # files are in the order of the starts, so a step that was repeated after a resume replaces the lost one;
            # merged: a start begins with a row of the validation alone
            rows[row["step"]] = rows.get(row["step"], {"step": row["step"]}) | our_names(numbers) | numbers
    return [rows[step] for step in sorted(rows)]


def our_names(numbers: Mapping[str, float]) -> dict[str, float]:
    """Loss and validation KL (nats a token) of a row of verl's."""
    ours = {LOSS: numbers["actor/distillation/loss"]} if "actor/distillation/loss" in numbers else {}
    for name in VALIDATION:
        # means over completions, so their ratio is the mean over tokens
        total, tokens = (numbers.get(f"val-aux/{name}/{part}/mean@1") for part in ("kl", "tokens"))
        if total is not None and tokens:
            ours[name] = total / tokens
    return ours
