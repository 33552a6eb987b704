from opct.runs.console import pluralize as count  # noqa: F401  # until the rooms that import it are rewritten
