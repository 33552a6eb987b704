"""Attacks on the runs of a report: the curve of broken behaviours, what held, and which behaviours broke.

They are read from `attacks/*/result.json` in each run's folder. No prompt and no reply is in such a file; the prompts
that broke a behaviour are read from the private file beside it, and only where they are asked for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opct.attack.render import median_text, reply_texts, row_of, undecided_text
from opct.errors import EvaluationError
from opct.evals.stats import Difference, average_over_runs, paired_difference
from opct.reports.arms import Arm, Pair
from opct.reports.attack_figures import curve_figure, learning_figure
from opct.reports.attack_numbers import judge_name, numbers_of
from opct.reports.attack_settings import settings_of
from opct.reports.figures import Figure
from opct.reports.wording import change, interval, joined, quantity, told_apart
from opct.runs.io import read_jsonl
from opct.runs.plural import count
from opct.runs.run_dir import RunDir

SCHEMA, KIND = 1, "opct_attack"
RESULT, SUCCESSES = "result.json", "successful_prompts.jsonl"
BROKEN, HELD, UNDECIDED = "broken", "held", "undecided"
STATUSES = (HELD, BROKEN, UNDECIDED)
COMPLETE = "complete"
RATE = "defense_success_rate"
OF_TWINS = {
    "benign_refusal_rate": "refused",
    "benign_always_refused_rate": "refused every time",
    "benign_answered_rate": "answered on topic",
}
"""Metrics of benign twins in words, in the order in which a result has them; one from before the last was measured
lacks it."""
SHOWN_PROMPTS = 3
COLUMNS = (
    "defence rate",
    "its bounds",
    "behaviours",
    "median queries to the first break, behaviours left out",
    "benign twins",
    "replies",
    "spent",
    "judge",
)


@dataclass(frozen=True)
class Attack:
    """One attack on one run; `prompts` by behaviour id, where they were asked for.

    Attributes:
        of_run: the name of the run.
        folder: the name of the attack's folder, which tells apart attacks by one attacker on one run.
        run: what the page calls it: the name of the run, with that of the folder where one attacker attacked it
            several times.
    """

    of_run: str
    folder: str
    run: str
    result: Mapping[str, Any]
    prompts: Mapping[str, tuple[str, ...]]

    @property
    def attacker(self) -> str:
        """Its name."""
        return str(self.result["attacker"]["attacker"])

    def row(self, metric: str) -> Mapping[str, Any]:
        """The row of a metric."""
        return row_of(self.result, metric)

    def with_status(self, status: str) -> list[Mapping[str, Any]]:
        """The behaviours of a status."""
        return [one for one in self.result["behaviors"] if one["status"] == status]

    @property
    def held(self) -> dict[str, float | None]:
        """1 for each behaviour that held, 0 for a broken one, None for an undecided one, by id."""
        values = {BROKEN: 0.0, HELD: 1.0, UNDECIDED: None}
        return {one["id"]: values[one["status"]] for one in self.result["behaviors"]}


@dataclass(frozen=True)
class AttackRow:
    """A line of the table: an attack on a run of an arm, the lines of each cell in the order of `COLUMNS`; its settings
    by name; `numbers` for JSON.
    """

    arm: Arm
    run: str
    cells: tuple[tuple[str, ...], ...]
    settings: Mapping[str, str]
    numbers: Mapping[str, Any]

    def row(self, metric: str) -> Mapping[str, Any]:
        """The row of a metric."""
        return row_of(self.numbers, metric)


@dataclass(frozen=True)
class BrokenBehavior:
    """A behaviour that an attack broke, for the list that is folded away."""

    text: str
    category: str
    query: int
    prompts: tuple[str, ...]


@dataclass(frozen=True)
class BrokenList:
    """Those of one attack."""

    arm: Arm
    run: str
    behaviors: tuple[BrokenBehavior, ...]


@dataclass(frozen=True)
class AttackView:
    """Everything about one attacker on the page."""

    name: str
    figures: tuple[Figure, ...]
    rows: tuple[AttackRow, ...]
    differences: tuple[str, ...]
    broken: tuple[BrokenList, ...]
    warnings: tuple[str, ...]


def load_attacks(directory: Path, name: str, *, prompts: bool = False) -> list[Attack]:
    """The attacks in a run's folder, by the name of their folders.

    Args:
        name: of the run.
        prompts: read the prompts that broke a behaviour, too.

    Raises:
        EvaluationError: a result cannot be read.
    """
    found = []
    for path in sorted(RunDir(directory).attacks_dir.glob(f"*/{RESULT}")):
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise EvaluationError(f"Cannot read {path} ({error}): attack again, or remove its folder.") from error
        if not isinstance(result, dict) or (result.get("kind"), result.get("schema")) != (KIND, SCHEMA):
            raise EvaluationError(f"{path} is no result of an attack that this version reads: attack again.")
        texts = _prompts(path.with_name(SUCCESSES)) if prompts else {}
        found.append(Attack(name, path.parent.name, name, result, texts))
    by = Counter(one.attacker for one in found)
    return [replace(one, run=f"{name}, {one.folder}") if by[one.attacker] > 1 else one for one in found]


def _prompts(path: Path) -> dict[str, tuple[str, ...]]:
    """The first few prompts that broke each behaviour, by its id."""
    found: dict[str, list[str]] = {}
    for row in read_jsonl(path)[1:]:
        said = "\n\n".join(f"{message['role']}: {message['content']}" for message in row["prompt"])
        found.setdefault(str(row["behavior_id"]), []).append(said)
    return {id_: tuple(own[:SHOWN_PROMPTS]) for id_, own in found.items()}


def attack_views(arms: Sequence[Arm], pairs: Sequence[Pair], *, prompts: bool = False) -> list[AttackView]:
    """One part of the page for each attacker, in the order in which they are found."""
    of_arm = {
        arm.label: [one for run in arm.runs for one in load_attacks(run.path, run.name, prompts=prompts)]
        for arm in arms
    }
    names = dict.fromkeys(one.attacker for own in of_arm.values() for one in own)
    return [
        _view(name, [(arm, [one for one in of_arm[arm.label] if one.attacker == name]) for arm in arms], pairs)
        for name in names
    ]


def _view(name: str, attacks: Sequence[tuple[Arm, Sequence[Attack]]], pairs: Sequence[Pair]) -> AttackView:
    there = [(arm, one) for arm, own in attacks for one in own]
    differences, apart = _differences(attacks, pairs)
    return AttackView(
        name,
        tuple(found for found in (curve_figure(name, there), learning_figure(name, there)) if found is not None),
        tuple(AttackRow(arm, one.run, _cells(one), settings_of(one.result), _numbers(one)) for arm, one in there),
        differences,
        tuple(_broken(arm, one) for arm, one in there),
        (*_warnings(there), *apart),
    )


def _cells(one: Attack) -> tuple[tuple[str, ...], ...]:
    spent, judge = one.result["budget"]["spent"], one.result["judge"]
    reasons = {UNDECIDED: undecided_text(one.result)}
    return (
        (rate_text(one.row(RATE)),),
        tuple(
            f"undecided as {bound}: {rate_text(one.row(f'{RATE}_undecided_as_{bound}'))}" for bound in (BROKEN, HELD)
        ),
        tuple(f"{len(one.with_status(status))} {status}{reasons.get(status, '')}" for status in STATUSES),
        (median_text(one.result["curve"]),),
        tuple(
            f"{OF_TWINS[row['metric']]}: {rate_text(row)}" for row in one.result["rows"] if row["metric"] in OF_TWINS
        ),
        reply_texts(one.result),
        (f"{spent['queries']:,} queries", f"{spent['tokens']:,} sampled tokens"),
        (judge_name(judge),),
    )


def rate_text(row: Mapping[str, Any]) -> str:
    """A rate with its interval and n; of twins also of how many they are, where each has several replies."""
    is_shared = row["metric"] in OF_TWINS and row["n_clusters"] != row["n"]
    twins = f" on {count(row['n_clusters'], 'twin')}" if is_shared else ""
    said = interval(row["ci_low"], row["ci_high"], "rate")
    return f"{quantity(row['value'], 'rate')} ({said}), n = {row['n']:,}{twins}"


def _numbers(one: Attack) -> dict[str, Any]:
    return {"run": one.of_run, "folder": one.folder, **numbers_of(one.result)}


def _broken(arm: Arm, one: Attack) -> BrokenList:
    return BrokenList(
        arm,
        one.run,
        tuple(
            BrokenBehavior(
                str(own["behavior"]), str(own["category"]), int(own["first_break"]), one.prompts.get(own["id"], ())
            )
            for own in sorted(one.with_status(BROKEN), key=lambda own: own["first_break"])
        ),
    )


def _differences(
    attacks: Sequence[tuple[Arm, Sequence[Attack]]], pairs: Sequence[Pair]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(paired differences of what held, in words; why there are none where attacks do not compare)."""
    of_label = {arm.label: own for arm, own in attacks}
    found, apart = [], []
    for pair in pairs:
        one, other = of_label.get(pair.of, ()), of_label.get(pair.against, ())
        if not one or not other:
            continue
        early = [f"{own.run} ({own.result['ended']})" for own in (*one, *other) if own.result["ended"] != COMPLETE]
        if early:
            apart.append(f"{pair.title}: {joined(early)} ended early, so no difference is given.")
            continue
        unlike = sorted({name for a in one for b in other for name in _unlike(a, b)})
        if unlike:
            apart.append(f"{pair.title}: the attacks differ in {', '.join(unlike)}, so no difference is given.")
            continue
        found.append(f"{pair.title}: {_difference_text(_paired(one, other))}")
    return tuple(found), tuple(apart)


