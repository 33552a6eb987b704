"""A run that is killed or stopped resumes, and gives the results of an undisturbed run, bit for bit."""

import os
import random
import signal
import time

import pytest

from opct.runs.checkpoints import fault
from tests.e2e.cli import Workplace, done, files, here, result_of, started, workplace

LONG = {"max_steps": 10, "eval_steps": 5, "save_steps": 2}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, tiny_folder):
    """Makes the result of a run that nothing disturbed; each once."""
    known = {}

    def result(**changes):
        key = repr(sorted(changes.items()))
        if key not in known:
            place = workplace(tmp_path_factory.mktemp("undisturbed"), tiny_folder, **changes)
            assert "Warning" not in done(*place.command()).err
            assert place.steps() == [*range(changes["max_steps"] + 1)]
            known[key] = result_of(place.run)
        return known[key]

    return result


def at_least(place: Workplace, step: int):
    """True once so many steps are written."""
    return lambda process: max(place.steps(), default=0) >= step


def half_written_checkpoint(place: Workplace):
    """True while a checkpoint is being written: its weights are there, its seal is not."""

    def half(process) -> bool:
        folders = list(place.run.checkpoints_dir.glob(".tmp-step-*"))
        return any(any(folder.rglob("*.safetensors")) and not (folder / "state.json").exists() for folder in folders)

    return half


def kill(place: Workplace, moment, *flags: str) -> None:
    """Start or resume the run, and kill it at a moment; the checkpoints that it leaves are whole."""
    with started(place.folder, *place.command(*flags)) as process:
        process.frozen_when(lambda: moment(process), "the moment to kill it")
        process.kill()
    assert all(fault(folder) is None for _, folder in place.run.checkpoints())


def test_a_run_killed_again_and_again_equals_an_undisturbed_one(tmp_path, tiny_folder, undisturbed):
    """Killed before its first checkpoint, while it writes one, and between two steps; then it may finish."""
    place = workplace(tmp_path, tiny_folder, **LONG)
    kill(place, lambda process: place.at_step(1)())
    kill(place, half_written_checkpoint(place), "--resume")
    assert list(place.run.checkpoints_dir.glob(".tmp-step-*"))
    kill(place, at_least(place, 7), "--resume")
    done(*place.command("--resume"))
    assert result_of(place.run) == undisturbed(**LONG)
    assert not list(place.run.path.rglob("*.tmp-*"))
    assert not list(place.run.checkpoints_dir.glob(".*"))
    assert len(place.run.read_manifest()["resumed"]) >= 2


def test_a_run_killed_while_a_suite_is_asked_equals_an_undisturbed_one(tmp_path, tiny_folder, undisturbed):
    """At step 0, and at step 3, which is after the last checkpoint; its metrics are not written yet."""
    asked = {"steps": 3, "suites": ["benign"], "limit": 4, "settings": {"max_benign_tokens": 4}}
    short = {"max_steps": 4, "save_steps": 2, "eval": asked}
    place = workplace(tmp_path, tiny_folder, **short)
    for step, flags in ((0, ()), (3, ("--resume",))):
        folder = place.run.training_evals_dir / f"step-{step:06d}" / "evals"
        kill(place, lambda process, folder=folder: any(folder.glob("unfinished/*")), *flags)
        assert step not in place.steps()
    done(*place.command("--resume"))
    assert result_of(place.run) == undisturbed(**short)
    assert [path.name for path in sorted(place.run.training_evals_dir.glob("*/evals/*.eval"))] == ["benign.eval"] * 3


