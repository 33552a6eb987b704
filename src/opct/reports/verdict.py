"""What a report says in words, computed from the numbers: effects of training, costs, and uncertainty."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from opct.evals.samples import ATTACK, CAPABILITY, CONSISTENCY
from opct.evals.stats import FEW_CLUSTERS, smallest_decided
from opct.evals.tasks.attack import PREFIX
from opct.evals.wording import named_interval, number
from opct.reports.arms import BASE, Arm
from opct.reports.axes import SAFETY_AXES, axis_info
from opct.reports.compare import Comparison
from opct.reports.table import Estimate, MetricRow, PairedDifference
from opct.reports.wording import METHODS_IN_WORDS, capitalized, inside, joined
from opct.runs.console import pluralize

MOST_HEADLINES = 4
MOST_NAMED = 6  # arms that a title names
MOST_WORSE = 4  # metrics that the summary names
SHARES = {
    "right": "accuracy_biased",
    "suggested": "sycophancy_rate",
    "neither": "other_rate",
    "both": "both_mentioned_rate",
}
"""The four kinds of replies to a wrong suggestion; their shares sum to 1."""


@dataclass(frozen=True)
class Headline:
    """A headline number.

    Attributes:
        levels: of the base, of what the main arm is compared with, and of the main arm.
        difference: of the main arm from the base; None if there is none, and `reason` then says why.
        note: names the judge.
        shares: of each arm, "Base: right 4.3%, suggested 57.4%, ..."; empty if that does not apply.
        meaning: what is counted, and which direction is better.
        is_side_effect: whether it is no aim of the training.
    """

    title: str
    levels: tuple[tuple[Arm, Estimate], ...]
    difference: PairedDifference | None
    note: str | None
    reason: str | None
    shares: tuple[str, ...]
    meaning: str
    is_side_effect: bool


def evidence(comparison: Comparison) -> dict[str, str]:
    """By axis: what decides there, with interval, n, what was left out, and the judge; for the paper."""
    return {axis: _evidence(comparison, row) for axis in comparison.axes if (row := _first_row(comparison, axis))}


def _first_row(comparison: Comparison, axis: str) -> MetricRow | None:
    rows = (row for section in comparison.headline(axis) for row in section.rows)
    return comparison.deciding_row(axis) or next(chain(side_effect_rows(comparison, axis), rows), None)


def first_rows(comparison: Comparison) -> list[MetricRow]:
    """The rows that matter first: what decides on each safety axis, then the side effects."""
    return list({id(row): row for row in (*comparison.deciding_rows, *costs(comparison))}.values())


def summary(comparison: Comparison) -> list[str]:
    """What a person would say first: the change on each axis, against the references, and what got worse."""
    arm, first = comparison.main_arm, comparison.first
    rows, in_figures = first_rows(comparison), list(evidence(comparison).values())[:1]
    deciding = [row for row in rows if axis_info(row.axis).metric == row.metric.name and comparison.change(row)]
    if not comparison.rows:
        return _training_sentences(arm)
    if len(comparison.arms) == 1 and comparison.axes == [ATTACK]:
        return [text for suite in comparison.suites(ATTACK) for text in _attack_sentences(comparison, suite)]
    if arm is first:
        known = [row for row in comparison.deciding_rows if comparison.level(row, arm)]
        alone = [text for row in known for text in (_plain_sentence(comparison, row), *_answers(comparison, row))]
        return alone or in_figures
    if not deciding:
        return in_figures
    said = [_plain_sentence(comparison, row) for row in deciding]
    beside = [_plain_reference(comparison, deciding[0], other) for other in references(comparison, arm)]
    said[1:1] = [*beside, *_answers(comparison, deciding[0])]
    shown = {id(row): row for row in (*(row for section in comparison.headline() for row in section.rows), *rows)}
    for row in deciding:
        del shown[id(row)]
    worse = [inside(comparison.name_of(row)) for row in shown.values() if _reading(comparison, row) == "worse"]
    if worse:
        more = f", and {len(worse) - MOST_WORSE} more" if len(worse) > MOST_WORSE else ""
        return [*said, f"Worse than {_called(first)}: {', '.join(worse[:MOST_WORSE])}{more}."]
    readings = [_reading(comparison, row) for row in costs(comparison)]
    if not readings:
        return said
    is_one, unknown = len(readings) == 1, sum(reading not in {"better", "worse", "no_change"} for reading in readings)
    if unknown == len(readings):
        effects = "its one side effect" if is_one else f"any of {len(readings)} side effects"
        return [*said, f"It can't be told whether {effects} got worse than in {_called(first)}."]
    if is_one:
        return [*said, "Its one side effect did not get measurably worse."]
    left = f"; for {unknown} it can't be told" if unknown else ""
    return [*said, f"None of {len(readings)} side effects got measurably worse{left}."]


def _reading(comparison: Comparison, row: MetricRow) -> str:
    return change.reading if (change := comparison.change(row)) else ""


def _training_sentences(arm: Arm) -> list[str]:
    """What a training did that was not evaluated: the KL on held-out pairs, else on the training pairs."""
    run = arm.runs[0]
    path, options = "RUN" if run.path is None else shlex.quote(str(run.path)), run.manifest.get("eval_options", "")
    advice = f"It was not evaluated: run `opct eval {path}{options}`."
    for metric, pairs in (("validation/kl", "pairs it was not trained on"), ("train/kl", "the training pairs")):
        logged = [row[metric] for row in run.metrics if row.get(metric) is not None]
        if len(logged) > 1:
            change = f"went from {logged[0]:.3f} to {logged[-1]:.3f}, on {pairs} (KL: 0 is the same, 1 very different)"
            return [f"{arm.name}'s distance from what the base says when asked plainly {change}.", advice]
    return [f"{arm.name}: no KL was logged.", advice]


def _attack_sentences(comparison: Comparison, suite: str) -> list[str]:
    """ "The model withstood the attacker `transfer` in 54 of 100 harmful requests.", and what it does without."""

    def share(metric: str) -> tuple[str, Estimate | None]:
        row = comparison.row(metric, suite=suite)
        one = row.estimates[0] if row is not None else None
        if one is None or one.value is None:
            return "", one
        known = f"{one.value * one.n:,.0f}" if one.n_runs == 1 else one.text
        return f"{known} of {one.n:,}", one

    held, decided = share("defense_success_rate")
    left = f" ({decided.n_unscored:,} more are undecided)" if decided is not None and decided.n_unscored else ""
    attacker = f"the attacker `{suite.removeprefix(PREFIX)}`"
    withstood = f"The model withstood {attacker} in {held} harmful requests{left}."
    told = [withstood if held else f"No request under {attacker} was decided."]
    bare, benign = share("bare_defense_rate")[0], share("benign_refusal_rate")[0]
    who = "it" if held else "the model"
    told += [f"Asked once and without an attack, {who} withstood {bare}."] if bare else []
    return [*told, *([f"Harmless look-alikes under the same attack: {benign} replies refuse."] if benign else [])]


_DOUBT = {
    "worse": "; this is worse",
    "no_change": "; this is practically no change",
    "inconclusive": "; the difference may be chance",
    "two_seeds": "; two training seeds do not decide whether this is chance",
    "unknown": "; whether this is chance is not known",
}
"""What the first sentence says of a difference that is not an improvement."""
_LEFT_OUT = ", on kinds of prompts that the built-in training pairs leave out"


def _plain_sentence(comparison: Comparison, row: MetricRow) -> str:
    """ "OPCT gives in to a wrong suggestion in 22 of 100 answers, the base in 38, on kinds of pressure ..." """
    arm, first = comparison.main_arm, comparison.first
    does, beside = axis_info(row.axis).finding
    if any(run.settings.get("system_prompt") for run in arm.runs):  # stands before the clean prompt, too
        does = does.replace("asked plainly", "asked plainly after the same system prompt")
    before, after = _levels(comparison, row, arm)
    on = comparison.where(row)
    on = _LEFT_OUT if row.group == "held_out" and not comparison.is_unseen(row) else f",{on}" if on else ""
    on += comparison.of_suite(row.axis, row.suite)
    said = f"{'The base' if arm.label == BASE else arm.name} {does.format(after)}"
    if arm is first:
        return f"{said}{on}."
    return f"{said}, {_called(first)} {beside.format(before)}{on}{_doubt(comparison, row)}."


def _answers(comparison: Comparison, row: MetricRow) -> list[str]:
    """ "OPCT gives the right answer in 25 of 100 (the base in 4); in 50 (the base in 38) it gives neither." of a
    sycophancy rate; in the first brackets what is not an improvement, or may be chance.
    """
    if row.metric.name != SHARES["suggested"]:
        return []
    arm, first = comparison.main_arm, comparison.first
    right, neither = (comparison.row(SHARES[kind], row.group, row.suite) for kind in ("right", "neither"))
    if right is None or neither is None:
        return []
    if not all(comparison.level(one, side) for one in (right, neither) for side in (first, arm)):
        return []
    before, after = _levels(comparison, right, arm)
    beside = "" if arm is first else f" ({_called(first)} in {before}{_doubt(comparison, right)})"
    rest_before, rest = _levels(comparison, neither, arm)
    left = "" if arm is first else f" ({_called(first)} in {rest_before})"
    said = f"{capitalized(_called(arm))} gives the right answer in {after} of 100{beside}"
    return [f"{said}; in {rest}{left} it gives neither."]


def _doubt(comparison: Comparison, row: MetricRow) -> str:
    """ "; this is worse" of a difference that is not an improvement; of one that the levels contradict, on what."""
    difference = comparison.change(row)
    if difference is None:
        return ""
    paired = _on_paired(comparison, row, comparison.first, difference)
    doubt = _DOUBT.get(difference.reading, f"; this is {difference.reading}" if paired else "")
    return f";{paired},{doubt[1:]}" if paired else doubt


def _on_paired(comparison: Comparison, row: MetricRow, other: Arm, difference: PairedDifference) -> str:
    """ " on the 85 that both have" where the levels, which are of all scored replies, differ the other way."""
    after, before = (comparison.level(row, arm) for arm in (comparison.main_arm, other))
    if not difference.left_out or after is None or before is None:
        return ""
    is_contrary = ((after.value or 0.0) - (before.value or 0.0)) * (difference.value or math.nan) <= 0
    return f" on the {difference.n:,} that both have" if is_contrary else ""


def _called(arm: Arm) -> str:
    return "the base" if arm.label == BASE else arm.name


def _plain_reference(comparison: Comparison, row: MetricRow, other: Arm) -> str:
    """ "That is better than SFT (28%)." Then the tiles in which the two differ the other way."""
    arm = comparison.main_arm
    difference = comparison.difference(row, arm.label, other.label)
    if difference is None:
        return f"It cannot be compared with {other.name}: {comparison.reason(row, arm.label, other.label)}."
    said = {"better": "That is better than", "worse": "That is worse than", "no_change": "That is the same as"}
    said["two_seeds"] = "Two seeds do not decide whether it differs from"

    apart: dict[str, list[str]] = {}
    for each in headline_rows(comparison):
        tile_difference = comparison.difference(each, arm.label, other.label)
        if tile_difference is not None and tile_difference.reading in {"better", "worse"} - {difference.reading}:
            levels = [short_level(comparison.level(each, side)) for side in (arm, other)]
            named = f"{inside(comparison.name_of(each))} ({f', {other.name} '.join(levels)})"
            apart.setdefault(tile_difference.reading, []).append(named)
    theirs = _levels(comparison, row, other)[1] + " of 100" * (row.metric.unit == "rate")
    told = joined([f"{reading} in {joined(names)}" for reading, names in apart.items()])
    but = f", but {arm.name} is {told}" if told else ""
    on = _on_paired(comparison, row, other, difference)
    return f"{said.get(difference.reading, 'It is not shown to differ from')} {other.name}{on} ({theirs}){but}."


def _levels(comparison: Comparison, row: MetricRow, arm: Arm) -> tuple[str, str]:
    """The levels of the first arm and of `arm`, rates in percent; with a digit more where both would be the same, or
    one 0 or 100 that is not.
    """
    levels = [comparison.level(row, side) for side in (comparison.first, arm)]
    known = [None if one is None else one.value for one in levels]
    unit = row.metric.unit
    whole = [number(value, unit, digits=0 if unit == "rate" else None) for value in known]
    exact = [number(value, unit) for value in known]
    is_coarse = any(one in ("0", "100") and more != f"{one}.0" for one, more in zip(whole, exact, strict=True))
    before, after = exact if is_coarse or (arm is not comparison.first and whole[0] == whole[1]) else whole
    return before, after


def short_level(estimate: Estimate | None) -> str:
    """A level without its digits: "28%"."""
    if estimate is None:
        return "not measured"
    return f"{number(estimate.value, 'rate', digits=0)}%" if estimate.unit == "rate" else estimate.text


def references(comparison: Comparison, arm: Arm) -> list[Arm]:
    """The arms that an arm is compared with besides the first."""
    against = [pair.against for pair in comparison.pairs if pair.of == arm.label]
    return [comparison.arm(label) for label in against if label != comparison.first.label]


def side_effect_rows(comparison: Comparison, axis: str) -> list[MetricRow]:
    candidates = [[comparison.row(*one, axis=axis) for one in effect] for effect in axis_info(axis).side_effects]
    return [next(row for row in rows if row is not None) for rows in candidates if any(rows)]


def costs(comparison: Comparison) -> list[MetricRow]:
    """The measured side effects of every axis, worst first: what the main arm made worse, then by how much."""

    def place(row: MetricRow) -> tuple[bool, float]:
        difference = comparison.change(row)
        if difference is None or difference.value is None:
            return True, math.inf
        return difference.reading != "worse", difference.value * (1 if row.metric.better == "higher" else -1)

    return sorted((row for axis in comparison.axes for row in side_effect_rows(comparison, axis)), key=place)


def _evidence(comparison: Comparison, row: MetricRow) -> str:
    """ "OPCT: accuracy fell from 50.0% to 40.0%, worse (−10.0 points, 95% interval ..., n = 60, none unscored)." """
    arm, first = comparison.main_arm, comparison.first
    before, after = comparison.level(row, first), comparison.level(row, arm)
    name, difference = inside(comparison.name_of(row)), comparison.change(row)
    judged = f" {capitalized(row.judged_by)}." if row.judges and row.judged_by else ""
    if arm is first:
        if after is None:
            return f"{arm.name}: {name} could not be measured.{judged}"
        bounds = f"{named_interval(after.interval_text)}, n = {after.n:,}; {after.left_out_text}"
        return f"{arm.name}: {name} {after.text} ({bounds}).{judged}"
    if difference is None or before is None or after is None:
        why = comparison.reason(row, arm.label, first.label)
        return f"{arm.name} and {first.name} cannot be compared on {name}: {why}.{judged}"
    is_decided = difference.reading in ("better", "worse")
    on = _on_paired(comparison, row, first, difference)
    verb = "went" if on or not is_decided else "fell" if (difference.value or 0.0) < 0 else "rose"
    bounds = f"{named_interval(difference.interval_text)}, n = {difference.n:,}, {difference.left_out_text}"
    levels = f"{name} {verb} from {before.text} to {after.text}" + (on and f";{on}")
    return f"{arm.name}: {levels}, {difference.reading_text} ({difference.text}, {bounds}).{judged}"


# ---------------------------------------------------------------------------------------------- titles and headlines


def headline_rows(comparison: Comparison) -> list[MetricRow]:
    """Rows in which the main arm has a value: the deciding metrics, and costs up to four in all, one at least."""

    def known(rows: Iterable[MetricRow | None]) -> list[MetricRow]:
        return [row for row in rows if row is not None and comparison.level(row, comparison.main_arm)]

    deciding = known(comparison.deciding_row(axis.name) for axis in SAFETY_AXES)
    pressed = comparison.row("accuracy_biased", "held_out") or comparison.row("accuracy_biased")
    others = (*costs(comparison), pressed, comparison.row("bare_defense_rate"))
    return [*deciding, *known(others)[: max(MOST_HEADLINES - len(deciding), 1)]]


def headlines(comparison: Comparison) -> list[Headline]:
    arm, first = comparison.main_arm, comparison.first
    effects, tiles = {id(row) for row in costs(comparison)}, []
    for row in headline_rows(comparison):
        levels = [(side, row.estimates[comparison.arms.index(side)]) for side in shown_arms(comparison)]
        known = tuple((side, one) for side, one in levels if one is not None)
        difference = comparison.change(row)
        lacks = arm is not first and difference is None
        tiles.append(
            Headline(
                title=comparison.name_of(row),
                levels=known,
                difference=difference,
                note=row.judged_by if row.judges else None,
                reason=comparison.reason(row, arm.label, first.label) if lacks else None,
                shares=_shares(comparison, row, [side for side, _ in known]),
                meaning=capitalized(row.explanation),
                is_side_effect=id(row) in effects and arm is not first,
            )
        )
    return tiles


def _shares(comparison: Comparison, row: MetricRow, arms: Sequence[Arm]) -> tuple[str, ...]:
    """ "Base: right 4.3%, suggested 57.4%, neither 38.3%, both 0.0%" of each arm, beside the suggested one."""
    if row.metric.name != SHARES["suggested"]:
        return ()
    rows = {kind: comparison.row(name, row.group, row.suite) for kind, name in SHARES.items()}
    places = [(arm.name, comparison.arms.index(arm)) for arm in arms]
    told = [
        (name, [f"{kind} {one.text}" for kind, of in rows.items() if of and (one := of.estimates[place])])
        for name, place in places
    ]
    return tuple(f"{name}: {', '.join(kinds)}" for name, kinds in told if len(kinds) > 1)


def leaderboard(comparison: Comparison) -> list[tuple[Arm, list[tuple[Estimate | None, PairedDifference | None]]]]:
    """Every arm with its level on each of `headline_rows` and its difference from the first; best on the first row
    first, those without a level on it, or with one that is not compared, last."""
    rows, first = headline_rows(comparison), comparison.first.label

    def place(arm: Arm) -> tuple[bool, float]:
        one = comparison.level(rows[0], arm)
        level = None if one is None else one.value
        is_apart = arm.label != first and comparison.difference(rows[0], arm.label, first) is None
        best = math.inf if level is None else -level if rows[0].metric.better == "higher" else level
        return is_apart or level is None, best

    def cells(arm: Arm) -> list[tuple[Estimate | None, PairedDifference | None]]:
        i = comparison.arms.index(arm)
        return [(row.estimates[i], comparison.difference(row, arm.label, first)) for row in rows]

    return [(arm, cells(arm)) for arm in sorted(comparison.arms, key=place)] if rows else []


def shown_arms(comparison: Comparison) -> list[Arm]:
    """The arms that the first screen is about: the first, the references of the main one, and the main one."""
    arm = comparison.main_arm
    labels = (comparison.first.label, *(other.label for other in references(comparison, arm)), arm.label)
    return [comparison.arm(label) for label in dict.fromkeys(labels)]


def who_is_who(comparison: Comparison) -> list[tuple[Arm, str]]:
    """What each arm of the first screen is, for those of which it is known."""
    known = [(arm, METHODS_IN_WORDS.get(arm.runs[0].method or arm.label)) for arm in shown_arms(comparison)]
    return [(arm, words) for arm, words in known if words]


def title(comparison: Comparison) -> str:
    """The page's title: which arms, on which model."""
    models = dict.fromkeys(run.model.rstrip("/").rsplit("/", 1)[-1] for run in comparison.runs)
    arms = [arm.name for arm in comparison.arms]
    if len(arms) > MOST_NAMED:
        arms = [arms[0], pluralize(len(arms) - 1, "arm")]
    return f"{joined(arms)} on {joined(list(models))}"


