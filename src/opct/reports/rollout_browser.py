"""Data of the rollout browser: replies of all arms to the same prompt, as JSON that is safe inside HTML.

Only samples that every arm has are shown. Too many would slow the page down, so a selection fixed by the ids takes
turns over (family, verdict change). Each combination is shown, so the selection is NOT representative of the rates; the
page says so.

A page may be published. So it never contains data whose authors ask to keep it off the web: GPQA and evaluation-only
sets (SAGE-Eval), which a crawler could turn into training data. Nor does it contain an attacker's prompts, which may
work on other models.
"""

from __future__ import annotations

import hashlib
import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from opct.data.pairs import Message
from opct.data.perturb.jailbreak import ARTIFACT
from opct.evals.samples import ATTACK, GradedSample
from opct.reports.arms import Arm
from opct.reports.axes import place_in
from opct.reports.compare import section_titles

MAX_ITEMS = 200
MAX_BYTES = 2_000_000
MAX_LIKELIEST_BYTES = 300_000
"""What the lists of likeliest tokens may add to a page; the replies of later prompts have none."""
MAX_REPLY_CHARACTERS = 6000
MAX_TITLE = 160
KL_STEPS = (0.01, 0.03, 0.1, 0.3, 1.0)
"""KL thresholds, in nats per token, at which a token's color gets one step darker."""

UNPUBLISHED = ("gpqa",)
"""Suites whose authors ask that examples are not shown in plain text online."""

_SPLIT_ORDER = ("held_out", "train", "clean", "benign")


@dataclass(frozen=True)
class Browser:
    """Content of the rollout browser: `data` goes into the page, the counts into its caption.

    `withheld` prompts are in no other count: their authors ask not to publish or train on them, or they are an
    attacker's.
    """

    data: dict[str, Any]
    shown: int
    paired: int
    unpaired: int
    withheld: int


def build_browser(arms: Sequence[Arm]) -> Browser:
    """Select and format the samples of the page; the first run of an arm represents it."""
    samples = [arm.runs[0].replies for arm in arms]
    # by id over all arms: a prompt withheld in one must not be shown in another
    withheld = {sample.id for arm_samples in samples for sample in arm_samples if _is_withheld(sample)}
    by_arm = [{sample.id: sample for sample in arm_samples if sample.id not in withheld} for arm_samples in samples]
    everywhere = set(by_arm[0]).intersection(*by_arm[1:])
    anywhere = set().union(*by_arm)
    plain = {json.dumps([sample.task, sample.prompt], sort_keys=True): sample for sample in by_arm[0].values()}
    items: list[dict[str, Any]] = []
    size = 0
    for identifier in _turns(sorted(everywhere), by_arm)[:MAX_ITEMS]:
        item = _item([arm_samples[identifier] for arm_samples in by_arm], plain)
        size += len(json.dumps(item))
        # `items`: a first prompt that is too large is shown all the same, or the page would have none
        if items and size > MAX_BYTES:
            break
        items.append(item)
    pairs = [(by[item["id"]], reply) for item in items for by, reply in zip(by_arm, item["replies"], strict=True)]
    data = {
        "arms": [{"name": arm.name, "style": arm.style} for arm in arms],
        "kl_steps": list(KL_STEPS),
        "splits": _splits([by_arm[0][item["id"]] for item in items]),
        "texts": _add_likeliest(pairs),
        "items": items,
    }
    unpaired = len(anywhere) - len(everywhere)
    return Browser(data=data, shown=len(items), paired=len(everywhere), unpaired=unpaired, withheld=len(withheld))


def _add_likeliest(pairs: Iterable[tuple[GradedSample, dict[str, Any]]]) -> list[str]:
    """Give replies the likeliest tokens where they are colored; returns the texts that these refer to by index.

    `reply["likeliest"]` has for each token None, or of the model and then of the base a flat list: index, thousandths,
    index, thousandths ...
    """
    places: dict[str, int] = {}
    size = 0
    for sample, reply in pairs:
        lists = sample.likeliest or []
        if len(lists) != len(reply.get("kl", ())) or not lists:
            continue
        colored = [kl is not None and kl >= KL_STEPS[0] for kl in reply["kl"]]
        found = [both if is_colored else None for both, is_colored in zip(lists, colored, strict=True)]
        size += len(json.dumps(found))
        if size > MAX_LIKELIEST_BYTES:
            break
        reply["likeliest"] = [both and [_flat(side, places) for side in both] for both in found]
    return list(places)


def _flat(side: Sequence[tuple[str, float]], places: dict[str, int]) -> list[int]:
    return [n for text, p in side for n in (places.setdefault(text, len(places)), round(1000 * p))]


def _is_withheld(sample: GradedSample) -> bool:
    is_attack = sample.axis == ATTACK or sample.family == ARTIFACT
    is_secret = any(name in sample.task for name in UNPUBLISHED)
    return is_attack or is_secret or bool(sample.grading.get("is_evaluation_only"))


