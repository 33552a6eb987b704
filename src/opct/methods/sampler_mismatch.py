"""Mismatch between the sampler and the trained policy.

mu is the distribution that a token was sampled from, as the sampler reports it, and pi the policy in the loss. Over the
tokens in the loss of a step:

    rollout/mismatch_kl     mean of log mu - log pi              an estimate of KL(mu || pi), nats a token
    rollout/mismatch_kl_k3  mean of r - 1 - log r,  r = pi / mu  the same in expectation, never negative, less noise

Both are 0 to rounding if the sampler is the policy; an old adapter, another base model or other kernels show here.
At a temperature other than 1, mu differs from the policy by intent, and so does pi with dropout: the numbers include
that. The log-probs come with the loss: nothing is computed twice.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from opct import distributed
from opct.config.methods import RolloutConfig
from opct.errors import MismatchError
from opct.methods.base import Method
from opct.methods.consistency import MicroLoss
from opct.methods.rollouts import Rollout, in_loss

NAME = "rollout/mismatch_kl"
MOST_EXPONENT = 700.0  # exp of more is no float


class StepMetrics:
    """Accumulates a method's logged means and, for on-policy methods, the sampler mismatch of a step."""

    def __init__(self, method: Method):
        self._offline = method.offline
        # by metric and axis; None for the metric of all axes
        self._values: dict[tuple[str, str | None], list[float]] = defaultdict(list)

    def observe(self, rollouts: Sequence[Rollout], micro: MicroLoss) -> None:
        """Add a micro-batch, and compare the sampler's log-probs with those of the loss."""
        for name, values in micro.means.items():
            self._values[name, None] += values
        for name, axes in micro.by_axis.items():
            for axis, values in axes.items():
                self._values[name, axis] += values
        if not self._offline and micro.log_probs is not None:
            ratios = [
                [mu - pi for mu, pi in zip(r.completion.logprobs, row, strict=True)]
                for r, row in zip(rollouts, micro.log_probs, strict=True)
            ]
            for row in in_loss(rollouts, ratios):
                self._values[NAME, None] += row
                # expm1: near 0, exp(-x) - 1 loses the digits that the estimate is made of
                self._values[f"{NAME}_k3", None] += [math.expm1(min(MOST_EXPONENT, -x)) + x for x in row]

    def metrics(self) -> dict[str, float]:
        """The method's means and both estimates, over all processes; without those that have no values."""
        joined: dict[tuple[str, str | None], list[float]] = defaultdict(list)
        for part in distributed.all_gather_object(self._values):
            for key, values in part.items():
                joined[key] += values
        # over all processes' numbers: a mean of their means would weigh processes, not tokens
        means = {key: sum(values) / len(values) for key, values in joined.items() if values}
        several = len({axis for _, axis in means} - {None}) > 1
        logged = {key: mean for key, mean in means.items() if several or key[1] is None}
        return dict(sorted((name if axis is None else f"{name}_{axis}", mean) for (name, axis), mean in logged.items()))


def refuse_mismatch(metrics: dict[str, float], rollout: RolloutConfig, step: int, *, dropout: bool) -> None:
    """Stop before an update on samples that are not the policy's.

    Args:
        dropout: the policy has dropout in training. Then it differs from the sampler by intent, as it does at a
            temperature other than 1, and nothing is refused.

    Raises:
        MismatchError: `rollout/mismatch_kl` is above `rollout.max_mismatch_kl`.
    """
    mismatch, limit = metrics.get(NAME, 0.0), rollout.max_mismatch_kl
    # `<=`: a NaN is not below the limit, and stops the run
    if limit is None or dropout or rollout.temperature != 1.0 or mismatch <= limit:
        return
    raise MismatchError(
        f"Step {step}: the samples are {mismatch:.3g} nats a token from the policy ({NAME}), above "
        f"rollout.max_mismatch_kl={limit}: the sampler (rollout.engine: {rollout.engine}) does not use the weights in "
        "training. Check that it serves the same model in the same dtype and loads each new adapter. If only its "
        "kernels round differently, as with model.quantization=8bit, raise the bound (null: never stop) and continue "
        "with --resume."
    )
