"""From a config to the objects of a run: pairs, policy, teacher, method. Training and its plan both start here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from opct.config import LoraSettings, TrainConfig
from opct.data.pairs import ContrastivePair
from opct.data.render import Overlong, RenderedPair, render_pairs
from opct.data.training import TrainingPairs, batch_of, load_training_pairs, steps_per_epoch
from opct.errors import ConfigError, DataError, ModelError
from opct.methods import Method
from opct.models.policy import Policy
from opct.models.saved import read_adapter_config
from opct.models.teacher import Teacher, make_teacher
from opct.runs import RunDir


@dataclass
class Setup:
    """Everything a run needs that does not change while it trains, and the policy, which does."""

    config: TrainConfig
    data: TrainingPairs
    policy: Policy
    teacher: Teacher
    pairs: list[RenderedPair]
    anchors: list[RenderedPair]
    validation: list[RenderedPair]
    validation_anchors: list[RenderedPair]
    left_out: list[Overlong]

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        optim, data = self.config.optim, self.config.data
        if self.config.max_steps is not None:
            return self.config.max_steps
        fraction = data.anchor_fraction if self.anchors else 0.0
        per_epoch = steps_per_epoch(len(self.pairs), optim.prompts_per_step, fraction)
        return max(1, round(per_epoch * self.config.num_train_epochs))

    def batch(self, step: int) -> list[RenderedPair]:
        """The pairs of a step."""
        return batch_of(
            step,
            self.pairs,
            self.anchors,
            prompts_per_step=self.config.optim.prompts_per_step,
            anchor_fraction=self.config.data.anchor_fraction,
            seed=self.config.seed,
        )

    def visited(self) -> list[RenderedPair]:
        """The pairs that the run will train on, each once, in the order of their first step."""
        by_id = {rendered.pair.id: rendered for step in range(1, self.total_steps + 1) for rendered in self.batch(step)}
        return list(by_id.values())


def prepare(config: TrainConfig, *, recorded_dtype: str | None = None) -> Setup:
    """Load the pairs, then the model, and render the pairs with its template.

    Args:
        recorded_dtype: what `model.dtype: auto` stands for in a run that goes on, from its manifest.

    Raises:
        ConfigError: float16, in which training loses small gradients, or `lora` contradicts the adapter to continue
            from.
        DataError: the pairs are faulty, or none fits the model.
        ModelError: the model or the adapter to continue from cannot be loaded, or a part of it would not be trained.
    """
    if config.model.dtype == "float16":
        raise ConfigError(
            "model.dtype=float16 is for evaluation: small gradients are 0 in it, and nothing scales them here. Train "
            "in bfloat16 or float32."
        )
    data = load_training_pairs(config)
    adapter = adapter_folder(config.model.adapter)
    if adapter is not None and config.lora is None:
        raise ModelError(
            "model.adapter continues an adapter and lora: null trains every weight: leave one of them out."
        )
    if adapter is not None and config.lora is not None:
        _refuse_other_lora(adapter, config.lora)
    model = config.model.model_copy(update={"adapter": None})
    policy = Policy.load(
        model, lora=config.lora, adapter=adapter, trainable=True, seed=config.seed, recorded_dtype=recorded_dtype
    )
    _refuse_untrained_head(policy, config)
    teacher = make_teacher(policy, config.teacher, continued=adapter is not None)
    left_out: list[Overlong] = []

    def rendered(pairs: list[ContrastivePair]) -> list[RenderedPair]:
        kept, too_long = render_pairs(
            pairs,
            policy.renderer,
            max_completion_tokens=config.rollout.max_completion_tokens,
            context_length=policy.context_length,
        )
        left_out.extend(too_long)
        return kept

    pairs, anchors = rendered(data.pairs), rendered(data.anchors)
    validation, validation_anchors = rendered(data.validation), rendered(data.validation_anchors)
    if not pairs:
        raise DataError(
            f"All {len(data.pairs)} training pairs are longer than the model's context of {policy.context_length} "
            "tokens (completion included): use a model with a longer context or lower rollout.max_completion_tokens."
        )
    return Setup(config, data, policy, teacher, pairs, anchors, validation, validation_anchors, left_out)


def _refuse_untrained_head(policy: Policy, config: TrainConfig) -> None:
    """Scores are computed from the output head's weight as it stands, so nothing else of the head gets a gradient.

    Raises:
        ModelError: an adapter sits on the output head, or every weight is trained and the head has a bias.
    """
    if policy.has_adapter and any(p.requires_grad for p in policy.bare_model.get_output_embeddings().parameters()):
        targets = "" if config.lora is None else f" (lora.target_modules={config.lora.target_modules!r})"
        raise ModelError(
            f"The adapter reaches the output head of {policy.name}{targets}, which would not be trained: name other "
            "modules, or use all-linear, which leaves the head out."
        )
    if not policy.has_adapter and policy.head.bias is not None:
        raise ModelError(
            f"The output head of {policy.name} has a bias, which full fine-tuning here would not train: train an "
            "adapter instead (lora: {r: 16, alpha: 32})."
        )


def adapter_folder(adapter: str | None) -> Path | None:
    """The folder of a PEFT adapter: the path itself, or in the last checkpoint of a run directory."""
    if adapter is None:
        return None
    checkpoint = RunDir(adapter).latest_checkpoint()
    for path in (Path(adapter), *([checkpoint / "adapter"] if checkpoint else [])):
        if (path / "adapter_config.json").is_file():
            return path
    raise ModelError(
        f"model.adapter={adapter!r} is neither a PEFT adapter (no adapter_config.json) nor a run that trained one."
    )


def _refuse_other_lora(adapter: Path, lora: LoraSettings) -> None:
    """An adapter that training goes on from keeps its own rank, scale and dropout: the settings must not say otherwise.

    Raises:
        ConfigError: they do.
        ModelError: the adapter's own settings cannot be read.
    """
    saved = read_adapter_config(adapter)
    names = {"r": "r", "alpha": "lora_alpha", "dropout": "lora_dropout"}
    own = {name: saved[key] for name, key in names.items() if key in saved}
    other = [f"lora.{name} is {getattr(lora, name)}" for name in own if getattr(lora, name) != own[name]]
    if other:
        settings = ", ".join(f"{name}: {value}" for name, value in own.items())
        raise ConfigError(
            f"{', and '.join(other)}, which the adapter at {adapter} does not have: set lora: {{{settings}}}, or leave "
            "model.adapter out."
        )


def make_method(setup: Setup, run: RunDir, on_done=lambda n: None) -> Method:
    """The method that the config names; offline answers are made (or read) here, before the first step."""
    from opct.methods.offline import offline_answers
    from opct.methods.offpolicy import OffPolicy
    from opct.methods.opct import OPCT
    from opct.methods.sft import SFT

    policy, teacher, config = setup.policy, setup.teacher, setup.config
    if config.method == "opct":
        return OPCT(policy, teacher, config)
    answers = offline_answers(policy, teacher, setup.visited(), config, run, on_done)
    return SFT(policy, config, answers) if config.method == "sft" else OffPolicy(policy, teacher, config, answers)


def describe(setup: Setup) -> list[str]:
    """What a person should know before the run begins, a line each."""
    families = Counter(rendered.pair.family for rendered in setup.pairs)
    trainable = sum(p.numel() for p in setup.policy.trainable_parameters().values())
    total = sum(p.numel() for p in setup.policy.model.parameters())
    lines = [
        f"model: {setup.policy.name}, {total / 1e6:.1f} M parameters, {trainable / 1e6:.2f} M trained, "
        f"on {setup.policy.device}",
        f"dtype: {setup.policy.dtype_reason}",
        f"pairs: {len(setup.pairs)} in {len(families)} families and {len(setup.anchors)} identity pairs; held out for "
        f"validation {len(setup.validation)} and {len(setup.validation_anchors)}; {setup.total_steps} steps",
    ]
    if setup.left_out:
        shown = ", ".join(f"{o.pair_id} ({o.tokens} tokens)" for o in setup.left_out[:3])
        lines.append(
            f"left out: {len(setup.left_out)} pair(s) longer than {setup.left_out[0].limit} tokens with their "
            f"completion: {shown}"
        )
    return lines
