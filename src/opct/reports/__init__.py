"""Reports that compare runs: an HTML page, JSON, and a model card."""

from opct.reports.build import report

__all__ = ["report"]
