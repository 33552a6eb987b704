"""Which pairs a run trains on, holds out, and in which order."""

from collections import Counter
from dataclasses import replace
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
    """Training pairs of a config with 40 tiny pairs and 20 anchors, or with other lists of pairs, each in a file of its
    own; keyword arguments are settings of `data`."""

    def load(seed: int = 0, **data):
        for name, own in {"pairs": tiny_pairs(40), "anchors": tiny_anchors(20), **data}.items():
            if isinstance(own, list) and own and isinstance(own[0], ContrastivePair):
                path = tmp_path / f"{name}.jsonl"
                write_pairs(path, own)
                data[name] = [str(path)]
            else:
                data[name] = own
        return load_training_pairs(TrainConfig.model_validate({"data": data, "seed": seed}))

    return load


def ids(pairs: list[ContrastivePair]) -> list[str]:
    return [p.id for p in pairs]


def test_every_pair_is_trained_on_or_held_out_never_both(load):
    """What is held out does not depend on seed, size or order, so that two runs with different seeds can be compared on
    the same questions."""
    data = load(validation_fraction=0.3, validation_size=100)
    assert sorted(ids(data.pairs) + ids(data.validation)) == sorted(ids(tiny_pairs(40)))
    assert sorted(ids(data.anchors) + ids(data.validation_anchors)) == sorted(ids(tiny_anchors(20)))
    assert 4 <= len(data.validation) <= 20
    other = load(seed=5, validation_fraction=0.3, validation_size=100, pairs=tiny_pairs(40)[::-1], max_pairs=3)
    assert sorted(ids(data.validation)) == sorted(ids(other.validation))


def test_held_out_pairs_of_equal_prompts_are_measured_apart_in_whichever_file_they_lie(load):
    mixed = [replace(p, prompt=p.teacher_prompt) if i % 2 else p for i, p in enumerate(tiny_pairs(40))]
    data = load(pairs=mixed, anchors=[], anchor_fraction=0, validation_fraction=0.4, validation_size=100)
    assert not any(pair.is_identity for pair in data.validation)
    assert all(pair.is_identity for pair in data.validation_anchors)
    assert min(len(data.validation), len(data.validation_anchors)) > 2


@pytest.mark.parametrize("order", [1, -1])
def test_what_belongs_together_stays_together_in_all_files(load, order):
    """Of 30 facts two each are of a group, and 30 behaviors are worded twice each: a capital and a full stop more. A
    twin of each second wording is an anchor, in a file of its own: it is on the side of both wordings."""
    pairs = [
        replace(p, meta={"question_id": f"fact-{i}", "group": f"group-{i // 2}"}) for i, p in enumerate(tiny_pairs(30))
    ]
    p, anchors = pairs[0], []
    for i in range(30):
        verb, thing = ["Paint", "Steal", "Sell", "Hide", "Burn"][i % 5], ["goose", "gate", "bike"][i % 3]
        text = f"{verb} the {thing} of house {i}"
        for name, said in ((f"b-{i}", text), (f"other-{i}", f"{text.lower()}.")):
            meta = {"question_id": name, "behavior": said}
            pairs.append(replace(p, id=name, meta=meta))
        anchors.append(replace(p, id=f"t-{i}", teacher_prompt=p.prompt, meta=meta))
    data = load(pairs=pairs[::order], anchors=anchors, validation_fraction=0.4, validation_size=1000)

    def names(*parts):
        return {p.meta.get("group") or p.meta["question_id"].split("-")[1] for part in parts for p in part}

    assert not names(data.pairs, data.anchors) & names(data.validation, data.validation_anchors)
    assert len(names(data.pairs)) > 15
    assert len(names(data.validation)) > 5
    assert len(data.validation_anchors) > 3
    assert len(data.pairs) + len(data.validation) == 90


def test_what_its_authors_gave_for_evaluation_alone_is_not_trained_on_unless_asked(load):
    marked = [replace(p, meta=p.meta | {EVALUATION_ONLY: i == 3}) for i, p in enumerate(tiny_pairs(9))]
    with refused(DataError, "data.train_on_evaluation_data=true") as caught:
        load(pairs=marked, validation_fraction=0)
    assert caught.value.faults == (marked[3].id,)
    assert len(load(pairs=marked, validation_fraction=0, train_on_evaluation_data=True).pairs) == 9


