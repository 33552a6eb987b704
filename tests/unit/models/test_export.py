"""`opct export`: what is written loads elsewhere and is the evaluated model; what fails leaves nothing."""

import json
import shutil
import stat
import sys
from pathlib import Path

import pytest
import torch
import yaml
from peft import AutoPeftModelForCausalLM
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import opct
from opct.config.loader import load_config
from opct.config.schema import TrainConfig
from opct.errors import CheckpointError, ConfigError, ModelError
from opct.evals.config import EvalConfig
from opct.models import export as mechanics
from opct.models.from_run import load_policy
from opct.runs.run_dir import RunDir
from opct.training.trainer import train
from tests.hub import running_hub
from tests.refusals import refused
from tests.tiny import merged, save_tiny, tiny_settings
from tests.unit.cli.running import out_of
from tests.unit.cli.running import run as command

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
TOKEN = "hf_" + 34 * "x"
IDS = torch.tensor([[1, 40, 50, 60, 2]])


def trained(folder: Path, model: Path, pair_files: tuple[Path, Path], **changes) -> Path:
    """A run of one step, with a learning rate that moves every log-prob."""
    one = {"max_steps": 1, "data": {"validation_size": 0}, "rollout": {"num_generations": 1}, **changes}
    one["optim"] = {"learning_rate": 1e-1, "prompts_per_step": 2}
    train(TrainConfig.model_validate(merged(tiny_settings(folder, model, *pair_files), one)))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny(tmp_path_factory.mktemp("model") / "tiny")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, model: Path, pair_files) -> Path:
    """A LoRA run; read only."""
    return trained(tmp_path_factory.mktemp("runs") / "opct", model, pair_files)


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits.float()


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_adapter_loads_in_peft_by_its_own_name_of_the_base(run: Path, model: Path, tmp_path: Path, monkeypatch):
    """From any directory: the base is a whole path. The card has the license of the base."""
    monkeypatch.chdir(tmp_path)
    assert opct.export(run, adapter="adapter").path == Path("adapter")
    loaded = AutoPeftModelForCausalLM.from_pretrained("adapter")
    expected = load_policy(str(run)).model
    torch.testing.assert_close(logits(loaded), logits(expected), rtol=0, atol=1e-5)
    assert AutoTokenizer.from_pretrained("adapter").chat_template
    card = Path("adapter/README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert (front["library_name"], front["license"], front.get("base_model")) == ("peft", "mit", None)
    assert left_behind(tmp_path) == ["adapter"]
    assert opct.export(run, adapter="again").base_folder == str(model)


@pytest.mark.parametrize(("dtype", "apart"), [("float32", 1e-5), ("bfloat16", 0.3)])
def test_a_merged_model_is_the_evaluated_one_without_peft(run: Path, tmp_path: Path, dtype, apart: float):
    assert str(tmp_path / "merged") in out_of("export", run, "--merged", tmp_path / "merged", "--dtype", dtype)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert str(merged.dtype) == f"torch.{dtype}"
    expected = logits(load_policy(str(run)).model)
    torch.testing.assert_close(logits(merged), expected, rtol=0, atol=apart)
    with load_policy(str(run)).base() as base:
        assert (logits(base.model) - expected).abs().max() > 1
    assert load_policy(str(tmp_path / "merged")).name == str(tmp_path / "merged")


@pytest.fixture
def trusted(monkeypatch) -> list[bool | None]:
    """Whether each config that is loaded may bring its code."""
    seen, load = [], AutoConfig.from_pretrained

    def note(*arguments, **options):
        seen.append(options.get("trust_remote_code"))
        return load(*arguments, **options)

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", note)
    return seen


def test_a_fully_trained_model_is_exported_as_a_model_only(model: Path, pair_files, tmp_path: Path, trusted: list):
    """Code in the run folder does not run, whoever trusts the base."""
    run = trained(tmp_path / "full", model, pair_files, lora=None)
    trusted.clear()
    opct.export(run, merged=tmp_path / "out", trust_remote_code=True)
    assert trusted
    assert not any(trusted)
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits(found), logits(load_policy(str(run)).model), rtol=0, atol=1e-5)
    with refused(ModelError, "--merged"):
        opct.export(run, adapter=tmp_path / "adapter")
    assert left_behind(tmp_path) == ["full", "out"]


def test_a_card_has_the_evaluation_of_its_own_weights_only(run: Path, tmp_path: Path):
    copy = RunDir(shutil.copytree(run, tmp_path / "run"))
    opct.evaluate(copy.path, EvalConfig(suites=["benign"], n_benign=2, max_benign_tokens=4, kl_samples=0))
    results = json.loads(copy.results_path.read_text())
    cards = []
    for weights in (None, "of another step"):
        if weights is not None:
            results["run"]["weights"]["sha256"]["adapter/adapter_model.safetensors"] = weights
            copy.results_path.write_text(json.dumps(results))
        opct.export(copy.path, adapter=tmp_path / "out", overwrite=True)
        cards.append((tmp_path / "out" / "README.md").read_text())
    assert ["not evaluated" in card for card in cards] == [False, True]


