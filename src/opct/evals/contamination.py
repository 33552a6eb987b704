"""Warnings that what was evaluated had been trained on, so that "held out" is not true of it.

Families, and questions, behaviours, facts and benign requests by their ids, as the run's manifest has them; behaviours,
their twins and facts also where they are near-duplicates of what was trained on, under whatever id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from opct.data.contamination import TrainedTexts
from opct.data.near_duplicates import crossing
from opct.data.perturb.jailbreak import ARTIFACT
from opct.evals.metrics import Row
from opct.evals.samples import BENIGN, BENIGN_PREFIX
from opct.evals.tasks.jailbreak import JAILBREAK
from opct.evals.tasks.safety_awareness import SAFETY_AWARENESS

NOUNS = {JAILBREAK: "behaviours", SAFETY_AWARENESS: "facts", BENIGN: "benign requests"}
"""What the clusters of an axis are; of every other one, questions."""
FILES = {JAILBREAK: (JAILBREAK, ARTIFACT), SAFETY_AWARENESS: (SAFETY_AWARENESS,)}
"""By suite: the uses of files that behaviours or facts come from."""
SHOWN = 3


def held_in_warnings(
    samples: Sequence[Row],
    settings: Mapping[str, Any],
    *,
    families: Collection[str] = (),
    questions: Collection[str] = (),
    texts: TrainedTexts | None = None,
) -> list[str]:
    """What of these samples training used.

    Args:
        samples: rows of `samples.jsonl`.
        settings: those of `results.json`; they name the files that were evaluated.
        families, questions: names and ids of those that training used.
        texts: what training used; None where that is not known.
    """
    found = []
    for noun, rows in _by_noun(samples).items():
        asked = {row["cluster"] for row in rows}
        same = asked & set(questions)
        near = _near(rows, texts or TrainedTexts()) - same
        if same or near:
            found.append(_words(noun, len(asked), sorted(same), sorted(near)))
    files = [] if texts is not None and texts.is_complete else list(dict.fromkeys(_own_files(settings)))
    if files:
        found.append(
            "It is not known which behaviours and facts these weights were trained on, so those of "
            f"{', '.join(files)} may be among them in other words: what is measured may be partly held in."
        )
    shown = {sample["family"] for sample in samples if sample["family_split"] == "held_out"} & set(families)
    if shown:
        found.append(f"Families shown as held out were trained on: {', '.join(sorted(shown))}.")
    return found


def _by_noun(samples: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for sample in samples:
        found.setdefault(NOUNS.get(sample.get("axis", ""), "questions"), []).append(sample)
    return found


def _near(rows: Sequence[Row], texts: TrainedTexts) -> set[str]:
    """The clusters with a text that is a near-duplicate of one of its kind that was trained on."""
    asked: dict[str, dict[tuple[str, str], None]] = {}
    for row in rows:
        for kind, text in _texts(row):
            asked.setdefault(kind, {})[row["cluster"], text] = None
    near = set()
    for kind, own in asked.items():
        places = crossing([text for _, text in own], getattr(texts, kind))
        near |= {cluster for i, (cluster, _) in enumerate(own) if i in places}
    return near


def _texts(row: Row) -> Iterator[tuple[str, str]]:
    """(kind, text) of what a sample is about; the kinds are those of `TrainedTexts`."""
    if row.get("behavior") and row["family_split"].startswith(BENIGN_PREFIX):
        yield "twins", row["teacher_prompt"][-1]["content"]
    elif row.get("behavior"):
        yield "behaviors", row["behavior"]
    elif row.get("fact"):
        yield "facts", row["fact"]


def _own_files(settings: Mapping[str, Any]) -> Iterator[str]:
    """The files that the behaviours and facts of the results come from, also those of suites that were kept."""
    for suite, uses in FILES.items():
        if suite in settings["suites"]:
            data = settings.get("kept", {}).get(suite, {}).get("data", settings["data"])
            yield from (str(data[use]) for use in uses if use in data)


def _words(noun: str, asked: int, same: Sequence[str], near: Sequence[str]) -> str:
    n, only = len(same) + len(near), "" if len(same) + len(near) == asked else "partly "
    ways = [f"were trained on ({_first(same)})"] if same else []
    ways += [f"are near-duplicates of ones that were trained on ({_first(near)})"] if near else []
    counts = f" ({len(same)} and {len(near)})" if len(ways) > 1 else ""
    return (
        f"{n} of the {asked} {noun} {' or '.join(ways)}{counts}: what is measured is {only}held in, and does not show "
        f"what holds for other {noun}."
    )


def _first(ids: Sequence[str]) -> str:
    return ", ".join(ids[:SHOWN]) + (", ..." if len(ids) > SHOWN else "")
