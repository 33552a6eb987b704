"""The verdict in plain words, computed from the numbers: effects of training, costs, and uncertainty."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opct.evals.samples import ATTACK, INSPECT
from opct.evals.tasks.attack import PREFIX
from opct.evals.wording import number
from opct.reports.arms import OPCT, Arm
from opct.reports.axes import SAFETY_AXES, axis_info, suite_name
from opct.reports.compare import Comparison
from opct.reports.table import Estimate, MetricRow, PairedDifference
from opct.reports.wording import capitalized, inside, joined
from opct.runs.console import pluralize

MOST_HEADLINES = 4
MOST_NAMED = 6  # arms that a title names
MOST_WORSE = 4  # metrics that the summary names
WITH_OTHER = ("sycophancy_rate", "accuracy_biased")  # beside which a tile has the share of replies that are neither


@dataclass(frozen=True)
class Headline:
    """A headline number.

    Attributes:
        levels: of the base, of what the main arm is compared with, and of the main arm.
        difference: of the main arm from the base; None if there is none, and `reason` then says why.
        note: names the judge.
        other: of each arm, the share of replies that give neither answer; empty if that does not apply.
    """

    title: str
    levels: tuple[tuple[Arm, Estimate], ...]
    difference: PairedDifference | None
    note: str | None = None
    reason: str | None = None
    other: str = ""


@dataclass(frozen=True)
class Finding:
    """Sentences of the verdict under a heading; `axis` is the axis they are about, or "attacks"."""

    title: str
    sentences: tuple[str, ...]
    axis: str | None = None

    @property
    def text(self) -> str:
        """The heading followed by all sentences; sentences on an axis already name it."""
        text = " ".join(self.sentences)
        return text if self.axis or not self.title else f"{self.title}: {text}"


def main_arm(comparison: Comparison) -> Arm:
    """The main arm of the page: OPCT, else the last arm of its method from the base, else the last arm given."""
    named = [arm for arm in comparison.arms if arm.label == OPCT]
    from_base = [arm for arm in comparison.arms if arm.uses(OPCT) and not arm.continues]
    return (named or from_base or list(comparison.arms))[-1]


def verdict(comparison: Comparison) -> list[str]:
    """The text of each finding."""
    return [finding.text for finding in findings(comparison)]


def findings(comparison: Comparison) -> list[Finding]:
    """Each safety axis; what it cost; other tasks; the main arm against its references; what the intervals cover."""
    arm, first = main_arm(comparison), comparison.arms[0]
    rows = [row for axis in comparison.axes if (row := comparison.deciding_row(axis)) is not None]
    rows = rows or [row for section in comparison.headline() for row in section.rows if row.axis != INSPECT][:1]
    # reversed: the first row of each other task is written last, and stays
    by_task = {row.suite: row for row in reversed(comparison.rows) if row.axis == INSPECT}
    tasks = [row for _, row in sorted(by_task.items())]
    if not rows and not tasks:
        return [Finding("", ("No metric was measured for these runs.",))]
    sections = [Finding(axis_info(row.axis).title, (_axis_sentence(comparison, row),), row.axis) for row in rows]
    if arm is not first:
        sections.append(_compared(comparison, "What it cost", first, costs(comparison)))
    sections.append(_compared(comparison, axis_info(INSPECT).title, first, tasks))
    if arm is first:
        sections.append(Finding("", ("Only one kind of run was given, so there is nothing to compare it with.",)))
    sections += [_compared(comparison, f"Against {other.name}", other, rows) for other in references(comparison, arm)]
    return [finding for finding in (*sections, Finding("Seeds", _seed_sentences(comparison.arms))) if finding.sentences]


def first_rows(comparison: Comparison) -> list[MetricRow]:
    """The rows that matter first: what decides on each safety axis, then the side effects."""
    deciding = [row for axis in comparison.axes if (row := comparison.deciding_row(axis)) is not None]
    return list({id(row): row for row in (*deciding, *costs(comparison))}.values())


def summary(comparison: Comparison) -> list[str]:
    """What a person would say first: the change on each axis, against the references, and what got worse."""
    arm, first = main_arm(comparison), comparison.arms[0]
    diffs = {id(row): comparison.difference(row, arm.label, first.label) for row in comparison.rows}
    rows = first_rows(comparison)
    deciding = [row for row in rows if axis_info(row.axis).metric == row.metric.name and diffs[id(row)] is not None]
    if not comparison.rows:
        return _training_sentences(arm)
    if len(comparison.arms) == 1 and comparison.axes == [ATTACK]:
        return [_attack_sentence(comparison, suite) for suite in comparison.suites(ATTACK)]
    if arm is first or not deciding:
        return [findings(comparison)[0].text]
    said = [_plain_sentence(comparison, row) for row in deciding]
    said[1:1] = [_plain_reference(comparison, deciding[0], other) for other in references(comparison, arm)]
    shown = {id(row): row for section in comparison.headline() for row in section.rows} | {id(row): row for row in rows}
    decides = {id(row) for row in deciding}
    worse = [
        inside(comparison.name_of(row))
        for key, row in shown.items()
        if key not in decides and (diff := diffs[key]) is not None and diff.reading == "worse"
    ]
    if worse:
        more = f", and {len(worse) - MOST_WORSE} more" if len(worse) > MOST_WORSE else ""
        return [*said, f"Worse than {first.name}: {', '.join(worse[:MOST_WORSE])}{more}."]
    readings = [None if (diff := diffs[id(row)]) is None else diff.reading for row in rows if id(row) not in decides]
    if not readings:
        return said
    words = {"inconclusive": "can't tell", "two_seeds": "not judged by two seeds", None: "not comparable"}
    left = ", ".join(f"{word}: {n}" for reading, word in words.items() if (n := readings.count(reading)))
    return [
        *said,
        f"Against {first.name}, none of {pluralize(len(readings), 'side effect')} got measurably worse"
        f"{f' ({left})' if left else ''}.",
    ]


def _training_sentences(arm: Arm) -> list[str]:
    """What a training did that was not evaluated: the KL on held-out pairs, else on the training pairs."""
    run = arm.runs[0]
    advice = f"It was not evaluated: run `opct eval {'RUN' if run.path is None else shlex.quote(str(run.path))}`."
    for metric, pairs in (("validation/kl", "held-out"), ("train/kl", "training")):
        logged = [row[metric] for row in run.metrics if row.get(metric) is not None]
        if len(logged) > 1:
            change = f"from {logged[0]:.3f} to {logged[-1]:.3f} nats a token"
            return [f"{arm.name}: the KL on {pairs} pairs went {change}.", advice]
    return [f"{arm.name}: no KL was logged.", advice]


def _attack_sentence(comparison: Comparison, suite: str) -> str:
    """ "Under `transfer`, the model held 54 of 100 requests; asked bare, it held 96 of 100; ..." """

    def share(metric: str) -> tuple[str, Estimate | None]:
        row = comparison.row(metric, suite=suite)
        one = row.estimates[0] if row is not None else None
        if one is None or one.value is None:
            return "", one
        known = f"{one.value * one.n:,.0f}" if one.n_runs == 1 else one.text
        return f"{known} of {one.n:,}", one

    held, decided = share("defense_success_rate")
    left = f" ({decided.n_unscored:,} more are undecided)" if decided is not None and decided.n_unscored else ""
    parts = [f"the model held {held} requests{left}" if held else "no request was decided"]
    parts += [f"asked bare, it held {bare}" for bare, _ in (share("bare_defense_rate"),) if bare]
    benign = share("benign_refusal_rate")[0]
    parts += [f"{benign} replies to benign counterparts refuse"] if benign else []
    return f"Under `{suite.removeprefix(PREFIX)}`, {'; '.join(parts)}."


def _plain_sentence(comparison: Comparison, row: MetricRow) -> str:
    """ "OPCT cut the sycophancy rate on kinds of pressure it never saw from 38% to 22%." """
    arm, first = main_arm(comparison), comparison.arms[0]
    difference = comparison.difference(row, arm.label, first.label)
    name, levels = inside(comparison.name_of(row)), _levels(row, comparison.arms.index(arm))
    assert difference is not None
    if difference.reading == "no_change":
        return f"{arm.name} barely changed the {name} ({levels})."
    if difference.reading not in ("better", "worse"):
        why = "Not judged by two seeds" if difference.reading == "two_seeds" else "Inconclusive"
        return f"{why}: {name} {levels} with {arm.name}."
    verb = "cut" if (difference.value or 0) < 0 else "raised"
    return f"{arm.name} {verb} the {name} {levels}{'' if difference.reading == 'better' else ', which is worse'}."


def _plain_reference(comparison: Comparison, row: MetricRow, other: Arm) -> str:
    """ "That is better than SFT (28%)." Then the tiles in which the two differ the other way."""
    arm = main_arm(comparison)
    difference = comparison.difference(row, arm.label, other.label)
    if difference is None:
        return f"It cannot be compared with {other.name}: {comparison.reason(row, arm.label, other.label)}."
    said = {"better": "That is better than", "worse": "That is worse than", "no_change": "That is the same as"}
    said["two_seeds"] = "Two seeds do not decide whether it differs from"

    def level(of: MetricRow, one: Arm) -> str:
        return _short(of.estimates[comparison.arms.index(one)], 0)

    apart: dict[str, list[str]] = {}
    for each in headline_rows(comparison):
        tile_difference = comparison.difference(each, arm.label, other.label)
        if tile_difference is not None and tile_difference.reading in {"better", "worse"} - {difference.reading}:
            levels = f"{level(each, arm)}, {other.name} {level(each, other)}"
            apart.setdefault(tile_difference.reading, []).append(f"{inside(comparison.name_of(each))} ({levels})")
    told = joined([f"{reading} in {joined(names)}" for reading, names in apart.items()])
    but = f", but {arm.name} is {told}" if told else ""
    return f"{said.get(difference.reading, 'It is not shown to differ from')} {other.name} ({level(row, other)}){but}."


def _levels(row: MetricRow, place: int) -> str:
    """ "from 38% to 22%", with a digit more where both would be the same."""
    texts: list[str] = []
    for digits in (0, 1):
        texts = [_short(row.estimates[i], digits) for i in (0, place)]
        if texts[0] != texts[1]:
            break
    return f"from {texts[0]} to {texts[1]}"


def _short(estimate: Estimate | None, digits: int) -> str:
    if estimate is None or estimate.value is None:
        return "not measured"
    return f"{number(estimate.value, 'rate', digits=digits)}%" if estimate.unit == "rate" else estimate.text


def axis_verdict(comparison: Comparison, axis: str) -> list[str]:
    """The effect on one axis, side effects there, and the main arm against its references."""
    row, effects = comparison.deciding_row(axis), side_effect_rows(comparison, axis)
    sentences = [] if row is None else [_axis_sentence(comparison, row)]
    sentences += _compared(comparison, "", comparison.arms[0], effects).sentences
    compared = [row] if row is not None else effects[:1]
    others = references(comparison, main_arm(comparison)) if compared else []
    return sentences + [_compared(comparison, f"Against {other.name}", other, compared).text for other in others]


def references(comparison: Comparison, arm: Arm) -> list[Arm]:
    """The arms that an arm is compared with besides the first."""
    against = [pair.against for pair in comparison.pairs if pair.of == arm.label]
    return [comparison.arm(label) for label in against if label != comparison.arms[0].label]


def side_effect_rows(comparison: Comparison, axis: str) -> list[MetricRow]:
    """The measured side effects of an axis."""
    candidates = [[comparison.row(*one, axis=axis) for one in effect] for effect in axis_info(axis).side_effects]
    return [next(row for row in rows if row is not None) for rows in candidates if any(rows)]


def costs(comparison: Comparison) -> list[MetricRow]:
    """The measured side effects of every axis, worst first: what the main arm made worse, then by how much."""
    arm, first = main_arm(comparison), comparison.arms[0]

    def place(row: MetricRow) -> tuple[bool, float]:
        difference = comparison.difference(row, arm.label, first.label)
        if difference is None or difference.value is None:
            return True, math.inf
        return difference.reading != "worse", difference.value * (1 if row.metric.better == "higher" else -1)

    return sorted((row for axis in comparison.axes for row in side_effect_rows(comparison, axis)), key=place)


def _seed_sentences(arms: Sequence[Arm]) -> tuple[str, ...]:
    """Whether the intervals of the trained arms cover other seeds."""
    trained = [arm for arm in arms if arm.runs[0].method is not None]
    pooled = [f"{arm.name} (mean of {len(arm.runs)})" for arm in arms if len(arm.runs) > 1]
    single = [arm.name for arm in trained if len(arm.runs) == 1]
    sentences = []
    if pooled:
        sentences.append(
            f"Several training seeds: {joined(pooled)}; the intervals cover the choice of questions and seeds."
        )
    if single:
        sentences.append(
            f"One training seed: {joined(single)}; the intervals cover the choice of questions, not the variation "
            "between seeds."
        )
    return tuple(sentences) or ("The intervals cover the choice of questions.",)


# --------------------------------------------------------------------------------------------------------- sentences


def _axis_sentence(comparison: Comparison, row: MetricRow) -> str:
    """Change of a metric by the main arm (its level if there is no comparison), and the judge."""
    arm, first = main_arm(comparison), comparison.arms[0]
    before, after = row.estimates[0], row.estimates[comparison.arms.index(arm)]
    difference = comparison.difference(row, arm.label, first.label)
    if before is None or after is None or difference is None:
        return _compared(comparison, "", first, [row]).text + _judged_text(comparison, row)
    is_open = difference.reading in ("no_change", "inconclusive", "two_seeds", "unknown") or difference.value is None
    verb = "went" if is_open else "fell" if (difference.value or 0.0) < 0 else "rose"
    levels = f"{inside(comparison.name_of(row))} {verb} from {before.text} to {after.text}"
    evidence = f"{difference.reading_text} ({_evidence(difference)})"
    return f"{arm.name}: {levels}, {evidence}.{_judged_text(comparison, row)}"


def _compared(comparison: Comparison, title: str, other: Arm, rows: Sequence[MetricRow]) -> Finding:
    """The main arm against another one on each of these rows; one sentence for all that cannot be compared."""
    arm, sentences = main_arm(comparison), list[str]()
    apart: dict[str, list[str]] = {}
    for row in rows:
        if arm is other or comparison.difference(row, arm.label, other.label) is not None:
            sentences.append(_sentence(comparison, row, other))
        else:
            apart.setdefault(comparison.reason(row, arm.label, other.label), []).append(comparison.name_of(row))
    for why, names in apart.items():
        sentences.append(f"{arm.name} and {other.name} cannot be compared on {joined([*map(inside, names)])}: {why}.")
    return Finding(title, tuple(dict.fromkeys(sentences)))


def _sentence(comparison: Comparison, row: MetricRow, other: Arm) -> str:
    """ "Accuracy on clean questions: inconclusive (−3.3 points, ...)." """
    arm, name = main_arm(comparison), comparison.name_of(row)
    if arm is other:
        estimate = row.estimates[0]
        if estimate is None or estimate.value is None:
            return f"{arm.name}: {inside(name)} could not be measured."
        bounds = f"95% interval {estimate.interval_text}, n = {estimate.n:,}; {estimate.left_out_text}"
        return f"{arm.name}: {inside(name)} {estimate.text} ({bounds})."
    difference = comparison.difference(row, arm.label, other.label)
    assert difference is not None
    return f"{name}: {difference.reading_text} ({_evidence(difference)})."


def _evidence(difference: PairedDifference) -> str:
    bounds = "no interval" if difference.ci_low is None else f"95% interval {difference.interval_text}"
    return f"{difference.text}, {bounds}, n = {difference.n:,}, {difference.left_out_text}"


def _judged_text(comparison: Comparison, row: MetricRow) -> str:
    """The judge of a row, and a remark if its suite is not the first."""
    first = comparison.suites(row.axis)[0]
    text = f" {capitalized(row.judged_by)}." if row.judges and row.judged_by else ""
    if axis_info(row.axis).is_safety and row.suite != first:
        text += f" This suite decides: more arms have a score on most of their replies than on {suite_name(first)}."
    return text


# ---------------------------------------------------------------------------------------------- titles and headlines


def headline_rows(comparison: Comparison) -> list[MetricRow]:
    """Rows in which the main arm has a value: the deciding metrics, and costs up to four in all, one at least."""
    place = comparison.arms.index(main_arm(comparison))

    def known(rows: Iterable[MetricRow | None]) -> list[MetricRow]:
        return [row for row in rows if row is not None and (one := row.estimates[place]) and one.value is not None]

    deciding = known(comparison.deciding_row(axis.name) for axis in SAFETY_AXES)
    pressed = comparison.row("accuracy_biased", "held_out") or comparison.row("accuracy_biased")
    others = (*costs(comparison), pressed, comparison.row("bare_defense_rate"))
    return [*deciding, *known(others)[: max(MOST_HEADLINES - len(deciding), 1)]]


def headlines(comparison: Comparison) -> list[Headline]:
    """The headline numbers of the tiles."""
    arm, first = main_arm(comparison), comparison.arms[0]
    tiles = []
    for row in headline_rows(comparison):
        levels = {side.label: (side, one) for side, one in zip(comparison.arms, row.estimates, strict=True) if one}
        known = tuple(levels[one.label] for one in shown_arms(comparison) if one.label in levels)
        note = row.judged_by if row.judges else None
        difference = comparison.difference(row, arm.label, first.label)
        lacks = arm is not first and difference is None
        reason = comparison.reason(row, arm.label, first.label) if lacks else None
        other = comparison.row("other_rate", row.group, row.suite) if row.metric.name in WITH_OTHER else None
        others = dict(zip([side.label for side in comparison.arms], other.estimates, strict=True)) if other else {}
        shares = [f"{side.name} {share.text}" for side, _ in known if (share := others.get(side.label))]
        tiles.append(Headline(comparison.name_of(row), known, difference, note, reason, ", ".join(shares)))
    return tiles


def leaderboard(comparison: Comparison) -> list[tuple[Arm, list[tuple[Estimate | None, PairedDifference | None]]]]:
    """Every arm with its level on each of `headline_rows` and its difference from the first; best on the first row
    first, those without a level on it last."""
    rows, first = headline_rows(comparison), comparison.arms[0].label

    def place(arm: tuple[Arm, tuple[Estimate | None, ...]]) -> float:
        level = None if arm[1][0] is None else arm[1][0].value
        return math.inf if level is None else -level if rows[0].metric.better == "higher" else level

    levels = zip(*(row.estimates for row in rows), strict=True)
    return [
        (arm, [(one, comparison.difference(row, arm.label, first)) for row, one in zip(rows, of_arm, strict=True)])
        for arm, of_arm in sorted(zip(comparison.arms, levels, strict=bool(rows)), key=place)
    ]


def shown_arms(comparison: Comparison) -> list[Arm]:
    """The arms that the first screen is about: the first, the references of the main one, and the main one."""
    arm = main_arm(comparison)
    labels = (comparison.arms[0].label, *(other.label for other in references(comparison, arm)), arm.label)
    return [comparison.arm(label) for label in dict.fromkeys(labels)]


def title(comparison: Comparison) -> str:
    """The page's title: which arms, on which model."""
    models = dict.fromkeys(run.model.rstrip("/").rsplit("/", 1)[-1] for run in comparison.runs)
    arms = [arm.name for arm in comparison.arms]
    if len(arms) > MOST_NAMED:
        arms = [arms[0], pluralize(len(arms) - 1, "arm")]
    return f"{joined(arms)} on {joined(list(models))}"


def subtitle(comparison: Comparison) -> str:
    """Number of runs, training seeds and replies of the page, and its axes."""
    counts = [pluralize(len(comparison.runs), "run")]
    if trained := [len({run.seed for run in arm.runs}) for arm in comparison.arms if arm.runs[0].method is not None]:
        fewest = f"{min(trained)} to " if min(trained) < max(trained) else ""
        counts.append(fewest + pluralize(max(trained), "training seed"))
    if not comparison.rows:
        return f"{', '.join(counts)}; not evaluated."
    replies = sum(len(run.replies) for run in comparison.runs)
    counts.append(pluralize(replies, "evaluated reply", "evaluated replies"))
    axes = ", ".join(axis.replace("_", " ") for axis in comparison.axes) or "none"
    return f"{', '.join(counts)}; axes: {axes}."


def other_arms_note(comparison: Comparison) -> str:
    """The arms that the verdict leaves out; empty if there are none."""
    others = [other.name for other in comparison.arms if other not in shown_arms(comparison)]
    if not others:
        return ""
    return f"These sentences are about {main_arm(comparison).name}. Also in the tables and figures: {joined(others)}."
