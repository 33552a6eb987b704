"""When a run is finished, when it is another run, and when it may be resumed."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from opct.config.loader import dump_config
from opct.errors import CheckpointError, DataError, ModelError, RunError
from opct.runs.checkpoints import _seal, read_state
from opct.runs.io import read_jsonl, write_json, write_jsonl
from opct.runs.run_dir import RunDir
from opct.training.checkpoint import FIRST_ROWS
from opct.training.resume import is_finished
from opct.training.trainer import train
from tests.tiny import save_tiny, tiny_adapter_policy


def test_a_run_is_finished_when_it_has_all_its_steps(make_config):
    """No run; one of 2 steps; 4 steps asked of it; trained on. A constant rate lets the length change."""
    config = make_config(max_steps=2)
    run = RunDir(config.output_dir)
    assert not is_finished(run, config)
    train(config)
    assert is_finished(run, config)
    assert is_finished(run, make_config(max_steps=2, save_steps=1, stop={"divergence_patience": 9}))
    longer = make_config(max_steps=4)
    assert not is_finished(run, longer)
    train(longer, resume=True)
    assert is_finished(run, longer)
    with pytest.raises(RunError, match="it has trained 4 steps, and max_steps is 2"):
        is_finished(run, config)


def test_without_max_steps_the_pairs_say_how_long_it_is(make_config):
    """An epoch over the pairs of the file that are not held out; a checkpoint in the middle is not its end."""
    config = make_config(max_steps=None, save_steps=1, save_total_limit=9)
    total = train(config).total_steps
    run = RunDir(config.output_dir)
    assert total > 1
    assert is_finished(run, config)
    run.checkpoint_path(total).rename(run.path / "moved")
    assert not is_finished(run, config)


@pytest.mark.parametrize("then", [{"num_train_epochs": 1}, {"max_steps": 4}])
def test_a_number_of_steps_that_other_settings_gave_is_not_believed(make_config, then):
    """It wrote down 4 steps and has them; three epochs are asked of it now. Had it three, it is finished."""
    run = RunDir(make_config().output_dir)
    run.path.mkdir()
    write_json(run.manifest_path, {"opct_run": 1, "total_steps": 4})
    run.save_checkpoint(4, lambda folder: None)
    now = make_config(max_steps=None, num_train_epochs=3)
    run.config_path.write_text(dump_config(make_config(**{"max_steps": None, "num_train_epochs": 3} | then)))
    assert not is_finished(run, now)
    run.config_path.write_text(dump_config(now))
    assert is_finished(run, now)


def test_a_run_is_not_resumed_for_less_than_it_has(make_config):
    """Two epochs are more than one; what would be written down is the smaller number."""
    longer, shorter = (make_config(max_steps=None, num_train_epochs=epochs) for epochs in (2, 1))
    total = train(longer).total_steps
    run = RunDir(longer.output_dir)
    with pytest.raises(RunError, match=rf"has trained {total} steps, but the settings now ask for"):
        train(shorter, resume=True)
    assert run.read_manifest()["total_steps"] == total
    assert is_finished(run, longer)


@pytest.fixture(scope="module")
def one_step(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("one") / "run"


@pytest.fixture
def one(make_config, one_step: Path):
    """The settings of a finished run of one step, which is trained once, and copied for each test."""
    if not one_step.exists():
        train(make_config(max_steps=1, output_dir=str(one_step)))
    config = make_config(max_steps=1)
    shutil.copytree(one_step, config.output_dir)
    return config


def test_other_settings_are_another_run(make_config, one):
    config = one
    assert is_finished(RunDir(config.output_dir), config)
    with pytest.raises(RunError, match="holds a run with other settings") as caught:
        is_finished(RunDir(config.output_dir), make_config(max_steps=1, seed=1, optim={"learning_rate": 1e-3}))
    for part in ("the setting seed changed (0 then, 1 now)", "learning_rate: 0.01 then, 0.001 now", "--overwrite"):
        assert part in str(caught.value)


def test_other_data_are_another_run(make_config, tmp_path):
    """One pair of the file is another one: what was trained on it is not there yet."""
    source = Path(make_config().data.pairs[0])
    mine = tmp_path / "mine.jsonl"
    lines = source.read_text(encoding="utf-8").splitlines()
    mine.write_text("\n".join(lines) + "\n", encoding="utf-8")
    config = make_config(max_steps=1, data={"pairs": [str(mine)]})
    train(config)
    assert is_finished(RunDir(config.output_dir), config)
    mine.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    with pytest.raises(RunError, match=r"the (pairs|validation) changed \(hash"):
        is_finished(RunDir(config.output_dir), config)


@pytest.fixture(scope="module")
def went_on(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("continued")


@pytest.fixture
def continued(make_config, went_on: Path):
    """(config, folder of the adapter) of a finished run that went on from an adapter, its teacher the bare base.

    Trained once; each test has all of it as it was.
    """
    now, once = went_on / "now", went_on / "once"
    folder = now / "adapter"
    settings = {"max_steps": 1, "model": {"adapter": str(folder)}, "teacher": {"include_adapter": False}}
    config = make_config(output_dir=str(now / "run"), **settings)
    if once.exists():
        shutil.rmtree(now)
        shutil.copytree(once, now)
    else:
        tiny_adapter_policy().save(folder)
        train(config)
        shutil.copytree(now, once)
    return config, folder


def test_a_run_that_went_on_from_another_adapter_than_is_there_now_is_another_run(continued):
    """Neither settings nor teacher say so. Written again as it was, it is the same; gone, nothing is known of it."""
    config, folder = continued
    run = RunDir(config.output_dir)
    tiny_adapter_policy().save(folder)
    assert is_finished(run, config)
    tiny_adapter_policy(seed=1).save(folder)
    with pytest.raises(RunError, match=r"the adapter that it continued, .*adapter, changed \(adapter_model") as caught:
        is_finished(run, config, remedy="delete x and y")
    assert str(caught.value).endswith("Restore them, delete x and y, or choose another output_dir.")
    folder.rename(folder.with_name("gone"))
    assert is_finished(run, config)


def test_a_run_is_resumed_only_from_the_adapter_it_began_with(continued, make_config):
    config, folder = continued
    tiny_adapter_policy(seed=1).save(folder)
    with pytest.raises(RunError, match=r"cannot be resumed.*\n  the adapter that it continued"):
        train(config.model_copy(update={"max_steps": 2}), resume=True)
    tiny_adapter_policy().save(folder)
    assert train(config.model_copy(update={"max_steps": 2}), resume=True).step == 2


def test_a_run_of_before_its_files_were_noted_stays_what_it_is(continued):
    """Its manifest has neither; resumed, it does not take the adapter of now for the one that it began with."""
    config, folder = continued
    run = RunDir(config.output_dir)
    manifest = run.read_manifest()
    write_json(run.manifest_path, {key: manifest[key] for key in manifest if key not in ("weights", "earlier")})
    tiny_adapter_policy(seed=1).save(folder)
    assert is_finished(run, config)
    train(config.model_copy(update={"max_steps": 2}), resume=True)
    assert run.read_manifest()["weights"]["adapter"] == {}
    assert run.read_manifest()["earlier"] is None


def test_a_run_of_another_base_model_than_is_there_now_is_another_run(make_config, tmp_path: Path):
    folder = save_tiny(tmp_path / "model")
    config = make_config(max_steps=1, model={"name_or_path": str(folder)})
    train(config)
    assert is_finished(RunDir(config.output_dir), config)
    save_tiny(folder, seed=1)
    with pytest.raises(RunError, match=r"the base model .*model changed \(model\.safetensors: \w+ then, \w+ now\)"):
        is_finished(RunDir(config.output_dir), config)


def test_a_run_keeps_what_the_one_before_it_took(make_config, tmp_path: Path):
    """Three steps, of which a checkpoint of two is gone on from; then two more from there: 2 and 2 + 1 came before."""
    first = make_config(output_dir=str(tmp_path / "first"), max_steps=3, save_steps=2, save_total_limit=9)
    train(first)
    checkpoint = RunDir(first.output_dir).checkpoint_path(2) / "adapter"
    second = make_config(output_dir=str(tmp_path / "second"), max_steps=1, model={"adapter": str(checkpoint)})
    train(second)
    third = make_config(output_dir=str(tmp_path / "third"), max_steps=1, model={"adapter": second.output_dir})
    train(third)
    earlier = [RunDir(config.output_dir).read_manifest()["earlier"] for config in (first, second, third)]
    assert earlier[0] is None
    assert [(each["run"], each["steps"]) for each in earlier[1:]] == [(first.output_dir, 2), (second.output_dir, 3)]
    assert 0 < earlier[1]["seconds"] < earlier[2]["seconds"]


def test_what_cannot_begin_replaces_nothing(make_config, one, tmp_path: Path):
    """--overwrite with a model that is not there: the old run is as it was."""
    config = one
    before = {p: p.read_bytes() for p in Path(config.output_dir).rglob("*") if p.is_file() and "lock" not in p.name}
    with pytest.raises(ModelError):
        train(make_config(model={"name_or_path": str(tmp_path / "nowhere")}), overwrite=True)
    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_run_is_resumed_only_with_the_adapter_it_continues(make_config, tmp_path: Path):
    """The folder that `model.adapter` names holds another adapter now: the teacher would be another."""
    folder = tmp_path / "adapter"
    tiny_adapter_policy().save(folder)
    config = make_config(model={"adapter": str(folder)}, max_steps=1)
    longer = make_config(model={"adapter": str(folder)}, max_steps=2)
    train(config)
    tiny_adapter_policy(seed=1).save(folder)
    with pytest.raises(RunError, match=r"the teacher's weights changed \([0-9a-f]{16} then, [0-9a-f]{16} now\)"):
        train(longer, resume=True)
    tiny_adapter_policy().save(folder)
    assert train(longer, resume=True).step == 2


def test_bad_data_is_refused_before_a_model_is_loaded(make_config, tmp_path: Path):
    (tmp_path / "bad.jsonl").write_text("{}\n")
    config = make_config(data={"pairs": [str(tmp_path / "bad.jsonl")]}, model={"name_or_path": "no/such/model"})
    with pytest.raises(DataError, match=r"bad\.jsonl:1"):
        train(config)


def test_more_steps_are_refused_where_the_rate_falls_to_the_last_one(make_config):
    """With a linear schedule every step's rate depends on the number of steps: one step of two is not one of one."""
    falling = {"lr_scheduler_type": "linear"}
    train(make_config(max_steps=1, optim=falling))
    with pytest.raises(RunError, match=r"the setting max_steps changed \(1 then, 2 now\)"):
        train(make_config(max_steps=2, optim=falling), resume=True)


