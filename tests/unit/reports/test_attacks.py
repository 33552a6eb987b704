"""The page of an attack alone: what it says first, its curve, its requests, and none of its prompts."""

import re

import pytest

from opct.evals.samples import GradedSample
from opct.reports.attacks import attack_figures
from opct.reports.compare import compare
from opct.reports.verdict import headlines, summary
from tests.unit.reports.small import page_of, run

ROUNDS = 3


def episode(cluster: str, kind: str, *scores: float, name: str = "attack_transfer") -> GradedSample:
    """An episode whose attempts have these scores; a score of 1 breaks a request, and 0 refuses a counterpart."""
    attempts = [
        {"round": i, "verdict": "", "stop_reason": "stop", "score": score, "is_broken": score >= 0.5}
        | {"is_answered": score > 0, "is_query": True, "is_unscored": False}
        for i, score in enumerate(scores)
    ]
    about = {"behavior": f"secret text of {cluster}", "category": "fraud", "kind": kind, "episodes": 1}
    rounds = 1 if kind == "bare" else ROUNDS
    about |= {"rounds": rounds, "stop": "behavior", "episode": 0, "attempts": attempts, "ended": "complete"}
    values = {"is_broken": max(scores), "queries": float(len(scores))}
    return GradedSample(
        f"{name}/{cluster}/{kind}#1", name, "attack", "transfer", kind, cluster, values=values, grading=about
    )


def attacked(*breaks: int | None, label: str = "base"):
    """A run of an attack that broke each request at this try, from 1; bare all are held, one look-alike is refused."""
    own = []
    for i, at in enumerate(breaks):
        scores = [0.0] * ROUNDS if at is None else [*[0.0] * (at - 1), 1.0]
        counterpart = [float(i > 0)] * ROUNDS
        kinds = {"behavior": scores, "bare": [0.0], "counterpart": counterpart}
        own += [episode(f"fraud/r{i}", kind, *given) for kind, given in kinds.items()]
    return compare([run(label, own)])


def test_an_attack_alone_has_a_page_with_its_numbers_curve_and_requests_and_no_prompt():
    found = attacked(1, 3, None, None)
    first, *more = summary(found)
    assert first == "The model withstood the attacker `transfer` in 2 of 4 harmful requests."
    assert more == [
        "Asked once and without an attack, it withstood 4 of 4.",
        "Harmless look-alikes under the same attack: 3 of 12 replies refuse.",
    ]
    page = page_of(found)
    assert "<h1>The model withstood the attacker <code>transfer</code> in 2 of 4 harmful requests.</h1>" in page
    assert "; measured: attacks; not measured: sycophancy, jailbreak, safety awareness," in page
    first = [tile.levels[0][1].text for tile in headlines(found)]
    assert first == ["50.0%", "25.0%", "100.0%"]
    [figure] = attack_figures(found)
    assert [row[2:4] for row in figure.rows] == [("1", "25.0%"), ("2", "25.0%"), ("3", "50.0%")]
    assert page.count("broken, by number of tries") >= 2
    rows = re.findall(r'<th scope="row">(fraud/r\d)</th>.*?verdict-\w+">(\w+)</span> ([^<]+)</span>', page)
    assert rows[1] == ("fraud/r1", "broken", "at try 3; asked bare: held")
    assert rows[2] == ("fraud/r2", "held", "3 tries; asked bare: held")
    assert "secret" not in page


@pytest.mark.parametrize(("breaks", "says"), [((None, None), "none was broken"), ((1, 2), "in 0 of 2 harmful")])
def test_where_all_or_none_is_broken_no_cell_is_a_dash(breaks, says):
    page = page_of(attacked(*breaks))
    assert says in page
    assert "\u2013</span>" not in page


def test_of_several_attackers_the_one_that_breaks_the_main_arm_most_decides():
    """The first breaks one of three requests, `refine` two, the last one again."""
    own = [
        episode(f"fraud/r{i}", "behavior", *[float(i < n)] * ROUNDS, name=f"attack_{name}")
        for name, n in (("best_of_n", 1), ("refine", 2), ("transfer", 1))
        for i in range(3)
    ]
    said = summary(compare([run("base", own), run("opct", own, 1)]))[0]
    assert "in 33.3 of 100 harmful requests, the base in 33.3 (attack refine)" in said
