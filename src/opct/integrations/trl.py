"""OPCT in TRL's trainer: its `DistillationTrainer`, with a teacher's prompt for each prompt and the base as teacher.

TRL samples, sums the loss over the vocabulary in chunks, shards, logs and saves; here are the pairs and the teacher.
The loss of a batch is the mean over its tokens of KL(policy || base), as `loss.estimator: exact` with
`loss.reduction: token_mean` has it.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from accelerate.logging import get_logger
from accelerate.utils import DistributedType, fsdp2_prepare_model, is_peft_model
from peft import PeftModel
from transformers import PreTrainedModel
from trl import DistillationConfig, DistillationTrainer
from trl.trainer.utils import pad

from opct.data.builders.builtin import load_pairs
from opct.data.render import Renderer, render_pairs
from opct.data.tables import Source
from opct.errors import ConfigError, DataError, first_of, shown_faults
from opct.models.adapters import moved_base, split_weights
from opct.models.policy import context_length

log = get_logger(__name__)  # speaks in the first process alone


class OPCTTrainer(DistillationTrainer):
    """Trains on pairs; the teacher is the model before training: without its adapter, or a frozen copy.

    Args:
        model: a name, a folder, a loaded model, or a PEFT model, of which the teacher has no adapter at all.
        args: TRL's `DistillationConfig`; its defaults are reverse KL and one completion a prompt.
        train_dataset: pairs, as `opct.load_pairs` takes them: a `datasets.Dataset` with the columns `prompt` and
            `teacher_prompt`, a list of pairs or rows, a file, `builtin:NAME`.
        eval_dataset: pairs as well, also a dict of several; `evaluate` takes the same, or the name of one of them.
        options: `peft_config`, `callbacks`, `processing_class`, `optimizers`, `quantization_config`, as in TRL.

    Pairs with a turn that the policy answers itself, and pairs longer than the context (or `vllm_max_model_length`)
    with their completion, are left out, counted and named; no prompt is cut.

    Raises:
        ConfigError: what is trained would change the teacher, or the weights are sharded by DeepSpeed or FSDP1.
        DataError: the pairs are faulty, or none is left.
    """

    model: Any  # TRL has it, and the three below, of many types; here they are of one
    args: Any
    eval_dataset: Any
    chat_template_kwargs: Any

    def __init__(
        self,
        model: str | PreTrainedModel | PeftModel,
        args: DistillationConfig | None = None,
        train_dataset: Source | None = None,
        eval_dataset: Source | dict[str, Source] | None = None,
        **options: Any,
    ):
        super().__init__(model, None, args, train_dataset, eval_dataset, tools=None, **options)
        self.teacher_model = _Base(self.model) if is_peft_model(self.model) else self._frozen_copy()
        self._renderer = Renderer(self._tokenizer, self.chat_template_kwargs)
        self.train_dataset = None if train_dataset is None else self._rows(train_dataset)
        self.eval_dataset = self._sets(eval_dataset)

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        is_named = isinstance(eval_dataset, str) and eval_dataset in (self.eval_dataset or ())
        return super().evaluate(eval_dataset if is_named else self._sets(eval_dataset), *args, **kwargs)

    def _sets(self, source: Any) -> Any:
        if isinstance(source, dict):  # also what `datasets` has for several splits
            return {name: self._rows(of) for name, of in source.items()}
        return None if source is None else self._rows(source)

    def _frozen_copy(self) -> PreTrainedModel:
        kind = self.accelerator.distributed_type
        if kind == DistributedType.DEEPSPEED or (kind == DistributedType.FSDP and not self.accelerator.is_fsdp2):
            raise ConfigError(f"Full fine-tuning under {kind.value}: set fsdp_version: 2, or train an adapter.")
        teacher = copy.deepcopy(self.model).requires_grad_(False).eval()
        return fsdp2_prepare_model(self.accelerator, teacher) if self.accelerator.is_fsdp2 else teacher

    def _rows(self, source: Source) -> list[dict[str, Any]]:
        rendered, overlong = render_pairs(
            load_pairs(source),
            self._renderer,
            max_completion_tokens=self.max_completion_length or 0,
            context_length=self.args.vllm_max_model_length or context_length(self.model.config),
        )
        left_out = [f"{pair.pair_id}: {pair.tokens} of {pair.limit} tokens, completion included" for pair in overlong]
        left_out += [f"{row.pair.id}: a turn that the policy answers" for row in rendered if row.prompt_ids is None]
        rows = [row.pair.to_json() for row in rendered if row.prompt_ids is not None]
        if not rows:
            raise DataError(f"None of {len(left_out)} pairs can be trained on:", shown_faults(left_out))
        if left_out:
            log.warning("%s", "\n  ".join([f"left out: {len(left_out)} pair(s)", *shown_faults(left_out)]))
        return rows

    def _tokenize_prompts(self, prompts: list[Any]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [self._renderer.render(prompt) for prompt in prompts], None, {}

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        ids, _, _ = self._tokenize_prompts([row["teacher_prompt"] for row in inputs])
        rows = [torch.tensor(row, device=self.accelerator.device) for row in ids]
        batch["teacher_ids"] = pad(rows, padding_value=self._tokenizer.pad_token_id, padding_side="left")
        batch["teacher_mask"] = pad([torch.ones_like(row) for row in rows], padding_value=0, padding_side="left")
        return batch

    def _compute_loss(self, unwrapped_student: Any, inputs: dict[str, Any], num_items_in_batch: Any) -> Any:
        self._teacher_prompts = inputs["teacher_ids"], inputs["teacher_mask"]
        return super()._compute_loss(unwrapped_student, inputs, num_items_in_batch)

    def _get_last_hidden_state(self, unwrapped_model: Any, *inputs: Any, **kwargs: Any) -> torch.Tensor:
        if unwrapped_model is not self.teacher_model:
            return super()._get_last_hidden_state(unwrapped_model, *inputs, **kwargs)
        *whole, n = inputs  # ids and mask of [prompt, completion], and the completion's length
        whole = [torch.cat([new, old[:, -n:]], dim=1) for new, old in zip(self._teacher_prompts, whole, strict=True)]
        is_base = isinstance(unwrapped_model, _Base)
        with unwrapped_model.of_policy() if is_base else contextlib.nullcontext(unwrapped_model) as teacher:
            return super()._get_last_hidden_state(teacher, *whole, n)


class _Base(torch.nn.Module):
    """What TRL takes for a teacher: a PEFT model, as it is without its adapter."""

    def __init__(self, policy: PeftModel):
        super().__init__()
        weights = {**split_weights(policy)[0], "the output head": policy.get_output_embeddings().weight}
        if trained := [name for name, weight in weights.items() if weight.requires_grad]:
            raise ConfigError(
                f"peft_config: {first_of(trained)} would be trained in the teacher, too: leave it out, or freeze it."
            )
        if (init := moved_base(policy)) is not None:
            raise ConfigError(
                f"peft_config: init_lora_weights={init!r} changes the model, so the teacher: leave it out."
            )
        self.config, self.get_output_embeddings = policy.config, policy.get_output_embeddings
        # in a list: TRL calls `eval` of its teacher, which would end the training mode of a submodule, the policy
        self._policy = [policy]

    @contextlib.contextmanager
    def of_policy(self) -> Iterator[PeftModel]:
        [policy] = self._policy
        is_training = policy.training
        try:
            with policy.eval().disable_adapter():
                yield policy
        finally:
            policy.train(is_training)  # before the backward pass, whose recomputation must drop the same values
