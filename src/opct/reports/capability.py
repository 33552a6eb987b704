"""One number for capability: the mean over benchmarks, out of each one's score and interval.

With scores s_1 .. s_k of k benchmarks and their intervals [l_i, h_i], each clustered by question:

    mean      m = (s_1 + .. + s_k) / k
    interval  [m - sqrt(sum (s_i - l_i)^2) / k,  m + sqrt(sum (h_i - s_i)^2) / k]

The benchmarks are those very ones, no draw of benchmarks; their questions are drawn apart from one another. Where each
interval is symmetric this is that of a stratified sample; where one is not, near 0 or 1, its own width is kept on each
side. Source: Zou and Donner 2008 (MOVER). A paired difference of means is made of paired differences in the same way.

Of several training seeds these are the intervals for those very seeds. A seed is the same in all benchmarks, so what
seeds add is not that of each benchmark but that of the means of each seed (`opct.evals.stats.widened`).

A score is a benchmark's published metric (`accuracy`), over all replies: a model cannot raise it by answering less. Of
no benchmark is a part taken: only those count that every run has which has any.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from opct.evals.stats import Bounds, Interval, SeedSpread, widened
from opct.reports.arms import Arm, Pair
from opct.reports.axes import CAPABILITY
from opct.reports.cells import Cell, PairedCell, read_difference
from opct.reports.metrics import metric_info, suite_name
from opct.reports.table import Line
from opct.reports.wording import joined

MEAN = "benchmark_mean"
SCORES = ("accuracy",)
FEWEST = 2
"""Benchmarks of which a mean is made."""


def mean_line(lines: Sequence[Line], arms: Sequence[Arm], pairs: Sequence[Pair]) -> Line | None:
    """The mean over benchmarks as a line of the tables; None where the runs share fewer than two."""
    scores = [line for line in lines if line.axis == CAPABILITY and line.info.name in SCORES]
    runs = [(i, j) for i, arm in enumerate(arms) for j in range(len(arm.runs))]
    asked = [(i, j) for i, j in runs if any(_is_scored(line.run_cells[i][j]) for line in scores)]
    shared = [line for line in scores if all(_is_scored(line.run_cells[i][j]) for i, j in asked)]
    if len(shared) < FEWEST:
        return None
    info = metric_info(MEAN)
    run_cells = tuple(
        tuple(_mean_cell([line.run_cells[i][j] for line in shared]) for j in range(len(arm.runs)))
        for i, arm in enumerate(arms)
    )
    cells = tuple(_with_spread(_mean_cell([line.cells[i] for line in shared]), run_cells[i]) for i in range(len(arms)))
    differences = tuple(_mean_difference([line.differences[i] for line in shared]) for i in range(len(pairs)))
    reasons = tuple(_reason([line for line in shared if line.differences[i] is None], i) for i in range(len(pairs)))
    note = f"{len(shared)} benchmarks: {joined([suite_name(line.suite) for line in shared])}"
    missing = [suite_name(line.suite) for line in scores if line not in shared]
    if missing:
        note += f"; without {joined(missing)}, which not every run has"
    return Line(CAPABILITY, CAPABILITY, "all", info, cells, run_cells, differences, note, reasons)


def _is_scored(cell: Cell | None) -> bool:
    return cell is not None and cell.value is not None


def _mean_cell(cells: Sequence[Cell | None]) -> Cell | None:
    known = [cell for cell in cells if cell is not None and cell.value is not None]
    if len(known) < len(cells):
        return None
    value, low, high = combined([(cell.value, *cell.questions) for cell in known])  # type: ignore[misc]
    reasons: dict[str, int] = {}
    for cell in known:
        for reason, amount in cell.unscored_reasons.items():
            reasons[reason] = reasons.get(reason, 0) + amount
    return Cell(
        "rate",
        value,
        low,
        high,
        sum(cell.n for cell in known),
        sum(cell.n_clusters for cell in known),
        sum(cell.n_unscored for cell in known),
        reasons,
        sum(cell.n_truncated for cell in known),
        known[0].n_runs,
        n_partial=sum(cell.n_partial for cell in known),
    )


def _with_spread(cell: Cell | None, runs: Sequence[Cell | None]) -> Cell | None:
    """The cell of an arm with the means of its runs, their standard deviation, and an interval over seeds too."""
    values = tuple(run.value for run in runs if run is not None and run.value is not None)
    if cell is None or len(values) < 2:
        return cell
    spread, questions = SeedSpread(values), (cell.low, cell.high)
    low, high = _over_seeds(cell.value, questions, cell.n_clusters, [spread], (0.0, 1.0))
    return replace(cell, low=low, high=high, between_run_sd=spread.sd, run_values=values, over_questions=questions)


def _mean_difference(parts: Sequence[PairedCell | None]) -> PairedCell | None:
    known = [part for part in parts if part is not None and part.value is not None]
    if len(known) < len(parts):
        return None
    value, *bounds = combined([(part.value, *part.questions) for part in known])  # type: ignore[misc]
    questions, n_clusters = (bounds[0], bounds[1]), sum(part.n_clusters for part in known)
    spreads = tuple(_mean_spread(own) for own in zip(*(part.spreads for part in known), strict=True))
    low, high = _over_seeds(value, questions, n_clusters, spreads, (-1.0, 1.0))
    return PairedCell(
        "rate",
        value,
        low,
        high,
        sum(part.n for part in known),
        n_clusters,
        sum(part.left_out for part in known),
        read_difference(low, high, metric_info(MEAN)),
        spreads=spreads,
        n_partial=sum(part.n_partial for part in known),
        over_questions=questions,
    )


def _mean_spread(benchmarks: Sequence[SeedSpread]) -> SeedSpread:
    """The mean over benchmarks of each seed."""
    by_seed = zip(*(spread.values for spread in benchmarks), strict=True)
    return SeedSpread(tuple(sum(values) / len(values) for values in by_seed))


def _over_seeds(
    value: float | None, questions: Interval, n_clusters: int, spreads: Sequence[SeedSpread], bounds: Bounds
) -> Interval:
    low, high = questions
    if value is None or low is None or high is None or not spreads:
        return questions
    return widened(value, (low, high), n_clusters - 1, spreads, bounds)


def _reason(lines: Sequence[Line], pair: int) -> str | None:
    """Why two arms have no difference of means: that of the first benchmark without one."""
    if not lines:
        return None
    return f"{suite_name(lines[0].suite)}: {lines[0].reasons[pair]}"


def combined(
    parts: Sequence[tuple[float, float | None, float | None]],
) -> tuple[float, float | None, float | None]:
    """Mean and interval of independent estimates (value, low, high); no interval where one of them has none."""
    k = len(parts)
    mean = sum(value for value, _, _ in parts) / k
    below = [value - low for value, low, _ in parts if low is not None]
    above = [high - value for value, _, high in parts if high is not None]
    if len(below) < k or len(above) < k:
        return mean, None, None
    return mean, mean - math.hypot(*below) / k, mean + math.hypot(*above) / k