def test_what_would_not_be_the_evaluated_model_is_refused(pair_files, tmp_path: Path, monkeypatch):
    """A merge that went wrong; a quantized base, or one that was changed; a corrupt checkpoint; what is no run."""
    model, out = save_tiny(tmp_path / "model"), tmp_path / "out"
    run = trained(tmp_path / "run", model, pair_files)
    monkeypatch.setattr(mechanics, "QUESTIONS", ("What is 1 plus 2?",))
    with monkeypatch.context() as patch:
        patch.setattr("peft.tuners.tuners_utils.BaseTuner.merge_and_unload", lambda self, **_: self.unload())
        with pytest.raises(ModelError):
            opct.export(run, merged=out)
    config = RunDir(run).config_path
    written = config.read_text()
    config.write_text(written.replace("quantization: null", "quantization: 4bit"))
    with refused(ModelError, "quantization=4bit"):
        opct.export(run, merged=out)
    config.write_text(written)
    save_tiny(model, seed=1)
    with refused(ModelError, model):
        opct.export(run, merged=out)
    save_tiny(model)
    checkpoint = RunDir(run).checkpoint_path(1)
    next(checkpoint.rglob("*.safetensors")).write_bytes(b"spoilt")
    for source, error, named in (
        (run, CheckpointError, run),
        (model, ModelError, model),
        (checkpoint / "adapter", ModelError, "merge_and_unload()"),
    ):
        with refused(error, named):
            opct.export(source, merged=out)
    assert left_behind(tmp_path) == ["model", "run"]


