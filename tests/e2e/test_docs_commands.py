"""The commands of the docs run: the tutorial on a tiny model in its order, README and how-to pages as they stand.

A block that needs something says so in its title (`title="needs a GPU"`), and is not run.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.unit.cli.running import run

DOCS = REPOSITORY / "docs"
TUTORIAL = DOCS / "tutorials" / "your-own-behavior.md"
AS_THEY_STAND = (REPOSITORY / "README.md", *sorted((DOCS / "how-to").glob("*.md")))
EXAMPLES = DOCS / "reference" / "cli.md"
"""Of the help; `test_docs.py` reads them."""
SMALL = {
    "init": [],
    "train": ["max_steps=1", "optim.prompts_per_step=2", "data.validation_size=0", "rollout.max_completion_tokens=4"],
    "eval": ["n_context=2", "n_benign=2", "kl_samples=0", "max_completion_tokens=4", "max_benign_tokens=4"],
    "report": [],
}
"""What makes a command small."""


def unmarked_commands(page: Path) -> list[list[str]]:
    """The words of each command in a block that needs nothing; all are of `opct`."""
    blocks = re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    assert {words[0] for words in lines if words} <= {"opct"}, page
    return [words[1:] for words in lines if words]


def test_the_tutorial_runs_from_a_csv_to_a_report(tiny_folder: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = TUTORIAL.read_text(encoding="utf-8")
    Path("questions.csv").write_text(re.search(r"```csv\n(.*?)```", page, re.DOTALL)[1])
    commands = unmarked_commands(TUTORIAL)
    made = " ".join(words[0] for words in commands)
    assert made == "init data data train train eval eval report train eval report"
    for words in commands:
        given = [str(tiny_folder) if word == "smollm2-135m-instruct" else word for word in words if word != "--open"]
        given += ["--model", str(tiny_folder)] if words[0] == "init" or words[1] == "show" else []
        assert run(*given, *SMALL.get(words[0], [])) == 0, words
    assert Path("mine.html").is_file()


def test_commands_that_need_nothing_run(smollm2_folder, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    commands = [words for page in AS_THEY_STAND for words in unmarked_commands(page)]
    assert len(commands) >= 5
    for words in commands:
        assert run(*words) == 0, words


def test_every_other_command_says_what_it_needs():
    others = set(DOCS.rglob("*.md")) - {TUTORIAL, EXAMPLES, *AS_THEY_STAND}
    assert [page for page in sorted(others) if "```bash\n" in page.read_text(encoding="utf-8")] == []
