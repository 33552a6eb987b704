"""Results that are kept in the repository, and the tables and charts of the docs that are drawn from them.

    python -m benchmarks.results keep runs/sycophancy configs/experiments/sycophancy.yaml
    python -m benchmarks.results example    # the answers in the README's picture
    python -m benchmarks.results            # or: make results

Of an experiment, docs/results/NAME.json keeps the rows of its report.json that `SHOWN` names (values, intervals over
questions and seeds, numbers of samples, paired differences), what training took, and on which machine, commit and
dtype. The command redraws the lines of a page between `<!-- table:NAME -->` (a line an arm),
`<!-- metrics:NAME -->` (a line a metric), `<!-- attacks:NAME -->` or `<!-- refusals:NAME -->` (a line an attacker),
`<!-- differences:NAME -->` or `<!-- claims:all -->` (a line a claim of the paper), and `<!-- end -->`, the charts, and
the picture of the README.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from benchmarks import pictures
from benchmarks.tables import markdown
from opct.errors import EvaluationError, unknown
from opct.evals.metrics import Unit, find_metric
from opct.evals.stats import t_quantile
from opct.evals.wording import MISSING, interval, number
from opct.reports import wording
from opct.reports.charts import Bar, BarGroup, Point, Series, interval_bars
from opct.runs.io import file_sha256, read_json, write_json
from opct.runs.run_dir import RunDir

DOCS = Path(__file__).parents[1] / "docs"
KEPT = DOCS / "results"
EXAMPLE = DOCS / "assets" / "example.json"
NAMES = {
    "sft-t0": "SFT, greedy",
    "sft-t1": "SFT",
    "prompt": "System prompt",
    "opct-4-samples": "OPCT, 4 samples",
    "sft-no-anchors": "SFT, no anchors",
    "sft-matched": "SFT, 55% anchors",
    "sft-anchors-55": "SFT, 55% anchors",
    "sft-anchors-70": "SFT, 70% anchors",
    "opct-no-anchors": "OPCT, no anchors",
    "opct-benign": "OPCT, benign anchors",
    "opct-forms": "OPCT, anchors with forms",
}
STYLES = {
    "base": 0,
    "sft": 1,
    "sft-t1": 1,
    "sft-no-anchors": 1,
    "offpolicy": 3,
    "opct": 2,
    "opct-no-anchors": 2,
    "prompt": 4,
    "sft-t0": 5,
    "sft-matched": 5,
    "dpo": 6,
    "opct-4-samples": 7,
}
"""Color and marker of an arm, the same in every chart."""
ATTACKED_IN = ("adaptive_attack", "adaptive_attack_grpo")
BOTH_SFT = {"sft", "sft-matched"}
CURVES = "curves"
HERO = "sycophancy_recipe"
"""The experiment whose base, SFT and OPCT are in the README's picture."""
BLOCK = re.compile(
    r"(<!-- (table|metrics|attacks|refusals|differences|claims):([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL
)
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A metric in a table: where it is in the report, and its heading."""

    suite: str
    metric: str
    group: str
    title: str

    def row(self, kept: Mapping[str, Any]) -> Row:
        """The row of this metric.

        Raises:
            EvaluationError: there is none.
        """
        wanted = (self.suite, self.metric, self.group)
        for row in kept["rows"]:
            if (row["suite"], row["metric"], row["group"]) == wanted:
                return row
        raise EvaluationError(f"The report has no row {'/'.join(wanted)}: evaluate that suite, or change SHOWN.")


@dataclass(frozen=True)
class Shown:
    """What is shown of an experiment.

    Attributes:
        columns: of its table, and what is kept.
        of: the arm whose differences from every other arm are shown; "" for none.
        also: further pairs of arms whose difference is shown.
        against: the arms beside it in the table by metric and in the README's picture.
        chart: the columns that are drawn, as bars of every arm.
    """

    columns: tuple[Column, ...]
    of: str = ""
    also: tuple[tuple[str, str], ...] = ()
    against: tuple[str, ...] = ()
    chart: tuple[Column, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and what an experiment says of it.

    Attributes:
        column: `{arm}` of `here` is its value, `{arm other}` the difference from another arm.
        here: also has `{attacker arm}` and `{attacker arm other}`, behaviors defended.
        arms: whose minutes of training are told.
    """

    claim: str
    paper: str
    experiment: str
    column: Column | None
    here: str
    verdict: str
    arms: tuple[str, ...]


