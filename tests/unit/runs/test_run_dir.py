import contextlib
import json
import os
import platform
import shutil

import pytest

from opct.errors import InUseError, RunError
from opct.redaction import redact_named
from opct.runs.io import append_jsonl, read_jsonl, write_jsonl
from opct.runs.lock import is_running, locked, owner_of
from opct.runs.run_dir import RunDir
from tests.refusals import refused


def started(path) -> RunDir:
    """A run in which something was written, closed again."""
    with RunDir.create(path) as run:
        append_jsonl(run.metrics_path, {"step": 1})
    return run


def test_a_run_is_resumed_or_refused_with_the_remedy(tmp_path):
    with refused(RunError, "--resume"):
        RunDir.create(tmp_path / "run", resume=True)
    RunDir.create(tmp_path / "run").release()
    started(tmp_path / "run")  # one that never began is not in the way
    with refused(RunError, "--resume", "--overwrite"):
        RunDir.create(tmp_path / "run")
    with RunDir.create(tmp_path / "run", resume=True) as again:
        assert read_jsonl(again.metrics_path) == [{"step": 1}]


def test_overwrite_keeps_the_run_until_it_is_cleared_and_then_removes_nothing_else(tmp_path):
    run = started(tmp_path / "run")
    (run.path / "notes.txt").write_text("mine")
    state = run.checkpoint_path(1) / "state.json"
    for path in (run.results_path, run.trained_on_path, run.offline_path, state):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("old")
    before = run.manifest_path.read_bytes()
    with RunDir.create(run.path, overwrite=True) as new:
        assert (run.manifest_path.read_bytes(), run.results_path.read_text()) == (before, "old")
        new.clear()
    left = sorted(path.name for path in run.path.iterdir() if path.name != ".lock")
    assert left == ["manifest.json", "notes.txt"]


def test_a_folder_that_is_no_run_is_never_touched(tmp_path):
    names = ["README.md", "config.yaml", "manifest.json"]
    for name in names:
        (tmp_path / name).write_text("{}")
    for flags in ({}, {"overwrite": True}):
        with refused(RunError, *names):
            RunDir.create(tmp_path, **flags)
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_truncate_after_drops_what_is_newer_than_the_checkpoint(tmp_path):
    run = started(tmp_path / "run")
    write_jsonl(run.metrics_path, [{"step": step} for step in range(5)])
    with open(run.metrics_path, "ab") as file:
        file.write(b'{"step": 5, "to')  # torn by a kill
    rollouts = [run.rollouts_path(step) for step in range(1, 6)]
    for path in (*rollouts, run.validation_path(2), run.validation_path(4), run.offline_path):
        write_jsonl(path, [{"step": 0}])
    run.truncate_after(3, 3)
    assert [row["step"] for row in read_jsonl(run.metrics_path)] == [0, 1, 2, 3]
    steps = [f"step-{step:06d}.jsonl" for step in (1, 2, 3)]
    left = sorted(path.name for path in run.rollouts_dir.iterdir())
    assert left == ["offline.jsonl", *steps, "validation-000002.jsonl"]


def test_the_manifest(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/opct", "train", "a.yaml", "--token=abc123"])
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecret")
    arguments = {"data": {"pairs.jsonl": "aa"}, "teacher": "bb", "seeds": {"seed": 1}}
    run = started(tmp_path / "run")
    run.write_manifest(**arguments, note=1)
    first = json.loads(run.manifest_path.read_text())
    expected = {**arguments, "note": 1, "command": "opct train a.yaml --token=***"}
    assert {key: first[key] for key in expected} == expected
    assert {"python", "torch", "transformers"} <= first["versions"].keys()
    assert first["hardware"]["cores"] >= 1
    assert "secret" not in run.manifest_path.read_text()
    monkeypatch.setattr("sys.argv", ["opct", "train", "a.yaml", "--resume"])
    run.write_manifest(**arguments)
    second = run.read_manifest()
    assert second["command"] == first["command"]
    assert [entry["command"] for entry in second["resumed"]] == ["opct train a.yaml --resume"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("opct train a.yaml rollout.max_completion_tokens=24", "opct train a.yaml rollout.max_completion_tokens=24"),
        (f"opct eval hf_{'aB3' * 11}", "opct eval ***"),
        ("x --api-key sk-abcdefgh123", "x --api-key ***"),
        ("x password=p seed=1", "x password=*** seed=1"),
        ("x target.base_url=http://me:pass@host/v1 seed=1", "x target.base_url=http://***@host/v1 seed=1"),
        ("x aws_secret_access_key=abc seed=1", "x aws_secret_access_key=*** seed=1"),
        ("x Authorization: Bearer abc seed=1", "x Authorization: Bearer *** seed=1"),
        ("x --data https://host/a@b", "x --data https://host/a@b"),
    ],
)
def test_secrets_are_not_kept(text, shown):
    assert redact_named(text) == shown


def test_a_lock_is_free_after_any_end_and_says_who_holds_it(tmp_path):
    """Also from this very process; another lock of the folder is its own."""
    path = tmp_path / "made" / ".a.lock"
    with contextlib.suppress(ValueError), locked(path), locked(path.with_name(".b.lock")):
        assert is_running(owner_of(path))
        with refused(InUseError, "a of x", os.getpid()):
            locked(path, "The a of x").__enter__()
        raise ValueError
    assert owner_of(path) == {}
    with locked(path, wait=True):
        pass
    for process, state in (
        ({}, False),
        ({"pid": 2**30, "host": platform.node()}, False),
        ({"pid": 1, "host": "x"}, None),
    ):
        assert is_running(process) is state


@pytest.mark.parametrize("name", ["results.json", "rollouts", "evals/x.eval", "checkpoints/.tmp-step-000003"])
def test_a_link_out_of_a_run_is_refused_by_all_who_open_it(tmp_path, name):
    """A folder of somebody else may hold one: what it names would be replaced, or emptied."""
    with RunDir.create(tmp_path / "run") as run:
        write_jsonl(run.rollouts_path(1), [])
    (tmp_path / "precious").mkdir()
    link = run.path / name
    shutil.rmtree(run.rollouts_dir)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "precious")
    for use in (RunDir.open, lambda path: RunDir.create(path, resume=True), lambda path: RunDir(path).results_lock()):
        with refused(RunError, str(link)):
            use(run.path)
    link.unlink()
    (run.path / "inside").mkdir()
    link.symlink_to(run.path / "inside")
    assert RunDir.open(run.path).is_run


@pytest.mark.parametrize("then", ["nothing", "another"])
def test_a_folder_that_is_moved_under_a_run_ends_it(tmp_path, then):
    with refused(RunError, "moved"), RunDir.create(tmp_path / "run") as run:
        run.path.rename(tmp_path / "moved")
        if then == "another":
            RunDir.create(tmp_path / "run").release()
        with refused(RunError, "moved"):
            run.check_in_place()
