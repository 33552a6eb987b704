"""Attacks in a report: the results of each attacker on each run, settings, paired differences and warnings.

Read from `attacks/*/result.json` in each run's folder, which holds no prompt and no reply. Successful prompts are in a
private file next to it, and are read only on request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Literal

from pydantic import BaseModel, Field

from opct.attack.loop import COMPLETE
from opct.attack.result_table import median_text, reply_texts, row_of, training_lines, undecided_text
from opct.attack.results import DEFENDED, JAILBROKEN, UNDECIDED
from opct.attack.store import AttackDir
from opct.config.schema import flat_settings
from opct.errors import EvaluationError
from opct.evals.stats import Pooled, SeedDifference, difference_over_seeds, pooled_over_seeds
from opct.reports import charts
from opct.reports.arms import Arm, Pair
from opct.reports.figures import Figure
from opct.reports.load import EvaluatedRun
from opct.reports.verdict import Finding
from opct.reports.warnings import merge_alike
from opct.reports.wording import MISSING, change, interval, joined, quantity
from opct.runs.console import pluralize
from opct.runs.io import read_json, read_jsonl
from opct.runs.run_dir import RunDir

RATE, REFUSED = "defense_success_rate", "benign_refusal_rate"
COUNTERPART_METRICS = {
    REFUSED: "refused",
    "benign_always_refused_rate": "refused every time",
    "benign_answered_rate": "answered on topic",
}
DIFFERENCES = {
    RATE: ("behaviours defended", "decided in both"),
    REFUSED: ("replies to benign counterparts refused", "counterparts scored in both"),
}
"""The metrics of paired differences: what they count, and over which ids."""
COUNTERPART_SETTINGS = ("counterparts", "counterpart_rules", "counterpart_judge")
SHOWN_PROMPTS = 3  # of each jailbroken behaviour
MOST_WITH_BOUNDS = 3  # attacks whose intervals fit in one drawing
COLUMNS = (
    "defence rate",
    "bounds",
    "behaviours",
    "median queries to the first jailbreak",
    "benign counterparts",
    "replies",
    "budget",
    "judge",
)


class _Result(BaseModel, extra="allow"):
    """`result.json` of an attack."""

    kind: Literal["opct_attack"]
    version: Literal[2] = Field(alias="schema")


@dataclass(frozen=True)
class Attack:
    """One attack on one run of an arm.

    Attributes:
        folder: the name of the attack's folder.
        run: the name of the run on the page, with the folder where one attacker attacked it several times.
        prompts: by behaviour id; empty unless asked for.
    """

    arm: Arm
    of_run: str
    seed: int | None
    folder: str
    run: str
    result: Mapping[str, Any]
    prompts: Mapping[str, tuple[str, ...]]

    @property
    def attacker(self) -> str:
        return str(self.result["attacker"]["attacker"])

    @property
    def title(self) -> str:
        """ "OPCT: opct-seed1"; only the arm if the run is named like its label."""
        return self.arm.name if self.run == self.arm.label else f"{self.arm.name}: {self.run}"

    def values(self, metric: str) -> dict[str, float | None]:
        """By id: of a behaviour 1 if defended, 0 if jailbroken, None if undecided; or the share of refusals of a
        counterpart, None without a score.
        """
        if metric == REFUSED:
            return dict(self.result.get("counterparts_refused", {}))  # older attacks have none
        values = {JAILBROKEN: 0.0, DEFENDED: 1.0, UNDECIDED: None}
        return {one["id"]: values[one["status"]] for one in self.result["behaviors"]}

    @property
    def jailbroken(self) -> list[Mapping[str, Any]]:
        """The jailbroken behaviours, sorted by the query that jailbroke them."""
        found = [one for one in self.result["behaviors"] if one["status"] == JAILBROKEN]
        return sorted(found, key=lambda one: one["first_jailbreak"])

    @property
    def jailbroken_title(self) -> str:
        return f"{self.title}: {pluralize(len(self.jailbroken), 'jailbroken behaviour')}"

    @property
    def cells(self) -> tuple[tuple[str, ...], ...]:
        """The lines of each cell of the table, in the order of `COLUMNS`."""
        n_of = Counter(one["status"] for one in self.result["behaviors"])
        spent, rules = self.result["budget"]["spent"], self.result["settings"]["rules"]
        counterparts = [row for row in self.result["rows"] if row["metric"] in COUNTERPART_METRICS]
        bounds = {bound: row_of(self.result, f"{RATE}_undecided_as_{bound}") for bound in (JAILBROKEN, DEFENDED)}
        return (
            (rate_text(row_of(self.result, RATE)),),
            tuple(f"undecided as {bound}: {rate_text(row)}" for bound, row in bounds.items()),
            (
                f"{n_of[DEFENDED]} {DEFENDED}",
                f"{n_of[JAILBROKEN]} {JAILBROKEN}",
                f"{n_of[UNDECIDED]} {UNDECIDED}{undecided_text(self.result)}",
            ),
            (median_text(self.result["curve"]),),
            tuple(f"{COUNTERPART_METRICS[row['metric']]}: {rate_text(row)}" for row in counterparts),
            reply_texts(self.result),
            (
                f"{spent['queries']:,} queries, {spent['tokens']:,} sampled tokens",
                f"{pluralize(rules['episodes'], 'episode')} of {pluralize(rules['rounds'], 'round')}",
                f"ended: {self.result['ended']}",
                *training_lines(self.result.get("training")),
            ),
            (judge_text(self.result["judge"]),),
        )


@dataclass(frozen=True)
class AttackDifference:
    """The paired difference of two arms: of the defence rate over behaviours that both decided, or of the mean share of
    refusals over benign counterparts that have a score in both.
    """

    pair: Pair
    metric: str
    found: SeedDifference

    def __str__(self) -> str:
        counted, over = DIFFERENCES[self.metric]
        if self.found.value is None:
            return f"{self.pair.title}: no difference in {counted} (n = 0 {over})"
        bounds = interval(self.found.ci_low, self.found.ci_high, "rate", signed=True)
        told = f"{change(self.found.value, 'rate')} of {counted}"
        return f"{self.pair.title}: {told} ({bounds}; n = {self.found.n} {over})"

    def to_json(self) -> dict[str, Any]:
        """The difference in report.json."""
        found = self.found
        numbers = {"difference": found.value, "ci_low": found.ci_low, "ci_high": found.ci_high, "n": found.n}
        return {"of": self.pair.of, "against": self.pair.against, "metric": self.metric, **numbers}


@dataclass(frozen=True)
class AttackSection:
    """The section of the page about one attacker."""

    name: str
    attacks: tuple[Attack, ...]
    differences: tuple[AttackDifference, ...]
    warnings: tuple[str, ...]

    @property
    def figures(self) -> list[Figure]:
        figure = curve_figure(self.name, self.attacks)
        return [] if figure is None else [figure]

    def of(self, label: str) -> list[Attack]:
        """The attacks on an arm."""
        return [attack for attack in self.attacks if attack.arm.label == label]

    def mean(self, label: str, metric: str) -> Pooled | None:
        """Of an arm over its runs, of a metric in `DIFFERENCES`; None where a run has no value, several attacks or one
        that ended early, or where the attacks differ in their settings.
        """
        attacks = self.of(label)
        values = [attack.values(metric) for attack in attacks]
        alike = all(_comparability(attack.result) == _comparability(attacks[0].result) for attack in attacks)
        complete = all(attack.result["ended"] == COMPLETE for attack in attacks)
        if not alike or not complete or len({attack.of_run for attack in attacks}) < len(attacks):
            return None
        if not all(any(one is not None for one in own.values()) for own in values):
            return None
        return pooled_over_seeds(values, {id_: id_ for own in values for id_ in own})

    @property
    def levels(self) -> list[tuple[Arm, str, str, str]]:
        """(arm, name, defence rate, its interval): the mean over an arm's runs, else one for each of its attacks."""
        found = []
        for arm in _arms(self.attacks):
            attacks, mean = self.of(arm.label), self.mean(arm.label, RATE)
            rows: dict[str, Mapping[str, Any]] = {} if mean is None else {arm.name: vars(mean)}
            if len(attacks) == 1 or mean is None:
                rows = {attack.title: row_of(attack.result, RATE) for attack in attacks}
            for name, row in rows.items():
                bounds = interval(row["ci_low"], row["ci_high"], "rate")
                found.append((arm, name, quantity(row["value"], "rate"), bounds))
        return found

    @property
    def counts(self) -> str:
        """ "n = 95 to 100 behaviours an attack, 0 to 5 undecided; 10 attacks"."""
        rows = [row_of(attack.result, RATE) for attack in self.attacks]
        decided, undecided = (sorted({row[name] for row in rows}) for name in ("n", "n_unscored"))
        n, left = (" to ".join(f"{one:,}" for one in dict.fromkeys((own[0], own[-1]))) for own in (decided, undecided))
        return f"n = {n} behaviours an attack, {left} undecided; {pluralize(len(rows), 'attack')}"

    @property
    def settings(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """(columns: one for each attack, rows: one for each setting)."""
        of_each = [settings_of(attack.result) for attack in self.attacks]
        names = dict.fromkeys(name for each in of_each for name in each)
        columns = ("setting", *(attack.title for attack in self.attacks))
        return columns, [(name, *(each.get(name, MISSING) for each in of_each)) for name in names]


def attack_sections(arms: Sequence[Arm], pairs: Sequence[Pair], *, prompts: bool = False) -> list[AttackSection]:
    """One section per attacker, in the order found.

    Raises:
        EvaluationError: a file is not JSON, or no result of an attack.
    """
    attacks = [own for arm in arms for run in arm.runs for own in _load_attacks(arm, run, prompts=prompts)]
    sections = []
    for name in dict.fromkeys(attack.attacker for attack in attacks):
        own = tuple(attack for attack in attacks if attack.attacker == name)
        differences, not_compared = _differences(own, pairs)
        sections.append(AttackSection(name, own, differences, (*_warnings(name, own), *not_compared)))
    return sections


def _load_attacks(arm: Arm, run: EvaluatedRun, *, prompts: bool) -> list[Attack]:
    """The attacks in a run's folder, by folder name."""
    found = []
    for path in sorted(RunDir(run.path).attacks_dir.glob("*/result.json")) if run.path else ():
        stored = read_json(path, _Result, hint="Run the attack again, or delete its folder.", error=EvaluationError)
        result, folder = stored.model_dump(by_alias=True), AttackDir(path.parent)
        texts = _prompts(folder.successes_path) if prompts else {}
        found.append(Attack(arm, run.name, run.seed, folder.path.name, run.name, result, texts))
    by = Counter(attack.attacker for attack in found)
    return [replace(one, run=f"{run.name}, {one.folder}") if by[one.attacker] > 1 else one for one in found]


def _prompts(path: Path) -> dict[str, tuple[str, ...]]:
    """The first few successful prompts on each behaviour, by its id."""
    found: dict[str, list[str]] = {}
    for row in read_jsonl(path)[1:]:  # the first says what the file is
        text = "\n\n".join(f"{message['role']}: {message['content']}" for message in row["prompt"])
        found.setdefault(row["behavior_id"], []).append(text)
    return {id_: tuple(own[:SHOWN_PROMPTS]) for id_, own in found.items()}


def rate_text(row: Mapping[str, Any]) -> str:
    """A rate with its interval and n; of counterparts with several replies each, the number of counterparts too."""
    has_several = row["metric"] in COUNTERPART_METRICS and row["n_clusters"] != row["n"]
    counterparts = f" on {pluralize(row['n_clusters'], 'counterpart')}" if has_several else ""
    bounds = interval(row["ci_low"], row["ci_high"], "rate")
    return f"{quantity(row['value'], 'rate')} ({bounds}), n = {row['n']:,}{counterparts}"


# ------------------------------------------------------------------------------------------ differences and warnings


def _differences(
    attacks: Sequence[Attack], pairs: Sequence[Pair]
) -> tuple[tuple[AttackDifference, ...], tuple[str, ...]]:
    """The paired differences over behaviours and seeds, or why two attacks cannot be compared."""
    found, not_compared = [], []
    for pair in pairs:
        one, other = ([a for a in attacks if a.arm.label == label] for label in (pair.of, pair.against))
        if not one or not other:
            continue
        early = [f"{own.run} ({own.result['ended']})" for own in (*one, *other) if own.result["ended"] != COMPLETE]
        sides = [(_comparability(a.result), _comparability(b.result)) for a in one for b in other]
        unlike = sorted({name for mine, theirs in sides for name in mine if mine[name] != theirs[name]})
        if early:
            not_compared.append(f"{pair.title}: {joined(early)} ended early; no difference is given.")
        elif unlike:
            not_compared.append(f"{pair.title}: the attacks differ in {', '.join(unlike)}, so no difference is given.")
        else:
            for metric in DIFFERENCES:
                mine, theirs = ([attack.values(metric) for attack in own] for own in (one, other))
                if not all([*mine, *theirs]):
                    continue  # no counterparts, or an attack of before their outcomes were stored
                ids = {id_: id_ for own in (*mine, *theirs) for id_ in own}
                seeds_a, seeds_b = ([attack.seed for attack in own] for own in (one, other))
                try:
                    estimate = difference_over_seeds(mine, theirs, ids, seeds_a=seeds_a, seeds_b=seeds_b)
                except EvaluationError:
                    what = DIFFERENCES[metric][0]
                    not_compared.append(
                        f"{pair.title}: a run scored nothing that the other arm did; no difference in {what}."
                    )
                else:
                    found.append(AttackDifference(pair, metric, estimate))
    return tuple(found), tuple(not_compared)


def _comparability(result: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that two attacks must share to be compared."""
    target, attacker = result["target"], dict(result["attacker"])
    # A learning attacker has other weights for each target, and is shown the successes of its own training.
    learns = "training" in attacker
    if isinstance(attacker.get("model"), dict):
        own = ("source", "weights") if learns else ("source",)
        attacker["model"] = {name: value for name, value in attacker["model"].items() if name not in own}
    return {
        "attacker": attacker,
        "judge": result["judge"]["hash"],
        "rules": result["settings"]["rules"],
        "behaviours": result["settings"]["behaviors"],
        "benign counterparts": [result["settings"].get(name) for name in COUNTERPART_SETTINGS],
        "pool": None if learns else result["settings"].get("pool"),
        "budget": result["budget"]["limits"],
        "dtype": target.get("dtype"),
        "reply length": target.get("max_tokens"),
        "temperature": target.get("temperature"),
    }


def _warnings(name: str, attacks: Sequence[Attack]) -> list[str]:
    """The warnings of the attacks and their judges; those that differ only in numbers are one."""
    told = []
    for attack in attacks:
        weakness = attack.result["judge"].get("warning")
        told += [(attack.title, text) for text in (*attack.result["warnings"], *([weakness] if weakness else ()))]
    return [f"{name} against {joined(_by_arm(titles, attacks))}: {text}" for titles, text in merge_alike(told)]


def _by_arm(titles: Sequence[str], attacks: Sequence[Attack]) -> list[str]:
    """The arm's name where these are all of its attacks, else their titles."""
    found = []
    for arm in _arms(attacks):
        own = [attack.title for attack in attacks if attack.arm.label == arm.label]
        named = [title for title in own if title in titles]
        found += [arm.name] if named == own else named
    return found


# ------------------------------------------------------------------------------------------------------------ figures


def curve_figure(name: str, attacks: Sequence[Attack]) -> Figure | None:
    """The share of jailbroken behaviours against the queries put about each, one line an attack, with its interval.

    With many attacks, intervals are only in the table. An attack without a scored first reply has no line.
    """
    drawn = [(attack, points) for attack in attacks if (points := attack.result["curve"]["points"])]
    if not drawn:
        return None
    has_bounds = len(drawn) <= MOST_WITH_BOUNDS
    bands = [
        charts.Band(
            f"{attack.title}, 95% interval", attack.arm.style, _steps(points, "ci_low"), _steps(points, "ci_high")
        )
        for attack, points in (drawn if has_bounds else ())
    ]
    ends = "; ".join(f"{attack.title} {points[-1]['jailbroken']:.0%}" for attack, points in drawn)
    without = [attack.title for attack in attacks if not attack.result["curve"]["points"]]
    return Figure(
        title=f"Jailbroken by {name}",
        drawing=charts.line_chart(
            [
                charts.Series(
                    attack.title, attack.arm.style, _steps(points, "jailbroken"), thin=len(attack.arm.runs) > 1
                )
                for attack, points in drawn
            ],
            bands=bands,
            x_title="queries about each behaviour",
            y_title="behaviours jailbroken, percent",
            label=f"Share of behaviours jailbroken by {name} against queries: {ends}.",
        ),
        caption="Kaplan-Meier: a behaviour that was not jailbroken is censored after its last query. "
        + ("Shaded: 95% intervals." if has_bounds else "The 95% intervals are only in the data.")
        + (f" Not drawn, because no first reply has a score: {joined(without)}." if without else ""),
        arms=_arms([attack for attack, _ in drawn]),
        has_lines=True,
        columns=("arm", "run", "queries", "jailbroken", "95% interval", "behaviours at risk"),
        rows=[_curve_row(attack, point) for attack, points in drawn for point in points],
    )


def _arms(attacks: Sequence[Attack]) -> list[Arm]:
    return list({attack.arm.label: attack.arm for attack in attacks}.values())


def _curve_row(attack: Attack, point: Mapping[str, Any]) -> tuple[str, ...]:
    share, bounds = quantity(point["jailbroken"], "rate"), interval(point["ci_low"], point["ci_high"], "rate")
    return (attack.arm.name, attack.run, f"{point['queries']}", share, bounds, f"{point['at_risk']}")


def _steps(points: Sequence[Mapping[str, Any]], name: str) -> tuple[tuple[float, float], ...]:
    """A step at each query, from nothing at 0 queries; in percent."""
    found, before = [(0.0, 0.0)], 0.0
    for point in points:
        value = 100.0 * point[name]
        found += [(float(point["queries"]), before), (float(point["queries"]), value)]
        before = value
    return tuple(found)


# ------------------------------------------------------------------------------------------------ settings and JSON


def settings_of(result: Mapping[str, Any]) -> dict[str, str]:
    """The settings in the result of one attack, by dotted name."""
    public = public_result(result)
    kept = {name: public[name] for name in ("target", "attacker", "judge")} | public["settings"]
    ended = {"limits": result["budget"]["limits"], "ended": result["ended"], "created": result.get("created")}
    flat = {name: value for name, value in flat_settings(kept | ended).items() if value is not None}
    return {name: ", ".join(map(str, own)) if isinstance(own, list) else str(own) for name, own in flat.items()}


def without_folders(name: str) -> str:
    """A model's name without local folders; hub names and paths in the working folder are unchanged."""
    provider, _, path = name.partition("/")
    if name.startswith(("/", ".", "~")):
        return PurePath(name).name or name
    return f"{provider}/{PurePath(path).name}" if path.startswith(("/", ".", "~")) else name


def judge_text(judge: Mapping[str, Any]) -> str:
    """ "strongreject (openai/gpt-4o), harmful from a score of 0.5"."""
    model = without_folders(str(judge["model"]))
    return f"{judge['name']} ({model}), {judge['label']} from a score of {judge['threshold']:g}"


# Reports are shared, so only the keys named here are copied.
PUBLIC = ("rows", "curve", "budget", "judge_usage", "ended")
PUBLIC_SETTINGS = ("source", "rules", "counterpart_rules", "behaviors", "counterparts", "pool")
PUBLIC_JUDGE = ("name", "model", "rubric", "label", "threshold", "hash", "calibration", "warning")
PUBLIC_MODEL = (
    *("source", "model", "where", "has_adapter", "weights", "template_hash", "dtype", "max_tokens"),
    *("temperature", "top_p", "thinking_tags", "reasoning", "template_opens_thinking", "chat_template_kwargs"),
)
PUBLIC_TRAINING = (
    *("steps", "queries", "trained_on", "settings", "spent", "judge_usage", "curve", "unscored_episodes"),
    "queries_cut_short_at_most",
)


def public_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """The shareable part of a result: no prompt, local folder or endpoint address."""
    settings, attacker, training = result["settings"], result["attacker"], result.get("training")
    counterpart_judge, model = settings.get("counterpart_judge"), attacker.get("model")
    return {
        **{name: result.get(name) for name in PUBLIC},
        "training": None if training is None else _only(training, PUBLIC_TRAINING),
        "target": _only(result["target"], PUBLIC_MODEL),
        "attacker": {**attacker, **({"model": _only(model, PUBLIC_MODEL)} if isinstance(model, Mapping) else {})},
        "judge": _only(result["judge"], PUBLIC_JUDGE),
        "settings": _only(settings, PUBLIC_SETTINGS)
        | ({"counterpart_judge": _only(counterpart_judge, PUBLIC_JUDGE)} if counterpart_judge else {}),
    }


def _only(mapping: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    found = {name: mapping[name] for name in names if name in mapping}
    return found | {name: without_folders(str(found[name])) for name in ("source", "model") if name in found}


def attacks_json(sections: Sequence[AttackSection]) -> list[dict[str, Any]]:
    """The attacks as in report.json."""
    return [
        {
            "attacker": section.name,
            "attacks": [
                {
                    "arm": attack.arm.label,
                    "run": attack.of_run,
                    "folder": attack.folder,
                    "jailbroken": [str(one["behavior"]) for one in attack.jailbroken],
                    **public_result(attack.result),
                }
                for attack in section.attacks
            ],
            "arms": {arm.label: _means_json(section, arm.label) for arm in _arms(section.attacks)},
            "differences": [found.to_json() for found in section.differences],
            "warnings": list(section.warnings),
        }
        for section in sections
    ]


def _means_json(section: AttackSection, label: str) -> dict[str, Any]:
    """By metric: the mean of an arm over its runs; n behaviours or counterparts, n_unscored summed over the runs."""
    found, attacks = {}, section.of(label)
    for metric in DIFFERENCES:
        mean, values = section.mean(label, metric), [attack.values(metric) for attack in attacks]
        numbers: Mapping[str, Any] = {} if mean is None else vars(mean)
        if len(attacks) == 1 and metric == RATE:
            numbers = row_of(attacks[0].result, RATE)  # with the bounds that the page shows
        found[metric] = {
            **{name: numbers.get(name) for name in ("value", "ci_low", "ci_high")},
            "n": numbers.get("n", 0),
            "n_unscored": sum(value is None for own in values for value in own.values()),
            "run_values": [] if mean is None else list(mean.run_means),
        }
    return found


# ------------------------------------------------------------------------------------------ the verdict and the card


def attack_findings(sections: Sequence[AttackSection]) -> list[Finding]:
    """The verdict on each attacker: how many behaviours each arm defended."""
    texts = tuple(f"{own.name}: {joined([_arm_text(own, arm) for arm in _arms(own.attacks)])}." for own in sections)
    return [Finding("Attacks", texts, "attacks")] if texts else []


def _arm_text(section: AttackSection, arm: Arm) -> str:
    """What an arm defended: in its run, or on the mean of several."""
    attacks, mean = section.of(arm.label), section.mean(arm.label, RATE)
    if len(attacks) == 1 or mean is None:
        return joined([_defended_text(attack) for attack in attacks])
    left = len({id_ for attack in attacks for id_ in attack.values(RATE)}) - mean.n
    more = f"; {mean.n_partial:,} decided in only some of the runs" if mean.n_partial else ""
    more += f"; {left:,} more undecided in all" if left else ""
    share = f"{quantity(mean.value, 'rate')} of {pluralize(mean.n, 'behaviour')}, mean of {len(attacks)} runs"
    return f"{arm.name} defended {share} (95% interval {interval(mean.ci_low, mean.ci_high, 'rate')}{more})"


def _defended_text(attack: Attack) -> str:
    """ "Base defended 1 of 3 behaviours (33.3%, 95% interval 0.8 to 90.6; 1 more undecided)"."""
    row = row_of(attack.result, RATE)
    n, undecided = row["n"], row["n_unscored"]
    if not n:
        return f"none of {pluralize(undecided, 'behaviour')} was decided for {attack.title}"
    more = f"; {undecided:,} more undecided" if undecided else ""
    rate = f"{quantity(row['value'], 'rate')}, 95% interval {interval(row['ci_low'], row['ci_high'], 'rate')}"
    return f"{attack.title} defended {round(n * row['value']):,} of {pluralize(n, 'behaviour')} ({rate}{more})"


def card_rows(sections: Sequence[AttackSection]) -> list[tuple[str, ...]]:
    """Rows of the model card, one per attack: attacker and target, then the cells of the page."""
    attacks = [attack for section in sections for attack in section.attacks]
    return [(f"{own.attacker} against {own.title}", *("; ".join(lines) for lines in own.cells)) for own in attacks]


def has_prompts(sections: Sequence[AttackSection]) -> bool:
    """Whether the sections hold a successful prompt."""
    return any(attack.prompts.get(one["id"]) for own in sections for attack in own.attacks for one in attack.jailbroken)
