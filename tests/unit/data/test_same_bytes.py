"""The embedded pairs, splits, prompts and orders of every seed are the same bytes, whatever happens to the code."""

import hashlib
import json
from collections import Counter

import pytest

from opct.config.schema import TrainConfig
from opct.data.behaviors import builtin_behaviors
from opct.data.builders.builtin import BUILTIN_NAMES, FACTS, SYCOPHANCY_SETS, builtin_pairs
from opct.data.builders.jailbreak import build_jailbreak
from opct.data.builders.safety_awareness import build_safety_awareness
from opct.data.builders.sycophancy import build_sycophancy
from opct.data.context import builtin_context
from opct.data.dataset import batch_of, load_training_pairs, pairs_hash
from opct.data.questions import SPLITS, builtin_questions


@pytest.mark.parametrize("name", SYCOPHANCY_SETS)
def test_in_a_set_of_facts_each_question_with_its_fact_has_every_training_family(name):
    with_fact = {question.id for question in builtin_context("train")}
    pairs = builtin_pairs(name + FACTS)
    times = Counter(pair.question for pair in pairs if pair.question in with_fact)
    assert times.keys() == with_fact
    assert set(times.values()) == {5}
    assert round(100 * times.total() / len(pairs)) == 44


def digest(value) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()[:16]


HASHES = {
    "sycophancy": "e56fe537a5b5b3d8",
    "sycophancy_choice": "62d1e31d9c94b078",
    "sycophancy_mixed": "29fb9a1d158ee62e",
    "sycophancy:facts": "0e97384a631a00f3",
    "sycophancy_choice:facts": "7512b56e55e66531",
    "sycophancy_mixed:facts": "cd10b72fa6f1a017",
    "jailbreak": "2d9d7b9d8f4822f0",
    "jailbreak_system": "984a9c5cf3e9a62f",
    "jailbreak_examples": "5546ad561c548fd0",
    "jailbreak_anchors": "c2ef1d15126ae616",
    "safety_awareness": "ab407e27da16a746",
    "safety_awareness:user": "0995e529ff7889dd",
    "safety_awareness:examples": "7d3d06e109429440",
    "benign": "b22ac730728048f5",
    "forms": "c8ca9d97c73d3174",
    "context": "a4b6336ff49075dd",
    "families": {
        "sycophancy short": "7d3c86940f92c5ef",
        "sycophancy choice": "f8c26bf1b4d69c06",
        "jailbreak": "584c2bdfae554071",
        "safety": "b9ec243e0a7a2034",
        "safety privileged": "9d808513f2ad5ca2",
    },
    "chosen": {
        "pairs": "5077156eb1456b8e",
        "anchors": "20dbab09bccdf40f",
        "validation": "1b76831a5b9faf01",
        "validation_anchors": "441a1118d67ac660",
    },
    "order": "990462e815239887",
}


@pytest.mark.parametrize("name", BUILTIN_NAMES)
def test_embedded_pairs(name: str):
    """Every split, and the small one with another seed too."""
    made = [(split, 0) for split in SPLITS] + [("validation", 7)]
    found = [pairs_hash(builtin_pairs(name, split, seed=seed)) for split, seed in made]
    assert digest(found) == HASHES[name]


def test_every_family():
    questions = builtin_questions()[::40]
    settings = {"families": "all", "seed": 3}
    built = {
        "sycophancy short": build_sycophancy(questions, answer_format="short", per_question=None, **settings),
        "sycophancy choice": build_sycophancy(questions, answer_format="choice", per_question=None, **settings),
        "jailbreak": build_jailbreak(
            builtin_behaviors()[::5], parts=("behavior", "twin", "anchor"), per_behavior=None, **settings
        ),
        "safety": build_safety_awareness(split="validation", per_prompt=None, teacher="examples", **settings),
        "safety privileged": build_safety_awareness(split="validation", counterparts="privileged", **settings),
    }
    assert {name: pairs_hash(pairs) for name, pairs in built.items()} == HASHES["families"]


def test_chosen_pairs_and_their_order():
    config = TrainConfig(
        method="opct",
        data={
            "pairs": ["builtin:sycophancy", "builtin:jailbreak", "builtin:safety_awareness"],
            "anchors": ["builtin:benign", "builtin:forms"],
            "anchor_fraction": 0.25,
            "balance_axes": True,
            "max_pairs": 60,
        },
        optim={"prompts_per_step": 12},
    )
    found = load_training_pairs(config)
    streams = {"a": list(range(10)), "b": list(range(7))}
    steps = [
        batch_of(step, streams, list("xyz"), prompts_per_step=8, anchor_fraction=0.25, seed=5) for step in range(1, 30)
    ]
    assert found.hashes == HASHES["chosen"]
    assert digest(steps) == HASHES["order"]