def _turns(identifiers: Sequence[str], by_arm: Sequence[dict[str, GradedSample]]) -> list[str]:
    """The ids in turn over (family, verdict change).

    Changes with per-token KL come first, then held-out families and other changes; within a combination, KL does.
    """
    families: dict[tuple[int, str], dict[tuple[str, str], list[tuple[bool, str, str]]]] = {}
    for identifier in identifiers:
        samples = [arm[identifier] for arm in by_arm]
        first, last = samples[0], samples[-1]
        rank = place_in(_SPLIT_ORDER, first.group)
        has_no_kl = not any(sample.kl for sample in samples)
        # by hash: a choice that is the same on every machine, and follows no order of the data
        place = (has_no_kl, hashlib.sha256(identifier.encode()).hexdigest(), identifier)
        changes = families.setdefault((rank, f"{first.side} {first.family}"), {})
        changes.setdefault((_verdict(first), _verdict(last)), []).append(place)
    # (turn, family, places): every family's first change comes before any family's second
    queues = sorted(
        (turn, family, sorted(changes[change]))
        for family, changes in families.items()
        for turn, change in enumerate(sorted(changes, key=_interest))
    )
    ordered = [place[-1] for turn in zip_longest(*(places for *_, places in queues)) for place in turn if place]
    return sorted(ordered, key=lambda identifier: not _is_painted_change([arm[identifier] for arm in by_arm]))


def _interest(change: tuple[str, str]) -> tuple[bool, bool, bool, tuple[str, str]]:
    """Sort key of verdicts before and after: what changed first, and what training is for before all."""
    before, after = change
    return before == after, before != "suggested", after != "correct", change


def _is_painted_change(samples: Sequence[GradedSample]) -> bool:
    """Whether the reply of the last arm is another than the first's, with the KL that says at which token."""
    return _verdict(samples[0]) != _verdict(samples[-1]) and any(sample.kl for sample in samples)


def _split_key(sample: GradedSample) -> str:
    return f"{sample.task}:{sample.group}"


def _splits(samples: Sequence[GradedSample]) -> dict[str, str]:
    """The headings of the suites and splits of a sample: "Jailbreak: held-out families"."""
    suites: dict[str, set[str]] = {}
    for sample in samples:
        suites.setdefault(sample.axis, set()).add(sample.task)
    return {_split_key(s): section_titles(s.axis, s.task, s.group, several=len(suites[s.axis]) > 1)[1] for s in samples}


def _verdict(sample: GradedSample) -> str:
    return sample.verdict or "unscored:no verdict"


def _item(samples: Sequence[GradedSample], plain: Mapping[str, GradedSample]) -> dict[str, Any]:
    """One prompt with every arm's reply. `plain` has the first arm's samples by task and prompt: the one of the teacher
    prompt is what it says without the pressure."""
    first = samples[0]
    teacher = next((s.teacher_prompt for s in samples if s.teacher_prompt), None)
    clean = None if teacher in (None, first.prompt) else plain.get(json.dumps([first.task, teacher], sort_keys=True))
    return {
        "id": first.id,
        "title": _question(teacher or first.prompt),
        "task": first.task,
        "axis": first.axis,
        "family": first.family,
        "split": _split_key(first),
        "answer": _optional_text(first.grading.get("answer")),
        "suggested": _optional_text(first.grading.get("suggested")),
        "prompt": said(first.prompt),
        "teacher": said(teacher) if teacher and teacher != first.prompt else None,
        "replies": [_reply(sample, first) for sample in samples],
        "clean": None if clean is None else _reply(clean, clean),
    }


def _question(prompt: Sequence[Message]) -> str:
    """What the last user message asks, up to its question mark; its first line if it has none. A heading."""
    asked = "".join([message["content"] or "" for message in prompt if message["role"] == "user"][-1:])
    lines = [line for line in asked.splitlines() if line.strip()] or ["(empty prompt)"]
    questions = [line[: line.rindex("?") + 1] for line in lines if "?" in line]
    return textwrap.shorten((questions or lines)[0], MAX_TITLE, placeholder=" \u2026")


def _optional_text(value: Any) -> str | None:
    if value is None or value == "":
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def said(messages: Sequence[Message]) -> list[list[str]]:
    """Messages as [role, text]."""
    return [[message["role"] or "", message["content"] or ""] for message in messages]


def _reply(sample: GradedSample, first: GradedSample) -> dict[str, Any]:
    """One arm's reply. Its prompt is included if it holds an earlier reply of that arm, and so differs from the first
    arm's.
    """
    reply: dict[str, Any] = {
        "verdict": _verdict(sample),
        "text": sample.completion[:MAX_REPLY_CHARACTERS],
        "cut": max(len(sample.completion) - MAX_REPLY_CHARACTERS, 0),
        "stop": sample.stop_reason,
        "n": sample.completion_tokens,
    }
    if sample.tokens and sample.kl and len(sample.tokens) == len(sample.kl) and not reply["cut"]:
        reply["tokens"] = sample.tokens
        # JSON has no NaN: the browser's parser would refuse the whole page's data
        reply["kl"] = [round(value, 4) if value is not None and math.isfinite(value) else None for value in sample.kl]
    if sample.prompt != first.prompt:
        reply["prompt"] = said(sample.prompt)
    return reply
