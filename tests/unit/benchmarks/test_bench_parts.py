"""The pure parts of the benchmarks of the sampler, of the machine's rate and of a step's operations."""

from __future__ import annotations

from benchmarks import operations
from benchmarks.workloads import Workload


def test_the_operations_of_a_step_are_those_of_the_formula():
    """N_b = 2 (2 h a + 2 h k + 3 h i + 2 h) + h and N_v = V h, for h 32, a 32, k 16, i 64, V 320."""
    body, head = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32) + 32, 320 * 32
    sizes = operations.Sizes(layers=2, hidden=32, query_size=32, kv_size=16, inner=64, vocabulary=320)
    assert (sizes.body, sizes.head) == (body, head)
    full = operations.operations(sizes, Workload("w", 2, 3, 5, 4, 7), lora=False)
    assert full.teacher == 2 * body * 2 * (4 + 3 * 7)
    assert full.policy == 2 * body * 2 * (5 + 3 * 7)
    assert (full.backward, full.loss) == (2 * full.policy, 6 * head * 2 * 3 * 7)
