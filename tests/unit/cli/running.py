"""The command line, in this process."""

from __future__ import annotations

import pytest

from opct.cli.app import main


def run(*arguments: object) -> int:
    """Run `opct`; its exit code."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code or 0