def subtitle(comparison: Comparison) -> str:
    """Number of runs, training seeds and replies of the page, its axes, and those not measured."""
    counts = [pluralize(len(comparison.runs), "run")]
    if trained := [len({run.seed for run in arm.runs}) for arm in comparison.arms if arm.runs[0].method is not None]:
        fewest = f"{min(trained)} to " if min(trained) < max(trained) else ""
        counts.append(fewest + pluralize(max(trained), "training seed"))
    if not comparison.rows:
        return f"{', '.join(counts)}; not evaluated."
    replies = sum(len(run.replies) for run in comparison.runs)
    counts.append(pluralize(replies, "evaluated reply", "evaluated replies"))
    axes = ", ".join(inside(axis_info(axis).title) for axis in comparison.axes) or "none"
    known = [name for name in (*(axis.name for axis in SAFETY_AXES), CAPABILITY) if name != CONSISTENCY]
    # clean questions are some capability: what is not measured is that of the benchmarks
    titles = {name: "benchmarks" if name == CAPABILITY else inside(axis_info(name).title) for name in known}
    missing = [title for name, title in titles.items() if name not in comparison.axes]
    left = f"; not measured: {', '.join(missing)}" if missing else ""
    return f"{', '.join(counts)}; measured: {axes}{left}."


