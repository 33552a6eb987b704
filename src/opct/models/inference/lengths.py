"""Rows of unequal lengths in batches that are little wider than their rows."""

from __future__ import annotations

from collections.abc import Sequence


def alike(lengths: Sequence[int], overhead: int) -> list[list[int]]:
    """Indices in groups, the longest rows first, such that the padded groups take the least.

    Args:
        lengths: tokens of each row.
        overhead: what a group more takes, in tokens.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    # rows of one length stay together
    starts = [k for k, i in enumerate(order) if k == 0 or lengths[i] < lengths[order[k - 1]]]
    ends = [*starts[1:], len(order)]
    least, cut = [0], [0]  # tokens of the rows up to each end, and where their last group begins
    for n, end in enumerate(ends, 1):
        costs = [least[k] + overhead + (end - starts[k]) * lengths[order[starts[k]]] for k in range(n)]
        best = min(range(n), key=costs.__getitem__)
        least.append(costs[best])
        cut.append(best)
    groups, n = [], len(ends)
    while n:
        groups.append(order[starts[cut[n]] : ends[n - 1]])
        n = cut[n]
    return groups[::-1]
