from opct.runs.console import StopRequest as StopRequest  # until the rooms that import it are rewritten