def test_a_choice_of_balanced_axes_leaves_none_of_them_out(load):
    """36 pairs and 4 of another axis: of 6, 3 each with every seed; of 12 all 4 of the small one; of 1 none can be."""
    pairs = [replace(pair, axis="other" if i < 4 else pair.axis) for i, pair in enumerate(tiny_pairs(40))]
    chosen = {"pairs": pairs, "validation_fraction": 0, "balance_axes": True, "anchor_fraction": 0}
    for seed in range(3):
        data = load(seed, max_pairs=6, **chosen)
        assert Counter(pair.axis for pair in data.pairs) == {"other": 3, pairs[-1].axis: 3}
    more = load(max_pairs=12, **chosen)
    assert Counter(pair.axis for pair in more.pairs) == {"other": 4, pairs[-1].axis: 6}
    with refused(DataError, "data.max_pairs"):
        load(max_pairs=1, **chosen)


def test_a_question_is_never_trained_on_and_held_out_whatever_its_source(load, tmp_path: Path):
    """A file of ours with a question of the embedded validation split; an anchor on a named held-out question."""
    [embedded] = builtin_pairs("builtin:sycophancy", "validation", seed=0, per_question=1)[:1]
    mine = replace(embedded, id="mine/1")
    write_pairs(tmp_path / "mine.jsonl", [mine])
    with pytest.raises(DataError) as caught:
        load(pairs=["builtin:sycophancy", str(tmp_path / "mine.jsonl")], validation_fraction=0.0)
    assert caught.value.faults == (str(mine.meta["question_id"]),)
    anchor = replace(tiny_anchors(1)[0], id="anchor/1", meta={"question_id": "held"})
    held = replace(tiny_pairs(1)[0], id="held/1", meta={"question_id": "held"})
    with refused(DataError, "held"):
        load(anchors=[anchor], validation_pairs=[held], validation_fraction=0.0)
    unnamed = [replace(pair, meta={}) for pair in tiny_pairs(2)]
    with refused(DataError, "2 question(s) are both"):
        load(pairs=unnamed, validation_pairs=[replace(p, id=f"v/{p.id}") for p in unnamed], validation_fraction=0.0)
    # the ids of two files, each with the group of its own clean prompt
    load(
        pairs=[replace(tiny_pairs(1)[0], meta={"question_id": "1", "group": "a"})],
        validation_pairs=[replace(held, meta={"question_id": "1", "group": "b"})],
    )


def test_what_cannot_be_trained_on_is_refused(load, tmp_path: Path):
    """An id in two sources, anchors that are no identity pairs, a fraction without anchors, and 5 axes that cannot
    share the 18 places of a step of 24 with a quarter anchors."""
    files = [tmp_path / "first.jsonl", tmp_path / "again.jsonl"]
    for file in files:
        write_pairs(file, tiny_pairs(2))
    with pytest.raises(DataError) as caught:
        load(pairs=[str(file) for file in files])
    assert caught.value.faults == ("sum/0", "sum/1")
    with pytest.raises(DataError):
        load(anchors=tiny_pairs(4))
    with refused(DataError, "anchor_fraction", DataConfig().anchor_fraction):
        load(anchors=[])
    assert load(anchors=[], anchor_fraction=0.0).anchors == []
    pairs = [replace(pair, axis=f"axis-{i % 5}") for i, pair in enumerate(tiny_pairs(40))]
    with refused(DataError, "18", "prompts_per_step"):
        load(pairs=pairs, balance_axes=True, anchor_fraction=0.25)


def test_steps_per_epoch_by_hand():
    """Anchors are a share of the step, never the whole of it: 16 a step with a quarter anchors leaves 12 pairs a step.
    24 pairs are 2 steps, 25 are 3; of two axes 6 each."""
    for n, fraction, anchors in ((16, 0.25, 4), (4, 0.25, 1), (1, 0.5, 0), (2, 1.0, 1), (8, 0.0, 0)):
        assert anchors_per_step(n, fraction) == anchors
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
