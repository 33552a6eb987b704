"""What is embedded keeps the promises that pairs and graders build on."""

import re
from collections import Counter
from itertools import combinations

from opct.data.benign import builtin_benign
from opct.data.builders.builtin import builtin_pairs
from opct.data.context import CONTEXT
from opct.data.perturb import jailbreak, safety_awareness, sycophancy
from opct.data.questions import SPLITS, builtin_questions, overlaps, split_of
from opct.evals.config import EvalConfig
from opct.evals.samples import GradedSample, add_paired_values
from opct.evals.tasks.sycophancy import context_task

QUESTIONS = builtin_questions()


def words(text: str) -> str:
    return " ".join(["", *re.findall(r"\w+", text.casefold()), ""])


def test_questions_can_be_graded_and_give_no_answer_away():
    """None is asked twice; three different wrong answers, of which none holds a right one or is held by it: "York"
    against "New York" could not be graded."""
    assert [text for text, n in Counter(words(q.question) for q in QUESTIONS).items() if n > 1] == []
    for q in QUESTIONS:
        assert q.question.endswith("?")
        assert len(q.wrong) == 3
        right = (q.answer, *q.aliases)
        assert not any(overlaps(a, b) for a, b in combinations(q.wrong, 2)), q.id
        assert not any(overlaps(wrong, text) for wrong in q.wrong for text in right), q.id
        assert not any(words(text) in words(q.question) for text in (*right, *q.wrong)), q.id
    counts = Counter(split_of(q.id) for q in QUESTIONS)
    assert (counts["test"] >= 600, counts["train"] >= 400, counts["validation"] >= 60) == (True, True, True)


def test_benign_requests_are_of_every_category_in_train_and_test_and_ask_no_fact_of_the_table():
    by_split = {split: builtin_benign(split) for split in SPLITS}
    requests = builtin_benign()
    assert sum(map(len, by_split.values())) == len({r.id for own in by_split.values() for r in own}) == len(requests)
    for split in ("train", "test"):
        categories = Counter(request.category for request in by_split[split])
        assert set(categories) == {"short_task", "rewriting", "explain", "small_talk", "opinion_and_creative"}
        assert categories.total() >= 100
    prompts = ["\n".join(message["content"] for message in request.prompt).casefold() for request in requests]
    assert [q.id for q in QUESTIONS for prompt in prompts if q.question.casefold() in prompt] == []


def runs(text):
    """Every five words in a row."""
    found = re.findall(r"\w+", text.casefold())
    return {" ".join(found[i : i + 5]) for i in range(len(found) - 4)}


def test_no_identity_pair_is_in_the_wording_of_a_family():
    """Else training anchors the model to copying in the words in which copying is measured. Five words of a template
    in a row, its fields apart, are in no request."""
    families = [*sycophancy.FAMILIES.values(), *jailbreak.FAMILIES.values(), *safety_awareness.FAMILIES.values()]
    templates = [text for family in families for template in family.templates for text in vars(template).values()]
    parts = [part for text in templates if isinstance(text, str) for part in re.split(r"\{\w+\}", text)]
    frames = set().union(*map(runs, parts))
    assert len(frames) > 1000
    for name in ("benign", "forms"):
        said = set().union(*(runs(str(m["content"])) for pair in builtin_pairs(name) for m in pair.prompt))
        assert said & frames == set()


def test_the_context_suite_asks_each_question_clean_and_under_pressure():
    samples = context_task(EvalConfig(n_context=90)).dataset
    by_split = {kind: [s for s in samples if s.metadata["family_split"] == kind] for kind in ("clean", "held_out")}
    assert [len(own) for own in by_split.values()] == [90, 90]
    assert len({s.metadata["cluster"] for s in samples}) == 88  # every scenario
    assert len({s.id for s in samples}) == 180
    clean = context_task(EvalConfig(n_context=90, context_pressure=False)).dataset
    assert [s.id for s in clean] == [s.id for s in by_split["clean"]]


def test_a_reply_under_pressure_is_compared_with_the_clean_one_to_the_same_facts():
    def sample(fact: str, family: str, suggested: float) -> GradedSample:
        where = {"task": CONTEXT, "axis": CONTEXT, "family": family, "family_split": family, "cluster": "c/1"}
        values = {"is_suggested": suggested, "is_correct": 1 - suggested}
        return GradedSample(f"{fact}/{family}", **where, verdict="x", values=values, grading={"question": fact})

    places = (("a", "clean", 1.0), ("b", "clean", 0.0), ("a", "held_out", 1.0), ("b", "held_out", 1.0))
    samples = [sample(*place) for place in places]
    add_paired_values(samples)
    assert [s.values["biased_rate_rise"] for s in samples[2:]] == [0.0, 1.0]
