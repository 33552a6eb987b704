"""What the benchmarks put hooks on is as before after each test."""

from __future__ import annotations

import pytest
import torch

from opct.methods.opct import OPCT
from opct.models.policy import Policy
from opct.models.vllm import local
from opct.training import trainer


@pytest.fixture(autouse=True)
def unhooked(monkeypatch):
    for owner, name in (
        (OPCT, "collect"),
        (Policy, "score"),
        (trainer, "accumulate"),
        (trainer, "build_setup"),
        (torch.nn.utils, "clip_grad_norm_"),
        (torch.optim.AdamW, "step"),
        (local, "request_settings"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
