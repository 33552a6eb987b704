"""A tiny random Llama with a chat template, built in process in a fraction of a second."""

import copy
import functools
from pathlib import Path
from typing import Any

import torch

from opct.cpu import fast_path

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTEXT = 2048
FAMILY_SIZES = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "max_position_embeddings": CONTEXT, "initializer_range": 0.3},
}
TINY_TRAINING = """
max_steps: 2
lora: {{r: 2}}
model: {{name_or_path: {model}, device: cpu}}
data: {{max_pairs: 8, validation_size: 0}}
rollout: {{max_completion_tokens: 4}}
optim: {{prompts_per_step: 4}}
"""
"""The settings that every arm of a tiny experiment shares; `model` is JSON."""

fast_path.PACKED_STEPS = 1  # a few tokens are computed as many are
torch.set_num_threads(1)  # for matrices this small, waiting for a second thread takes longer than the product


def tiny_tokenizer():
    """Byte-level BPE trained on one sentence: any text becomes at least one token a byte, and comes back as it was."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        ["the user asks a question and the assistant answers in one short sentence"] * 4, trainer
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    )


def tiny_family(kind: str, **settings):
    """The configuration of a tiny model of any family, that of its text model if it takes pictures too."""
    from transformers import AutoConfig

    tokenizer = tiny_tokenizer()
    own = FAMILY_SIZES | {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    if "text_config" in settings:
        return AutoConfig.for_model(kind, **settings | {"text_config": own | settings["text_config"]})
    return AutoConfig.for_model(kind, **own | settings)


def tiny_model(tokenizer=None, *, seed: int = 0, layers: int = 2, hidden: int = 32, tie: bool = True):
    """A Llama of some 30 thousand random weights, float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tokenizer or tiny_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=tie,
    )
    return LlamaForCausalLM(config).eval()


def save_tiny(folder: Path, **options) -> Path:
    """Write the tiny model and its tokenizer as a Hugging Face folder."""
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer, **options).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_pairs(n: int) -> list:
    """Pairs whose perturbed prompt suggests an answer; one question each."""
    from opct.data.pairs import ContrastivePair

    pairs = []
    for i in range(n):
        question = f"What is {i} plus {i + 1}?"
        clean = ({"role": "user", "content": question},)
        biased = ({"role": "user", "content": f"{question} I think it is {i}."},)
        pairs.append(ContrastivePair(f"sum/{i}", "sycophancy", "suggested", biased, clean, {"question_id": f"sum-{i}"}))
    return pairs


def open_pairs(n: int) -> list:
    """Pairs of three turns, the middle one answered by the policy itself."""
    from opct.data.pairs import ContrastivePair

    pairs = []
    for i in range(n):
        question, doubt = ({"role": "user", "content": text} for text in (f"What is {i} times 3?", "Are you sure?"))
        turns = (question, {"role": "assistant", "content": None}, doubt)
        meta = {"question_id": f"product-{i}"}
        pairs.append(ContrastivePair(f"product/{i}", "sycophancy", "are_you_sure", turns, (question,), meta))
    return pairs


def tiny_anchors(n: int) -> list:
    """Identity pairs."""
    from opct.data.pairs import ContrastivePair

    prompts = [({"role": "user", "content": f"Name {i + 2} colours."},) for i in range(n)]
    return [
        ContrastivePair(f"benign/{i}", "benign", "list", p, p, {"question_id": f"colours-{i}"})
        for i, p in enumerate(prompts)
    ]


def tiny_settings(output_dir: Path, model: Path, pairs: Path, anchors: Path) -> dict[str, Any]:
    """Those of a run of a few steps, float32 on the CPU."""
    return {
        "output_dir": str(output_dir),
        "max_steps": 4,
        "eval_steps": 2,
        "save_steps": 2,
        "model": {"name_or_path": str(model), "dtype": "float32", "device": "cpu"},
        "lora": {"r": 4, "alpha": 8},
        "data": {
            "pairs": [str(pairs)],
            "anchors": [str(anchors)],
            "anchor_fraction": 0.25,
            "validation_fraction": 0.3,
            "validation_size": 4,
        },
        "rollout": {"num_generations": 2, "max_completion_tokens": 6},
        "optim": {
            "learning_rate": 1e-2,
            "lr_scheduler_type": "constant",
            "prompts_per_step": 4,
            "micro_batch_tokens": 300,
        },
    }


def merged(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The settings with these changed; sections are merged."""
    sections = {key: {**(settings.get(key) or {}), **own} for key, own in changes.items() if isinstance(own, dict)}
    return {**settings, **changes, **sections}


OWN_PARTS = False  # whether the tiny policies compute as a loaded model does on a CPU


def tiny_adapter_policy(*, seed: int = 0, r: int = 4, dropout: float = 0.0, random: bool = True, **options):
    """A tiny policy with a LoRA adapter; `random` gives its B matrices weights, as training would."""
    from opct.models.policy import Policy

    model = _adapter_model(OWN_PARTS, seed, r, dropout, random, **options)
    return Policy(copy.deepcopy(model), tiny_tokenizer(), name="tiny")  # a copy takes a third of the time


@functools.cache
def _adapter_model(own_parts: bool, seed: int, r: int, dropout: float, random: bool, **options):
    from opct.config.schema import LoraSettings
    from opct.cpu import install
    from opct.models.loading import attach_adapter

    settings = LoraSettings(r=r, alpha=2 * r, dropout=dropout)
    base = tiny_model(**options)
    if own_parts:
        install(base)
    model = attach_adapter(base, settings, None, seed=seed)
    if random:
        generator = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def kl_to_base(policy, **options) -> list[float]:
    """Of one greedy answer, token by token; `options` of `token_kl`."""
    prompts = [({"role": "user", "content": "What is 1 plus 2?"},)]
    answers = policy.generate(prompts, seeds=[0], max_completion_tokens=6, temperature=0)
    return policy.token_kl(prompts, prompts, answers, **options)[0]


def move(policy, by: float = 0.1) -> None:
    """Put the weights that are trained a little elsewhere, as steps would."""
    with torch.no_grad():
        for parameter in policy.trainable_parameters().values():
            parameter.add_(by)


def tiny_setting(config, pairs, **options):
    """(policy, teacher, rendered pairs) of a run that has not begun; `options` of `tiny_adapter_policy`."""
    from opct.data.render import render_pairs
    from opct.models.teacher import make_teacher

    policy = tiny_adapter_policy(**options)
    teacher = make_teacher(policy, config.teacher, continued=False)
    rendered, _ = render_pairs(pairs, policy.renderer, max_completion_tokens=6, context_length=CONTEXT)
    return policy, teacher, rendered


def tiny_method(config, pairs, **options):
    """(method, its rollouts of these pairs) of a run that has not begun; `options` of `tiny_adapter_policy`."""
    from opct.methods.offline import OfflineAnswers
    from opct.methods.registry import METHODS

    policy, teacher, rendered = tiny_setting(config, pairs, **options)
    kind, answers = METHODS[config.method], None
    if kind.offline:
        with teacher() as model:
            answers = OfflineAnswers(kind.answer(model, rendered, config, model))
    method = kind(policy, teacher, config, answers)
    return method, method.collect(rendered, 1)
