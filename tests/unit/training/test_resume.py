"""When a run is finished, when it is another run, and when it may be resumed."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from opct.config.loader import dump_config, load_config
from opct.errors import CheckpointError, RunError
from opct.runs.io import file_sha256, read_jsonl, write_json, write_jsonl
from opct.runs.run_dir import RunDir
from opct.training.resume import is_finished
from opct.training.trainer import train
from tests.progress import Noted
from tests.refusals import refused
from tests.tiny import save_tiny, tiny_adapter_policy
from tests.unit.training.conftest import NO_VALIDATION, metrics


def test_a_run_is_finished_when_it_has_all_its_steps(make_config, trained):
    """No run; one of 1 step; 2 steps asked of it, in less memory; resumed. A constant rate lets the length change."""
    config = make_config(max_steps=1)
    run = RunDir(config.output_dir)
    assert not is_finished(run, config)
    trained(max_steps=1)
    assert is_finished(run, config)
    assert is_finished(run, make_config(max_steps=1, save_steps=1, stop={"divergence_patience": 9}))
    other = make_config(max_steps=1, seed=1, optim={"learning_rate": 1e-3})
    with refused(RunError, "seed: 0 then, 1 now", "optim.learning_rate: 0.01 then, 0.001 now", "--overwrite"):
        is_finished(run, other)
    optim = {"micro_batch_tokens": 100, "gradient_checkpointing": True}
    longer = make_config(max_steps=2, optim=optim, rollout={"batch_tokens": 999})
    assert not is_finished(run, longer)
    train(longer, resume=True)
    assert load_config(run.config_path) == longer
    assert is_finished(run, longer)
    with refused(RunError, "2 steps", "max_steps is 1"):
        is_finished(run, config)


def test_a_run_that_is_stopped_twice_before_its_first_step_can_be_resumed(make_config):
    """The first time after the validation of step 0, the second time before it."""
    config = make_config(max_steps=1)
    assert train(config, progress=Noted("validation before")).status == "interrupted"
    assert [row["step"] for row in metrics(config)] == [0]
    assert train(config, progress=Noted("load"), resume=True).status == "interrupted"
    assert train(config, resume=True).status == "finished"
    assert [row["step"] for row in metrics(config)] == [0, 1]


def test_without_max_steps_the_pairs_say_how_long_it_is(make_config):
    """An epoch over the pairs that are not held out; a checkpoint in the middle is not its end.

    A run is not resumed for fewer epochs, and its manifest keeps the larger number of steps.
    """
    settings = {"max_steps": None, "save_steps": 1, "save_total_limit": 9, "data": NO_VALIDATION}
    config = make_config(**settings)
    total = train(config).total_steps
    run = RunDir(config.output_dir)
    assert total > 1
    with refused(RunError, f"{total} steps"):
        train(make_config(**settings, num_train_epochs=0.1), resume=True)
    assert run.read_manifest()["total_steps"] == total
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


def test_other_data_and_another_base_model_are_another_run(make_config, tmp_path: Path):
    """The file of pairs has lost one since; the folder of the model has other weights."""
    folder, pairs = save_tiny(tmp_path / "model"), tmp_path / "mine.jsonl"
    lines = Path(make_config().data.pairs[0]).read_text(encoding="utf-8").splitlines(keepends=True)
    pairs.write_text("".join(lines), encoding="utf-8")
    data = NO_VALIDATION | {"pairs": [str(pairs)]}
    config = make_config(max_steps=1, model={"name_or_path": str(folder)}, data=data)
    run = RunDir(train(config).run_dir)
    assert is_finished(run, config)
    pairs.write_text("".join(lines[:-1]), encoding="utf-8")
    with refused(RunError, "the pairs (hash): "):
        is_finished(run, config)
    pairs.write_text("".join(lines), encoding="utf-8")
    save_tiny(folder, seed=1)
    with refused(RunError, folder, "model.safetensors: "):
        is_finished(run, config)


@pytest.mark.parametrize("include", [True, False])
def test_a_run_that_continued_another_adapter_than_is_there_now_is_another_run(make_config, tmp_path, include: bool):
    """Saved again as it was, it is the same; once it is gone, it is not compared.

    A teacher that includes the adapter is compared by its weights, a bare one leaves the adapter's files to compare.
    """
    folder = tmp_path / "adapter"
    tiny_adapter_policy().save(folder)
    teacher = {"include_adapter": include}
    config = make_config(max_steps=1, model={"adapter": str(folder)}, teacher=teacher, data=NO_VALIDATION)
    train(config)
    run, longer = RunDir(config.output_dir), config.model_copy(update={"max_steps": 2})
    tiny_adapter_policy().save(folder)
    assert is_finished(run, config)
    tiny_adapter_policy(seed=1).save(folder)
    with refused(RunError, folder, "adapter_model", "delete x and y"):
        is_finished(run, config, remedy="delete x and y")
    with refused(RunError, "teacher" if include else folder):
        train(longer, resume=True)
    if include:
        tiny_adapter_policy().save(folder)
        assert train(longer, resume=True).step == 2
    folder.rename(folder.with_name("gone"))
    assert is_finished(run, longer if include else config)


def test_a_run_keeps_what_the_one_before_it_took(make_config, tmp_path: Path):
    """The second continues the checkpoint after 1 step of 2, the third the second: 1 and 1 + 1 steps came before."""

    def continued(name: str, steps: int, adapter: Path | str | None):
        model = {"adapter": adapter and str(adapter)}
        config = make_config(
            output_dir=str(tmp_path / name), max_steps=steps, save_steps=1, data=NO_VALIDATION, model=model
        )
        train(config)
        return config

    first = continued("first", 2, None)
    second = continued("second", 1, RunDir(first.output_dir).checkpoint_path(1) / "adapter")
    third = continued("third", 1, second.output_dir)
    earlier = [RunDir(config.output_dir).read_manifest()["earlier"] for config in (first, second, third)]
    assert earlier[0] is None
    assert [(each["run"], each["steps"]) for each in earlier[1:]] == [(first.output_dir, 1), (second.output_dir, 2)]
    assert 0 < earlier[1]["seconds"] < earlier[2]["seconds"]


@pytest.fixture
def half(make_config, trained):
    """A run of one step, and the settings that resume it for one more."""
    return RunDir(trained(max_steps=1).output_dir), make_config(max_steps=2)


def reseal(checkpoint: Path, **state) -> None:
    """Seal the files that are in a checkpoint now, with other counters, as its maker could."""
    file = checkpoint / "state.json"
    seal = json.loads(file.read_text())
    paths = [path for path in checkpoint.rglob("*") if path.is_file() and path != file]
    hashes = {str(p.relative_to(checkpoint)): {"sha256": file_sha256(p), "bytes": p.stat().st_size} for p in paths}
    file.write_text(json.dumps(seal | {"files": hashes, "state": seal["state"] | state}))


@pytest.mark.parametrize("sealed", [False, True])
def test_a_pickle_in_a_checkpoint_is_not_run(half, tmp_path: Path, sealed: bool):
    """In the folder where torch's own distributed checkpoints keep one, and beside the tensors; listed or not."""
    run, config = half
    checkpoint = run.latest_checkpoint()
    (checkpoint / "state").mkdir()

    class Touches:
        def __reduce__(self):
            return Path.touch, (tmp_path / "PWNED",)

    for name in ("state/.metadata", "state.pt"):
        (checkpoint / name).write_bytes(pickle.dumps(Touches()))
    if sealed:
        reseal(checkpoint)
        train(config, resume=True)
    else:
        with refused(CheckpointError, checkpoint):
            train(config, resume=True)
    assert not (tmp_path / "PWNED").exists()