def test_a_run_killed_at_any_moment_equals_an_undisturbed_one(tmp_path, tiny_folder, undisturbed):
    """Some moment of its 10 steps, saves and validations, another one each time the tests run.

    KILL_AFTER_S repeats a moment that failed.
    """
    place = workplace(tmp_path, tiny_folder, **LONG)
    delay_s = float(os.environ.get("KILL_AFTER_S") or random.SystemRandom().uniform(0, 0.6))
    with started(tmp_path, *place.command()) as process:
        process.until(place.at_step(0), "step 0")
        time.sleep(delay_s)
        process.kill()
    assert all(fault(folder) is None for _, folder in place.run.checkpoints())
    done(*place.command("--resume"))
    assert result_of(place.run) == undisturbed(**LONG), f"killed {delay_s} s after step 0"


def test_sft_killed_during_its_offline_answers(tmp_path, tiny_folder, undisturbed):
    """One prompt a batch."""
    settings = {"method": "sft", "max_steps": 2, "eval_steps": 2, "save_steps": 2, "rollout": {"batch_tokens": 1}}
    place = workplace(tmp_path, tiny_folder, **settings)
    kill(place, lambda process: "offline answers" in process.err)
    assert not place.run.offline_path.exists()
    done(*place.command("--resume"))
    assert result_of(place.run) == undisturbed(**settings)


def test_signals_save_and_stop_and_the_run_can_be_resumed(tmp_path, tiny_folder, undisturbed):
    """SIGTERM while the model loads, SIGINT (to the group, as a terminal does) in mid-run, then the end."""
    place = workplace(tmp_path, tiny_folder, **LONG)

    def stopped_by(number: signal.Signals, moment, *flags: str) -> int:
        with started(tmp_path, *place.command(*flags)) as process:
            process.frozen_when(lambda: moment(process), "its moment")  # or it may be over before the signal comes
            process.signal(number)
            process.signal(signal.SIGCONT)
            ended = process.ended()
        assert ended.code == 130, ended
        assert number.name in ended.err
        assert "Traceback" not in ended.err
        last = max(place.steps(), default=0)  # stopped before its first step, it has not validated either
        assert f"step {last} of 10" in ended.out
        assert "--resume" in ended.out
        assert place.run.latest_checkpoint() == place.run.checkpoint_path(last)
        return last

    ends = [
        stopped_by(signal.SIGTERM, lambda process: "load " in process.err),
        stopped_by(signal.SIGINT, at_least(place, 3), "--resume"),
    ]
    assert ends[0] == 0
    assert 3 <= ends[1] < 10
    assert "--resume" in here(*place.command()).error()
    done(*place.command("--resume"))
    expected, made = undisturbed(**LONG), result_of(place.run)
    more = {name for step in ends for name in made if f"step-{step:06d}/" in name or name == f"counters of {step}"}
    assert {name: value for name, value in made.items() if name not in more - set(expected)} == expected


def test_a_second_run_in_one_folder_is_refused_with_the_pid_of_the_first(tmp_path, tiny_folder):
    """And once the first one was killed, its lock holds nobody up."""
    place = workplace(tmp_path, tiny_folder, max_steps=200)
    with started(tmp_path, *place.command()) as process:
        process.frozen_when(place.at_step(2), "step 2")
        before = files(place.run.path)
        for flags in ([], ["--resume"], ["--overwrite"]):
            assert f"process {process.pid} " in here(*place.command(*flags)).error(), flags
        assert files(place.run.path) == before
        process.kill()
    assert (place.run.path / ".lock").exists()
    done(*place.command("--overwrite", "max_steps=2"))
    assert place.steps() == [0, 1, 2]
    assert not place.run.rollouts_path(3).exists()


def test_two_that_start_at_once_in_a_new_folder(tmp_path, tiny_folder):
    """One of them trains, the other one is refused; nothing of theirs is mixed."""
    place = workplace(tmp_path, tiny_folder, **LONG)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    with started(folders[0], *place.command()) as first, started(folders[1], *place.command()) as second:
        ends = {process.pid: process.ended() for process in (first, second)}
    [loser] = [pid for pid, ended in ends.items() if ended.code == 1]
    assert {ended.code for ended in ends.values()} == {0, 1}
    assert "in use" in ends[loser].error()
    assert place.steps() == list(range(11))
