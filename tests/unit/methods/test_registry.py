"""What each method refuses, said with its place; and that one file adds a method."""

from __future__ import annotations

from pathlib import Path

import pytest

from opct.errors import ConfigError
from opct.methods.base import Method
from opct.methods.consistency import MicroLoss, by_rollout, flat_weights
from opct.methods.registry import METHODS, load_training_config
from opct.methods.rollouts import policy_rollouts
from opct.models.chunked_loss import one_pass
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.training.dry_run import make_plan
from opct.training.trainer import train


class LikelySamples(Method):
    """A toy: makes the policy's own samples likelier."""

    unused_settings = ("dpo_beta", "estimator")
    unused_because = "its loss is the log-prob"
    loss_words = "the toy's"

    def collect(self, pairs, step):
        return policy_rollouts(self.policy, pairs, self.config, f"step {step}")

    def loss(self, rollouts, weights, prefixes=None) -> MicroLoss:
        student = self.policy.score([r.prompt_ids for r in rollouts], [r.ids for r in rollouts])
        loss, found = one_pass(lambda tokens: -tokens.log_probs, flat_weights(student, weights), student)
        return MicroLoss(loss, None, by_rollout(found.log_probs, student.lengths))


def test_a_method_is_added_by_its_class_alone(make_config, monkeypatch):
    """Planned, trained, resumed, watched by its loss, its samples compared with the policy's; its settings checked."""
    monkeypatch.setitem(METHODS, "toy", LikelySamples)
    config = make_config(method="toy", max_steps=2, data={"validation_size": 0})
    assert dict(make_plan(config).rows)["method"] == "toy, teacher base, the toy's"
    train(config.model_copy(update={"max_steps": 1}))
    assert train(config, resume=True).status == "finished"
    rows = read_jsonl(RunDir(config.output_dir).metrics_path)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["train/loss"] > 0 and abs(row["rollout/mismatch_kl"]) < 1e-5 for row in rows)
    with pytest.raises(ConfigError, match=r"loss\.estimator=topk with method: toy: its loss is the log-prob"):
        train(make_config(method="toy", loss={"estimator": "topk"}), overwrite=True)


def message(*arguments, **keywords) -> str:
    with pytest.raises(ConfigError) as caught:
        load_training_config(*arguments, **keywords)
    return str(caught.value)


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> Path:
        (tmp_path / "run.yaml").write_text(text)
        return tmp_path / "run.yaml"

    return write


def test_an_unknown_method_names_the_nearest(write):
    text = message(write("seed: 1\nmethod: opctt\n"))
    assert "run.yaml:2: method=opctt" in text
    assert "Did you mean 'opct'? Use one of: opct, sft, offpolicy, dpo, act." in text


def test_checks_across_settings_are_all_reported_with_their_place(write):
    text = message(write("rollout:\n  top_p: 0.5\n"), ["loss.ppo_clip=0.2"])
    assert "have 2 faults" in text
    assert "run.yaml:2: rollout.top_p=0.5" in text
    assert "override loss.ppo_clip=0.2: loss.ppo_clip is for" in text


def test_a_generation_config_is_for_the_baselines():
    assert "rollout.use_generation_config" in message(overrides=["rollout.use_generation_config=true"])
    assert load_training_config(
        overrides=["rollout.use_generation_config=true", "method=sft"]
    ).rollout.use_generation_config


def test_a_check_that_rests_on_a_faulty_setting_is_not_reported():
    """temperature 0.7 is right with the estimator that was meant; only the typing error is a fault."""
    text = message(overrides=["rollout.temperature=0.7", "loss.estimator=samplde"])
    assert "have 1 fault" in text
    assert "did you mean sampled?" in text


@pytest.mark.parametrize("temperature", ["0", "0.7", "1.3"])
def test_sampling_off_policy_is_refused(temperature):
    assert "only temperature 1 samples the policy itself" in message(overrides=[f"rollout.temperature={temperature}"])


def test_tempered_sampling_is_for_the_sampled_estimator_and_never_greedy():
    assert (
        load_training_config(overrides=["rollout.temperature=0.7", "loss.estimator=sampled"]).rollout.temperature == 0.7
    )
    assert "only temperature 1" in message(overrides=["rollout.temperature=0", "loss.estimator=sampled"])


def test_offpolicy_refuses_what_needs_the_policys_own_samples():
    text = message(overrides=["method=offpolicy", "loss.kl_discount_factor=0.5", "loss.estimator=sampled"])
    assert "have 2 faults" in text
    assert "loss.kl_discount_factor=0.5 with method: offpolicy: the term for later tokens needs the policy's" in text
    assert "loss.estimator must be exact or topk" in text
    for method, gamma in (("offpolicy", 0.0), ("opct", 0.5)):
        config = load_training_config(overrides=[f"method={method}", f"loss.kl_discount_factor={gamma}"])
        assert config.loss.kl_discount_factor == gamma


@pytest.mark.parametrize("method", ["dpo", "act"])
def test_settings_that_a_baseline_has_no_use_for_are_refused_all_at_once(method):
    unused = ["estimator=topk", "divergence=reverse_kl", "kl_coef=2.0", "kl_discount_factor=0.5"]
    text = message(overrides=[f"method={method}", *(f"loss.{setting}" for setting in unused)])
    assert "have 3 faults" in text  # a default says nothing wrong
    assert f"loss.estimator=topk with method: {method}: its loss is" in text
    assert f"loss.kl_coef=2.0 with method: {method}: its loss is" in text


def test_each_baseline_refuses_its_own():
    """A mean over pairs has no other reduction, activations no answers to mask; only dpo has a beta."""
    for method in ("dpo", "act"):
        assert f"loss.reduction=sum with method: {method}" in message(
            overrides=[f"method={method}", "loss.reduction=sum"]
        )
    assert "its reference does not move" in message(overrides=["method=dpo", "teacher.kind=ema"])
    assert "it has no answers" in message(overrides=["method=act", "loss.mask_truncated=true"])
    for method in ("opct", "sft", "offpolicy"):
        assert "it is for method: dpo" in message(overrides=[f"method={method}", "loss.dpo_beta=0.2"])
    assert (
        load_training_config(overrides=["method=dpo", "loss.dpo_beta=0.2", "loss.mask_truncated=true"]).loss.dpo_beta
        == 0.2
    )
    assert load_training_config(overrides=["method=act", "teacher.kind=live"]).teacher.kind == "live"
    assert load_training_config(overrides=["method=sft"], preset="paper_released").loss.estimator == "sampled"
