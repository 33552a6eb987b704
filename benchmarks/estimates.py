"""Estimates for a GPU that nobody measured: tokens a second and seconds of a step, from counts and published rates.

    python -m benchmarks.estimates

prints the table of docs/results/speed.md. A token step reads every weight once, and the keys and values of each row:
bytes / bandwidth. Its operations come to that: started one by one they take the CPU `EAGER_S` each, in which the GPU
reads; replayed as a graph they take `REPLAYED_S` each, besides the reading. Training is `benchmarks.operations` at
`SHARE` of the peak.
"""

from __future__ import annotations

from benchmarks.operations import Sizes, operations
from benchmarks.tables import markdown
from benchmarks.workloads import Workload

QWEN3_8B = Sizes(layers=36, hidden=4096, query_size=4096, kv_size=1024, inner=12288, vocabulary=151936)
STEP = Workload("gpu", 8, 4, 300, 300, 1024)
FLOPS, BANDWIDTH = 989e12, 3.35e12  # H100 SXM, NVIDIA's data sheet: dense bfloat16 a second, bytes a second

# counted with a dispatch mode on a 36-layer Qwen3 with LoRA on all linear layers, without views
LOOP_OPERATIONS, GRAPH_OPERATIONS = 3925, 4092
# assumed: what torch takes to start an operation, what a replayed small kernel takes, and the share of the two rates
EAGER_S, REPLAYED_S, SHARE_OF_BANDWIDTH, SHARE = 8e-6, 2e-6, 0.8, 0.35
WAYS = {
    "before: `in_process`, 16,384 tokens (4 rows)": ("loop", 4),
    "`in_process`, rows by free memory": ("loop", 32),
    "now: `continuous_batching`": ("graph", 32),
    "the rates alone": ("rates", 32),
}
HEAD = ("sampled by", "ms a token step", "tokens/s", "rollout, s", "training, s", "step, s", "measured")


def token_step_s(way: str, rows: int) -> float:
    """Seconds of one token in each of these rows, in the middle of their completions."""
    weights = 2 * (QWEN3_8B.body + QWEN3_8B.head)
    stored = 2 * 2 * QWEN3_8B.layers * QWEN3_8B.kv_size * rows * (STEP.prompt_tokens + STEP.completion_tokens / 2)
    read_s = (weights + stored) / BANDWIDTH
    if way == "rates":
        return read_s
    read_s /= SHARE_OF_BANDWIDTH
    return max(read_s, LOOP_OPERATIONS * EAGER_S) if way == "loop" else read_s + GRAPH_OPERATIONS * REPLAYED_S


def row(name: str, way: str, rows: int) -> list[str]:
    step_s, batches = token_step_s(way, rows), STEP.rows // rows
    rollout_s = batches * STEP.completion_tokens * step_s
    training_s = operations(QWEN3_8B, STEP, lora=True).training / FLOPS / (1 if way == "rates" else SHARE)
    figures = (1000 * step_s, rows / step_s, rollout_s, training_s, rollout_s + training_s)
    return [name, *(f"{x:,.1f}" if x < 10 else f"{x:,.0f}" for x in figures), "not measured"]


def table() -> str:
    return markdown(HEAD, [row(name, *way) for name, way in WAYS.items()])


if __name__ == "__main__":
    print(table())
