import json
from pathlib import Path

import pytest

from opct.errors import CheckpointError
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


def test_one_that_cannot_be_written_or_is_killed_leaves_the_last_good_one(run):
    good = run.save_checkpoint(10, write)

    def fail(folder: Path) -> None:
        write(folder)
        raise RuntimeError("PytorchStreamWriter failed writing file")

    with refused(CheckpointError, run.checkpoint_path(20), good, "PytorchStreamWriter"):
        run.save_checkpoint(20, fail)
    for left in (".tmp-step-000030", ".trash-step-000000"):  # by a kill
        (run.checkpoints_dir / left).mkdir()
    checkpoints.remove_leftovers(run.checkpoints_dir)
    assert run.latest_checkpoint() == good
    assert sorted(path.name for path in run.checkpoints_dir.iterdir()) == ["step-000010"]


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (lambda p: (p / "adapter" / "weights.bin").write_bytes(b"weightz"), "weights.bin"),
        (lambda p: (p / "state.pt").write_bytes(b"opt"), "state.pt"),
        (lambda p: (p / "state.pt").unlink(), "state.pt"),
        (lambda p: (p / "state.json").unlink(), "state.json"),
        (lambda p: reseal(p, step=1), "state.json"),
        (lambda p: (p / "adapter" / "more").touch(), "adapter/more"),
    ],
)
def test_a_corrupt_one_is_named_with_the_good_one_before_it(run, damage, part):
    good, newest = run.save_checkpoint(1, write), run.save_checkpoint(2, write)
    damage(newest)
    with refused(CheckpointError, newest, part, good, "--resume"):
        run.latest_checkpoint()
