"""Any Inspect task on a policy: by name, in a file, with arguments; its log, and how it is read."""

import asyncio
import os

import pytest

from opct.errors import EvaluationError
from opct.evals.inspect_runner import run_task
from opct.evals.logs import read_evaluation
from tests.progress import Noted
from tests.refusals import refused
from tests.unit.evals.fakes import FakePolicy

TASK_FILE = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate


@task
def capital(word="right3"):
    return Task(dataset=[Sample("a", target=word), Sample("b", target="nothing")], solver=generate(), scorer=includes())


@task
def other():
    return Task(dataset=[Sample("a", target="right3")], solver=generate(), scorer=includes())
"""


@pytest.fixture(scope="module")
def task_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("task") / "my_task.py"
    path.write_text(TASK_FILE, encoding="utf-8")
    return path


def reply(prompt, seed):
    return "It is right3, I say." if seed % 2 else "No."


def test_any_task_in_a_file_and_its_log(tmp_path, task_file, capfd):
    noted = Noted()
    (summary,) = run_task(
        FakePolicy(lambda prompt, seed: "It is right3, I say."),
        f"{task_file}@capital",
        out_dir=tmp_path,
        progress=noted,
        run={"label": "opct", "model": "fake"},
    )
    assert (summary["task"], summary["n"], summary["n_truncated"]) == ("capital", 2, 0)
    assert noted.told == [(f"{task_file}@capital", 2), 1, 1]
    assert summary["log"] == str(tmp_path / "evals" / "capital.eval")
    assert capfd.readouterr() == ("", "")
    found = read_evaluation(tmp_path)
    assert (found.run["label"], found.suites, found.left_out) == ("opct", ["capital"], [])
    [row] = found.rows
    assert (row["axis"], row["suite"], row["metric"], row["group"]) == ("inspect", "capital", "accuracy", "all")
    assert (row["value"], row["n"], row["n_unscored"]) == (0.5, 2, 0)
    assert [sample.verdict for sample in found.samples] == ["correct", "incorrect"]


def test_a_task_runs_beside_an_event_loop_and_beside_no_other_task(tmp_path, task_file):
    def run(policy):
        return run_task(policy, f"{task_file}@other", out_dir=tmp_path)

    async def main():
        return run(FakePolicy(reply))

    def reply_in_reply(prompt, seed):
        with refused(EvaluationError, "Another evaluation runs"):
            run(FakePolicy(reply))
        return reply(prompt, seed)

    with asyncio.Runner() as runner:  # Inspect's asyncio.run leaves its loop open
        [summary] = runner.run(main())
    assert [summary["n"]] == [one["n"] for one in run(FakePolicy(reply_in_reply))] == [1]


def test_limits_and_all_tasks_of_a_file(tmp_path, task_file):
    policy = FakePolicy(reply)
    (summary,) = run_task(policy, f"{task_file}@capital", out_dir=tmp_path, limit=1)
    assert (summary["n"], summary["metrics"][0]["value"]) == (1, 0.0)
    assert policy.settings[0]["temperature"] == 0.0
    with pytest.raises(EvaluationError):
        run_task(policy, f"{task_file}@capital", out_dir=tmp_path)
    both = run_task(policy, str(task_file), out_dir=tmp_path, overwrite=True)
    assert [s["task"] for s in both] == ["capital", "other"]


def test_tasks_that_there_are_not_and_that_cannot_be_loaded(tmp_path, task_file):
    mine = tmp_path / "mine.py"
    for spec, named in [
        ("{file}@capitl", "'capital'"),
        ("{file}x.py@capital", "x.py"),
        ("opct/sycophancy_shrt", "'opct/sycophancy_short'"),
    ]:
        with refused(EvaluationError, named):
            run_task(FakePolicy(reply), spec.format(file=task_file), out_dir=tmp_path)
    for body, named in [
        ("def mine(word):\n    return Task(dataset=[])", "'word'"),
        ("def mine():\n    return Task(dataset=[])", "empty"),
        ("def mine(:", "mine.py"),
    ]:
        mine.write_text(f"from inspect_ai import Task, task\n\n\n@task\n{body}\n", encoding="utf-8")
        with refused(EvaluationError, named):
            run_task(FakePolicy(reply), f"{mine}@mine", out_dir=tmp_path)


def test_the_env_file_of_a_working_folder_is_not_read(task_file, tmp_path, monkeypatch):
    """With it, the second evaluation of a process would send the user's key to an address of the folder's author."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("OPENAI_BASE_URL=http://127.0.0.1:9/v1\n")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    run_task(FakePolicy(reply), f"{task_file}@other", out_dir=tmp_path / "out")
    assert "OPENAI_BASE_URL" not in os.environ
