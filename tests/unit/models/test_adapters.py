"""Adapters of PEFT: what they replace, which part of them is loaded, and which weights they reach."""

import functools
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_config, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, Qwen2Config

from opct.config.methods import TeacherConfig
from opct.config.schema import LoraSettings, ModelConfig
from opct.errors import ModelError
from opct.models.adapters import PREFIX, coverage, taking_off
from opct.models.from_run import adapter_folder, load_policy
from opct.models.inference.sampler import Completion, Sampling
from opct.models.loading import load_base
from opct.models.policy import Policy
from opct.models.self_test import self_test
from opct.models.teacher import make_teacher
from opct.runs.run_dir import RunDir
from opct.training.trainer import train
from tests.refusals import refused
from tests.tiny import move, tiny_family, tiny_tokenizer
from tests.unit.models.test_architectures import save_model
from tests.unit.training.conftest import NO_VALIDATION

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing`:FutureWarning",
    "ignore:Setting `save_embedding_layers`",
    "ignore:Adapter .default.",
)
IDS = [[1, 5, 9]], [[6, 7, 8]]
PLACES = ["q_proj", "v_proj"]


def model_config(folder: Path, dtype: str = "float32") -> ModelConfig:
    return ModelConfig(name_or_path=str(folder), dtype=dtype, device="cpu")


def save_family(folder: Path, kind: str = "qwen2", **settings) -> Path:
    """A tiny random model; Qwen 2 has biases on q, k and v."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(tiny_family(kind, **settings)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory) -> Path:
    return save_family(tmp_path_factory.mktemp("qwen2") / "base", tie_word_embeddings=False)


@pytest.fixture(scope="module")
def base_in(base_folder) -> Callable[[str], Policy]:
    """The model without an adapter, in a dtype."""
    return functools.cache(lambda dtype: Policy.load(model_config(base_folder, dtype=dtype)))


def save_adapter(base: Path, folder: Path, new_tokens: int = 0, **settings) -> Any:
    """An adapter that PEFT made and trained by some random numbers; returns its log-probs of `IDS`."""
    model = AutoModelForCausalLM.from_pretrained(base)
    model.resize_token_embeddings(model.config.vocab_size + new_tokens, mean_resizing=False)
    common = {"peft_type": "LORA", "r": 4, "target_modules": PLACES, "task_type": "CAUSAL_LM"}
    made = get_peft_model(model, get_peft_config(common | settings))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in made.parameters():
            if p.requires_grad:
                p.add_(0.1 * torch.randn(p.shape, generator=generator))
        made.eval().save_pretrained(folder)
        logits = made(input_ids=torch.tensor([[*IDS[0][0], *IDS[1][0]]])).logits[0, 2:-1]
    return logits.log_softmax(-1)[range(3), IDS[1][0]]


FOREIGN = {
    "biases": {"bias": "all"},
    "biases of LoRA": {"lora_bias": True},
    "tokens": {"trainable_token_indices": [5, 6, 7]},
    "whole modules": {"modules_to_save": ["norm", "embed_tokens"]},
    "the embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "DoRA": {"use_dora": True},
    "RS-LoRA": {"use_rslora": True},
    "patterns": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 1}},
    "the head": {"modules_to_save": ["lm_head"]},
    "vectors that layers share": {"peft_type": "VBLORA", "num_vectors": 8, "vector_length": 8},
}
IN_BFLOAT16 = ("DoRA", "whole modules")


@pytest.mark.parametrize(
    ("kind", "dtype"), [*((kind, "float32") for kind in FOREIGN), *((kind, "bfloat16") for kind in IN_BFLOAT16)]
)
def test_any_adapter_computes_as_in_peft_and_off_it_the_model_is_its_base(base_folder, base_in, tmp_path, kind, dtype):
    """Off it bit for bit, also the hash of the weights; the KL is that to a base loaded apart, in bfloat16 to
    rounding, as samples are those of the plain forward; saved and loaded it is the same, in float32 on any base."""
    expected = save_adapter(base_folder, tmp_path / "a", **FOREIGN[kind])
    config, close = model_config(base_folder, dtype=dtype), 1e-4 if dtype == "float32" else 0.2
    base, policy = base_in(dtype), Policy.load(config, adapter=tmp_path / "a", trainable=True)
    assert {p.dtype for p in policy.trainable_parameters().values()} == {torch.float32}
    found = policy.log_probs(*IDS)[0]
    torch.testing.assert_close(found, expected, rtol=close, atol=close)
    with policy.adapter_off():
        assert torch.equal(policy.log_probs(*IDS)[0], base.log_probs(*IDS)[0])
    assert torch.equal(policy.log_probs(*IDS)[0], found)
    assert policy.base_hash() == base.base_hash()
    assert policy.weights_hash() != base.weights_hash()
    prompt, reply = ({"role": "user", "content": "a question"},), Completion("", tuple(IDS[1][0]), "length", (), 3, 0)
    base.set_base(lambda: base)
    apart = policy.token_kl([prompt], [prompt], [reply], reference=base.base)
    [kl] = policy.token_kl([prompt], [prompt], [reply])
    assert kl == pytest.approx(apart[0], rel=0 if dtype == "float32" else 0.02, abs=0)
    assert max(apart[0]) > 1e-3
    [[drawn, _]] = policy.sample(IDS[0], [[0, 1]], Sampling(6))
    with policy.inference():
        logits = policy.model(torch.tensor([[*IDS[0][0], *drawn.token_ids]])).logits[0, 2:-1].float()
    plain = logits.log_softmax(-1)[range(len(drawn.token_ids)), list(drawn.token_ids)]
    torch.testing.assert_close(torch.tensor(drawn.logprobs), plain, rtol=0, atol=close)
    policy.save(tmp_path / "b")
    again = Policy.load(config, adapter=tmp_path / "b", trainable=True)
    assert again.weights_hash() == policy.weights_hash()
    assert torch.equal(again.log_probs(*IDS)[0], found)


@pytest.mark.parametrize(
    ("kind", "of"),
    [
        *((kind, {}) for kind in ("biases", "tokens", "whole modules", "the embedding")),
        ("biases", {"include_adapter": False}),
        ("whole modules", {"kind": "ema"}),
    ],
)
def test_the_teacher_of_an_adapter_that_is_continued_stays(base_folder, base_in, tmp_path: Path, kind: str, of: dict):
    """What it replaces is trained with it; the teacher is the adapter as it was, or the base, or their average."""
    save_adapter(base_folder, tmp_path / "a", **FOREIGN[kind])
    policy = Policy.load(model_config(base_folder), adapter=tmp_path / "a", trainable=True)
    of = TeacherConfig(**of)
    teacher = make_teacher(policy, of, continued=True)
    started, trained = policy.log_probs(*IDS)[0], policy.trainable_parameters()
    assert (kind == "biases") == any(name.endswith(".bias") for name in trained)
    bare = base_in("float32").log_probs(*IDS)[0]
    move(policy)
    moved = policy.log_probs(*IDS)[0]
    with teacher() as reference:
        assert torch.equal(reference.log_probs(*IDS)[0], started if of.include_adapter else bare)
    teacher.update()
    with teacher() as reference:
        assert torch.equal(reference.log_probs(*IDS)[0], started) == (of.kind == "base" and of.include_adapter)
    assert torch.equal(policy.log_probs(*IDS)[0], moved)
    assert set(policy.trainable_parameters()) == set(trained)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize(
    ("own", "tied"),
    [
        ({"modules_to_save": ["embed_tokens", "lm_head"]}, False),
        ({"modules_to_save": ["embed_tokens", "lm_head"]}, True),
        ({"trainable_token_indices": [5, 301]}, False),
        ({}, True),
    ],
)
def test_an_adapter_with_tokens_of_its_own_computes_as_in_peft(tmp_path: Path, own: dict, tied: bool):
    """PEFT then saves the embeddings as well, under several names; a checkpoint has them too."""
    base, tokenizer = save_family(tmp_path / "base", tie_word_embeddings=tied), tiny_tokenizer()
    expected = save_adapter(base, tmp_path / "a", new_tokens=2, **own)
    tokenizer.add_tokens(["<|new|>", "<|other|>"])
    tokenizer.save_pretrained(tmp_path / "a")
    policy = Policy.load(model_config(base), adapter=tmp_path / "a", trainable=True)
    torch.testing.assert_close(policy.log_probs(*IDS)[0], expected, rtol=1e-4, atol=1e-4)
    assert len(policy.model.get_input_embeddings().weight) == len(tokenizer)
    assert policy.renderer.render([{"role": "user", "content": "<|new|>"}]).count(len(tokenizer) - 2) == 1
    move(policy)
    policy.save(tmp_path / "b")
    again = Policy.load(model_config(base), adapter=tmp_path / "b", trainable=True)
    assert again.weights_hash() == policy.weights_hash()
    assert torch.equal(again.log_probs(*IDS)[0], policy.log_probs(*IDS)[0])


@pytest.mark.parametrize(
    ("own", "tied"), [({"target_modules": ["q_proj", "lm_head"]}, False), ({"trainable_token_indices": [5]}, True)]
)
def test_an_adapter_on_the_output_head_is_refused(tmp_path: Path, own: dict, tied: bool):
    """That of single tokens reaches the head where it is the embedding."""
    base = save_family(tmp_path / "base", tie_word_embeddings=tied)
    save_adapter(base, tmp_path / "a", **own)
    with refused(ModelError, "lm_head"):
        Policy.load(model_config(base), adapter=tmp_path / "a")


def edit(folder: Path, **settings) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def rewrite(folder: Path, change: Callable[[str, torch.Tensor], dict[str, torch.Tensor]]) -> None:
    """Replace each tensor of an adapter's file by what `change` makes of its name and numbers."""
    file, changed = folder / "adapter_model.safetensors", {}
    for name, tensor in load_file(file).items():
        changed |= change(name, tensor)
    save_file(changed, file, {"format": "pt"})


def spoil_number(folder: Path, value: float) -> None:
    rewrite(folder, lambda name, tensor: {name: tensor.fill_(value) if BROKEN[1] in name else tensor})


BROKEN = ("adapter_model.safetensors", "layers.1.self_attn.v_proj.lora_A", "fetch")
UNUSABLE = {
    "NaN": (lambda f: spoil_number(f, math.nan), BROKEN),
    "infinite": (lambda f: spoil_number(f, -math.inf), BROKEN),
    "aLoRA": (lambda f: edit(f, alora_invocation_tokens=[5]), ("alora_invocation_tokens", "without")),
    "AdaLoRA": (
        lambda f: edit(f, peft_type="ADALORA", rank_pattern={"q_proj": [True]}),
        ("ADALORA", "merge_and_unload"),
    ),
    "mean of a batch": (lambda f: edit(f, peft_type="LILY"), ("LILY", "LORA")),
    "taken from the base": (lambda f: edit(f, init_lora_weights="olora"), ("'olora'", "merge_and_unload")),
    "prompts": (lambda f: edit(f, peft_type="PREFIX_TUNING"), ("PREFIX_TUNING", "LORA")),
    "unknown": (lambda f: edit(f, peft_type="LORAX"), ("LORAX", "LORA,", "peft_type")),
    "no kind": (lambda f: edit(f, peft_type=None), ("LORA", "peft_type")),
    "fewer modules": (lambda f: edit(f, target_modules=["q_proj"]), ("v_proj.lora_A", "target_modules")),
    "one layer": (lambda f: edit(f, layers_to_transform=[0]), ("layers.1.", "layers_to_transform")),
    "lost weights": (lambda f: rewrite(f, lambda n, t: {} if BROKEN[1] in n else {n: t}), (BROKEN[1], "fetch")),
    "another rank": (lambda f: edit(f, r=8), ("q_proj", "rank_pattern")),
    "names without PEFT's prefix": (
        lambda f: rewrite(f, lambda n, t: {n.removeprefix(PREFIX): t}),
        (f"({PREFIX}model.layers", "(model.layers"),
    ),
}


@pytest.mark.parametrize("fault", UNUSABLE)
def test_an_adapter_that_cannot_be_computed_is_refused_with_the_reason(base_folder, tmp_path: Path, fault: str):
    spoil, named = UNUSABLE[fault]
    save_adapter(base_folder, tmp_path)
    spoil(tmp_path)
    with refused(ModelError, tmp_path, *named) as caught:
        Policy.load(model_config(base_folder), adapter=tmp_path)
    assert "\n" not in str(caught.value)


def test_a_model_is_put_back_with_the_biases_that_an_adapter_trained():
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 10}
    model = AutoModelForCausalLM.from_config(Qwen2Config(num_attention_heads=2, num_key_value_heads=2, **sizes))
    before, take_off = {name: x.clone() for name, x in model.state_dict().items()}, taking_off(model)
    adapted = get_peft_model(model, LoraConfig(target_modules=PLACES, bias="all"))
    with torch.no_grad():
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.add_(1)
    take_off()
    assert not hasattr(model, "peft_config")
    assert model.state_dict().keys() == before.keys()
    assert all(x.equal(before[name]) for name, x in model.state_dict().items())


def test_an_adapter_of_another_base_gives_a_warning(base_folder, tmp_path: Path):
    """None where only the path differs, or the folder says that it holds a model of that name."""
    save_adapter(base_folder, tmp_path / "a")
    other = Path(shutil.copytree(base_folder, tmp_path / "other"))
    moved = Path(shutil.copytree(base_folder, tmp_path / "elsewhere" / base_folder.name.upper()))

    def warnings(base: Path) -> list[str]:
        return self_test(Policy.load(model_config(base), adapter=tmp_path / "a"))

    [said] = warnings(other)
    assert all(str(path) in said for path in (tmp_path / "a", base_folder, other))
    assert warnings(base_folder) == warnings(moved) == []
    settings = json.loads((other / "config.json").read_text()) | {"_name_or_path": f"owner/{base_folder.name}"}
    (other / "config.json").write_text(json.dumps(settings))
    assert warnings(other) == []


def test_a_folder_of_adapters_names_them_and_one_on_another_says_to_merge(base_folder, tmp_path: Path):
    save_adapter(base_folder, tmp_path / "a" / "mine")
    for load in (load_policy, adapter_folder):
        with refused(ModelError, tmp_path / "a" / "mine"):
            load(str(tmp_path / "a"))
    shutil.copytree(tmp_path / "a" / "mine", tmp_path / "b")
    edit(tmp_path / "b", base_model_name_or_path=str(tmp_path / "a" / "mine"))
    with refused(ModelError, tmp_path / "a" / "mine", "merge_and_unload"):
        load_policy(str(tmp_path / "b"))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"hidden_size": 64}, ("q_proj", "[4, 32]", "[4, 64]")),
        ({"num_hidden_layers": 1}, ("layers.1.",)),
        ({"num_hidden_layers": 3}, ("layers.2.",)),
    ],
    ids=["another width", "fewer layers", "more layers"],
)
def test_an_adapter_of_another_model_names_both(base_folder, tmp_path: Path, settings: dict, named: tuple[str, ...]):
    save_adapter(base_folder, tmp_path / "a")
    other = save_family(tmp_path / "other", **settings)
    with refused(ModelError, *named, base_folder, other):
        Policy.load(model_config(other), adapter=tmp_path / "a")


def fresh(folder: Path, **settings) -> Policy:
    return Policy.load(model_config(folder), lora=LoraSettings(**{"r": 2} | settings), trainable=True)


@pytest.mark.parametrize(("name", "targets"), [("gemma4", PLACES), ("smolvlm", r".*\.[qv]_proj")])
def test_nothing_outside_the_text_model_has_an_adapter_whatever_is_named(tmp_path: Path, name: str, targets):
    """2 layers; their vision towers have a q_proj and v_proj as well. PEFT loads it into the same places."""
    save_model(name, tmp_path)
    policy = fresh(tmp_path, target_modules=targets)
    decoder = next(n for n, module in policy.backbone.bare_model.named_modules() if module is policy.backbone.decoder)
    policy.save(tmp_path / "a")
    loaded = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(tmp_path), tmp_path / "a")
    for model in (policy.model, loaded):
        places = [place for place, _ in model.named_parameters() if ".lora_A" in place]
        assert len(places) == 4
        assert all(place.startswith(f"{PREFIX}{decoder}.") for place in places)


def test_full_fine_tuning_trains_the_text_model_alone(tmp_path: Path):
    save_model("mistral3", tmp_path)
    model, _, _ = load_base(model_config(tmp_path), master_float32=True)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert not [name for name in trained if "vision" in name or "projector" in name]


EXPERTS = {
    "gpt_oss": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    "gemma4": ["experts.down_proj"],
    "nemotron_h": ["mixer.experts.up_proj"],
}


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_have_an_adapter_where_their_weights_are_named_and_a_run_says_so(tmp_path: Path, name: str):
    """It comes back as it was saved, off it is the base, and the names are those that the line without it gives."""
    save_model(name, tmp_path)
    said = coverage(fresh(tmp_path).model)
    assert all(weight in said.partition("lora.target_parameters: [")[2] for weight in EXPERTS[name])
    policy = fresh(tmp_path, target_parameters=EXPERTS[name])
    assert coverage(policy.model) != said
    bare = Policy.load(model_config(tmp_path)).log_probs(*IDS)[0]
    assert torch.equal(policy.log_probs(*IDS)[0], bare)
    move(policy, 0.05)
    moved = policy.log_probs(*IDS)[0]
    assert not torch.allclose(moved, bare, atol=1e-4)
    with policy.adapter_off():
        assert torch.equal(policy.log_probs(*IDS)[0], bare)
    policy.save(tmp_path / "a")
    again = Policy.load(model_config(tmp_path), adapter=tmp_path / "a")
    assert torch.equal(again.log_probs(*IDS)[0], moved)
    with pytest.raises(ModelError):
        fresh(tmp_path, target_parameters=["nowhere.at_all"])


NOISE = {
    "llama": {"attention_dropout": 0.5},
    "phi3": {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "pad_token_id": 0},
    "opt": {"dropout": 0.5, "attention_dropout": 0.5, "layerdrop": 0.5, "ffn_dim": 64, "word_embed_proj_dim": 32},
    "mixtral": {"router_jitter_noise": 0.5, "num_local_experts": 4, "num_experts_per_tok": 2},
}


@pytest.mark.parametrize("name", NOISE)
def test_a_model_draws_nothing_in_training(tmp_path: Path, name: str):
    """In its training mode its states are those of scoring, bit for bit, and so is the backward pass; also where
    activations are computed again."""
    save_family(tmp_path, name, **NOISE[name])

    def states(policy: Policy) -> torch.Tensor:
        hidden = policy.score(*IDS).hidden
        policy.model.zero_grad()
        (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
        return torch.cat(
            [hidden.detach().flatten(), *(p.grad.flatten() for p in policy.trainable_parameters().values())]
        )

    policy = fresh(tmp_path)
    move(policy, 0.02)
    expected = states(policy)
    policy.backbone.train()
    assert torch.equal(states(policy), expected)
    policy.backbone.eval()
    policy.backbone.recompute_activations()
    policy.backbone.train()
    assert torch.equal(states(policy), expected)
    assert not policy.backbone.has_dropout


def as_mxfp4(folder: Path) -> None:
    """Replace the experts' weights of a gpt-oss by random ones of four bits, as the hub has them."""
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.full((experts, outputs, inputs // 32), 124, dtype=torch.uint8)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    skipped = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": skipped}
    (folder / "config.json").write_text(json.dumps(config))


def test_weights_of_four_bits_are_made_whole_so_that_they_can_be_trained(make_config, tmp_path: Path):
    folder = tmp_path / "model"
    save_model("gpt_oss", folder)
    as_mxfp4(folder)
    experts = {"target_parameters": EXPERTS["gpt_oss"]}
    config = make_config(model={"name_or_path": str(folder)}, lora=experts, max_steps=1, data=NO_VALIDATION)
    assert train(config).step == 1
    policy = Policy.load(model_config(folder), adapter=RunDir(config.output_dir).latest_checkpoint() / "adapter")
    assert policy.quantization is None
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
