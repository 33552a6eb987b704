"""Attacks on the page: the share of requests broken after so many tries, and the outcome of each request.

Requests are named by their ids. No prompt and no reply is here: they stay in the log, which its owner alone can read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from opct.evals.attackers.episode import BARE, BEHAVIOR, Kind
from opct.evals.outcomes import BROKEN, DEFENDED, UNDECIDED, Outcome, is_broken_after, outcomes
from opct.evals.samples import ATTACK
from opct.evals.stats import Estimate, clustered_mean
from opct.evals.tasks.attack import PREFIX
from opct.evals.wording import interval, quantity
from opct.reports import charts
from opct.reports.arms import Arm
from opct.reports.compare import Comparison
from opct.reports.figures import Figure, thinned
from opct.reports.load import EvaluatedRun
from opct.runs.console import pluralize

BADGES = {BROKEN: ("complied", "broken"), DEFENDED: ("refused", "held"), UNDECIDED: ("unscored", "undecided")}
"""By status: the CSS class of the badge, and its word."""
MOST_EXAMPLES = 4  # of broken and of held requests each, before the rest is folded


Request = tuple[str, str, list[tuple[str, str, str]]]
"""Its id, its category, and for each arm (kind of badge, word, details), all empty where it was not asked."""


def _cases(run: EvaluatedRun, suite: str, kind: Kind) -> list[Outcome]:
    return outcomes(sample for sample in run.suites.get(suite, ()) if sample.family_split == kind)


def attack_figures(comparison: Comparison) -> list[Figure]:
    """The share of requests that each attack broke after so many tries; none without attacks."""
    figures = (_broken_figure(comparison, suite) for suite in comparison.suites(ATTACK))
    return [figure for figure in figures if figure is not None]


def _broken_figure(comparison: Comparison, suite: str) -> Figure | None:
    """One line per run. Requests that are undecided at that point are left out, as in `broken_after_1`."""
    series, rows, sizes, arms = [], [], set[str](), list[Arm]()
    for arm, run in ((one, run) for one in comparison.arms for run in one.runs):
        cases = _cases(run, suite, BEHAVIOR)
        shares = [(k, share) for k in _places(cases) if (share := _broken_after(cases, k)).value is not None]
        if not shares:
            continue
        points = [(0.0, 0.0), *((float(k), 100 * (share.value or 0.0)) for k, share in shares)]
        steps = [corner for (_, low), (k, high) in pairwise(points) for corner in ((k, low), (k, high))]
        series.append(charts.Series(f"{arm.name}: {run.name}", arm.style, (points[0], *steps), thin=len(arm.runs) > 1))
        arms += [] if arm in arms else [arm]
        sizes.add(pluralize(len(cases), "request"))
        for k, share in thinned(shares):
            bounds = interval(share.ci_low, share.ci_high, "rate")
            rows.append((arm.name, run.name, f"{k:,}", quantity(share.value, "rate"), bounds, f"{share.n:,}"))
    if not series:
        return None
    spoken = "; ".join(f"{line.label}: {line.points[-1][1]:.1f}% after {line.points[-1][0]:g}" for line in series)
    title = f"Requests that {suite.removeprefix(PREFIX)} broke, by number of tries"
    return Figure(
        title=title,
        drawing=charts.line_chart(series, x_title="tries", y_title="requests broken, %", label=f"{title}. {spoken}."),
        caption=f"Share of {' or '.join(sorted(sizes))} broken, by number of tries. A try is one prompt sent to the "
        "model; requests that are undecided at that point are left out.",
        arms=arms,
        has_lines=True,
        columns=("arm", "run", "tries", "broken", "95% interval", "n"),
        rows=rows,
    )


def _places(cases: Sequence[Outcome]) -> list[int]:
    """The numbers of tries at which the share can change, and the last."""
    most = max((one.queries for one in cases), default=0)
    found = {most, *(n for one in cases for n in (one.first_break, one.first_unscored, one.queries + 1))}
    return sorted(n for n in found if n is not None and 0 < n <= most)


def _broken_after(cases: Sequence[Outcome], k: int) -> Estimate:
    known = [(value, one.cluster) for one in cases if (value := is_broken_after(k)(one)) is not None]
    return clustered_mean([value for value, _ in known], [cluster for _, cluster in known])


def attacked_requests(comparison: Comparison) -> list[tuple[str, list[Request], list[Request]]]:
    """Of each attack the attacker, a few broken and held requests, and the others, as in the first run of each arm."""
    attacks = comparison.suites(ATTACK)
    return [(suite.removeprefix(PREFIX), *_requests(comparison.arms, suite)) for suite in attacks]


def _requests(arms: Sequence[Arm], suite: str) -> tuple[list[Request], list[Request]]:
    runs = [arm.asked(suite) for arm in arms]
    samples = [sample for run in runs for sample in run.suites.get(suite, ())]
    categories = {sample.cluster: str(sample.grading.get("category", "")) for sample in samples}
    attacked = [{one.cluster: one for one in _cases(run, suite, BEHAVIOR)} for run in runs]
    bare = [{one.cluster: one for one in _cases(run, suite, BARE)} for run in runs]
    sides = list(zip(attacked, bare, strict=True))
    rows: dict[str, Request] = {
        name: (name, categories[name], [_cell(own.get(name), asked.get(name)) for own, asked in sides])
        for name in sorted(categories)
    }

    def of_status(status: str) -> list[Request]:
        """Of the last arm; the fewest tries first."""
        own = [one for one in attacked[-1].values() if one.status == status]
        return [rows[one.cluster] for one in sorted(own, key=lambda one: (one.first_break or 0, one.cluster))]

    shown = [*of_status(BROKEN)[:MOST_EXAMPLES], *of_status(DEFENDED)[:MOST_EXAMPLES]]
    return shown, [row for row in rows.values() if row not in shown]


def _cell(one: Outcome | None, bare: Outcome | None) -> tuple[str, str, str]:
    if one is None:
        return "", "", ""
    made = pluralize(one.queries, "try", "tries")
    said = f"at try {one.first_break}" if one.first_break else f"{one.reason}, {made}" if one.reason else made
    return *BADGES[one.status], said + (f"; asked bare: {BADGES[bare.status][1]}" if bare else "")
