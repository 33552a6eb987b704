"""The estimate against bytes of tensors that were counted: never below, at most a fifth above."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from opct.config.schema import MICRO_BATCH_TOKENS
from opct.methods.registry import METHODS
from opct.methods.rollouts import policy_rollouts, step_weights
from opct.models.inference import rows
from opct.models.plain_path import PlainPath
from opct.training import estimate
from opct.training.estimate import MARGIN, MemoryEstimate, estimate_memory, fit_memory
from opct.training.setup import build_setup, load_data
from tests.progress import Noted
from tests.tiny import tiny_family, tiny_tokenizer

BIG = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "initializer_range": 0.05}
DENSE = {"kind": "llama", **BIG, "tie_word_embeddings": True}
EXPERTS = {"kind": "qwen3_moe", **BIG, "num_experts": 32, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
EXPERTS |= {"head_dim": 8}
TOYS = {
    "dense": (DENSE, {"r": 8}, {}),
    "every weight": (DENSE, None, {}),
    "every weight, untied": (DENSE | {"tie_word_embeddings": False}, None, {}),
    "experts": (EXPERTS, {"r": 8}, {}),
    "adapted experts": (EXPERTS, {"r": 2, "target_parameters": ["mlp.experts.down_proj"]}, {}),
    "4bit": (DENSE, {"r": 8}, {"quantization": "4bit"}),
    "4bit, untied": (DENSE | {"tie_word_embeddings": False}, {"r": 8}, {"quantization": "4bit"}),
}


def bytes_of(tensors) -> int:
    """Each storage once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def weights_of(model) -> list[torch.Tensor]:
    """Parameters, with the scales of quantized ones."""
    found = list(model.parameters())
    for state in filter(None, (getattr(parameter, "quant_state", None) for parameter in model.parameters())):
        found += [t for s in (state, state.state2) for t in (s.absmax, s.code)] + [state.offset]
    return found


def keys_and_values(setup, batch, config, monkeypatch):
    """Most bytes of keys and values while these pairs are answered, and the answers."""
    most, original = [], rows.with_room

    def with_room(*arguments):
        cache = original(*arguments)
        most.append(bytes_of([t for layer in cache.layers for t in (layer.keys, layer.values)]))
        return cache

    monkeypatch.setattr(rows, "with_room", with_room)
    monkeypatch.setattr(setup.policy, "path", PlainPath(setup.policy.backbone))
    rollouts = policy_rollouts(setup.policy, batch, config, "step 1")
    monkeypatch.undo()
    return max(most), rollouts


@pytest.mark.parametrize("toy", TOYS)
def test_it_is_not_below_what_is_counted_nor_a_fifth_above(make_config, tmp_path, monkeypatch, toy):
    family, lora, model = TOYS[toy]
    AutoModelForCausalLM.from_config(tiny_family(**family)).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    model = {"name_or_path": str(tmp_path / "model"), "dtype": "bfloat16", **model}
    config = make_config(lora=lora, model=model, rollout={"num_generations": 1}, teacher={"kind": "base"})
    setup, kept, counted = build_setup(config), {}, {}
    with setup.teacher() as teacher:
        tensors = weights_of(setup.policy.model) + weights_of(teacher.model)
    counted["weights"] = bytes_of(tensors)
    counted["rollout"], rollouts = keys_and_values(setup, setup.data.batch(1), config, monkeypatch)
    at_weights = {t.untyped_storage().data_ptr() for t in tensors}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor  # the tensor: its memory must not be used again
        return tensor

    monkeypatch.setattr(estimate, "CHUNK_TOKENS", 0)  # logits are there for a moment: hooks do not see them
    method = METHODS["opct"](setup.policy, setup.teacher, config, None)
    setup.policy.backbone.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = method.loss(rollouts, step_weights(rollouts, "token")).loss
    counted["micro_batch"] = bytes_of([t for at, t in kept.items() if at not in at_weights])
    trained = list(setup.policy.trainable_parameters().values())
    loss.backward()
    optimizer = torch.optim.AdamW(trained)
    optimizer.step()
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    counted["trained"] = bytes_of([p.grad for p in trained] + moments)
    # a micro-batch that is full: rows with their padding
    full = len(rollouts) * max(len(one.prompt_ids) + len(one.ids) for one in rollouts)
    estimated = estimate_memory(config, setup.data.batch(1), full)
    named = {name: getattr(estimated, name) for name in counted} | {"weights": estimated.weights + estimated.teacher}
    ratios = {name: named[name] / counted[name] for name in counted}
    assert all(1 <= ratio <= 1.2 for ratio in ratios.values()), ratios
    peak = counted["weights"] + counted["trained"] + max(counted["micro_batch"], counted["rollout"])
    assert 1 <= estimated.peak / peak <= 1.2


@pytest.mark.parametrize("continued", [False, True], ids=["ema", "ema of every weight"])
def test_a_moving_teacher_is_a_copy_of_what_is_trained(make_config, continued):
    config = make_config(teacher={"kind": "ema"}, lora=None if continued else {"r": 4})
    setup = build_setup(config)
    with setup.teacher() as teacher:
        tensors = weights_of(setup.policy.model) + weights_of(teacher.model)
    estimated = estimate_memory(config, setup.data.pairs, 300)
    assert estimated.weights + estimated.teacher == bytes_of(tensors)


def test_auto_takes_the_most_that_fits():
    """1,536 doubled or halved, within the margin or at the smallest."""
    parts = {"weights": 4e9, "teacher": 0, "trained": 1e9, "loss": 1e9, "token": 2e6, "rollout": 1e9, "engine": 2e9}
    one = MemoryEstimate(**parts, micro_batch_tokens=MICRO_BATCH_TOKENS)
    tokens = []
    for free in (1e9, 11e9, 12e9, 16e9, 24e9, 80e9, 1e12):
        fitted = one.fitted(free)
        tokens.append(fitted.micro_batch_tokens)
        assert fitted.constant + fitted.micro_batch <= MARGIN * free or tokens[-1] == 192
        assert fitted.constant + fitted.micro_batch + fitted.token * tokens[-1] > MARGIN * free or tokens[-1] == 12288
    assert tokens == [192, 192, 384, 1536, 3072, 12288, 12288]


def test_auto_follows_free_memory_on_an_accelerator_alone_and_is_kept(make_config, monkeypatch):
    """Here the accelerator is one by name."""
    auto, given = (make_config(optim={"micro_batch_tokens": tokens}) for tokens in ("auto", 700))
    pairs = load_data(auto).pairs
    assert [fit_memory(config, pairs, Noted()) for config in (auto, given)] == [MICRO_BATCH_TOKENS, 700]
    monkeypatch.setattr(estimate, "choose_device", lambda name: torch.device("cuda"))
    for free, chosen in ((2**20, 192), (2**40, 12288)):
        monkeypatch.setattr(estimate, "free_memory", lambda device, free=free: free)
        noted = Noted()
        assert fit_memory(auto, pairs, noted) == chosen
        assert f"{chosen:,} tokens" in noted.lines[0]
        assert fit_memory(auto, pairs, Noted(), recorded=384) == 384
        assert fit_memory(given, pairs, Noted(), recorded=384) == 700
