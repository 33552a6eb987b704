"""What the trainer does where there is no step yet, and what it writes down."""

import os
import signal
from pathlib import Path

import pytest

import opct
from opct.data.duplicates import read_trained_texts, trained_texts
from opct.data.pairs import ContrastivePair, read_pairs, write_pairs
from opct.errors import RunError
from opct.runs.console import NullProgress
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.training.callbacks import Hooks
from opct.training.trainer import train
from tests.refusals import refused
from tests.unit.training.conftest import NO_VALIDATION, metrics


def test_a_signal_during_offline_answers_ends_them_soon(make_config):
    """The signal comes with the first answers; not all of the others are waited for."""

    class Signal(NullProgress):
        answered = 0

        def advance(self, n: int = 1, **fields) -> None:
            self.answered += n
            os.kill(os.getpid(), signal.SIGTERM)

    settings = {"method": "dpo", "max_steps": 1, "rollout": {"batch_tokens": 1}, "data": NO_VALIDATION}
    config = make_config(**settings)
    before, progress = signal.getsignal(signal.SIGTERM), Signal()
    with pytest.raises(KeyboardInterrupt):
        train(config, progress=progress)
    assert signal.getsignal(signal.SIGTERM) == before
    assert progress.answered == config.rollout.num_generations
    assert not RunDir(config.output_dir).offline_path.exists()


PART = {"anchors": [], "anchor_fraction": 0.0, "validation_fraction": 0.0}


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


def test_the_texts_that_were_trained_on_are_those_of_the_steps(make_config, own_pairs):
    """Four of the twelve pairs a step, whether or not `meta` holds them: one step, and resumed for two."""
    visited: set[str] = set()
    for steps in (1, 2):
        run = RunDir(train(make_config(max_steps=steps, data=PART | {"pairs": own_pairs}), resume=steps > 1).run_dir)
        visited |= {row["pair_id"] for row in read_jsonl(run.rollouts_path(steps))}
        assert len(visited) == 4 * steps
        found = read_trained_texts(run)
        assert found == trained_texts(pair for pair in read_pairs(own_pairs[0]) if pair.id in visited)
        assert len(found.behaviors) == sum(id_.startswith("j/") for id_ in visited)


def interrupted(*_) -> None:
    raise KeyboardInterrupt


def test_pairs_in_python_are_kept_and_the_run_resumes_from_its_own_copy(make_config, own_pairs):
    """The run's config names `pairs.jsonl` in its folder, which may move; other pairs are refused, the copy is kept."""
    rows = [pair.to_json() for pair in read_pairs(own_pairs[0])]
    config = make_config(max_steps=1, data=PART | {"pairs": ["nowhere.jsonl"]})
    opct.train(config, pairs=rows)
    run = RunDir(config.output_dir)
    assert opct.load_config(run.config_path).data.pairs == [str(run.pairs_path)]
    assert read_pairs(run.pairs_path) == read_pairs(own_pairs[0])
    with refused(RunError, "the pairs"):
        opct.train(config, pairs=rows[1:], resume=True)
    moved = RunDir(run.path.rename(run.path.with_name("moved")))
    paths = [f"output_dir={moved.path}", f"data.pairs=[{moved.pairs_path}]"]
    kept = opct.load_config(moved.config_path, ["max_steps=2", *paths])
    assert opct.train(kept, resume=True).step == 2
    with pytest.raises(KeyboardInterrupt):
        train(kept, overwrite=True, hooks=Hooks(interrupted))
    assert read_pairs(moved.pairs_path) == read_pairs(own_pairs[0])  # the only copy


def test_what_a_baseline_samples_before_training_is_logged_once(make_config, trained):
    """With the validation before the first step, and what a longer run needs where it was resumed; on an identity pair
    one answer is sampled for both."""
    config = trained(method="dpo", max_steps=1)
    train(longer := make_config(method="dpo", max_steps=2), resume=True)
    rows = [row for row in metrics(longer) if "time/offline_s" in row]
    assert [row["step"] for row in rows] == [0, 1]
    assert "validation/kl" in rows[0]
    answers = read_jsonl(RunDir(config.output_dir).offline_path)
    tokens = sum(len(one["token_ids"]) for one in answers)
    tokens += sum(len(one["rejected"]["token_ids"]) for one in answers if one["axis"] != "benign")
    assert sum(row["rollout/offline_tokens"] for row in rows) == tokens


def test_training_on_several_axes_says_what_each_did(make_config, own_pairs):
    data = PART | {"pairs": own_pairs, "validation_fraction": 0.5, "balance_axes": True}
    config = make_config(method="dpo", max_steps=1, data=data)
    train(config)
    row = metrics(config)[-1]
    assert {name for name in row if name.endswith(("_jailbreak", "_safety_awareness"))} == {
        f"{of}_{axis}" for of in ("train/loss", "validation/kl") for axis in ("jailbreak", "safety_awareness")
    }
