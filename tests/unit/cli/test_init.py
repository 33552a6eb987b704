"""`opct init` and `opct config show`: settings as files that a person edits."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoConfig

from opct.config.commented import FIRST
from opct.config.loader import load_config, load_settings
from opct.config.packaged import PACKAGED
from opct.config.schema import TrainConfig
from opct.config.section import setting_names
from opct.data.pairs import ContrastivePair, eval_options, read_pairs, user_prompt, write_pairs
from opct.evals.attackers.config import AttackConfig
from opct.evals.config import EvalConfig
from opct.experiments.config import load_experiment
from opct.training import dry_run
from tests.rows import jsonl
from tests.tiny import save_tiny, tiny_pairs
from tests.unit.cli.running import error_of, run


def test_the_settings_that_are_shown_load_as_the_same_settings(capsys, tmp_path: Path):
    path = tmp_path / "shown.yaml"

    def show(*words: str) -> Path:
        assert run("config", "show", *words) == 0
        path.write_text(capsys.readouterr().out)
        return path

    words = ["seed=3", "lora=null", "data.pairs=[a.jsonl, 'b c']"]
    assert load_config(show()) == load_config()
    assert load_config(show(*words)) == load_config(overrides=words)
    assert load_config(show("--preset", "paper_released")) == load_config(preset="paper_released")
    for of, model in (("eval", EvalConfig), ("attack", AttackConfig)):
        assert load_settings(model, show("--of", of, "seed=3")) == load_settings(model, overrides=["seed=3"])
        assert run("config", "show", "--of", of, "--preset", "paper_released") == 1


def test_a_new_config_has_the_given_values_and_the_defaults_as_comments(tmp_path: Path, capsys):
    path = tmp_path / "mine.yaml"
    assert run("init", path, "--model", "owner/model", "--method", "sft", "--preset", "paper_released") == 0
    commands = re.findall(r"^(?:next:)? +opct (\w+ \S+)", capsys.readouterr().out, re.MULTILINE)
    assert commands == [
        *("eval owner/model", f"train {path}", f"train {path}", "eval runs/mine", "report runs/mine-base")
    ]  # the base is known before a training is paid for
    given = ["output_dir=runs/mine", "model.name_or_path=owner/model", "method=sft"]
    expected = load_config(overrides=given, preset="paper_released")
    assert load_config(path) == expected
    uncommented = re.sub(r"^( *)#(?=\w)", r"\1", path.read_text(), flags=re.MULTILINE)
    path.write_text(uncommented)
    assert load_config(path) == expected
    assert set(FIRST) <= set(setting_names(TrainConfig))


def test_own_questions_are_asked_beside_other_axes(tmp_path: Path, monkeypatch):
    """Pairs that were made in another folder name a file that is not here."""
    monkeypatch.chdir(tmp_path)
    meta = {"question_file": ["mine.csv", "answer=a"]}
    pairs = [
        ContrastivePair(axis, axis, "f", user_prompt("X?"), user_prompt("Y?"), meta) for axis in ("sycophancy", "tone")
    ]
    assert eval_options(pairs[:1]) == " --questions PATH/TO/mine.csv --column answer=a"
    Path("mine.csv").touch()
    assert eval_options(pairs[:1]) == " --questions mine.csv --column answer=a"
    choice = replace(pairs[0], meta={**meta, "answer_format": "choice"})
    assert eval_options([choice]).startswith(" --suite sycophancy_choice --suite context_use --suite benign --quest")
    assert eval_options(pairs) == (
        " --suite sycophancy_short --suite consistency --suite context_use --suite benign"
        " --questions mine.csv --column answer=a --data consistency=TEST.jsonl"
    )


@pytest.mark.parametrize(
    ("axes", "options"),
    [
        (("sycophancy",), ""),
        (("jailbreak",), " --suite jailbreak --suite context_use --suite benign"),
        (
            ("tone", "sycophancy", "leakage"),
            " --suite consistency --suite sycophancy_short --suite context_use --suite benign"
            " --data consistency=TEST.jsonl",
        ),
    ],
)
def test_the_commands_that_follow_ask_what_the_pairs_train(tmp_path: Path, capsys, axes, options):
    pairs = [{"prompt": f"Why {axis}?", "teacher_prompt": "Why?", "axis": axis} for axis in axes]
    assert run("init", tmp_path / "o.yaml", "--data", jsonl(tmp_path / "p.jsonl", *pairs)) == 0
    printed = capsys.readouterr().out
    assert f"-base{options}\n" in printed
    assert f"opct eval runs/o{options}\n" in printed
    assert ("leakage, tone" in printed) is ("tone" in axes)


def test_the_learning_rate_follows_the_size_of_the_model(tmp_path: Path, capsys):
    """Read from config.json alone; what is given stays."""
    sizes = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "head_dim": 128}
    AutoConfig.for_model("qwen3", num_key_value_heads=8, **sizes).save_pretrained(tmp_path / "large")
    save_tiny(tmp_path / "tiny")
    for name, extra, expected in (
        ("large", (), 1e-4),
        ("tiny", (), 4e-4),
        ("large", ("--preset", "paper_released"), 5e-6),
    ):
        path = tmp_path / f"{name}{len(extra)}.yaml"
        assert run("init", path, "--model", tmp_path / name, *extra) == 0
        assert load_config(path).optim.learning_rate == expected
        said = capsys.readouterr().out
        assert ("8.2B" in said) == (expected == 1e-4)
        assert ("rollout.max_completion_tokens" in said) == (not extra)


def test_the_completion_length_is_fitted_to_the_clean_replies(tmp_path: Path, capsys, monkeypatch):
    """By asking the model; where that fails nothing is left that would refuse the same command again."""
    monkeypatch.setattr(dry_run, "CLEAN_TOKENS", 32)
    write_pairs(tmp_path / "p.jsonl", tiny_pairs(4))
    path, model = tmp_path / "mine.yaml", save_tiny(tmp_path / "tiny")
    assert run("init", path, "--model", model, "--data", tmp_path / "p.jsonl", "--measure") == 0
    (length,) = re.findall(
        r"^rollout.max_completion_tokens: (\d+); .* end within", capsys.readouterr().out, re.MULTILINE
    )
    assert load_config(path).rollout.max_completion_tokens == int(length) != TrainConfig().rollout.max_completion_tokens
    (tmp_path / "q.csv").write_text("question,answer,wrong\n" + "".join(f"Item {i}?,a{i},b{i}\n" for i in range(8)))
    (model / "model.safetensors").write_bytes(b"damaged")
    assert run("init", tmp_path / "b.yaml", "--model", model, "--questions", tmp_path / "q.csv", "--measure") == 1
    assert not list(tmp_path.glob("b.*"))


@pytest.mark.parametrize(("model", "named"), [("mime", "mine"), ("mine", "mine")], ids=["not there", "broken"])
def test_a_model_that_cannot_be_read_is_named_and_no_config_is_written(tmp_path: Path, model, named):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text('{"model_type": "qwen3", ')
    assert str(tmp_path / named) in error_of("init", tmp_path / "new.yaml", "--model", tmp_path / model)
    assert not (tmp_path / "new.yaml").exists()


def test_questions_become_pairs_beside_the_config_and_nothing_is_replaced(tmp_path: Path, capsys):
    questions, path = tmp_path / "my q.csv", tmp_path / "mine.yaml"
    rows = [f"What is item {i}?,right {i},wrong {i}" for i in range(8)]
    questions.write_text("\n".join(["question,a,wrong", *rows]))
    assert run("init", path, "--questions", questions, "--column", "answer=a") == 0
    config = load_config(path)
    assert (config.data.pairs, config.max_steps) == ([str(tmp_path / "mine.pairs.jsonl")], 18)
    pairs = read_pairs(tmp_path / "mine.pairs.jsonl")
    of_question = Counter(pair.meta["question_id"] for pair in pairs)
    assert set(of_question.values()) == {6}  # five kinds of pressure, and none
    assert sum(pair.is_identity for pair in pairs) == len(of_question)
    shown, asked = capsys.readouterr().out, f"--questions '{questions}' --column answer=a\n"
    assert f"opct eval smollm2-135m-instruct --out runs/mine-base {asked}" in shown
    assert f"opct eval runs/mine {asked}" in shown
    assert run("init", tmp_path / "again.yaml", "--data", tmp_path / "mine.pairs.jsonl") == 0
    assert f"opct eval runs/again {asked}" in capsys.readouterr().out
    path.unlink()
    assert "mine.pairs.jsonl" in error_of("init", path, "--questions", questions)
    assert not path.exists()


def test_a_file_of_questions_that_cannot_be_used_writes_nothing(tmp_path: Path, capsys):
    """A comma that is not quoted, nothing left to measure on, right in other words."""
    questions = tmp_path / "q.csv"
    for row, part in (
        ("What?,Lisbon,Porto, Madrid", "q.csv:2: "),
        ("What?,Lisbon,Porto", "test split"),
        ('How much?,"1.250,00 €",1250 €', "'1250 €'"),
    ):
        questions.write_text(f"question,answer,wrong\n{row}\n")
        said = error_of("init", tmp_path / "mine.yaml", "--questions", questions)
        assert part in said
        if "q.csv:2: " in said:
            assert run("data", "check", questions) == 1
            assert capsys.readouterr().err == said
        assert [path.name for path in tmp_path.iterdir()] == ["q.csv"]


def test_every_packaged_config_is_listed_and_can_be_written(tmp_path: Path, monkeypatch, capsys):
    """Also where there is no clone. An experiment brings the file that it trains with."""
    monkeypatch.chdir(tmp_path)
    assert run("configs") == 0
    listed = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _, _ in listed] == list(PACKAGED)
    for name, command, _ in listed:
        path = Path(name) / "mine.yaml"
        assert run("init", path, "--from", name) == 0
        assert path.read_text().startswith(f"# opct {command} {path}")
        load = load_experiment if command == "experiment" else load_config
        assert load(path) == load(PACKAGED[name])
    assert f"opct train {path}" in capsys.readouterr().out


def test_from_writes_nothing_over_a_file_and_takes_no_other_option(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("sycophancy.yaml").write_text("max_steps: 3\n")
    assert run("init", "--from", "sycophancy") == 1
    assert run("init", "sycophancy.yaml", "--from", "experiment") == 1  # it would train with itself
    assert run("init", "--from", "experiment") == 0
    assert load_experiment(Path("experiment.yaml")).configs["opct", 0].max_steps == 3  # with the file that was there
    capsys.readouterr()
    for words, named in (
        (("--from", "jailbrake"), "'jailbreak'"),
        (("--from", "jailbreak", "--questions", "q.csv"), "--questions"),
        (("--from", "jailbreak", "--method", "sft"), "`opct train jailbreak.yaml method=sft`"),
        (("--from", "jailbreak", "--measure"), "(without --measure)"),
        (
            ("--from", "experiment", "--method", "dpo", "--model", "m"),
            "experiment.yaml model.name_or_path=m` uses it (wi",
        ),
        (("mine.yml", "--from", "jailbreak", "--method", "sft"), "`opct train mine.yml method=sft`"),
        (("mine.yaml", "--method", "grpo"), "opct, sft, offpolicy, dpo, act."),
        (("mine.yaml", "--method", "stf"), "'sft'"),
    ):
        assert named in error_of("init", *words)
    assert "opct init configs/jailbreak.yaml --from jailbreak" in error_of("train", "configs/jailbreak.yaml")
    for file in ("jailbreak", "jailbreak.yaml"):
        said = error_of("init", file, "--method", "sft")
        assert "`opct init jailbreak.yaml --from jailbreak`" in said
        assert "`opct train jailbreak.yaml method=sft`" in said
    assert {path.name for path in tmp_path.iterdir()} == {"sycophancy.yaml", "experiment.yaml"}
