"""What the trainer does where there is no KL and no step yet, and what it writes down."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import opct
from opct.data.duplicates import read_trained_texts, trained_texts
from opct.data.pairs import ContrastivePair, read_pairs, write_pairs
from opct.errors import DivergenceError, RunError
from opct.methods import offline
from opct.methods.act import ACT
from opct.methods.consistency import MicroLoss
from opct.methods.sft import SFT
from opct.runs.console import NullProgress
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.training.setup import load_data
from opct.training.trainer import train
from tests.unit.training.conftest import NO_VALIDATION, metrics, weights

ONE_BATCH = {"micro_batch_tokens": 100_000}


@pytest.mark.parametrize("kind", [SFT, ACT])
def test_a_diverging_loss_stops_what_has_no_kl(make_config, monkeypatch, kind: type):
    """No KL: 1000 times the loss from step 4 on, patience 2, is judged against the loss of the first steps."""
    stop = {"divergence_factor": 50.0, "divergence_patience": 2}
    config = make_config(method=kind.__name__.lower(), max_steps=5, data=NO_VALIDATION, stop=stop, optim=ONE_BATCH)
    calls = []
    loss = kind.loss

    def explode(self, *batch):
        calls.append(1)
        micro = loss(self, *batch)
        return MicroLoss(micro.loss * 1000) if len(calls) >= 4 else micro

    monkeypatch.setattr(kind, "loss", explode)
    with pytest.raises(DivergenceError, match=r"Step 5: the training loss is .* times the loss at the start"):
        train(config)


def test_a_signal_during_offline_answers_ends_them_soon_and_the_run_can_be_resumed(make_config, tmp_path: Path):
    """The signal comes with the first answers; not all of the others are waited for."""

    class Signal(NullProgress):
        answered = 0

        def advance(self, n: int = 1, **fields) -> None:
            self.answered += n
            os.kill(os.getpid(), signal.SIGTERM)

    settings = {"method": "dpo", "max_steps": 1, "rollout": {"batch_tokens": 1}, "data": NO_VALIDATION}
    config, whole = (make_config(output_dir=str(tmp_path / name), **settings) for name in ("a", "b"))
    before, progress = signal.getsignal(signal.SIGTERM), Signal()
    with pytest.raises(KeyboardInterrupt):
        train(config, progress=progress)
    assert signal.getsignal(signal.SIGTERM) == before
    assert progress.answered == config.rollout.num_generations
    assert not RunDir(config.output_dir).offline_path.exists()
    assert train(config, resume=True).status == "finished"
    train(whole)
    assert weights(config) == weights(whole)


def test_a_kill_during_offline_answers_loses_one_part_of_them(make_config, tmp_path: Path, monkeypatch):
    """Killed while the second part is sampled: the first part is not sampled again, and the weights are the same."""
    monkeypatch.setattr(offline, "PART", 2)
    settings = {"method": "sft", "max_steps": 2, "data": NO_VALIDATION}
    config, whole = (make_config(output_dir=str(tmp_path / name), **settings) for name in ("a", "b"))
    answer, asked = SFT.answer, []

    def kill_in_second_part(policy, pairs, *rest):
        asked.append([one.pair.id for one in pairs])
        if len(asked) == 2:
            raise KeyboardInterrupt
        return answer(policy, pairs, *rest)

    monkeypatch.setattr(SFT, "answer", kill_in_second_part)
    with pytest.raises(KeyboardInterrupt):
        train(config)
    kept = {row["pair_id"] for row in read_jsonl(RunDir(config.output_dir).offline_path)}
    assert kept == set(asked[0])
    assert train(config, resume=True).status == "finished"
    assert len(kept) == 2
    assert all(kept.isdisjoint(part) for part in asked[1:])
    train(whole)
    assert weights(config) == weights(whole)


def test_the_manifest_says_what_was_trained_on(trained):
    """One step of four pairs: their families and questions, not those of the pairs that no step visits."""
    config = trained(max_steps=1)
    run = RunDir(config.output_dir)
    manifest, rows = run.read_manifest(), read_jsonl(run.rollouts_path(1))
    question = {rendered.pair.id: rendered.pair.meta["question_id"] for rendered in load_data(config).visited()}
    assert manifest["total_steps"] == 1
    assert manifest["trained_families"] == sorted({row["family"] for row in rows}) == ["list", "suggested"]
    assert manifest["trained_questions"] == sorted({question[row["pair_id"]] for row in rows})
    assert len(manifest["trained_questions"]) == 4


@pytest.fixture
def own_pairs(tmp_path: Path) -> list[str]:
    """A file of a person's own jailbreak and safety-awareness pairs; half of them say in `meta` what they are about."""
    pairs = []
    for i, word in enumerate(("chalk", "bells", "ropes", "lamps", "chairs", "spoons")):
        bare = ({"role": "user", "content": f"Hide the {word} of a school"},)
        wrapped = ({"role": "user", "content": f"You are a pirate. Hide the {word} of a school"},)
        safe = ({"role": "system", "content": f"Never leave {word} on stairs, because people fall over them."}, *bare)
        meta = {"behavior": f"Hide all {word}"} if i % 2 else {}
        pairs.append(ContrastivePair(f"j/{i}", "jailbreak", "pirate", wrapped, bare, meta))
        fact = {"fact": f"Stairs must be kept free of {word}."} if i % 2 else {}
        pairs.append(ContrastivePair(f"s/{i}", "safety_awareness", "plain", bare, safe, fact))
    write_pairs(tmp_path / "own.jsonl", pairs)
    return [str(tmp_path / "own.jsonl")]


