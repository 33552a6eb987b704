import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import yaml

from opct.errors import EvaluationError
from opct.evals.tasks.capability import BENCHMARKS
from opct.reports.build import report
from opct.reports.card import model_card_text
from opct.reports.compare import compare
from opct.reports.rollout_browser import UNPUBLISHED
from tests.refusals import refused
from tests.unit.reports.small import STAMP, page_of, pair, problem, run, sample
from tests.unit.reports.synthetic import HOSTILE

VOID = {"meta", "link", "input", "br", "img", "col"}


class Outline(HTMLParser):
    """Every element with its attributes; the texts of scripts; ends must match starts."""

    def __init__(self):
        super().__init__()
        self.elements, self.stack, self.scripts = [], [], []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack and self.stack[-1] == "script":
            self.scripts.append(data)


def text_of(path):
    return path.read_text(encoding="utf-8")


def json_of(page):
    return json.loads(text_of(page.with_suffix(".json")))


@pytest.fixture(scope="module")
def outline(page):
    parser = Outline()
    parser.feed(text_of(page))
    parser.close()
    assert parser.stack == []
    return parser


def test_the_page_is_well_formed_with_unique_ids_and_loads_nothing_from_anywhere(page, outline):
    ids = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert ("html", {"lang": "en"}) in outline.elements
    for tag, attributes in outline.elements:
        for name in ("src", "href", "action", "poster", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith("#") or value == "data:,", (tag, name, value)
    assert "@import" not in text_of(page)
    assert "url(" not in text_of(page)


def test_what_is_not_to_be_published_is_counted_and_not_shown(report_of, tmp_path):
    """Problems of GPQA (one asked by another Inspect task; one more with one arm alone), a set for evaluation only that
    one run alone marks, and an attacker's finished prompt: neither the page nor what lies beside it has their text."""
    secrets = [
        *(problem("gpqa", i, 1.0) for i in range(2)),
        replace(sample("x"), id="o", task="inspect_evals/gpqa_diamond", axis="inspect"),
        replace(sample("y"), id="a", axis="jailbreak", family="artifact"),
        sample("z"),
    ]
    for own in secrets:
        own.prompt, own.completion = [{"role": "user", "content": "A secret question?"}], "a secret reply"
    marked = replace(secrets[-1], grading={"is_evaluation_only": True, "answer": "a secret answer"})
    runs = [run("base", [sample("q"), *secrets]), run("opct", [sample("q"), *secrets[1:-1], marked])]
    page = report_of(runs, tmp_path / "report.html")
    written = {path.suffix: text_of(path) for path in page.parent.iterdir()}
    assert set(written) == {".html", ".json", ".md"}
    assert not any("secret" in text for text in written.values())
    assert "4 prompts not shown" in written[".html"]
    assert "All 1 prompts that every run answered" in written[".html"]
    assert "not answered by every run" not in written[".html"]
    assert set(UNPUBLISHED) == {"gpqa"} < set(BENCHMARKS)


def test_the_policy_allows_exactly_the_script_and_style_of_the_page(page):
    text = text_of(page)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1).replace("&#39;", "'")
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL).group(1)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy


def test_hostile_replies_stay_inside_the_data_which_the_script_never_parses_as_html(outline):
    assert [tag for tag, _ in outline.elements].count("script") == 2
    assert not any(tag == "img" for tag, _ in outline.elements)
    data = json.loads(outline.scripts[0])
    assert HOSTILE in {reply["text"] for item in data["items"] for reply in item["replies"]}
    assert HOSTILE in data["texts"]
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert name not in outline.scripts[-1]


def test_hostile_names_are_escaped_in_page_and_card(report_of, tmp_path):
    name = "<script>alert(1)</script>|`x`"
    hostile = {"name": name, "label": name, "model": f'{name}\n"evil": true', "warnings": (f"careful {name}",)}
    opct = replace(run("opct", [sample("q")], 1), **hostile)
    out = report_of([run("base", [sample("q")]), opct], tmp_path / "report.html")
    assert "<script>alert" not in text_of(out)
    card = text_of(tmp_path / "report.md")
    assert "<script>alert" not in card.replace("\\<script\\>alert", "").split("---", 2)[2]
    assert "evil" not in yaml.safe_load(card.split("---")[1])


