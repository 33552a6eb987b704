"""Fetching the default model, converting GGUF files: what fails leaves nothing behind, what works is done once."""

import errno
import hashlib
import json
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf as library
import pytest
import torch

from opct.config.schema import LoraSettings, ModelConfig
from opct.errors import DownloadError, ModelError
from opct.models import gguf
from opct.models.from_run import load_policy
from opct.models.policy import Policy
from tests.hub import running_hub
from tests.refusals import refused
from tests.tiny import CHAT_TEMPLATE, save_tiny, tiny_model, tiny_tokenizer


@pytest.fixture
def cache(tmp_path: Path, monkeypatch) -> Path:
    """An empty cache; no wheel is named."""
    monkeypatch.setenv("OPCT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OPCT_SMOLLM2_WHEEL", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch) -> Path:
    """A wheel with the right member and, by decree, the right checksum, which the environment names."""
    path = tmp_path / gguf.WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(gguf.MEMBER, b"weights")
    monkeypatch.setattr(gguf, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setenv("OPCT_SMOLLM2_WHEEL", str(path))
    return path


@pytest.fixture
def conversions(monkeypatch) -> list[bytes]:
    """Replaces the conversion by one that takes 50 ms and notes what it was given."""
    seen: list[bytes] = []

    def convert(source: Path, target: Path, dtype: str) -> Path:
        seen.append(source.read_bytes())
        time.sleep(0.05)
        target.mkdir()
        return target

    monkeypatch.setattr(gguf, "_convert", convert)
    return seen


def leftovers(cache: Path) -> list[str]:
    return [p.name for p in (cache / "models").iterdir() if not p.name.endswith(".lock")]


def test_a_file_with_another_checksum_is_refused_and_stays(cache, wheel, conversions):
    wheel.write_bytes(wheel.read_bytes()[:40])
    with refused(DownloadError, wheel.name, gguf.file_sha256(wheel), gguf.WHEEL_SHA256):
        gguf.smollm2_q4()
    assert wheel.exists()
    assert (conversions, leftovers(cache)) == ([], [])


def test_the_default_model_comes_from_the_hub_and_then_from_the_cache(cache, tmp_path: Path, monkeypatch):
    """An adapter on it names the hub id and the commit; a snapshot that lacks a file is fetched again."""
    with running_hub(monkeypatch, tmp_path / "hub", gguf.HUB_REVISION) as hub:
        folder = save_tiny(tmp_path / "tiny")
        hub.repos[gguf.HUB_ID] = dict.fromkeys((*gguf.HUB_FILES, "onnx/model.onnx"), b"{}")
        hub.repos[gguf.HUB_ID] |= {path.name: path.read_bytes() for path in folder.iterdir()}
        template = json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": CHAT_TEMPLATE}
        hub.repos[gguf.HUB_ID]["tokenizer_config.json"] = json.dumps(template).encode()
        policy = Policy.load(ModelConfig(dtype="float32", device="cpu"), lora=LoraSettings(r=2))
        assert (policy.name, hub.repos.keys()) == (gguf.HUB_ID, {gguf.HUB_ID})
        assert not [asked for asked in hub.requests if "onnx" in asked]
        snapshot = gguf.hub_snapshot()
        assert snapshot is not None
        hub.requests.clear()
        policy.save(tmp_path / "adapter")
        assert load_policy(str(tmp_path / "adapter"), dtype="float32").name == gguf.HUB_ID
        assert hub.requests == []
        (snapshot / "config.json").unlink()
        assert gguf.default_weights() == (gguf.HUB_ID, gguf.HUB_REVISION)
        assert hub.requests
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (settings["base_model_name_or_path"], settings["revision"]) == (gguf.HUB_ID, gguf.HUB_REVISION)


@pytest.mark.parametrize("fault", ["gone", "offline"])
def test_without_the_hub_the_default_is_the_q4_1_weights_at_once(cache, wheel, conversions, monkeypatch, caplog, fault):
    started = time.monotonic()
    with running_hub(monkeypatch, cache / "hub") as hub:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", fault == "offline")
        if fault == "gone":
            monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        assert gguf.default_weights() == ("smollm2-135m-instruct-q4_1", None)
        assert "Q4_1" in caplog.text
        hub.requests.clear()
        assert gguf.default_weights() == ("smollm2-135m-instruct-q4_1", None)
        assert hub.requests == []
    assert time.monotonic() - started < 5


def test_users_of_one_cache_convert_once(cache, conversions, tmp_path: Path):
    """Four at the same time: one converts, the others wait for it and find the folder."""
    source = tmp_path / "my.gguf"
    source.write_bytes(b"abc")
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(gguf.convert_gguf, [source] * 4))
    assert (len(set(found)), conversions) == (1, [b"abc"])
    source.write_bytes(b"abd")  # another content is another model
    assert gguf.convert_gguf(source) not in found


def test_what_cannot_be_converted_leaves_no_half_model(cache, wheel, tmp_path: Path, monkeypatch):
    source = tmp_path / "my.gguf"
    source.write_bytes(b"this is not a GGUF file at all")
    with refused(ModelError, source):
        gguf.convert_gguf(source)

    def full(gguf_path, target, dtype):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gguf, "_convert", full)
    with refused(ModelError, cache, "No space left on device", "OPCT_CACHE"):
        gguf.smollm2_q4()
    assert leftovers(cache) == []


def write_gguf(path: Path, model, tokenizer) -> None:
    """The model as llama.cpp would store it, float32: rows of q and k in its own rotary order."""
    config = model.config
    writer = library.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    state = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].get)
    special = set(tokenizer.all_special_tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in state["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(CHAT_TEMPLATE)
    names = library.get_tensor_name_map(library.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if "q_proj" in name or "k_proj" in name:
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            halves = weight.view(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
            weight = halves.transpose(1, 2).reshape(weight.shape)
        writer.add_tensor(names.get_name(name, (".weight",)), weight.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_converted_model_is_the_same_model(cache, tmp_path: Path):
    """Weights that bfloat16 would round, the same logits, tokenizer, template and stop token; files others may read."""
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, tie=False)
    write_gguf(tmp_path / "tiny.gguf", model, tokenizer)
    folder = gguf.convert_gguf(tmp_path / "tiny.gguf")
    converted = Policy.load(ModelConfig(name_or_path=str(tmp_path / "tiny.gguf"), dtype="float32", device="cpu"))
    assert converted.dtype == torch.float32
    messages = [{"role": "user", "content": "the question, été 🙂"}]
    ids = converted.renderer.render(messages)
    assert ids == Policy(model, tokenizer).renderer.render(messages)
    assert converted.tokenizer.chat_template == CHAT_TEMPLATE
    assert tokenizer.eos_token_id in converted.backbone.stop_ids
    found = converted.model(torch.tensor([ids])).logits
    torch.testing.assert_close(found, model(torch.tensor([ids])).logits, rtol=1e-5, atol=1e-5)
    assert leftovers(cache) == [folder.name]
    assert {file.stat().st_mode & 0o444 for file in (folder, *folder.iterdir())} == {0o444}
