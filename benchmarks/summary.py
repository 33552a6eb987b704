"""The table of docs/results.md from evaluated runs: `python benchmarks/summary.py runs/results`.

Rates are over sample ids, averaged over the seeds of a method first; intervals are clustered by question.
`accuracy_biased` is also compared, question by question, with the base's `accuracy_clean`: what consistency aims at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from opct.evals.benign import NO_CHECK
from opct.evals.stats import Estimate, average_over_runs, paired_difference, pooled_over_seeds, ratio_reduction
from opct.files import read_jsonl

Values = dict[str, float | None]
METHODS = ("base", "sft", "offpolicy", "opct")
BENCHMARKS = ("mmlu", "commonsenseqa", "truthfulqa", "gsm8k", "math500")


def selected(folder: Path, wanted: Callable[[dict], bool], value: str) -> tuple[Values, dict[str, str]]:
    """The value of each wanted sample by its id, and the cluster of each id."""
    rows = [row for row in read_jsonl(folder / "evals" / "samples.jsonl") if wanted(row)]
    return {row["id"]: row["values"].get(value) for row in rows}, {row["id"]: row["cluster"] for row in rows}


def of(task: str, *splits: str) -> Callable[[dict], bool]:
    return lambda row: row["task"] == task and (not splits or row["family_split"] in splits)


def held_out(row: dict) -> bool:
    return row["task"] == "sycophancy_short" and row["family_split"] == "held_out"


def clean(row: dict) -> bool:
    return row["task"] == "sycophancy_short" and row["family_split"] == "clean"


def of_benign(split: str) -> Callable[[dict], bool]:
    return lambda row: row["task"] == "benign" and row["family_split"] == split and row["verdict"] != NO_CHECK


METRICS: tuple[tuple[str, Callable[[dict], bool], str], ...] = (
    ("`sycophancy_rate`, held-out families", held_out, "is_suggested"),
    ("`accuracy_biased`, held-out families", held_out, "is_correct"),
    ("`accuracy_clean`", clean, "is_correct"),
    ("`accuracy_identity`, benign requests", of_benign("benign"), "is_correct"),
    ("`accuracy_user_right`", of_benign("user_is_right"), "is_correct"),
    ("`accuracy_plain_question`, the same questions", of_benign("plain_question"), "is_correct"),
    ("`attack_success_rate`, held-out families", of("jailbreak", "held_out"), "is_success"),
    ("`attack_success_rate`, training families", of("jailbreak", "train"), "is_success"),
    ("`attack_success_rate`, bare behaviours", of("jailbreak", "bare"), "is_success"),
    ("`over_refusal_rate`, twins in held-out families", of("jailbreak", "benign_held_out"), "is_over_refusal"),
    ("`over_refusal_rate`, twins in training families", of("jailbreak", "benign_train"), "is_over_refusal"),
    ("`over_refusal_rate`, bare twins", of("jailbreak", "benign_bare"), "is_over_refusal"),
    ("`warning_rate`, held-out families", of("safety_awareness", "held_out"), "is_warned"),
    ("`warning_rate`, training families", of("safety_awareness", "train"), "is_warned"),
    ("`over_warning_rate`, safe twins", of("safety_awareness", "safe_twin"), "is_over_warned"),
    *((f"{name}, `solved_rate`", of(name), "is_solved") for name in BENCHMARKS),
    ("ifeval, `prompt_strict`", of("ifeval"), "is_correct"),
)


def points(estimate: Estimate, *, signed: bool = False) -> str:
    """A rate or difference in points with its interval."""
    sign = "+" if signed else ""
    if estimate.value is None:
        return "-"
    low, high = (100 * x if x is not None else float("nan") for x in (estimate.ci_low, estimate.ci_high))
    return f"{100 * estimate.value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def by_question(values: Values, clusters: dict[str, str]) -> dict[str, float]:
    """The mean of each cluster's values."""
    groups: dict[str, list[float]] = {}
    for key, value in values.items():
        if value is not None:
            groups.setdefault(clusters[key], []).append(value)
    return {cluster: sum(own) / len(own) for cluster, own in groups.items()}


def main() -> None:
    root = Path(sys.argv[1])
    evaluated = {path.parent.name: path.parent for path in sorted(root.glob("*/results.json"))}
    folders = {m: [run for name, run in evaluated.items() if name.partition("-seed")[0] == m] for m in METHODS}
    folders = {method: runs for method, runs in folders.items() if runs}
    against = [other for other in METHODS[:-1] if other in folders and "opct" in folders]
    print(
        "| metric (n) |",
        " | ".join(f"{m} ({len(f)} run{'s' * (len(f) > 1)})" for m, f in folders.items()),
        "|",
        " | ".join(f"opct - {other}" for other in against),
        "|",
    )
    print("|---|" + "---|" * (len(folders) + len(against)))
    for title, wanted, value in METRICS:
        pooled, cells, clusters = {}, [], {}
        folders_of = {m: [run for run in runs if selected(run, wanted, value)[0]] for m, runs in folders.items()}
        if not all(folders_of.values()):
            continue
        for method, runs in folders_of.items():
            found = [selected(run, wanted, value) for run in runs]
            clusters |= {key: cluster for _, own in found for key, cluster in own.items()}
            estimate = pooled_over_seeds([values for values, _ in found], clusters)
            spread = "" if len(runs) < 2 else " seeds " + ", ".join(f"{100 * m:.1f}" for m in estimate.run_means)
            pooled[method] = average_over_runs([values for values, _ in found])
            cells.append(points(estimate) + spread)
        differences = [
            points(paired_difference(pooled["opct"], pooled[other], clusters), signed=True) for other in against
        ]
        n = {len(values) for values in pooled.values()}
        print(f"| {title} ({' or '.join(map(str, sorted(n)))}) |", " | ".join([*cells, *differences]), "|")
    if selected(folders["base"][0], held_out, "is_suggested")[0]:
        aims(folders)


def aims(folders: dict[str, list[Path]]) -> None:
    """The relative cut of the sycophancy rate, and accuracy under pressure against the base's plain accuracy."""
    base_rate, clusters = selected(folders["base"][0], held_out, "is_suggested")
    base_clean = by_question(*selected(folders["base"][0], clean, "is_correct"))
    for method in [m for m in folders if m != "base"]:
        rate = average_over_runs([selected(run, held_out, "is_suggested")[0] for run in folders[method]])
        cut = ratio_reduction(rate, base_rate, clusters)
        biased = [by_question(*selected(run, held_out, "is_correct")) for run in folders[method]]
        against = paired_difference(average_over_runs(biased), base_clean, {key: key for key in base_clean})
        print(f"\n{method}: relative cut of sycophancy_rate {points(cut)} % (n = {cut.n})")
        print(
            f"{method}: accuracy_biased - base accuracy_clean {points(against, signed=True)} points "
            f"(n = {against.n} questions)"
        )


if __name__ == "__main__":
    main()
