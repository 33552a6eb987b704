"""Loading: names, devices, dtypes, adapters, heads."""

import json
import pickle
import shutil
import socket
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from opct.config.loader import load_config
from opct.config.packaged import PACKAGED
from opct.config.schema import DEFAULT_MODEL, LoraSettings, ModelConfig
from opct.cpu.fused_lora import unfused_reason
from opct.data.tables import hub_or_cache
from opct.errors import ModelError
from opct.models import loading
from opct.models.backbone import find_head
from opct.models.inference.token_sampling import Sampling
from opct.models.loading import check_model_name
from opct.models.policy import Policy
from tests.refusals import refused
from tests.tiny import move, save_tiny, tiny_model, tiny_tokenizer


def model_config(folder: Path, dtype: str = "float32", **options) -> ModelConfig:
    return ModelConfig(name_or_path=str(folder), dtype=dtype, device="cpu", **options)


def test_devices_that_are_not_there_are_refused_with_their_name():
    assert loading.choose_device("cpu") == torch.device("cpu")
    assert isinstance(loading.choose_device("auto"), torch.device)
    for name in ("abacus", "cuda:99", *([] if torch.cuda.is_available() else ["cuda"])):
        with refused(ModelError, f"model.device='{name}'"):
            loading.choose_device(name)


def test_auto_takes_bfloat16_where_it_is_clearly_faster(monkeypatch):
    """2 times faster is clear, 1.1 times is not."""
    times_s = {torch.float32: 1.0}
    monkeypatch.setattr(loading, "_matmul_time_s", lambda dtype, device, hidden_size: times_s[dtype])
    for seconds, dtype, ratio in (
        (0.5, torch.bfloat16, " 2 "),
        (0.9, torch.float32, " 1.1 "),
        (170.0, torch.float32, " 0.0059 "),
    ):
        times_s[torch.bfloat16] = seconds
        chosen, why = loading.choose_dtype("auto", torch.device("cpu"), 32)
        assert chosen == dtype
        assert ratio in why
    times_s.clear()
    assert loading.choose_dtype("bfloat16", torch.device("cpu"), 32)[0] == torch.bfloat16


def test_what_does_not_fit_the_model_is_refused(tiny_folder: Path, tmp_path: Path):
    for folder in (tmp_path / "absent", tmp_path):
        with refused(ModelError, folder):
            Policy.load(model_config(folder))
    with refused(ModelError, tmp_path):
        Policy.load(model_config(tiny_folder), adapter=tmp_path)
    for lora in (
        *({"target_modules": ["nowhere"]}, {"target_modules": ["q_proj", "nowhere"]}, {"rank_pattern": {"nowhere": 2}}),
        *({field: ["nowhere"]} for field in ("exclude_modules", "modules_to_save", "target_parameters")),
    ):
        with refused(ModelError, "lora", "nowhere"):
            Policy.load(model_config(tiny_folder), lora=LoraSettings(**lora))
    recipe = load_config(PACKAGED["sycophancy"])  # its layers are those of a model of 30
    with refused(ModelError, "lora.target_modules", "all-linear"):
        Policy.load(model_config(tiny_folder), lora=recipe.lora)


def change_tensors(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def pickled(folder: Path) -> None:
    """A pickle that would make the file `ran`, in place of the weights."""

    class Payload:
        def __reduce__(self):
            return Path.touch, (folder / "ran",)

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()))


def smaller_vocabulary(folder: Path) -> None:
    model = tiny_model()
    model.resize_token_embeddings(100)
    model.save_pretrained(folder)


def without_template(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "chat_template.jinja").unlink()


def panicking_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text()) | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}
    path.write_text(json.dumps(content))


UP = "model.layers.1.mlp.up_proj.weight"
DAMAGES = {
    "a pickle": (pickled, ""),
    "a smaller vocabulary": (smaller_vocabulary, ""),
    "no chat template, no weights": (without_template, "chat template"),
    "a panic of Rust": (panicking_tokenizer, "tokenizer"),
    "not finite": (lambda f: change_tensors(f, lambda tensors: tensors["model.norm.weight"].fill_(torch.nan)), ""),
    "a weight is not there": (lambda f: change_tensors(f, lambda tensors: tensors.pop(UP)), UP),
}


@pytest.mark.parametrize(("damage", "named"), DAMAGES.values(), ids=DAMAGES)
def test_a_broken_model_folder_is_refused(tiny_folder: Path, tmp_path: Path, damage, named: str, capfd):
    """Transformers would fill what is missing with random numbers; a tied output head is not missing.

    The chat template is looked at before the weights.
    """
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    damage(folder)
    with refused(ModelError, named):
        Policy.load(model_config(folder))
    assert not (folder / "ran").exists()
    assert "panicked" not in capfd.readouterr().err


