"""What each method refuses, said with its place; and that one file adds a method."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import Field

from opct.config.loader import dump_config, load_config
from opct.config.methods import LOSSES, TokenLoss
from opct.config.schema import TrainConfig
from opct.errors import ConfigError
from opct.methods.base import Method
from opct.methods.consistency import MicroLoss, by_rollout, flat_weights
from opct.methods.registry import METHODS
from opct.methods.rollouts import policy_rollouts
from opct.models.chunked_loss import one_pass
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.training.dry_run import make_plan
from opct.training.trainer import train


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
    config = make_config(method="toy", max_steps=2, data={"validation_size": 0}, loss={"scale": 2.0})
    assert dict(make_plan(config).rows)["method"] == "toy, teacher base, the toy's 2.0"
    train(config.model_copy(update={"max_steps": 1}))
    assert train(config, resume=True).status == "finished"
    rows = read_jsonl(RunDir(config.output_dir).metrics_path)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["train/loss"] > 0 and abs(row["rollout/mismatch_kl"]) < 1e-5 for row in rows)
    for faulty, said in (
        ("scal=2", r"did you mean loss\.scale\?"),
        ("scale=0", "greater than 0"),
        ("top_k=1", "unknown"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_config(overrides=["method=toy", f"loss.{faulty}"])


def message(*arguments, **keywords) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(*arguments, **keywords)
    return str(caught.value)


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> Path:
        (tmp_path / "run.yaml").write_text(text)
        return tmp_path / "run.yaml"

    return write


def test_an_unknown_method_names_the_nearest(write):
    text = message(write("seed: 1\nmethod: opctt\n"))
    assert "run.yaml:2: method:" in text
    assert "did you mean opct?" in text


def test_checks_across_settings_are_all_reported_with_their_place(write):
    text = message(write("rollout:\n  top_p: 0.5\n"), ["loss.ppo_clip=0.2"])
    assert "have 2 faults" in text
    assert "run.yaml:2: rollout.top_p=0.5" in text
    assert "override loss.ppo_clip=0.2: loss.ppo_clip is for" in text


def test_a_generation_config_is_for_the_baselines():
    assert "rollout.use_generation_config" in message(overrides=["rollout.use_generation_config=true"])
    assert load_config(overrides=["rollout.use_generation_config=true", "method=sft"]).rollout.use_generation_config


def test_a_check_that_rests_on_a_faulty_setting_is_not_reported():
    """temperature 0.7 is right with the estimator that was meant; only the typing error is a fault."""
    text = message(overrides=["rollout.temperature=0.7", "loss.estimator=samplde"])
    assert "have 1 fault" in text
    assert "did you mean sampled?" in text


@pytest.mark.parametrize("temperature", ["0", "0.7", "1.3"])
def test_sampling_off_policy_is_refused(temperature):
    assert "only temperature 1 samples the policy itself" in message(overrides=[f"rollout.temperature={temperature}"])


def test_tempered_sampling_is_for_the_sampled_estimator_and_never_greedy():
    assert load_config(overrides=["rollout.temperature=0.7", "loss.estimator=sampled"]).rollout.temperature == 0.7
    assert "only temperature 1" in message(overrides=["rollout.temperature=0", "loss.estimator=sampled"])


def test_offpolicy_has_no_sampled_estimator():
    assert "expected 'exact' or 'topk'" in message(overrides=["method=offpolicy", "loss.estimator=sampled"])


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("opct", "dpo_beta=0.1"),  # a default is of another method, too
        ("sft", "estimator=exact"),
        ("sft", "kl_coef=2.0"),
        ("offpolicy", "kl_discount_factor=0.0"),
        ("offpolicy", "ppo_clip=0.2"),
        ("dpo", "reduction=sum"),
        ("dpo", "kl_coef=2.0"),
        ("act", "reduction=sum"),
        ("act", "mask_truncated=true"),
        ("grpo", "mask_thinking=true"),
    ],
)
def test_a_setting_of_another_method_is_an_unknown_name(write, method: str, setting: str):
    name, _, value = setting.partition("=")
    text = message(write(f"seed: 1\nloss:\n  {name}: {value}\n"), [f"method={method}"])
    assert "have 1 fault" in text
    assert f"run.yaml:3: loss.{name}: unknown setting" in text
    assert f"loss.{name}?" not in text  # the nearest names are of this method
    with pytest.raises(ConfigError, match=rf"loss\.{name}: unknown setting"):
        TrainConfig(method=method, loss={name: yaml.safe_load(value)})


def test_each_method_has_its_own_settings():
    config = load_config(overrides=["method=dpo", "loss.dpo_beta=0.2", "loss.mask_truncated=true"])
    assert (config.loss.dpo_beta, config.loss.mask_truncated, config.loss.reduction) == (0.2, True, "sequence_mean")
    assert "loss.dpo_bet: unknown setting (value 1); did you mean loss.dpo_beta?" in message(
        overrides=["method=dpo", "loss.dpo_bet=1"]
    )
    assert "its reference does not move" in message(overrides=["method=dpo", "teacher.kind=ema"])
    assert load_config(overrides=["method=act", "teacher.kind=live"]).teacher.kind == "live"
    assert list(LOSSES) == list(METHODS)


@pytest.mark.parametrize("method", LOSSES)
def test_the_settings_of_each_method_are_written_and_read_back(write, method: str):
    config = TrainConfig(method=method, loss={"thinking_tags": ("<a>", "</a>")})
    assert load_config(write(dump_config(config))) == config == TrainConfig.model_validate(config.model_dump())
    assert config.loss.thinking_tags == ("<a>", "</a>")


def test_a_preset_with_another_method_leaves_out_what_that_does_not_have(write):
    for config in (
        load_config(overrides=["method=sft"], preset="paper_released"),
        load_config(write("preset: paper_released\nmethod: sft\n")),
    ):
        assert (config.loss.reduction, config.lora.r) == ("sum", 32)
    assert load_config(preset="paper_released").loss.estimator == "sampled"
