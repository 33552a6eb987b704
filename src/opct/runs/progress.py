"""Names of `opct.runs.console`."""

from opct.runs.console import Field as Field
from opct.runs.console import NullProgress as NullProgress
from opct.runs.console import PlainProgress as PlainProgress
from opct.runs.console import Progress as Progress
from opct.runs.console import RichProgress as RichProgress
from opct.runs.console import duration as duration
from opct.runs.console import make_progress as make_progress
