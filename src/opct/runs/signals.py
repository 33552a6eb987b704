"""Names of `opct.runs.console`."""

from opct.runs.console import StopRequest as StopRequest
