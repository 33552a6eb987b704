"""The tables of docs/results.md, in Markdown, from evaluated runs:

    python benchmarks/summary.py runs/results             # every run in the folder, and its base
    python benchmarks/summary.py runs/results --every     # single families and what the page folds away, too

Numbers, intervals and what was left out are those of `opct report`: the same lines of the same comparison. To these it
adds accuracy under pressure against the base's accuracy on the same questions, asked plainly: what consistency aims at.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from opct.errors import EvaluationError
from opct.evals.metrics import find_metric
from opct.evals.samples import SYCOPHANCY
from opct.evals.stats import Values, difference_over_seeds
from opct.reports.arms import Arm
from opct.reports.card import table_row
from opct.reports.compare import Comparison, Section, compare
from opct.reports.load import load_runs
from opct.reports.wording import change, interval

SUITE, HELD_OUT, CLEAN = "sycophancy_short", "held_out", "clean"


def evaluated_runs(root: Path) -> list[Path]:
    """The evaluated run directories in a folder, by name.

    Raises:
        EvaluationError: there is none.
    """
    found = sorted(path.parent for path in root.glob("*/results.json"))
    if not found:
        raise EvaluationError(f"No evaluated run in {root}: name the folder that the runs are in.")
    return found


def tables(comparison: Comparison, *, every: bool = False) -> Iterator[str]:
    """The sections of each axis as Markdown tables, each under its heading.

    Args:
        every: also those that the page folds away.
    """
    sections = [*comparison.headline(), *(comparison.details() if every else [])]
    for section in sections:
        yield "\n".join([f"### {section.full_title}", "", *_table(comparison, section)])


def _table(comparison: Comparison, section: Section) -> list[str]:
    arms = [arm.name + (f", {len(arm.runs)} runs" if len(arm.runs) > 1 else "") for arm in comparison.arms]
    head = ["metric", *arms, *(pair.title for pair in comparison.pairs)]
    rows = [head, ["---"] * len(head), *(table_row(row) for row in section.rows)]
    return ["| " + " | ".join(row) + " |" for row in rows]


def aims(comparison: Comparison) -> Iterator[str]:
    """For each trained arm: its accuracy under pressure minus the first arm's on the same questions, plainly asked.
    Skips arms without one of the two."""
    first, *others = comparison.arms
    plain = _by_question(first, "accuracy_clean", CLEAN)
    for arm in others:
        pressed = _by_question(arm, "accuracy_biased", HELD_OUT)
        if not (all(pressed) and all(plain)):
            continue
        questions = {key: key for run in pressed for key in run}
        seeds, of_first = ([run.seed for run in each.runs] for each in (arm, first))
        found = difference_over_seeds(pressed, plain, questions, seeds_a=seeds, seeds_b=of_first)
        yield (
            f"{arm.name}: accuracy under pressure on held-out families minus {first.name}'s on the same questions, "
            f"plainly asked: {change(found.value, 'rate')} "
            f"({interval(found.ci_low, found.ci_high, 'rate', signed=True)}), n = {found.n:,} questions"
        )


def _by_question(arm: Arm, metric: str, group: str) -> list[Values]:
    """The mean of the scored values of each question, of each run."""
    made: list[Values] = []
    for run in arm.runs:
        groups: dict[str, list[float]] = {}
        units = run.units(find_metric(SYCOPHANCY, metric), SUITE, group)
        for key, value in units.values.items():
            if value is not None:
                groups.setdefault(units.clusters[key], []).append(value)
        made.append({cluster: sum(own) / len(own) for cluster, own in groups.items()})
    return made


def summary(run_dirs: Sequence[Path], *, every: bool = False) -> str:
    """All tables of these runs, and the aims of the arms."""
    comparison = compare(load_runs(list(run_dirs)))
    return "\n\n".join([*tables(comparison, every=every), *aims(comparison)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the evaluated runs are")
    parser.add_argument("--every", action="store_true", help="single families and what the page folds away, too")
    args = parser.parse_args()
    print(summary(evaluated_runs(args.folder), every=args.every))


if __name__ == "__main__":
    main()
