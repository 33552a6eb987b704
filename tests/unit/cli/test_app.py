import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from opct.errors import RunError
from tests.conftest import REPOSITORY
from tests.unit.cli.running import error_of, on_a_terminal, out_of, run

HEAVY = (  # not pydantic: typer itself imports it where it is installed
    *("torch", "transformers", "peft", "accelerate", "datasets", "inspect_ai", "plotly", "numpy", "scipy"),
    *("yaml", "jinja2", "sklearn"),
)


def test_help_imports_nothing_heavy():
    program = (
        "import sys\n"
        "from opct.cli.app import main\n"
        "for words in ('--help', 'train --help', 'data build --help', '--version'):\n"
        "    try:\n"
        "        main(words.split())\n"
        "    except SystemExit as end:\n"
        "        assert not end.code\n"
        "print('imported:', *sorted(set(sys.argv[1:]) & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", program, *HEAVY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1].strip() == "imported:"


def test_wrong_usage_exits_with_2_and_suggests_what_there_is(capsys):
    for command, part in (
        ("train", ""),
        ("train a.yaml --resum", "--resum (Possible options: --resume)"),
        ("train a.yaml --max_steps 4", "--max_steps. Settings are written max_steps=VALUE."),
        ("train a.yaml --max-step 4", "--max-step. Settings are written max_steps=VALUE."),
        ("train a.yaml --learning-rate 4", "--learning-rate. Settings are written optim.learning_rate=VALUE."),
        ("attack m --seed 1", "--seed. Settings are written seed=VALUE."),
        ("chat runs/a --dtype float32", "--dtype. Settings are written dtype=VALUE."),
        ("train a.yaml --lr 4", "No such option: --lr"),
        ("train a.yaml --verbose", "No such option: --verbose"),
        ("eval m --device cpu", "No such option: --device"),
        ("experiment a.yaml --overwrite", "No such option: --overwrite"),
        ("train a.yaml dry_run=true", "dry_run=true is no setting: it is the option --dry-run"),
        ("eval m dtype=float32", "dtype=float32 is no setting: it is the option --dtype"),
        ("train a.yaml --preset", "Option '--preset' requires an argument."),
        ("eval a --dtype fp16", "'float32', 'bfloat16', 'float16'."),
    ):
        assert run(*command.split()) == 2
        assert capsys.readouterr().err.rstrip().endswith(part)


@pytest.fixture
def train_raising(monkeypatch, tmp_path):
    """`opct train` whose trainer raises; its exit code."""
    path = tmp_path / "a.yaml"
    path.write_text("seed: 1\n")

    def train_raising(error: BaseException) -> int:
        def train(config, **keywords):
            raise error

        monkeypatch.setitem(sys.modules, "opct.training.trainer", SimpleNamespace(train=train))
        return run("train", path)

    return train_raising


def test_an_error_of_the_package_is_one_line(capsys, train_raising):
    for error, code, said in ((RunError("remedy"), 1, "error: remedy\n"), (KeyboardInterrupt(), 130, "interrupted\n")):
        assert train_raising(error) == code
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == ("", said)


def test_an_error_that_is_not_ours_is_one_line_and_its_traceback_is_kept(capsys, monkeypatch, tmp_path, train_raising):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert train_raising(ZeroDivisionError("api_key=abc \x1b[2J")) == 70
    said = capsys.readouterr().err
    assert r"ZeroDivisionError: api_key=*** \x1b[2J" in said
    assert said.count("\n") == 1
    [file] = tmp_path.glob("opct-error-*.txt")
    assert str(file) in said
    assert "raise error" in file.read_text()
    assert "abc" not in said + file.read_text()


def test_an_argument_of_bytes_is_refused():
    assert r"a\udcff" in error_of("report", "a\udcff")


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["data", "--help"]])
def test_help_ends_with_docs_that_exist_or_are_said_to_be_in_a_clone(words, monkeypatch, tmp_path):
    place = out_of(*words).splitlines()[-1].removeprefix("Docs: ")
    assert Path(place).is_file()
    site = tmp_path / "lib" / "site-packages" / "opct"
    monkeypatch.setattr("opct.__file__", str(site / "__init__.py"))
    for url, says in (("https://x.org/opct.whl", "of a clone"), (REPOSITORY.as_uri(), place)):
        found = SimpleNamespace(read_text=lambda name, url=url: json.dumps({"url": url}))
        monkeypatch.setattr("opct.cli.options.distribution", lambda name, found=found: found)
        assert out_of(*words).splitlines()[-1].endswith(says)


def test_help_has_groups_and_colors_on_a_terminal_alone():
    plain = out_of("--help")
    headings = re.findall(r"^(\w+):$", plain, re.MULTILINE)
    assert headings == ["Start", "Work", "Manage", "Options"]
    assert plain.index("--help") < plain.index("--install-completion") < plain.index("docs/index.md")
    assert f"opct {version('opct')}" in plain
    assert "\x1b" not in plain
    code, shown = on_a_terminal("--help")
    assert (code, re.sub(r"\x1b\[[\d;]*m", "", shown)) == (0, plain)
    for part in ("\x1b[1mStart:", "\x1b[36m  quickstart ", "\x1b[32m--version\x1b"):
        assert part in shown
    assert on_a_terminal("--help", NO_COLOR="1") == (0, plain)
    code, shown = on_a_terminal()
    assert (code, "\x1b[1mStart:" in shown) == (2, True)
