"""A method by its name in the settings."""

from __future__ import annotations

from collections.abc import Callable

from opct.config.schema import TrainConfig
from opct.methods import Method
from opct.methods.act import ACT, shared_ends
from opct.methods.dpo import DPO, preferences
from opct.methods.offline import Answering, OfflineAnswers
from opct.methods.offpolicy import OffPolicy
from opct.methods.opct import OPCT
from opct.methods.rollouts import teacher_rollouts
from opct.methods.sft import SFT
from opct.models.policy import Policy
from opct.models.teacher import Teacher
from opct.models.vllm.engine import Engine

ANSWERING: dict[str, Answering] = {
    "sft": teacher_rollouts,
    "offpolicy": teacher_rollouts,
    "dpo": preferences,
    "act": shared_ends,
}
"""How each method that is no `opct` comes to its rollouts, before training."""


def make(
    policy: Policy, teacher: Teacher, config: TrainConfig, answers: OfflineAnswers | None, engine: Engine | None = None
) -> Method:
    """The method that the settings name.

    Args:
        answers: of all but `opct`.
        engine: that samples for `opct`; None where this process does.
    """
    if answers is None:
        return OPCT(policy, teacher, config, engine)
    if config.method == "sft":
        return SFT(policy, config, answers)
    kinds: dict[str, Callable[..., Method]] = {"offpolicy": OffPolicy, "dpo": DPO, "act": ACT}
    return kinds[config.method](policy, teacher, config, answers)
