"""The policy that a path stands for."""

import json
import shutil
from pathlib import Path

import pytest
from peft import AutoPeftModelForCausalLM

from opct.config.loader import load_config
from opct.config.schema import TrainConfig
from opct.errors import CheckpointError, ConfigError, ModelError
from opct.models.from_run import load_policy
from opct.models.gguf import smollm2_q4_path
from opct.models.policy import Policy
from opct.runs.run_dir import RunDir
from opct.training.trainer import train
from tests.refusals import refused
from tests.tiny import kl_to_base, save_tiny, tiny_settings


@pytest.mark.parametrize("given", [{}, {"quantization": "8bit", "trust_remote_code": True}])
def test_a_run_keeps_its_quantization_and_only_the_caller_lets_code_run(run, tmp_path, monkeypatch, given):
    copy = RunDir(shutil.copytree(run.path, tmp_path / "copy"))
    text = copy.config_path.read_text().replace("quantization: null", "quantization: 4bit")
    copy.config_path.write_text(text.replace("trust_remote_code: false", "trust_remote_code: true"))
    assert "trust_remote_code: true" in copy.config_path.read_text()
    configs = []
    monkeypatch.setattr(Policy, "load", lambda config, **_: configs.append(config))
    for path in (copy.path, copy.checkpoint_path(2) / "adapter"):
        load_policy(str(path), **given)
    expected = {"quantization": "4bit", "trust_remote_code": False} | given
    assert [config.model_dump(include=set(expected)) for config in configs] == [expected] * 2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path, pair_files: tuple[Path, Path]) -> RunDir:
    """Two steps of LoRA on what is in the cache as the Q4_1 weights, with a checkpoint of each; read only."""
    settings = tiny_settings(tmp_path_factory.mktemp("adapter") / "run", "smollm2-135m-instruct", *pair_files)
    settings |= {"max_steps": 2, "save_steps": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPCT_CACHE", str(tmp_path_factory.mktemp("cache")))
        shutil.copytree(tiny_folder, smollm2_q4_path())
        train(TrainConfig.model_validate(settings))
        yield RunDir(settings["output_dir"])


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_a_run_names_the_weights_that_the_default_stood_for_and_its_adapter_loads_in_peft(run: RunDir, tmp_path: Path):
    """PEFT finds the base in the folder; `load_policy` finds it too where the adapter was made with another cache."""
    assert load_config(run.config_path).model.name_or_path == "smollm2-135m-instruct-q4_1"
    folder = run.checkpoint_path(2) / "adapter"
    assert AutoPeftModelForCausalLM.from_pretrained(folder).active_adapter == "default"
    settings = json.loads((folder / "adapter_config.json").read_text())
    elsewhere = Path("/elsewhere", Path(settings["base_model_name_or_path"]).name)
    moved = shutil.copytree(folder, tmp_path / "adapter")
    (moved / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": str(elsewhere)}))
    bare, policy = load_policy(str(moved), dtype="float32"), load_policy(str(run.path))
    assert bare.name == policy.name == "smollm2-135m-instruct-q4_1"
    assert kl_to_base(bare) == kl_to_base(policy) == kl_to_base(policy, reference=policy.adapter_off)
    assert max(kl_to_base(policy)) > 0


def test_a_checkpoint_can_be_named(run: RunDir, tmp_path: Path):
    """The folder of an earlier checkpoint is that one; the run is its newest; a corrupt one is refused."""
    hashes = [load_policy(str(path)).weights_hash() for path in (run.checkpoint_path(1), run.checkpoint_path(2))]
    assert hashes[0] != hashes[1] == load_policy(str(run.path)).weights_hash()
    copy = RunDir(shutil.copytree(run.path, tmp_path / "copy"))
    next(copy.checkpoint_path(1).rglob("*.safetensors")).write_bytes(b"spoilt")
    with refused(CheckpointError, copy.checkpoint_path(1)):
        load_policy(str(copy.checkpoint_path(1)))
    with refused(CheckpointError, "step-000009", "step-000001, step-000002"):
        load_policy(str(copy.checkpoint_path(9)))


@pytest.mark.parametrize("lora", [{"r": 4, "alpha": 8}, None], ids=["adapter", "every weight"])
def test_a_base_that_was_changed_is_refused_and_the_same_weights_in_other_files_are_not(
    tmp_path, pair_files, lora, caplog
):
    """Without a hash, since the dtype is another, the files decide."""
    folder = save_tiny(tmp_path / "model")
    settings = tiny_settings(tmp_path / "run", str(folder), *pair_files) | {"max_steps": 1, "lora": lora}
    train(TrainConfig.model_validate(settings))

    def load_base(**given: str) -> str:
        with load_policy(settings["output_dir"], **given).base() as base:
            return str(base.dtype)

    (folder / "generation_config.json").write_text('{"do_sample": false}')
    assert load_base() == "torch.float32"
    assert not caplog.records
    changed = json.loads((folder / "config.json").read_text()) | {"rms_norm_eps": 0.1}
    (folder / "config.json").write_text(json.dumps(changed))
    load_base()
    assert "config.json" in caplog.text
    if lora is not None:
        with refused(ModelError, folder, "generation_config.json"):
            load_base(dtype="bfloat16")
    save_tiny(folder, seed=1)
    for given in ({}, {"dtype": "bfloat16"}):
        with refused(ModelError, folder, "model.safetensors"):
            load_base(**given)


def test_a_path_that_is_not_there_is_no_model_on_the_hub_and_names_the_nearest(tmp_path: Path, monkeypatch):
    """Before a model is loaded; a hub id is asked for also where a folder is called like its owner."""
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr(Policy, "load", lambda config, **_: asked.append(config.name_or_path))
    with RunDir.create("runs/mine") as run:
        run.write_manifest(data={}, teacher=None, seeds={"seed": 0})
    for path in ("./nope", "a/b/nope", "runs/nope", "runs/nope/checkpoints/step-000002", "run.gguf"):
        with refused(ModelError, path):
            load_policy(path)
    for path in ("runs/mime", "./runs/min"):
        with refused(ModelError, path, "runs/mine"):
            load_policy(path)
    assert asked == []
    (tmp_path / "owner").mkdir()
    for path in ("owner/name", "name"):
        load_policy(path)
    assert asked == ["owner/name", "name"]


def test_what_cannot_be_evaluated_is_refused(tmp_path: Path):
    for text, named in (("{", "not valid JSON"), ("[]", ""), ("{}", "base_model_name_or_path")):
        (tmp_path / "adapter_config.json").write_text(text)
        with refused(ModelError, tmp_path / "adapter_config.json", named):
            load_policy(str(tmp_path))
    (tmp_path / "manifest.json").write_text(json.dumps({"opct_run": 1, "created": "now"}), encoding="utf-8")
    (tmp_path / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    with refused(ModelError, tmp_path):
        load_policy(str(tmp_path))
    with refused(ConfigError, "dtpye", "dtype"):
        load_policy("some/model", dtpye="float32")