ATTACKED = {
    "defense_success_rate": "behaviors defended",
    "benign_refusal_rate": "share of replies to a benign counterpart that refuse",
}
"""Metrics that are kept of an attack, with their titles."""
SHORT, CHOICE, OTHERS, BENIGN = "sycophancy_short", "sycophancy_choice", "sycophancy_pairs", "benign"
HAZARDS, JAILBREAK = "safety_awareness", "jailbreak"
CLEAN = Column(SHORT, "accuracy_clean", "clean", "right, clean question")
UNDER_PRESSURE = Column(SHORT, "accuracy_biased", "held_out", "right under pressure")
BOTH_SIDES = Column(SHORT, "accuracy_under_pressure_balanced", "held_out", "right under pressure, mean of both sides")
RIGHT_USER = Column(SHORT, "right_rate_rise", "held_out", "right answers that pressure adds where the user is right")
ORDINARY = Column(BENIGN, "accuracy_identity", "benign", "ordinary requests passed")
PAIRS = "consistency"
TO_TEACHER = Column(PAIRS, "kl_to_teacher", "all", "nats a token from the base asked the clean question")
LENGTHS = (("all", "tokens of a reply under pressure"), ("clean", "tokens of a clean reply"))
WHERE_RIGHT = Column(SHORT, "accuracy_user_right", "held_out", "right where the user is right")
FACTS = Column("context_use", "context_use", "clean", "facts in the prompt used")


def _rises(group: str) -> tuple[Column, ...]:
    return tuple(
        Column(suite, "biased_rate_rise", group, f"suggested wrong answers that pressure adds, {title}")
        for suite, title in ((SHORT, "short"), (CHOICE, "lettered"))
    )


def _warnings(group: str) -> tuple[Column, ...]:
    return (
        Column(HAZARDS, "warning_rate", group, "warnings, hidden hazard"),
        Column(HAZARDS, "over_warning_rate", group, "warnings, safe counterpart"),
        Column(HAZARDS, "cautioned_rate", group, "cautions that name no danger, hidden hazard"),
        Column(HAZARDS, "declined_rate", group, "declined, hidden hazard"),
    )


