import pytest

from opct.data.behaviors import builtin_behaviors, load_behaviors
from opct.data.duplicates import near_duplicate_groups
from opct.data.questions import SPLITS
from opct.errors import DataError
from tests.refusals import refused
from tests.rows import jsonl, table

REQUESTS = [
    *("Paint a rude word on the town hall", "Steal a goldfish from the fair", "Cheat in a game of chess"),
    *("Ring a doorbell and run away", "Hide the teacher's chalk", "Let the air out of a tire"),
]
COUNTERPARTS = [
    *("Draw a goat", "Bake bread for six", "Read about whales", "Plant an oak", "Learn to juggle", "Tune a piano"),
]


def own(i, split="train", **other):
    row = {"id": f"x/{i}", "category": "pranks", "behavior": REQUESTS[i], "benign": COUNTERPARTS[i], "split": split}
    return row | other


def test_no_embedded_near_duplicates_and_so_none_across_splits():
    behaviors = builtin_behaviors()
    for texts in ([b.behavior for b in behaviors], [b.benign for b in behaviors]):
        assert [group for group in near_duplicate_groups(texts) if len(group) > 1] == []


def test_our_own_format_needs_no_more_than_id_category_and_behavior(tmp_path):
    """Splits are then by hash; a context and twins with the same ids are read as from any other format."""
    rows = [{"id": f"x/{i}", "category": "pranks", "behavior": REQUESTS[i]} for i in range(3)]
    path = jsonl(tmp_path / "own.jsonl", *rows)
    found = load_behaviors(path)
    assert [(b.id, b.category, b.benign) for b in found] == [(f"x/{i}", "pranks", None) for i in range(3)]
    assert all(b.by_hash for b in found)
    assert not any(b.by_hash for b in load_behaviors(jsonl(tmp_path / "split.jsonl", own(0))))
    twins = [row | {"behavior": f"Twin of {row['id']}"} for row in reversed(rows)]
    paired = load_behaviors(path, counterparts=jsonl(tmp_path / "twins.jsonl", *twins))
    assert [b.benign for b in paired] == [f"Twin of x/{i}" for i in range(3)]
    told = jsonl(tmp_path / "told.jsonl", rows[0] | {"context": "A story."})
    assert load_behaviors(told)[0].behavior == f"A story.\n\n{REQUESTS[0]}"


JAILBREAKBENCH = ["Index", "Goal", "Target", "Behavior", "Category", "Source"]
PUBLIC = [
    (JAILBREAKBENCH, [0, REQUESTS[0], "Sure", "Rude", "Pranks", "Own"]),
    (
        ["Behavior", "FunctionalCategory", "SemanticCategory", "Tags", "ContextString", "BehaviorID"],
        [REQUESTS[0], "standard", "Pranks", "", "", "rude"],
    ),
    (["goal", "target"], [REQUESTS[0], "Sure"]),
]


@pytest.mark.parametrize(("header", "row"), PUBLIC, ids=[" ".join(map(str, header))[:20] for header, _ in PUBLIC])
def test_public_formats(tmp_path, header, row):
    [found] = load_behaviors(table(tmp_path / "set.csv", header, row))
    assert found.behavior == REQUESTS[0]
    assert found.category == ("uncategorised" if "goal" in header else "Pranks")
    assert found.id == ("rude" if "BehaviorID" in header else found.id)
    assert found.split in SPLITS


def test_counterparts_are_found_by_key_and_are_not_the_behaviors_themselves(tmp_path):
    """A file is refused as its own counterparts, as is a copy of it backwards: its requests are harmful or benign, and
    not both."""
    header = JAILBREAKBENCH
    rows = [[i, REQUESTS[i], "", "", "c", ""] for i in range(3)]
    bad = table(tmp_path / "bad.csv", header, *rows)
    good = table(tmp_path / "good.csv", header, *([i, f"Twin {i}", "", "", "c", ""] for i in (2, 1, 0)))
    assert [b.benign for b in load_behaviors(bad, counterparts=good)] == ["Twin 0", "Twin 1", "Twin 2"]
    with refused(DataError, "bad.csv:3"):
        load_behaviors(bad, counterparts=table(tmp_path / "a.csv", header, [0, "Twin 0", "", "", "c", ""]))
    for counterparts in (bad, table(tmp_path / "b.csv", header, *rows[::-1])):
        with pytest.raises(DataError):
            load_behaviors(bad, counterparts=counterparts)


def test_the_split_of_a_behavior_is_its_own_whatever_else_is_in_the_file(tmp_path):
    """Groups of two near-duplicates, read whole, each half alone, and backwards: no behavior moves. Four of the groups
    are cut: their halves are of two splits by themselves. What is near an embedded behavior has its split."""

    def splits(*chosen) -> dict[str, str]:
        path = table(tmp_path / "a.csv", ["goal", "target"], *([text, ""] for text in chosen))
        return {b.behavior: b.split for b in load_behaviors(path)}

    texts = [text for i, text in enumerate(REQUESTS) for text in (text, f"{text}, please! ({i})")]
    whole = splits(*texts)
    assert len(whole) == 12
    assert splits(*texts[::2]) | splits(*texts[1::2]) == whole == splits(*reversed(texts))
    assert sum(whole[a] != whole[b] for a, b in zip(texts[::2], texts[1::2], strict=True)) == 4
    embedded = [builtin_behaviors(split)[0].behavior for split in SPLITS]
    assert list(splits(*(f"Please, {text.rstrip('.')} (now)" for text in embedded)).values()) == list(SPLITS)


@pytest.mark.parametrize(
    ("rows", "faults"),
    [
        (
            [
                own(0, "train"),
                own(0, "test", id="x/again", benign=None),
                own(1, "train"),
                own(1, "validation", id="x/near", behavior=f"{REQUESTS[1]}, please!", benign="Sing"),
                own(2, "test"),
                own(3, "Test"),
                own(4, "test", id="x/0"),
            ],
            ((2, "'x/again' (test)"), (4, "'x/near' (validation)"), (6, "'Test'"), (7, "'x/0'")),
        ),
        (
            [
                *(own(0), own(1, "test"), own(2, "train", benign=COUNTERPARTS[1])),
                *(own(3, "test", benign=f"Please {COUNTERPARTS[0]}!"), own(4, "test")),
                own(5, "test", benign=COUNTERPARTS[4]),
            ],
            ((3, "x/2", "x/1"), (4, "x/3", "x/0")),
        ),
    ],
    ids=["a behavior", "a benign counterpart, or nearly; in one split it may be there twice"],
)
def test_what_is_in_two_splits_is_refused_with_every_fault(tmp_path, rows, faults):
    with pytest.raises(DataError) as caught:
        load_behaviors(jsonl(tmp_path / "own.jsonl", *rows))
    said = sorted(caught.value.faults, key=lambda fault: int(fault.split(": ")[0].rpartition(":")[2]))
    for fault, (line, *parts) in zip(said, faults, strict=True):
        assert f"own.jsonl:{line}: " in fault
        assert all(part in fault for part in parts)


def test_no_counterparts_are_none_in_two_splits_and_all_rows_have_a_split_or_none(tmp_path):
    without = [own(0, benign=None), own(1, "test", benign=None)]
    assert len(load_behaviors(jsonl(tmp_path / "none.jsonl", *without))) == 2
    with refused(DataError, "own.jsonl:2"):
        load_behaviors(jsonl(tmp_path / "own.jsonl", own(0), own(1, None)))
