"""A chat model that samples and scores: the policy in training, the target of an evaluation or a chat."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opct import losses
from opct.config.schema import LoraSettings, ModelConfig
from opct.data.pairs import Message
from opct.data.render import Renderer
from opct.errors import ModelError
from opct.models import loading
from opct.models.adapters import (
    TRAINED_ADAPTER,
    active_weights,
    brings_embeddings,
    check_kind,
    fingerprint,
    other_base,
    split_weights,
    taking_off,
)
from opct.models.backbone import Backbone
from opct.models.given import GivenModel
from opct.models.inference.continuous import (
    has_flash_attention,
    sample_continuously,
    tokens_in_memory,
    why_not_continuous,
)
from opct.models.inference.sampler import (
    ROLLOUT_TOKENS,
    UNSUPPORTED,
    Completion,
    Sampling,
    check_room,
    sample,
    tokens_at_once,
)
from opct.models.memory import SMALLER_MODEL, enough_memory
from opct.models.plain_path import path_of
from opct.models.scoring import Scores, tokenwise

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

Likeliest = list[tuple[int, float]]
"""Token ids with their probabilities, likeliest first."""
CONTINUOUS = "continuous_batching"
LESS_SAMPLING = (
    "rollout.engine=in_process with a smaller rollout.batch_tokens, or a smaller batch_size of an evaluation",
    "fewer rollout.num_generations",
    SMALLER_MODEL,
)
SCORING_TOKENS = 8192  # most tokens, padding included, in one forward that keeps no gradient


def context_length(config: PreTrainedConfig) -> int:
    """Most tokens of a prompt and its completion."""
    return int(getattr(config.get_text_config(), "max_position_embeddings", 0) or 2**31)


class Policy:
    """A chat model with its tokenizer, possibly with a LoRA adapter.

    Attributes:
        backbone: the network.
        path: how sampling and scoring run it.
        model: the transformers model, or the PEFT model around it.
        dtype: of matrix products.
        renderer: turns chat messages into token ids.
        dtype_reason: why matrix products run in `dtype`.
        engine: what samples, as `rollout.engine` says, which training sets.
        warnings: of what looked wrong when it was loaded, which the self-test gives.
        saved: the checkpoint that it was saved as at the end of its training, its `weights_hash` then, and the hashes
            of the checkpoint's files; None of any other policy.
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str = "model",
        dtype: torch.dtype | None = None,
        dtype_reason: str = "of the weights",
        renderer: Renderer | None = None,
        chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    ):
        self.tokenizer, self.name, self.dtype_reason = tokenizer, name, dtype_reason
        self.renderer = renderer or Renderer(tokenizer, chat_template_kwargs)
        configs = model.config, model.config.get_text_config(), model.generation_config
        stops = loading.stop_tokens_of(self.renderer, *configs)
        self.backbone = Backbone(model, dtype=dtype, stop_ids=stops)
        self.model, self.has_adapter, self.dtype = self.backbone.model, self.backbone.has_adapter, self.backbone.dtype
        self.path, self._family = path_of(self.backbone), self.backbone.bare_model.config.model_type
        self.context_length = context_length(self.backbone.decoder.config)
        self.engine = "auto"
        self.warnings: list[str] = []
        self.saved: tuple[Path, str, dict[str, str]] | None = None
        self._load_untrained: Callable[[], Policy] | None = None
        self._base_hash: tuple[Any, str] = None, ""

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    @property
    def quantization(self) -> str | None:
        """How the base was quantized: "4bit" or "8bit" by bitsandbytes, else the method's name; None if it was not."""
        config = getattr(self.model.config, "quantization_config", None)
        if config is None:
            return None
        return loading.bits_of(self.model) or str(getattr(config, "quant_method", "unknown"))

    @classmethod
    def load(
        cls,
        config: ModelConfig | str | None = None,
        *,
        lora: LoraSettings | None = None,
        adapter: str | Path | None = None,
        trainable: bool = False,
        seed: int = 0,
        recorded_dtype: str | None = None,
        thinking_tags: tuple[str, str] | None = None,
        given: GivenModel | None = None,
    ) -> Policy:
        """Load a model by hub id, folder, GGUF file, or the name of the default; an adapter then names its base.

        Args:
            config: a `ModelConfig`, or just the name.
            lora: attach a fresh adapter with these settings.
            adapter: attach the adapter saved in this folder instead; `config.adapter` by default.
            trainable: with neither, keep float32 weights that can be trained.
            seed: of a fresh adapter.
            recorded_dtype: what `dtype: auto` chose when the run began, from its manifest.
            thinking_tags: of a reasoning block; by default those that the chat template names.
            given: the model and tokenizer, which are loaded; `config` describes them.

        Raises:
            ModelError: the model, its tokenizer or the adapter cannot be loaded, or has no chat template that takes
                `config.chat_template_kwargs`.
        """
        if not isinstance(config, ModelConfig):
            config = ModelConfig() if config is None else ModelConfig(name_or_path=config)
        loading.choose_device(config.device)  # refused before anything is loaded
        adapter = adapter or config.adapter
        folder = None if adapter is None else Path(adapter)
        full = trainable and lora is None and adapter is None
        if folder is not None:
            check_kind(folder)  # refused before weights are loaded
        if given is None:
            config = loading.with_weights(config)
            renderer = loading.load_renderer(config, folder, thinking_tags)  # refused before weights are loaded
            model, dtype, why = loading.load_base(config, master_float32=full, recorded_dtype=recorded_dtype)
        else:
            renderer = loading.make_renderer(given.tokenizer, config, thinking_tags)
            dtype, why = given.dtype, f"{given.dtype}, that of the loaded model".removeprefix("torch.")
            model = loading.make_ready(given.model, config, master_float32=full)
        with loading.cannot_load(f"model.name_or_path={config.name_or_path!r}"):
            loading.fit_vocabulary(config, renderer.tokenizer, model, folder)
        if lora is not None or adapter is not None:
            if given is not None:
                given.take_off = taking_off(model)  # before: PEFT may fail halfway
            model = loading.attach_adapter(model, lora, folder, seed=seed)
            adapter_config = model.peft_config[TRAINED_ADAPTER]
            adapter_config.base_model_name_or_path, adapter_config.revision = loading.base_of(config)
        with loading.cannot_load(f"model.name_or_path={config.name_or_path!r}"):
            name = config.name_or_path
            policy = cls(model, renderer.tokenizer, name=name, dtype=dtype, dtype_reason=why, renderer=renderer)
        if folder is not None:
            policy.warnings = other_base(folder, name, loading.base_of(config)[0])
        return policy

    # -- contexts

    def inference(self) -> contextlib.AbstractContextManager[None]:
        """No gradient, no dropout."""
        return self.backbone.inference()

    @contextlib.contextmanager
    def adapter_off(self) -> Iterator[Policy]:
        """The model without its adapter; the model itself where it has none."""
        with self.backbone.adapter_off():
            yield self

    @property
    def has_base(self) -> bool:
        """True where `base` is another model than this one."""
        return self.has_adapter or self._load_untrained is not None

    def set_base(self, load_untrained: Callable[[], Policy]) -> None:
        """Set how to load the model that this one was fully fine-tuned from, once it is needed."""
        self._load_untrained = functools.cache(load_untrained)

    def base(self) -> contextlib.AbstractContextManager[Policy]:
        """The model before training: without its adapter, or what it was fully fine-tuned from, or itself."""
        if self.has_adapter or self._load_untrained is None:
            return self.adapter_off()
        return contextlib.nullcontext(self._load_untrained())

    # -- answers

    def generate(
        self,
        prompts: Sequence[Sequence[Message]],
        *,
        seeds: Sequence[int] | Sequence[Sequence[int]],
        max_completion_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        batch_tokens: int | None = None,
        on_completions: Callable[[list[tuple[int, Completion]]], None] = lambda finished: None,
    ) -> list[Completion]:
        """Answer each prompt; a prompt with a list of seeds gets an answer for each, one after another.

        The same weights, prompt and seed give the same answer in any batch, to the rounding of `dtype`.

        Args:
            batch_tokens: see `sample`; None for `tokens_at_once`.
            on_completions: called with (index of the prompt, answer) of those that have just finished.

        Raises:
            DataError: a prompt is no list of messages.
            ModelError: a prompt does not fit the model's context, or there are not as many seeds as prompts.
        """
        if len(seeds) != len(prompts):
            raise ModelError(f"{len(prompts)} prompts and {len(seeds)} seeds: give a seed, or a list, for each prompt.")
        ids = [self.renderer.render(prompt) for prompt in prompts]
        sampling = Sampling(max_completion_tokens, temperature, top_p, top_k)
        per_prompt = [[int(s)] if isinstance(s, int | Integral) else list(map(int, s)) for s in seeds]  # also numpy's
        budget = batch_tokens or tokens_at_once(self.backbone.bare_model.config)
        groups = self.sample(ids, per_prompt, sampling, batch_tokens=budget, on_completions=on_completions)
        return [completion for group in groups for completion in group]

    def generation_defaults(self) -> dict[str, Any]:
        """`temperature`, `top_p` and `top_k` as the model's generation_config has them; temperature 0 is greedy.

        They are used only if passed on: `generate(..., **policy.generation_defaults())`.

        Raises:
            ModelError: it asks for a penalty or filter that the sampler does not have.
        """
        config = self.backbone.bare_model.generation_config
        settings = {key: getattr(config, key, None) for key in UNSUPPORTED}
        beyond = {key: value for key, value in settings.items() if value not in (None, UNSUPPORTED[key])}
        if beyond:
            raise ModelError(
                f"The generation_config of {self.name} sets {beyond}, which the sampler here does not have: give "
                "temperature, top_p and top_k yourself."
            )
        off = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
        if not config.do_sample:
            return off | {"temperature": 0.0}
        return off | {key: getattr(config, key) for key in off if getattr(config, key) is not None}

    def sample(
        self,
        prompt_ids: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        *,
        batch_tokens: int = ROLLOUT_TOKENS,
        on_done: Callable[[int], None] = lambda n: None,
        on_completions: Callable[[list[tuple[int, Completion]]], None] = lambda finished: None,
    ) -> list[list[Completion]]:
        """As `generate`, for prompts that are token ids; one list of completions a prompt."""
        check_room(prompt_ids, sampling, self.context_length, self.name)
        shown: dict[str, Any] = {"decode": self.renderer.decode, "on_done": on_done, "on_completions": on_completions}
        with enough_memory("answers were sampled", *LESS_SAMPLING):
            if self.batches_continuously:
                return sample_continuously(self.backbone, prompt_ids, seeds, sampling, **shown)
            if self.engine == "auto" and self.is_accelerated:
                batch_tokens = max(batch_tokens, tokens_in_memory(self.backbone))
            return sample(self.path, prompt_ids, seeds, sampling, batch_tokens=batch_tokens, **shown)

    @property
    def is_accelerated(self) -> bool:
        """Whether the model is on a CUDA device."""
        return self.device.type == "cuda"

    @property
    def batches_continuously(self) -> bool:
        """Whether transformers' continuous batching samples. Raises ModelError where it was asked for, and cannot be
        used with this model."""
        if self.engine == "auto":
            return self.is_accelerated and self._why_not_continuous() is None
        if self.engine == CONTINUOUS and (reason := self.backbone.ask(why_not_continuous)) is not None:
            raise ModelError(f"rollout.engine={CONTINUOUS} with {self.name} ({self._family}): {reason}")
        return self.engine == CONTINUOUS

    def _why_not_continuous(self) -> str | None:
        if not has_flash_attention():
            return "flash attention is not installed (pip install flash-attn --no-build-isolation)"
        return self.backbone.ask(why_not_continuous)

    def slow_reasons(self, generations: int) -> list[str]:
        """What runs slower than it could, one line each, where each prompt has this many completions."""
        reasons = self.path.slow_reasons(generations)
        if self.engine == "auto" and self.is_accelerated and (reason := self._why_not_continuous()) is not None:
            reasons.append(f"{self._family} is sampled by in_process: {reason}")
        return reasons

    # -- scores

    def score(self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]]) -> Scores:
        """The hidden states that predict each completion token after its prompt; gradient as the caller has it."""
        with self.backbone.autocast():
            hidden = self.path.hidden(prompt_ids, completion_ids)
        tokens = torch.tensor([t for c in completion_ids for t in c], device=self.device)
        return Scores(hidden, tokens, self.backbone.head, tuple(map(len, completion_ids)))

    def log_probs(self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]]) -> list[Tensor]:
        """Log-prob of each completion token (nats), one tensor of [tokens] a completion, without gradient."""
        return self._scored(
            prompt_ids,
            completion_ids,
            lambda rows: tokenwise(losses.token_log_probs, self._score_rows(prompt_ids, completion_ids, rows)),
        )

    def option_logprobs(
        self, prompts: Sequence[Sequence[Message]], options: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """Sum of the log-probs of each option's tokens as the beginning of the reply (nats); one list a prompt.

        The output head runs in float32: in bfloat16 the logits of likely options are often equal to the last bit.
        """
        prompt_ids, option_ids = [], []
        for prompt, choices in zip(prompts, options, strict=True):
            ids = self.renderer.render(prompt)
            for choice in choices:
                prompt_ids.append(ids)
                # without special tokens: a BOS would be scored as the option's first token
                option_ids.append(list(self.tokenizer(choice, add_special_tokens=False)["input_ids"]))
        head = dataclasses.replace(self.backbone.head, compute_dtype=torch.float32)

        def compute(rows: list[int]) -> Tensor:
            scores = self._score_rows(prompt_ids, option_ids, rows)
            return tokenwise(losses.token_log_probs, dataclasses.replace(scores, head=head))

        flat = iter(self._scored(prompt_ids, option_ids, compute))
        return [[float(x.sum()) for x in itertools.islice(flat, len(choices))] for choices in options]

    def token_kl(
        self,
        prompts: Sequence[Sequence[Message]],
        reference_prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        *,
        reference: Callable[[], contextlib.AbstractContextManager[Policy]] | None = None,
    ) -> list[list[float]]:
        """KL(this model | prompt || reference | reference_prompt) for each completion token, in nats.

        Args:
            reference: gives a context with the reference model, as a teacher does; by default `base`.
        """
        ids, reference_ids = ([self.renderer.render(p) for p in of] for of in (prompts, reference_prompts))
        return self.reverse_kl(ids, reference_ids, [c.token_ids for c in completions], reference or self.base)

    def kl_and_likeliest(
        self,
        prompts: Sequence[Sequence[Message]],
        reference_prompts: Sequence[Sequence[Message]],
        completions: Sequence[Completion],
        k: int,
    ) -> list[tuple[list[float], list[tuple[Likeliest, Likeliest]]]]:
        """`token_kl` to the base; and at each token the k likeliest ones of this model, and of the base. Both come from
        one pass of each model.
        """

        def compared(ours: Tensor, theirs: Tensor) -> Tensor:
            kl = losses.reverse_kl(ours, theirs).unsqueeze(-1)
            return torch.cat([kl, losses.likeliest(ours, k), losses.likeliest(theirs, k)], -1)

        def listed(values: list[float]) -> Likeliest:
            return list(zip(map(int, values[:k]), values[k:], strict=True))

        ids, reference_ids = ([self.renderer.render(p) for p in of] for of in (prompts, reference_prompts))
        tokens = [c.token_ids for c in completions]
        rows = [x.tolist() for x in self._compared(ids, reference_ids, tokens, self.base, compared)]
        half = 1 + 2 * k
        return [([v[0] for v in of], [(listed(v[1:half]), listed(v[half:])) for v in of]) for of in rows]

    def reverse_kl(
        self,
        ids: Sequence[Sequence[int]],
        reference_ids: Sequence[Sequence[int]],
        tokens: Sequence[Sequence[int]],
        reference: Callable[[], contextlib.AbstractContextManager[Policy]],
    ) -> list[list[float]]:
        """As `token_kl`, for prompts and completions that are token ids."""
        return [x.tolist() for x in self._compared(ids, reference_ids, tokens, reference, losses.reverse_kl)]

    def _compared(
        self, ids, reference_ids, tokens, reference, function: Callable[[Tensor, Tensor], Tensor]
    ) -> list[Tensor]:
        """`function` of this model's logits and the reference's at each token, one tensor a completion."""

        def compute(rows: list[int]) -> Tensor:
            # left before the policy is scored: with an adapter both are one model
            with reference() as model, torch.no_grad():
                theirs = model._score_rows(reference_ids, tokens, rows)
            return tokenwise(function, self._score_rows(ids, tokens, rows), theirs)

        # both sides compute the same rows, so the longer prompt sizes the batch
        widths = [max(map(len, pair)) for pair in zip(ids, reference_ids, strict=True)]
        return self._scored(reference_ids, tokens, compute, widths)

    def _score_rows(self, prompt_ids, completion_ids, rows: list[int]) -> Scores:
        return self.score([prompt_ids[i] for i in rows], [completion_ids[i] for i in rows])

    def _scored(
        self, prompt_ids, completion_ids, compute: Callable[[list[int]], Tensor], widths: Sequence[int] | None = None
    ) -> list[Tensor]:
        """`compute` in batches of rows.

        Args:
            widths: tokens of the longest prompt that `compute` uses for each row; by default those of `prompt_ids`.
        """
        results: list[Tensor] = [torch.empty(0)] * len(prompt_ids)
        lengths, widths = [len(c) for c in completion_ids], widths or list(map(len, prompt_ids))
        with self.inference(), enough_memory("answers were scored", "shorter prompts and answers", SMALLER_MODEL):
            for rows in self.path.batches(prompt_ids, widths, [[n] for n in lengths], SCORING_TOKENS):
                for i, value in zip(rows, compute(rows).split([lengths[i] for i in rows]), strict=True):
                    results[i] = value
        return results

    # -- weights

    def trainable_parameters(self) -> dict[str, torch.nn.Parameter]:
        """The trained parameters by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def base_hash(self) -> str:
        """A hash of the weights without any adapter; computed again once they have changed."""
        now = [fingerprint(weight) for weight in split_weights(self.model)[0].values()]
        if self._base_hash[0] != now or not self.has_adapter:  # a sum of bytes may stay where weights change
            self._base_hash = now, loading.base_hash(self.model)
        return self._base_hash[1]

    def weights_hash(self) -> str:
        """A hash of the weights: the base's and, if there is an adapter and it is on, the active one's."""
        if self.backbone.is_base:
            return self.base_hash()
        base, adapter = split_weights(self.model)[0], active_weights(self.model)
        adapter |= {name: base[name] for name in getattr(self.model, "replaced_weights", {})}
        return f"{self.base_hash()}+{loading.weights_hash(adapter.items())}"

    def frozen_copy(self, *, master_float32: bool) -> Policy:
        """A copy that is not trained and scores bit for bit as this model does now.

        Matrix products round their weights to the compute dtype anyway, so the copy keeps them in it, unless they are
        to be averaged in float32. Embeddings and norms keep their dtype.
        """
        copied = copy.deepcopy(self.model).requires_grad_(False).eval()
        if not master_float32:
            # a head tied to the embeddings: rounding it would change what the first layer reads
            shared = {id(module.weight) for module in copied.modules() if isinstance(module, torch.nn.Embedding)}
            for module in copied.modules():
                if isinstance(module, torch.nn.Linear) and id(module.weight) not in shared:
                    module.to(self.dtype)
        policy = Policy(
            copied,
            self.tokenizer,
            name=self.name,
            dtype=self.dtype,
            dtype_reason=self.dtype_reason,
            renderer=self.renderer,
        )
        policy.engine = self.engine
        return policy

    def save(self, folder: Path) -> None:
        """Write the adapter (PEFT format), or the whole model, with its tokenizer and chat template."""
        if self.has_adapter:
            self.save_adapter(folder, embeddings=brings_embeddings(self.model))
        else:
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def save_adapter(self, folder: Path, *, embeddings: bool = False) -> None:
        """Write the active adapter alone, or with the embeddings of the model, as PEFT does where tokens were added.
        Raises ModelError where not one adapter is active."""
        active = self.model.active_adapters if self.has_adapter else []
        if len(active) != 1:
            raise ModelError(
                f"{self.name} has {len(active)} active adapters, and a folder holds one: of several, "
                "set_adapter(NAME) chooses one; a model without is saved whole (save)."
            )
        # True or False: by itself, PEFT asks the hub whether the embeddings were resized
        self.model.save_pretrained(folder, selected_adapters=active, save_embedding_layers=embeddings)
        if active != [TRAINED_ADAPTER]:  # PEFT writes any other into a folder of its name inside
            shutil.copytree(Path(folder) / active[0], folder, dirs_exist_ok=True)
            shutil.rmtree(Path(folder) / active[0])
