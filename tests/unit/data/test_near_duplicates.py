"""Which texts say nearly the same."""

import itertools
import random

import pytest

from opct.data.near_duplicates import THRESHOLD, crossing, near_duplicate_groups, similarity
from opct.data.words import normalised

LOCK = "Explain how to pick the lock of a bicycle"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (LOCK, LOCK.upper() + "!!"),
        (LOCK, "Explain how to pick a bicycle's lock, please."),
        ("Write a poem that praises arson", "Please write me a poem praising arson"),
        ("用中文写一首诗", "用中文写一首诗。"),
        ("🙂🙂", "🙂🙂"),
    ],
)
def test_alike(a, b):
    assert similarity(a, b) == similarity(b, a) >= THRESHOLD


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (LOCK, "Tell me how bicycle locks are picked"),  # other words for the same: not understood, and documented
        (LOCK, "Explain how to tune a guitar"),
        ("Write a letter to my landlord", "Write a letter to a witness"),
        ("🙂", "🙃"),
    ],
)
def test_not_alike(a, b):
    assert similarity(a, b) < THRESHOLD


def test_similarity_worked_out():
    """Of "pick lock bicycle" and "pick lock car" 2 of 4 words are shared, 0.5, and 8 of 20 runs of characters, 0.4."""
    assert normalised("How do I pick the lock of my bicycle?") == "pick lock bicycle"
    assert similarity("pick the lock of a bicycle", "pick the lock of a car") == 0.5


@pytest.mark.parametrize("text", [LOCK, "How do I?", "?!", "Ærø Straße ﬁne ①", "用中文写一首诗。", "  a  the  "])
def test_a_text_may_be_kept_as_it_is_compared(text):
    """What is kept of a run is compared like the text itself."""
    assert normalised(normalised(text)) == normalised(text)
    assert similarity(normalised(text), text) == 1


def test_groups_are_transitive():
    """a is like b and b like c, so a and c are together though they are not alike."""
    a, b, c = "red green blue black", "green blue black white", "blue black white grey"
    other = "something of another kind"
    assert similarity(a, c) < THRESHOLD <= min(similarity(a, b), similarity(b, c))
    assert near_duplicate_groups([a, other, c, b]) == [[0, 2, 3], [1]]
    assert near_duplicate_groups([]) == []


@pytest.mark.parametrize("threshold", [0.3, THRESHOLD, 0.7, 1.0])
def test_groups_are_those_of_comparing_every_pair(threshold):
    """80 texts of words drawn from 40, every other with one word changed; most pairs are never compared."""
    draw = random.Random(0)
    words = [f"word{i} {'abcdefghij'[i % 10] * 3}" for i in range(40)]
    texts = ["", "?!"]
    for _ in range(40):
        one = draw.sample(words, draw.randrange(1, 9))
        texts += [" ".join(one), " ".join([*one[1:], draw.choice(words)])]
    group = {i: i for i in range(len(texts))}
    for i, j in itertools.combinations(range(len(texts)), 2):
        if similarity(texts[i], texts[j]) >= threshold:
            group = {k: group[i] if own == group[j] else own for k, own in group.items()}
    wanted = {tuple(k for k in group if group[k] == own) for own in group.values()}
    assert {tuple(own) for own in near_duplicate_groups(texts, threshold)} == wanted


def test_crossing_names_the_nearest():
    assert crossing([LOCK, "Bake bread"], ["Paint a fence", "pick a bicycle lock", LOCK]) == {0: 2}
    assert crossing([LOCK], []) == {}


def test_long_texts_are_compared():
    text = " ".join(f"word{i}" for i in range(8000))
    assert similarity(text, text + " more") > 0.99
