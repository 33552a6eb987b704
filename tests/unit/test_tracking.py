import sys
from contextlib import closing
from types import SimpleNamespace

import pytest

from opct.config.loader import load_config
from opct.errors import ConfigError
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.runs.tracking import Tracker, check_trackers
from tests.refusals import refused


@pytest.fixture
def run(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        yield run


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_the_same_numbers(run):
    """Three steps written through accelerate, read back from the event files with tensorboard's own reader."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with closing(Tracker(run, load_config(overrides=["report_to=[tensorboard, tensorboard]"]))) as tracker:
        for step in (1, 2, 3):
            tracker.log(step, {"train/kl": 1 / step})
    reader = EventAccumulator(str(run.trackers_dir / "opct"))
    reader.Reload()
    scalars = reader.Scalars("train/kl")
    assert [event.step for event in scalars] == [1, 2, 3]
    assert [event.value for event in scalars] == pytest.approx([1, 1 / 2, 1 / 3])
    assert [row["step"] for row in read_jsonl(run.metrics_path)] == [1, 2, 3]


def test_a_step_that_is_done_again_after_a_kill_is_sent_once(run, monkeypatch):
    sent = []
    stand_in = SimpleNamespace(
        name="x", store_init_configuration=lambda _: None, log=lambda _, step: sent.append(step), finish=lambda: None
    )
    monkeypatch.setattr("opct.runs.tracking._start", lambda *_: run.trackers_dir.mkdir(exist_ok=True) or stand_in)
    for steps in ((0, 1, 2, 3), (2, 3, 4)):  # the last checkpoint was that of step 1
        with closing(Tracker(run, load_config(overrides=["report_to=[tensorboard]"]))) as tracker:
            for step in steps:
                tracker.log(step, {"train/kl": 1.0})
    assert sent == [0, 1, 2, 3, 4]


def test_a_run_keeps_its_name_and_id_when_it_is_resumed(run, monkeypatch):
    """wandb, trackio and swanlab need an accelerate state; a stand-in for wandb says what it was started with."""
    started = []
    config = SimpleNamespace(update=lambda *_, **__: None)
    api = SimpleNamespace(config=config, finish=list, init=lambda **given: started.append(given) or api)
    monkeypatch.setitem(sys.modules, "wandb", api)
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", lambda: ["wandb"])
    for _ in range(2):
        with closing(Tracker(run, load_config(overrides=["report_to=[wandb]"]))):
            pass
    first, second = started
    assert first == second
    assert (first["project"], first["name"], first["resume"]) == ("opct", "run", "allow")
    assert len(first["id"]) == 24


def test_a_tracker_that_is_unknown_or_not_installed(monkeypatch):
    with refused(ConfigError, "tensorbord", "tensorboard"):
        check_trackers(["tensorbord"])
    monkeypatch.setattr("accelerate.tracking._available_trackers", [])
    with refused(ConfigError, "pip install wandb", "nope"):
        check_trackers(["wandb", "nope"])