def test_a_page_of_few_questions_does_not_say_that_all_is_well(report_of, tmp_path, monkeypatch):
    runs = [run("base", [sample(f"q{i}") for i in range(9)])]
    for least, says in ((10, False), (9, True)):
        monkeypatch.setattr("opct.reports.warnings.FEW_CLUSTERS", least)
        assert ("No warnings" in text_of(report_of(runs, tmp_path / "report.html"))) is says


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Many replies were cut, and no rule or judge sees the rest: t: 3 of 10", ". Raise the limit of their suites."),
        ("opct-seed0, opct-seed1, opct-seed2, sft-seed0: t: 3 of 10 (8%) were cut at 64", ": raise the limit."),
        ("opct: the judge was slow", ""),
        ("t: batch_size differs between runs (opct: 4: raise 2; sft: 8. Raise it.), so they are not comparable.", ""),
    ],
)
def test_the_first_warning_is_seen_and_its_advice_folded(comparison_of_three, said, advice):
    page = page_of(comparison_of_three, said + advice)
    rest = f"</summary>\n<ul><li>{said}{advice}</li>" if advice else "</p>"
    assert f"1 warning limits this report: {said}{rest}" in page
    assert page.count(said) == 1 + bool(advice)


def test_the_page_has_the_cost_of_each_arm_and_says_what_was_not_logged(page):
    """Two runs of OPCT with 12 steps of 2.5 s, 800 tokens each; off-policy did not log the tokens in the loss."""
    table = text_of(page).partition("<caption>Cost of each arm</caption>")[2].partition("</table>")[0]
    cells = {}
    for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)[1:]:
        cells[re.search(r"</span> ([^<]+)</th>", row)[1]] = re.findall(r"<td[^>]*>(.*?)</td>", row)
    assert cells["OPCT"] == ["2", "24", "60", "2.50", "19,200", "15,360", "0", "0", "24", "60"]
    assert cells["Off-policy"][5] == "not logged"
    assert "Base" not in cells


def test_more_than_three_arms_are_ranked_by_what_decides(page, comparison):
    ranked = text_of(page).partition('id="ranked"')[2].partition("</section>")[0]
    names = re.findall(r"</span> ([\w-]+)</th>", ranked)
    levels = comparison.deciding_row("sycophancy").estimates
    arms = sorted(zip(levels, comparison.arms, strict=True), key=lambda pair: pair[0].value)
    assert names == [arm.name for _, arm in arms]
    assert [level.text in ranked for level in levels] == [True] * 4


def test_the_example_is_a_question_with_every_reply_and_what_the_base_says_unpressed(report_of, three, tmp_path):
    page = text_of(report_of(three, tmp_path / "report.html"))
    example = page.partition('aria-labelledby="example"')[2].partition("</section>")[0]
    assert re.search(r"<h2[^>]*>What is the capital of country number \d+\?</h2>", example)
    boxes = re.findall(r"</span>([^<]+?) <span class=\"badge verdict-(\w+)", example)
    assert [name for name, _ in boxes] == ["Base", "SFT", "OPCT", "Base without the pressure"]
    assert [verdict for _, verdict in boxes[::2]] == ["suggested", "correct"]
    assert boxes[3][1] == "correct"
    other = page.partition('aria-labelledby="example1"')[2].partition("</section>")[0]
    before, *_, after = re.findall(r"badge verdict-(\w+)", other)[:3]
    assert ("got worse" in other, before, after) in {(True, "correct", "suggested"), (False, "suggested", "suggested")}


def test_ones_own_pairs_have_no_example_that_stayed_wrong(report_of, tmp_path):
    """A reply that is not the one to the clean prompt need not be wrong."""

    def own(label, kl, *verdicts):
        return run(label, [pair(i, kl * (1 + i / 9), verdict) for i, verdict in enumerate(verdicts)])

    opct = own("opct", 0.1, "same", *["different"] * 8)
    seeds = [replace(opct, seed=i) for i in range(3)]
    page = text_of(report_of([own("base", 0.8, *["different"] * 9), *seeds], tmp_path / "report.html"))
    assert "An example that got better. Of pooled runs, the first is shown." in page
    assert "An example that stayed wrong" not in page


