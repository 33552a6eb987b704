"""A method of one's own is two classes in a file."""

from pydantic import Field

from opct.config.loader import load_config
from opct.config.methods import LOSSES, TokenLoss
from opct.errors import ConfigError
from opct.methods.base import Method
from opct.methods.consistency import MicroLoss, by_rollout, flat_weights
from opct.methods.registry import METHODS
from opct.methods.rollouts import policy_rollouts
from opct.models.chunked_loss import one_pass
from opct.training import dry_run
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
    monkeypatch.setattr(dry_run, "CLEAN_TOKENS", 8)
    config = make_config(method="toy", max_steps=2, data=NO_VALIDATION, loss={"scale": 2.0})
    assert "the toy's 2.0" in dict(dry_run.make_plan(config).rows)["method"]
    train(config.model_copy(update={"max_steps": 1}))
    assert train(config, resume=True).status == "finished"
    rows = metrics(config)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["train/loss"] > 0 and abs(row["rollout/mismatch_kl"]) < 1e-5 for row in rows)
    for faulty, named in (("scal=2", "loss.scale"), ("scale=0", "loss.scale=0"), ("top_k=1", "loss.top_k")):
        with refused(ConfigError, named):
            load_config(overrides=["method=toy", f"loss.{faulty}"])
