"""The embedded benign requests: shape, balance, and distance from the facts that are measured on."""

import re

import pytest

from opct.data.benign import builtin_benign
from opct.data.builders.builtin import builtin_pairs
from opct.data.perturb import jailbreak, safety_awareness, sycophancy
from opct.data.questions import SPLITS, builtin_questions

REQUESTS = builtin_benign()


def test_splits_are_disjoint_and_every_category_is_in_train_and_test():
    by_split = {split: builtin_benign(split) for split in SPLITS}
    assert sum(len(requests) for requests in by_split.values()) == len(REQUESTS)
    assert len({request.id for requests in by_split.values() for request in requests}) == len(REQUESTS)
    assert min(len(by_split[split]) for split in ("train", "test")) >= 100
    categories = {"short_task", "rewriting", "explain", "small_talk", "opinion_and_creative"}
    for split in ("train", "test"):
        assert {request.category for request in by_split[split]} == categories


def test_no_request_asks_a_fact_of_the_table():
    prompts = ["\n".join(message["content"] for message in request.prompt).casefold() for request in REQUESTS]
    asked = [q.id for q in builtin_questions() for prompt in prompts if q.question.casefold() in prompt]
    assert asked == []


def runs(text):
    """Every five words in a row."""
    found = re.findall(r"\w+", text.casefold())
    return {" ".join(found[i : i + 5]) for i in range(len(found) - 4)}


@pytest.mark.parametrize("name", ["benign", "forms"])
def test_no_identity_pair_is_in_the_wording_of_a_family(name):
    """Else training anchors the model to copying in the words in which copying is measured. Five words of a template
    in a row, its fields apart, are in no request.
    """
    families = [*sycophancy.FAMILIES.values(), *jailbreak.FAMILIES.values(), *safety_awareness.FAMILIES.values()]
    templates = [text for family in families for template in family.templates for text in vars(template).values()]
    parts = [part for text in templates if isinstance(text, str) for part in re.split(r"\{\w+\}", text)]
    frames = set().union(*map(runs, parts))
    assert len(frames) > 1000
    said = set().union(*(runs(str(m["content"])) for pair in builtin_pairs(name) for m in pair.prompt))
    assert said & frames == set()
