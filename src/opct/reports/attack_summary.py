"""What attacks found, in few words: the sentences of the verdict, and the table of the model card."""

from __future__ import annotations

from collections.abc import Sequence

from opct.reports.attacks import RATE, AttackRow, AttackView, rate_text
from opct.reports.verdict import Said
from opct.reports.wording import interval, joined, quantity, told_apart
from opct.runs.plural import count

TITLE = "Attacks"
CARD_COLUMNS = (
    "Target",
    "Attacker",
    "Defence rate",
    "Undecided as broken",
    "Undecided as held",
    "Played",
    "Queries",
    "Judge",
)


def attacks_said(views: Sequence[AttackView]) -> list[Said]:
    """A clause for each attacker: of each arm that it attacked, how many behaviours held."""
    clauses = tuple(f"Against {view.name}: {joined([_held(row) for row in view.rows])}" for view in views)
    return [Said(TITLE, clauses, "")] if clauses else []


def _held(row: AttackRow) -> str:
    """ "Base held on 1 of 3 behaviours (33.3%, 95% interval 0.8 to 90.6)", with those that are undecided."""
    found = row.row(RATE)
    name, n, undecided = told_apart(row.arm.label, row.arm.name, row.run), found["n"], found["n_unscored"]
    if not n:
        return f"of {name} none of {count(undecided, 'behaviour')} was decided"
    left = f"; {undecided:,} more undecided" if undecided else ""
    said = f"{quantity(found['value'], 'rate')}, 95% interval {interval(found['ci_low'], found['ci_high'], 'rate')}"
    return f"{name} held on {round(n * found['value']):,} of {count(n, 'behaviour')} ({said}{left})"


def card_rows(views: Sequence[AttackView]) -> list[tuple[str, ...]]:
    """The table of the model card, a row an attack, in the order of `CARD_COLUMNS`."""
    return [
        (
            told_apart(row.arm.label, row.arm.name, row.run),
            view.name,
            *(rate_text(row.row(name)) for name in (RATE, f"{RATE}_undecided_as_broken", f"{RATE}_undecided_as_held")),
            f"{row.settings['behaviours']}; {row.settings['episodes of each']}; ended: {row.numbers['ended']}",
            f"{row.numbers['budget']['spent']['queries']:,}",
            row.settings["judge"],
        )
        for view in views
        for row in view.rows
    ]
