"""What runs share, out of settings in either form."""

from __future__ import annotations

from opct.config.schema import BUDGET, LENGTH, LoraSettings, TrainConfig, budget_of
from opct.config.section import setting_names


def test_every_setting_of_a_budget_is_one():
    names = setting_names(TrainConfig)
    assert all(name in names or any(known.startswith(f"{name}.") for known in names) for name in BUDGET)
    assert set(LENGTH) < set(BUDGET)


def test_a_section_is_the_same_whole_and_setting_by_setting():
    """A method's own settings are in no budget; what a run of an earlier version did not name is the default."""
    flat = {"lora.r": 4, "lora.alpha": 8, "max_steps": None, "num_train_epochs": 2.0, "optim.learning_rate": 0.1}
    found = budget_of(flat)
    assert found["lora"] == budget_of({"lora": LoraSettings(r=4, alpha=8).model_dump()})["lora"]
    assert found == budget_of({"lora": {"r": 4, "alpha": 8}, "num_train_epochs": 2.0})
    assert found.keys() == set(BUDGET)
    assert budget_of({"lora": None})["lora"] is None


def test_epochs_count_where_they_say_how_long_a_run_is():
    assert budget_of({"max_steps": 3, "num_train_epochs": 2.0})["num_train_epochs"] is None
    assert budget_of({"num_train_epochs": 2.0})["num_train_epochs"] == 2.0
