"""When a run may start in a folder, or go on in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from opct.data.pairs import ContrastivePair, load_pairs, write_pairs
from opct.errors import DataError, ModelError, RunError
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.training.trainer import train
from tests.tiny import save_tiny, tiny_adapter_policy


def metrics(config) -> list[dict]:
    return read_jsonl(RunDir(config.output_dir).metrics_path)


def test_a_run_in_the_way_is_refused_and_replaced_only_when_asked(make_config):
    config = make_config(max_steps=1)
    train(config)
    with pytest.raises(RunError, match="holds a run already"):
        train(config)
    with pytest.raises(RunError, match="contradict"):
        train(config, resume=True, overwrite=True)
    other = make_config(max_steps=2)
    train(other, overwrite=True)
    assert [row["step"] for row in metrics(other)] == [0, 1, 2]


def test_what_cannot_begin_replaces_nothing(make_config, tmp_path: Path):
    """--overwrite with a model that is not there: the old run is as it was."""
    config = make_config(max_steps=1)
    train(config)
    before = {p: p.read_bytes() for p in Path(config.output_dir).rglob("*") if p.is_file() and "lock" not in p.name}
    with pytest.raises(ModelError):
        train(make_config(model={"name_or_path": str(tmp_path / "nowhere")}), overwrite=True)
    assert all(path.read_bytes() == content for path, content in before.items())


def test_there_must_be_a_run_to_resume(make_config):
    with pytest.raises(RunError, match="No run to resume"):
        train(make_config(), resume=True)


def test_a_run_is_resumed_only_with_the_settings_that_made_it(make_config):
    """Everything that differs is named at once; when a run ends and what it writes may differ."""
    train(make_config())
    changed = make_config(max_steps=6, seed=1, optim={"learning_rate": 1e-3}, loss={"kl_coef": 2.0})
    with pytest.raises(RunError, match="cannot be resumed as the same run") as caught:
        train(changed, resume=True)
    message = str(caught.value)
    for part in (
        "the setting seed changed (0 then, 1 now)",
        "learning_rate: 0.01 then, 0.001 now",
        "kl_coef: 1.0 then, 2.0 now",
    ):
        assert part in message
    free = make_config(max_steps=5, save_steps=1, save_total_limit=1, stop={"divergence_factor": 5.0})
    assert train(free, resume=True).step == 5


def test_a_run_is_resumed_only_with_the_data_that_made_it(make_config, tmp_path: Path, pair_files):
    """One word in one pair; the same file with its rows in another order is other data too."""
    path = tmp_path / "mine.jsonl"
    pairs = load_pairs(pair_files[0])
    write_pairs(path, pairs)
    config = make_config(data={"pairs": [str(path)]}, max_steps=2)
    longer = make_config(data={"pairs": [str(path)]}, max_steps=4)
    train(config)
    write_pairs(path, pairs[::-1])
    with pytest.raises(RunError, match="the pairs changed"):
        train(longer, resume=True)
    word = ContrastivePair(
        pairs[0].id, pairs[0].axis, "renamed", pairs[0].prompt, pairs[0].teacher_prompt, pairs[0].meta
    )
    write_pairs(path, [word, *pairs[1:]])
    with pytest.raises(RunError, match="the pairs changed"):
        train(longer, resume=True)
    write_pairs(path, pairs)
    assert train(longer, resume=True).step == 4


def test_a_run_is_resumed_only_with_the_model_that_made_it(make_config, tmp_path: Path):
    folder = save_tiny(tmp_path / "model")
    config = make_config(model={"name_or_path": str(folder)}, max_steps=2)
    longer = make_config(model={"name_or_path": str(folder)}, max_steps=4)
    train(config)
    save_tiny(tmp_path / "model", seed=1)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    with pytest.raises(RunError) as caught:
        train(longer, resume=True)
    assert "the base model's weights changed" in str(caught.value)
    assert "the chat template changed" in str(caught.value)


def test_a_run_is_resumed_only_with_the_adapter_it_continues(make_config, tmp_path: Path):
    """The folder that `model.adapter` names holds another adapter now: the teacher would be another."""
    folder = tmp_path / "adapter"
    tiny_adapter_policy().save(folder)
    config = make_config(model={"adapter": str(folder)}, max_steps=2)
    longer = make_config(model={"adapter": str(folder)}, max_steps=4)
    train(config)
    tiny_adapter_policy(seed=1).save(folder)
    with pytest.raises(RunError, match=r"the teacher's weights changed \([0-9a-f]{16} then, [0-9a-f]{16} now\)"):
        train(longer, resume=True)
    tiny_adapter_policy().save(folder)
    assert train(longer, resume=True).step == 4


def test_bad_data_is_refused_before_a_model_is_loaded(make_config, tmp_path: Path):
    (tmp_path / "bad.jsonl").write_text("{}\n")
    config = make_config(data={"pairs": [str(tmp_path / "bad.jsonl")]}, model={"name_or_path": "no/such/model"})
    with pytest.raises(DataError, match=r"bad\.jsonl:1"):
        train(config)


def test_more_steps_are_refused_where_the_rate_falls_to_the_last_one(make_config):
    """With a linear schedule every step's rate depends on the number of steps: two steps of four are not two of two."""
    falling = {"lr_scheduler_type": "linear"}
    train(make_config(max_steps=2, optim=falling))
    with pytest.raises(RunError, match=r"the setting max_steps changed \(2 then, 4 now\)"):
        train(make_config(max_steps=4, optim=falling), resume=True)
