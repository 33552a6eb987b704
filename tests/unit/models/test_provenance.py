"""Whether a model and an adapter are read from the files that they were read from before."""

import hashlib
import json
import os
from pathlib import Path

import huggingface_hub
import pytest

from opct.config.schema import ModelConfig
from opct.models import provenance
from opct.models.provenance import changed_files, fingerprint_adapter, fingerprint_weights
from opct.runs.io import file_sha256
from tests.tiny import save_tiny, tiny_adapter_policy


def noted(folder: Path):
    return fingerprint_weights(ModelConfig(name_or_path=str(folder)))


def names(before: dict, now: dict) -> list[str]:
    return [line.partition(":")[0] for line in changed_files(before, now)]


def test_other_weights_in_the_folder_of_a_model_are_seen(tmp_path: Path):
    """Of a model that was written again as it was, the times differ and nothing else."""
    folder = save_tiny(tmp_path / "model")
    before = json.loads(json.dumps(noted(folder)))
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= before.keys()
    save_tiny(folder)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert changed_files(before, noted(folder)) == []
    save_tiny(folder, seed=1)
    assert names(before, noted(folder)) == ["model.safetensors"]
    (folder / "config.json").unlink()
    assert names(before, noted(folder)) == ["config.json", "model.safetensors"]
    assert noted(tmp_path / "gone") == {}  # not known, and so no other
    assert changed_files(before, {}) == changed_files({}, before) == []


def test_the_hash_of_a_large_file_is_kept_while_nothing_was_written_there(tmp_path: Path, monkeypatch):
    """From process to process; a damaged cache is none, and a file that was just written may still change."""
    hashed: list[str] = []
    monkeypatch.setenv("OPCT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(provenance, "LARGE", 100)
    monkeypatch.setattr(provenance, "SETTLED_NS", -1)
    monkeypatch.setattr(provenance, "file_sha256", lambda file: hashed.append(file.name) or file_sha256(file))
    weights = tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()

    def read(content: bytes | None = None) -> bool:
        """Whether the file was hashed once more, and rightly."""
        if content is not None:
            weights.write_bytes(content)
            os.utime(weights, (7, 7))  # as archives do: of one size and time
        provenance._hash_at.cache_clear()
        hashed.clear()
        assert noted(weights.parent)[weights.name]["sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
        return bool(hashed)

    assert [read(100 * b"a"), read(), read(100 * b"b"), read()] == [True, False, True, False]
    for kept in (tmp_path / "cache" / "hashes").iterdir():
        kept.write_bytes(b"\xff")
    assert [read(), read()] == [True, False]
    monkeypatch.setattr(provenance, "SETTLED_NS", 10**12)
    assert [read(100 * b"c"), read()] == [True, True]
    monkeypatch.setattr(provenance, "SETTLED_NS", -1)
    monkeypatch.setenv("OPCT_CACHE", str(weights))  # a file, so no folder can be made there
    assert [read(), read()] == [True, True]


def test_the_scale_of_an_adapter_counts_and_the_name_of_its_base_does_not(tmp_path: Path):
    tiny_adapter_policy().save(tmp_path)
    before, path = fingerprint_adapter(tmp_path), tmp_path / "adapter_config.json"
    assert "adapter_model.safetensors" in before
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"base_model_name_or_path": "elsewhere", "peft_version": "9"}))
    assert changed_files(before, fingerprint_adapter(tmp_path)) == []
    path.write_text(json.dumps(settings | {"lora_alpha": 3}))
    assert names(before, fingerprint_adapter(tmp_path)) == ["scale"]


@pytest.mark.parametrize(
    ("first", "second"), [("smollm2-135m-instruct-q4_1", None), ("a.gguf", "other"), ("a/b", "commit")]
)
def test_what_a_name_stands_for(tmp_path: Path, monkeypatch, first: str, second: str | None):
    """The embedded model is one file whose hash is in the code; a GGUF is its file; a hub's model its commit here."""
    (tmp_path / "a.gguf").write_text("one")
    monkeypatch.chdir(tmp_path)
    commits = iter(["0123", "4567"])
    monkeypatch.setattr(
        huggingface_hub, "try_to_load_from_cache", lambda *_, **__: f"/cache/snapshots/{next(commits)}/config.json"
    )
    before = noted(Path(first))
    (tmp_path / "a.gguf").write_text("other")
    assert len(changed_files(before, noted(Path(first)))) == (0 if second is None else 1)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: None)
    assert noted(Path("never/fetched")) == {}
