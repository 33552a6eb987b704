"""Training and validation pairs of a run, and their order, all determined by the config and its seed."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from opct.config.schema import DataConfig, TrainConfig
from opct.data.builders.builtin import builtin_pairs
from opct.data.duplicates import near_duplicate_groups
from opct.data.pairs import BUILTIN, EVALUATION_ONLY, ContrastivePair, read_pairs
from opct.data.questions import hash_share
from opct.errors import DataError

Item = TypeVar("Item")
_embedded_pairs = lru_cache(maxsize=16)(builtin_pairs)
"""Kept for the runs of an experiment; nobody may change a pair or the list."""


@dataclass(frozen=True)
class TrainingPairs:
    """The pairs of a run; `hashes` has the SHA-256 of each part as it was read."""

    pairs: list[ContrastivePair]
    anchors: list[ContrastivePair]
    validation: list[ContrastivePair]
    validation_anchors: list[ContrastivePair]
    hashes: dict[str, str]


def load_training_pairs(config: TrainConfig, given: Sequence[ContrastivePair] | None = None) -> TrainingPairs:
    """Read, check and split the pairs that `config.data` names. No model is needed.

    Args:
        given: the content of the file that `data.pairs` names, which is not written yet.

    Held-out pairs for the validation KL come from `validation_pairs`, or from the validation split of embedded pairs,
    or from a share of the questions (see `_groups`), so that no question is on both sides.

    Raises:
        DataError: a source is faulty or for evaluation only, an id is in two sources, a question is trained on and
            held out, anchors are not identity pairs, nothing is left, or the axes cannot share a step equally.
    """
    data, seed = config.data, config.seed
    anchor_sources = data.anchors if data.anchor_fraction > 0 else []
    # `given` stands for the file not yet written: reading it would fail
    by_source = {} if given is None else dict.fromkeys(data.pairs, given)
    files = [source for source in (*data.pairs, *anchor_sources) if not source.startswith(BUILTIN)]
    by_source |= {source: read_pairs(source) for source in files if source not in by_source}
    # over all sources at once: near-duplicates in two files must fall on the same side
    groups = _groups([pair for pairs in by_source.values() for pair in pairs])
    # 0: with a validation file every pair of the training files is trained on
    fraction = 0.0 if data.validation_pairs else data.validation_fraction
    trained, held_out = _split(data.pairs, by_source, groups, fraction, seed)
    if data.validation_pairs:
        held_out = [pair for source in data.validation_pairs for pair in _validation_pairs(source, seed)]
    anchors, held_out_anchors = _split(anchor_sources, by_source, groups, data.validation_fraction, seed)
    # on all pairs, before the seeded choices: a fault must not come and go with the seed
    _check(data, trained, held_out, anchors, held_out_anchors)
    # in whichever source they lie: their KL would be part of that of held-out pairs, which training logs apart
    held_out_anchors += [pair for pair in held_out if pair.is_identity]
    held_out = [pair for pair in held_out if not pair.is_identity]
    parts = {
        "pairs": _choose_of_each(trained, data.max_pairs, seed, data.balance_axes),
        "anchors": anchors,
        "validation": _choose_of_each(held_out, data.validation_size, seed, data.balance_axes),
        "validation_anchors": choose(held_out_anchors, data.validation_size // 2, f"choose/{seed}"),
    }
    if not parts["pairs"]:
        raise DataError(
            "No training pairs are left after holding out validation pairs: give more pairs, lower "
            "data.validation_fraction, or raise data.max_pairs."
        )
    streams = streams_of([pair.axis for pair in parts["pairs"]], data.balance_axes)
    pairs_of_each(streams, config.optim.prompts_per_step, data.anchor_fraction)  # refuses what no step can share
    return TrainingPairs(**parts, hashes={name: pairs_hash(part) for name, part in parts.items()})


def pairs_hash(pairs: Sequence[ContrastivePair]) -> str:
    """SHA-256 over the pairs in their order, 16 hex digits."""
    digest = hashlib.sha256()
    for pair in pairs:
        # sorted keys: two files that differ in the order of keys alone have the same hash
        digest.update(json.dumps(pair.to_json(), sort_keys=True, ensure_ascii=False).encode())
    return digest.hexdigest()[:16]


def _split(
    sources: Sequence[str],
    by_source: Mapping[str, Sequence[ContrastivePair]],
    groups: Mapping[str, str],
    validation_fraction: float,
    seed: int,
) -> tuple[list[ContrastivePair], list[ContrastivePair]]:
    """(trained on, held out)

    Args:
        by_source: the pairs of each source that is not embedded, and `groups` the group of each by id.
    """
    trained: list[ContrastivePair] = []
    held_out: list[ContrastivePair] = []
    for source in sources:
        if source not in by_source:
            trained += _embedded_pairs(source, "train", seed=seed)
            held_out += _validation_pairs(source, seed)
            continue
        for pair in by_source[source]:
            # by hash, not drawn: a pair that is added to the file moves no other one to the other side; and without the
            # seed, so that no seed trains on what another one holds out
            is_held_out = hash_share(f"validation/{groups[pair.id]}") < validation_fraction
            (held_out if is_held_out else trained).append(pair)
    return trained, held_out


def _validation_pairs(source: str, seed: int) -> list[ContrastivePair]:
    if source.startswith(BUILTIN):
        return _embedded_pairs(source, "validation", seed=seed, per_question=1)
    return read_pairs(source)


def _groups(pairs: Sequence[ContrastivePair]) -> dict[str, str]:
    """The group of each pair, by id; pairs of one group are trained on or held out together.

    Near-duplicate behaviors (`meta.behavior`) share the least of their groups.
    """
    names = list(map(_group, pairs))
    behaviors = [pair.meta.get("behavior") for pair in pairs]
    named = {str(text): name for text, name in zip(behaviors, names, strict=True) if text is not None}
    texts = list(named)
    groups = [[texts[i] for i in group] for group in near_duplicate_groups(texts)]
    # min: the same name whatever the order of the files
    least = {text: min(named[member] for member in group) for group in groups for text in group}
    rows = zip(pairs, behaviors, names, strict=True)
    return {pair.id: least.get(str(text), name) for pair, text, name in rows}


def _group(pair: ContrastivePair) -> str:
    """The pair's own group (`meta.group`: facts that say nearly the same), else its question (`meta.question_id`), else
    its clean prompt."""
    named = (pair.meta.get(key) for key in ("group", "question_id"))
    # not by truth: 0 is a group
    return next((str(name) for name in named if name not in (None, "")), json.dumps(pair.teacher_prompt))


def _check(
    data: DataConfig,
    trained: Sequence[ContrastivePair],
    held_out: Sequence[ContrastivePair],
    anchors: Sequence[ContrastivePair],
    held_out_anchors: Sequence[ContrastivePair],
) -> None:
    """Reject invalid parts."""
    every_anchor = [*anchors, *held_out_anchors]
    _refuse_any(
        [pair.id for pair in every_anchor if not pair.is_identity],
        "anchor(s) are not identity pairs: their prompt differs from their teacher_prompt. Put them under data.pairs.",
    )
    if not data.train_on_evaluation_data:
        _refuse_any(
            [pair.id for pair in (*trained, *anchors) if pair.meta.get(EVALUATION_ONLY)],
            "pairs are from an evaluation-only set, such as SAGE-Eval: leave them out. To train on them anyway, and "
            "report no score on that set: data.train_on_evaluation_data=true.",
        )
    _refuse_any(
        # the names by which pairs are held out: the ids of two files may be the same for different questions
        sorted({_group(pair) for pair in (*trained, *anchors)} & {_group(pair) for pair in held_out}),
        "question(s) are both trained on and held out: remove them from one side.",
    )
    counts = Counter(pair.id for pair in (*trained, *held_out, *every_anchor))
    repeated = sorted(id_ for id_, n in counts.items() if n > 1)
    _refuse_any(repeated, "id(s) occur in more than one source: ids must be unique.")
    if data.anchor_fraction > 0 and not anchors:
        raise DataError(
            f"data.anchor_fraction is {data.anchor_fraction} but there are no anchors to train on: add identity pairs "
            "to data.anchors, or set the fraction to 0."
        )


def _refuse_any(ids: Sequence[str], fault: str) -> None:
    if ids:
        raise DataError(f"{len(ids)} {fault} First ones:", tuple(ids[:10]))


def choose(items: Sequence[Item], at_most: int | None, seed: int | str) -> list[Item]:
    """A seeded choice, in the order of the source."""
    if at_most is None or at_most >= len(items):
        return list(items)
    # sorted back into the order of the source, on which `pairs_hash` and the batches depend
    return [items[i] for i in sorted(random.Random(seed).sample(range(len(items)), at_most))]


def _choose_of_each(
    pairs: Sequence[ContrastivePair], at_most: int | None, seed: int, balanced: bool
) -> list[ContrastivePair]:
    """A seeded choice; equally many of each axis if axes are balanced, so that none is left out by chance."""
    streams = streams_of([pair.axis for pair in pairs], balanced)
    if at_most is None or len(streams) == 1:
        return choose(pairs, at_most, f"choose/{seed}")
    return [
        pair
        for places in streams.values()
        # `//`: at most, so the rest of an uneven division is dropped and no axis has one more
        for pair in choose([pairs[i] for i in places], at_most // len(streams), f"choose/{seed}")
    ]


def anchors_per_step(prompts_per_step: int, anchor_fraction: float) -> int:
    """Number of identity pairs in a step."""
    # - 1: at least one pair that is no anchor; a step of anchors alone has nothing to learn
    return min(round(prompts_per_step * anchor_fraction), prompts_per_step - 1) if prompts_per_step > 1 else 0


def streams_of(axes: Sequence[str], balanced: bool) -> dict[str, list[int]]:
    """Name -> indices of the pairs of one stream: all pairs, or one stream an axis if axes are balanced.

    Args:
        axes: of each pair.
    """
    # dict, not set: the order of the streams is the order of a batch, and a resumed run must see the same
    names = list(dict.fromkeys(axes)) if balanced else []
    if len(names) < 2:
        return {"pairs": list(range(len(axes)))}
    return {f"pairs/{name}": [i for i, axis in enumerate(axes) if axis == name] for name in names}


def pairs_of_each(streams: Collection[object], prompts_per_step: int, anchor_fraction: float) -> int:
    """Number of pairs that a step draws from each stream. Raises DataError where they cannot be equally many."""
    n_fresh = prompts_per_step - anchors_per_step(prompts_per_step, anchor_fraction)
    share, rest = divmod(n_fresh, len(streams))
    if rest:
        raise DataError(
            f"data.balance_axes shares the {n_fresh} pairs of a step (optim.prompts_per_step is {prompts_per_step}, "
            f"some are identity pairs) among {len(streams)} axes: set prompts_per_step or data.anchor_fraction so "
            f"that they are a multiple of {len(streams)}."
        )
    return share


def steps_per_epoch(streams: Mapping[str, Sequence[object]], prompts_per_step: int, anchor_fraction: float) -> int:
    """Steps until every pair was seen once; the last one is filled from the next epoch, as are smaller streams."""
    # rounded up: with `//` alone the last pairs of an epoch would not be counted
    return -(-max(map(len, streams.values())) // pairs_of_each(streams, prompts_per_step, anchor_fraction))


def batch_of(
    step: int,
    streams: Mapping[str, Sequence[Item]],
    anchors: Sequence[Item],
    *,
    prompts_per_step: int,
    anchor_fraction: float,
    seed: int,
) -> list[Item]:
    """The pairs of a step (from 1), anchors last; from its arguments alone, so that a resumed run sees the same.

    Args:
        streams: pairs by the name that fixes their order, with `seed`; a step takes equally many of each.
    """
    # without anchors their places go to fresh pairs, so a step is never short
    fraction = anchor_fraction if anchors else 0.0
    share = pairs_of_each(streams, prompts_per_step, fraction)
    fresh = [item for name, pairs in streams.items() for item in _window(pairs, step, share, f"{name}/{seed}")]
    # the rest, not a second rounding: with it a step might miss a prompt
    return [*fresh, *_window(anchors, step, prompts_per_step - len(fresh), f"anchors/{seed}")]


def _window(items: Sequence[Item], step: int, size: int, key: str) -> list[Item]:
    """`size` items for a step, from a stream that reshuffles the items every epoch.

    No item is twice in one step if that can be avoided.
    """
    # step - 1: steps count from 1, positions from 0; a position runs on over the epochs
    places = (divmod(position, len(items)) for position in range((step - 1) * size, step * size))
    return [items[_order(len(items), size, epoch, key)[place]] for epoch, place in places]


def _order(n: int, size: int, epoch: int, key: str) -> list[int]:
    """The order of an epoch; if it begins inside a step, it begins with items that this step does not hold yet."""
    orders = _orders(n, size, key)
    while len(orders) <= epoch:
        # a generator for each epoch by its number: one that goes on would depend on where a run was resumed
        order = random.Random(f"{key}/{len(orders)}").sample(range(n), n)
        held = len(orders) * n % size  # places of the step that the epoch before has filled
        # with fewer items than places repeats cannot be avoided
        if held and n >= size:
            # what the step already has, from the end of the epoch before
            last = set(orders[-1][n - held :])
            first = [i for i in order if i not in last][: size - held]
            order = first + [i for i in order if i not in set(first)]
        orders.append(order)
    return orders[epoch]


@lru_cache(maxsize=16)
def _orders(n: int, size: int, key: str) -> list[list[int]]:
    """The orders of the epochs so far, which `_order` extends: each depends on the one before."""
    # a new list for each key, which `_order` extends in place: the cache keeps that list
    return []
