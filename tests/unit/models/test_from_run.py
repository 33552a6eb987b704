"""The policy that a path stands for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from opct.config.loader import load_config
from opct.config.schema import TrainConfig
from opct.data.reasoning import Reasoning
from opct.errors import CheckpointError, ConfigError, ModelError
from opct.models import loading
from opct.models.from_run import load_policy
from opct.models.gguf import smollm2_q4_path
from opct.models.policy import Policy
from opct.runs.run_dir import RunDir
from opct.training.setup import load_data
from opct.training.trainer import train
from tests.tiny import save_tiny, tiny_tokenizer

PROMPTS = [({"role": "user", "content": "What is 1 plus 2?"},)]


def kl_to_base(policy: Policy, **options) -> list[float]:
    """Of one greedy answer, token by token."""
    answers = policy.generate(PROMPTS, seeds=[0], max_completion_tokens=6, temperature=0)
    return policy.token_kl(PROMPTS, PROMPTS, answers, **options)[0]


def test_a_run_and_its_adapter_keep_their_chat_template_arguments_and_thinking_tags(make_config, tmp_path: Path):
    """Trained without thinking, it is evaluated so; a caller's own arguments go before."""
    folder, tokenizer = save_tiny(tmp_path / "model"), tiny_tokenizer()
    tokenizer.chat_template += "{% if enable_thinking is false %}[/T]{% endif %}"
    tokenizer.save_pretrained(folder)
    kwargs = {"enable_thinking": False}
    config = make_config(
        max_steps=1,
        model={"name_or_path": str(folder), "chat_template_kwargs": kwargs},
        loss={"thinking_tags": ("[T]", "[/T]")},
    )
    train(config)
    run = RunDir(config.output_dir)
    for path in (run.path, run.latest_checkpoint() / "adapter"):
        renderer = load_policy(str(path)).renderer
        assert (renderer.chat_template_kwargs, renderer.reasoning) == (kwargs, Reasoning.of_tags(("[T]", "[/T]")))
        assert renderer.text(PROMPTS[0]).endswith("[/T]")
    given = load_policy(str(run.path), thinking_tags=("<a>", "</a>")).renderer
    assert given.reasoning == Reasoning.of_tags(("<a>", "</a>"))
    assert "[/T]" not in load_policy(str(run.path), chat_template_kwargs={}).renderer.text(PROMPTS[0])
    assert tokenizer.decode(load_data(config).pairs[0].prompt_ids).endswith("[/T]")


@pytest.mark.parametrize(("given", "loaded"), [({}, "4bit"), ({"quantization": "8bit"}, "8bit")])
def test_the_adapter_of_a_quantised_run_is_loaded_on_the_quantised_base(run, tmp_path, monkeypatch, given, loaded):
    copy = RunDir(shutil.copytree(run.path, tmp_path / "copy"))
    copy.config_path.write_text(copy.config_path.read_text().replace("quantization: null", "quantization: 4bit"))
    configs = []
    monkeypatch.setattr(Policy, "load", lambda config, **_: configs.append(config) or SimpleNamespace())
    load_policy(str(copy.checkpoint_path(2) / "adapter"), **given)
    assert [config.quantization for config in configs] == [loaded]