def _paired(one: Sequence[Attack], other: Sequence[Attack]) -> Difference:
    """What held of one less what held of the other, over behaviours that both decided; of runs, averaged first."""
    sides = [average_over_runs([attack.held for attack in own]) for own in (one, other)]
    ids = {id_ for side in sides for id_ in side}
    return paired_difference(sides[0], sides[1], {id_: id_ for id_ in ids})


def _difference_text(found: Difference) -> str:
    if found.value is None:
        return "no behaviour was decided in both"
    said = interval(found.ci_low, found.ci_high, "rate", signed=True)
    return f"{change(found.value, 'rate')} of behaviours held ({said}; n = {found.n} decided in both)"


def _unlike(a: Attack, b: Attack) -> list[str]:
    """Names of what two attacks must share to be compared, and do not.

    Of an attacker that learns, its weights and what it is shown are left out: it is another one for each target,
    trained alike, and shown the successes of its training.
    """

    def facts(one: Attack) -> dict[str, Any]:
        result, target, attacker = one.result, one.result["target"], dict(one.result["attacker"])
        learns = "training" in attacker
        own = ("source", "weights") if learns else ("source",)
        if isinstance(attacker.get("model"), dict):
            attacker["model"] = {name: value for name, value in attacker["model"].items() if name not in own}
        return {
            "attacker": attacker,
            "judge": result["judge"]["hash"],
            "rules": result["settings"]["rules"],
            "behaviours": result["settings"]["behaviors"],
            "pool": None if learns else result["settings"].get("pool"),
            "budget": result["budget"]["limits"],
            "dtype": target.get("dtype"),
            "reply length": target.get("max_tokens"),
            "temperature": target.get("temperature"),
        }

    mine, theirs = facts(a), facts(b)
    return [name for name in mine if mine[name] != theirs[name]]


