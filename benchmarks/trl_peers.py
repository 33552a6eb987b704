"""The two trainers of TRL 1.16 that can be set up to compute OPCT.

`sdft`: SDFTTrainer. Its teacher `base` is the model before training, `distillation_alpha` 1 on full logits is the
reverse KL; its teacher prompt, made from a template with the prompt in it, is replaced by the pair's own.

`chunked`: DistillationTrainer, whose loss goes over the vocabulary in chunks, with pairs and the base as teacher:
`opct.integrations.trl.OPCTTrainer`.

Variants: `shipped` is TRL's own defaults (float32 weights, bf16 = True, gradient checkpointing); `autocast` has no
checkpointing and bfloat16 products also where TRL's own autocast does not reach (the losses of `chunked`, and sampling
under an adapter); `bf16` has the frozen weights in bfloat16 besides, so it is for LoRA alone.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # SDFTTrainer is marked experimental

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, PreTrainedTokenizerBase, TrainerCallback
from trl import DistillationConfig
from trl.experimental.sdft import SDFTConfig, SDFTTrainer

from benchmarks.phases import Phases, clock_of, teacher_or_policy
from benchmarks.workloads import Workload, make_pairs
from opct.data.render import Renderer
from opct.integrations.trl import OPCTTrainer
from opct.models.loading import resolve_model

if TYPE_CHECKING:
    from opct.data.pairs import ContrastivePair


class Autocast:
    """A mixin for trainers: bfloat16 products in the loss and while sampling, where `bf16_products` is set."""

    bf16_products = False

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> Any:
        if not self.bf16_products:
            return contextlib.nullcontext()
        return torch.autocast(self.args.device.type, torch.bfloat16, cache_enabled=bool(cache_enabled))


class SDFT(Autocast, SDFTTrainer):
    """SDFTTrainer with the pair's teacher prompt as it stands in the column `privileged_context`."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.teacher_context_builder._compose_teacher_prompt = lambda prompt, teacher_prompt: teacher_prompt

    def _generate_transformers(self, prompt_ids: list[list[int]]) -> Any:
        with self.autocast_smart_context_manager():
            return super()._generate_transformers(prompt_ids)


class Chunked(Autocast, OPCTTrainer):
    """OPCTTrainer, whose sampling is cast too."""

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        with self.autocast_smart_context_manager():
            return super()._generate_single_turn(*args, **kwargs)


