"""A loaded model in place of a name: the run is that of the name, and what cannot be right is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

import opct
from opct.errors import ConfigError, EvaluationError, ModelError, OutOfMemory, RunError
from opct.models.adapters import quiet_peft
from opct.models.export import find_trained, write_merged
from opct.models.from_run import load_policy
from opct.runs.run_dir import RunDir
from tests.progress import Noted
from tests.refusals import refused
from tests.tiny import save_tiny
from tests.unit.training.conftest import NO_VALIDATION, metrics, untimed, weights


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> dict:
    """The arguments of `opct.train` for the model in a folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return {"model": model, "tokenizer": AutoTokenizer.from_pretrained(folder)}


def unnamed(config) -> dict:
    """The settings of a config without those that a loaded model brings."""
    return config.model_dump(exclude={"model"}, exclude_unset=True)


@pytest.mark.parametrize("settings", [{}, {"lora": None}], ids=["adapter", "every weight"])
def test_a_loaded_model_trains_as_a_named_one_to_the_last_bit(make_config, trained, tiny_folder, tmp_path, settings):
    """Adapter and full fine-tuning; the folder is known by its name then, and loads for an evaluation."""
    settings = {"max_steps": 2, **settings}
    named, given = trained(**settings), make_config(**settings, output_dir=str(tmp_path / "given"))
    result = opct.train(unnamed(given), **loaded(tiny_folder))
    assert (result.status, result.step) == ("finished", 2)
    states = [RunDir(config.output_dir).latest_checkpoint() / "state.safetensors" for config in (given, named)]
    assert states[0].read_bytes() == states[1].read_bytes()
    assert untimed(given) == untimed(named)
    run = RunDir(given.output_dir)
    assert run.read_manifest()["base"] == RunDir(named.output_dir).read_manifest()["base"]
    with result.policy.base() as base:
        assert base.base_hash() == run.read_manifest()["base"]
    policy = load_policy(str(run.path))
    assert policy.name == str(tiny_folder)
    assert opct.Policy(result.model, policy.tokenizer).weights_hash() == policy.weights_hash()


def test_it_resumes_with_the_same_weights_alone(make_config, trained, tiny_folder, tmp_path):
    """Interrupted before its first step; another model of the same name; the same object; that of the whole run."""
    whole, config = trained(max_steps=2), make_config(max_steps=2, output_dir=str(tmp_path / "given"))
    same = loaded(tiny_folder)
    first = opct.train(unnamed(config), **same, progress=Noted("validation before"))
    assert first.status == "interrupted"
    other = loaded(save_tiny(tmp_path / "other", seed=1))
    other["model"].name_or_path = str(tiny_folder)
    with refused(RunError, "base model's weights"):
        opct.train(unnamed(config), **other, resume=True)
    with refused(ModelError, "unload()"):
        opct.train(unnamed(config), **same, resume=True)
    same["model"] = first.model.unload()
    assert opct.train(unnamed(config), **same, resume=True).step == 2
    assert weights(config) == weights(whole)
    assert [row["step"] for row in metrics(config)] == [row["step"] for row in metrics(whole)]


def test_a_name_that_stands_for_other_weights_is_refused_when_the_run_is_loaded(make_config, tiny_folder, tmp_path):
    """The weights were changed after they were loaded."""
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "model"))
    config, given = make_config(max_steps=1, data=NO_VALIDATION), loaded(folder)
    with torch.no_grad():
        given["model"].get_output_embeddings().weight.mul_(1.1)
    result = opct.train(unnamed(config), **given)
    for call in (load_policy, lambda path: write_merged(find_trained(path), tmp_path / "merged")):
        with refused(ModelError, folder, "other weights"):
            call(config.output_dir)
    small = {"suites": ["benign"], "n_benign": 1, "kl_samples": 1, "max_benign_tokens": 4}
    evaluated = opct.evaluate(result.policy, **small)
    assert evaluated.out == RunDir(config.output_dir).path
    about = evaluated.results["run"]
    assert (about["method"], about["seed"], about["weights"]["step"]) == ("opct", config.seed, 1)
    with result.policy.base() as base, refused(EvaluationError, "off", config.output_dir):
        opct.evaluate(base, **small)
    moved = shutil.move(config.output_dir, tmp_path / "moved")  # without its run it is just a policy
    assert opct.evaluate(result.policy, out=tmp_path / "alone", **small).results["run"]["method"] is None
    shutil.move(moved, config.output_dir)
    given["model"] = result.model.unload()
    with refused(EvaluationError, "off", config.output_dir):
        opct.evaluate(result.policy, out=tmp_path / "out", **small)
    given["model"].save_pretrained(folder)
    assert load_policy(config.output_dir).has_adapter