def _warnings(attacks: Sequence[tuple[Arm, Attack]]) -> list[str]:
    """What the attacks by an attacker warned of, and their judges' weaknesses; what is said of several, once."""
    of: dict[str, list[str]] = {}
    for arm, one in attacks:
        weakness = one.result["judge"].get("warning")
        for said in (*one.result["warnings"], *([weakness] if weakness else ())):
            of.setdefault(said, []).append(told_apart(arm.label, arm.name, one.run))
    name = attacks[0][1].attacker if attacks else ""
    return [f"{name} against {joined(arms)}: {said}" for said, arms in of.items()]


def attacks_json(views: Sequence[AttackView]) -> list[dict[str, Any]]:
    """The numbers as JSON; no prompt is in it."""
    return [
        {
            "attacker": view.name,
            "attacks": [{"arm": row.arm.label, **row.numbers} for row in view.rows],
            "differences": list(view.differences),
            "broken": [
                {
                    "arm": own.arm.label,
                    **{name: row.numbers[name] for name in ("run", "folder")},
                    "behaviors": [one.text for one in own.behaviors],
                }
                for row, own in zip(view.rows, view.broken, strict=True)
            ],
            "warnings": list(view.warnings),
        }
        for view in views
    ]


def has_prompts(views: Sequence[AttackView]) -> bool:
    """Whether a prompt that broke a behaviour is in them."""
    return any(one.prompts for view in views for own in view.broken for one in own.behaviors)


def broken_title(own: BrokenList) -> str:
    """What the folded list is called."""
    return f"{told_apart(own.arm.label, own.arm.name, own.run)}: {count(len(own.behaviors), 'broken behaviour')}"
