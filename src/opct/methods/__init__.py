"""The methods, one algorithm a file: collect the rollouts of a step, compute the loss of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from opct.data.render import RenderedPair
from opct.methods.consistency import MicroLoss
from opct.methods.rollouts import Rollout
from opct.models.inference.prefix_sharing import NOT_SHARED, Prefixes


class Method(Protocol):
    """What the trainer drives.

    Attributes:
        offline: what it trains on is made before the first step.
    """

    offline: bool

    @property
    def kl_name(self) -> str | None:
        """What `MicroLoss.kl` is called in the metrics: `kl` where it is the reverse KL(policy || teacher), else the
        name of the divergence; None where the method has none."""

    def collect(self, pairs: Sequence[RenderedPair], step: int) -> list[Rollout]:
        """The rollouts that a step trains on."""

    def loss(
        self, rollouts: Sequence[Rollout], weights: Sequence[Tensor], prefixes: Prefixes = NOT_SHARED
    ) -> MicroLoss:
        """The share of a micro-batch in the step's loss."""
