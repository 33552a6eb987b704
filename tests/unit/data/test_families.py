import pytest

from opct.data.perturb import jailbreak
from opct.data.perturb.families import Family, chosen_families, families_of
from opct.data.perturb.jailbreak import Wrapper, wrapped_prompt, wrapper_families
from opct.errors import DataError
from tests.refusals import refused

NAMES = (("shout", "train"), ("plead", "held_out"), ("whisper", "train"))
FAMILIES = {name: Family(name, split, "a voice") for name, split in NAMES}


@pytest.mark.parametrize(
    ("families", "names"),
    [
        ("all", ["shout", "plead", "whisper"]),
        ("train", ["shout", "whisper"]),
        ("whisper, shout,whisper,", ["whisper", "shout"]),
        (["whisper", "held_out"], ["whisper", "plead"]),
    ],
)
def test_a_group_a_name_or_several(families, names):
    assert chosen_families(families, FAMILIES, "voice") == names


def test_a_name_that_is_none():
    for families, named in (("shuot", "'shout'"), ("shout,tarin", "'train'"), (" ", "' '"), ([], "shout, plead")):
        with refused(DataError, named):
            chosen_families(families, FAMILIES, "voice")


def test_a_family_is_one_entry_of_the_wording(monkeypatch):
    """It is then drawn from, chosen by its name, and a part of its group."""
    entry = {"split": "train", "description": "shouted", "templates": [["{behavior}!!!"]]}
    monkeypatch.setattr(jailbreak, "FAMILIES", jailbreak.FAMILIES | families_of({"families": {"loud": entry}}, Wrapper))
    assert wrapped_prompt("Steal a goose", "loud", "t/0", 0)[-1]["content"] == "Steal a goose!!!"
    assert wrapper_families("loud") == ["loud"]
    assert "loud" in wrapper_families("train")