def test_the_manifest_names_the_texts_that_were_trained_on(make_config, own_pairs):
    """One step of four of the twelve pairs: theirs and no others, whether or not `meta` holds them."""
    data = {"pairs": own_pairs, "anchors": [], "anchor_fraction": 0.0, "validation_fraction": 0.0}
    config = make_config(max_steps=1, data=data)
    train(config)
    run = RunDir(config.output_dir)
    assert run.read_manifest()["trained_on"] == run.trained_on_path.name
    visited = {row["pair_id"] for row in read_jsonl(run.rollouts_path(1))}
    assert len(visited) == 4
    found = read_trained_texts(run)
    assert found == trained_texts(pair for pair in read_pairs(own_pairs[0]) if pair.id in visited)
    assert len(found.behaviors) == sum(id_.startswith("j/") for id_ in visited)


def test_what_was_trained_on_is_the_same_after_a_resume(make_config, own_pairs, tmp_path: Path):
    """A run of one step that is resumed for two, and one that was never stopped."""
    data = {"pairs": own_pairs, "anchors": [], "anchor_fraction": 0.0, "validation_fraction": 0.0}
    short, long, whole = (
        make_config(output_dir=str(tmp_path / name), max_steps=steps, data=data)
        for name, steps in (("a", 1), ("a", 2), ("b", 2))
    )
    train(short)
    files = [RunDir(config.output_dir).trained_on_path for config in (long, whole)]
    first = files[0].read_bytes()
    train(long, resume=True)
    train(whole)
    assert files[0].read_bytes() == files[1].read_bytes() != first


def interrupted(*_) -> None:
    raise KeyboardInterrupt


