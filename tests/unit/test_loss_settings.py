"""What each method refuses among the settings of its loss, said with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from opct.config.loader import load_config
from opct.config.schema import TrainConfig
from opct.errors import ConfigError
from tests.refusals import refused


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> Path:
        (tmp_path / "run.yaml").write_text(text)
        return tmp_path / "run.yaml"

    return write


@pytest.mark.parametrize(
    ("text", "overrides", "named"),
    [
        ("seed: 1\nmethod: opctt\n", (), ("run.yaml:2: method", "opct?")),
        ("rollout:\n  top_p: 0.5\n", ("loss.ppo_clip=0.2",), ("run.yaml:2: rollout.top_p=0.5", "loss.ppo_clip=0.2")),
        # temperature 0.7 is right with the estimator that was meant
        ("rollout: {temperature: 0.7}\n", ("loss.estimator=samplde",), ("1 fault", "sampled?")),
        ("rollout: {temperature: 0}\n", (), ("rollout.temperature=0",)),
        ("rollout: {temperature: 0.7}\n", (), ("rollout.temperature=0.7",)),
        ("rollout: {temperature: 0}\n", ("loss.estimator=sampled",), ("rollout.temperature=0",)),
        ("method: offpolicy\n", ("loss.estimator=sampled",), ("'exact' or 'topk'",)),
        ("method: dpo\n", ("loss.dpo_bet=1",), ("loss.dpo_beta?",)),
        ("method: dpo\n", ("teacher.kind=ema",), ("teacher.kind=ema",)),
    ],
)
def test_what_contradicts_a_method_is_refused_with_its_place(write, text: str, overrides, named):
    with refused(ConfigError, *named):
        load_config(write(text), list(overrides))


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("opct", "dpo_beta=0.1"),  # a default is of another method, too
        ("sft", "estimator=exact"),
        ("grpo", "mask_thinking=true"),
    ],
)
def test_a_setting_of_another_method_is_an_unknown_name(write, method: str, setting: str):
    name, _, value = setting.partition("=")
    with refused(ConfigError, "1 fault", f"run.yaml:3: loss.{name}: ") as caught:
        load_config(write(f"seed: 1\nloss:\n  {name}: {value}\n"), [f"method={method}"])
    assert f"loss.{name}?" not in str(caught.value)  # the nearest names are of this method
    with refused(ConfigError, f"loss.{name}: "):
        TrainConfig(method=method, loss={name: yaml.safe_load(value)})


def test_a_preset_with_another_method_leaves_out_what_that_does_not_have(write):
    for config in (
        load_config(overrides=["method=sft"], preset="paper_released"),
        load_config(write("preset: paper_released\nmethod: sft\n")),
    ):
        assert (config.loss.reduction, config.lora.r) == ("sum", 32)
    assert load_config(preset="paper_released").loss.estimator == "sampled"
