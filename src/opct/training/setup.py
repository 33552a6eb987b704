"""Builds the objects of a run from its settings: pairs first, then policy, teacher and engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from opct import distributed
from opct.config.schema import LoraSettings, OptimConfig, TrainConfig, settings_without_effect
from opct.data.builders.builtin import near_test_items
from opct.data.dataset import anchors_per_step, batch_of, load_training_pairs, steps_per_epoch, streams_of
from opct.data.pairs import ContrastivePair
from opct.data.render import Overlong, RenderedPair, render_pairs
from opct.errors import ConfigError, DataError, ModelError
from opct.methods.registry import METHODS
from opct.methods.rollouts import sampling
from opct.models.adapters import check_kind, coverage, read_adapter_config
from opct.models.from_run import adapter_folder, adapter_now
from opct.models.given import GivenModel
from opct.models.loading import load_model_config, load_renderer, make_renderer
from opct.models.memory import SMALLER_MODEL, enough_memory
from opct.models.policy import Policy, context_length
from opct.models.self_test import refuse_moved_start, self_test
from opct.models.teacher import Teacher, make_teacher
from opct.models.vllm import local
from opct.models.vllm.engine import Engine, check_engine
from opct.runs.console import WARNING, NullProgress, Progress
from opct.training.estimate import fit_memory


@dataclass
class TrainingData:
    """The pairs of a run, rendered with the model's template, and their order in the steps.

    Attributes:
        hashes: SHA-256 of each part of the data.
        left_out: pairs that do not fit the model's context.
    """

    config: TrainConfig
    hashes: dict[str, str]
    pairs: list[RenderedPair]
    anchors: list[RenderedPair]
    validation: list[RenderedPair]
    validation_anchors: list[RenderedPair]
    left_out: list[Overlong]

    @cached_property
    def streams(self) -> dict[str, list[RenderedPair]]:
        """The pairs grouped for sampling; see `streams_of`."""
        places = streams_of([rendered.pair.axis for rendered in self.pairs], self.config.data.balance_axes)
        return {name: [self.pairs[i] for i in chosen] for name, chosen in places.items()}

    @property
    def total_steps(self) -> int:
        if self.config.max_steps is not None:
            return self.config.max_steps
        return max(1, round(self.steps_per_epoch * self.config.num_train_epochs))

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which each pair is seen once."""
        fraction = self.config.data.anchor_fraction if self.anchors else 0.0
        return steps_per_epoch(self.streams, self.config.optim.prompts_per_step, fraction)

    @property
    def validation_steps(self) -> list[int]:
        """The steps after which the validation KL is measured: 0, every `eval_steps`, and the last."""
        if not self.validation and not self.validation_anchors:
            return []
        return self._every(self.config.eval_steps or max(1, -(-self.total_steps // 2)))

    @property
    def suite_steps(self) -> list[int]:
        """The steps after which the suites of `eval` are asked: 0, every `eval.steps`, and the last."""
        return [] if self.config.eval.steps is None else self._every(self.config.eval.steps)

    def _every(self, n: int) -> list[int]:
        return sorted({*range(0, self.total_steps + 1, n), self.total_steps})

    def batch(self, step: int) -> list[RenderedPair]:
        """The pairs of a step; one that stands there again is numbered, and so has other samples."""
        batch = batch_of(
            step,
            self.streams,
            self.anchors,
            prompts_per_step=self.config.optim.prompts_per_step,
            anchor_fraction=self.config.data.anchor_fraction,
            seed=self.config.seed,
        )
        seen: Counter[str] = Counter()
        for i, rendered in enumerate(batch):
            if rendered.pair.id in seen:
                batch[i] = replace(rendered, occurrence=seen[rendered.pair.id])
            seen[rendered.pair.id] += 1
        return batch

    def visited(self) -> list[RenderedPair]:
        """The pairs that the run trains on, each once, in the order of their first step."""
        steps = range(1, self.total_steps + 1)
        return list({r.pair.id: r for step in steps for r in self.batch(step) if not r.occurrence}.values())


@dataclass
class TrainingSetup:
    """Objects of a run: the policy, and everything that is constant during training.

    Attributes:
        micro_batch_tokens: the setting, or what `auto` chose.
        engine: samples for the policy; None if this process does.
        engine_distance: distance of the engine's log-probs from the policy's own, nats a token.
        warnings: of the self-test.
        given_model: what the policy was made of, where the caller had loaded it.
    """

    config: TrainConfig
    data: TrainingData
    policy: Policy
    teacher: Teacher
    micro_batch_tokens: int
    engine: Engine | None = None
    engine_distance: float = 0.0
    warnings: list[str] = field(default_factory=list)
    given_model: GivenModel | None = None

    def publish(self, step: int) -> None:
        """Send the policy's weights after `step` steps to the engine, unless it has them."""
        if self.engine is not None:
            self.engine.sync_weights(step)

    def rest_engine(self) -> None:
        """Let the engine give its memory back, until it is needed again."""
        if self.engine is not None:
            distributed.gather_or_raise(self.engine.backend.sleep)

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()


def load_data(
    config: TrainConfig, given: Sequence[ContrastivePair] | None = None, given_model: GivenModel | None = None
) -> TrainingData:
    """Read the pairs and render them with the model's template; no weights are loaded.

    Raises:
        DataError: the pairs are faulty, or none fits the model.
        ModelError: the model's tokenizer or configuration cannot be loaded.
    """
    read = load_training_pairs(config, given)
    if given_model is None:
        renderer = load_renderer(config.model, adapter_now(config.model.adapter))
        limit = context_length(load_model_config(config.model))
    else:
        renderer = make_renderer(given_model.tokenizer, config.model)
        limit = context_length(given_model.model.config)
    parts = (read.pairs, read.anchors, read.validation, read.validation_anchors)
    rendered_pairs, left_out = render_pairs(
        [pair for part in parts for pair in part],  # all at once, so that a fault is counted among all pairs
        renderer,
        max_completion_tokens=config.rollout.max_completion_tokens,
        # an engine scores by sampling one more token, which is thrown away
        context_length=limit - (config.teacher.engine == "rollout"),
    )
    by_id = {id(rendered.pair): rendered for rendered in rendered_pairs}
    pairs, anchors, validation, validation_anchors = (
        [by_id[id(pair)] for pair in part if id(pair) in by_id] for part in parts
    )
    data = TrainingData(config, read.hashes, pairs, anchors, validation, validation_anchors, left_out)
    if not data.pairs:
        raise DataError(
            f"All {len(read.pairs)} training pairs are longer than the model's context of {limit} tokens (completion "
            "included): use a model with a longer context or lower rollout.max_completion_tokens."
        )
    _refuse_lost_axes(config, read.pairs, data.pairs)
    return data


def build_setup(
    config: TrainConfig,
    given: Sequence[ContrastivePair] | None = None,
    *,
    given_model: GivenModel | None = None,
    before: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> TrainingSetup:
    """Load the pairs, then the model, and start the engine that samples.

    Args:
        given: see `load_training_pairs`.
        given_model: to be trained in place of the one that `config.model` names; it is changed.
        before: the manifest of a run that is resumed, with what `auto` chose for dtype and micro-batches.
        progress: told the memory that is needed, before the weights are loaded on an accelerator.

    Raises:
        ConfigError: float16, in which training loses small gradients, or `lora` contradicts the adapter to continue.
        DataError: the pairs are faulty, or none fits the model.
        ModelError: the model or the adapter to continue cannot be loaded, or a part of it would not be trained.
        EngineError: the engine that samples cannot be used.
        OutOfMemory: the accelerator does not hold the weights.
    """
    adapter, before = _check_model_settings(config), before or {}
    data = distributed.main_process_first(lambda _: load_data(config, given, given_model), None, lambda _: None)
    recorded, is_loaded = before.get("micro_batch_tokens"), given_model is not None
    tokens = fit_memory(config, data.pairs, progress or NullProgress(), recorded, is_loaded=is_loaded)
    tokens = min(distributed.all_gather_object(tokens))
    with enough_memory("the model was loaded", SMALLER_MODEL):
        policy = _load_policy(config, adapter, before.get("dtype"), given_model)
        # by vLLM the steps alone are sampled; suites and checks are by the policy itself
        policy.engine = "auto" if config.rollout.engine == "vllm" else config.rollout.engine
        _refuse_untrained_head(policy)
        if config.optim.gradient_checkpointing:
            policy.backbone.recompute_activations()  # before a teacher is copied: both then compute in the same way
        teacher = make_teacher(policy, config.teacher, continued=adapter is not None)
    setup = TrainingSetup(config, data, policy, teacher, tokens, given_model=given_model)
    setup.warnings = self_test(policy, pairs=[*data.pairs, *data.anchors, *data.validation, *data.validation_anchors])
    if policy.has_adapter and adapter is None:
        refuse_moved_start(policy)
    _start_engine(setup)
    return setup


def _check_model_settings(config: TrainConfig) -> Path | None:
    """The folder of the adapter to continue, if any."""
    if config.model.dtype == "float16":
        raise ConfigError(
            "model.dtype=float16 is for evaluation: small gradients are 0 in it, and nothing scales them here. Train "
            "in bfloat16 or float32."
        )
    if config.rollout.engine == "vllm":
        local.require_vllm()
    adapter = adapter_folder(config.model.adapter)
    if adapter is not None:
        if config.lora is None:
            raise ModelError("model.adapter continues an adapter, and lora: null trains every weight: leave one out.")
        check_kind(adapter)
        _refuse_other_lora(adapter, config.lora)
    return adapter


def _refuse_lost_axes(config: TrainConfig, pairs: list[ContrastivePair], rendered_pairs: list[RenderedPair]) -> None:
    """Raise DataError if steps are balanced over axes and no pair of one axis fits the model."""
    lost = {pair.axis for pair in pairs} - {rendered.pair.axis for rendered in rendered_pairs}
    if config.data.balance_axes and lost:
        raise DataError(
            f"No pair of {', '.join(sorted(lost))} fits the model's context (completion included), and "
            "data.balance_axes shares each step among all axes: use a model with a longer context, lower "
            "rollout.max_completion_tokens, or leave the axis out of data.pairs."
        )


def _start_engine(setup: TrainingSetup) -> None:
    """Start the sampling engine, and check that it serves the trained model. Raises EngineError or ConfigError where it
    cannot be used."""
    config, data, policy = setup.config, setup.data, setup.policy
    if config.rollout.engine != "vllm":
        return
    max_new_tokens = config.rollout.max_completion_tokens + 1
    everything = [*data.pairs, *data.anchors, *data.validation, *data.validation_anchors]
    sides = [side for r in everything for side in (r.prompt_ids, r.teacher_ids)]
    # the length of a prompt with open turns is not known yet
    longest = policy.context_length if None in sides else max(len(side or []) for side in sides) + max_new_tokens
    started = local.VllmEngine(policy, config, max_model_len=min(longest, policy.context_length))
    setup.engine = Engine(policy, started)
    try:
        setup.engine_distance = check_engine(
            setup.engine,
            policy,
            [r.teacher_ids for r in everything],
            sampling(config, policy),
            scores=config.teacher.engine == "rollout",
        )
    except BaseException:  # after Ctrl-C too, nothing may be left of an engine that holds a device
        setup.close()
        raise


def _load_policy(
    config: TrainConfig, adapter: Path | None, recorded_dtype: str | None, given_model: GivenModel | None
) -> Policy:
    """The policy on its device.

    The main process comes first: it alone downloads the model and chooses the dtype of `dtype: auto`.
    """
    model = config.model.model_copy(update={"adapter": None})

    def load(dtype: str | None) -> Policy:
        return Policy.load(
            model,
            lora=config.lora,
            adapter=adapter,
            trainable=True,
            seed=config.seed,
            recorded_dtype=dtype,
            thinking_tags=config.loss.thinking_tags,
            given=given_model,
        )

    return distributed.main_process_first(load, recorded_dtype, lambda p: str(p.dtype).removeprefix("torch."))


def _refuse_untrained_head(policy: Policy) -> None:
    """Raise ModelError for an output head whose bias is to be trained: scores have a gradient to its weight alone."""
    bias = policy.backbone.head.bias
    if bias is None or not bias.requires_grad:
        return
    what = "the adapter (bias in its adapter_config.json)" if policy.has_adapter else "full fine-tuning"
    raise ModelError(
        f"The output head of {policy.name} has a bias, which {what} here would not train: train an adapter without "
        "it (lora: {r: 16, alpha: 32})."
    )


def _refuse_other_lora(adapter: Path, lora: LoraSettings) -> None:
    """Raise ConfigError where `lora` differs from the adapter to continue, which keeps its own settings (ModelError:
    they cannot be read); its modules are in its weights."""
    saved = read_adapter_config(adapter)
    names = {name: name for name in LoraSettings.model_fields if name != "target_modules"}
    names |= {"alpha": "lora_alpha", "dropout": "lora_dropout"}
    existing = {name: saved[key] for name, key in names.items() if key in saved}

    def plain(value: Any) -> Any:  # PEFT writes a set in any order, and null for what is empty
        return sorted(value) if isinstance(value, list) else value or None

    given = {name: getattr(lora, name) for name in existing}
    other = [f"lora.{name} is {given[name]}" for name in existing if plain(given[name]) != plain(existing[name])]
    if other:
        settings = ", ".join(f"{name}: {value}" for name, value in existing.items() if value or name in ("r", "alpha"))
        raise ConfigError(
            f"{', and '.join(other)}, which the adapter at {adapter} does not have: set lora: {{{settings}}}, or leave "
            "model.adapter out."
        )


def _data_words(data: TrainingData) -> str:
    if METHODS[data.config.method].trained_by is not None:  # an attacker trains on one pair for each behavior
        return f"trains on {len(data.pairs)} behaviors, {data.config.optim.prompts_per_step} per step"
    n = len({rendered.pair.family for rendered in data.pairs})
    return (
        f"pairs: {len(data.pairs)} in {n} {'family' if n == 1 else 'families'} and {len(data.anchors)} identity pairs "
        f"({', '.join(data.config.data.anchors) or 'no anchors'}); "
        f"held out for the validation KL: {len(data.validation)} pairs, {len(data.validation_anchors)} identity pairs"
    )


def describe(setup: TrainingSetup) -> list[str]:
    """Lines to print before the run begins."""
    trainable = sum(p.numel() for p in setup.policy.trainable_parameters().values())
    total = setup.policy.backbone.bare_model.num_parameters()  # 4-bit weights are two in a byte
    processes = f", {distributed.size()} processes, data parallel" if distributed.launched() else ""
    lines = [
        f"model: {setup.policy.name}, {total / 1e6:.1f} M parameters, {trainable / 1e6:.2f} M trained, "
        f"on {setup.policy.device}{processes}",
        *filter(None, [coverage(setup.policy.model)]),
        f"dtype: {setup.policy.dtype_reason}",
    ]
    if setup.engine is not None:
        lines.append(
            f"samples: {setup.engine.backend.name}; its log-probs are {setup.engine_distance:.2g} nats a token from "
            "this model's"
        )
    return lines + describe_data(setup)


def describe_data(setup: TrainingSetup) -> list[str]:
    """The lines of `describe` that hold whatever trains: the pairs, and warnings about settings and pairs."""
    lines = [f"{_data_words(setup.data)}; {setup.data.total_steps} steps"]
    if left_out := setup.data.left_out:
        shown = ", ".join(f"{o.pair_id} ({o.tokens} tokens)" for o in left_out[:3])
        lines.append(
            f"left out: {len(left_out)} pair(s) longer than {left_out[0].limit} tokens with their completion: {shown}"
        )
    pairs = [rendered.pair for rendered in setup.data.visited()]
    warnings = [*setup.warnings, *settings_without_effect(setup.config)]
    warnings += _rate_warning(setup)
    warnings += near_test_items(pairs)
    data = setup.config.data
    if not setup.data.validation and data.validation_fraction and data.validation_size:
        remedy, n = "raise data.validation_fraction, or set validation_pairs", len(setup.data.streams)
        if data.validation_size < n:  # each axis gets the same whole number of them
            remedy = f"data.validation_size={data.validation_size} is less than one for each of {n} axes; raise it"
        warnings.append(f"no pair is held out, so there is no validation KL: {remedy}")
    optim, total = setup.config.optim, setup.data.total_steps
    if optim.warmup_steps >= total:
        warnings.append(
            f"optim.warmup_steps={optim.warmup_steps} of {total} steps: the rate never reaches "
            f"optim.learning_rate={optim.learning_rate:g}; lower warmup_steps"
        )
    size = optim.prompts_per_step
    if data.anchor_fraction and not (setup.data.anchors and anchors_per_step(size, data.anchor_fraction)):
        share = f"{data.anchor_fraction:g} of optim.prompts_per_step={size} rounds to 0"
        warnings.append(f"no step has an identity pair: {share if setup.data.anchors else 'all are too long'}")
    return lines + [WARNING + warning for warning in warnings]


def learning_rate_for(weights: int, *, lora: bool) -> float:
    """The learning rate to begin with for a model of so many weights.

    With LoRA: 4e-4 is measured with 135M weights. QLoRA takes 2e-4 for 7B and 1e-4 for 33B in thousands of steps
    (Dettmers et al. 2023, arXiv 2305.14314), the authors of OPCT 5e-6 for 4B to 30B; a run here has tens of steps.
    """
    if not lora:
        return 1e-5
    return 4e-4 if weights < 3 * 10**8 else 1e-4 if weights < 2 * 10**10 else 5e-5


def _rate_warning(setup: TrainingSetup) -> list[str]:
    """A learning rate of smaller models or of an adapter, whoever wrote it: a config of ours that got another model."""
    given, weights = setup.config.optim.learning_rate, setup.policy.backbone.bare_model.num_parameters()
    wanted = learning_rate_for(weights, lora=setup.config.lora is not None)
    # a small model may have a high rate that was measured with few adapted layers
    if wanted >= OptimConfig().learning_rate or given <= 3 * wanted:
        return []
    of = f"LoRA on {weights / 1e9:.1f}B weights" if setup.config.lora is not None else "training every weight"
    return [
        f"optim.learning_rate={given:g} is high for {of}: begin with {wanted:g}, and try a third and three times it on "
        "validation questions"
    ]
