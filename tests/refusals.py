"""A refusal, told by its type and by what it names."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def refused(kind: type[BaseException], *data: object) -> Iterator[pytest.ExceptionInfo]:
    """The block raises `kind`, and its text names each of `data`: the file, the line, the setting or the value."""
    with pytest.raises(kind) as caught:
        yield caught
    for part in data:
        assert str(part) in str(caught.value)
