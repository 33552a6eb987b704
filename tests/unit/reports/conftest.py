"""Runs that the tests of this folder share; they are made once a session, and no test changes them."""

import pytest

from opct.reports import build
from opct.reports.compare import compare
from tests.unit.reports.small import without_families
from tests.unit.reports.synthetic import make_axes, make_records, run_of

ARMS = (("base", 0), ("sft", 0), ("offpolicy", 0), ("opct", 0), ("opct", 1))


@pytest.fixture(scope="session")
def runs():
    """All axes: base, SFT and off-policy with one seed, OPCT with two; offpolicy logged no tokens in the loss."""
    return [run_of(*arm, make_axes(*arm, questions=16)) for arm in ARMS]


@pytest.fixture(scope="session")
def comparison(runs):
    return compare(runs)


@pytest.fixture(scope="session")
def page(runs, comparison, tmp_path_factory):
    """The report of `runs`, with its JSON and card beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "load_runs", lambda _: runs)
        patch.setattr("opct.reports.compare.compare", lambda *_: comparison)
        return build.report(["in memory"], tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def report_of(monkeypatch):
    """Writes the report of runs in memory."""

    def write(runs, out, **options):
        monkeypatch.setattr(build, "load_runs", lambda _: list(runs))
        return build.report(["in memory"], out, overwrite=True, **options)

    return write


@pytest.fixture(scope="session")
def three():
    """Base, SFT and OPCT on sycophancy and benign requests, with 120 questions."""
    arms = (("base", 0), ("sft", 1), ("opct", 1))
    return [without_families(run_of(*arm, make_records(*arm))) for arm in arms]


@pytest.fixture(scope="session")
def comparison_of_three(three):
    return compare(three)