def test_of_a_new_commit_on_the_hub_the_weights_decide_and_an_adapter_names_the_one_that_it_was_trained_on(
    run: Path, tmp_path: Path, monkeypatch, caplog
):
    copy = RunDir(shutil.copytree(run, tmp_path / "run"))
    manifest = copy.read_manifest()
    manifest["weights"]["base"] = {"commit": {"sha256": "0123"}}
    (copy.path / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr("opct.models.from_run.fingerprint_weights", lambda base: {"commit": {"sha256": "4567"}})
    opct.export(copy.path, merged=tmp_path / "merged")
    assert not caplog.records
    opct.export(copy.path, adapter=tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["revision"] == "0123"
    (copy.path / "manifest.json").write_text(json.dumps(manifest | {"base": "of other weights"}))
    with refused(ModelError, "0123", "4567"):
        opct.export(copy.path, merged=tmp_path / "again")


def test_a_base_that_was_moved_is_asked_for_by_its_run(run: Path, model: Path, tmp_path: Path):
    copy = RunDir(shutil.copytree(run, tmp_path / "copy"))
    gone = str(tmp_path / "gone")
    copy.config_path.write_text(copy.config_path.read_text().replace(str(model), gone))
    config = load_config(copy.config_path, [f"output_dir={copy.path}"])
    for use in (
        lambda: load_policy(str(copy.path)),
        lambda: opct.export(copy.path, merged=tmp_path / "out"),
        lambda: opct.train(config, resume=True),
    ):
        with refused(ModelError, copy.path, gone, "model.name_or_path", copy.config_path):
            use()
    assert load_policy(str(copy.path), name_or_path=str(model)).has_adapter


def test_code_of_a_model_runs_only_where_the_caller_trusts_it(run: Path, tmp_path: Path, trusted: list):
    """The run's own setting does not count."""
    copy = shutil.copytree(run, tmp_path / "run")
    config = RunDir(copy).config_path
    config.write_text(config.read_text().replace("trust_remote_code: false", "trust_remote_code: true"))
    opct.export(copy, merged=tmp_path / "out")
    assert trusted
    assert not any(trusted)
    opct.export(copy, merged=tmp_path / "again", trust_remote_code=True)
    assert any(trusted)


def test_only_an_earlier_export_is_replaced(run: Path, model: Path, tmp_path: Path, monkeypatch):
    """Not another model, not the run's own base; the earlier one stays if the new one cannot take its name."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    own = (model / "README.md").read_text()
    (model / "README.md").write_text(own + "Made by opct 0.1\n")
    with refused(ModelError, model):
        opct.export(run, merged=model, overwrite=True)
    (model / "README.md").write_text(own)
    for overwrite, path in ((False, "mine"), (True, "mine"), (True, shutil.copytree(model, tmp_path / "other"))):
        with refused(ModelError, Path(path).name):
            opct.export(run, adapter=tmp_path / path, overwrite=overwrite)
    opct.export(run, adapter=tmp_path / "out")
    (tmp_path / "out" / "old").touch()
    # a run, and a folder of the user's, with a card that names opct
    for name, other in (("a run", "manifest.json"), ("mine too", "thesis.txt")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text("Made by opct 0.1.0.")
        (tmp_path / name / other).write_text('{"opct_run": 1, "created": "now"}')
        with refused(ModelError, "not an exported model"):
            opct.export(run, adapter=tmp_path / name, overwrite=True)
        assert (tmp_path / name / other).exists()
    with refused(ModelError, "--overwrite"):
        opct.export(run, adapter=tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(mechanics, "write_adapter", lambda trained, folder: folder.mkdir())
        patch.setattr("opct.reports.export.atomic_write", lambda path, text: path.parent.rmdir())
        with refused(ModelError, tmp_path / "out"):
            opct.export(run, adapter=tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "old").exists()
    monkeypatch.chdir(tmp_path / "out")
    opct.export(run, adapter=".", overwrite=True)
    assert not (tmp_path / "out" / "old").exists()
    assert left_behind(tmp_path) == ["a run", "mine", "mine too", "other", "out"]
    assert left_behind(tmp_path / "mine") == ["thesis.txt"]


CONVERTER = """
import pathlib, sys
folder, out = pathlib.Path(sys.argv[1]), sys.argv[sys.argv.index("--outfile") + 1]
assert (folder / "model.safetensors").is_file() and (folder / "tokenizer.json").is_file()
pathlib.Path(out).write_text("gguf " + sys.argv[sys.argv.index("--outtype") + 1])
"""
QUANTIZER = f"""#!{sys.executable}
import pathlib, sys
pathlib.Path(sys.argv[2]).write_text(pathlib.Path(sys.argv[1]).read_text() + " to " + sys.argv[3])
"""


@pytest.fixture
def llama_cpp(tmp_path: Path, monkeypatch) -> Path:
    """A folder that stands for a checkout of llama.cpp, built."""
    folder = tmp_path / "llama.cpp"
    (folder / "build" / "bin").mkdir(parents=True)
    (folder / "convert_hf_to_gguf.py").write_text(CONVERTER)
    quantizer = folder / "build" / "bin" / "llama-quantize"
    quantizer.write_text(QUANTIZER)
    quantizer.chmod(quantizer.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("LLAMA_CPP", str(folder))
    return folder


def test_a_gguf_is_what_llama_cpp_makes_of_the_merged_model(run, tmp_path, llama_cpp):
    opct.export(run, gguf=tmp_path / "out" / "model.gguf", quantize="q4_k_m")
    assert (tmp_path / "out" / "model.gguf").read_text() == "gguf auto to Q4_K_M"
    assert left_behind(tmp_path / "out") == ["model.gguf"]


def test_a_converter_that_fails_leaves_nothing(run, tmp_path, llama_cpp):
    (llama_cpp / "convert_hf_to_gguf.py").write_text("raise SystemExit('Model Tiny is not supported')")
    with refused(ModelError, "convert_hf_to_gguf.py", "Model Tiny is not supported"):
        opct.export(run, gguf=tmp_path / "out" / "model.gguf")
    assert left_behind(tmp_path / "out") == []


def test_options_that_exclude_each_other_are_refused(run: Path):
    merged_only = {"merged": "a", "quantize": "q8_0"}
    for options in ({}, {"adapter": "a", "merged": "b"}, merged_only, {"adapter": "a", "private": True}):
        with pytest.raises(ConfigError):
            opct.export(run, **options)


def test_a_model_is_pushed_with_its_card_and_the_token_stays_secret(run, tmp_path, monkeypatch, capsys):
    """Without a token nothing is asked; a taken name needs --overwrite; an adapter of a local base is no use there."""

    def pushed(*options: object) -> tuple[int, str]:
        code = command("export", run, *options)
        return code, "".join(capsys.readouterr())

    merged, again = ("--merged", tmp_path / "out", "--push"), ("--merged", tmp_path / "again", "--overwrite", "--push")
    with running_hub(monkeypatch, tmp_path / "hub") as hub:
        code, said = pushed(*merged, "me/mine")
        assert (code, hub.requests) == (1, [])
        assert "HF_TOKEN" in said
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        assert pushed("--push", "me/mine")[0] == 1
        code, said = pushed(*merged, "me/mine", "--private")
        assert code == 0
        assert f"{hub.url}/me/mine" in said
        assert hub.private["me/mine"]
        assert {"model.safetensors", "tokenizer.json", "README.md"} <= hub.repos["me/mine"].keys()
        assert b'folder = "me/mine"' in hub.repos["me/mine"]["README.md"]
        code, said = pushed("--merged", tmp_path / "again", "--push", "me/mine")
        assert code == 1
        assert "--overwrite" in said
        assert pushed(*again, "me/mine")[0] == 0
        hub.status = 403
        code, text = pushed(*again, "me/other")
        assert code == 1
        assert "me/other" in text
        assert TOKEN not in said + text
        assert f"Bearer {TOKEN}" in hub.tokens