BENCHMARKS = tuple(
    Column(name, "accuracy", "all", title)
    for name, title in (("math500", "MATH-500"), ("ifeval", "IFEval, strict"), ("mmlu", "MMLU"))
)
GSM8K = Column("gsm8k", "accuracy", "all", "GSM8K")
FORMS, SINGLE_FORMS = BENCHMARKS[1], Column("ifeval", "inst_level_strict_acc", "all", "IFEval, single instructions")
MEAN = Column("capability", "benchmark_mean", "all", "mean of the four")
SETS = (("truthfulqa", "TruthfulQA"), ("bct", "BCT"))
HELD_OUT = (
    _rises("held_out")[0],
    *(Column(OTHERS, "biased_rate_rise", f"family:{name}", f"the same, {title}") for name, title in SETS),
)
ATTACKS = Shown(
    (
        Column(JAILBREAK, "attack_success_rate", "held_out", "answered in an unseen wrapper"),
        Column(JAILBREAK, "attack_success_rate", "bare", "answered bare"),
        Column(JAILBREAK, "over_refusal_rate", "benign_held_out", "benign counterpart refused in a wrapper"),
        Column(JAILBREAK, "over_refusal_rate", "benign_bare", "benign counterpart refused bare"),
        ORDINARY,
    ),
    of="opct",
    against=("sft", "offpolicy"),
)
VALIDATION = Shown(
    (
        Column(JAILBREAK, "attack_success_rate", "train", "answered in a wrapper"),
        Column(JAILBREAK, "attack_success_rate", "bare", "answered bare"),
        Column(JAILBREAK, "over_refusal_rate", "benign_train", "benign counterpart refused in a wrapper"),
        Column(JAILBREAK, "over_refusal_rate", "benign_bare", "benign counterpart refused bare"),
    )
)
PRESSURE = Shown(
    (*HELD_OUT, CLEAN, UNDER_PRESSURE, RIGHT_USER, ORDINARY),
    of="opct",
    against=("sft", "offpolicy"),
    chart=(HELD_OUT[0], CLEAN),
)
RATES = Shown((_rises("train")[0], CLEAN))
SHOWN = {
    "sycophancy": replace(PRESSURE, against=("sft-t1", "offpolicy")),
    "sycophancy_recipe": Shown(
        (HELD_OUT[0], WHERE_RIGHT, BOTH_SIDES, CLEAN, FACTS, ORDINARY),
        of="opct",
        against=("sft",),
        chart=(HELD_OUT[0], CLEAN),
    ),
    "sycophancy_recipe_rates": RATES,
    "sycophancy_recipe_offpolicy": Shown(
        (HELD_OUT[0], WHERE_RIGHT, BOTH_SIDES, CLEAN, FACTS, ORDINARY), of="opct", against=("offpolicy",)
    ),
    "sycophancy_public": Shown(
        (
            *(
                Column(OTHERS, "biased_rate_rise", f"family:{name}", f"suggested answers that pressure adds, {title}")
                for name, title in SETS
            ),
            Column(OTHERS, "accuracy_biased", "family:truthfulqa", "right under pressure, TruthfulQA"),
            Column(OTHERS, "accuracy_clean", "clean", "right, clean question of both"),
            Column(OTHERS, "consistency", "all", "the same answer with and without pressure"),
        ),
        of="opct",
        against=("sft",),
    ),
    "adaptive_attack": replace(ATTACKS, against=("sft", "sft-matched", "offpolicy")),
    "adaptive_attack_grpo": replace(ATTACKS, against=("sft",)),
    "adaptive_attack_one_rate": ATTACKS,
    "adaptive_attack_rates": VALIDATION,
    "adaptive_attack_anchors": VALIDATION,
    "safety": Shown(
        (*_warnings("held_out"), ORDINARY), of="opct", against=("sft", "offpolicy"), chart=_warnings("held_out")[:2]
    ),
    "safety_rates": Shown(_warnings("train")),
    "capability": Shown(
        (GSM8K, *BENCHMARKS, MEAN, SINGLE_FORMS, _rises("held_out")[0], CLEAN, RIGHT_USER),
        of="opct-no-anchors",
        also=(("sft-no-anchors", "base"),),
        chart=(GSM8K, *BENCHMARKS, CLEAN),
    ),
    "capability_mmlu": Shown((BENCHMARKS[2],), of="opct-no-anchors", also=(("sft-no-anchors", "base"),)),
    "instructions": Shown(
        (FORMS, SINGLE_FORMS, _rises("held_out")[0], CLEAN, ORDINARY),
        also=(
            *((arm, "base") for arm in ("sft-no-anchors", "opct-no-anchors", "opct-benign", "opct-forms")),
            ("opct-no-anchors", "sft-no-anchors"),
            ("opct-forms", "opct-no-anchors"),
            ("opct-forms", "opct-benign"),
        ),
    ),
    "sycophancy_second_model": PRESSURE,
    "long_answers": Shown(
        (
            TO_TEACHER,
            *(Column(PAIRS, "reply_tokens", *of) for of in LENGTHS),
            _rises("held_out")[0],
            CLEAN,
            FACTS,
            ORDINARY,
        ),
        of="opct",
        against=("offpolicy",),
        chart=(TO_TEACHER,),
    ),
    "curves": Shown(
        (_rises("held_out")[0], CLEAN, BOTH_SIDES, FACTS, ORDINARY),
        also=(
            *(("opct-144", other) for other in ("base", "sft-144", "offpolicy-144")),
            *(("opct-36", other) for other in ("sft-144", "sft-36", "offpolicy-36")),
            ("opct-9", "sft-9"),
        ),
    ),
    "curves_rates": RATES,
    "capability_rates": RATES,
    "sycophancy_second_model_rates": RATES,
    "sycophancy_rates": Shown((*_rises("train"), CLEAN, ORDINARY)),
    "sycophancy_formats": Shown((*_rises("held_out"), CLEAN, ORDINARY)),
}
CLAIMS = (
    Claim(
        "1. OPCT reduces sycophancy more than SFT",
        "15.4% → 8.1%, SFT 11.2%",
        "sycophancy_recipe",
        HELD_OUT[0],
        "suggested wrong answers that pressure adds: {base} → {opct} points, SFT {sft}; OPCT − SFT {opct sft}",
        "**Confirmed** at 30 to 40 steps, for short answers of SmolLM2, and on two public sets; after 144 steps not "
        "decided; on a second model, with two seeds, too close to call",
        ("opct", "sft"),
    ),
    Claim(
        "2. Its own samples are what does it",
        "the argument of the paper",
        "long_answers",
        TO_TEACHER,
        "nats a token from the base asked plainly, SmolLM2's answers of a paragraph: {base} → {opct}, off-policy "
        "{offpolicy}; OPCT − off-policy {opct offpolicy}; behaviors defended, at other learning rates, `transfer` "
        "{transfer opct offpolicy}, `refine` {refine opct offpolicy}",
        "**Not found** on sycophancy, in short answers and paragraphs; against attackers seen with one seed at equal "
        "rates",
        ("opct", "offpolicy"),
    ),
    Claim(
        "3. It holds against an attacker that adapts",
        "~99% defended, SFT 87%",
        "adaptive_attack",
        None,
        "behaviors defended: `transfer` {transfer base} → {transfer opct}%, SFT {transfer sft}, OPCT − SFT "
        "{transfer opct sft}; `refine` {refine base} → {refine opct}%, SFT {refine sft}, OPCT − SFT {refine opct sft}; "
        "`grpo`, OPCT − SFT {grpo opct sft}",
        "**Not found** at this size: by the rule better than the base, worse than SFT against `refine`, not told apart "
        "on the others; trained without benign twins",
        ("opct", "sft"),
    ),
    Claim(
        "4. It warns of hidden hazards more often",
        "better than SFT",
        "safety",
        _warnings("held_out")[0],
        "warnings: {base} → {opct}%, SFT {sft}; OPCT − SFT {opct sft} points",
        "**Not found** with reverse KL, by rules that see two warnings in eleven; with forward KL, one seed, not "
        "decided",
        ("opct", "sft"),
    ),
    Claim(
        "5. It loses no capability",
        "little, SFT up to 28 points on MATH-500",
        "capability",
        GSM8K,
        "without anchors, GSM8K: {base} → {opct-no-anchors}%, SFT {sft-no-anchors}; OPCT − base {opct-no-anchors base} "
        "points, SFT − base {sft-no-anchors base}",
        "**Not tested at this size**: GSM8K and IFEval do not decide whether there is a loss; on MATH-500 (6.0%) and "
        "MMLU the base is too weak",
        ("opct-no-anchors", "sft-no-anchors"),
    ),
)


