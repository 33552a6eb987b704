import shlex
from pathlib import Path

import pytest
import yaml

from opct.config.loader import MAX_BYTES, dump_config, load_config, load_run_config, load_settings
from opct.config.packaged import PACKAGED
from opct.config.presets import PRESETS
from opct.config.schema import ModelConfig, TrainConfig, flat_settings
from opct.errors import ConfigError, unknown
from opct.evals.attackers.config import AttackConfig
from opct.experiments.config import ExperimentConfig
from tests.conftest import REPOSITORY
from tests.refusals import refused

CONFIGS = REPOSITORY / "configs"


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


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


@pytest.mark.parametrize("name", sorted({*PRESETS, *PAPER}))
def test_preset_is_pinned(name):
    settings = flat_settings(load_config(preset=name).model_dump())
    assert {key: settings[key] for key in PAPER_COMMON} == PAPER_COMMON
    keys = (
        *("optim.learning_rate", "optim.prompts_per_step", "rollout.num_generations"),
        *("rollout.max_completion_tokens", "num_train_epochs", "rollout.temperature", "loss.kl_coef"),
        "loss.kl_discount_factor",
    )
    assert tuple(settings[key] for key in keys) == PAPER[name]


def test_layers_default_preset_file_override(write):
    path = write("preset: paper_released\noptim: {learning_rate: 1e-3}\nlora: {alpha: 7}\n")
    config = load_config(path, ["lora.r=4", "seed=1", "seed=2"])
    assert config.optim.learning_rate == 1e-3  # file over preset
    assert config.optim.prompts_per_step == 8  # preset over default
    assert (config.lora.r, config.lora.alpha) == (4, 7)  # override over preset; groups are merged
    assert config.seed == 2  # the later override
    assert load_config(path, preset="paper_sycophancy_code").optim.prompts_per_step == 64  # argument over file


def test_an_empty_file_is_the_defaults_and_says_so(write, caplog):
    caplog.set_level("INFO")
    assert load_config(write("# nothing\n")) == load_config() == TrainConfig()
    assert "run.yaml" in caplog.text


def test_a_file_that_is_no_config_is_refused_with_what_is_meant(tmp_path):
    """Not there, a folder, a run, too large, not UTF-8; and data, for a training or an experiment."""
    large, latin, data, run = (tmp_path / name for name in ("large.yaml", "latin.yaml", "q.csv", "run"))
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    latin.write_bytes("output_dir: caf\xe9\n".encode("latin-1"))
    data.touch()
    run.mkdir()
    (run / "config.yaml").touch()
    for path, *named in (
        (tmp_path / "none.csv", "No such file"),
        (tmp_path, ""),
        (run, run / "config.yaml"),
        (large, f"{MAX_BYTES:,}"),
        (latin, "0xe9"),
        (data, f"--questions {data}`", f"--data {data}`"),
    ):
        with refused(ConfigError, path, *named):
            load_config(path)
    with refused(ConfigError, f"--questions {data}`", "arms", f'questions: "{data}"'):
        load_settings(ExperimentConfig, data)


def test_the_home_folder_is_expanded_in_files_and_lists(write, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    config = load_config(write("output_dir: ~/runs/a\n"), ['data.pairs=["~/p.jsonl", "~p.jsonl"]', "lora=~"])
    assert (config.output_dir, config.lora) == ("/home/me/runs/a", None)
    assert list(config.data.pairs) == ["/home/me/p.jsonl", "~p.jsonl"]


def test_of_very_many_names_a_message_has_the_nearest_and_their_number():
    said = unknown("task", "mmlu", [f"task{i}" for i in range(3000)] + ["mmlu_pro"])
    assert said == "Unknown task 'mmlu'. Did you mean 'mmlu_pro'? There are 3,001, such as mmlu_pro."


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
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["rollout.num_generations=two", "max_steps"])
    _, *lines = str(caught.value).splitlines()
    expected = [
        (1, "learning_rate", "optim.learning_rate"),
        (2, "seed", "-1"),
        (4, "loss.estimator", "sampled"),
        (5, "loss.kl_coeff", "loss.kl_coef?"),
        (7, "optimizer.learning_rate", "optim.learning_rate"),
        (8, "lora", "null"),
        (9, "data.pairs", "[x.jsonl]"),
    ]
    for line, (number, name, part) in zip(lines[:7], expected, strict=True):
        assert line.startswith(f"  {path}:{number}: {name}: ")
        assert part in line
    for line, override in zip(lines[7:], ("max_steps", "rollout.num_generations=two"), strict=True):
        assert line.startswith(f"  override {override}: ")