def make_trainer(workload: Workload, cell: dict[str, Any]) -> SDFT | Chunked:
    """The trainer of a cell, over as many copies of the workload's batch as there are steps."""
    model, variant, training = resolve_model(cell["model"]), cell["variant"], cell["training"]
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left", truncation_side="left")
    pairs = make_pairs(Renderer(tokenizer), workload)
    _check_lengths(tokenizer, pairs, workload)
    if workload.rows % cell["micro_batch"]:
        raise SystemExit(f"{workload.rows} rows do not divide into micro-batches of {cell['micro_batch']}")
    if variant == "bf16" and training != "lora":
        raise SystemExit("bfloat16 weights lose the updates of full fine-tuning: the variant bf16 is for LoRA")
    output_dir = tempfile.mkdtemp(prefix="trl-peer-")
    atexit.register(shutil.rmtree, output_dir, ignore_errors=True)
    shared = {
        "output_dir": output_dir,
        "per_device_train_batch_size": cell["micro_batch"],
        "gradient_accumulation_steps": workload.rows // cell["micro_batch"],
        "max_steps": cell["steps"],
        "max_completion_length": workload.completion_tokens,
        "generation_kwargs": {"min_new_tokens": workload.completion_tokens},  # no stop token before the limit
        "learning_rate": 1e-5,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "bf16": cell["dtype"] == "bfloat16",
        "use_cpu": cell.get("device", "cpu") == "cpu",
        "shuffle_dataset": False,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "disable_dropout": True,
        "seed": 0,
    }
    if cell.get("engine") == "vllm":
        most = max(workload.prompt_tokens, workload.teacher_tokens) + workload.completion_tokens
        shared |= {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": most + 1}
        shared["generation_kwargs"] = {"ignore_eos": True}
    if variant != "shipped":
        shared["gradient_checkpointing"] = False
    adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    options = {"processing_class": tokenizer, "peft_config": adapter if training == "lora" else None}
    weights = {"dtype": "bfloat16" if variant == "bf16" else "float32"}
    make = {"sdft": _sdft, "chunked": _chunked}[cell["system"]]
    trainer = make(model, weights, workload, pairs, cell["steps"], shared, options)
    trainer.bf16_products = variant != "shipped" and cell["dtype"] == "bfloat16"
    return trainer


def _sdft(model, weights, workload: Workload, pairs, steps: int, shared, options) -> SDFT:
    rows = [{"prompt": list(p.prompt), "privileged_context": list(p.teacher_prompt)} for p in pairs]
    args = SDFTConfig(
        **shared,
        model_init_kwargs=weights,
        teacher_model_kind="base",
        generate_from_teacher=False,
        distillation_mode="full_logits",
        distillation_alpha=1.0,
        distillation_topk=None,
        distillation_is_clip=None,
        num_generations=workload.generations,
        max_prompt_length=None,
    )
    return SDFT(model=model, args=args, train_dataset=Dataset.from_list(rows * steps), **options)


def _chunked(model, weights, workload: Workload, pairs, steps: int, shared, options) -> Chunked:
    rows = [
        dataclasses.replace(pair, id=f"{pair.id}/{step}/{i}")
        for step in range(steps)
        for pair in pairs
        for i in range(workload.generations)
    ]
    args = DistillationConfig(**shared, model_init_kwargs=weights)
    return Chunked(model=model, args=args, train_dataset=rows, **options)


def _check_lengths(tokenizer: PreTrainedTokenizerBase, pairs: Sequence[ContrastivePair], workload: Workload) -> None:
    """Refuse prompts that TRL would tokenise to other lengths than the workload's."""
    for side, wanted in (("prompt", workload.prompt_tokens), ("teacher_prompt", workload.teacher_tokens)):
        texts = [list(getattr(pair, side)) for pair in pairs]
        ids = tokenizer.apply_chat_template(texts, add_generation_prompt=True, tokenize=True, return_dict=True)
        lengths = {len(row) for row in ids["input_ids"]}
        if lengths != {wanted}:
            raise SystemExit(f"{side}s have {sorted(lengths)} tokens for TRL, not {wanted}")


class _StepEnds(TrainerCallback):
    def __init__(self, phases: Phases):
        self._phases = phases

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._phases.end_step()
        self._phases.steps.clear()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._phases.end_step()


def time_steps(workload: Workload, cell: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each step and its phases. Where the loss is on full logits, the output head counts as the forward."""
    phases = Phases(clock_of(cell.get("device", "cpu")))
    phases.wrap(SDFT, "_prepare_training_batch", "rollout")
    phases.wrap(SDFT, "_forward_logits", teacher_or_policy)
    phases.wrap(Chunked, "_generate_and_score_completions", "rollout")
    phases.wrap(Chunked, "_get_last_hidden_state", teacher_or_policy)
    phases.wrap(torch.nn.utils, "clip_grad_norm_", "optimizer")
    phases.wrap(torch.optim.AdamW, "step", "optimizer")
    trainer = make_trainer(workload, cell)
    phases.wrap(trainer, "training_step", "loss_backward")
    trainer.add_callback(_StepEnds(phases))
    trainer.train()
    lengths = [row["completions/min_length"] for row in trainer.state.log_history if "completions/min_length" in row]
    if set(lengths) != {workload.completion_tokens}:
        raise SystemExit(f"completions have {lengths} tokens, not {workload.completion_tokens}")
    return {"steps": phases.steps}


def check_loss(workload: Workload, cell: dict[str, Any]) -> dict[str, Any]:
    """The loss of one step on the completions of the cell (by pair), before any update, and its gradient's norm."""
    trainer = make_trainer(workload, cell)
    given = [ids for i in range(workload.prompts) for ids in cell["completions"][f"{workload.name}/{i}"]]
    trainer._generate_transformers = lambda prompt_ids: (prompt_ids, given)
    trainer._generate_single_turn = lambda *args, **kwargs: given
    losses: list[float] = []
    compute = trainer.compute_loss

    def recorded(*args: Any, **kwargs: Any) -> torch.Tensor:
        loss = compute(*args, **kwargs)
        losses.append(float(loss.detach()))
        return loss

    trainer.compute_loss = recorded
    trainer.train()
    norms = [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]
    return {"loss": sum(losses), "grad_norm": norms[0]}
