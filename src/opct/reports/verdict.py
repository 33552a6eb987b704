"""The verdict in plain words, computed from the numbers: what training did, what it cost, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

from opct.reports.arms import OPCT, Arm
from opct.reports.axes import SAFETY_AXES, AxisInfo, Price, axis_info
from opct.reports.capability import SCORES
from opct.reports.cells import Cell, PairedCell
from opct.reports.compare import Comparison
from opct.reports.metrics import suite_name
from opct.reports.table import Line
from opct.reports.wording import inside, joined, number, quantity
from opct.runs.plural import count

TILES = (
    ("sycophancy_rate", "held_out"),
    ("attack_success_rate", "held_out"),
    ("warning_rate", "held_out"),
    ("benchmark_mean", None),
    ("over_refusal_rate", None),
    ("over_warning_rate", None),
    ("accuracy_biased", "held_out"),
    ("accuracy_clean", None),
    ("accuracy_identity", None),
)
"""Metrics of the big numbers, and the group of each; None: those of the price that it is on an axis of safety, else the
most general one."""
MOST_TILES = 4
MOST_NAMED = 6
"""Arms that a title names."""


@dataclass(frozen=True)
class Tile:
    """One big number: a metric before and after, with the paired difference; `note` is of who judged."""

    title: str
    before_name: str
    after_name: str
    before: Cell | None
    after: Cell
    difference: PairedCell | None
    note: str | None = None


def main_arm(comparison: Comparison) -> Arm:
    """The arm the page is about: OPCT where there is one, else the last whose method it is and that began with the base
    (in a matrix there are several), else the last one given.
    """
    named = [arm for arm in comparison.arms if arm.label == OPCT]
    plain = [arm for arm in comparison.arms if arm.is_of(OPCT) and not arm.goes_on]
    return (named or plain or list(comparison.arms))[-1]


@dataclass(frozen=True)
class Said:
    """A part of the verdict: clauses under a heading; `axis` is the one that it is about.

    `leads` is True where the heading is part of the sentence, "Against SFT: ". A clause that begins with the name of
    the `arm` it is about begins no sentence with a capital: "opct-x-0.5 is better".
    """

    title: str
    clauses: tuple[str, ...]
    arm: str
    axis: str | None = None
    leads: bool = False

    @property
    def sentence(self) -> str:
        """All clauses as one sentence."""
        text = "; ".join(self.clauses)
        return f"{self.title}: {_ended(text)}" if self.leads else self._begun(text)

    @property
    def sentences(self) -> list[str]:
        """A sentence for each clause."""
        return [self._begun(clause) for clause in self.clauses]

    def _begun(self, clause: str) -> str:
        return _ended(clause if clause.startswith(self.arm) else _capital(clause))


def _ended(text: str) -> str:
    return text if text.endswith(".") else text + "."


def verdict(comparison: Comparison) -> list[str]:
    """A sentence for each axis of safety; then what it cost, OPCT against its references, and what is not known."""
    return [part.sentence for part in summary(comparison)]


def summary(comparison: Comparison) -> list[Said]:
    """The same in parts, each under its heading."""
    arm, first = main_arm(comparison), comparison.arms[0]
    lines = _deciding_lines(comparison)
    if not lines:
        return [Said("", ("No metric was measured, so nothing can be said about these runs.",), arm.name)]
    parts = [Said(axis_info(x.axis).title, (_axis_sentence(comparison, x),), arm.name, x.axis) for x in lines]
    if arm is first:
        alone = "Only one kind of run was given, so there is nothing to compare it with."
        return [*parts, Said("", (alone,), arm.name)]
    clauses = [_price_clause(comparison, price) for axis in comparison.axes for price in axis_info(axis).prices]
    costs = tuple(clause for clause in dict.fromkeys(clauses) if clause)
    if costs:
        parts.append(Said("What it cost", costs, arm.name))
    parts += [_versus(comparison, arm, other, lines) for other in references(comparison, arm)]
    return [*parts, Said("Seeds", _seeds(arm, references(comparison, arm)), arm.name)]


def _seeds(arm: Arm, others: list[Arm]) -> tuple[str, ...]:
    """What the intervals of the arm, and of its differences from others, say of other seeds."""
    if len(arm.runs) == 1:
        said = "this is one training seed: the intervals cover the choice of questions"
        return (f"{said}, not how much another seed would differ",)
    said = f"{arm.name} is the mean of {len(arm.runs)} training seeds: the intervals cover the choice of questions and"
    found = [f"{said} that of seeds; how far seeds lie apart (SD) stands in the tables"]
    single = [other.name for other in others if len(other.runs) == 1]
    if single:
        runs = "is one training seed" if len(single) == 1 else "are one training seed each"
        against = f"the intervals of the differences from {'it' if len(single) == 1 else 'them'}"
        found.append(f"{joined(single)} {runs}: {against} do not cover how much another seed would differ")
    return tuple(found)


def axis_verdict(comparison: Comparison, axis: str) -> list[str]:
    """What training did on one axis: a sentence; then what it cost there, and OPCT against its references. Of an arm
    that is compared with none: its levels.
    """
    arm, info = main_arm(comparison), axis_info(axis)
    line = comparison.deciding_line(axis)
    found = [] if line is None else [_axis_sentence(comparison, line)]
    clauses = [clause for price in info.prices if (clause := _price_clause(comparison, price))]
    if clauses:
        found.append(Said("", tuple(clauses), arm.name).sentence)
    against = [line] if line is not None else _price_lines(comparison, info)[:1]
    if against:
        found += [_versus(comparison, arm, other, against).sentence for other in references(comparison, arm)]
    return found


def about(comparison: Comparison) -> str:
    """Which arm the sentences are about where there are others; empty where there are not."""
    arm, first = main_arm(comparison), comparison.arms[0]
    known = {arm.label, first.label, *(other.label for other in references(comparison, arm))}
    others = [other.name for other in comparison.arms if other.label not in known]
    if not others:
        return ""
    return f"These sentences are about {arm.name}. Beside it in the tables and figures: {joined(others)}."


def _deciding_lines(comparison: Comparison) -> list[Line]:
    found = [line for axis in comparison.axes if (line := comparison.deciding_line(axis)) is not None]
    return found or [line for section in comparison.headline() for line in section.lines][:1]


def references(comparison: Comparison, arm: Arm) -> list[Arm]:
    """The arms that an arm is compared with beside the base: one of SFT, an off-policy one, those asked for."""
    against = [pair.against for pair in comparison.pairs if pair.of == arm.label]
    return [comparison.arm(label) for label in against if label != comparison.arms[0].label]


def tiles(comparison: Comparison) -> list[Tile]:
    """The headline numbers that were measured, at most four."""
    arm, first = main_arm(comparison), comparison.arms[0]
    made = []
    for metric, group in TILES:
        line = _tile_line(comparison, metric, group)
        after = None if line is None else line.cells[comparison.arms.index(arm)]
        if line is None or after is None or after.value is None:
            continue
        alone = arm is first
        made.append(
            Tile(
                _tile_title(line) + comparison.of_suite(line.axis, line.suite),
                first.name,
                arm.name,
                None if alone else line.cells[0],
                after,
                None if alone else comparison.difference(line, arm.label, first.label),
                line.judged_by if line.judges else None,
            )
        )
    return made[:MOST_TILES]


def _tile_line(comparison: Comparison, metric: str, group: str | None) -> Line | None:
    prices = [price for axis in SAFETY_AXES for price in axis.prices if price.groups and metric in price.metrics]
    if prices:  # over-refusal is that of harmless twins, not of ordinary requests
        return price_line(comparison, prices[0])
    return (comparison.line(metric, group) if group else None) or comparison.line(metric)


def _tile_title(line: Line) -> str:
    where = {
        "held_out": ", held-out families",
        "train": ", training families",
        "benign_held_out": ", harmless twins",
    }.get(line.group, "")
    return line.title + where


def _where(line: Line) -> str:
    return {
        "held_out": " on held-out families",
        "train": " on training families",
        "all": " over all families",
        "benign_held_out": " in held-out wrappers",
        "benign_wrapped": " in wrappers",
    }.get(line.group, "")


def _subject(comparison: Comparison, line: Line) -> str:
    info = axis_info(line.axis)
    price = next((price for price in info.prices if line.info.name in price.metrics), None)
    of = comparison.of_suite(line.axis, line.suite)
    if line.info.name == info.metric:
        return info.subject + _where(line) + of
    if price is not None:
        return price_words(price, line) + of
    return inside(line.title) + _where(line) + of


def _axis_sentence(comparison: Comparison, line: Line) -> str:
    """What the main arm did to a line, or its level where there is nothing to compare it with; and who judged it."""
    arm, first = main_arm(comparison), comparison.arms[0]
    said = _level_sentence(comparison, arm, line) if arm is first else _change_sentence(comparison, arm, first, line)
    return said + _judged(comparison, line)


def _judged(comparison: Comparison, line: Line) -> str:
    """Who judged a line, and why its suite decides where it is not the first; empty of a first one by rules."""
    first = comparison.suites(line.axis)[0]
    found = [line.judged_by] if line.judges and line.judged_by else []
    if axis_info(line.axis).is_safety and line.suite != first:
        found.append(f"This suite decides, for {suite_name(first)} {_lack(comparison, line, first)}")
    return "".join(f" {_capital(part)}." for part in found)


def _lack(comparison: Comparison, line: Line, first: str) -> str:
    """Why the first suite of an axis does not decide, where this line of another one does."""
    other = comparison.deciding_line(line.axis, first)
    cells = (None,) * len(line.cells) if other is None else other.cells
    if any(cell is None and own is not None for cell, own in zip(cells, line.cells, strict=True)):
        return "was not asked of every arm"
    return "has verdicts on fewer than half of an arm's replies"


def _level_sentence(comparison: Comparison, arm: Arm, line: Line) -> str:
    return f"{arm.name}: {_level_clause(_subject(comparison, line), line.cells[0])}."


def _level_clause(words: str, cell: Cell | None) -> str:
    if cell is None or cell.value is None:
        return f"{words} could not be measured"
    return f"{words} is {cell.text} (95% interval {cell.interval_text}, n = {cell.n:,}; {cell.left_out_text})"


def _change_sentence(comparison: Comparison, arm: Arm, first: Arm, line: Line) -> str:
    before, after = line.cells[0], line.cells[comparison.arms.index(arm)]
    difference, subject = comparison.difference(line, arm.label, first.label), _subject(comparison, line)
    if before is None or after is None or difference is None:
        why = comparison.reason(line, arm.label, first.label)
        return f"{arm.name} and {first.name} cannot be compared on {subject}: {why}."
    levels = f"from {_level(before)} to {_level(after)}"
    if difference.reading == "none":
        head = f"No measurable change in {subject}: {arm.name} took it {levels}"
    elif difference.reading == "unclear":
        said = f"for the change in {subject}, cannot tell: {difference.range_text}"
        head = f"{_capital(said)}; {arm.name} took it {levels}"
    elif difference.reading == "unknown":
        head = f"{arm.name} took {subject} {levels}"
    else:
        down = difference.value is not None and difference.value < 0
        verb = ("cut" if difference.reading == "better" else "lowered") if down else "raised"
        head = f"{arm.name} {verb} {subject} {levels}"
    return f"{head} ({_evidence(difference)}){_relative(difference)}."


def _relative(difference: PairedCell) -> str:
    """ ", a relative cut of 84% (80 to 87)", where the rate fell for certain."""
    cut = difference.relative_cut
    if cut is None or cut.value is None or cut.ci_low is None or cut.ci_high is None or difference.reading != "better":
        return ""
    low, high = (number(bound, "rate", digits=0) for bound in (cut.ci_low, cut.ci_high))
    return f", a relative cut of {cut.value:.0%} ({low} to {high})"


def _level(cell: Cell) -> str:
    return quantity(cell.value, cell.unit)


def _evidence(difference: PairedCell) -> str:
    gap = f", {difference.left_out_text}"
    if difference.reading == "unclear":  # the sentence has its interval
        return f"difference {difference.text}, n = {difference.n:,}{gap}"
    if difference.low is None:
        return f"difference {difference.text}, no interval, n = {difference.n:,}{gap}"
    return f"difference {difference.text}, 95% interval {difference.interval_text}, n = {difference.n:,}{gap}"


def price_line(comparison: Comparison, price: Price) -> Line | None:
    """The line of a metric that training may make worse; None where it was not measured."""
    wanted = [(metric, group) for metric in price.metrics for group in price.groups or (None,)]
    return next((line for one in wanted if (line := comparison.line(*one)) is not None), None)


def price_words(price: Price, line: Line) -> str:
    """What it is the price of, in a sentence: "the mean score over benchmarks", "the score on GSM8K"."""
    if line.info.name in SCORES:
        return f"the score on {suite_name(line.suite)}"
    return price.words + (_where(line) if price.groups else "")


def _price_lines(comparison: Comparison, info: AxisInfo) -> list[Line]:
    return [line for price in info.prices if (line := price_line(comparison, price)) is not None]


def _price_clause(comparison: Comparison, price: Price) -> str | None:
    line = price_line(comparison, price)
    arm, first = main_arm(comparison), comparison.arms[0]
    if line is None:
        return None
    words = price_words(price, line) + comparison.of_suite(line.axis, line.suite)
    if arm is first:
        return _level_clause(words, line.cells[0])
    difference = comparison.difference(line, arm.label, first.label)
    if difference is None:
        why = comparison.reason(line, arm.label, first.label)
        return f"{arm.name} and {first.name} cannot be compared on {words}: {why}"
    if difference.reading == "none":
        return f"no measurable change in {words} ({_evidence(difference)})"
    if difference.reading == "unclear":
        return f"for the change in {words}, cannot tell: {difference.range_text} ({_evidence(difference)})"
    return f"{words} changed by {difference.text} ({_evidence(difference).split(', ', 1)[1]})"


def _versus(comparison: Comparison, arm: Arm, other: Arm, lines: list[Line]) -> Said:
    clauses = tuple(_versus_clause(comparison, arm, other, line) for line in lines)
    return Said(f"Against {other.name}", clauses, arm.name, leads=True)


def _versus_clause(comparison: Comparison, arm: Arm, other: Arm, line: Line) -> str:
    difference = comparison.difference(line, arm.label, other.label)
    subject = _subject(comparison, line)
    if difference is None:
        return f"they cannot be compared on {subject}: {comparison.reason(line, arm.label, other.label)}"
    if difference.reading == "unclear":
        return f"for {subject}, cannot tell: {difference.range_text} ({_evidence(difference)})"
    if difference.reading == "none":
        return f"no measurable difference in {subject} ({_evidence(difference)})"
    if difference.reading == "unknown":
        return f"the difference in {subject} has no interval ({_evidence(difference)})"
    return f"{arm.name} is {difference.reading} in {subject} ({_evidence(difference)})"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def title(comparison: Comparison) -> str:
    """The page's title: which arms, on which model."""
    models = list(dict.fromkeys(run.model for arm in comparison.arms for run in arm.runs))
    names = [model.rstrip("/").rsplit("/", 1)[-1] for model in models]
    arms = [arm.name for arm in comparison.arms]
    if len(arms) > MOST_NAMED:
        arms = [arms[0], count(len(arms) - 1, "arm")]
    return f"{joined(arms)} on {joined(names)}"


def subtitle(comparison: Comparison) -> str:
    """How many runs and samples stand behind the page."""
    runs = [run for arm in comparison.arms for run in arm.runs]
    samples = sum(len(run.samples) for run in runs)
    axes = [axis.replace("_", " ") for axis in comparison.axes]
    replies = count(samples, "evaluated reply", "evaluated replies")
    return f"{count(len(runs), 'run')}, {replies}; axes: {', '.join(axes) or 'none'}."
