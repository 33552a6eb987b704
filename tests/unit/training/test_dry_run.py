"""The plan of a run says what the run then does."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from opct.errors import ConfigError
from opct.training.dry_run import estimate_memory, make_plan, size
from opct.training.setup import build_setup, load_data
from tests.refusals import refused


def numbers(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"\d+(?:\.\d+)?", text)]


@pytest.mark.parametrize(("method", "completions", "tokens", "probed"), [("opct", 2, 192, 8), ("dpo", 4, 384, 16)])
def test_its_numbers_are_those_of_the_run(make_config, method: str, completions: int, tokens: int, probed: int):
    """4 steps x 4 pairs x 2 completions x 6 tokens; `dpo` has preferences of 2."""
    config = make_config(method=method)
    rows, data = dict(make_plan(config).rows), load_data(config)
    assert rows["method"].startswith(method)
    assert numbers(rows["steps"]) == [4, 4, completions]
    assert numbers(rows["pairs"])[:2] == [len(data.pairs), 0]
    assert numbers(rows["completion tokens"]) == [tokens]
    assert numbers(rows["cut completions"])[1:] == [probed, 6]
    assert numbers(rows["passes"]) == [pytest.approx(4 * 3 / len(data.pairs), abs=0.05)]
    assert size(estimate_memory(config, data).peak) in rows["memory"]
    assert ("offline" in rows["time"]) == (method == "dpo")


def test_it_writes_nothing_and_shows_its_warnings(make_config, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.rglob("*"))
    changes = {"data": {"validation_size": 1}, "rollout": {"max_completion_tokens": 1}}
    plan = make_plan(make_config(report_to=["tensorboard"], **changes))
    assert set(tmp_path.rglob("*")) == before
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(plan.render())
    text = console.export_text()
    assert "rollout.max_completion_tokens" in text
    assert "warning: validation" in text
    assert all(fact.split(":")[0] in text for fact in plan.facts)


def test_it_does_not_plan_for_another_trainer(make_config):
    with refused(ConfigError, "engine=verl"):
        make_plan(make_config(engine="verl"))


@pytest.mark.parametrize("kind", ["base", "ema"])
@pytest.mark.parametrize("lora", [{"r": 4}, None], ids=["adapter", "full"])
def test_the_estimate_counts_what_is_kept_without_loading_it(make_config, lora: dict | None, kind: str):
    """Weights, teacher, gradients and moments: bytes of the tensors that the setup then has."""
    config = make_config(teacher={"kind": kind}, model={"dtype": "bfloat16"}, lora=lora)
    found, setup = estimate_memory(config, load_data(config)), build_setup(config)
    with setup.teacher() as teacher:
        tensors = {id(p): p for model in (setup.policy, teacher) for p in model.model.parameters()}
    trained = sum(p.numel() for p in setup.policy.trainable_parameters().values())
    kept = found.weights + found.teacher + found.trained
    # a frozen copy of a whole model keeps its embedding and norms in float32
    assert kept == pytest.approx(sum(p.nbytes for p in tensors.values()) + 12 * trained, rel=0.2 if lora is None else 0)
    assert found.trained == 12 * trained
    assert found.peak == kept + max(found.micro_batch, found.rollout)


def test_when_it_validates(make_config):
    for steps, every, expected in ((4, None, [0, 2, 4]), (5, 2, [0, 2, 4, 5]), (1, None, [0, 1]), (4, 9, [0, 4])):
        data = load_data(make_config(max_steps=steps, eval_steps=every))
        assert data.validation_steps == expected
    data.validation, data.validation_anchors = [], []
    assert data.validation_steps == []
