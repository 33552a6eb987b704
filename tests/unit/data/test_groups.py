"""Which families a setting stands for."""

import pytest

from opct.data.perturb import jailbreak, safety_awareness, sycophancy
from opct.data.perturb.families import FAMILY_GROUPS, named_families
from opct.errors import DataError, unknown

SPLITS = {"shout": "train", "plead": "held_out", "whisper": "train"}


@pytest.mark.parametrize(
    ("families", "names"),
    [
        ("all", ["shout", "plead", "whisper"]),
        ("train", ["shout", "whisper"]),
        ("held_out", ["plead"]),
        ("whisper", ["whisper"]),
        ("whisper, shout,whisper,", ["whisper", "shout"]),
        (["whisper", "shout", "whisper"], ["whisper", "shout"]),
        ([], []),
    ],
)
def test_a_group_a_name_or_several(families, names):
    assert named_families(families, SPLITS, "voice") == names


@pytest.mark.parametrize(
    ("families", "said"),
    [
        ("shuot", "Unknown voice family or group of families 'shuot'. Did you mean 'shout'? Use one of: all, train, "),
        ("shout,tarin", "'tarin'. Did you mean 'train'?"),
        (["train"], "'train'. Did you mean 'train'?"),  # a group stands alone, not among names
        (" ", "families ' '. Use one of"),
    ],
)
def test_a_name_that_is_none(families, said):
    with pytest.raises(DataError) as error:
        named_families(families, SPLITS, "voice")
    assert said in str(error.value)


def test_families_and_splits_of_every_axis_are_in_one_order():
    """The groups are made of the splits, and seeded choices follow the order of the families."""
    for axis in (sycophancy, safety_awareness, jailbreak):
        assert list(axis.SPLITS) == list(axis.FAMILIES)
        assert set(axis.SPLITS.values()) <= set(FAMILY_GROUPS)


def test_the_nearest_name_is_named_where_there_is_one():
    said = unknown("colour", "bleu", ["red", "blue"])
    assert said == "Unknown colour 'bleu'. Did you mean 'blue'? Use one of: red, blue."
    assert unknown("colour", "x", iter(["red"])) == "Unknown colour 'x'. Use one of: red."