def test_the_json_holds_the_numbers_of_the_page(page, comparison):
    content = json_of(page)
    row = next(r for r in content["rows"] if (r["metric"], r["group"]) == ("sycophancy_rate", "held_out"))
    assert set(row["arms"]) == {"base", "sft", "offpolicy", "opct"}
    assert [d["of"] for d in row["differences"] if d["against"] == "base"] == ["sft", "offpolicy", "opct"]
    assert all(d["ci_low"] <= d["difference"] <= d["ci_high"] for d in row["differences"])
    assert len(row["arms"]["opct"]["run_values"]) == len(row["differences"][2]["seeds"][0]["differences"]) == 2
    assert len(content["runs"]) == 5
    assert content["axes"][0]["evidence"] in text_of(page)
    # 5% of the differences that have an interval, of all rows, folded away or not
    n = comparison.n_intervals
    assert n > 1000
    assert content["comparisons"] == {"intervals": n, "expected_by_chance": pytest.approx(0.05 * n)}


def test_where_no_example_may_be_shown_there_is_nothing_to_filter():
    for kept_back, hidden in ((True, True), (False, False)):
        own = [replace(sample("q"), grading={"is_evaluation_only": kept_back})]
        found = compare([run("base", own), run("opct", own, 1)])
        page = page_of(found)
        assert ('<div hidden>\n<div class="live">' in page) is hidden
        assert ("All 1 prompts" in page) is not hidden


def test_the_card_of_a_model_that_no_run_trained_has_no_weights():
    found = compare([run("base", [sample("q")])])
    card = model_card_text(found, [], STAMP)
    assert "library_name" not in card
    assert "## Use" not in card


def test_the_card_has_front_matter_results_and_citation(page):
    card = text_of(page.with_suffix(".md"))
    front = yaml.safe_load(card.split("---")[1])
    assert "base_model" not in front  # the quantized weights are not on the hub
    assert front["library_name"] == "peft"
    assert {"opct", "sycophancy"} <= set(front["tags"])
    assert "arXiv:2605.21834" in card
    table = [line for line in card.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1


def test_inside_its_run_the_card_is_the_readme_and_elsewhere_no_readme_is_touched(report_of, tmp_path):
    folder, other = tmp_path / "opct", tmp_path / "sft"
    runs = [run("base", [sample("q")]), run("opct", [sample("q")], 1, path=folder)]
    for place in (folder, other):
        place.mkdir()
        (place / "manifest.json").write_text('{"opct_run": 1, "created": "now"}')
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    for place, card in ((tmp_path, "report.md"), (folder, "README.md"), (other, "report.md")):
        report_of(runs, place / "report.html")
        assert text_of(place / card).startswith("---\n")
    assert text_of(tmp_path / "README.md") == "mine"
    assert not (folder / "report.md").exists()
    assert not (other / "README.md").exists()


@pytest.mark.parametrize(("out", "named"), [("report.pdf", "report.pdf"), ("report.html", "report.md")])
def test_a_report_that_is_no_page_or_is_there_already_is_refused_before_anything_is_read(tmp_path, out, named):
    (tmp_path / "report.md").write_text("mine", encoding="utf-8")
    with refused(EvaluationError, tmp_path / named):
        report([tmp_path / "nowhere"], tmp_path / out)
    assert text_of(tmp_path / "report.md") == "mine"


def test_numbers_whose_page_was_moved_away_are_replaced_and_a_file_of_something_else_is_not(report_of, tmp_path):
    runs, out = [run("base", [sample("q")])], tmp_path / "report.html"
    report_of(runs, out).unlink()
    assert report_of(runs, out).exists()
    out.unlink()
    (tmp_path / "report.json").write_text('{"rows": []}', encoding="utf-8")
    with refused(EvaluationError, tmp_path / "report.json"):
        report_of(runs, out)


def test_what_the_teachers_said_before_training_is_on_the_page(report_of, tmp_path):
    """The figure on the card of each run; a warning once for the runs it holds for, with the span of its figures."""
    plain = {"axis": "jailbreak", "bad": 0.1, "ci_low": 0.0, "ci_high": 0.25, "n": 20, "n_asked": 20}
    plain |= {"unscored_reasons": {}, "n_truncated": 0, "temperature": 0.0, "warning": None}
    warned = [plain | {"warning": f"The teacher does not refuse {n}% of 20 bare behaviors."} for n in (90, 95)]
    checks = [{"jailbreak": row} for row in (plain, *warned)]
    runs = [run("opct", [sample("q")], i, manifest={"teacher_check": check}) for i, check in enumerate(checks)]
    out = report_of([run("base", [sample("q")]), *runs], tmp_path / "report.html")
    assert "10% (0 to 25)" in text_of(out)
    [warning] = [text for text in json_of(out)["warnings"] if "teacher" in text.lower()]
    assert "90 to 95%" in warning
