"""Other runs, files that may not grow or be replaced: exit code 1, one clear message, and nothing lost."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from opct.runs.checkpoints import fault
from tests.e2e.cli import Workplace, done, files, here, result_of, workplace
from tests.tiny import save_tiny
from tests.unit.reports.synthetic import write_run

THREE = {"max_steps": 3, "eval_steps": 2, "save_steps": 1}


@pytest.fixture(scope="module")
def half(tmp_path_factory, tiny_folder) -> Workplace:
    """A run with 2 of its 3 steps done, on a model of its own."""
    folder = tmp_path_factory.mktemp("half")
    place = workplace(folder, Path(shutil.copytree(tiny_folder, folder / "model")), **THREE)
    done(*place.command("max_steps=2"))
    return place


def test_what_is_not_the_same_run_is_not_resumed(half, tmp_path):
    """Other settings, weights, dtype, another chat template: each is named, and nothing is touched."""
    before, template = files(half.run.path), half.folder / "model" / "chat_template.jinja"
    weights = half.folder / "model" / "model.safetensors"
    message = here(*half.command("--resume", "optim.learning_rate=0.1", "seed=7")).error()
    for named in ("learning_rate", "0.003", "0.1", "seed"):
        assert named in message
    content = template.read_text()
    template.write_text(content.replace("<|im_end|>", " <|im_end|>"))
    message = here(*half.command("--resume")).error()
    template.write_text(content)
    assert "template" in message
    content = weights.read_bytes()
    shutil.copy(save_tiny(tmp_path / "other", seed=1) / "model.safetensors", weights)
    message = here(*half.command("--resume")).error()
    weights.write_bytes(content)
    assert "weights" in message
    message = here(*half.command("--resume", "model.dtype=bfloat16")).error()
    for named in ("float32", "bfloat16"):
        assert named in message
    assert files(half.run.path) == before


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
    again it goes on as if nothing had happened. Comes after the test that leaves the run as it is."""
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
    done(*half.command("--resume"))
    done(*whole.command())
    assert result_of(half.run) == result_of(whole.run)


def test_questions_are_never_replaced_by_their_pairs_nor_results_by_a_report(tmp_path):
    questions = tmp_path / "q.csv"
    questions.write_text("question,answer,wrong\nWhat is 1 plus 2?,3,4\n")
    run = write_run(tmp_path, "base", questions=2)
    before = files(tmp_path)
    command = ("data", "build", "sycophancy", "--from", questions, "--out", questions, "--overwrite")
    assert str(questions) in here(*command).error()
    here("report", run, "--out", run / "results.html", "--overwrite").error()
    assert files(tmp_path) == before
