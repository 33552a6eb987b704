"""What results say about what was measured, and where they go."""

import hashlib
from pathlib import Path

import pytest

from opct.config.loader import dump_config
from opct.config.schema import TrainConfig
from opct.errors import EvaluationError, ModelError
from opct.evals import target as module
from opct.evals.target import default_out, describe_target, open_target
from opct.runs.console import NullProgress
from opct.runs.io import atomic_write, write_json
from opct.runs.run_dir import RunDir
from tests.refusals import refused
from tests.unit.evals.fakes import FakePolicy


@pytest.fixture
def policy() -> FakePolicy:
    policy = FakePolicy(lambda prompt, seed: "", name="owner/tiny model", dtype="float32")
    policy.has_adapter, policy.weights_hash, policy.dtype_reason = False, lambda: "00ff", "why"
    return policy


def save(run: RunDir, step: int, weights: bytes) -> None:
    run.save_checkpoint(step, lambda folder: atomic_write(folder / "adapter" / "adapter_model.safetensors", weights))


@pytest.fixture
def trained(tmp_path: Path, monkeypatch) -> RunDir:
    """The folder of an SFT run with seed 3 and a checkpoint of step 7."""
    monkeypatch.chdir(tmp_path)
    with RunDir.create(tmp_path / "mine") as run:
        known = {"trained_families": ["majority"], "trained_questions": ["q/1"]}
        run.write_manifest(data={}, teacher=None, seeds={"seed": 3}, **known)
        atomic_write(run.config_path, dump_config(TrainConfig(method="sft", seed=3)))
        save(run, 7, b"weights")
    return run


def test_a_run_is_described_by_its_config_its_checkpoint_and_what_it_was_trained_on(policy, trained):
    """A named checkpoint has a folder of its own."""
    sha256 = hashlib.sha256(b"weights").hexdigest()
    about = {
        "label": "sft",
        "method": "sft",
        "train_seed": 3,
        "name": "mine",
        "trained_families": ["majority"],
        "trained_questions": ["q/1"],
        "trained_texts": None,
        "weights": {"step": 7, "sha256": {"adapter/adapter_model.safetensors": sha256}},
    }
    assert describe_target(str(trained.path), policy) == about
    assert default_out(trained.path) == trained.path
    with RunDir.create(trained.path, resume=True) as run:
        save(run, 8, b"more")
    assert describe_target(str(trained.path), policy)["weights"]["step"] == 8
    assert describe_target(trained.checkpoint_path(7), policy) == about
    assert default_out(trained.checkpoint_path(7)) == Path("runs/eval-mine-checkpoints-step-000007")


def test_a_training_that_stopped_early_is_a_warning(policy, trained):
    write_json(trained.manifest_path, trained.read_manifest() | {"total_steps": 9})
    [warning] = describe_target(str(trained.path), policy)["warnings"]
    assert "7 of 9" in warning


def test_adapters_without_a_run_have_folders_and_hashes_of_their_own(policy, monkeypatch, tmp_path: Path):
    """No run says what they were trained on."""
    monkeypatch.chdir(tmp_path)
    policy.has_adapter = True
    for name in ("one", "two"):
        (tmp_path / "a" / name).mkdir(parents=True)
        (tmp_path / "a" / name / "adapter_model.safetensors").write_text(name, encoding="utf-8")
    targets = ["a/one", "a/two", tmp_path / "a" / "two", policy]
    found = [describe_target(target, policy) for target in targets]
    assert [(about["label"], about["trained_texts"]) for about in found] == [("trained", None)] * 4
    folders = ["eval-a-one", "eval-a-two", "eval-a-two", "eval-owner-tiny-model-trained"]
    assert [default_out(target) for target in targets] == [Path("runs") / folder for folder in folders]
    hashes = [about["weights"]["sha256"]["adapter_model.safetensors"] for about in found[:3]]
    assert hashes[0] != hashes[1] == hashes[2]
    assert found[3]["weights"] == {"hash": "00ff"}


def test_a_loaded_policy_is_not_loaded_again_and_keeps_its_settings(policy, monkeypatch):
    monkeypatch.setattr(module, "load_policy", lambda *_, **__: pytest.fail("loaded"))
    assert open_target(policy, None, Path("out"), NullProgress()) is policy
    with refused(EvaluationError, "float32"):
        open_target(policy, "bfloat16", Path("out"), NullProgress())
    for other in ({"quantization": "4bit"}, {"thinking_tags": ("<a>", "</a>")}, {"chat_template_kwargs": {"a": 1}}):
        with refused(EvaluationError, next(iter(other))):
            open_target(policy, None, Path("out"), NullProgress(), **other)


def test_a_model_is_measured_again_in_the_dtype_of_its_earlier_results(policy, trained, monkeypatch, tmp_path: Path):
    """A second timing could choose another one, and the first logs would be set aside; a run has a dtype of its own."""
    loaded = []
    monkeypatch.setattr(module, "load_policy", lambda _, **settings: loaded.append(settings.get("dtype")) or policy)
    write_json(tmp_path / "old" / "results.json", {"run": {"model": "m", "dtype": "bfloat16"}, "rows": []})
    for target, dtype in (("m", None), ("m", "float32"), (trained.path, None)):
        for out in (tmp_path / "new", tmp_path / "old"):
            open_target(target, dtype, out, NullProgress())
    assert loaded == [None, "bfloat16", "float32", "float32", None, None]


def test_a_name_of_inspect_that_is_no_model_of_the_hub_is_explained(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with refused(ModelError, "inspect:provider/model"):
        open_target("openai/gpt-4o-mini", None, tmp_path, NullProgress())
