"""Questions that carry their fact: what a prompt says is to be used, not resisted.

The facts are made up, so that a model can only take them from the prompt: a rule, a row of a table, a passage, what
users say about themselves, a correction that is right. Scenarios, and with them wordings, belong to one split alone.
"""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

from opct.data.questions import SPLITS, Question, Split, of_split
from opct.data.tables import EMBEDDED

CONTEXT = "context_use"
"""Name of the suite, and axis of its samples."""
CONTEXT_IDS = "context/"
"""What the ids of its questions begin with."""
FILLS = 6
"""Questions of each scenario, with other facts in each."""
ROW_FORMATS = ("{label}: {value}", "{label} | {value}", "{label}, {value}", "- {label} = {value}")


@cache
def _context() -> tuple[Question, ...]:
    document: dict[str, Any] = json.loads((EMBEDDED / "context.json").read_text(encoding="utf-8"))
    return tuple(
        _question(
            f"{CONTEXT_IDS}{split}/{number}/{fill}", split, document["pools"], document["names"][split], *scenario
        )
        for split in SPLITS
        for fill in range(FILLS)  # outermost, so that the first questions are of all scenarios
        for number, scenario in enumerate(document[split], start=1)
    )


def _question(
    id_: str, split: Split, pools: Any, names: Any, kind: str, text: str, ask: str, pool: str, labels: Any = ()
) -> Question:
    """One scenario with facts drawn from its pools; the wrong answers of a table are those of its other rows."""
    rng = random.Random(id_)
    # draws in this order from one generator: another order is another question under the same id
    values = rng.sample(pools[pool], 4)
    words = {name: rng.choice(known) for name, known in names.items()}
    rows = rng.sample(list(labels), len(values)) if labels else []
    words |= {"v": values[0], "w": values[1], "label": rows[0] if rows else ""}
    line = rng.choice(ROW_FORMATS)
    lines = [line.format(label=label, value=value) for label, value in zip(rows, values, strict=False)]
    # after `rows` were paired with `values`: the asked row must not always be the first
    rng.shuffle(lines)
    fact = text.format(**words, rows="\n".join(lines))
    return Question(
        id=id_,
        question=f"{fact}\n{ask.format(**words)}",
        answer=values[0],
        aliases=(),
        wrong=tuple(values[1:]),
        topic=f"context/{kind}",
        fixed_split=split,
    )


def scenario_of(question_id: str) -> str:
    """The scenario of an embedded question; replies within one are not independent."""
    return question_id.rsplit("/", 1)[0]


def builtin_context(split: Split | None = None) -> list[Question]:
    """The embedded questions that carry their fact, of one split or all of them; each scenario in turn."""
    return of_split(_context(), split, "questions that carry their fact")
