"""Every setting of a training run. Strict: an unknown key, a wrong type or a bad value is an error.

The defaults are the recommended settings of this project; the paper's are the presets of `opct.config.presets`.
Field names follow TRL, PEFT and Transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from opct.config.methods import LOSSES, MethodLoss, RolloutConfig, TeacherConfig, trainable
from opct.config.section import Section, nearest_of, setting_names

DEFAULT_MODEL = "smollm2-135m-instruct"
"""SmolLM2-135M-Instruct from the hub; without the hub, `Q4_MODEL`. Results and manifests name what it stood for."""
Q4_MODEL = "smollm2-135m-instruct-q4_1"
"""The same model quantized to Q4_1 and dequantized: a file on PyPI. Published results were measured on it."""

MICRO_BATCH_TOKENS = 1536
"""`optim.micro_batch_tokens: auto` on a CPU, where more saves little time, and for a model that was given loaded; on an
accelerator, what is doubled or halved."""

TEMPLATE_DATE = "2026-01-01"
"""The day that chat templates with a date are told, so that a prompt has the same tokens on every day."""


def _iso(date: str) -> str:
    datetime.fromisoformat(date)
    return date


class ModelConfig(Section):
    """Which chat model is trained, and how it is loaded."""

    name_or_path: str = Field(
        DEFAULT_MODEL,
        description="Hub id, local folder, .gguf file, the default `smollm2-135m-instruct`, or its quantized weights "
        "`smollm2-135m-instruct-q4_1`.",
    )
    revision: str | None = Field(None, description="Commit, tag or branch on the hub.")
    adapter: str | None = Field(None, description="Folder of a PEFT adapter to continue from (or a run directory).")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Dtype of the frozen base weights. `auto` times float32 and bfloat16 on this machine and takes the "
        "faster. A resumed or evaluated run keeps its dtype. Training refuses `float16`.",
    )
    device: str = Field("auto", description="`auto`, `cpu`, `cuda`, `cuda:1`, `mps`.")
    quantization: Literal["4bit", "8bit"] | None = Field(
        None,
        description="Load the frozen base with bitsandbytes: `4bit` (NF4, QLoRA) or `8bit` (LLM.int8). Train an "
        "adapter on it; needs `opct[quantization]`.",
    )
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2", "flex_attention"] | None = Field(
        None, description="Passed to transformers; null is its own choice. The last two need CUDA."
    )
    use_liger_kernel: bool = Field(
        False,
        description="Liger's kernels for norms, rotary embeddings and MLPs; needs CUDA and `opct[liger]`. The loss "
        "stays that of this package.",
    )
    chat_template_kwargs: dict[str, Any] = Field(
        {},
        description="Passed to the chat template of every prompt, such as `{enable_thinking: false}`. Evaluation, "
        "attack and chat of a run use its own.",
    )
    template_date: Annotated[str, AfterValidator(_iso)] = Field(
        TEMPLATE_DATE,
        description="The day that a chat template with a date (Llama 3.2, gpt-oss) is told instead of today's, so that "
        "a run, its evaluation and the base's have the same prompts on any day: `YYYY-MM-DD`.",
    )
    trust_remote_code: bool = Field(
        False, description="Run code that comes with the model. A run folder that is loaded cannot turn it on."
    )


class LoraSettings(Section):
    """A PEFT LoRA adapter. With `model.adapter`, these must match that adapter. `lora: null` trains every weight."""

    r: int = Field(16, ge=1, description="Rank.")
    alpha: int = Field(32, ge=1, description="Scale: the update is multiplied by alpha / r.")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="Dropout on the adapter's input. Off during rollouts and scoring by the teacher."
    )
    target_modules: str | list[str] = Field(
        "all-linear",
        description="As in PEFT. `all-linear`: attention, shared and dense layers; not the output head, experts, "
        "routers, or what PEFT refuses. No name reaches outside the text model.",
    )
    target_parameters: list[str] | None = Field(
        None,
        description="As in PEFT: weights to adapt by name, such as those of experts: "
        "`[mlp.experts.gate_up_proj, mlp.experts.down_proj]`. PEFT then builds all experts of a layer in each forward.",
    )
    exclude_modules: str | list[str] | None = Field(None, description="As in PEFT.")
    modules_to_save: list[str] | None = Field(
        None, description="As in PEFT: modules to train whole; the teacher keeps the original ones."
    )
    rank_pattern: dict[str, int] = Field({}, description="As in PEFT: other ranks by module name.")
    alpha_pattern: dict[str, int] = Field({}, description="As in PEFT: other alphas by module name.")
    use_rslora: bool = Field(False, description="As in PEFT: scale by alpha / sqrt(r) and not by alpha / r.")
    use_dora: bool = Field(False, description="As in PEFT: weight-decomposed LoRA; slower.")


class DataConfig(Section):
    """Which pairs are trained on."""

    pairs: list[str] = Field(
        ["builtin:sycophancy", "builtin:sycophancy_mixed"],
        min_length=1,
        description="JSONL files, dataset folders, `hf:owner/name` or `hf:owner/name@revision`, or "
        "`builtin:` and the name of an embedded set: `builtin:sycophancy`, `builtin:jailbreak` ...",
    )
    validation_pairs: list[str] = Field(
        [],
        description="Held-out pairs for the validation KL. Empty: the embedded validation split for embedded pairs, "
        "else `validation_fraction`.",
    )
    validation_fraction: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Share of questions (or pairs) held out; with `validation_pairs`, of anchor files alone.",
    )
    validation_size: int = Field(
        48, ge=0, description="Maximum number of held-out pairs for the validation KL; 0 turns it off."
    )
    anchors: list[str] = Field(
        ["builtin:benign", "builtin:context"],
        description="Identity pairs (prompt == teacher_prompt), same sources as `pairs`.",
    )
    # below 1: a step of identity pairs alone has nothing to learn
    anchor_fraction: float = Field(0.25, ge=0, lt=1, description="Share of identity pairs in every step.")
    max_pairs: int | None = Field(
        None, ge=1, description="Maximum number of pairs, chosen by seed; with `balance_axes`, equally many per axis."
    )
    balance_axes: bool = Field(
        False,
        description="Each step has equally many pairs of each axis in `pairs`; pairs of a small axis repeat sooner.",
    )
    train_on_evaluation_data: bool = Field(
        False, description="Also train on sets that are for evaluation only (SAGE-Eval). Do not report scores on these."
    )


class OptimConfig(Section):
    """AdamW and its schedule."""

    learning_rate: float = Field(4e-4, ge=0, description="Learning rate after the warm-up.")
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = Field(
        "linear", description="`linear` and `cosine` fall to 0 after the last step."
    )
    warmup_steps: int = Field(0, ge=0, description="Steps in which the rate rises from 0.")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="AdamW: decay of the first moment.")
    adam_beta2: float = Field(0.95, ge=0, lt=1, description="AdamW: decay of the second moment.")
    adam_epsilon: float = Field(1e-8, gt=0, description="AdamW: added to the denominator.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW, decoupled.")
    max_grad_norm: float | None = Field(1.0, gt=0, description="Gradient clipping; null turns it off.")
    gradient_checkpointing: bool = Field(
        False, description="Compute activations again in the backward pass: less memory, more time."
    )
    prompts_per_step: int = Field(24, ge=1, le=2**16, description="Pairs in one optimizer step.")
    micro_batch_tokens: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="Maximum tokens (padding included) in one forward pass. Prompts that completions share are "
        "counted apart. `auto`: 1536 on a CPU, where more takes memory and saves little time, and for a model that is "
        "given loaded; on an accelerator the largest of 192, 384 ... 12288 estimated to fit its free memory. It is "
        "halved while one of the first two steps runs out of memory. The gradient is the same to rounding; the "
        "manifest has the number, and a resumed run keeps it.",
    )

    @property
    def fixed_micro_batch_tokens(self) -> int:
        """`micro_batch_tokens`, whatever the free memory."""
        return MICRO_BATCH_TOKENS if self.micro_batch_tokens == "auto" else self.micro_batch_tokens


class VllmConfig(Section):
    """vLLM, where `rollout.engine` is `vllm`. A resumed run may change these."""

    gpu_memory_utilization: float = Field(
        0.3, gt=0, le=1, description="Share of the accelerator's memory that the engine takes."
    )
    max_num_seqs: int | None = Field(
        None, ge=1, description="Maximum completions sampled at once; null: vLLM's own choice."
    )
    enforce_eager: bool = Field(False, description="No CUDA graphs: starts sooner, takes less memory, samples slower.")
    enable_sleep_mode: bool = Field(
        False,
        description="Give the engine's memory back while the policy trains, on CUDA alone; its weights wait in this "
        "machine's memory.",
    )


class SuitesConfig(Section):
    """Evaluations on suites in the course of a training. A resumed run may change these."""

    steps: int | None = Field(
        None,
        ge=1,
        description="Steps between evaluations, also before the first step and after the last; null: none. "
        "(`eval_steps` are those between validation KLs.)",
    )
    suites: list[str] = Field(["sycophancy_short"], min_length=1, description="As `suites` of `opct eval`.")
    limit: int = Field(64, ge=1, description="Most questions, behaviors, facts, requests or problems of each suite.")
    settings: dict[str, Any] = Field(
        {},
        description="Other settings of `opct eval`, such as `{questions: mine.csv}`. `split` is `validation` unless it "
        "is set here, as the test split is for the end.",
    )


class StopConfig(Section):
    """When training stops itself."""

    divergence_factor: float = Field(
        10.0,
        gt=1,
        description="Stop when the training KL exceeds this times the largest validation or training KL of the first "
        "steps (`sft`, `dpo`, `act`: the training loss, against that of the first steps) ...",
    )
    divergence_patience: int = Field(3, ge=1, description="... for this number of steps in a row.")


class ParallelConfig(Section):
    """Several processes (torchrun, accelerate launch) train data parallel, each with the whole model."""

    timeout_s: int = Field(1800, ge=1, description="How long a process waits for the others.")


class VerlConfig(Section):
    """verl, where `engine` is `verl`. A resumed run may change these."""

    nodes: int = Field(
        1, ge=1, description="Machines that train and sample; the same number, maybe the same ones, serve the teacher."
    )
    gpus_per_node: int = Field(1, ge=1, description="GPUs of a machine that train and sample.")
    teacher_gpus_per_node: int = Field(
        1,
        ge=1,
        description="GPUs of a machine that serve the teacher; on a training machine if it has that many left.",
    )
    gpu_memory_utilization: float = Field(
        0.5, gt=0, le=1, description="Share of a GPU's memory for the sampler, which sleeps during an update."
    )
    teacher_gpu_memory_utilization: float = Field(
        0.8,
        gt=0,
        le=1,
        description="Share of a teacher's GPU for its server; the log-probs of a prompt take memory beside it.",
    )
    rollout: Literal["vllm", "sglang"] = Field("vllm", description="What samples, and scores for the teacher.")
    tensor_parallel: int = Field(1, ge=1, description="GPUs over which a copy of the sampler's model is split.")
    overrides: list[str] = Field(
        [], description="Other settings of verl as NAME=VALUE; they win over those that follow from this file."
    )


class TrainConfig(Section):
    """One training run."""

    method: str = Field("opct", description="Which algorithm: `opct`, `sft`, `offpolicy`, `dpo` or `act`.")
    engine: Literal["opct", "verl"] = Field("opct", description="What trains: this package, or verl on a Ray cluster.")
    output_dir: str = Field("runs/opct", description="The run directory.")
    seed: int = Field(
        0, ge=0, lt=2**32, description="Seed of everything random: adapter, order of pairs, samples, dropout."
    )
    max_steps: int | None = Field(
        None, ge=1, le=10**7, description="Optimizer steps; null: `num_train_epochs` over the pairs."
    )
    num_train_epochs: float = Field(1.0, gt=0, description="How often each pair is seen, if `max_steps` is null.")
    eval_steps: int | None = Field(
        None, ge=1, description="Steps between validation KLs; null: at the start, the middle and the end."
    )
    save_steps: int = Field(10, ge=1, description="Steps between checkpoints; one is always written at the end.")
    save_total_limit: int = Field(2, ge=1, description="Checkpoints kept, besides the best one.")
    report_to: list[str] = Field(
        [],
        description="Trackers known to accelerate: tensorboard, wandb, trackio, mlflow ... Each gets every step once, "
        "also when the run is resumed after a kill.",
    )
    model: ModelConfig = ModelConfig()
    lora: LoraSettings | None = LoraSettings()
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
    loss: SerializeAsAny[MethodLoss] = Field({}, validate_default=True)
    teacher: TeacherConfig = TeacherConfig()
    optim: OptimConfig = OptimConfig()
    eval: SuitesConfig = SuitesConfig()
    stop: StopConfig = StopConfig()
    vllm: VllmConfig = VllmConfig()
    parallel: ParallelConfig = ParallelConfig()
    verl: VerlConfig = VerlConfig()

    @property
    def teacher_is_base(self) -> bool:
        """True if the teacher is the base model without an adapter, the only one that an engine can serve."""
        return self.teacher.kind == "base" and (self.model.adapter is None or not self.teacher.include_adapter)

    @classmethod
    def known_names(cls, values: Mapping[str, Any]) -> list[str]:
        """The settings that there are with the method of these values."""
        section = LOSSES.get(str(values.get("method", cls.model_fields["method"].default)))
        others = [name for name in setting_names(cls) if section is None or not name.startswith("loss.")]
        return [*others, *(f"loss.{name}" for name in (section.model_fields if section else ()))]

    @classmethod
    def where_known(cls, name: str, values: Mapping[str, Any]) -> str | None:
        """The methods that have a setting of `loss` which that of these values has not."""
        section, _, setting = name.partition(".")
        methods = [method for method in trainable() if setting in LOSSES[method].model_fields]
        if section != "loss" or not methods:
            return None
        method = values.get("method", cls.model_fields["method"].default)
        return f"it is a setting of {', '.join(methods)}, and the method is {method}"

    @field_validator("method")
    @classmethod
    def _is_a_method(cls, name: str) -> str:
        if name not in LOSSES:
            raise ValueError(f"one of {', '.join(trainable())}{nearest_of(name, trainable())}")
        return name

    @field_validator("loss", mode="wrap")
    @classmethod
    def _of_the_method(cls, value: Any, any_method: Any, info: ValidationInfo) -> Any:
        """The section of the method, which stands before `loss` in the class and so is validated already."""
        section = LOSSES.get(info.data.get("method", ""))
        if section is None:  # the method is not valid, and that is the fault
            return value
        return section.model_validate_json(json.dumps(value)) if info.mode == "json" else section.model_validate(value)

    @model_validator(mode="after")
    def check_across_settings(self) -> TrainConfig:
        """Reject contradictory settings; the message has every fault, one per line."""
        faults = list(contradictions(self))
        if faults:
            raise ValueError("\n".join(faults))
        return self


ANY = "any value"
# setting, or section: (switch, value); it works with this value of the switch alone. Else it is warned of, and not
# refused, since the arms of an experiment share settings.
EFFECTIVE_WITH = {
    "num_train_epochs": ("max_steps", None),
    "loss.jsd_weight": ("loss.divergence", "jsd"),
    "loss.top_k": ("loss.estimator", "topk"),
    "teacher.ema_decay": ("teacher.kind", "ema"),
    "eval": ("eval.steps", ANY),
    "vllm": ("rollout.engine", "vllm"),
    "verl": ("engine", "verl"),
}


def settings_without_effect(config: TrainConfig) -> Iterator[str]:
    """Warnings about settings that another setting turns off; one that has its default is not named."""
    given = flat_settings(config.model_dump(mode="json"))
    defaults = flat_settings(type(config)(method=config.method).model_dump(mode="json"))
    for name, (switch, value) in EFFECTIVE_WITH.items():
        now = given.get(switch, value)
        has_effect = now is not None if value is ANY else now == value
        if has_effect:
            continue
        for key in given:
            if (key == name or key.startswith(f"{name}.")) and given[key] != defaults.get(key):
                state, needed = "null" if now is None else now, "" if value is ANY else f": {value or 'null'}"
                yield (
                    f"{key}={json.dumps(given[key])} has no effect, since {switch} is {state}: set {switch}{needed}, "
                    f"or leave {key} out"
                )


def contradictions(config: TrainConfig) -> Iterator[str]:
    """Settings that contradict each other."""
    engine, teacher = config.rollout.engine, config.teacher
    yield from config.loss.faults(config.rollout, teacher, teacher_is_base=config.teacher_is_base)
    if engine == "vllm" and config.lora is None:
        yield (
            "rollout.engine=vllm with lora: null: only an adapter can be sent to it after each step; train one "
            "(lora: {r: 16, alpha: 32}) or use rollout.engine: auto"
        )
    if config.model.quantization is not None and config.lora is None:
        yield (
            f"model.quantization={config.model.quantization} with lora: null: quantized weights cannot be trained; "
            "train an adapter (lora: {r: 16, alpha: 32}) or leave model.quantization out"
        )
    if config.model.quantization is not None and engine == "vllm":
        yield (
            f"model.quantization={config.model.quantization} with rollout.engine=vllm: the engine would sample "
            "from the weights before quantization, since it has no bitsandbytes; use rollout.engine: auto"
        )
    for name in ("use_dora", "modules_to_save", "target_parameters"):
        if engine == "vllm" and config.lora is not None and getattr(config.lora, name):
            yield (
                f"lora.{name} with rollout.engine=vllm: vLLM serves LoRA of linear layers alone; leave it out, or use "
                "rollout.engine: auto"
            )
    if teacher.engine == "in_process":
        return
    if engine != "vllm":
        yield "teacher.engine=rollout needs an engine: set rollout.engine to vllm"
    if not config.teacher_is_base:
        also = "" if config.model.adapter is None else " and model.adapter"
        yield (
            f"teacher.engine=rollout with teacher.kind={teacher.kind}{also}: the engine scores without the adapter; "
            "use teacher.kind: base without model.adapter (or with teacher.include_adapter: false), or "
            "teacher.engine: in_process"
        )


BUDGET = (
    "max_steps",
    "num_train_epochs",
    "optim.prompts_per_step",
    "rollout.num_generations",
    "rollout.max_completion_tokens",
    "data.pairs",
    "data.validation_pairs",
    "data.validation_fraction",
    "data.anchors",
    "data.anchor_fraction",
    "data.max_pairs",
    "data.balance_axes",
    "model.name_or_path",
    "model.revision",
    "lora",
)
"""Settings that arms must share for a fair comparison: an experiment refuses arms that differ in one, a report warns.

`lora` is the whole section. The learning rate may differ by method.
"""
LENGTH = ("max_steps", "num_train_epochs")
"""The subset that only sets the number of steps."""


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name: {"tasks": {"a": {"seed": 0}}} is {"tasks.a.seed": 0}."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def budget_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The value of each setting of `BUDGET`; a section is a dict, a missing setting None.

    With `max_steps`, `num_train_epochs` has no effect and is None.

    Args:
        settings: by dotted name, as returned by `flat_settings`.
    """
    budget: dict[str, Any] = {}
    for name in BUDGET:
        section = {key.removeprefix(f"{name}."): value for key, value in settings.items() if key.startswith(f"{name}.")}
        value = budget[name] = section or settings.get(name)
        if isinstance(value, Mapping):  # `lora`: a run of an earlier version has fewer settings
            budget[name] = flat_settings(LoraSettings().model_dump()) | flat_settings(value)
    if budget["max_steps"] is not None:
        budget["num_train_epochs"] = None
    return budget
