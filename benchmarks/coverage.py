"""How often a report's interval excludes 0 where two arms do not differ: the table in docs/results_details.md.

    python -m benchmarks.coverage            # some ten minutes on one core

Answers are right with probability sigmoid(a + question + seed effect of the arm); a is set for a mean rate of 30%,
questions differ by 1.5 logits (standard deviation), and each arm draws its seed effects by itself.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.tables import markdown
from opct.evals.stats import difference_over_seeds, variance_of_a_seed

SEEDS, SPREADS, QUESTIONS = (2, 3, 5), (0.15, 0.5, 1.0), (65, 200, 600)
N_ARMS = 3


def is_wrong(rng: np.random.Generator, n_seeds: int, spread: float, n_questions: int, *, is_pooled: bool) -> bool:
    """Whether the interval of the difference of the first two of three equal arms excludes 0."""
    questions = rng.normal(-1.1, 1.5, n_questions)
    logits = questions + rng.normal(0, spread, (N_ARMS, n_seeds, 1))
    right = (rng.random((N_ARMS, n_seeds, n_questions)) < 1 / (1 + np.exp(-logits))).astype(float)
    ids = [str(i) for i in range(n_questions)]
    first, second = ([dict(zip(ids, run, strict=True)) for run in arm.tolist()] for arm in right[:2])
    seeds = list(range(n_seeds))
    estimate = difference_over_seeds(
        first, second, dict(zip(ids, ids, strict=True)), seeds_a=seeds, seeds_b=seeds,
        of_a_seed=variance_of_a_seed(right.mean(axis=2).tolist()) if is_pooled else None,
    )  # fmt: skip
    return not (estimate.ci_low or 0) <= 0 <= (estimate.ci_high or 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    draws = parser.parse_args().draws
    rows = []
    for n_seeds in SEEDS:
        for spread in SPREADS:
            cells = [str(n_seeds), f"{spread:g}"]
            for is_pooled in (False, True):
                rng = np.random.default_rng(0)
                cells += [
                    f"{sum(is_wrong(rng, n_seeds, spread, n, is_pooled=is_pooled) for _ in range(draws)) / draws:.1%}"
                    for n in QUESTIONS
                ]
            rows.append(cells)
            print(*cells, flush=True)
    heads = [f"{kind}, {n} questions" for kind in ("own seeds", "pooled") for n in QUESTIONS]
    print(markdown(["seeds", "seed sd, logits", *heads], rows))


if __name__ == "__main__":
    main()
