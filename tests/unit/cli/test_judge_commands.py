"""`opct judge`: train, calibrate, run, from the command line."""

import contextlib
import io
import shutil
from pathlib import Path

import pytest

from opct.evals.logs import read_samples
from opct.evals.samples import GradedSample
from tests.labelled import rows, write
from tests.logs import write_evaluation
from tests.unit.cli.running import run as opct


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("OPCT_CALIBRATIONS", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)


def samples(folder: Path, n: int = 4, more: tuple[str, ...] = (), axis: str = "jailbreak", **judges) -> Path:
    replies = ["I'm sorry, but I can't help with that.", "Sure. First open the lid."] * (n // 2)
    made = [
        GradedSample(
            f"{axis}/b{i}/bare", axis, axis, "bare", "bare", f"b{i}", reply, verdict="refused",
            values={"is_success": 0.0}, teacher_prompt=[{"role": "user", "content": f"behaviour {i}"}],
        )
        for i, reply in enumerate([*replies, *more])
    ]  # fmt: skip
    write_evaluation(folder, made, judges=judges)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, str]:
    """A judge trained on train.csv beside it, and what the command printed."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'opct[judge]'")
    folder, printed = tmp_path_factory.mktemp("trained"), io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert opct("judge", "train", "--data", write(folder / "train.csv", rows(120)), "--out", folder / "own") == 0
    return folder, printed.getvalue()


@pytest.fixture
def own(trained, tmp_path: Path) -> str:
    """The trained judge in the current folder, not calibrated."""
    shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True)
    return trained[1]


def test_train_calibrate_and_run_offline(own: str, tmp_path: Path, capsys):
    others = [{**row, "Response": f"{row['Response']} Right?"} for row in rows(60, seed=1)]
    others[0]["Response"] = "当然。首先打开盖子。"
    held_out = write(tmp_path / "labels.csv", others)
    assert "'1' 60 (yes), '0' 60 (no)" in own
    assert "cross-validation of the classifier without the refusal rules (5, split by cluster)" in own
    assert "left out" not in own
    run = samples(tmp_path / "run", more=("对不起，我不能帮助你。", "lid " * 20))
    assert opct("judge", "run", run, "--judge", "own") == 0
    said = capsys.readouterr().out
    assert "warning: This judge was never compared with human labels" in said
    assert opct("judge", "calibrate", "own", "--labels", "train.csv") == 1
    assert "was trained on every one of the 120 replies of train.csv" in " ".join(capsys.readouterr().err.split())
    assert opct("judge", "calibrate", "own", "--labels", held_out) == 0
    said = capsys.readouterr().out
    assert "kept: own/calibrations/" in said
    assert "unscored: 1 (1 other_language_reply)" in said
    assert opct("judge", "run", run, "--judge", "own") == 0
    said = capsys.readouterr().out
    assert "kappa against 59 labels of labels.csv: 1.000  (" in said
    assert "warning: The accuracy of this judge is uncertain, too few labels: against 59 human labels" in said
    counts = {
        line.split()[0]: int(line.split()[1]) for line in said.splitlines() if line.startswith("  ") and "/" not in line
    }
    unread = ["unscored:other_language_reply", "unscored:unparsed_reply"]
    assert counts == {"harmful": 2, "not_harmful": 2, **dict.fromkeys(unread, 1)}
    found = [sample.verdict for sample in read_samples(run) if sample.task == "jailbreak_judged"]
    assert found == ["not_harmful", "harmful"] * 2 + unread


def test_train_refuses_what_is_there(tmp_path: Path, capsys):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'opct[judge]'")
    data = write(tmp_path / "train.csv", rows(60))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "judge.json").write_text("{}")
    assert opct("judge", "train", "--data", data, "--out", "own") == 1
    assert "exists: name another file with --out" in capsys.readouterr().err
    assert opct("judge", "train", "--data", data, "--out", "train.csv") == 1
    assert "is a file" in capsys.readouterr().err


def test_the_cost_comes_first_and_a_dry_run_asks_nothing(tmp_path: Path, capsys):
    run = samples(tmp_path / "run")
    arguments = ("--judge", "strongreject", "--model", "mockllm/model", "--dry-run")
    assert opct("judge", "run", run, *arguments) == 0
    said = capsys.readouterr().out
    assert "usage: 4 replies: 0 judged before, 0 empty; 4 calls (at most 12 with retries)" in said
    assert {sample.task for sample in read_samples(run)} == {"jailbreak"}


def test_a_judge_of_something_else_is_refused_before_it_is_asked(tmp_path: Path, capsys):
    run = samples(tmp_path / "run", axis="safety_awareness")
    arguments = ("--axis", "safety_awareness", "--judge", "strongreject", "--model", "mockllm/model")
    assert opct("judge", "run", run, *arguments) == 1
    said = capsys.readouterr()
    assert "safety_awareness needs warned" in said.err
    assert "cost" not in said.out
    assert not (run / "evals" / "judge_cache.jsonl").exists()


def test_a_calibration_in_another_folder_says_how_it_is_found(own: str, tmp_path: Path, capsys):
    labels = write(tmp_path / "labels.csv", [{**row, "Response": f"{row['Response']} Right?"} for row in rows(60)])
    for out, noted in (("own/calibrations", False), ("kept", False), ("there", True)):
        assert opct("judge", "calibrate", "own", "--labels", labels, "--out", out) == 0
        assert ("only if OPCT_CALIBRATIONS=there is set" in capsys.readouterr().out) is noted


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["run", "none", "--judge", "strongreject", "--model", "mockllm/x"], 1, "run `opct eval none` first"),
        (["run", "none", "--judge", "strongrejct"], 1, "Did you mean 'strongreject'"),
        (["calibrate", "strongrejct", "--labels", "labels.csv"], 1, "Did you mean 'strongreject'"),
        (["calibrate", "strongreject", "--labels", "none.csv"], 1, "No label file at none.csv"),
        (["calibrate", "x", "retrys=1", "--labels", "labels.csv"], 1, "did you mean retries"),
        (["calibrate", "x", "--labels", "labels.csv", "--column", "label"], 2, "not ROLE=NAME"),
    ],
)
def test_wrong_usage(tmp_path: Path, capsys, arguments, exit_code, said):
    write(tmp_path / "labels.csv", rows(12))
    assert opct("judge", *arguments) == exit_code
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize("assignment", ["api_key=sk-live-0123456789", "extra=a: b: sk-live-0123456789"])
def test_no_secret_among_the_arguments_is_echoed(tmp_path: Path, capsys, assignment):
    write(tmp_path / "labels.csv", rows(12))
    arguments = ("calibrate", "strongreject", f"model_args.{assignment}", "--labels", "labels.csv")
    assert opct("judge", *arguments, "--model", "mockllm/model") == 1
    said = capsys.readouterr()
    assert "0123456789" not in said.out + said.err
    assert "model_args" in said.err or "argument api_key" in said.err
