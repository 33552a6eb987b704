"""When a run is finished, and when it is another run."""

from __future__ import annotations

from pathlib import Path

import pytest

from opct.checkpoint_state import is_finished
from opct.errors import RunError
from opct.runs import RunDir
from opct.trainer import train


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


def test_other_settings_are_another_run(make_config):
    config = make_config(max_steps=1)
    train(config)
    with pytest.raises(RunError, match="made with other settings") as caught:
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
