"""The report in a real browser, opened from disk: it filters, loads nothing else and runs no text of a model."""

import csv
import re
import shutil
from xml.etree import ElementTree

import pytest

from tests.unit.reports.synthetic import write_run
from tests.unit.reports.synthetic_axes import write_axes_run

# Waits for what it expects: the page answers an event when the browser gets to it, not when `click` returns.
expect = pytest.importorskip("playwright.sync_api").expect

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

CONTRAST = """() => {
  const channel = (v) => v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const luminance = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => channel(Number(v)));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (/^rgb\\(/.test(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const texts = 'p, h1, h2, h3, h4, th, td, dt, dd, li, label, summary, .small, .badge, .better, .worse, .text, .role';
  const bad = [];
  for (const node of document.querySelectorAll(texts)) {
    if (!node.textContent.trim() || !node.offsetParent) continue;
    const [dark, light] = [luminance(getComputedStyle(node).color), luminance(behind(node))].sort((a, b) => a - b);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < 4.5) bad.push(node.tagName + '.' + node.className + ' ' + ratio.toFixed(2));
  }
  return [...new Set(bad)];
}"""

OVERLAPS = """() => {
  const found = [];
  for (const chart of document.querySelectorAll('svg.chart')) {
    const texts = [...chart.querySelectorAll('text')].map((node) => [node.textContent, node.getBoundingClientRect()]);
    const frame = chart.getBoundingClientRect();
    for (const [text, box] of texts) {
      if (box.right > frame.right + 3 || box.left < frame.left - 3) found.push('outside: ' + text);
    }
    for (let i = 0; i < texts.length; i++) for (let j = 0; j < i; j++) {
      const [a, b] = [texts[i][1], texts[j][1]];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 0.5 && high > 0.35 * Math.min(a.height, b.height)) found.push(texts[i][0] + ' | ' + texts[j][0]);
    }
  }
  return found;
}"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    from opct.reports.build import report

    root = tmp_path_factory.mktemp("runs")
    arms = (("base", 0), ("sft", 1), ("opct", 1))
    return report([write_run(root, *arm, questions=16) for arm in arms], root / "report.html")


@pytest.fixture(scope="module")
def axes_file(tmp_path_factory):
    """Every axis, three arms."""
    from opct.reports.build import report

    root = tmp_path_factory.mktemp("axes")
    return report(
        [write_axes_run(root, label, questions=12) for label in ("base", "sft", "opct")], root / "report.html"
    )


@pytest.fixture(scope="module")
def chromium():
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


class Watched:
    """A page with everything it must not do on record."""

    def __init__(self, browser, path, *, width=1280, height=900, **options):
        self.context = browser.new_context(viewport={"width": width, "height": height}, **options)
        self.page = self.context.new_page()
        self.faults = []
        url = path.as_uri()
        self.page.on(
            "console",
            lambda m: self.faults.append(f"console {m.type}: {m.text}") if m.type in ("error", "warning") else None,
        )
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on(
            "request",
            lambda r: (
                self.faults.append(f"request: {r.url}") if r.url != url and not r.url.startswith("data:") else None
            ),
        )
        self.page.on("dialog", self._dialog)
        self.page.goto(url)

    def _dialog(self, dialog):
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


@pytest.fixture
def watch(chromium, page_file):
    opened = []

    def start(**options):
        opened.append(Watched(chromium, page_file, **options))
        return opened[-1]

    yield start
    for watched in opened:
        watched.context.close()


def rollouts(page):
    return page.locator("#rollouts-list > article")


def test_the_rollouts_can_be_filtered_and_searched(watch):
    watched = watch()
    page = watched.page
    expect(rollouts(page)).to_have_count(3)
    page.get_by_role("button", name="Show 3 more").click()
    expect(rollouts(page)).to_have_count(6)

    page.get_by_label("Family", exact=True).select_option(value="family|sycophancy_short:held_out|majority")
    expect(rollouts(page)).to_have_count(3)
    expect(page.locator("#rollouts-list h3").filter(has_not_text="majority")).to_have_count(0)

    page.get_by_label("Verdict change").select_option(value="2|suggested|correct")
    for card in rollouts(page).all():
        badges = card.locator(".reply .badge")
        expect(badges.nth(0)).to_contain_text("suggested")
        expect(badges.nth(2)).to_contain_text("correct")

    page.get_by_role("button", name="Reset filters").click()
    page.get_by_label("Search text").fill("country number 6?")
    expect(rollouts(page).filter(has_not_text="country number 6?")).to_have_count(0)
    expect(rollouts(page).first).to_be_visible()
    page.get_by_label("Search text").fill("no reply holds this")
    expect(rollouts(page)).to_have_count(0)
    assert watched.faults == []


def test_a_hostile_reply_is_shown_and_never_run(watch):
    watched = watch()
    page = watched.page
    page.get_by_label("Search text").fill("<script>alert('pwned')</script>")
    expect(rollouts(page).first).to_contain_text("</script><script>alert('pwned')</script><img src=x onerror=alert(1)>")
    page.wait_for_timeout(200)
    assert page.locator("#rollouts-list script, #rollouts-list img, #rollouts-list b").count() == 0
    assert watched.faults == []


def test_the_keyboard_reads_the_kl_of_each_token(watch):
    watched = watch()
    page = watched.page
    box = page.locator(".tokens").first
    box.focus()
    readout = page.locator(".readout").first
    expect(readout).to_have_text(re.compile("^token 1 of "))
    page.keyboard.press("ArrowRight")
    expect(readout).to_have_text(re.compile("^token 2 of .* nats"))
    page.keyboard.press("Home")
    expect(readout).to_have_text(re.compile("^token 1 of "))
    assert watched.faults == []


def test_no_width_scrolls_sideways_and_no_label_lies_on_another(chromium, axes_file):
    """No text leaves its chart, in a narrow and in a wide window, with every part unfolded."""
    with Watched(chromium, axes_file) as watched:
        page = watched.page
        assert page.locator("svg.chart").count() > 12
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        for width in (1280, 320):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(OVERLAPS) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert watched.faults == []


def test_tables_and_figures_are_there_without_javascript(watch):
    watched = watch(java_script_enabled=False)
    page = watched.page
    assert page.locator("svg.chart").count() == 8
    assert page.locator("svg.chart").first.bounding_box()["height"] > 100
    page.locator("details.axis > summary").first.click()
    expect(page.locator("table.results").first).to_be_visible()
    expect(page.locator(".waiting")).to_be_visible()
    expect(page.locator(".filters")).to_be_hidden()
    assert watched.faults == []


def test_a_screen_reader_finds_no_fault_and_text_is_readable_in_both_schemes(watch):
    """axe-core's rules, with everything unfolded; WCAG AA: at least 4.5 to 1 between a text and what is behind it."""
    from axe_playwright_python import sync_playwright as axe

    page = watch().page
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(CONTRAST) == []
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_figures_and_tables_are_saved(chromium, page_file, tmp_path):
    """A chart as a file that has its legend and style, and as pixels; a table as CSV and LaTeX."""
    with Watched(chromium, page_file) as watched:
        page, made = watched.page, {}
        page.locator("details").evaluate_all("all => all.forEach((d) => { d.open = true; })")
        table = page.get_by_role("region", name="Cost of each arm").locator("xpath=following-sibling::p[1]")
        for name, place in {"SVG": page, "PNG": page, "CSV": table, "LaTeX": table}.items():
            with page.expect_download() as download:
                place.get_by_role("button", name=name, exact=True).first.click()
            download.value.save_as(tmp_path / name)
            made[name] = (tmp_path / name).read_bytes()
        assert {"Base", "SFT", "OPCT"} <= set(ElementTree.fromstring(made["SVG"]).itertext())
        assert b"--arm-0" in made["SVG"]
        assert made["PNG"].startswith(b"\x89PNG")
        rows = list(csv.reader(made["CSV"].decode().splitlines()))
        assert [row[0] for row in rows] == ["Arm", "SFT", "OPCT"]
        assert len({len(row) for row in rows}) == 1
        assert made["LaTeX"].count(b"\\\\\n") == len(rows)
        page.evaluate("document.querySelector('.costs td').textContent = '\u22123_5%-'")
        with page.expect_download() as download:
            table.get_by_role("button", name="LaTeX", exact=True).click()
        download.value.save_as(tmp_path / "escaped")
        assert rb"$-$3\_5\%-" in (tmp_path / "escaped").read_bytes()
        assert watched.faults == []


def test_a_link_leads_to_one_example_and_into_a_folded_part_and_print_hides_the_controls(watch):
    page = watch(width=794).page
    page.locator("#rollouts-list h3 a").first.click()
    expect(rollouts(page)).to_have_count(1)
    page.locator("nav a", has_text="Sycophancy").click()
    expect(page.locator("table.results").first).to_be_visible()
    page.emulate_media(media="print")
    expect(page.locator(".filters")).to_be_hidden()
    expect(page.locator("svg.chart").first).to_be_visible()
    settings = page.locator("#settings ~ details.card")
    assert settings.count() > 1
    for card in settings.all():
        expect(card).to_be_visible()
