"""Time: steps, schedules, checkpoints, interruptions, refusals."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest

import opct.training.trainer
from opct.config.loader import dump_config
from opct.config.schema import OptimConfig
from opct.errors import ConfigError, DataError, DivergenceError, ModelError, NonFiniteError, RunError
from opct.methods.consistency import MicroLoss
from opct.methods.registry import METHODS
from opct.runs.checkpoints import read_state
from opct.runs.io import atomic_write, read_jsonl, write_jsonl
from opct.runs.run_dir import RunDir
from opct.training.resume import is_finished
from opct.training.setup import load_data
from opct.training.trainer import TrainResult, learning_rate, train
from tests.refusals import refused
from tests.tiny import tiny_pairs
from tests.unit.training.conftest import NO_VALIDATION, metrics, weights


def checkpoint_steps(config) -> list[int]:
    return [step for step, _ in RunDir(config.output_dir).checkpoints()]


def test_what_a_step_writes_is_of_its_batch_and_its_metrics_are_means(trained):
    """3 pairs and an identity pair, two answers each; `train/kl` over tokens of the pairs, identity apart."""
    config = trained(max_steps=1)
    run = RunDir(config.output_dir)
    manifest, rows = run.read_manifest(), read_jsonl(run.rollouts_path(1))
    pairs = [rendered.pair for rendered in load_data(config).batch(1)]
    assert [row["pair_id"] for row in rows] == [pair.id for pair in pairs for _ in range(2)]
    assert manifest["trained_families"] == ["list", "suggested"]
    assert manifest["trained_questions"] == sorted(pair.meta["question_id"] for pair in pairs)
    assert sum(row["pair_id"].startswith("benign") for row in rows) == 2
    found = next(row for row in metrics(config) if row["step"] == 1)
    for name, identity in (("train/kl", False), ("train/kl_identity", True)):
        values = [x for row in rows if (row["axis"] == "benign") == identity for x in row["kl"]]
        assert found[name] == pytest.approx(sum(values) / len(values), abs=1e-4)
    assert found["train/completion_tokens"] == sum(len(row["token_ids"]) for row in rows)
    assert found["train/truncated_fraction"] == sum(row["stop_reason"] == "length" for row in rows) / 8


def test_another_seed_makes_another_run(make_config, trained, tmp_path: Path):
    other = make_config(output_dir=str(tmp_path / "other"), seed=1, max_steps=1)
    train(other)
    assert weights(other) != weights(trained(max_steps=1))


def test_a_run_that_cannot_begin_leaves_no_folder_and_replaces_nothing(make_config, trained, tmp_path: Path):
    """Neither without its data nor without its model, with `overwrite` or without."""
    (tmp_path / "bad.jsonl").write_text("{}\n")
    model = {"name_or_path": str(tmp_path / "nowhere")}
    faulty = make_config(data={"pairs": [str(tmp_path / "bad.jsonl")]}, model=model)
    with refused(DataError, "bad.jsonl:1"):  # before a model is loaded
        train(faulty)
    assert not Path(faulty.output_dir).exists()
    run = Path(trained(max_steps=1).output_dir)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and "lock" not in path.name}
    no_tracker = make_config(report_to=["nope"])
    for config, error in ((faulty, DataError), (make_config(model=model), ModelError), (no_tracker, ConfigError)):
        with pytest.raises(error):
            train(config, overwrite=True)
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize(
    ("kind", "warmup", "expected"),
    [
        ("constant", 2, [1 / 3, 2 / 3, 1, 1]),
        ("linear", 1, [1 / 2, 1, 2 / 3, 1 / 3]),
        ("cosine", 0, [1, 0.5 + 0.5**0.5 / 2, 0.5, 0.5 - 0.5**0.5 / 2]),
    ],
)
def test_learning_rate_by_hand(kind: str, warmup: int, expected: list[float]):
    """Four steps; the decay would reach 0 after the last one. cos(pi/4) = 1/sqrt(2)."""
    optim = OptimConfig(learning_rate=1.0, lr_scheduler_type=kind, warmup_steps=warmup)
    assert [learning_rate(step, 4, optim) for step in (1, 2, 3, 4)] == pytest.approx(expected)


def test_the_learning_rate_is_applied_and_logged(make_config):
    optim = {"learning_rate": 0.01, "lr_scheduler_type": "linear"}
    config = make_config(max_steps=2, data=NO_VALIDATION, optim=optim)
    train(config)
    assert [row["train/learning_rate"] for row in metrics(config)] == [0.01, 0.005]
    with refused(RunError, "max_steps: 2 then, 4 now"):  # every rate depends on it
        is_finished(RunDir(config.output_dir), make_config(data=NO_VALIDATION, optim=optim))


def test_checkpoints_are_kept_as_asked_the_best_one_besides(make_config, monkeypatch):
    """The newest of three, and that of step 1, whose validation KL is the lowest."""
    kl = {0: 3.0, 1: 1.0, 2: 1.5, 3: 1.0, 4: 2.0}
    monkeypatch.setattr(opct.training.trainer, "validate", lambda setup, step: ({"validation/kl": kl[step]}, []))
    result = train(make_config(max_steps=4, save_steps=3, eval_steps=1, save_total_limit=1))
    assert result.best_step == 1
    run = RunDir(result.run_dir)
    assert [step for step, _ in run.checkpoints()] == [1, 4]
    state = read_state(run.latest_checkpoint())
    assert (state["step"], state["best_step"], state["best_kl"]) == (4, 1, 1.0)


def test_the_last_line_names_the_questions_that_the_pairs_were_made_of(make_config):
    pairs = [replace(pair, meta={"question_file": ["my q.csv", "answer=a"]}) for pair in tiny_pairs(4)]
    result = train(make_config(max_steps=1, data=NO_VALIDATION), pairs=pairs)
    command = f"opct eval {result.run_dir} --questions 'PATH/TO/my q.csv' --column answer=a"
    assert result.render().splitlines()[-1].endswith(command)
    assert command.endswith(RunDir(result.run_dir).read_manifest()["eval_options"])


def test_the_end_says_what_changed_and_what_to_do(make_config):
    config = make_config()
    run = RunDir(config.output_dir)
    atomic_write(run.config_path, dump_config(config))
    cut, kl, ordinary = "train/truncated_fraction", "validation/kl", "validation/kl_identity"
    rows = [{kl: 2.0, ordinary: 0.0}, {cut: 1.0}, {kl: 1.0, ordinary: 0.02, cut: 0.5}]
    write_jsonl(run.metrics_path, [{"step": step} | row for step, row in enumerate(rows)])
    result = TrainResult(run.path, "finished", step=2, total_steps=2, best_step=2)
    assert result.render().splitlines() == [
        f"finished after step 2 of 2: {run.path}",
        "KL on held-out pairs     2.000 -> 1.000 nats a token  █▅",
        "KL on ordinary requests  0.000 -> 0.020 nats a token  ▁█",
        "replies cut              75%; rollout.max_completion_tokens is 6: raise it",
        f"next: opct eval {run.path}",
    ]
    stopped = replace(result, status="interrupted", best_step=1).render()
    assert "lowest validation KL after step 1; eval, chat and export take step 2\n" in stopped
    assert stopped.endswith(f"opct train {run.config_path} --resume")


def spoil(monkeypatch, change, method: str = "opct") -> None:
    """Passes each micro-batch's loss of a method through `change(call number, MicroLoss)`."""
    calls, kind = itertools.count(1), METHODS[method]
    original = kind.loss
    monkeypatch.setattr(kind, "loss", lambda self, *batch: change(next(calls), original(self, *batch)))