# ------------------------------------------------------------------------------------------- damaged and hostile runs


class Touches:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("half") / "run"


@pytest.fixture
def half(make_config, kept: Path):
    """A run of two steps, trained once, and the settings that resume it for one more."""
    if not kept.exists():
        train(make_config(max_steps=2, output_dir=str(kept)))
    shutil.copytree(kept, make_config().output_dir)
    return RunDir(make_config().output_dir), make_config(max_steps=3)


def reseal(checkpoint: Path, **state) -> None:
    """Seal the files that are in a checkpoint now, with other counters, as its maker could."""
    kept = read_state(checkpoint) | state
    (checkpoint / "state.json").unlink()
    _seal(checkpoint, 2, kept)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_pickle_in_a_checkpoint_is_not_run(half, tmp_path: Path, sealed: bool):
    """In the folder where torch's own distributed checkpoints keep one, and beside the tensors; listed or not."""
    run, config = half
    checkpoint = run.latest_checkpoint()
    (checkpoint / "sharded").mkdir()
    for name in ("sharded/.metadata", "state/.metadata", "state.pt"):
        (checkpoint / name).write_bytes(pickle.dumps(Touches(tmp_path / "PWNED")))
    if sealed:
        reseal(checkpoint)
        train(config, resume=True)
    else:
        with pytest.raises(CheckpointError, match="is not one of the files that"):
            train(config, resume=True)
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"step": 3}, "are of step 3"),
        ({"steps_above": -1}, "written by another version of opct"),
        ({"reference_kl": 0.1}, "written by another version of opct"),
    ],
)
def test_odd_counters_are_refused(half, state, words):
    run, config = half
    reseal(run.latest_checkpoint(), **state)
    with pytest.raises(CheckpointError, match=words):
        train(config, resume=True)


