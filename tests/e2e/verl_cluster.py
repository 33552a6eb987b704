"""`opct train engine=verl` on two nodes of Ray without a GPU, in verl's interpreter, for test_verl.py; prints JSON.

    python -m tests.e2e.verl_cluster CONFIG.yaml

Each node is a raylet on this machine that is told of two GPUs. What verl's servers sampled is in `samples/` beside the
run; this package computes loss, gradient and KL of the same completions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from opct.config.loader import load_config
from opct.data.render import RenderedPair
from opct.methods.opct import OPCT
from opct.methods.rollouts import Rollout, step_weights
from opct.models.inference.sampler import Completion
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.training.accumulate import accumulate
from opct.training.resume import load_checkpoint
from opct.training.setup import TrainingSetup, build_setup

REPOSITORY = Path(__file__).parents[2]
TRAIN_LIMIT_S = 1500


def trained(config_path: str, samples: Path) -> None:
    """Start the nodes, run the command, and stop the nodes."""
    from ray.cluster_utils import Cluster

    samples.mkdir(parents=True)
    command, environment = [sys.executable, "-m", "opct", "train", config_path], dict(os.environ)
    # the nodes' processes inherit them, and so do verl's. Without src/: this package reaches them by `runtime_env`.
    # Ray's memory monitor would end workers for the memory that others take
    inherited = {"VERL_USE_EXTERNAL_MODULES": "tests.e2e.verl_cpu", "VERL_CPU_SAMPLES": str(samples)}
    inherited |= {"PYTHONPATH": str(REPOSITORY), "RAY_memory_monitor_refresh_ms": "0"}
    os.environ |= inherited
    # counted, not used: each of verl's processes asks for one
    node = {"num_cpus": 24, "num_gpus": 2, "object_store_memory": 300_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        environment = inherited | environment | {"RAY_ADDRESS": cluster.address}
        subprocess.run(command, env=environment, check=True, timeout=TRAIN_LIMIT_S, stdout=sys.stderr)
    finally:
        cluster.shutdown()


def rollout_of(row: dict[str, Any], pairs: list[RenderedPair]) -> Rollout:
    """The sampled completion, and its pair: the one with these tokens as its prompt, else that with an open turn."""
    pair = next((pair for pair in pairs if pair.prompt_ids == row["prompt"]), None)
    pair = pair or next(pair for pair in pairs if pair.prompt_ids is None)
    tokens, logprobs = tuple(row["tokens"]), tuple(row["logprobs"])
    completion = Completion("", tokens, "length", logprobs, len(row["prompt"]), seed=0)
    return Rollout(pair.pair, 0, row["prompt"], pair.teacher_ids, completion, (True,) * len(tokens))


def loss_and_norm(setup: TrainingSetup, rollouts: list[Rollout]) -> tuple[float, float]:
    method = OPCT(setup.policy, setup.teacher, setup.config)
    loss, _ = accumulate(method, rollouts, step_weights(rollouts, setup.config.loss.reduction), 10**6)
    grads = [p.grad for p in setup.policy.trainable_parameters().values() if p.grad is not None]
    return loss, float(torch.nn.utils.get_total_norm(grads))


@torch.no_grad()
def scores(model: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """Log-probs of the tokens after the prompt [T]."""
    rows = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return rows.gather(1, torch.tensor(tokens)[:, None])[:, 0]


def main() -> None:
    config = load_config(sys.argv[1], [])
    run = RunDir(Path(config.output_dir).resolve())
    samples = run.path.parent / "samples"
    trained(sys.argv[1], samples)
    rows = [row for path in samples.glob("sampler-*.jsonl") for row in read_jsonl(path)]
    found: dict[str, Any] = {
        "nodes": len({row["node"] for row in rows}),
        "samplers": len(list(samples.glob("sampler-*"))),
    }
    # build_setup: the weights before training
    setup = build_setup(config, None)
    held_out = {tuple(pair.prompt_ids): pair for pair in setup.data.validation}
    turns = [
        setup.policy.renderer.render(list(pair.pair.prompt[:1])) for pair in setup.data.pairs if pair.prompt_ids is None
    ]
    first = [
        row for row in rows if row["step"] == 0 and tuple(row["prompt"]) not in held_out and row["prompt"] not in turns
    ]
    found["tokens"] = [len(row["tokens"]) for row in first]
    found["loss"], found["grad_norm"] = loss_and_norm(setup, [rollout_of(row, setup.data.pairs) for row in first])
    model = setup.policy.model
    for step in (0, config.max_steps):
        chosen = [row for row in rows if row["step"] == step and tuple(row["prompt"]) in held_out]
        kl = [
            sum(row["logprobs"]) - float(scores(model, held_out[tuple(row["prompt"])].teacher_ids, row["tokens"]).sum())
            for row in chosen
        ]
        found[f"kl_{step}"] = sum(kl) / sum(len(row["tokens"]) for row in chosen)
    # the run's last checkpoint samples what verl's servers sampled last
    load_checkpoint(run.latest_checkpoint(), setup, torch.optim.AdamW(setup.policy.trainable_parameters().values()))
    distances = [
        (scores(model, row["prompt"], row["tokens"]) - torch.tensor(row["logprobs"])).abs().max() for row in chosen
    ]
    found["final_distance"] = float(max(distances))
    found["metrics"] = read_jsonl(run.metrics_path)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
