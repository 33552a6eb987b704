"""The output head, and rows of micro-batches."""

import pytest
import torch

from opct.models.scoring import micro_batches


@pytest.mark.parametrize("budget", [1, 7, 20, 1000])
def test_micro_batches_hold_every_row_once_within_the_budget(budget: int):
    lengths = torch.randint(1, 30, (50,), generator=torch.Generator().manual_seed(0)).tolist()
    groups = micro_batches(lengths, budget)
    assert sorted(i for group in groups for i in group) == list(range(50))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= budget