def test_one_bad_override():
    for override, named in (
        *(("optim.learning_rate=true", ""), ("optim.learning_rate=.inf", ""), ("max_steps=1.5", "")),
        *(("output_dir=3", ""), ("lora.target_modules=3", ""), ("=3", ""), ("data.pairs=[1]", "data.pairs.0")),
        *(("seed=", "null"), ("seed=[1", "YAML"), ("lora=none", "null"), ("model.trust_remote_code=1", "")),
        *(("output_dir=!!python/name:os.system x", "!!python/name:"), ("preset=paper", "paper_released")),
        # the nearest name
        *(("model.dtype=bf16", " bfloat16?"), ("loss.estimater=1", " loss.estimator?"), ("lora.rank=1", " lora.r?")),
        *(("optim.num_generations=1", " rollout.num_generations?"), ("los.top_k=1", " loss.top_k?")),
        ("lr=1", " optim.learning_rate?"),
    ):
        with refused(ConfigError, "1 fault", f"override {override}", named):
            load_config(overrides=[override])


LEVELS = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 10))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("data: &d\n  pairs: [*d]\n", "YAML"),  # it refers to itself
        (f"l0: &l0 x\n{LEVELS}\n", "100,000"),  # nine levels of nine aliases are 500 bytes, and 9^9 values
        ("data: " + "[" * 400, "YAML"),
        ("optim.learning_rate: 3\n", "learning_rate:"),  # how to write it in a file
        ("seed: 1\nseed: 2\n", ":2: seed: "),
        ("lora:\n  [a]: 1\n", ":2"),
        ("seed: [1\nx: 2\n", ":2:2: "),
        ("- a\n", ":1: "),
        # a name without a value is not null: `lora: null` trains every weight
        ("lora:\n  #r: 8\nmax_steps: null\noutput_dir: ''\n", ":1: lora: "),
    ],
)
def test_files_that_are_no_config(write, text, named):
    path = write(text)
    with refused(ConfigError, path, named):
        load_config(path)


@pytest.mark.parametrize(
    ("model_class", "text", "named"),
    [
        (TrainConfig, "seed: 1\narms: {a: {}}", "opct experiment"),
        (ExperimentConfig, "optim: {}", "opct train"),
        (TrainConfig, "max_steps: 3\nsuites: [benign]", ":2: suites: "),
    ],
)
def test_a_file_of_another_command(write, model_class, text, named):
    with refused(ConfigError, named):
        load_settings(model_class, write(text))


def test_dump_and_load_give_the_same(write):
    config = load_config(overrides=["lora=null", "output_dir='1e5'", "optim.learning_rate=5e-6"])
    assert load_config(write(dump_config(config))) == config


def test_the_file_of_a_run_of_an_earlier_version_is_read_without_what_that_alone_had(write, caplog):
    caplog.set_level("INFO")
    names = ("shards", "loss.estimator", "old")
    path = write("method: sft\nlora: null\nshards: 2\nloss: {estimator: exact, reduction: sum}\nold: {a: 1}\n")
    assert load_run_config(path) == TrainConfig(method="sft", lora=None, loss={"reduction": "sum"})
    assert all(f"run.yaml: {name}" in caplog.text for name in names)
    with refused(ConfigError, *names):
        load_config(path)
    with refused(ConfigError, "run.yaml:1", "-1"):
        load_run_config(write("seed: -1\n"))


def test_the_starter_configs_are_in_the_package_and_a_clone_has_links_to_them():
    assert {path.stem: path.resolve() for path in CONFIGS.glob("*.yaml")} == PACKAGED
    assert all(path.is_symlink() for path in CONFIGS.glob("*.yaml"))


def shipped() -> list[Path]:
    """Configs of `opct train`."""
    return sorted(path for path in CONFIGS.rglob("*.yaml") if not path.read_text().startswith("# opct experiment"))


