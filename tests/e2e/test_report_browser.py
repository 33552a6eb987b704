"""The report in a real browser, opened from disk: it filters, loads nothing else and runs no text of a model."""

import csv
import re
import shutil
from xml.etree import ElementTree

import pytest

from opct.reports.build import report
from tests.unit.reports.synthetic import write_rollouts, write_run

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect  # waits: the page answers an event when the browser gets to it, not when `click` returns

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

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
    root = tmp_path_factory.mktemp("runs")
    arms = (("base", 0), ("sft", 1), ("opct", 1))
    runs = [write_run(root, *arm, questions=16) for arm in arms]
    write_rollouts(runs[-1], "validation", {0: 2.0, 12: 0.02})
    return report(runs, root / "report.html")


@pytest.fixture(scope="module")
def axes_file(tmp_path_factory):
    """Every axis, two arms."""
    root = tmp_path_factory.mktemp("axes")
    runs = [write_run(root, label, questions=6, all_axes=True) for label in ("base", "opct")]
    return report(runs, root / "report.html")


@pytest.fixture(scope="module")
def chromium():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def watch(chromium, page_file):
    """Opens a page; until the end it may load nothing, complain of nothing and ask nothing."""
    contexts, faults = [], []

    def dismiss(dialog):
        faults.append(dialog.message)
        dialog.dismiss()

    def start(path=page_file, *, width=1280, **options):
        contexts.append(chromium.new_context(viewport={"width": width, "height": 900}, **options))
        page, url = contexts[-1].new_page(), path.as_uri()
        page.on("console", lambda m: faults.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda r: None if r.url == url or r.url.startswith("data:") else faults.append(r.url))
        page.on("dialog", dismiss)
        page.goto(url)
        return page

    yield start
    for context in contexts:
        context.close()
    assert faults == []


def rollouts(page):
    return page.locator("#rollouts-list > article")


def colored(page):
    """A colored token with lists, not the first of its reply."""
    return page.locator("[aria-label*=likeliest] :not(.k0):not(:first-child)").filter(has_text=re.compile(r"\S")).first


def unfold(page):
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")


def test_the_rollouts_can_be_filtered_and_searched(watch):
    page = watch()
    expect(rollouts(page)).to_have_count(3)
    page.get_by_role("button", name="Show 10 more").click()
    expect(rollouts(page)).to_have_count(13)

    page.get_by_label("Family", exact=True).select_option(value="family|sycophancy_short:held_out|majority")
    expect(rollouts(page)).to_have_count(3)
    expect(rollouts(page).filter(has_not_text="majority")).to_have_count(0)

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


def test_a_ribbon_of_the_flow_filters_and_a_second_press_shows_all(watch):
    page = watch()
    ribbon = page.get_by_role("button", name="suggested \u2192 correct")
    n = int(re.search(r"\((\d+)\)", ribbon.get_attribute("aria-label"))[1])
    status = page.locator("#rollouts-status")
    before = status.inner_text()
    ribbon.focus()
    page.keyboard.press("Enter")
    expect(status).to_contain_text(f"of {n} matching")
    expect(ribbon).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_label("Family", exact=True)).to_have_value("split|sycophancy_short:held_out")
    page.keyboard.press(" ")
    expect(status).to_have_text(before)


def test_on_a_phone_the_filters_wait_behind_a_word_and_the_first_link_leads_to_the_cards(watch):
    page = watch(width=390)
    search = page.get_by_label("Search text")
    expect(search).to_be_hidden()
    page.locator("summary", has_text="Filter").click()
    expect(search).to_be_visible()
    page.locator(".skip").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".tile").first).to_be_in_viewport()


def test_a_page_of_one_arm_draws_no_flow(watch, tmp_path):
    page = watch(report([write_run(tmp_path, "base", questions=6)], tmp_path / "report.html"))
    expect(rollouts(page).first).to_be_visible()
    expect(page.locator("#filter-flow")).to_be_empty()


