"""What a person sees: runs side by side as one HTML page, as JSON, and as a model card."""

from opct.reports.build import report

__all__ = ["report"]
