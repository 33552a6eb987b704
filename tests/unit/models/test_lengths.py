"""Groups of rows of like lengths, against all ways to cut."""

from __future__ import annotations

import itertools
import random

from opct.models.inference.lengths import alike


def cost(groups: list[list[int]], lengths: list[int], overhead: int) -> int:
    return sum(overhead + len(group) * max(lengths[i] for i in group) for group in groups)


def test_no_way_to_cut_takes_less():
    rng = random.Random(0)
    for overhead in (0, 3, 20, 1000):
        for n in range(1, 9):
            lengths = [rng.randint(1, 30) for _ in range(n)]
            groups = alike(lengths, overhead)
            assert sorted(i for group in groups for i in group) == list(range(n))
            assert [lengths[i] for group in groups for i in group] == sorted(lengths, reverse=True)
            order = sorted(range(n), key=lambda i: -lengths[i])
            least = min(
                cost([order[a:b] for a, b in itertools.pairwise([0, *cuts, n])], lengths, overhead)
                for k in range(n)
                for cuts in itertools.combinations(range(1, n), k)
            )
            assert cost(groups, lengths, overhead) == least


def test_equal_rows_stay_together():
    assert alike([5, 5, 5], 0) == [[0, 1, 2]]
    assert alike([2, 9, 2], 0) == [[1], [0, 2]]
