"""Reports that compare runs: an HTML page, JSON, and a model card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opct.reports.build import report as report

__all__ = ["report"]


def __getattr__(name: str) -> Any:
    if name != "report":
        raise AttributeError(f"module 'opct.reports' has no attribute {name!r}")
    from opct.reports.build import report  # it imports Inspect, which `opct runs` does not need

    return report