# ------------------------------------------------------------------------------------------------------------- keep


def keep(runs: Path, config: Path) -> Path:
    """Keep what is shown of a finished experiment.

    Raises:
        EvaluationError: `SHOWN` says nothing of an experiment of that name, the report lacks a row, or a run is of code
            that was not committed.
    """
    if config.stem not in SHOWN:
        raise EvaluationError(unknown("experiment in SHOWN", config.stem, SHOWN))
    found = read_json(runs / "report.json")
    trained = [run for run in found["runs"] if run["method"] is not None]
    manifests = [RunDir(runs / Path(run["path"]).name).read_manifest() for run in trained]
    if any("dirty" in str(one["git_commit"]) for one in manifests):
        raise EvaluationError(f"Runs in {runs} are of code that was not committed, so no reader could see what ran.")
    rows = [_kept(column.row(found)) for column in SHOWN[config.stem].columns]
    out = KEPT / f"{config.stem}.json"
    write_json(
        out,
        {
            "experiment": f"configs/experiments/{config.name}",
            "plan_sha256": file_sha256(config),
            "model": Path(found["runs"][0]["model"]).name,
            "seeds": sorted({run["seed"] for run in trained}),
            "measured": found["created"][:10],
            "commits": sorted({re.sub(r"^(\w{8})\w*", r"\1", str(one["git_commit"])) for one in manifests}),
            "dtype": sorted({str(one["dtype"]) for one in manifests}),
            "cores": sorted({one["hardware"]["cores"] for one in manifests}),
            "n_runs": dict(Counter(run["label"] for run in found["runs"])),
            "costs": read_json(runs / "costs.json"),
            "rows": rows,
            "attacks": [],  # an attack is among `rows`; in older files it stands here
        },
    )
    return out


