"""The site on a phone, in a real browser: nothing but wide tables scrolls sideways, and axe-core finds no fault."""

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.e2e.test_report_browser import ARGUMENTS, CHROMIUM

sync_api = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")
pytest.importorskip("material", reason="the site's theme is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")

WIDTH = 390
SCROLLED = """() => [...document.querySelectorAll('.md-typeset__scrollwrap')]
  .filter((box) => box.scrollWidth > box.clientWidth)
  .map((box) => {
    box.scrollLeft = 80;
    const cell = box.querySelector('tbody td').getBoundingClientRect(), edge = box.getBoundingClientRect().left;
    return [box.scrollLeft, cell.left - edge, box.tabIndex, cell.width];
  })"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", REPOSITORY / "mkdocs.yml", "-d", folder]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return folder


def test_pages_fit_a_phone_and_the_first_column_of_a_wide_table_stays(site):
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": WIDTH, "height": 800}, color_scheme=scheme)
            for name in ("index", "results/capability", "reference/settings"):
                page.goto((site / f"{name}.html").as_uri())
                page.wait_for_function("document.querySelectorAll('.md-typeset th:empty').length === 0")
                assert page.evaluate("document.documentElement.scrollWidth") == WIDTH, name
                found = page.evaluate(SCROLLED)
                assert (name != "index") == (len(found) > 0), name
                for scrolled, left, tab, width in found:
                    assert scrolled > 0 and -1 <= left < 20 and tab == 0 and width < WIDTH / 2, name  # noqa: PT018
                result = axe.Axe().run(page)
                assert result.violations_count == 0, result.generate_report()
        browser.close()
