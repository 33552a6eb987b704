"""What each method refuses, said with its place; and that one file adds a method."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import Field

from opct.config.loader import load_config
from opct.config.methods import LOSSES, TokenLoss
from opct.config.schema import TrainConfig
from opct.errors import ConfigError
from opct.methods.base import Method
from opct.methods.consistency import MicroLoss, by_rollout, flat_weights
from opct.methods.registry import METHODS
from opct.methods.rollouts import policy_rollouts
from opct.models.chunked_loss import one_pass
from opct.training.dry_run import make_plan
from opct.training.trainer import train
from tests.refusals import refused
from tests.unit.training.conftest import NO_VALIDATION, metrics


class LikelyLoss(TokenLoss):
    """Settings of the toy."""

    scale: float = Field(1.0, gt=0)


class LikelySamples(Method):
    """A toy: makes the policy's own samples likelier."""

    settings: LikelyLoss
    loss_words = "the toy's {scale}"

    def collect(self, pairs, step):
        return policy_rollouts(self.policy, pairs, self.config, f"step {step}")

    def loss(self, rollouts, weights) -> MicroLoss:
        student = self.policy.score([r.prompt_ids for r in rollouts], [r.ids for r in rollouts])
        loss, found = one_pass(
            lambda tokens: -self.settings.scale * tokens.log_probs, flat_weights(student, weights), student
        )
        return MicroLoss(loss, log_probs=by_rollout(found.log_probs, student.lengths))


def test_a_method_is_added_by_two_classes_in_a_file(make_config, monkeypatch):
    """Planned, trained, resumed, watched by its loss, its samples compared with the policy's; its settings checked."""
    monkeypatch.setitem(METHODS, "toy", LikelySamples)
    monkeypatch.setitem(LOSSES, "toy", LikelyLoss)
    config = make_config(method="toy", max_steps=2, data=NO_VALIDATION, loss={"scale": 2.0})
    assert "the toy's 2.0" in dict(make_plan(config).rows)["method"]
    train(config.model_copy(update={"max_steps": 1}))
    assert train(config, resume=True).status == "finished"
    rows = metrics(config)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["train/loss"] > 0 and abs(row["rollout/mismatch_kl"]) < 1e-5 for row in rows)
    for faulty, named in (("scal=2", "loss.scale"), ("scale=0", "loss.scale=0"), ("top_k=1", "loss.top_k")):
        with refused(ConfigError, named):
            load_config(overrides=["method=toy", f"loss.{faulty}"])


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
