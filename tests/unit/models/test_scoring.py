"""The output head, and rows of micro-batches."""

from __future__ import annotations

import pytest
import torch

from opct.models.scoring import Head, micro_batches


def test_head_scaling_bias_and_softcap():
    """logits = 3 tanh((W h / 2 + ...) / 3) with the bias inside: cap((W h + b) * scale)."""
    weight, bias = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([1.0, -1.0])
    head = Head(weight, bias, torch.float32, scale=0.5, softcap=3.0)
    found = head.logits(torch.tensor([[3.0, 4.0]]))
    torch.testing.assert_close(found, 3 * torch.tanh(torch.tensor([[2.0, 3.5]]) / 3))


def test_micro_batches_by_hand():
    """Budget 20, longest first: 30 stands alone, two of 9 are 18 and three 27, 8 and 5 are 16 and three 24, then 2."""
    assert micro_batches([5, 9, 2, 30, 9, 8], 20) == [[3], [1, 4], [5, 0], [2]]


@pytest.mark.parametrize("budget", [1, 7, 20, 1000])
def test_micro_batches_hold_every_row_once_within_the_budget(budget: int):
    lengths = torch.randint(1, 30, (50,), generator=torch.Generator().manual_seed(0)).tolist()
    groups = micro_batches(lengths, budget)
    assert sorted(i for group in groups for i in group) == list(range(50))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= budget
