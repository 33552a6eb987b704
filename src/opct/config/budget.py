"""What runs share so that the difference between them is that of their methods: the same steps, pairs and adapter.

An experiment refuses arms that differ in it, and a report warns of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BUDGET = (
    "max_steps",
    "num_train_epochs",
    "optim.prompts_per_step",
    "rollout.num_generations",
    "rollout.max_completion_tokens",
    "data.pairs",
    "data.validation_pairs",
    "data.validation_fraction",
    "data.anchors",
    "data.anchor_fraction",
    "data.max_pairs",
    "data.balance_axes",
    "model.name_or_path",
    "model.revision",
    "lora",
)
"""Settings by dotted name, `lora` a whole section. `max_steps: null` asks for as many steps as follow from the others,
so runs that are alike in all of them have equally many. The learning rate is not among them: a method may have its own.
"""
LENGTH = ("max_steps", "num_train_epochs")
"""Those of them that are for the number of steps alone."""


def budget_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The value of each setting of `BUDGET`, a section as a dict; None where it is not given.

    Where `max_steps` is given `num_train_epochs` has no effect, and is None.

    Args:
        settings: by dotted name; a section whole, or each of its settings.
    """
    found = {name: _value(settings, name) for name in BUDGET}
    if found["max_steps"] is not None:
        found["num_train_epochs"] = None
    return found


def _value(settings: Mapping[str, Any], name: str) -> Any:
    if name in settings:
        return settings[name]
    inner = {key.removeprefix(f"{name}."): value for key, value in settings.items() if key.startswith(f"{name}.")}
    return inner or None
