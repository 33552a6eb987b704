"""One dot a prompt: filled where the reply gave in, and a link where the page has the example."""

import re

from opct.reports.compare import compare
from opct.reports.dots import prompt_dots
from opct.reports.rollout_browser import build_browser
from tests.unit.reports.small import run, sample


def test_the_first_hundred_prompts_have_a_dot_an_arm_that_leads_to_its_example(comparison_of_three):
    """Counted again from the samples."""
    items = build_browser(comparison_of_three.arms).data["items"]
    dots = prompt_dots(comparison_of_three, {item["id"]: i for i, item in enumerate(items)})
    assert "the first 100 of 360 prompts, by id" in dots.caption
    assert [arm.name for arm, *_ in dots.rows] == ["Base", "SFT", "OPCT"]
    for n, (arm, text, drawn) in enumerate(dots.rows):
        own = sorted((one for one in arm.runs[0].replies if one.group == "held_out"), key=lambda one: one.id)[:100]
        values = [one.values["is_suggested"] for one in own]
        assert text.startswith(f"{values.count(1.0)} of {100 - values.count(None)} give in")
        assert len(re.findall("<[ia]", drawn)) == 100
        assert drawn.count('class="f"') == values.count(1.0)
        links = re.findall(r'<a href="#e(\d+)"( class="f")?>', drawn)
        assert len(links) > 10
        assert all((items[int(i)]["replies"][n]["verdict"] == "suggested") == bool(filled) for i, filled in links)
    assert sum(len(drawn) for *_, drawn in dots.rows) < 12_000


def test_an_unscored_prompt_is_in_no_share_and_without_an_example_no_dot_is_a_link():
    own = [sample("a", suggested=1.0), sample("b"), sample("c", suggested=None)]
    [(_, text, drawn)] = prompt_dots(compare([run("base", own)]), {}).rows
    assert text == "1 of 2 give in, 1 unscored"
    assert drawn == '<i class="f"></i><i></i><i class="u"></i>'


def test_prompts_that_are_not_compared_have_no_dots():
    """Of the six prompts, those of the base that SFT was asked too; OPCT was asked three of them and three others."""
    starts = {"base": 0, "sft": 0, "opct": 3}
    runs = [run(label, [sample(f"q{i}") for i in range(start, start + 6)]) for label, start in starts.items()]
    assert prompt_dots(compare([runs[0], runs[2]]), {}) is None
    assert [arm.name for arm, *_ in prompt_dots(compare(runs), {}).rows] == ["Base", "SFT"]