def test_a_hostile_reply_is_shown_and_never_run(watch):
    page = watch()
    page.get_by_label("Search text").fill("<script>alert('pwned')</script>")
    expect(rollouts(page).first).to_contain_text("</script><script>alert('pwned')</script><img src=x onerror=alert(1)>")
    page.wait_for_timeout(200)
    assert page.locator("#rollouts-list script, #rollouts-list img, #rollouts-list b").count() == 0


def test_the_keyboard_reads_the_kl_of_each_token_and_the_likeliest_ones(watch):
    page = watch()
    page.locator(".tokens").first.focus()
    readout = page.locator(".readout").first
    for key, shown in ((None, "^token 1 of "), ("ArrowRight", "^token 2 of .* nats"), ("Home", "^token 1 of ")):
        if key is not None:
            page.keyboard.press(key)
        expect(readout).to_have_text(re.compile(shown))
    expect(page.locator(".tokens .token:last-child", has_text="<|im_end|>")).to_have_count(0)
    expect(page.locator(".tokens .token:last-child").first).to_have_text("(end)")
    token = colored(page)
    token.hover()
    lists = token.locator("xpath=ancestor::section").locator(".likeliest > div")
    expect(lists).to_contain_text(["this prompt", "base, clean prompt"])
    expect(lists.locator("li")).to_contain_text(["60.0%", '"no"12.5%', '"yes"75.0%'])


def test_a_slider_shows_the_reply_of_one_training_step_beside_the_bases_clean_one(watch):
    page = watch()
    unfold(page)
    shown = page.locator(".over-time .reply:visible h3")
    expect(shown).to_contain_text(["Step 0", "Base without the pressure"])
    page.get_by_label("Training step 0 of 12").press("End")
    expect(shown).to_contain_text(["Step 12", "Base without the pressure"])


def test_no_width_scrolls_sideways_and_no_label_lies_on_another(watch, axes_file):
    """No text leaves its chart, in a narrow and in a wide window, with every part unfolded."""
    page = watch(axes_file)
    assert page.locator("svg.chart").count() > 9
    unfold(page)
    for width in (1280, 320):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(OVERLAPS) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_tables_and_figures_are_there_without_javascript(watch):
    page = watch(java_script_enabled=False)
    assert page.locator("svg.chart").count() == 9
    assert page.locator("svg.chart").first.bounding_box()["height"] > 100
    page.locator("summary", has_text="For the paper").click()
    page.locator("details.axis > summary").first.click()
    expect(page.locator("table.results").first).to_be_visible()
    page.locator("summary", has_text="Replies to the same").click()
    expect(page.locator(".over-time .reply:visible")).to_have_count(3)
    expect(page.locator(".waiting")).to_be_visible()
    expect(page.locator(".filters")).to_be_hidden()


def test_a_screen_reader_finds_no_fault_and_text_is_readable_in_both_schemes(watch):
    """axe-core's rules of contrast in the dark, then all of them with everything unfolded."""
    from axe_playwright_python import sync_playwright as axe

    page = watch()
    more = "table tr:nth-child(n+4), #rollouts-list > article:nth-child(n+2), .tokens span.k0:nth-child(n+9)"
    page.evaluate(f"document.querySelectorAll('{more}').forEach((node) => node.remove())")  # a few of each are enough
    colored(page).hover()
    expect(page.locator(".share").first).to_be_visible()
    for scheme, options in (("dark", {"runOnly": ["color-contrast"]}), ("light", None)):
        page.emulate_media(color_scheme=scheme)
        if scheme == "light":
            unfold(page)
        result = axe.Axe().run(page, options=options)
        assert result.violations_count == 0, result.generate_report()


