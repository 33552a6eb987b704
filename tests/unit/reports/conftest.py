"""Runs that the tests of this folder share; they are made once a session, and no test changes them."""

import pytest

from opct.reports import report
from opct.reports.compare import compare
from opct.reports.load import load_runs
from tests.unit.reports.synthetic import write_three
from tests.unit.reports.synthetic_axes import write_axes, write_axes_run


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """All axes: base, SFT and off-policy with one seed, OPCT with two; offpolicy logged no tokens in the loss."""
    root = tmp_path_factory.mktemp("axes")
    return [*write_axes(root, questions=24), write_axes_run(root, "opct", 1, questions=24)]


@pytest.fixture(scope="session")
def runs(folders):
    return load_runs(folders)


@pytest.fixture(scope="session")
def comparison(runs):
    return compare(runs)


@pytest.fixture(scope="session")
def page(folders):
    return report(folders, folders[0].parent / "report.html")


@pytest.fixture(scope="session")
def three(tmp_path_factory):
    """Base, SFT and OPCT on sycophancy and benign requests, with 120 questions."""
    return load_runs(write_three(tmp_path_factory.mktemp("three")))
