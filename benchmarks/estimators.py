"""`exact` against `sampled`: the variance of the gradient at the same samples, and held-out KL over time.

    python benchmarks/estimators.py --out runs/estimators

Variance: before the first step, for one batch of pairs, `--draws` independent rollouts (one completion a pair). Each
rollout gives a gradient under both estimators, on the same tokens. With g_i the gradient of draw i over all trained
weights and m their mean, the variance is sum_i |g_i - m|^2 / (draws - 1); |m|^2 is corrected by variance / draws for
the noise in the mean. The interval of the ratio of the two variances is a bootstrap over draws.

Curves: for each seed the same run twice, once with each estimator: same pairs, budget of samples, rate and seed;
`validation/kl` is the exact KL on held-out pairs for both.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from opct.config.loader import load_config
from opct.config.schema import TrainConfig
from opct.methods.opct import OPCT
from opct.methods.rollouts import policy_rollouts, step_weights
from opct.runs.console import make_progress
from opct.runs.io import read_jsonl, write_json
from opct.runs.run_dir import RunDir
from opct.training.resume import is_finished
from opct.training.setup import TrainingSetup, build_setup
from opct.training.trainer import train

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "sycophancy.yaml"
ESTIMATORS = ("exact", "sampled")


def with_estimator(config: TrainConfig, estimator: str) -> TrainConfig:
    return config.model_copy(update={"loss": config.loss.model_copy(update={"estimator": estimator})})


def gradient(setup: TrainingSetup, config: TrainConfig, rollouts: list) -> torch.Tensor:
    """The gradient over all trained weights, flattened; [weights]."""
    parameters = setup.policy.trainable_parameters().values()
    method = OPCT(setup.policy, setup.teacher, config)
    method.loss(rollouts, step_weights(rollouts, "token_mean")).loss.backward()
    flat = torch.cat([p.grad.flatten().float() for p in parameters])
    setup.policy.model.zero_grad(set_to_none=True)
    return flat


def variances(config: TrainConfig, n_pairs: int, draws: int) -> dict[str, dict[str, float]]:
    """Variance and squared norm of the mean gradient of each estimator, over the same draws."""
    setup = build_setup(config)
    pairs = setup.data.batch(1)[:n_pairs]
    collected: dict[str, list[torch.Tensor]] = {name: [] for name in ESTIMATORS}
    tokens = 0
    for draw in range(draws):
        rollouts = policy_rollouts(setup.policy, pairs, config, f"draw {draw}", n=1)
        tokens += sum(len(r.ids) for r in rollouts)
        for name in ESTIMATORS:
            collected[name].append(gradient(setup, with_estimator(config, name), rollouts))
    out = {}
    for name, gradients in collected.items():
        stacked = torch.stack(gradients)
        center = stacked.mean(0)
        variance = float((stacked - center).pow(2).sum() / (draws - 1))
        signal = float(center.pow(2).sum()) - variance / draws
        out[name] = {
            "variance": variance,
            "squared_norm_of_mean": signal,
            "draws": draws,
            "pairs": n_pairs,
            "tokens": tokens,
        }
    means = [torch.stack(collected[name]).mean(0) for name in ESTIMATORS]
    out["cosine_between_means"] = {"value": float(torch.nn.functional.cosine_similarity(*means, dim=0))}
    low, high = ratio_interval({name: torch.stack(gradients) for name, gradients in collected.items()})
    ratio = out["sampled"]["variance"] / out["exact"]["variance"]
    out["ratio"] = {"value": ratio, "ci_low": low, "ci_high": high}
    return out


def ratio_interval(gradients: Mapping[str, torch.Tensor], resamples: int = 4000) -> tuple[float, float]:
    """95% percentile bootstrap over draws of variance(sampled) / variance(exact); gradients are [draws, weights].

    With counts w of a resample of n draws and K the Gram matrix, sum_i w_i |g_i - m|^2 = w . diag K - w' K w / n.
    """
    n = len(gradients["exact"])
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=resamples)
    spread = {}
    for name, rows in gradients.items():
        gram = (rows.double() @ rows.double().T).numpy()
        spread[name] = counts @ np.diag(gram) - np.einsum("ri,ij,rj->r", counts, gram, counts) / n
    low, high = np.quantile(spread["sampled"] / spread["exact"], [0.025, 0.975])
    return float(low), float(high)


def curves(config: TrainConfig, out: Path) -> dict[str, list[tuple[int, float, float]]]:
    """(step, seconds of training, held-out KL) of each estimator."""
    progress = make_progress()
    found = {}
    for name in ESTIMATORS:
        run = RunDir(out / f"{name}-seed{config.seed}")
        settings = with_estimator(config, name).model_copy(update={"output_dir": str(run.path)})
        done = run.is_run and is_finished(run, settings)
        if not done and train(settings, resume=run.is_run, progress=progress).status != "finished":
            raise SystemExit(f"{run.path} was interrupted: start again to go on with it")
        rows, seconds, points = read_jsonl(run.metrics_path), 0.0, []
        for row in rows:
            seconds += row.get("time/step_s", 0.0)
            if "validation/kl" in row:
                points.append((row["step"], seconds, row["validation/kl"]))
        found[name] = points
    progress.done()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/estimators"))
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--draws", type=int, default=24)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--set", nargs="*", default=[], metavar="a.b=c", help="settings over configs/sycophancy.yaml")
    args = parser.parse_args()
    own = [f"max_steps={args.steps}", "data.anchor_fraction=0.0", f"eval_steps={max(1, args.steps // 4)}"]
    configs = [load_config(CONFIG, [f"seed={seed}", *own, *args.set]) for seed in args.seeds]
    result = {
        "variance": variances(configs[0], args.pairs, args.draws),
        "curves": {str(config.seed): curves(config, args.out) for config in configs},
    }
    write_json(args.out / "estimators.json", result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
