"""On-policy consistency training of chat models, its baselines, and the measurements that say whether it worked.

    pairs = opct.load_pairs("pairs.jsonl")
    result = opct.train(opct.TrainConfig(output_dir="runs/mine"))
    opct.evaluate("runs/mine")
    opct.report(["runs/base", "runs/mine"], "report.html")

Names are imported when they are first used, so `import opct` is free.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opct import losses as losses
    from opct.api import evaluate as evaluate
    from opct.api import train as train
    from opct.attack.run import run_attack as run_attack
    from opct.config.loader import load_config as load_config
    from opct.config.schema import TrainConfig as TrainConfig
    from opct.data.builders.builtin import load_pairs as load_pairs
    from opct.data.pairs import ContrastivePair as ContrastivePair
    from opct.data.pairs import write_pairs as write_pairs
    from opct.models.policy import Policy as Policy
    from opct.reports.build import report as report
    from opct.reports.export import export as export
    from opct.reports.listing import results as results

_HOMES = {
    "ContrastivePair": "opct.data.pairs",
    "Policy": "opct.models.policy",
    "TrainConfig": "opct.config.schema",
    "evaluate": "opct.api",
    "export": "opct.reports.export",
    "load_config": "opct.config.loader",
    "load_pairs": "opct.data.builders.builtin",
    "losses": "opct.losses",
    "report": "opct.reports.build",
    "results": "opct.reports.listing",
    "run_attack": "opct.attack.run",
    "train": "opct.api",
    "write_pairs": "opct.data.pairs",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'opct' has no attribute {name!r}; it has {', '.join(__all__)}")
    home = importlib.import_module(_HOMES[name])
    return home if name == "losses" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