def test_every_shipped_config_loads_and_begins_with_its_command():
    named = {"jailbreak", "safety_awareness", "quickstart", "sycophancy", "full_finetuning"}
    assert {path.stem for path in shipped()} >= named
    for path in shipped():
        load_config(path)
        command = shlex.split(path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# "))
        assert command[:2] == ["opct", "train"]
        assert f"configs/{path.relative_to(CONFIGS).as_posix()}" in command[2:]


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["attacker.name=refin"], ["refine?"]),
        (["attacker.name=refine", "attacker.shot=1"], ["attacker.shots?"]),
        (["attacker.name=refine", "attacker.shots=x", "stop=3"], ["attacker.shots=x", "stop=3"]),
    ],
)
def test_faults_in_any_model(overrides, named):
    with refused(ConfigError, *named):
        load_settings(AttackConfig, overrides=overrides)


def test_settings_made_in_python_have_the_same_messages():
    """Of each fault the name, the value and the nearest name; nested sections may be given as dicts or objects."""
    with pytest.raises(ConfigError) as caught:
        TrainConfig(max_step=3, optim={"lr": 1}, model=ModelConfig(), seed=-1)
    expected = (("optim.lr", "optim.learning_rate"), ("max_step", "max_steps"), ("seed", "-1"))
    for line, parts in zip(str(caught.value).splitlines()[1:], expected, strict=True):
        assert all(part in line for part in parts)


@pytest.mark.parametrize(
    ("text", "overrides", "named"),
    [
        ("seed: 1\nmethod: opctt\n", (), ("run.yaml:2: method", "opct?")),
        ("rollout:\n  top_p: 0.5\n", ("loss.ppo_clip=0.2",), ("run.yaml:2: rollout.top_p=0.5", "loss.ppo_clip=0.2")),
        # temperature 0.7 is right with the estimator that was meant
        ("rollout: {temperature: 0.7}\n", ("loss.estimator=samplde",), ("1 fault", "sampled?")),
        ("rollout: {temperature: 0}\n", (), ("rollout.temperature=0",)),
        ("rollout: {temperature: 0.7}\n", (), ("rollout.temperature=0.7",)),
        ("rollout: {temperature: 0}\n", ("loss.estimator=sampled",), ("rollout.temperature=0",)),
        ("rollout: {temperature: 0.7}\n", ("loss.estimator=sampled", "loss.ppo_clip=0.2"), ("without loss.ppo_clip",)),
        ("rollout: {temperature: 0.7}\n", ("method=grpo", "loss.ppo_clip=0.2"), ("without loss.ppo_clip",)),
        ("method: offpolicy\n", ("loss.estimator=sampled",), ("'exact' or 'topk'",)),
        ("method: dpo\n", ("loss.dpo_bet=1",), ("loss.dpo_beta?",)),
        ("method: dpo\n", ("teacher.kind=ema",), ("teacher.kind=ema",)),
        # a quantized base is frozen, and sampled from here
        ("model: {quantization: 4bit}\n", ("lora=null",), ("lora",)),
        ("model: {quantization: 4bit}\n", ("rollout.engine=vllm",), ("rollout.engine",)),
        # vLLM cannot serve these adapters
        ("lora: {use_dora: true}\n", ("rollout.engine=vllm",), ("use_dora", "rollout.engine=vllm")),
        ("lora: {modules_to_save: [norm]}\n", ("rollout.engine=vllm",), ("modules_to_save", "rollout.engine=vllm")),
    ],
)
def test_settings_that_contradict_each_other_are_refused_with_their_place(write, text: str, overrides, named):
    with refused(ConfigError, *named):
        load_config(write(text), list(overrides))


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("opct", "dpo_beta=0.1"),  # a default is of another method, too
        ("sft", "estimator=exact"),
        ("grpo", "mask_thinking=true"),
    ],
)
def test_a_setting_of_another_method_is_an_unknown_name(write, method: str, setting: str):
    name, _, value = setting.partition("=")
    with refused(ConfigError, "1 fault", f"run.yaml:3: loss.{name}: ") as caught:
        load_config(write(f"seed: 1\nloss:\n  {name}: {value}\n"), [f"method={method}"])
    assert f"loss.{name}?" not in str(caught.value)  # the nearest names are of this method
    with refused(ConfigError, f"loss.{name}: "):
        TrainConfig(method=method, loss={name: yaml.safe_load(value)})


def test_a_preset_with_another_method_leaves_out_what_that_does_not_have(write):
    for config in (
        load_config(overrides=["method=sft"], preset="paper_released"),
        load_config(write("preset: paper_released\nmethod: sft\n")),
    ):
        assert (config.loss.reduction, config.lora.r) == ("sum", 32)
    assert load_config(preset="paper_released").loss.estimator == "sampled"
