"""Commands of the tutorial, of the recipes and README's Python, as they stand, on a tiny model."""

import re
import shlex
from functools import partial
from pathlib import Path

from benchmarks.own_questions import write

import opct
from opct.training import dry_run
from tests.conftest import REPOSITORY
from tests.unit.cli.running import run

TUTORIAL = REPOSITORY / "docs" / "tutorials" / "your-own-behavior.md"
SMALL = {
    "init": [],
    "train": ["max_steps=1", "optim.prompts_per_step=2", "data.validation_size=0", "rollout.max_completion_tokens=4"],
    "eval": [
        *("n_questions=2", "families_per_question=1", "n_context=2", "n_benign=2", "kl_samples=0"),
        *("max_completion_tokens=4", "max_benign_tokens=4"),
    ],
    "report": [],
}
"""What makes a command small."""


def joined(block: str) -> list[str]:
    """The lines of a block of bash, each with those that continue it."""
    return block.replace("\\\n", "").splitlines()


def commands_of(page: str) -> list[list[str]]:
    """The words of each command in its bash blocks; all are of `opct`. A block with a title needs something."""
    blocks = re.findall(r"^```bash\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    lines = [shlex.split(line, comments=True) for block in blocks for line in joined(block)]
    assert {words[0] for words in lines if words} <= {"opct"}
    return [words[1:] for words in lines if words]


def test_the_tutorial_runs_from_a_csv_to_a_report(tiny_folder: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dry_run, "CLEAN_TOKENS", 8)  # a random model does not end before
    page = TUTORIAL.read_text(encoding="utf-8")
    Path("questions.csv").write_text(re.search(r"```csv\n(.*?)```", page, re.DOTALL)[1])
    commands = commands_of(page)
    made = " ".join(words[0] for words in commands)
    assert made == "init data data train train eval eval report train eval report"
    for words in commands:
        given = [str(tiny_folder) if word == "smollm2-135m-instruct" else word for word in words if word != "--open"]
        given += ["--model", str(tiny_folder)] if words[0] == "init" or words[1] == "show" else []
        assert run(*given, *SMALL.get(words[0], [])) == 0, words
    assert Path("mine.html").is_file()


def test_the_files_of_a_recipe_become_pairs(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (REPOSITORY / "docs" / "recipes" / "persona.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"`(\w+\.(?:csv|jinja))`[^`]*```\w+\n(.*?)```", page, re.DOTALL):
        Path(name).write_text(text)
    block = re.search(r'^```bash title="needs \w+\.csv and .*?\n(.*?)^```', page, re.DOTALL | re.MULTILINE)[1]
    for line in joined(block):
        if line.startswith("opct data build"):
            assert run(*shlex.split(line)[1:]) == 0, line
    files = {path.stem: opct.load_pairs(path) for path in Path().glob("*.jsonl")}
    assert {stem: {pair.is_identity for pair in pairs} == {True} for stem, pairs in files.items()} == {
        stem: stem != "persona" for stem in files
    }
    assert len(files) == 2


[BLOCK] = re.findall(r"^```python\n(.*?)^```", (REPOSITORY / "README.md").read_text(), re.DOTALL | re.MULTILINE)
MODEL = "smollm2-135m-instruct"
EVAL = {"suites": ["sycophancy_short"], "families": "held_out", "families_per_question": 1, "kl_samples": 0}


def test_the_python_block_runs(tmp_path: Path, tiny_folder: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    (tmp_path / "prices-100.csv").rename("questions.csv")
    small = {"max_steps": 1, "optim": {"prompts_per_step": 2}, "data": {"validation_size": 0}}
    config = partial(opct.TrainConfig, model={"name_or_path": str(tiny_folder)}, **small)
    monkeypatch.setattr(opct, "TrainConfig", config)
    monkeypatch.setattr(opct, "evaluate", partial(opct.evaluate, n_questions=2, max_completion_tokens=4, **EVAL))
    exec(BLOCK.replace(MODEL, str(tiny_folder)), {})
    assert Path("python.html").is_file()