def test_a_fully_fine_tuned_run_keeps_its_dtype_and_is_measured_against_the_model_it_came_from(
    make_config, tiny_folder: Path, monkeypatch
):
    """`auto` finds bfloat16 faster when the run begins and slower ever after: it is loaded and resumed in bfloat16.

    The default reference is the untrained model, as if it had been given; it is loaded when it is first needed.
    """
    config = make_config(max_steps=1, lora=None, model={"dtype": "auto"})
    times = {torch.float32: 2.0, torch.bfloat16: 1.0}
    monkeypatch.setattr(loading, "_matmul_time_s", lambda dtype, device, hidden_size: times[dtype])
    train(config)
    times[torch.bfloat16] = 4.0
    policy = load_policy(config.output_dir)
    assert (policy.dtype, policy.dtype_reason) == (torch.bfloat16, "bfloat16, as the run began")
    assert (policy.name, policy.has_base, policy.has_adapter) == (str(tiny_folder), True, False)
    assert max(kl_to_base(policy)) > 1e-4
    untrained = load_policy(str(tiny_folder), dtype="bfloat16")
    with policy.base() as base, policy.base() as again:
        assert base is again
        assert base.dtype == torch.bfloat16
        assert base.base_hash() == untrained.base_hash() != policy.base_hash()
    assert not untrained.has_base
    assert max(kl_to_base(untrained)) == 0
    assert load_policy(config.output_dir, dtype="float32").dtype == torch.float32
    assert train(config.model_copy(update={"max_steps": 2}), resume=True).step == 2
    assert RunDir(config.output_dir).read_manifest()["dtype"] == "bfloat16"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path, pair_files: tuple[Path, Path]) -> RunDir:
    """Two steps of LoRA on what is in the cache as the Q4_1 weights, with a checkpoint of each; read only."""
    settings = {
        "output_dir": str(tmp_path_factory.mktemp("adapter") / "run"),
        "max_steps": 2,
        "save_steps": 1,
        "model": {"name_or_path": "smollm2-135m-instruct", "dtype": "float32", "device": "cpu"},
        "lora": {"r": 4, "alpha": 8},
        "data": {"pairs": [str(pair_files[0])], "validation_size": 0},
        "rollout": {"num_generations": 1, "max_completion_tokens": 4},
        "optim": {"learning_rate": 1e-2, "prompts_per_step": 2},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPCT_CACHE", str(tmp_path_factory.mktemp("cache")))
        shutil.copytree(tiny_folder, smollm2_q4_path())
        train(TrainConfig.model_validate(settings))
        yield RunDir(settings["output_dir"])


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_a_run_names_the_weights_that_the_default_stood_for_and_its_adapter_loads_in_peft(run: RunDir, tmp_path: Path):
    """PEFT finds the base in the folder; `load_policy` finds it too where the adapter was made with another cache."""
    from peft import AutoPeftModelForCausalLM

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
    assert policy.has_base


def test_a_checkpoint_can_be_named(run: RunDir, tiny_folder: Path, tmp_path: Path):
    """The folder of an earlier checkpoint is that one; the run is its newest; a corrupt one is refused.

    The hash of an adapter's weights begins with that of its base.
    """
    hashes = [load_policy(str(path)).weights_hash() for path in (run.checkpoint_path(1), run.checkpoint_path(2))]
    assert hashes[0] != hashes[1] == load_policy(str(run.path)).weights_hash()
    assert hashes[0].startswith(load_policy(str(tiny_folder), dtype="float32").weights_hash() + "+")
    copy = RunDir(shutil.copytree(run.path, tmp_path / "copy"))
    next(copy.checkpoint_path(1).rglob("*.safetensors")).write_bytes(b"spoilt")
    with pytest.raises(CheckpointError, match="step-000001 is corrupt"):
        load_policy(str(copy.checkpoint_path(1)))
    with pytest.raises(CheckpointError, match=r"no checkpoint .*step-000009: the run has step-000001, step-000002"):
        load_policy(str(copy.checkpoint_path(9)))


CODE = """
from pathlib import Path
from transformers import LlamaConfig
Path({ran!r}).touch()

class Config(LlamaConfig):
    model_type = "not-built-in"
"""


def test_a_run_folder_cannot_make_its_code_run(run: RunDir, tiny_folder: Path, tmp_path: Path, monkeypatch):
    """Its `config.yaml` asks for it; only who loads it may. The model's folder holds code that makes the file `ran`."""
    ran, copy = tmp_path / "ran", shutil.copytree(run.path, tmp_path / "copy")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    model = shutil.copytree(tiny_folder, tmp_path / "model")
    (model / "own.py").write_text(CODE.format(ran=str(ran)))
    own = {"model_type": "not-built-in", "auto_map": {"AutoConfig": "own.Config"}}
    (model / "config.json").write_text(json.dumps(json.loads((model / "config.json").read_text()) | own))
    path = RunDir(copy).config_path
    written = yaml.safe_load(path.read_text())
    written["model"] |= {"name_or_path": str(model), "trust_remote_code": True}
    path.write_text(yaml.safe_dump(written))
    with pytest.raises(ModelError, match=r"custom code.*`opct chat` with trust_remote_code=true") as refused:
        load_policy(str(copy))
    assert str(refused.value).count("Only for code that you trust") == 1
    assert not ran.exists()
    with pytest.raises(ModelError):  # it runs, and is no model for all that
        load_policy(str(copy), trust_remote_code=True)
    assert ran.exists()


@pytest.mark.parametrize(
    ("text", "part"), [("{", "not valid JSON"), ("[]", "not a JSON object"), ("{}", "does not name the adapter")]
)
def test_a_broken_adapter_config_is_named(tmp_path: Path, text: str, part: str):
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(ModelError, match=part):
        load_policy(str(tmp_path))


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("./nope", None),
        ("a/b/nope", None),
        ("runs/nope", None),
        ("runs/nope/checkpoints/step-000002", None),
        ("runs/mime", "runs/mine"),
        ("./runs/min", "runs/mine"),
        ("run.gguf", None),
    ],
)
def test_a_folder_that_is_not_there_is_no_model_on_the_hub(tmp_path: Path, monkeypatch, path: str, meant: str | None):
    """Before a tokenizer is looked for; the message has the nearest name in that folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Policy, "load", None)
    with RunDir.create("runs/mine") as run:
        run.write_manifest(data={}, teacher=None, seeds={"seed": 0})
    with pytest.raises(ModelError, match=f"There is no .* {path}: check the path") as error:
        load_policy(path)
    assert str(error.value).partition("Did you mean ")[2].partition("?")[0] == (meant or "")


@pytest.mark.parametrize("path", ["owner/name", "name"])
def test_what_can_be_on_the_hub_is_asked_for_there(tmp_path: Path, monkeypatch, path: str):
    """Also where a folder is there that is called like the owner."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    asked = []
    monkeypatch.setattr(Policy, "load", lambda config, **_: asked.append(config.name_or_path))
    load_policy(path)
    assert asked == [path]


def test_without_the_hub_a_name_that_is_nowhere_is_said_to_be_nowhere(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"no folder owner/name here, no cached hub model .* HF_HUB_OFFLINE is set"):
        load_policy("owner/name")


def test_a_run_without_a_checkpoint_and_an_unknown_setting_are_refused(tmp_path: Path):
    (tmp_path / "manifest.json").write_text(json.dumps({"opct_run": 1}), encoding="utf-8")
    (tmp_path / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    with pytest.raises(ModelError, match="has no checkpoint to evaluate"):
        load_policy(str(tmp_path))
    with pytest.raises(ConfigError, match=r"dtpye: unknown setting .*did you mean dtype"):
        load_policy("some/model", dtpye="float32")