def test_pairs_in_python_are_kept_and_the_run_resumes_from_its_own_copy(make_config, own_pairs):
    """The run's config names `pairs.jsonl` in its folder, which may move; other pairs are refused, the copy is kept."""
    rows = [pair.to_json() for pair in read_pairs(own_pairs[0])]
    data = {"pairs": ["nowhere.jsonl"], "anchors": [], "anchor_fraction": 0.0, "validation_fraction": 0.0}
    config = make_config(max_steps=1, data=data)
    opct.train(config, pairs=rows)
    run = RunDir(config.output_dir)
    assert opct.load_config(run.config_path).data.pairs == [str(run.pairs_path)]
    assert read_pairs(run.pairs_path) == read_pairs(own_pairs[0])
    with pytest.raises(RunError, match="the pairs"):
        opct.train(config, pairs=rows[1:], resume=True)
    moved = RunDir(run.path.rename(run.path.with_name("moved")))
    paths = [f"output_dir={moved.path}", f"data.pairs=[{moved.pairs_path}]"]
    kept = opct.load_config(moved.config_path, ["max_steps=2", *paths])
    assert opct.train(kept, resume=True).step == 2
    with pytest.raises(KeyboardInterrupt):
        train(kept, overwrite=True, check_teacher=interrupted)
    assert opct.train(kept, overwrite=True).step == 2  # from the copy, the only one
    assert read_pairs(moved.pairs_path) == read_pairs(own_pairs[0])
    opct.train(opct.load_config(moved.config_path, [f"data.pairs=[{own_pairs[0]}]"]), overwrite=True)
    assert not moved.pairs_path.exists()


def offline_rows(config) -> list[dict]:
    return [row for row in metrics(config) if "time/offline_s" in row]


@pytest.mark.parametrize("method", ["sft", "dpo", "act", "opct"])
def test_what_a_baseline_samples_before_training_is_logged_once(make_config, trained, method: str):
    """With the validation before the first step; on an identity pair `dpo` samples one answer for both, once."""
    config = trained(method=method, max_steps=1) if method != "opct" else trained(max_steps=1)
    rows = offline_rows(config)
    if method == "opct":
        assert rows == []
        return
    [row] = rows
    assert row["step"] == 0
    assert "validation/kl" in row
    assert row["time/offline_s"] > 0
    kept = read_jsonl(RunDir(config.output_dir).offline_path)
    tokens = sum(len(one["token_ids"]) for one in kept if one["stop_reason"] != "given")
    tokens += sum(len(one["rejected"]["token_ids"]) for one in kept if "rejected" in one and one["axis"] != "benign")
    assert row["rollout/offline_tokens"] == tokens
    assert (tokens == 0) == (method == "act")


def test_what_was_sampled_is_not_lost_where_a_run_is_cut_short_before_its_first_checkpoint(make_config, monkeypatch):
    """The first step fails, and the log of a run without a checkpoint starts over; nothing is sampled again."""
    config = make_config(method="sft", max_steps=1, data=NO_VALIDATION)
    with monkeypatch.context() as patch:
        patch.setattr(SFT, "loss", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(config)
    [before] = offline_rows(config)
    train(config, resume=True)
    [after] = offline_rows(config)
    assert before == after


def test_answers_that_a_longer_run_needs_are_logged_beside_the_first_ones(make_config, trained):
    """One step sees some pairs, two see more: their answers stand after step 1, where the run was resumed."""
    config, longer = trained(method="sft", max_steps=1), make_config(method="sft", max_steps=2)
    train(longer, resume=True)
    first, second = offline_rows(longer)
    assert (first["step"], second["step"]) == (0, 1)
    kept = read_jsonl(RunDir(config.output_dir).offline_path)
    assert first["rollout/offline_tokens"] + second["rollout/offline_tokens"] == sum(len(r["token_ids"]) for r in kept)
    train(longer, resume=True)
    assert len(offline_rows(longer)) == 2


@pytest.mark.parametrize(
    ("method", "metric"),
    [("opct", "kl"), ("offpolicy", "kl"), ("sft", "excess_loss"), ("dpo", "loss"), ("act", "distance")],
)
def test_training_on_several_axes_says_what_each_did(make_config, own_pairs, method: str, metric: str):
    data = {"pairs": own_pairs, "anchors": [], "anchor_fraction": 0.0, "validation_fraction": 0.5, "balance_axes": True}
    config = make_config(method=method, max_steps=1, data=data)
    train(config)
    row = metrics(config)[-1]
    assert {name for name in row if name.endswith(("_jailbreak", "_safety_awareness"))} == {
        f"{of}_{axis}" for of in (f"train/{metric}", "validation/kl") for axis in ("jailbreak", "safety_awareness")
    }