@pytest.mark.parametrize("header", [None, {FIRST_ROWS: '{"weight/x": 0}'}])
def test_a_file_of_other_tensors_is_refused(half, header):
    run, config = half
    checkpoint = run.latest_checkpoint()
    save_file({"weight/x": torch.zeros(2)}, checkpoint / "state" / "rank-00000.safetensors", header)
    reseal(checkpoint)
    with pytest.raises(CheckpointError, match="does not fit this model and config"):
        train(config, resume=True)


def test_rows_of_metrics_that_are_gone_are_noticed(half):
    """Those of steps 0 to 2 were on the disk with the checkpoint of step 2."""
    run, config = half
    rows = read_jsonl(run.metrics_path)
    write_jsonl(run.metrics_path, rows[:1] + rows[2:])
    with pytest.raises(RunError, match="has 2 rows up to step 2, and had 3"):
        train(config, resume=True)
    write_jsonl(run.metrics_path, rows)
    assert train(config, resume=True).step == 3


def test_a_run_without_its_manifest_names_the_checkpoint_to_train_on_from(half):
    run, config = half
    run.manifest_path.write_text(run.manifest_path.read_text()[:-20])
    for flags in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(RunError, match=r"manifest\.json is missing or damaged.*step-000002 \(model.adapter\)"):
            train(config, **flags)