def limits(comparison: Comparison) -> str:
    """How small a difference so few questions often cannot show, where they did not show one, and that other seeds may
    differ; empty if neither holds.
    """
    rows = [(row, comparison.change(row)) for row in headline_rows(comparison)]
    few = [
        (difference.n_clusters, axis_info(row.axis).cluster + "s")
        for row, difference in rows
        if row.metric.unit == "rate" and difference is not None and difference.reading in ("inconclusive", "unknown")
    ]
    few = [(n, word) for n, word in few if n < FEW_CLUSTERS]
    told = []
    if few:
        low, high = (f"{100 * smallest_decided(n):.0f}" for n, _ in (max(few), min(few)))
        span = low if low == high else f"{low} to {high}"
        counted = joined(sorted({word for _, word in few}))
        told.append(f"So few {counted} often cannot show a change of less than about {span} points.")
    trained = [arm for arm in shown_arms(comparison) if arm.runs[0].method is not None]
    if single := [arm.name for arm in trained if len(arm.runs) == 1]:
        of = f" of {joined(single)}" if len(single) < len(trained) else ""
        told.append(f"One training seed{of}: another may differ.")
    return " ".join(told)


def other_arms_note(comparison: Comparison) -> str:
    """The arms that the verdict leaves out; empty if there are none."""
    others = [other.name for other in comparison.arms if other not in shown_arms(comparison)]
    if not others:
        return ""
    return f"These sentences are about {comparison.main_arm.name}. Also in the tables and figures: {joined(others)}."
