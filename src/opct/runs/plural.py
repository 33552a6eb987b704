"""Names of `opct.runs.console`."""

from opct.runs.console import pluralize as count  # noqa: F401