def test_figures_and_tables_are_saved(watch, tmp_path):
    """A chart as a file that has its legend and style, and as pixels; a table as CSV and LaTeX."""
    page = watch()
    unfold(page)
    table = page.get_by_role("region", name="Cost of each arm").locator("xpath=following-sibling::p[1]")

    def saved(place, name: str) -> bytes:
        with page.expect_download() as download:
            place.get_by_role("button", name=re.compile(f"^{name}: ")).first.click()
        download.value.save_as(tmp_path / name)
        return (tmp_path / name).read_bytes()

    chart = saved(page, "SVG")
    assert {"Base", "SFT", "OPCT"} <= set(ElementTree.fromstring(chart).itertext())
    assert b"--arm-0" in chart
    assert saved(page, "PNG").startswith(b"\x89PNG")
    rows = list(csv.reader(saved(table, "CSV").decode().splitlines()))
    assert [row[0] for row in rows] == ["Arm", "SFT", "OPCT"]
    assert len({len(row) for row in rows}) == 1
    assert saved(table, "LaTeX").count(b"\\\\\n") == len(rows)
    for text, kept in (("=1+1", "'=1+1"), ("+1+1majority", "'+1+1majority"), ("-2.5", "-2.5"), ("+2 [1 to 3]",) * 2):
        page.evaluate("text => { document.querySelector('.costs td').textContent = text }", text)
        assert kept in {cell for row in csv.reader(saved(table, "CSV").decode().splitlines()) for cell in row}
    page.evaluate("document.querySelector('.costs td').textContent = '\u22123_5%-'")
    assert rb"$-$3\_5\%-" in saved(table, "LaTeX")


def test_the_keyboard_sorts_a_table_up_and_down(watch):
    page = watch()
    unfold(page)
    table = page.get_by_role("region", name="Sycophancy: headline results")
    head = table.get_by_role("columnheader", name="Base", exact=True)
    head.get_by_role("button").focus()
    for direction in ("ascending", "descending"):
        page.keyboard.press("Enter")
        expect(head).to_have_attribute("aria-sort", direction)
        section = table.locator("tbody").first
        values = [float(text.rstrip("%")) for text in section.locator('[data-label="Base"] .level').all_inner_texts()]
        assert values == sorted(values, reverse=direction == "descending")
        assert len(set(values)) > 2
        expect(section.locator("tr").first).to_contain_text("Held-out families")
    table.get_by_role("columnheader", name="Metric").get_by_role("button").click()
    for section in table.locator("tbody").all():
        expect(section.locator("tr").first.locator("th")).to_have_attribute("scope", "rowgroup")
    names = table.locator("tbody").first.locator('th[scope="row"]').all_inner_texts()
    assert names == sorted(names)
    assert len(names) > 2


def test_the_page_prints_on_few_sheets_with_whole_words(watch):
    page = watch(width=688)
    assert len(re.findall(rb"/Type */Page\b", page.pdf(format="A4"))) <= 6
    page.emulate_media(media="print")
    names = page.locator(".tile th")
    assert names.count() >= 12
    assert names.evaluate_all("all => all.every((one) => one.offsetHeight < 30)")


def test_a_link_leads_to_one_example_and_into_a_folded_part_and_print_hides_the_controls(watch):
    page = watch(width=794)
    page.locator("#rollouts-list h3 a").first.click()
    expect(rollouts(page)).to_have_count(1)
    dot = page.locator(".dots a").first
    dot.focus()
    page.keyboard.press("ArrowRight")
    expect(dot).to_have_attribute("tabindex", "-1")
    arm, named = page.locator(".dots a:focus").get_attribute("aria-label").split(": ", 1)
    assert arm.startswith("Base, ")
    page.keyboard.press("Enter")
    expect(rollouts(page)).to_have_count(1)
    expect(rollouts(page).locator("h3")).to_contain_text(named)
    page.locator("nav a", has_text="Sycophancy").click()
    expect(page.locator("table.results").first).to_be_visible()
    page.emulate_media(media="print")
    expect(page.locator(".filters")).to_be_hidden()
    expect(page.locator("svg.chart").first).to_be_visible()
    settings = page.locator("#settings ~ details.card")
    assert settings.count() > 1
    for card in settings.all():
        expect(card).to_be_visible()