def test_odd_counters_are_refused(half):
    run, config = half
    for state in ({"steps_above": -1}, {"steps_above": 0, "reference_kl": 0.1}):
        reseal(run.latest_checkpoint(), **state)
        with pytest.raises(CheckpointError):
            train(config, resume=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: {"weight/x": torch.zeros(2)},
        lambda tensors: tensors | {"weight/x": torch.zeros(2)},
        lambda tensors: {name: tensor[:1] if tensor.dim() else tensor for name, tensor in tensors.items()},
    ],
    ids=["other names", "one more", "shapes that would be repeated to fill the weights"],
)
def test_a_file_of_other_tensors_is_refused(half, change):
    run, config = half
    checkpoint = run.latest_checkpoint()
    file = checkpoint / "state.safetensors"
    save_file(change({name: tensor.clone() for name, tensor in load_file(file).items()}), file)
    reseal(checkpoint)
    with pytest.raises(CheckpointError):
        train(config, resume=True)


def test_rows_of_metrics_that_are_gone_are_noticed(half):
    """Those of steps 0 and 1 were on the disk with the checkpoint of step 1."""
    run, config = half
    rows = read_jsonl(run.metrics_path)
    write_jsonl(run.metrics_path, rows[1:])
    with refused(RunError, run.metrics_path):
        train(config, resume=True)


def test_a_run_without_its_manifest_names_the_checkpoint_to_train_on_from(half):
    run, config = half
    run.manifest_path.write_text(run.manifest_path.read_text()[:-20])
    for flags in ({}, {"resume": True}, {"overwrite": True}):
        with refused(RunError, "manifest.json", "step-000001"):
            train(config, **flags)
