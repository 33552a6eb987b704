"""The distance between who sampled and who learns, by hand, and when a run stops for it."""

import math
from types import SimpleNamespace

import pytest
import torch

from opct.errors import MismatchError
from opct.methods.consistency import MicroLoss
from opct.methods.rollouts import Rollout
from opct.methods.sampler_mismatch import StepMetrics, refuse_mismatch
from opct.models.inference.sampler import Completion
from tests.refusals import refused
from tests.tiny import tiny_pairs


def rollout(logprobs: list[float], mask: list[bool]) -> Rollout:
    completion = Completion("x", tuple(range(len(logprobs))), "stop", tuple(logprobs), 1, 0)
    return Rollout(tiny_pairs(1)[0], 0, [1], [1], completion, tuple(mask))


def metered(batches: list[tuple[list[Rollout], list[list[float]] | None]], *, offline: bool = False):
    metrics = StepMetrics(SimpleNamespace(offline=offline))
    for rollouts, log_probs in batches:
        metrics.observe(rollouts, MicroLoss(torch.tensor(1.0), log_probs=log_probs))
    return metrics.metrics()


def test_both_estimates_by_hand():
    """d = log mu - log pi = [1, 0] and [-0.5]: the mean is 1/6; k3 = exp(-d) - 1 + d = [1/e, 0, e^.5 - 1.5].

    A token that is not in the loss (d = 9) does not count, and neither does it matter how the step was cut.
    """
    first = rollout([-1.0, -2.0, 9.0], [True, True, False])
    second = rollout([-1.5], [True])
    expected = {
        "rollout/mismatch_kl": 1 / 6,
        "rollout/mismatch_kl_k3": (math.exp(-1) + math.exp(0.5) - 1.5) / 3,
    }
    pi = [[-2.0, -2.0, 0.0], [-1.0]]
    assert metered([([first, second], pi)]) == pytest.approx(expected)
    assert metered([([second], pi[1:]), ([first], pi[:1])]) == pytest.approx(expected)


def test_nothing_is_measured_on_offline_answers_or_where_nothing_is_in_the_loss_and_nothing_overflows():
    """An engine may write -9999 for minus infinity."""
    assert metered([([rollout([-1.0], [True])], [[-5.0]])], offline=True) == {}
    assert metered([([rollout([-1.0], [False])], [[-5.0]])]) == {}
    assert math.isfinite(metered([([rollout([-9999.0], [True])], [[-1.0]])])["rollout/mismatch_kl_k3"])


@pytest.mark.parametrize(
    ("found", "settings", "stops"),
    [
        (0.11, {}, True),
        (0.11, {"rollout": {"max_mismatch_kl": 0.2}}, False),
        (60.0, {"rollout": {"max_mismatch_kl": None}}, False),
        (60.0, {"rollout": {"temperature": 0.7}, "loss": {"estimator": "sampled"}}, False),
    ],
)
def test_a_run_stops_above_the_bound_where_the_samples_should_be_the_policys(make_config, found, settings, stops):
    config, metrics = make_config(**settings).rollout, {"rollout/mismatch_kl": found}
    refuse_mismatch(metrics, config, 3, dropout=True)
    if not stops:
        refuse_mismatch(metrics, config, 3, dropout=False)
        return
    with refused(MismatchError, "Step 3", "0.11", "max_mismatch_kl=0.1"):
        refuse_mismatch(metrics, config, 3, dropout=False)
