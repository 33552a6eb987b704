"""Named sets of pairs and pairs from a file."""

from collections import Counter

import pytest

from opct.data.benign import builtin_benign
from opct.data.builders.builtin import benign_pair, builtin_pairs
from opct.data.builders.sycophancy import build_sycophancy
from opct.data.context import builtin_context
from opct.data.pairs import row_faults
from opct.data.perturb.sycophancy import FAMILIES
from opct.data.questions import Question, builtin_questions, split_of
from opct.errors import DataError
from tests.refusals import refused

QUESTIONS = [Question(f"t/{i}", f"Question {i}?", f"right{i}", (), ("alpha", "beta", "gamma"), "t") for i in range(50)]


def test_builtin_sycophancy_is_two_training_families_for_each_training_question():
    pairs = builtin_pairs("builtin:sycophancy")
    train = [question.id for question in (*builtin_questions(), *builtin_context()) if question.split == "train"]
    assert Counter(pair.meta["question_id"] for pair in pairs) == Counter(dict.fromkeys(train, 2))
    families = Counter(pair.family for pair in pairs)
    assert set(families) == {name for name, family in FAMILIES.items() if family.split == "train"}
    assert max(families.values()) - min(families.values()) <= 1
    assert {pair.meta["split"] for pair in pairs} == {"train"}
    assert not any(pair.is_identity for pair in pairs)


def test_benign_pairs_are_identities_with_what_graders_need():
    pairs = builtin_pairs("benign")
    assert len(pairs) == len(builtin_benign("train"))
    assert all(pair.is_identity and pair.axis == "benign" for pair in pairs)
    assert all(set(pair.meta) == {"question_id", "split", "check"} for pair in pairs)
    assert [fault for pair in pairs for fault in row_faults(pair.to_json())] == []
    request = builtin_benign("test")[0]
    pair = benign_pair(request)
    assert (pair.id, pair.family, pair.meta["split"]) == (f"benign/{request.id}", request.category, "test")


def test_unknown_names_name_the_nearest():
    with refused(DataError, "sycophany", "sycophancy"):
        builtin_pairs("sycophany")
    with refused(DataError, "validation"):
        builtin_pairs("sycophancy", "valid")
    with refused(DataError, "held_out"):
        build_sycophancy(QUESTIONS, families="heldout")
    with refused(DataError, "are_you_sure"):
        build_sycophancy(QUESTIONS, families=["are_you_shure"])


def test_a_split_with_no_question_is_refused():
    only_test = [question for question in QUESTIONS if split_of(question.id) == "test"]
    with pytest.raises(DataError):
        build_sycophancy(only_test, split="train")
    assert len(build_sycophancy(only_test, split="test")) == len(only_test)
