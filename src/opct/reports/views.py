"""One axis as the page has it: what it asks, what training did, its table, its figures, and what is folded away."""

from __future__ import annotations

from dataclasses import dataclass

from opct.reports.axes import axis_info
from opct.reports.axis_figures import axis_figures
from opct.reports.compare import Comparison, Section
from opct.reports.figures import Figure
from opct.reports.trained import families_note
from opct.reports.verdict import axis_verdict


@dataclass(frozen=True)
class AxisView:
    """One axis of results.json; `anchor` is the id of its part of the page, `absent` names figures without numbers, and
    `note` the arms that its training families are new to.
    """

    axis: str
    anchor: str
    title: str
    question: str
    sentences: list[str]
    sections: list[Section]
    details: list[Section]
    figures: list[Figure]
    absent: list[str]
    note: str

    @property
    def n_details(self) -> int:
        """Rows that are folded away."""
        return sum(len(section.lines) for section in self.details)


def axis_views(comparison: Comparison) -> list[AxisView]:
    """Every axis that was measured."""
    return [_view(comparison, axis, index) for index, axis in enumerate(comparison.axes)]


def _view(comparison: Comparison, axis: str, index: int) -> AxisView:
    info = axis_info(axis)
    figures, absent = axis_figures(comparison, axis)
    return AxisView(
        axis,
        f"axis-{axis}" if axis.isidentifier() else f"axis-{index}",
        info.title,
        info.question,
        axis_verdict(comparison, axis),
        comparison.headline(axis),
        comparison.details(axis),
        figures,
        absent,
        families_note(comparison, axis),
    )
