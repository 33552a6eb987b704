"""Which pairs a run trains on, holds out, and in which order."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from pathlib import Path

import pytest

from opct.config.schema import DataConfig, TrainConfig
from opct.data.builders.builtin import builtin_pairs
from opct.data.dataset import anchors_per_step, batch_of, load_training_pairs, steps_per_epoch, streams_of
from opct.data.pairs import EVALUATION_ONLY, ContrastivePair, write_pairs
from opct.errors import DataError
from tests.refusals import refused
from tests.tiny import tiny_anchors, tiny_pairs


@pytest.fixture
def load(tmp_path: Path):
    """Pairs of a config with 40 tiny pairs and 20 anchors; keyword arguments are settings of `data`."""
    files = {"pairs": tmp_path / "pairs.jsonl", "anchors": tmp_path / "anchors.jsonl"}
    write_pairs(files["pairs"], tiny_pairs(40))
    write_pairs(files["anchors"], tiny_anchors(20))

    def load(seed: int = 0, **data):
        data = {"pairs": [str(files["pairs"])], "anchors": [str(files["anchors"])], **data}
        return load_training_pairs(TrainConfig.model_validate({"data": data, "seed": seed}))

    return load


def ids(pairs: list[ContrastivePair]) -> list[str]:
    return [p.id for p in pairs]


def test_every_pair_is_trained_on_or_held_out_never_both(load):
    data = load(validation_fraction=0.3, validation_size=100)
    assert sorted(ids(data.pairs) + ids(data.validation)) == sorted(ids(tiny_pairs(40)))
    assert sorted(ids(data.anchors) + ids(data.validation_anchors)) == sorted(ids(tiny_anchors(20)))
    assert 4 <= len(data.validation) <= 20


@pytest.mark.parametrize("order", [1, -1])
def test_groups_and_near_duplicate_behaviors_stay_together(load, tmp_path: Path, order):
    """Of 30 facts two each are of a group, and 30 behaviors are worded twice each: a capital and a full stop more."""
    pairs = [
        dataclasses.replace(p, meta={"question_id": f"fact-{i}", "group": f"group-{i // 2}"})
        for i, p in enumerate(tiny_pairs(30))
    ]
    for i in range(30):
        text = (
            f"{['Paint', 'Steal', 'Sell', 'Hide', 'Burn'][i % 5]} the {['goose', 'gate', 'bike'][i % 3]} of house {i}"
        )
        for name, said in ((f"b-{i}", text), (f"other-{i}", f"{text.lower()}.")):
            meta = {"question_id": name, "behavior": said}
            pairs.append(dataclasses.replace(pairs[0], id=name, meta=meta))
    write_pairs(tmp_path / "alike.jsonl", pairs[::order])
    data = load(pairs=[str(tmp_path / "alike.jsonl")], validation_fraction=0.4, validation_size=1000)

    def names(part):
        return {p.meta.get("group") or p.meta["question_id"].split("-")[1] for p in part}

    assert not names(data.pairs) & names(data.validation)
    assert len(names(data.pairs)) > 15
    assert len(names(data.validation)) > 5
    assert len(data.pairs) + len(data.validation) == 90


def test_what_belongs_together_does_so_in_all_files(load, tmp_path: Path):
    """A twin of the second wording is an anchor, in a file of its own: it is on the side of both wordings, since a
    question that is trained on and held out is refused. Of 20 such cases some are held out."""
    [p, *_] = tiny_pairs(1)
    pairs, anchors = [], []
    for i in range(20):
        text = " ".join("".join(random.Random(f"{i}/{j}").choices("abcdefghijklmnop", k=7)) for j in range(5))
        for name, said in ((f"a-{i}", text), (f"b-{i}", f"{text.lower()}!")):
            meta = {"question_id": name, "behavior": said}
            pairs.append(dataclasses.replace(p, id=name, meta=meta))
        anchors.append(dataclasses.replace(p, id=f"t-{i}", teacher_prompt=p.prompt, meta=meta))
    write_pairs(tmp_path / "pairs.jsonl", pairs)
    write_pairs(tmp_path / "twins.jsonl", anchors)
    data = load(
        pairs=[str(tmp_path / "pairs.jsonl")],
        anchors=[str(tmp_path / "twins.jsonl")],
        validation_fraction=0.4,
        validation_size=1000,
    )
    held_out = {name.split("-")[1] for name in ids(data.validation)}
    assert len(data.validation_anchors) > 3
    assert {name.split("-")[1] for name in ids(data.validation_anchors)} == held_out
    assert not held_out & {name.split("-")[1] for name in ids([*data.pairs, *data.anchors])}


def test_what_its_authors_gave_for_evaluation_alone_is_not_trained_on_unless_asked(load, tmp_path: Path):
    marked = [dataclasses.replace(p, meta=p.meta | {EVALUATION_ONLY: i == 3}) for i, p in enumerate(tiny_pairs(9))]
    write_pairs(tmp_path / "sage.jsonl", marked)
    own = {"pairs": [str(tmp_path / "sage.jsonl")], "validation_fraction": 0}
    with refused(DataError, "data.train_on_evaluation_data=true") as caught:
        load(**own)
    assert caught.value.faults == (marked[3].id,)
    assert len(load(**own, train_on_evaluation_data=True).pairs) == 9


def test_what_is_held_out_does_not_depend_on_seed_size_or_order(load, tmp_path: Path):
    """Two runs with different seeds can be compared on the same held-out questions."""
    write_pairs(tmp_path / "reversed.jsonl", tiny_pairs(40)[::-1])
    first = load(validation_size=100)
    second = load(seed=5, validation_size=100, pairs=[str(tmp_path / "reversed.jsonl")], max_pairs=3)
    assert sorted(ids(first.validation)) == sorted(ids(second.validation))


def test_a_choice_of_balanced_axes_leaves_none_of_them_out(load, tmp_path: Path):
    """36 pairs and 4 of another axis: of 6, 3 each with every seed; of 12 all 4 of the small one; of 1 none can be."""
    pairs = [dataclasses.replace(pair, axis="other" if i < 4 else pair.axis) for i, pair in enumerate(tiny_pairs(40))]
    write_pairs(tmp_path / "two.jsonl", pairs)
    chosen = {"pairs": [str(tmp_path / "two.jsonl")], "validation_fraction": 0, "balance_axes": True}
    for seed in range(8):
        data = load(seed, max_pairs=6, anchor_fraction=0, **chosen)
        assert Counter(pair.axis for pair in data.pairs) == {"other": 3, pairs[-1].axis: 3}
    more = load(max_pairs=12, anchor_fraction=0, **chosen)
    assert Counter(pair.axis for pair in more.pairs) == {"other": 4, pairs[-1].axis: 6}
    with refused(DataError, "data.max_pairs"):
        load(max_pairs=1, anchor_fraction=0, **chosen)


def test_an_id_in_two_sources_is_refused(load, tmp_path: Path):
    write_pairs(tmp_path / "again.jsonl", tiny_pairs(2))
    with pytest.raises(DataError) as caught:
        load(pairs=[str(tmp_path / "pairs.jsonl"), str(tmp_path / "again.jsonl")])
    assert caught.value.faults == ("sum/0", "sum/1")


def test_a_question_is_never_trained_on_and_held_out_whatever_its_source(load, tmp_path: Path):
    """A file of ours with a question of the embedded validation split; an anchor on a named held-out question."""
    [embedded] = builtin_pairs("builtin:sycophancy", "validation", seed=0, per_question=1)[:1]
    mine = dataclasses.replace(embedded, id="mine/1")
    write_pairs(tmp_path / "mine.jsonl", [mine])
    with pytest.raises(DataError) as caught:
        load(pairs=["builtin:sycophancy", str(tmp_path / "mine.jsonl")], validation_fraction=0.0)
    assert caught.value.faults == (str(mine.meta["question_id"]),)
    anchor = dataclasses.replace(tiny_anchors(1)[0], id="anchor/1", meta={"question_id": "held"})
    held = dataclasses.replace(tiny_pairs(1)[0], id="held/1", meta={"question_id": "held"})
    write_pairs(tmp_path / "a.jsonl", [anchor])
    write_pairs(tmp_path / "v.jsonl", [held])
    with pytest.raises(DataError):
        load(anchors=[str(tmp_path / "a.jsonl")], validation_pairs=[str(tmp_path / "v.jsonl")], validation_fraction=0.0)


def test_anchors_must_be_identity_pairs(load, tmp_path: Path):
    with pytest.raises(DataError):
        load(anchors=[str(tmp_path / "pairs.jsonl")])


def test_a_fraction_without_anchors_is_refused_and_no_fraction_needs_none(load):
    with refused(DataError, "anchor_fraction", DataConfig().anchor_fraction):
        load(anchors=[])
    assert load(anchors=[], anchor_fraction=0.0).anchors == []


def test_the_embedded_pairs_keep_their_own_splits():
    data = load_training_pairs(TrainConfig())
    assert {p.meta["split"] for p in data.pairs} == {"train"}
    assert {p.meta["split"] for p in data.validation} == {"validation"}
    assert {p.meta["split"] for p in data.anchors} == {"train"}
    assert {p.meta["split"] for p in data.validation_anchors} == {"validation"}
    assert len(data.validation) == 48
    named = TrainConfig.model_validate({"data": {"validation_pairs": TrainConfig().data.pairs}})
    assert load_training_pairs(named).hashes == data.hashes


@pytest.mark.parametrize(
    ("prompts", "fraction", "anchors"), [(16, 0.25, 4), (4, 0.25, 1), (1, 0.5, 0), (2, 1.0, 1), (8, 0.0, 0)]
)
def test_anchors_per_step(prompts: int, fraction: float, anchors: int):
    """A share of the step, never the whole of it."""
    assert anchors_per_step(prompts, fraction) == anchors


def test_steps_per_epoch_by_hand():
    """16 a step with a quarter anchors leaves 12 pairs a step: 24 pairs are 2 steps, 25 are 3; of two axes 6 each."""
    assert [steps_per_epoch({"pairs": range(n)}, 16, 0.25) for n in (1, 12, 24, 25)] == [1, 1, 2, 3]
    assert steps_per_epoch({"pairs/a": range(19), "pairs/b": range(5)}, 16, 0.25) == 4


def batches(n_pairs: int, n_anchors: int, steps: int, *, size: int = 4, fraction: float = 0.25, seed: int = 0):
    pairs, anchors = [f"p{i}" for i in range(n_pairs)], [f"a{i}" for i in range(n_anchors)]
    return [
        batch_of(step, {"pairs": pairs}, anchors, prompts_per_step=size, anchor_fraction=fraction, seed=seed)
        for step in range(1, steps + 1)
    ]


def test_an_epoch_has_every_pair_once_and_anchors_last():
    """9 pairs, 3 a step and an anchor: steps 1-3 are an epoch, steps 4-6 another in another order."""
    steps = batches(9, 5, 6)
    assert all(len(step) == 4 and step[-1].startswith("a") for step in steps)
    first, second = ([x for step in part for x in step[:-1]] for part in (steps[:3], steps[3:]))
    assert sorted(first) == sorted(second) == [f"p{i}" for i in range(9)]
    assert first != second
    assert sorted(step[-1] for step in steps[:5]) == [f"a{i}" for i in range(5)]


@pytest.mark.parametrize("n_pairs", [3, 4, 7])
def test_no_pair_is_twice_in_a_step_and_none_is_seen_more_often_than_another(n_pairs: int):
    """Where epochs meet inside a step, the new epoch begins with pairs that the step does not hold yet."""
    steps = batches(n_pairs, 0, 40, size=3, fraction=0.0)
    assert all(len(set(step)) == 3 for step in steps)
    counts = Counter(x for step in steps for x in step)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_balanced_axes_share_every_step_whatever_their_sizes():
    """8 places, 2 anchors: 3 of each axis. In 4 steps each of the 12 pairs of `a` comes once, each of `b` 4 times."""
    axes = ["a"] * 12 + ["b"] * 3
    streams = {name: [(name, i) for i in places] for name, places in streams_of(axes, balanced=True).items()}
    steps = [
        batch_of(n, streams, [("anchor", 0)], prompts_per_step=8, anchor_fraction=0.25, seed=0) for n in range(1, 5)
    ]
    assert all([name for name, _ in step] == ["pairs/a"] * 3 + ["pairs/b"] * 3 + ["anchor"] * 2 for step in steps)
    seen = Counter(item for step in steps for item in step)
    assert {seen["pairs/a", i] for i in range(12)} == {1}
    assert {seen["pairs/b", i] for i in range(12, 15)} == {4}


def test_axes_that_cannot_share_a_step_are_refused(load, tmp_path: Path):
    """24 a step with a quarter anchors leaves 18 pairs, which 5 axes cannot share."""
    pairs = [dataclasses.replace(pair, axis=f"axis-{i % 5}") for i, pair in enumerate(tiny_pairs(40))]
    write_pairs(tmp_path / "five.jsonl", pairs)
    with refused(DataError, "18", "prompts_per_step"):
        load(pairs=[str(tmp_path / "five.jsonl")], balance_axes=True, anchor_fraction=0.25)
