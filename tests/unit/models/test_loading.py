"""Loading: names, devices, dtypes, adapters, heads."""

from __future__ import annotations

import json
import pickle
import shutil
import socket
import sys
import types
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from opct.config.schema import DEFAULT_MODEL, LoraSettings, ModelConfig
from opct.cpu.fused_lora import unfused_reason
from opct.data.tables import hub_or_cache
from opct.errors import ModelError
from opct.models import loading
from opct.models.backbone import find_head
from opct.models.inference.token_sampling import Sampling
from opct.models.loading import attach_adapter, check_model_name, load_tokenizer
from opct.models.policy import Policy
from tests.tiny import save_tiny, tiny_adapter_policy, tiny_model, tiny_tokenizer


def model_config(folder: Path, dtype: str = "float32", **options) -> ModelConfig:
    return ModelConfig(name_or_path=str(folder), dtype=dtype, device="cpu", **options)


def test_resolve_model(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(loading, "smollm2_q4", lambda: Path("/cache/smol"))
    monkeypatch.setattr(loading, "convert_gguf", lambda path: Path("/cache") / path.stem)
    assert loading.resolve_model("smollm2-135m-instruct-q4_1") == "/cache/smol"
    (tmp_path / "x.gguf").touch()
    assert loading.resolve_model(str(tmp_path / "x.gguf")) == "/cache/x"
    monkeypatch.setattr(loading, "hub_problem", lambda: None)
    assert loading.resolve_model("owner/name") == "owner/name"


def test_devices_that_are_not_there_are_refused_with_their_name():
    assert loading.choose_device("cpu") == torch.device("cpu")
    assert isinstance(loading.choose_device("auto"), torch.device)
    for name in ("abacus", "cuda:99"):
        with pytest.raises(ModelError, match=f"model.device='{name}' cannot be used here"):
            loading.choose_device(name)


@pytest.mark.parametrize(
    ("times_s", "dtype", "words"),
    [
        ((1.0, 0.5), torch.bfloat16, "2"),
        ((1.0, 0.9), torch.float32, "1.1"),
        ((1.0, 170.0), torch.float32, "0.0059"),
    ],
)
def test_auto_takes_bfloat16_where_it_is_clearly_faster_and_says_by_how_much(monkeypatch, times_s, dtype, words):
    """2 times faster is clear, 1.1 times is not."""
    by_dtype = dict(zip((torch.float32, torch.bfloat16), times_s, strict=True))
    monkeypatch.setattr(loading, "_matmul_time_s", lambda dtype, device, hidden_size: by_dtype[dtype])
    chosen, why = loading.choose_dtype("auto", torch.device("cpu"), 32)
    assert chosen == dtype
    assert f"bfloat16 products have {words} times the speed of float32 on this machine" in why
    by_dtype.clear()
    assert loading.choose_dtype("bfloat16", torch.device("cpu"), 32) == (torch.bfloat16, "bfloat16, as configured")


def test_the_probe_is_short_where_a_product_is_slow(monkeypatch):
    """5 products of a millisecond, or one of 0.3 s; on a CPU none of more than [256, 512] x [512, 2048]."""
    now, step, shapes = [0.0], [0.001], []

    class Product(torch.Tensor):
        def __matmul__(self, other):
            shapes.append((*self.shape, *other.shape))
            now[0] += step[0]
            return torch.zeros(1, 1)

    monkeypatch.setattr(loading.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch, "ones", lambda *shape, **_: torch.zeros(*shape).as_subclass(Product))
    assert loading._matmul_time_s(torch.float32, torch.device("cpu"), 4096) == pytest.approx(0.001)
    step[0] = 0.3
    assert loading._matmul_time_s(torch.bfloat16, torch.device("cpu"), 64) == pytest.approx(0.3)
    assert shapes == [(256, 512, 512, 2048)] * 5 + [(256, 64, 64, 256)]


def test_full_fine_tuning_keeps_float32_weights(tiny_folder: Path):
    model, dtype, _ = loading.load_base(model_config(tiny_folder, "bfloat16"), master_float32=True)
    assert dtype == torch.bfloat16
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not model.training


def test_a_fresh_adapter_follows_from_its_seed_and_changes_nothing(tiny_folder: Path):
    base = [loading.load_base(model_config(tiny_folder), master_float32=False)[0] for _ in range(3)]
    with torch.no_grad():
        bare = base[0](torch.tensor([[1, 5]])).logits
    models = [attach_adapter(b, LoraSettings(r=2), None, seed=s) for b, s in zip(base, (3, 3, 4), strict=True)]
    weights = [loading.weights_hash((n, p) for n, p in m.named_parameters() if p.requires_grad) for m in models]
    assert weights[0] == weights[1] != weights[2]
    with torch.no_grad():
        assert torch.equal(models[0](torch.tensor([[1, 5]])).logits, bare)


def test_an_adapter_of_a_bfloat16_base_is_float32_and_comes_back_as_it_was_saved(tiny_folder: Path, tmp_path: Path):
    policy = Policy.load(model_config(tiny_folder, "bfloat16"), lora=LoraSettings(r=2), trainable=True)
    with torch.no_grad():
        for p in policy.trainable_parameters().values():
            p.normal_()
    policy.save(tmp_path / "a")
    by_argument = Policy.load(model_config(tiny_folder, "bfloat16"), adapter=tmp_path / "a", trainable=True)
    by_config = Policy.load(model_config(tiny_folder, "bfloat16", adapter=str(tmp_path / "a")))
    for loaded in (policy, by_argument, by_config):
        assert [p.dtype for p in loaded.trainable_parameters().values()] == [torch.float32] * 28
        assert loaded.backbone.head.weight.dtype == torch.bfloat16
        assert loaded.weights_hash() == policy.weights_hash()
        assert torch.equal(loaded.log_probs([[1, 5]], [[6, 7]])[0], policy.log_probs([[1, 5]], [[6, 7]])[0])


def test_what_cannot_be_loaded_is_a_model_error(tiny_folder: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for folder, said in (("absent", "There is no folder"), ("empty", "neither a model nor a run")):
        with pytest.raises(ModelError, match=said):
            Policy.load(model_config(tmp_path / folder))
    with pytest.raises(ModelError, match="Cannot load the adapter"):
        Policy.load(model_config(tiny_folder), adapter=tmp_path / "empty")
    for own in ({"target_modules": ["nowhere"]}, {"rank_pattern": {"nowhere": 2}}, {"exclude_modules": ["nowhere"]}):
        with pytest.raises(ModelError, match=r"lora do not fit this model: .*nowhere"):
            Policy.load(model_config(tiny_folder), lora=LoraSettings(**own))


def test_a_model_that_lacks_weights_is_refused(tiny_folder: Path, tmp_path: Path):
    """Transformers would fill them with random numbers; a tied output head is not missing."""
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 of the model's weights \(model\.layers\.1\.mlp\.up_proj\.weight"):
        loading.load_base(model_config(folder), master_float32=False)


def edited(file: Path, **values) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def pickled(folder: Path) -> None:
    """A pickle that would make the file `ran`, in place of the weights."""

    class Payload:
        def __reduce__(self):
            return Path.touch, (folder / "ran",)

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()))


