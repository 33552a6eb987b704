"""What an error says of many faults, and of a library's error."""

from __future__ import annotations

import pytest

from opct.errors import SHOWN_FAULTS, LibraryErrors, ModelError, shown_faults


@pytest.mark.parametrize(
    ("count", "last"),
    [(0, ()), (1, ("f0",)), (SHOWN_FAULTS, (f"f{SHOWN_FAULTS - 1}",)), (SHOWN_FAULTS + 1, ("... and 1 more",))],
)
def test_the_first_faults_are_listed_and_the_others_counted(count, last):
    shown = shown_faults([f"f{i}" for i in range(count)])
    assert shown[-1:] == last
    assert shown[:SHOWN_FAULTS] == tuple(f"f{i}" for i in range(min(count, SHOWN_FAULTS)))


@pytest.mark.parametrize(("error", "is_shown"), [(OSError("no such host"), False), (KeyError("weights"), True)])
def test_the_error_of_a_library_is_kept_and_shown_where_its_place_says_more_than_its_message(error, is_shown):
    with pytest.raises(ModelError) as found, LibraryErrors(ModelError, "Cannot load it"):
        raise error
    assert found.value.__context__ is error
    assert found.value.__cause__ is (error if is_shown else None)
    assert found.value.__suppress_context__
