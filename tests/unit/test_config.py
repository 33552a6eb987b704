import shlex
import subprocess
import sys
from pathlib import Path
from typing import Literal, Self

import pytest
from pydantic import Field, model_validator

from opct.config.loader import MAX_BYTES, dump_config, load_config, load_run_config, load_settings
from opct.config.presets import PRESETS
from opct.config.schema import ModelConfig, TrainConfig, flat_settings
from opct.config.section import Section
from opct.errors import ConfigError
from opct.evals.config import EvalConfig
from opct.experiments.config import ExperimentConfig
from tests.refusals import refused

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def message(*arguments, **keywords) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(*arguments, **keywords)
    return str(caught.value)


def settings(config: TrainConfig) -> dict:
    return flat_settings(config.model_dump())


PAPER_COMMON = {
    "method": "opct",
    "lora.r": 32,
    "optim.adam_beta1": 0.9,
    "optim.adam_beta2": 0.95,
    "optim.lr_scheduler_type": "constant",
    "optim.warmup_steps": 0,
    "loss.estimator": "sampled",
    "loss.divergence": "reverse_kl",
    "loss.reduction": "sum",
    "teacher.kind": "base",
    "data.anchor_fraction": 0.0,
    "rollout.top_p": 1.0,
    "rollout.top_k": 0,
}
PAPER = {  # lr, prompts, generations, tokens, epochs, temperature, kl_coef, gamma
    "paper_released": (5e-6, 8, 3, 1024, 3.0, 1.0, 1.0, 0.0),
    "paper_sycophancy_code": (1e-5, 64, 8, 2048, 1.0, 1.0, 1.0, 0.0),
    "paper_sycophancy_quoted": (5e-6, 16, 4, 2048, 1.0, 0.7, 2.0, 0.9),
}


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_pinned(name):
    found = settings(load_config(preset=name))
    assert {key: found[key] for key in PAPER_COMMON} == PAPER_COMMON
    keys = (
        *("optim.learning_rate", "optim.prompts_per_step", "rollout.num_generations"),
        *("rollout.max_completion_tokens", "num_train_epochs", "rollout.temperature", "loss.kl_coef"),
        "loss.kl_discount_factor",
    )
    assert tuple(found[key] for key in keys) == PAPER[name]


def test_layers_default_preset_file_override(write):
    path = write("preset: paper_released\noptim: {learning_rate: 1e-3}\nlora: {alpha: 7}\n")
    config = load_config(path, ["lora.r=4", "seed=1", "seed=2"])
    assert config.optim.learning_rate == 1e-3  # file over preset
    assert config.optim.prompts_per_step == 8  # preset over default
    assert (config.lora.r, config.lora.alpha) == (4, 7)  # override over preset; groups are merged
    assert config.seed == 2  # the later override
    assert load_config(path, preset="paper_sycophancy_code").optim.prompts_per_step == 64  # argument over file


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_is_the_defaults_and_says_so(write, text: str, caplog):
    caplog.set_level("INFO")
    assert load_config(write(text)) == load_config() == TrainConfig()
    assert "run.yaml" in caplog.text


def test_a_file_that_cannot_be_read_says_what_to_do(tmp_path):
    large, latin = tmp_path / "large.yaml", tmp_path / "latin.yaml"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    latin.write_bytes("output_dir: caf\xe9\n".encode("latin-1"))
    missing = tmp_path / "none.yaml"
    for path, why in ((missing, ""), (tmp_path, ""), (large, f"{MAX_BYTES:,}"), (latin, "0xe9")):
        assert str(path) in message(path)
        assert why in message(path)