def not_finite(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"].fill_(torch.nan)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def smaller_vocabulary(folder: Path) -> None:
    model = tiny_model()
    model.resize_token_embeddings(100)
    model.save_pretrained(folder)


def cut_short(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


BROKEN = {
    "weights are a pickle": pickled,
    "weights are not finite": not_finite,
    "weights are cut short": cut_short,
    "weights are no file of weights": lambda f: (f / "model.safetensors").write_bytes(b"spoilt"),
    "hidden_size is text": lambda f: edited(f / "config.json", hidden_size="abc"),
    "no heads": lambda f: edited(f / "config.json", num_attention_heads=0),
    "config is a list": lambda f: (f / "config.json").write_text("[]"),
    "tokenizer is empty": lambda f: (f / "tokenizer.json").write_text("{}"),
    "tokenizer settings are a list": lambda f: (f / "tokenizer_config.json").write_text("[]"),
    "a smaller vocabulary": smaller_vocabulary,
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_model_folder_is_one_clear_error(tiny_folder: Path, tmp_path: Path, what: str):
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    BROKEN[what](folder)
    with pytest.raises(ModelError):
        Policy.load(model_config(folder))
    assert not (folder / "ran").exists()


def test_a_broken_adapter_is_one_clear_error(tiny_folder: Path, tmp_path: Path):
    """And one for a model of another width."""
    tiny_adapter_policy(hidden=64).save(tmp_path)
    for settings in ({}, {"r": "many"}, {"peft_type": "NOWHERE"}):
        edited(tmp_path / "adapter_config.json", **settings)
        with pytest.raises(ModelError, match=f"Cannot load the adapter at {tmp_path}"):
            Policy.load(model_config(tiny_folder), adapter=tmp_path)


def test_an_adapter_that_lacks_weights_is_refused(tiny_folder: Path, tmp_path: Path):
    tiny_adapter_policy().save(tmp_path)
    save_file({}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=f"adapter at {tmp_path} lacks 28 of the weights"):
        Policy.load(model_config(tiny_folder), adapter=tmp_path)


def test_names_in_a_file_of_weights_reach_the_terminal_without_their_escape_codes(tiny_folder, tmp_path, capsys):
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors") | {"a\x1b]52;c;x\x07": torch.zeros(1)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    Policy.load(model_config(folder))
    said = capsys.readouterr().err
    assert r"a\x1b]52;c;x\x07" in said
    assert "\x1b" not in said


def test_a_model_without_a_chat_template_is_refused_before_its_weights_are_loaded(tmp_path: Path, monkeypatch):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    tiny_model(tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr(loading, "load_base", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(ModelError, match="no chat template"):
        Policy.load(model_config(tmp_path))


SMALL = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "initializer_range": 0.5,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    ("family", "options", "scale", "softcap"),
    [
        ("Llama", {}, 1.0, None),
        ("Gemma2", {"head_dim": 8, "final_logit_softcapping": 2.0}, 1.0, 2.0),
        ("Cohere", {"logit_scale": 0.25}, 0.25, None),
        ("Granite", {"logits_scaling": 8.0}, 1 / 8, None),
    ],
)
def test_the_head_of_each_family_gives_the_models_own_logits(
    family: str, options: dict, scale: float, softcap: float | None
):
    import transformers

    config = getattr(transformers, f"{family}Config")(**SMALL, **options)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    head = find_head(model, torch.float32)
    assert (head.scale, head.softcap) == (scale, softcap)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        found = head.logits(model.get_decoder()(input_ids=ids).last_hidden_state[0])
        torch.testing.assert_close(found, model(input_ids=ids).logits[0], rtol=1e-4, atol=1e-5)


def test_a_model_that_changes_its_logits_in_an_unknown_way_is_refused(monkeypatch):
    model = tiny_model()
    forward = model.forward

    def changed(*args, **kwargs):
        out = forward(*args, **kwargs)
        out.logits = out.logits * 1.5
        return out

    monkeypatch.setattr(model, "forward", changed)
    with pytest.raises(ModelError, match="in a way opct does not know"):
        find_head(model, torch.float32)


def test_weights_hash_sees_names_shapes_dtypes_and_every_bit():
    a, b = torch.arange(6.0), torch.ones(2, 3, dtype=torch.bfloat16)
    base = loading.weights_hash([("a", a), ("b", b)])
    assert len(base) == 16
    assert loading.weights_hash([("b", b), ("a", a)]) == base
    changed = a.clone()
    changed[3] = torch.nextafter(changed[3], torch.tensor(10.0))
    square = torch.arange(9.0).view(3, 3)  # the layout in memory does not count
    assert loading.weights_hash([("a", square.T)]) == loading.weights_hash([("a", square.T.contiguous())])
    for other in (
        [("a", changed), ("b", b)],
        [("c", a), ("b", b)],
        [("a", a.view(2, 3)), ("b", b)],
        [("a", a), ("b", b.float())],
    ):
        assert loading.weights_hash(other) != base


@pytest.fixture
def hub(monkeypatch, tmp_path: Path):
    """A hub whose address nobody knows, and an empty cache; gives the hosts that were looked up."""
    looked_up = []

    def getaddrinfo(host, port):
        looked_up.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.example:8443/models")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    return looked_up


@pytest.mark.parametrize("name", ["smollm2-135m-instrukt", "SmolLM2-135M-Instruct", "smollm2-135"])
def test_a_slip_in_the_name_of_the_own_model_is_one(hub, name: str):
    with pytest.raises(ModelError, match=rf"There is no folder {name}\. Did you mean '{DEFAULT_MODEL}'\?"):
        check_model_name(name)
    with pytest.raises(ModelError, match=rf"There is no GGUF file at {name}\.gguf: check the path"):
        check_model_name(f"{name}.gguf")
    assert hub == []


def test_a_hub_that_cannot_be_reached_is_said_at_once(hub, tmp_path: Path):
    """Of what is no folder and was not fetched before; a hub id stays one, however near its name is to our own."""
    said = r"no folder {} here.*hub\.example cannot be reached.*\(Name or service not known\)"
    for name in ("runs/nope", "owner/smollm2-135m-instruct", "gpt2"):
        with pytest.raises(ModelError, match=said.format(name)):
            loading.resolve_model(name)
    assert hub == ["hub.example"] * 3
    (tmp_path / "hub" / "models--owner--fetched").mkdir(parents=True)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").touch()
    (tmp_path / "folder" / "mine.gguf").touch()
    for name in (DEFAULT_MODEL, "owner/fetched", "folder", "folder/mine.gguf"):
        check_model_name(name)
    assert hub == ["hub.example"] * 3


def test_a_folder_of_runs_names_the_runs_in_it(tmp_path: Path):
    with pytest.raises(ModelError, match=r"neither a model nor a run\. Name a run, or a folder with config\.json"):
        check_model_name(str(tmp_path))
    for name in ("sft", "opct"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
    with pytest.raises(ModelError, match=rf"Name one of the runs in it: {tmp_path}/opct, {tmp_path}/sft\."):
        load_tokenizer(ModelConfig(name_or_path=str(tmp_path)))


@pytest.mark.parametrize("file", ["manifest.json", "adapter_config.json"])
def test_a_run_or_an_adapter_as_the_name_of_a_model_names_the_setting_for_it(tmp_path: Path, file: str):
    (tmp_path / file).write_text('{"opct_run": 1}')
    with pytest.raises(ModelError, match=r"is a run or an adapter: set model\.adapter to it"):
        check_model_name(str(tmp_path))


def test_an_unknown_host_leaves_the_hub_s_clients_their_cache(hub):
    """They would try five times for each file; the next call looks again."""
    with hub_or_cache():
        assert constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE


def test_where_the_hub_may_be_reached_nothing_is_refused(hub, monkeypatch):
    """A machine with `no_proxy` alone asks the hub itself; one that is offline by its own word asks nobody."""
    with monkeypatch.context() as patched:
        patched.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set"):
            check_model_name("owner/name")
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": "http://proxy:3128"})
    check_model_name("owner/name")
    assert hub == []
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"no": "localhost,10.0.0.0/8"})
    with pytest.raises(ModelError, match="cannot be reached"):
        check_model_name("owner/name")
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: [("an address",)])
    check_model_name("owner/name")


@pytest.mark.parametrize(
    "own",
    [
        {"use_dora": True},
        {"use_rslora": True, "r": 4, "exclude_modules": ["down_proj"]},
        {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {"v_proj": 1}, "target_modules": ["q_proj", "v_proj"]},
        {"modules_to_save": ["lm_head"]},
        {"modules_to_save": ["embed_tokens", "norm"]},
    ],
    ids=lambda own: next(iter(own)),
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_adapter_of_peft_trains_samples_and_comes_back_and_its_teacher_is_the_base(tmp_path: Path, own, dtype):
    """A head of its own (not tied), so that lm_head can be saved. After a change of every trained weight: the model
    without adapter gives the base's numbers bit for bit, the sampler those of the plain forward to rounding."""
    config = model_config(save_tiny(tmp_path / "base", tie=False), dtype)
    base, policy = Policy.load(config), Policy.load(config, lora=LoraSettings(**({"r": 2} | own)), trainable=True)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in policy.trainable_parameters().values():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    assert {p.dtype for p in policy.trainable_parameters().values()} == {torch.float32}
    [[expected]], ids = [base.log_probs([[1, 5, 9]], [[6, 7, 8]])], ([[1, 5, 9]], [[6, 7, 8]])
    with policy.adapter_off():
        assert torch.equal(policy.log_probs(*ids)[0], expected)
    assert policy.base_hash() == base.base_hash()
    assert not torch.allclose(policy.log_probs(*ids)[0], expected, atol=1e-3)
    [[drawn, _]] = policy.sample([[1, 5, 9]], [[0, 1]], Sampling(6))
    with policy.inference():
        logits = policy.model(torch.tensor([[1, 5, 9, *drawn.token_ids]])).logits[0, 2:-1].float()
    plain = logits.log_softmax(-1)[range(len(drawn.token_ids)), list(drawn.token_ids)]
    assert torch.tensor(drawn.logprobs) == pytest.approx(plain, abs=1e-4 if dtype == "float32" else 0.2)
    policy.save(tmp_path / "saved")
    reloaded = Policy.load(config, adapter=tmp_path / "saved", trainable=True)
    assert reloaded.weights_hash() == policy.weights_hash()
    assert torch.equal(reloaded.log_probs(*ids)[0], policy.log_probs(*ids)[0])
    assert ("DoRA" in (unfused_reason(policy.model) or "")) == ("use_dora" in own)


def test_weights_of_4_bits_are_not_packed_again(tmp_path: Path, monkeypatch):
    """bitsandbytes does so on a CPU with bfloat16 products, in the first forward without a gradient."""
    modules = pytest.importorskip("bitsandbytes.nn.modules")
    monkeypatch.setattr(modules, "has_avx512bf16", lambda: True)
    policy = Policy.load(model_config(save_tiny(tmp_path / "base", hidden=64), quantization="4bit"))
    before = policy.base_hash()
    policy.log_probs([[1, 5, 9]], [[6, 7, 8]])
    layers = [module for module in policy.model.modules() if isinstance(module, modules.Linear4bit)]
    assert layers
    assert not any(getattr(layer.weight.quant_state, "packing_format_for_cpu", False) for layer in layers)
    assert policy.weights_hash() == before


@pytest.mark.parametrize("kind", ["4bit", "8bit"])
def test_a_quantised_base_trains_an_adapter_and_its_teacher_is_the_same_quantised_base(tmp_path: Path, kind):
    pytest.importorskip("bitsandbytes")
    config = model_config(save_tiny(tmp_path / "base", hidden=64), quantization=kind)
    base, policy = Policy.load(config), Policy.load(config, lora=LoraSettings(r=2), trainable=True)
    whole = Policy.load(model_config(tmp_path / "base"))
    prompt, completion = [[1, 5, 9]], [[6, 7, 8]]
    policy.score(prompt, completion).hidden.sum().backward()
    assert any(p.grad.abs().max() > 0 for p in policy.trainable_parameters().values())
    with torch.no_grad():
        for p in policy.trainable_parameters().values():
            p.add_(0.1)
    with policy.adapter_off():
        assert torch.equal(policy.log_probs(prompt, completion)[0], base.log_probs(prompt, completion)[0])
    assert policy.base_hash() == base.base_hash() != whole.base_hash()
    assert torch.allclose(base.log_probs(prompt, completion)[0], whole.log_probs(prompt, completion)[0], atol=2.0)
    assert not torch.equal(base.log_probs(prompt, completion)[0], whole.log_probs(prompt, completion)[0])
    assert (policy.quantization, whole.quantization) == (kind, None)
    [[drawn]] = policy.sample(prompt, [[0]], Sampling(6))
    assert drawn.logprobs == pytest.approx(policy.log_probs(prompt, [drawn.token_ids])[0].tolist(), abs=0.05)
    assert "bit" in unfused_reason(policy.model)
    policy.save(tmp_path / "saved")
    assert Policy.load(config, adapter=tmp_path / "saved").weights_hash() == policy.weights_hash()


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"quantization": "4bit"}, "quantization=4bit needs the package bitsandbytes"),
        ({"use_liger_kernel": True}, "use_liger_kernel=True needs CUDA"),
        ({"attn_implementation": "flash_attention_2"}, "flash_attention_2 needs CUDA"),
        ({"attn_implementation": "flex_attention"}, "flex_attention needs CUDA"),
    ],
)
def test_a_setting_without_its_package_or_device_is_refused_before_anything_is_fetched(monkeypatch, own, said):
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=said):
        loading.load_tokenizer(ModelConfig(name_or_path="somebody/absent", device="cpu", **own))


def test_liger_replaces_the_layers_alone(monkeypatch):
    """Its fused loss stays off; a model that it does not know is an error."""
    calls = []
    patch = types.SimpleNamespace(
        MODEL_TYPE_TO_APPLY_LIGER_FN={"llama": None},
        _apply_liger_kernel_to_instance=lambda model, **options: calls.append(options),
    )
    monkeypatch.setitem(sys.modules, "liger_kernel", types.ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", types.SimpleNamespace(monkey_patch=patch))
    model = tiny_model()
    loading._use_liger(model)
    assert calls == [{"cross_entropy": False, "fused_linear_cross_entropy": False}]
    model.config.model_type = "other"
    with pytest.raises(ModelError, match="no kernels for other models"):
        loading._use_liger(model)
