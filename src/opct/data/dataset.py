"""Which pairs a run trains on, validates on, and in which order: all of it follows from the config and its seed."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from opct.config.schema import TrainConfig
from opct.data.builders.builtin import builtin_pairs
from opct.data.duplicates import near_duplicate_groups
from opct.data.pairs import EVALUATION_ONLY, ContrastivePair, load_pairs
from opct.data.questions import hash_share
from opct.errors import DataError

Item = TypeVar("Item")
BUILTIN = "builtin:"


@dataclass(frozen=True)
class TrainingPairs:
    """The pairs of a run; `hashes` has the SHA-256 of each part as it was read."""

    pairs: list[ContrastivePair]
    anchors: list[ContrastivePair]
    validation: list[ContrastivePair]
    validation_anchors: list[ContrastivePair]
    hashes: dict[str, str]


def load_training_pairs(config: TrainConfig) -> TrainingPairs:
    """Read, check and split the pairs that `config.data` names. No model is needed.

    Held-out pairs for the validation KL come from `validation_pairs`, or from the validation split of embedded pairs,
    or from a share of the questions (see `_held_together`), so that no question is on both sides.

    Raises:
        DataError: a source is faulty or for evaluation only, an id stands in two sources, a question is trained on and
            held out, anchors are not identity pairs, nothing is left, or the axes cannot share a step equally.
    """
    data, seed = config.data, config.seed
    anchor_sources = data.anchors if data.anchor_fraction > 0 else []
    own = {name: load_pairs(name) for name in (*data.pairs, *anchor_sources) if not name.startswith(BUILTIN)}
    names = _held_together([pair for pairs in own.values() for pair in pairs])
    fraction = 0.0 if data.validation_pairs else data.validation_fraction
    trained, held_out = _split(data.pairs, own, names, fraction, seed)
    if data.validation_pairs:
        held_out = _read_held_out(data.validation_pairs, seed)
    anchors, held_out_anchors = _split(anchor_sources, own, names, data.validation_fraction, seed)
    if not data.train_on_evaluation_data:
        _refuse_evaluation_only([*trained, *anchors])
    for pair in [*anchors, *held_out_anchors]:
        if not pair.is_identity:
            raise DataError(
                f"The anchor {pair.id!r} is no identity pair: its prompt differs from its teacher_prompt. "
                "Put it under data.pairs."
            )
    _refuse_shared([*trained, *anchors], held_out)
    _refuse_duplicates([*trained, *held_out, *anchors, *held_out_anchors])
    axes = {pair.axis for pair in trained}
    if data.balance_axes and data.max_pairs is not None and data.max_pairs < len(axes):
        raise DataError(
            f"data.max_pairs is {data.max_pairs} and data.balance_axes shares them among {len(axes)} axes: allow at "
            "least one pair of each."
        )
    trained = _choose_of_each(trained, data.max_pairs, seed, data.balance_axes)
    if data.anchor_fraction > 0 and not anchors:
        raise DataError(
            f"data.anchor_fraction is {data.anchor_fraction} and data.anchors is empty: name identity pairs, "
            "or set the fraction to 0."
        )
    if not trained:
        raise DataError(
            "No training pairs are left after holding out validation pairs: give more pairs, "
            "or lower data.validation_fraction."
        )
    pairs_of_each(
        streams_of([pair.axis for pair in trained], data.balance_axes),
        config.optim.prompts_per_step,
        data.anchor_fraction,
    )
    parts = {
        "pairs": trained,
        "anchors": anchors,
        "validation": _choose_of_each(held_out, data.validation_size, seed, data.balance_axes),
        "validation_anchors": _choose(held_out_anchors, data.validation_size // 2, seed),
    }
    return TrainingPairs(**parts, hashes={name: pairs_hash(part) for name, part in parts.items()})


def pairs_hash(pairs: Sequence[ContrastivePair]) -> str:
    """SHA-256 over the pairs in their order, 16 hex digits."""
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(json.dumps(pair.to_json(), sort_keys=True, ensure_ascii=False).encode())
    return digest.hexdigest()[:16]


def _split(
    sources: Sequence[str],
    own: Mapping[str, Sequence[ContrastivePair]],
    names: Mapping[str, str],
    validation_fraction: float,
    seed: int,
) -> tuple[list[ContrastivePair], list[ContrastivePair]]:
    """(trained on, held out)

    Args:
        own: the pairs of each source that is not embedded, and `names` their names by id; see `_held_together`.
    """
    trained: list[ContrastivePair] = []
    held_out: list[ContrastivePair] = []
    for source in sources:
        if source.startswith(BUILTIN):
            trained += builtin_pairs(source, "train", seed=seed)
            held_out += builtin_pairs(source, "validation", seed=seed, per_question=1)
        else:
            for pair in own[source]:
                is_held_out = hash_share(f"validation/{names[pair.id]}") < validation_fraction
                (held_out if is_held_out else trained).append(pair)
    return trained, held_out


def _held_together(pairs: Sequence[ContrastivePair]) -> dict[str, str]:
    """A name for each pair of all sources, by id; pairs of one name are trained on or held out together.

    It is that of the pair's group (`meta.group`: facts that say nearly the same), else of its question
    (`meta.question_id`), else its id. Near-duplicate behaviours (`meta.behavior`) have the least of their names.
    """
    names = [str(pair.meta.get("group") or pair.meta.get("question_id", pair.id)) for pair in pairs]
    behaviors = [pair.meta.get("behavior") for pair in pairs]
    named = {str(text): name for text, name in zip(behaviors, names, strict=True) if text is not None}
    texts = list(named)
    alike = [[texts[i] for i in group] for group in near_duplicate_groups(texts)]
    least = {text: min(named[own] for own in group) for group in alike for text in group}
    found = zip(pairs, behaviors, names, strict=True)
    return {pair.id: least.get(str(text), name) for pair, text, name in found}


def _refuse_evaluation_only(pairs: Sequence[ContrastivePair]) -> None:
    marked = [pair.id for pair in pairs if pair.meta.get(EVALUATION_ONLY)]
    if marked:
        raise DataError(
            f"{len(marked)} pairs are of a set whose authors ask that it is used for evaluation only, such as "
            "SAGE-Eval: leave them out. To train on them all the same, and report no score on that set: "
            "data.train_on_evaluation_data=true. First ones:",
            tuple(marked[:10]),
        )


def _read_held_out(sources: Sequence[str], seed: int) -> list[ContrastivePair]:
    pairs: list[ContrastivePair] = []
    for source in sources:
        pairs += (
            builtin_pairs(source, "validation", seed=seed, per_question=1)
            if source.startswith(BUILTIN)
            else load_pairs(source)
        )
    return pairs


def _refuse_duplicates(pairs: Sequence[ContrastivePair]) -> None:
    repeated = sorted(pair_id for pair_id, n in Counter(p.id for p in pairs).items() if n > 1)
    if repeated:
        raise DataError(
            f"{len(repeated)} id(s) stand in more than one source: ids must differ. First ones:", tuple(repeated[:10])
        )


def _refuse_shared(trained: Sequence[ContrastivePair], held_out: Sequence[ContrastivePair]) -> None:
    sides = [{str(p.meta["question_id"]) for p in side if "question_id" in p.meta} for side in (trained, held_out)]
    shared = sorted(sides[0] & sides[1])
    if shared:
        raise DataError(
            f"{len(shared)} question(s) are trained on and held out: take them out of one side. First ones:",
            tuple(shared[:10]),
        )


def _choose(pairs: Sequence[Item], at_most: int | None, seed: int) -> list[Item]:
    """A seeded choice, in the order of the source."""
    if at_most is None or at_most >= len(pairs):
        return list(pairs)
    return [pairs[i] for i in sorted(random.Random(f"choose/{seed}").sample(range(len(pairs)), at_most))]


def _choose_of_each(
    pairs: Sequence[ContrastivePair], at_most: int | None, seed: int, balanced: bool
) -> list[ContrastivePair]:
    """A seeded choice; of each axis equally many where axes are balanced, so that none is left out by chance."""
    streams = streams_of([pair.axis for pair in pairs], balanced)
    if at_most is None or len(streams) == 1:
        return _choose(pairs, at_most, seed)
    return [
        pair
        for places in streams.values()
        for pair in _choose([pairs[i] for i in places], at_most // len(streams), seed)
    ]


def anchors_per_step(prompts_per_step: int, anchor_fraction: float) -> int:
    """How many of a step's pairs are identity pairs."""
    return min(round(prompts_per_step * anchor_fraction), prompts_per_step - 1) if prompts_per_step > 1 else 0