def test_names_in_a_file_of_weights_reach_the_terminal_without_their_escape_codes(tiny_folder, tmp_path, capsys):
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    change_tensors(folder, lambda tensors: tensors.update({"a\x1b]52;c;x\x07": torch.zeros(1)}))
    Policy.load(model_config(folder))
    said = capsys.readouterr().err
    assert r"a\x1b]52;c;x\x07" in said
    assert "\x1b" not in said


def test_a_model_that_changes_its_logits_in_an_unknown_way_is_refused(monkeypatch):
    model = tiny_model()
    forward = model.forward

    def changed(*args, **kwargs):
        out = forward(*args, **kwargs)
        out.logits = out.logits * 1.5
        return out

    monkeypatch.setattr(model, "forward", changed)
    with refused(ModelError):
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


def test_a_name_is_a_folder_or_a_file_or_is_on_the_hub(hub, tmp_path: Path):
    """A slip in the default model's name is no hub id; a hub id stays one, however near its name is to that."""
    for name in ("smollm2-135m-instrukt", "SmolLM2-135M-Instruct", "smollm2-135"):
        with refused(ModelError, name, DEFAULT_MODEL):
            check_model_name(name)
        with refused(ModelError, f"{name}.gguf"):
            check_model_name(f"{name}.gguf")
    assert hub == []
    for name in ("runs/nope", "owner/smollm2-135m-instruct", "gpt2"):
        with refused(ModelError, name, "hub.example"):
            loading.resolve_model(name)
    (tmp_path / "hub" / "models--owner--fetched").mkdir(parents=True)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").touch()
    (tmp_path / "folder" / "mine.gguf").touch()
    for name in (DEFAULT_MODEL, "owner/fetched", "folder", "folder/mine.gguf"):
        check_model_name(name)
    assert hub == ["hub.example"] * 3


def test_the_hub_is_asked_where_it_may_be_reached(hub, monkeypatch):
    """A machine with `no_proxy` alone asks the hub itself; one that is offline by its settings asks nobody.

    An unknown host leaves the hub's clients their cache, for they would try five times for each file.
    """
    with hub_or_cache():
        assert constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE
    hub.clear()
    with monkeypatch.context() as patched:
        patched.setattr(constants, "HF_HUB_OFFLINE", True)
        with refused(ModelError, "HF_HUB_OFFLINE"):
            check_model_name("owner/name")
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": "http://proxy:3128"})
    check_model_name("owner/name")
    assert hub == []
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"no": "localhost,10.0.0.0/8"})
    with refused(ModelError, "owner/name"):
        check_model_name("owner/name")


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
    # nor where the files are quantized, whose quantization cannot be undone or changed
    policy.model.save_pretrained(tmp_path / "stored")
    tiny_tokenizer().save_pretrained(tmp_path / "stored")
    stored = Policy.load(model_config(tmp_path / "stored"))
    layers = [module for module in stored.model.modules() if isinstance(module, modules.Linear4bit)]
    assert layers
    assert not any(layer.support_avx512bf16_for_cpu for layer in layers)
    with refused(ModelError, "bitsandbytes", "Leave it out"):
        Policy.load(model_config(tmp_path / "stored", quantization="8bit"))
    with refused(ModelError, "bitsandbytes", "lora"):
        Policy.load(model_config(tmp_path / "stored"), trainable=True)


@pytest.mark.parametrize("kind", ["4bit", "8bit"])
def test_a_quantized_base_trains_an_adapter_and_its_teacher_is_the_same_quantized_base(tmp_path: Path, kind):
    pytest.importorskip("bitsandbytes")
    config = model_config(save_tiny(tmp_path / "base", hidden=64), quantization=kind)
    base, policy = Policy.load(config), Policy.load(config, lora=LoraSettings(r=2), trainable=True)
    whole = Policy.load(model_config(tmp_path / "base"))
    prompt, completion = [[1, 5, 9]], [[6, 7, 8]]
    policy.score(prompt, completion).hidden.sum().backward()
    assert any(p.grad.abs().max() > 0 for p in policy.trainable_parameters().values())
    move(policy)
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
    ("setting", "value"),
    [
        ("quantization", "4bit"),
        ("use_liger_kernel", True),
        ("attn_implementation", "flash_attention_2"),
    ],
)
def test_a_setting_without_its_package_or_device_is_refused_before_anything_is_fetched(monkeypatch, setting, value):
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda name: None)
    with refused(ModelError, f"model.{setting}={value}"):
        loading.load_tokenizer(ModelConfig(name_or_path="somebody/absent", device="cpu", **{setting: value}))
