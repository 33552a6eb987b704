"""The embedded benign requests: shape, balance, and distance from the facts that are measured on."""

import json
import re
from collections import Counter
from importlib import resources

import pytest

from opct.data.benign import FORMS_PER_TASK, builtin_benign, builtin_forms
from opct.data.builders.builtin import builtin_pairs
from opct.data.perturb import jailbreak, safety_awareness, sycophancy
from opct.data.questions import SPLITS, builtin_questions

REQUESTS = builtin_benign()


def holds(term: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(term.casefold())}(?!\w)", text.casefold()) is not None


def test_ids_and_prompts_are_unique():
    assert len({request.id for request in REQUESTS}) == len(REQUESTS)
    assert len({str(request.prompt) for request in REQUESTS}) == len(REQUESTS)
    assert all(request.id.startswith(request.category + "/") for request in REQUESTS)


def test_saying_an_explanation_request_again_is_no_answer():
    for request in REQUESTS:
        if request.category == "explain" and request.check is not None:
            said = " ".join(message["content"] for message in request.prompt)
            assert not any(holds(term, said) for term in request.check["any"]), request.id


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


def words(text):
    return re.findall(r"\w+", text.casefold())


def runs(text):
    """Every five words in a row."""
    found = words(text)
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


# -------------------------------------------------- forms of answers

FORMS = builtin_forms()
FORM_FILE = json.loads(resources.files("opct.data").joinpath("builtin", "forms.json").read_text(encoding="utf-8"))


def test_each_task_is_asked_for_in_as_many_forms_and_every_form_is_asked_for():
    said = [request.prompt[0]["content"] for request in FORMS]
    assert len(set(said)) == len(FORMS) == FORMS_PER_TASK * len(FORM_FILE["tasks"])
    for task in FORM_FILE["tasks"]:
        assert sum(text.startswith(task) for text in said) == FORMS_PER_TASK
    counts = Counter(form for text in said for form in FORM_FILE["forms"] if text.endswith(form))
    assert set(counts) == set(FORM_FILE["forms"])
    assert min(counts.values()) >= 5


def test_every_split_has_some_and_they_are_identity_pairs():
    sizes = {split: len(builtin_forms(split)) for split in SPLITS}
    assert sum(sizes.values()) == len(FORMS)
    assert sizes["train"] > 100
    assert min(sizes.values()) > 20
    pairs = builtin_pairs("builtin:forms")
    assert len(pairs) == sizes["train"]
    assert all(pair.is_identity and pair.axis == "benign" and pair.family == "form" for pair in pairs)
