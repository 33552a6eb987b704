"""Runs with the teacher's prompts kept: which have it, what it is worth, and that it changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.training.dry_run import make_plan
from opct.training.setup import describe, prepare
from opct.training.trainer import train
from tests.golden.test_invariants_of_runs import KillAfter, Killed, assert_same_run

HITS = "time/prompt_cache_hit_fraction"
LONG = {"max_steps": 8, "optim": {"lr_scheduler_type": "linear"}}
"""8 steps of 3 pairs and an identity pair, of 8 and 5: all 8 come again, and 3 of the 5."""
SETTINGS = {
    "adapter": {},
    "full fine-tuning": {"lora": None, "optim": {"learning_rate": 1e-3}},
    "offpolicy": {"method": "offpolicy"},
    "bfloat16": {"model": {"dtype": "bfloat16"}},
    "too little room": {"teacher": {"prompt_cache_gb": 3e-5}},
}


def rows(config) -> list[dict]:
    return [row for row in read_jsonl(RunDir(config.output_dir).metrics_path) if row["step"] > 0]


def merged(make_config, *parts, **more):
    whole: dict = {}
    for part in (*parts, more):
        for key, value in part.items():
            whole[key] = {**whole.get(key, {}), **value} if isinstance(value, dict) else value
    return make_config(**whole)


def test_every_prompt_is_found_from_the_second_epoch_on(make_config):
    config = merged(make_config, LONG, max_steps=10)
    setup = prepare(config)
    assert setup.prompt_cache.prompts == len(setup.pairs) + len(setup.anchors) == 13
    assert any(line.startswith("teacher: 13 prompts that come again") for line in describe(setup))
    train(config)
    hits = [row[HITS] for row in rows(config)]
    assert hits[0] == 0
    assert set(hits[5:]) == {1.0}
    assert max(row["memory/prompt_cache_gb"] for row in rows(config)) <= setup.prompt_cache.most_bytes / 1e9
    assert "the teacher's kept prompts" in dict(make_plan(config).rows)["memory, predicted"]


def test_losses_are_those_of_a_run_that_keeps_nothing(make_config, tmp_path: Path):
    kept = merged(make_config, LONG, output_dir=str(tmp_path / "kept"))
    bare = merged(make_config, LONG, output_dir=str(tmp_path / "bare"), teacher={"prompt_cache_gb": 0.0})
    for config in (kept, bare):
        train(config)
    assert not any(HITS in row for row in rows(bare))
    for a, b in zip(rows(kept), rows(bare), strict=True):
        assert a["train/loss"] == pytest.approx(b["train/loss"], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_that_is_killed_with_kept_prompts_and_resumed_is_the_uninterrupted_one(
    make_config, tmp_path: Path, name: str
):
    """Killed in the second epoch, after step 7 with a checkpoint at 6: the cache begins empty."""
    whole = merged(make_config, LONG, SETTINGS[name], output_dir=str(tmp_path / "whole"))
    broken = merged(make_config, LONG, SETTINGS[name], output_dir=str(tmp_path / "broken"))
    train(whole)
    assert rows(whole)[-1][HITS] > 0
    with pytest.raises(Killed):
        train(broken, progress=KillAfter(7))
    assert train(broken, resume=True).status == "finished"
    assert_same_run(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize(
    "settings",
    [
        {"teacher": {"kind": "ema"}},
        {"teacher": {"kind": "live"}},
        {"teacher": {"kind": "ema"}, "lora": None},
        {"teacher": {"prompt_cache_gb": 0.0}},
        {"method": "sft"},
        {"rollout": {"num_generations": 1}},
        {"lora": {"r": 4, "alpha": 8, "dropout": 0.1}},
        {"max_steps": 1},
    ],
)
def test_nothing_is_kept_of_a_moving_teacher_or_for_no_use(make_config, settings: dict):
    setup = prepare(merged(make_config, LONG, settings))
    assert setup.prompt_cache is None
    assert setup.no_prompt_cache is None


def test_several_processes_keep_nothing_and_say_so(make_config, monkeypatch):
    monkeypatch.setattr("opct.distributed.launched", lambda: True)
    monkeypatch.setattr("opct.training.setup.wants_shards", lambda config: False)
    monkeypatch.setattr("opct.distributed.main_process_first", lambda load, dtype, of: load(dtype))
    setup = prepare(merged(make_config, LONG))
    assert setup.prompt_cache is None
    assert setup.no_prompt_cache.startswith("several processes")


def test_teacher_prompts_are_computed_in_the_first_epoch_alone(make_config, monkeypatch):
    """None is forwarded twice: 11 that come again, and 2 that come once in a group with some of these."""
    import opct.models.inference.prefix_sharing as branching

    computed: list[tuple[int, ...]] = []
    inner = branching.prompt_states

    def counted(decoder, prompts):
        computed.extend(prompts)
        return inner(decoder, prompts)

    monkeypatch.setattr(branching, "prompt_states", counted)
    train(merged(make_config, LONG))
    assert len(computed) == len(set(computed)) == 13