def test_all_faults_in_one_message_in_the_order_of_the_file(write):
    path = write(
        "learning_rate: 3\n"
        "seed: -1\n"
        "loss:\n"
        "  estimator: samplde\n"
        "  kl_coeff: 2\n"
        "optimizer:\n"
        "  learning_rate: 1\n"
        "lora: 3\n"
        "data: {pairs: x.jsonl}\n"
    )
    lines = message(path, ["rollout.num_generations=two", "max_steps"]).splitlines()
    assert "9 faults" in lines[0]
    expected = [
        (1, "learning_rate", "mean optim.learning_rate?"),
        (2, "seed", "-1"),
        (4, "loss.estimator", "mean sampled?"),
        (5, "loss.kl_coeff", "mean loss.kl_coef?"),
        (7, "optimizer.learning_rate", "mean optim.learning_rate?"),
        (8, "lora", "null"),
        (9, "data.pairs", "[x.jsonl]"),
    ]
    for line, (number, name, part) in zip(lines[1:8], expected, strict=True):
        assert line.startswith(f"  {path}:{number}: {name}: ")
        assert part in line
    for line, override in zip(lines[8:], ("max_steps", "rollout.num_generations=two"), strict=True):
        assert line.startswith(f"  override {override}: ")


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("optim.learning_rate=true", "number"),
        ("max_steps=1.5", "integer"),
        ("max_steps=true", "integer"),
        ("model.trust_remote_code=1", "boolean"),
        ("output_dir=3", "string"),
        ("model.chat_template_kwargs=3", "{name: value}"),
        ("lora.target_modules=3", "list"),
        ("data.pairs=[]", "at least 1 item"),
        ("data.pairs=[1]", "data.pairs.0"),
        ("optim.learning_rate=.inf", "finite"),
        ("optim.learning_rate=.nan", "finite"),
        ("model.dtype=bf16", "mean bfloat16?"),
        ("load_in_4bit=true", "mean model.quantization?"),
        ("seed=", "`null`"),
        ("output_dir=!!int abc", "'abc'"),
        ("seed=[1", "not valid YAML"),
        ("output_dir=!!python/name:os.system x", "!!python/name:"),
        ("=3", "`section.name=value`"),
        ("lora=none", "null"),
        ("zzzzz=1", "output_dir"),
        ("lora.dropout=1.0", "less than 1"),
        ("loss.thinking_tags=['', x]", "at least 1 character"),
        ("preset=paper", "paper_released"),
    ],
)
def test_one_bad_override(override, part):
    text = message(overrides=[override])
    assert "1 fault" in text
    assert f"override {override}" in text
    assert part in text


def test_a_key_given_twice_is_refused(write):
    path = write("seed: 1\nlora:\n  r: 1\n  r: 2\nseed: 2\n")
    text = message(path)
    for line, name, first in ((4, "lora.r", 3), (5, "seed", 1)):
        assert f"{path}:{line}: {name}: " in text
        assert f"{path}:{first}" in text


LEVELS = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 10))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("data: &d\n  pairs: [*d]\n", "YAML"),  # it refers to itself
        (f"l0: &l0 x\n{LEVELS}\n", "100,000"),  # nine levels of nine aliases are 500 bytes, and 9^9 values
        ("data: " + "[" * 400, "YAML"),
        ("optim.learning_rate: 3\n", "`learning_rate:`"),  # how to write it in a file
        ("lora:\n  [a]: 1\n", "list"),
        ("seed: [1\nx: 2\n", ":2:2: "),
        ("- a\n", ":1: "),
    ],
)
def test_files_that_are_no_config(write, text, part):
    assert part in message(write(text))


def test_a_name_without_a_value_is_not_null(write):
    """`lora: null` trains every weight: a group whose settings are all comments must not mean that."""
    path = write("lora:\n  #r: 8\nmax_steps: null\noutput_dir: ''\n")
    [fault] = message(path).splitlines()[1:]
    assert f"{path}:1: lora: " in fault


@pytest.mark.parametrize(
    ("model_class", "text", "said"),
    [
        (TrainConfig, "seed: 1\narms: {a: {}}", "`opct experiment`"),
        (ExperimentConfig, "optim: {}", "`opct train`"),
        (EvalConfig, "attacker: grpo", "`opct attack`"),
        (TrainConfig, "max_steps: 3\nsuites: [benign]", ":2: suites: "),
    ],
)
def test_a_file_of_another_command(write, model_class, text, said):
    """A setting of another command in the right file is a fault like others."""
    with refused(ConfigError, said):
        load_settings(model_class, write(text))


@pytest.mark.parametrize(
    "overrides", [[], ["lora=null", "output_dir='1e5'", "model.revision='0123'", "optim.learning_rate=5e-6"]]
)
def test_dump_and_load_give_the_same(tmp_path, overrides):
    config = load_config(overrides=overrides)
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path) == config


def test_the_file_of_a_run_of_an_earlier_version_is_read_without_what_that_alone_had(write, caplog):
    caplog.set_level("INFO")
    path = write("method: sft\nlora: null\nshards: 2\nloss: {estimator: exact, reduction: sum}\nold: {a: 1}\n")
    assert load_run_config(path) == TrainConfig(method="sft", lora=None, loss={"reduction": "sum"})
    for name in ("shards", "loss.estimator", "old"):
        assert f"run.yaml: {name}" in caplog.text
    assert "3 faults" in message(path)
    with refused(ConfigError, "run.yaml:1", "-1"):
        load_run_config(write("seed: -1\n"))


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("loss.estimater", "loss.estimator"),
        ("temperature", "rollout.temperature"),
        ("optim.num_generations", "rollout.num_generations"),
        ("rollout.topk", "rollout.top_k"),
        ("los.top_k", "loss.top_k"),
        ("lora.rank", "lora.r"),
        ("max_step", "max_steps"),
        ("lr", "optim.learning_rate"),
        ("dataset", "data.pairs"),
        ("rollout.max_new_tokens", "rollout.max_completion_tokens"),
        ("qqq", None),
    ],
)
def test_nearest_setting(name, right):
    said = message(overrides=[f"{name}=1"])
    assert (f"mean {right}?" in said) if right else ("mean" not in said)


