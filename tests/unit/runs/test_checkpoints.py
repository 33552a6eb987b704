import errno
import json
from pathlib import Path

import pytest

from opct.errors import CheckpointError
from opct.runs.checkpoints import fault, read_state
from opct.runs.run_dir import RunDir, checkpoints
from tests.refusals import refused


@pytest.fixture
def run(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        yield run


def write(folder: Path) -> None:
    (folder / "adapter").mkdir()
    (folder / "adapter" / "weights.bin").write_bytes(b"weights")
    (folder / "state.pt").write_bytes(b"optimizer")


def reseal(folder: Path, **changes) -> None:
    seal = folder / "state.json"
    seal.write_text(json.dumps(json.loads(seal.read_text()) | changes))


def names(run: RunDir) -> list[str]:
    return sorted(path.name for path in run.checkpoints_dir.iterdir())


def test_a_checkpoint_appears_whole_with_its_hashes(run):
    assert run.latest_checkpoint() is None
    path = run.save_checkpoint(3, write, {"teacher": "abc"})
    assert path == run.checkpoint_path(3) == run.latest_checkpoint()
    assert path.name == "step-000003"
    assert read_state(path) == {"teacher": "abc"}
    assert fault(path) is None
    assert names(run) == ["step-000003"]


def test_saving_a_step_again_replaces_it(run):
    run.save_checkpoint(1, write)
    run.save_checkpoint(1, lambda folder: (folder / "new").write_text("new"))
    assert (run.checkpoint_path(1) / "new").exists()
    assert not (run.checkpoint_path(1) / "state.pt").exists()
    assert names(run) == ["step-000001"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("PytorchStreamWriter failed writing file"),
        ValueError("surrogates not allowed"),
    ],
)
def test_one_that_cannot_be_written_leaves_the_last_good_one(run, error):
    good = run.save_checkpoint(10, write)

    def fail(folder: Path) -> None:
        write(folder)
        raise error

    why = error.strerror if isinstance(error, OSError) else error
    with refused(CheckpointError, run.checkpoint_path(20), good, why):
        run.save_checkpoint(20, fail)
    assert run.latest_checkpoint() == good
    assert names(run) == ["step-000010"]


def test_an_interrupt_while_writing_leaves_nothing(run):
    def interrupt(folder: Path) -> None:
        write(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.save_checkpoint(1, interrupt)
    assert names(run) == []


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (lambda p: (p / "adapter" / "weights.bin").write_bytes(b"weightz"), "weights.bin"),
        (lambda p: (p / "state.pt").write_bytes(b"opt"), "state.pt"),
        (lambda p: (p / "state.pt").unlink(), "state.pt"),
        (lambda p: (p / "state.json").unlink(), "state.json"),
        (lambda p: (p / "state.json").write_text("{"), "state.json"),
        (lambda p: reseal(p, files=[]), "state.json: files"),
        (lambda p: reseal(p, step=-5), "state.json: step"),
        (lambda p: reseal(p, step=1), "state.json"),
        (lambda p: (p / "adapter" / "more").touch(), "adapter/more"),
        (lambda p: (p / "more").symlink_to(p / "adapter"), "more"),
    ],
)
def test_a_corrupt_one_is_named_with_the_good_one_before_it(run, damage, part):
    good, newest = run.save_checkpoint(1, write), run.save_checkpoint(2, write)
    damage(newest)
    with refused(CheckpointError, newest, part, good, "--resume"):
        run.latest_checkpoint()


def test_pruning_keeps_those_of_the_largest_steps_and_the_best(run):
    for step in (1, 2, 9, 10, 1_000_000):
        run.save_checkpoint(step, write)
    assert [step for step, _ in run.checkpoints()] == [1, 2, 9, 10, 1_000_000]
    assert run.latest_checkpoint() == run.checkpoint_path(1_000_000)
    assert run.prune(2, best_step=1) == [run.checkpoint_path(2), run.checkpoint_path(9)]
    assert names(run) == ["step-000001", "step-000010", "step-1000000"]
    assert run.prune(2, best_step=1) == []


def test_what_a_kill_leaves_is_cleared_and_a_half_replaced_one_comes_back(run):
    run.save_checkpoint(1, write)
    run.save_checkpoint(2, write)
    folder = run.checkpoints_dir
    (folder / ".tmp-step-000003").mkdir()
    (folder / ".trash-step-000000").mkdir()
    run.checkpoint_path(2).rename(folder / ".old-step-000002")
    checkpoints.remove_leftovers(folder)
    assert names(run) == ["step-000001", "step-000002"]
    assert run.latest_checkpoint() == run.checkpoint_path(2)