def streams_of(axes: Sequence[str], balanced: bool) -> dict[str, list[int]]:
    """Places of the pairs that are drawn from together, by name: all, or those of each axis where axes are balanced.

    Args:
        axes: of each pair.
    """
    names = list(dict.fromkeys(axes)) if balanced else []
    if len(names) < 2:
        return {"pairs": list(range(len(axes)))}
    return {f"pairs/{name}": [i for i, axis in enumerate(axes) if axis == name] for name in names}


def pairs_of_each(streams: Collection[object], prompts_per_step: int, anchor_fraction: float) -> int:
    """How many pairs a step draws from each stream.

    Raises:
        DataError: they cannot be equally many.
    """
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
    """Steps until every pair was seen once; the last one is filled up from the next epoch, as are smaller streams."""
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
    """The pairs of a step (from 1), anchors last; from its arguments alone, so a resumed run goes on alike.

    Args:
        streams: pairs by the name that fixes their order, with `seed`; a step takes equally many of each.
    """
    fraction = anchor_fraction if anchors else 0.0
    share = pairs_of_each(streams, prompts_per_step, fraction)
    fresh = [item for name, pairs in streams.items() for item in _window(pairs, step, share, f"{name}/{seed}")]
    return [*fresh, *_window(anchors, step, prompts_per_step - len(fresh), f"anchors/{seed}")]


def _window(items: Sequence[Item], step: int, size: int, key: str) -> list[Item]:
    """`size` items for a step, from a stream that shuffles the items anew in each epoch.

    No item stands twice in one step if it can be helped.
    """
    places = (divmod(position, len(items)) for position in range((step - 1) * size, step * size))
    return [items[_order(len(items), size, epoch, key)[place]] for epoch, place in places]


def _order(n: int, size: int, epoch: int, key: str) -> list[int]:
    """The order of an epoch. Where it begins inside a step, it begins with items that this step does not hold yet."""
    orders = _orders(n, size, key)
    while len(orders) <= epoch:
        order = random.Random(f"{key}/{len(orders)}").sample(range(n), n)
        held = len(orders) * n % size  # places of the step that the epoch before has filled
        if held and n >= size:
            last = set(orders[-1][n - held :])
            first = [i for i in order if i not in last][: size - held]
            order = first + [i for i in order if i not in set(first)]
        orders.append(order)
    return orders[epoch]


@lru_cache(maxsize=16)
def _orders(n: int, size: int, key: str) -> list[list[int]]:
    """Orders of the epochs so far, for `_order` to go on with: each depends on the one before."""
    return []