def test_every_preset_is_pinned_and_every_config_is_there():
    assert set(PRESETS) == set(PAPER)
    named = {"jailbreak", "safety_awareness", "quickstart", "sycophancy", "full_finetuning"}
    assert {path.stem for path in shipped()} >= named


def shipped() -> list[Path]:
    """Configs of `opct train`."""
    return sorted(path for path in CONFIGS.rglob("*.yaml") if not path.read_text().startswith("# opct experiment"))


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.name)
def test_a_shipped_config_loads_and_begins_with_its_command(path):
    load_config(path)
    first = path.read_text(encoding="utf-8").splitlines()[0]
    command = shlex.split(first.removeprefix("# "))
    assert command[:2] == ["opct", "train"]
    assert f"configs/{path.relative_to(CONFIGS).as_posix()}" in command[2:]


class Refine(Section):
    name: Literal["refine"] = "refine"
    rounds: int = Field(5, ge=1)


class Transfer(Section):
    name: Literal["transfer"] = "transfer"
    pool: str


class AnyConfig(Section):
    n_questions: int | None = None
    attacker: Refine | Transfer = Field(Refine(), discriminator="name")
    suites: list[str] = Field(["a"])

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.n_questions == 13:
            raise ValueError("n_questions=13 is unlucky")
        return self


def test_any_model_is_loaded_from_a_base_a_file_and_overrides(write):
    path = write("attacker: {name: transfer, pool: a.jsonl}\n")
    base = {"n_questions": 7, "attacker.pool": "b.jsonl", "suites": ("x", "y")}
    assert load_settings(AnyConfig, path, ["n_questions=8"], base=base) == AnyConfig(
        n_questions=8, attacker=Transfer(pool="a.jsonl"), suites=["x", "y"]
    )
    assert load_settings(AnyConfig, overrides=["attacker.rounds=2", "attacker.name=refine"]).attacker.rounds == 2


def test_faults_in_any_model(write):
    def fault(*overrides: str, text: str = "") -> str:
        with pytest.raises(ConfigError) as caught:
            load_settings(AnyConfig, write(text), overrides)
        return str(caught.value)

    assert "attacker.pool" in fault("attacker.name=transfer")
    assert "mean refine?" in fault("attacker.name=refin")
    assert "mean attacker.rounds?" in fault("attacker.name=refine", "attacker.round=1")
    assert "attacker.rounds: 0" in fault("attacker.name=refine", "attacker.rounds=0")
    assert "run.yaml:2: n_questions=13" in fault(text="suites: []\nn_questions: 13\n")
    assert "2 faults" in fault("attacker.rounds=2", "suites=3")


def test_settings_made_in_python_have_the_same_messages():
    """Of each fault the name, the value and the nearest name; nested sections may be given as dicts or objects."""
    with pytest.raises(ConfigError) as caught:
        TrainConfig(max_step=3, optim={"lr": 1}, model=ModelConfig(), seed=-1)
    _, *faults = str(caught.value).splitlines()
    for line, parts in zip(
        faults, (("optim.lr", "optim.learning_rate"), ("max_step", "max_steps"), ("seed", "-1")), strict=True
    ):
        assert all(part in line for part in parts)


@pytest.mark.parametrize(("own", "name"), [("lora: null", "lora"), ("rollout: {engine: vllm}", "rollout.engine")])
def test_a_quantised_base_is_frozen_and_sampled_from_here(write, own: str, name: str):
    with refused(ConfigError, name):
        load_config(write(f"model: {{quantization: 4bit}}\n{own}\n"))


@pytest.mark.parametrize("own", ["use_dora: true", "modules_to_save: [norm]"])
def test_an_adapter_that_vllm_cannot_serve_is_refused(write, own: str):
    with refused(ConfigError, own.split(":")[0], "rollout.engine=vllm"):
        load_config(write(f"lora: {{{own}}}\nrollout: {{engine: vllm}}\n"))


def test_a_faulty_setting_in_python_is_an_error_of_this_package_whatever_was_imported():
    code = "from opct.evals.config import EvalConfig; EvalConfig(n_questions=-1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "opct.errors.ConfigError: " in done.stderr
