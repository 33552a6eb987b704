"""The command line, in this process."""

from __future__ import annotations

import pytest

from opct.cli.app import main


def run(*arguments: str) -> int:
    """Run `opct`; its exit code."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code or 0
