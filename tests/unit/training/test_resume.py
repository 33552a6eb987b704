"""When a run is finished, when it is another run, and when it may be resumed."""

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from opct.config.loader import load_config
from opct.errors import CheckpointError, RunError
from opct.runs.io import read_jsonl, write_jsonl
from opct.runs.run_dir import RunDir
from opct.training.resume import is_finished
from opct.training.trainer import train
from tests.e2e.cli import reseal
from tests.refusals import refused
from tests.tiny import tiny_adapter_policy
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
    assert not is_finished(run, make_config(**settings, num_train_epochs=2))
    run.checkpoint_path(total).rename(run.path / "moved")
    assert not is_finished(run, config)


def test_other_data_are_another_run(make_config, tmp_path: Path):
    """The file of pairs has lost one since."""
    pairs = tmp_path / "mine.jsonl"
    lines = Path(make_config().data.pairs[0]).read_text(encoding="utf-8").splitlines(keepends=True)
    pairs.write_text("".join(lines), encoding="utf-8")
    config = make_config(max_steps=1, data=NO_VALIDATION | {"pairs": [str(pairs)]})
    run = RunDir(train(config).run_dir)
    assert is_finished(run, config)
    pairs.write_text("".join(lines[:-1]), encoding="utf-8")
    with refused(RunError, "the pairs (hash): "):
        is_finished(run, config)


def test_a_run_that_continued_another_adapter_than_is_there_now_is_another_run(make_config, tmp_path: Path):
    """Saved again as it was, it is the same; once it is gone, it is not compared. The teacher is the bare base, so that
    the files alone tell."""
    folder = tmp_path / "adapter"
    tiny_adapter_policy().save(folder)
    model, teacher = {"adapter": str(folder)}, {"include_adapter": False}
    config = make_config(max_steps=1, model=model, teacher=teacher, data=NO_VALIDATION)
    train(config)
    run = RunDir(config.output_dir)
    tiny_adapter_policy().save(folder)
    assert is_finished(run, config)
    tiny_adapter_policy(seed=1).save(folder)
    with refused(RunError, folder, "adapter_model", "delete x and y"):
        is_finished(run, config, remedy="delete x and y")
    with refused(RunError, folder):
        train(config.model_copy(update={"max_steps": 2}), resume=True)
    folder.rename(folder.with_name("gone"))
    assert is_finished(run, config)


def test_a_run_keeps_what_the_one_before_it_took(make_config, trained, tmp_path: Path):
    """Up to the checkpoint that it continues: the run has gone on since."""
    first = trained(max_steps=1)
    run = RunDir(first.output_dir)
    assert run.read_manifest()["earlier"] is None
    write_jsonl(run.metrics_path, [*metrics(first), metrics(first)[-1] | {"step": 2}])
    model = {"adapter": first.output_dir}
    second = make_config(output_dir=str(tmp_path / "second"), max_steps=1, data=NO_VALIDATION, model=model)
    train(second)
    earlier = RunDir(second.output_dir).read_manifest()["earlier"]
    assert (earlier["run"], earlier["steps"]) == (first.output_dir, 1)
    assert earlier["seconds"] > 0


@pytest.fixture
def half(make_config, trained):
    """A run of one step, and the settings that resume it for one more."""
    return RunDir(trained(max_steps=1).output_dir), make_config(max_steps=2)


def test_a_pickle_in_a_checkpoint_is_not_run(half, tmp_path: Path):
    """Listed, in the folder where torch's own distributed checkpoints keep one, and beside the tensors."""
    run, config = half
    checkpoint = run.latest_checkpoint()
    (checkpoint / "state").mkdir()

    class Touches:
        def __reduce__(self):
            return Path.touch, (tmp_path / "PWNED",)

    for name in ("state/.metadata", "state.pt"):
        (checkpoint / name).write_bytes(pickle.dumps(Touches()))
    reseal(checkpoint)
    train(config, resume=True)
    assert not (tmp_path / "PWNED").exists()


def with_tensors(change):
    """Puts other tensors into the last checkpoint, and seals it again."""

    def damage(run: RunDir) -> None:
        file = run.latest_checkpoint() / "state.safetensors"
        save_file(change({name: tensor.clone() for name, tensor in load_file(file).items()}), file)
        reseal(file.parent)

    return damage


@pytest.mark.parametrize(
    ("damage", "error", "named"),
    [
        (lambda run: reseal(run.latest_checkpoint(), steps_above=0, reference_kl=0.1), CheckpointError, "counters"),
        (with_tensors(lambda tensors: tensors | {"weight/x": torch.zeros(2)}), CheckpointError, "weight/x"),
        (with_tensors(lambda ts: {k: t[:1] if t.dim() else t for k, t in ts.items()}), CheckpointError, "shape"),
        # those of steps 0 and 1 were on the disk with the checkpoint of step 1
        (lambda run: write_jsonl(run.metrics_path, read_jsonl(run.metrics_path)[1:]), RunError, "metrics.jsonl"),
    ],
    ids=["counters", "one tensor more", "shapes that would be repeated to fill the weights", "lost metrics"],
)
def test_what_this_run_did_not_write_is_refused(half, damage, error, named):
    run, config = half
    damage(run)
    with refused(error, named):
        train(config, resume=True)


def test_a_run_without_its_manifest_names_the_checkpoint_to_train_on_from(half):
    run, config = half
    run.manifest_path.write_text(run.manifest_path.read_text()[:-20])
    for flags in ({}, {"resume": True}, {"overwrite": True}):
        with refused(RunError, "manifest.json", "step-000001"):
            train(config, **flags)