ONE_BATCH = {"micro_batch_tokens": 100_000}


def test_a_loss_that_is_not_finite_stops_the_run_with_its_step_and_pairs(make_config, monkeypatch):
    """Step 2 of 2: no update, no metrics of that step; the checkpoint of step 1 is named."""
    config = make_config(optim=ONE_BATCH, max_steps=2, save_steps=1, data={"validation_size": 1})
    spoil(monkeypatch, lambda n, micro: replace(micro, loss=micro.loss * math.nan) if n == 2 else micro)
    with refused(NonFiniteError, "Step 2", "step-000001", *(r.pair.id for r in load_data(config).batch(2))):
        train(config)
    assert [row["step"] for row in metrics(config)] == [0, 1]
    assert checkpoint_steps(config) == [1]


def test_a_gradient_that_is_not_finite_stops_the_run_before_the_update(make_config, monkeypatch):
    """The root of (loss x 0) is 0 with an infinite slope: the loss is finite, the gradient is not."""
    config = make_config(optim=ONE_BATCH, data=NO_VALIDATION)
    spoil(monkeypatch, lambda n, micro: replace(micro, loss=micro.loss + (micro.loss * 0).sqrt()))
    with refused(NonFiniteError, "Step 1"):
        train(config)
    assert checkpoint_steps(config) == []


def exploded(micro: MicroLoss) -> MicroLoss:
    """A KL of 1000 nats a token, or the loss a thousandfold where there is no KL."""
    if "kl" not in micro.values:
        return replace(micro, loss=1000 * micro.loss)
    return replace(micro, values={"kl": [[1000.0] * len(row) for row in micro.values["kl"]]})


@pytest.mark.parametrize(("method", "named"), [("opct", "KL is 1e+03 nats"), ("sft", "loss is")])
def test_what_diverges_stops_the_run_after_patience(make_config, monkeypatch, method, named):
    """In steps 4, 6 and 7, patience 2: stopped at step 7, whose metrics and rollouts are kept."""
    stop = {"divergence_factor": 50.0, "divergence_patience": 2}
    config = make_config(method=method, max_steps=7, data=NO_VALIDATION, stop=stop, optim=ONE_BATCH)
    spoil(monkeypatch, lambda n, micro: exploded(micro) if n in (4, 6, 7) else micro, method)
    with refused(DivergenceError, "Step 7", named, "stop.divergence_factor=50.0"):
        train(config)
    assert checkpoint_steps(config)[-1] == 6
    assert [row["step"] for row in metrics(config)][-2:] == [6, 7]
    assert {row["step"] for row in read_jsonl(RunDir(config.output_dir).rollouts_path(7))} == {7}
