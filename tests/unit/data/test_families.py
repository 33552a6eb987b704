"""Which families a setting stands for."""

import pytest

from opct.data.perturb.families import Family, chosen_families, rotation
from opct.errors import DataError
from tests.refusals import refused

FAMILIES = {
    family.name: family
    for family in (
        Family("shout", "train", "loud"),
        Family("plead", "held_out", "sad"),
        Family("whisper", "train", "low"),
    )
}


@pytest.mark.parametrize(
    ("families", "names"),
    [
        ("all", ["shout", "plead", "whisper"]),
        ("train", ["shout", "whisper"]),
        ("held_out", ["plead"]),
        ("whisper", ["whisper"]),
        ("whisper, shout,whisper,", ["whisper", "shout"]),
        (["whisper", "shout", "whisper"], ["whisper", "shout"]),
        ("held_out,train", ["plead", "shout", "whisper"]),
        (["whisper", "held_out"], ["whisper", "plead"]),
    ],
)
def test_a_group_a_name_or_several(families, names):
    assert chosen_families(families, FAMILIES, "voice") == names


@pytest.mark.parametrize(
    ("families", "said"),
    [("shuot", "'shout'"), ("shout,tarin", "'train'"), (" ", "' '"), ([], "shout, plead, whisper")],
)
def test_a_name_that_is_none(families, said):
    with pytest.raises(DataError) as error:
        chosen_families(families, FAMILIES, "voice")
    assert said in str(error.value)


def test_rotation_uses_each_family_equally_often():
    """Two of three families for each of three items: each one twice; from a drawn start with a key."""
    turns = rotation(["a", "b", "c"], 2, "per_item")
    assert [next(turns) for _ in range(3)] == [["a", "b"], ["c", "a"], ["b", "c"]]
    assert next(rotation(["a", "b"], None, "per_item")) == ["a", "b"]
    starts = {next(rotation(["a", "b", "c"], 1, "per_item", key=f"{seed}/x"))[0] for seed in range(20)}
    assert starts == {"a", "b", "c"}
    with refused(DataError, "per_item"):
        rotation(["a", "b"], 3, "per_item")