@pytest.mark.parametrize("settings", [{}, {"lora": None}], ids=["adapter", "every weight"])
def test_a_result_has_the_template_and_dtype_of_its_run_which_is_loaded_in_it(make_config, tiny_folder, settings):
    config, given = make_config(max_steps=1, **settings, data=NO_VALIDATION), loaded(tiny_folder, torch.bfloat16)
    given["tokenizer"].chat_template += "{% if mark %}!{% endif %}"
    model = {"chat_template_kwargs": {"mark": True}}
    result = opct.train({**unnamed(config), "model": model}, **given)
    run = RunDir(config.output_dir)
    known, policy = run.read_manifest(), result.policy
    assert (policy.renderer.template_hash, policy.dtype, known["dtype"]) == (
        known["template"],
        torch.bfloat16,
        "bfloat16",
    )
    assert opct.Policy(result.model, given["tokenizer"], **model).renderer.template_hash == known["template"]
    assert load_policy(str(run.path)).dtype == torch.bfloat16
    write_merged(find_trained(run.path), run.path / "merged")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_the_object_has_no_adapter_and_trains_as_before(
    make_config, trained, tiny_folder, tmp_path, error
):
    """In a step, where the run is refused, and where a part of the adapter to continue has no place."""
    whole, config = trained(max_steps=2), make_config(max_steps=2, output_dir=str(tmp_path / "given"))
    same = loaded(tiny_folder)

    class Fails:
        def on_step_end(self, args, state, control, **_):
            raise error

    with pytest.raises(error):
        opct.train(unnamed(config), **same, callbacks=[Fails()])
    with pytest.raises(RunError):
        opct.train(unnamed(config), **same)
    half = Path(shutil.copytree(RunDir(whole.output_dir).latest_checkpoint() / "adapter", tmp_path / "half"))
    settings = json.loads((half / "adapter_config.json").read_text())
    (half / "adapter_config.json").write_text(json.dumps(settings | {"target_modules": settings["target_modules"][1:]}))
    with refused(ModelError, half):
        opct.train({**unnamed(config), "model": {"adapter": str(half)}}, **same, overwrite=True)
    opct.train(unnamed(config), **same, overwrite=True)
    assert weights(config) == weights(whole)


def test_a_fully_trained_model_is_loaded_and_other_weights_are_not_its_base(
    make_config, tiny_folder, tmp_path, monkeypatch
):
    """In bfloat16, so in another dtype than its weights were trained in; told in float32, where that fits."""
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "model"))
    config, given = make_config(max_steps=1, lora=None, data=NO_VALIDATION), loaded(folder, torch.bfloat16)
    opct.train(unnamed(config), **given)
    loaded(folder, torch.bfloat16)["model"].save_pretrained(folder)
    with load_policy(config.output_dir).base() as base:
        assert base.name == str(folder)
    save_tiny(folder, seed=1)
    policy = load_policy(config.output_dir)
    with refused(ModelError, folder, "other weights", "kl_samples=0"):
        policy.base()
    monkeypatch.setattr("opct.models.loading.free_memory", lambda device: 1000)
    with refused(OutOfMemory, folder, "kl_samples=0"):
        policy.base()


def test_what_cannot_be_right_is_refused_before_anything_is_written(make_config, tiny_folder):
    config, same = unnamed(make_config()), loaded(tiny_folder)

    def fails(*words, error=ModelError, settings=None, **changes):
        with refused(error, *words):
            opct.train(config | (settings or {}), **same | changes)

    fails("give both", error=ConfigError, tokenizer=None)
    fails("tokenizer=", tokenizer="tiny")
    fails("model=", "Linear", model=torch.nn.Linear(1, 1))
    fails("model.dtype is bfloat16", "float32", settings={"model": {"dtype": "bfloat16"}})
    fails("model.device is cuda", "cpu", settings={"model": {"device": "cuda"}})
    fails("save_pretrained", "nowhere", settings={"model": {"name_or_path": "/nowhere/model"}})
    fails("engine=verl", error=ConfigError, settings={"engine": "verl"})
    fails("rollout.engine=vllm", error=ConfigError, settings={"rollout": {"engine": "vllm"}})
    fails("float16", error=ConfigError, **loaded(tiny_folder, torch.float16))
    nameless = loaded(tiny_folder)["model"]
    nameless.name_or_path = nameless.config._name_or_path = ""
    fails("save_pretrained", model=nameless)
    with quiet_peft():
        adapted = get_peft_model(loaded(tiny_folder)["model"], LoraConfig(target_modules=["q_proj"]))
    fails("unload()", "model.adapter", model=adapted)
    assert not Path(config["output_dir"]).exists()