def _kept(row: Row) -> dict[str, Any]:
    """A row without what is not shown, with six digits."""
    kept = ("value", "ci_low", "ci_high", "n", "n_clusters", "n_unscored", "n_truncated", "run_values")
    paired = ("of", "against", "difference", "ci_low", "ci_high", "n")
    return {
        **{name: row[name] for name in ("axis", "suite", "metric", "group")},
        "arms": {label: _rounded({name: own[name] for name in kept}) for label, own in row["arms"].items()},
        "differences": [_rounded({name: own[name] for name in paired}) for own in row["differences"]],
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


def keep_example() -> Path:
    """Keep the answers that `opct demo` shows, before and after training, and the KL of each token."""
    from opct.cli.demo import PRESSURED, QUESTION, greedy_answers, load_demo

    policy = load_demo()
    with policy.base() as base:
        _, before = greedy_answers(base, PRESSURED, QUESTION)
    _, after = greedy_answers(policy, PRESSURED, QUESTION)
    answers = {
        name: [[piece, round(nats, 3)] for piece, nats in answer]
        for name, answer in (("before", before), ("after", after))
    }
    write_json(EXAMPLE, {"prompt": PRESSURED, **answers})
    return EXAMPLE


# ------------------------------------------------------------------------------------------------------------- draw


def table(name: str, kept: Mapping[str, Any]) -> list[str]:
    """A line an arm: each metric with its interval, the tokens that were trained on, and the minutes of training."""
    columns = SHOWN[name].columns
    head = ["arm", *(column.title for column in columns), "tokens trained on", "minutes"]
    lines = []
    for label in columns[0].row(kept)["arms"]:
        cells = [_estimate(column, kept, label) for column in columns]
        lines.append([arm_name(label), *cells, *_cost(kept, label)])
    lines.append(["n", *(_counts(column.row(kept)) for column in columns), MISSING, MISSING])
    seeds = f"{len(kept['seeds'])} seed{'s' * (len(kept['seeds']) > 1)}"
    dtype, commits = ", ".join(kept["dtype"]), ", ".join(kept["commits"])
    cores = f"{'/'.join(map(str, kept['cores']))} core{'s' * (kept['cores'] != [1])}"
    machine = f"{dtype}, {cores}, {kept['measured']}, commit {commits}"
    about = (
        f"{kept['model']}, {seeds}, {machine}. In percent, with 95% intervals. Tokens and minutes: mean of a seed. "
        "n: samples of an arm, with the most that were unscored or cut in one (mean of a seed)."
    )
    return [*_markdown(head, lines), "", about]


def differences(name: str, kept: Mapping[str, Any]) -> list[str]:
    """The paired differences of the shown arm from every other and of the pairs in `also`, in points."""
    shown = SHOWN[name]
    others = [label for label in shown.columns[0].row(kept)["arms"] if shown.of not in ("", label)]
    lines = [
        [f"{arm_name(of)} − {arm_name(other)}", *(_difference(column, kept, of, other) for column in shown.columns)]
        for of, other in (*((shown.of, label) for label in others), *shown.also)
    ]
    head = ["difference in points", *(column.title for column in shown.columns)]
    return _markdown(head, lines)


def by_metric(name: str, kept: Mapping[str, Any]) -> list[str]:
    """A line a metric, without single families: base, references and shown arm, and its differences from these."""
    shown = SHOWN[name]
    arms = ("base", *shown.against, shown.of)
    head = ["", *map(arm_name, arms), *(f"{arm_name(shown.of)} − {arm_name(label)}" for label in shown.against)]
    lines = []
    for column in (column for column in shown.columns if not column.group.startswith("family:")):
        cells = [_estimate(column, kept, label) for label in arms]
        lines.append([f"{column.title}; n = {_counts(column.row(kept))}", *cells])
        lines[-1] += [_difference(column, kept, shown.of, label) for label in shown.against]
    return _markdown(head, lines)


def attacks(name: str, kept: Mapping[str, Any]) -> list[str]:
    """A line an attacker and metric: every arm with its interval and n, and the differences of the shown arm."""
    labels, of, against = list(kept["attacks"][0]["arms"]), SHOWN[name].of, SHOWN[name].against
    head = ["attacker", *map(arm_name, labels), *(f"{arm_name(of)} − {arm_name(label)}" for label in against)]
    lines = []
    for metric, title in ATTACKED.items():
        for own in kept["attacks"]:
            cells = [_attacked(own["arms"].get(label, {}).get(metric), kept["n_runs"][label]) for label in labels]
            pairs = {(each["of"], each["against"]): each for each in own["differences"] if each["metric"] == metric}
            told = [_paired(pairs.get((of, label)), "rate", n=True) for label in against]
            lines.append([f"`{own['attacker']}`: {title}", *cells, *told])
    return _markdown(head, lines)


def refusals(name: str, kept: Mapping[str, Any]) -> list[str]:
    """A line an attacker: how much more the shown arm defends than SFT where both refuse as many counterparts."""
    of, lines = SHOWN[name].of, []
    for own in kept["attacks"]:
        runs = [run for run in _runs(own) if run[0] != "base"]
        fewer = [line_above([*runs[:i], *runs[i + 1 :]], of, BOTH_SFT)["difference"] for i in range(len(runs))]
        spread = interval(min(fewer), max(fewer), "rate", signed=True)
        lines.append([f"`{own['attacker']}`", _paired(line_above(runs, of, BOTH_SFT), "rate"), spread, str(len(runs))])
    return _markdown(["attacker", "difference in points", "without any one run", "trained runs"], lines)


def _runs(attack: Row) -> list[tuple[str, float, float]]:
    """Of each run its arm, the share of counterparts that it refuses, and of behaviors that it defends."""
    return [
        (label, refused, defended)
        for label, rows in attack["arms"].items()
        for refused, defended in zip(
            rows["benign_refusal_rate"]["run_values"], rows["defense_success_rate"]["run_values"], strict=True
        )
        if None not in (refused, defended)
    ]


def line_above(runs: Sequence[tuple[str, float, float]], of: str, against: Set[str]) -> dict[str, Any]:
    """How far the line of the arm `of` lies above that of the arms `against`, with its 95% t interval.

    Least squares: one slope for all, one intercept for each arm and one for `against`. The interval is over runs alone.

    Args:
        runs: (arm, x, y) of each.
    """
    groups: dict[str, list[tuple[float, float]]] = {}
    for label, x, y in runs:
        groups.setdefault("against" if label in against else label, []).append((x, y))
    means = {name: np.mean(own, 0) for name, own in groups.items()}
    dx, dy = np.concatenate([np.array(own) - means[name] for name, own in groups.items()]).T
    slope, df = dx @ dy / (dx @ dx), len(runs) - len(groups) - 1
    noise = ((dy - slope * dx) ** 2).sum() / df
    x, y = means[of] - means["against"]
    spread = 1 / len(groups[of]) + 1 / len(groups["against"]) + x**2 / (dx @ dx)
    difference, half = float(y - slope * x), t_quantile(df) * float(noise * spread) ** 0.5
    return {"difference": difference, "ci_low": difference - half, "ci_high": difference + half}


def _attacked(row: Row | None, n_runs: int) -> str:
    if row is None or row["value"] is None:
        return MISSING
    left = f", {unscored} unscored" if (unscored := round(row["n_unscored"] / n_runs)) else ""
    bounds = interval(row["ci_low"], row["ci_high"], "rate")
    return f"{number(row['value'], 'rate')} [{bounds}]; n = {row['n']}{left}"


def claims(all_kept: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line a claim: verdict, the paper's numbers, those of here, the experiment's file and minutes of training."""
    lines = []
    for claim in CLAIMS:
        kept = all_kept[claim.experiment]
        minutes = ", ".join(f"{arm_name(label)} {_cost(kept, label)[1]}" for label in claim.arms)
        cost = f"`{Path(kept['experiment']).stem}`; {minutes}"
        played = (all_kept.get(name, {}) for name in (claim.experiment, *ATTACKED_IN))
        attacks = [attack for own in played for attack in own.get("attacks", [])]
        here = claim.here.format_map(_numbers(claim, kept, attacks))
        lines.append((claim.claim, claim.verdict, claim.paper, here, cost))
    return _markdown(["claim", "verdict", "in the paper", "here", "file; minutes of training"], lines)


def _numbers(claim: Claim, kept: Mapping[str, Any], attacks: Iterable[Row]) -> dict[str, str]:
    """What `Claim.here` may name."""
    found = {}
    if claim.column is not None:
        row = claim.column.row(kept)
        found |= {label: number(own["value"], _unit(claim.column, kept)) for label, own in row["arms"].items()}
        pairs = [(own["of"], own["against"]) for own in row["differences"]]
        found |= {f"{of} {other}": _difference(claim.column, kept, of, other) for of, other in pairs}
    for attack in attacks:
        for label, rows in attack["arms"].items():
            found[f"{attack['attacker']} {label}"] = number(rows["defense_success_rate"]["value"], "rate")
        for each in attack["differences"]:
            if each["metric"] == "defense_success_rate":
                found[f"{attack['attacker']} {each['of']} {each['against']}"] = _paired(each, "rate")
    return found


def arm_name(label: str) -> str:
    """Display name of an arm of these experiments."""
    method, _, steps = label.partition("-")
    if method in wording.ARM_NAMES and steps.isdigit():  # not "sft-2e-4"
        return f"{wording.arm_name(method)}, {steps} steps"
    return NAMES.get(label) or wording.arm_name(label)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return markdown(head, rows).splitlines()


def _estimate(column: Column, kept: Mapping[str, Any], label: str) -> str:
    own, unit = column.row(kept)["arms"].get(label), _unit(column, kept)
    if own is None or own["value"] is None:
        return MISSING
    return f"{number(own['value'], unit)} [{interval(own['ci_low'], own['ci_high'], unit)}]"


def _difference(column: Column, kept: Mapping[str, Any], of: str, against: str) -> str:
    row = column.row(kept)
    found = (own for own in row["differences"] if (own["of"], own["against"]) == (of, against))
    return _paired(next(found, None), _unit(column, kept))


def _paired(own: Row | None, unit: str, *, n: bool = False) -> str:
    if own is None or own["difference"] is None:
        return MISSING
    bounds = interval(own["ci_low"], own["ci_high"], unit, signed=True)
    return f"{number(own['difference'], unit, signed=True)} [{bounds}]" + (f"; n = {own['n']}" if n else "")


def _cost(kept: Mapping[str, Any], label: str) -> tuple[str, str]:
    """Tokens and minutes of a seed; a dash where they are not known."""
    cost = kept["costs"].get(label) or {}
    seeds = kept["n_runs"].get(label, 1)
    tokens, seconds = (cost.get(name) for name in ("completion_tokens", "seconds_in_all"))
    return (
        MISSING if tokens is None else f"{tokens / seeds:,.0f}",
        MISSING if seconds is None else f"{seconds / seeds / 60:.1f}",
    )


def _counts(row: Row) -> str:
    """The most samples of an arm, and the most that were unscored or cut in one, mean of a seed."""
    n, clusters = (max(own[name] for own in row["arms"].values()) for name in ("n", "n_clusters"))
    unscored, cut = (
        max(round(own[name] / max(1, len(own["run_values"]))) for own in row["arms"].values())
        for name in ("n_unscored", "n_truncated")
    )
    left = [f"of {clusters} questions"] if clusters < n else []
    left += [f"{count} {word}" for count, word in ((unscored, "unscored"), (cut, "cut")) if count]
    return f"{n:,}" + (f" ({', '.join(left)})" if left else "")


def chart(name: str, kept: Mapping[str, Any], *, is_wide: bool) -> str:
    """The drawn metrics of every arm, with intervals, as SVG."""
    groups = _groups(name, kept, list(SHOWN[name].columns[0].row(kept)["arms"]))
    return as_file(groups, f"{name}, 95% intervals", is_wide=is_wide)


def runs_chart(kept: Mapping[str, Any], *, is_wide: bool) -> str:
    """What every run defends and answers, a panel an attacker."""
    unknown_ends = (None, None)
    return pictures.runs(
        {
            own["attacker"]: [
                Point(arm_name(label), STYLES[label], 1 - refused, defended, unknown_ends, unknown_ends)
                for label, refused, defended in _runs(own)
            ]
            for own in kept["attacks"]
        },
        is_wide=is_wide,
    )


def curves_chart(kept: Mapping[str, Any], *, is_wide: bool) -> str:
    """What pressure adds after each number of steps, a line a method; the number stands in the arm's name."""
    arms = _rises("held_out")[0].row(kept)["arms"]
    lines: dict[str, list[tuple[float, float]]] = {}
    for label, own in arms.items():
        method, _, steps = label.partition("-")
        if steps:
            lines.setdefault(method, [(0.0, 100 * arms["base"]["value"])]).append((float(steps), 100 * own["value"]))
    return pictures.curves(
        [Series(arm_name(method), STYLES[method], tuple(sorted(points))) for method, points in lines.items()],
        x_title="training steps",
        y_title="suggested wrong answers that pressure adds, points",
        is_wide=is_wide,
    )


def _groups(name: str, kept: Mapping[str, Any], labels: Sequence[str]) -> list[BarGroup]:
    """The drawn metrics of these arms and what they defend."""
    drawn = {column.title: (column.row(kept)["arms"], _unit(column, kept)) for column in SHOWN[name].chart}
    for attack in kept["attacks"]:
        defended = {label: rows["defense_success_rate"] for label, rows in attack["arms"].items()}
        drawn[f"defended against {attack['attacker']}"] = defended, "rate"
    groups = []
    for title, (arms, unit) in drawn.items():
        bars = [
            Bar(arm_name(label), STYLES[label], *(own[name] for name in VALUES), _bar_text(own, unit), SCALES[unit])
            for label in labels
            if (own := arms.get(label)) is not None and own["value"] is not None
        ]
        groups.append(BarGroup(title, tuple(bars)))
    return groups


VALUES = ("value", "ci_low", "ci_high")
SCALES = {"rate": 100.0, "nats": 1.0}


def _unit(column: Column, kept: Mapping[str, Any]) -> Unit:
    return find_metric(column.row(kept)["axis"], column.metric).unit


def _bar_text(own: Mapping[str, Any], unit: Unit) -> str:
    """ "11 (8–13)"."""
    value, low, high = (number(own[name], unit, digits=0 if unit == "rate" else 3) for name in VALUES)
    return f"{value} ({low}–{high})"


def as_file(groups: Sequence[BarGroup], label: str, *, is_wide: bool) -> str:
    """Bars with intervals as an SVG file with the report's style."""
    width = pictures.WIDE if is_wide else pictures.NARROW
    drawing = str(interval_bars(groups, label=label, width=width - 10))
    height = float(re.search(r'viewBox="0 0 \S+ (\S+)"', drawing)[1])
    placed = drawing.replace("<svg", f'<svg x="5" y="4" width="{width - 10}" height="{height:g}"', 1)
    return pictures.as_file(width, height + 8, label, Markup(placed))


BLOCKS = {"table": table, "metrics": by_metric, "attacks": attacks, "refusals": refusals, "differences": differences}


def drawn() -> dict[Path, str]:
    """Every page with such blocks and every chart, as they follow from the kept results."""
    kept = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(KEPT.glob("*.json"))}

    def block(found: re.Match[str]) -> str:
        lines = claims(kept) if found[2] == "claims" else BLOCKS[found[2]](found[3], kept[found[3]])
        return "\n".join([found[1] + "", *lines, "", found[4]])

    files = {}
    for page in filter(Path.is_file, (DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md")))):
        text = page.read_text(encoding="utf-8")
        if BLOCK.search(text):
            files[page] = BLOCK.sub(block, text)
    for is_wide in (True, False):
        for name, svg in charts(kept, is_wide=is_wide).items():
            files[DOCS / "assets" / f"{name}{'' if is_wide else '-phone'}.svg"] = svg
    return files


def charts(kept: Mapping[str, Any], *, is_wide: bool) -> dict[str, str]:
    """Every picture by name, for a desktop or for a phone."""
    found = {
        name: chart(name, own, is_wide=is_wide) for name, own in kept.items() if SHOWN[name].chart or own["attacks"]
    }
    of_runs = {name: own for name, own in kept.items() if own["attacks"] and len(own["seeds"]) > 1}
    found |= {f"{name}_runs": runs_chart(own, is_wide=is_wide) for name, own in of_runs.items()}
    found |= {name: draw(is_wide=is_wide) for name, draw in pictures.DIAGRAMS.items()}
    found[CURVES] = curves_chart(kept[CURVES], is_wide=is_wide)
    for name, is_dark in (("hero", False), ("hero-dark", True)):
        found[name] = hero(kept[HERO], is_wide=is_wide, is_dark=is_dark)
    return found


def hero(kept: Mapping[str, Any], *, is_wide: bool, is_dark: bool) -> str:
    """The README's picture: a kept answer, and base, SFT and OPCT."""
    shown = SHOWN[HERO]
    [bars, *_] = _groups(HERO, kept, ["base", shown.against[0], shown.of])
    n = max(own["n_clusters"] for own in shown.columns[0].row(kept)["arms"].values())
    note = (f"SmolLM2-135M, {n} unseen", f"questions, {len(kept['seeds'])} seeds")
    return pictures.hero(read_json(EXAMPLE), bars.bars, note, is_wide=is_wide, is_dark=is_dark)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    keeping = commands.add_parser("keep", help="keep what is shown of a finished experiment")
    keeping.add_argument("runs", type=Path, help="its output_dir")
    keeping.add_argument("config", type=Path, help="its file")
    commands.add_parser("example", help="keep the answers in the README's picture")
    args = parser.parse_args()
    if args.command == "example":
        print(keep_example())
    if args.command == "keep":
        print(keep(args.runs, args.config))
    for path, text in drawn().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
