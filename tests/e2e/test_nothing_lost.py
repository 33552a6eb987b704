"""Files that may not grow, corrupt checkpoints, other runs: exit code 1, one clear message, and nothing lost."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from opct.runs.checkpoints import fault
from tests.e2e.cli import Workplace, files, here, result_of, workplace
from tests.tiny import save_tiny
from tests.unit.reports.synthetic import write_run

THREE = {"max_steps": 3, "eval_steps": 2, "save_steps": 1}


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


def test_files_that_may_not_grow_leave_the_last_good_checkpoint(half, tmp_path, tiny_folder):
    """The process may write files of up to 20 kB: metrics and rollouts fit, the optimizer's state does not. With room
    again it goes on as if nothing had happened."""
    good, limit = half.run.checkpoint_path(2), 20_000
    sizes = {path.name: path.stat().st_size for path in half.run.path.rglob("*") if path.is_file()}
    fits = max(sizes[name] for name in ("metrics.jsonl", "step-000002.jsonl", "config.yaml"))
    assert sizes["state.safetensors"] > limit > fits
    with small_files(limit):
        message = here(*half.command("--resume")).error()
    for named in (half.run.checkpoint_path(3), good):
        assert str(named) in message
    assert fault(good) is None
    assert half.run.latest_checkpoint() == good
    assert not list(half.run.checkpoints_dir.glob(".*"))
    whole = workplace(tmp_path, tiny_folder, **THREE)
    for place, flags in ((half, ["--resume"]), (whole, [])):
        done = here(*place.command(*flags))
        assert done.code == 0, done.err
    assert result_of(half.run) == result_of(whole.run)


def test_a_corrupt_checkpoint(half):
    """One bit is another. It is named, as is the good one before it; doing what the message says goes on from there."""
    bad = half.run.checkpoint_path(2)
    content = bytearray((bad / "state.safetensors").read_bytes())
    content[len(content) // 2] ^= 1
    (bad / "state.safetensors").write_bytes(content)
    before = files(half.run.path)
    message = here(*half.command("--resume")).error()
    for named in (bad, "state.safetensors", half.run.checkpoint_path(1)):
        assert str(named) in message
    assert files(half.run.path) == before
    shutil.rmtree(bad)
    assert here(*half.command("--resume")).code == 0
    assert half.steps() == [0, 1, 2, 3]


def test_what_is_not_the_same_run_is_not_resumed(tmp_path, half):
    """Other weights, chat template, settings: each is named, and nothing is touched."""
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
    refused("learning_rate", "0.003", "0.1", "seed", overrides=("optim.learning_rate=0.1", "seed=7"))


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
