"""Full disks, corrupt checkpoints, runs that are not the same: exit code 1, one clear message, and nothing lost."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from opct.data.pairs import read_pairs, write_pairs
from opct.runs.checkpoints import fault
from opct.runs.run_dir import RunDir
from tests.e2e.cli import Workplace, files, here, result_of, workplace
from tests.tiny import save_tiny
from tests.unit.reports.synthetic import write_run

THREE = {"max_steps": 3, "eval_steps": 2, "save_steps": 1}


def _resumes_as_if_nothing_had_happened(place: Workplace, whole: Workplace, good: Path) -> None:
    """From its last good checkpoint."""
    assert fault(good) is None
    assert place.run.latest_checkpoint() == good
    assert not list(place.run.checkpoints_dir.glob(".*"))
    done = here(*place.command("--resume"))
    assert done.code == 0, done.err
    assert result_of(place.run) == result_of(whole.run)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_folder) -> Workplace:
    """The same run, undisturbed."""
    place = workplace(tmp_path_factory.mktemp("whole"), tiny_folder, **THREE)
    assert here(*place.command()).code == 0
    return place


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_folder) -> tuple[Workplace, Path]:
    """A run with 2 of its 3 steps done, on a model of its own, and a copy of all of it."""
    folder = tmp_path_factory.mktemp("half")
    model = Path(shutil.copytree(tiny_folder, folder / "model"))
    place = workplace(folder, model, **THREE)
    assert here(*place.command("max_steps=2")).code == 0
    return place, Path(shutil.copytree(folder, folder.with_name("half-copy")))


@pytest.fixture
def half(trained) -> Workplace:
    """That run as it was."""
    place, copy = trained
    shutil.rmtree(place.folder)
    shutil.copytree(copy, place.folder)
    return place


@contextlib.contextmanager
def small_files(limit: int) -> Iterator[None]:
    """This process may write files of at most so many bytes."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_files_that_may_not_grow_leave_the_last_good_checkpoint(half, whole):
    """The process may write files of up to 20 kB: metrics and rollouts fit, the optimizer's state does not."""
    good, limit = half.run.checkpoint_path(2), 20_000
    sizes = {path.name: path.stat().st_size for path in half.run.path.rglob("*") if path.is_file()}
    fits = max(sizes[name] for name in ("metrics.jsonl", "step-000002.jsonl", "config.yaml"))
    assert sizes["state.safetensors"] > limit > fits
    with small_files(limit):
        message = here(*half.command("--resume")).error()
    for named in (half.run.checkpoint_path(3), good):
        assert str(named) in message
    _resumes_as_if_nothing_had_happened(half, whole, good)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own with so much room; skips where this user may not mount one."""
    folder.mkdir()
    mount = shutil.which("mount")
    done = mount and subprocess.run([mount, "-t", "tmpfs", "-o", f"size={size}", "opct-test", str(folder)], check=False)
    if not done or done.returncode != 0:
        pytest.skip("this user may not mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("room_kb", [0, 8, 40, 100], ids="{} kB left".format)
def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path, half, whole, room_kb):
    """Full at once, while rollouts are written, while weights are, while the optimizer's state is."""
    with small_disk(tmp_path / "disk", "2M") as disk:
        shutil.copytree(half.run.path, disk / "run")
        (disk / "config.yaml").write_text(half.config.read_text().replace(str(half.run.path), str(disk / "run")))
        place = Workplace(disk, disk / "config.yaml", half.pairs, RunDir(disk / "run"))
        (disk / "filler").write_bytes(b"")
        space = os.statvfs(disk)
        (disk / "filler").write_bytes(bytes(max(0, space.f_bavail * space.f_frsize - room_kb * 1024)))
        assert "No space left" in here(*place.command("--resume")).error()
        (disk / "filler").unlink()
        _resumes_as_if_nothing_had_happened(place, whole, place.run.checkpoint_path(2))


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize(
    ("name", "damage"),
    [("state.safetensors", _flip), ("adapter/adapter_config.json", Path.unlink), ("state.json", _cut)],
)
def test_a_corrupt_checkpoint(half, name, damage):
    """It is named, as is the good one before it; doing what the message says goes on from there."""
    bad = half.run.checkpoint_path(2)
    damage(bad / name)
    before = files(half.run.path)
    message = here(*half.command("--resume")).error()
    for named in (bad, name, half.run.checkpoint_path(1)):
        assert str(named) in message
    assert files(half.run.path) == before
    shutil.rmtree(bad)
    assert here(*half.command("--resume")).code == 0
    assert half.steps() == [0, 1, 2, 3]


def test_what_is_not_the_same_run_is_not_resumed(tmp_path, half):
    """Other weights, chat template, data, settings: each is named, nothing is touched; all put back, it goes on."""
    model, before = half.folder / "model", files(half.run.path)

    def refused(*words: str, overrides: tuple[str, ...] = ()) -> None:
        message = here(*half.command("--resume", *overrides)).error()
        for word in words:
            assert word in message
        assert files(half.run.path) == before

    with changed(model / "model.safetensors"):
        save_tiny(tmp_path / "other", seed=1)
        shutil.copy(tmp_path / "other" / "model.safetensors", model)
        refused("weights")
    with changed(model / "chat_template.jinja") as template:
        template.write_text(template.read_text().replace("<|im_end|>", " <|im_end|>"))
        refused("template")
    with changed(half.pairs):
        write_pairs(half.pairs, read_pairs(half.pairs)[1:])
        refused("pairs")
    refused(str(tmp_path / "other"), overrides=(f"model.name_or_path={tmp_path}/other",))
    refused("float32", "bfloat16", overrides=("model.dtype=bfloat16",))
    refused("learning_rate", "0.003", "0.1", "seed", overrides=("optim.learning_rate=0.1", "seed=7"))
    refused("opct", "sft", overrides=("method=sft",))

    done = here(*half.command("--resume"))
    assert done.code == 0, done.err
    assert half.steps() == [0, 1, 2, 3]


@contextlib.contextmanager
def changed(path: Path) -> Iterator[Path]:
    """A file that may be changed inside; after it the file is as it was."""
    content = path.read_bytes()
    yield path
    path.write_bytes(content)


def test_metrics_with_a_broken_line_in_the_middle(half):
    lines = half.run.metrics_path.read_text().splitlines()
    half.run.metrics_path.write_text("\n".join([lines[0], lines[1][:10], lines[2]]) + "\n")
    before = files(half.run.path)
    assert f"{half.run.metrics_path}:2: " in here(*half.command("--resume")).error()
    assert files(half.run.path) == before


def test_questions_are_never_replaced_by_their_pairs_nor_results_by_a_report(tmp_path):
    questions = tmp_path / "q.csv"
    questions.write_text("question,answer,wrong\nWhat is 1 plus 2?,3,4\n")
    run = write_run(tmp_path, "base", questions=2)
    before = files(tmp_path)
    command = ("data", "build", "sycophancy", "--from", questions, "--out", questions, "--overwrite")
    assert str(questions) in here(*command).error()
    here("report", run, "--out", run / "results.html", "--overwrite").error()
    assert files(tmp_path) == before
