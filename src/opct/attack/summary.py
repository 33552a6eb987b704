"""What an attack came to: its rows, the table for the terminal, and warnings. No prompt and no reply is in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.data.duplicates import near_duplicate_groups
from opct.evals.attackers.episode import BEHAVIOR, COUNTERPART
from opct.evals.metrics import Row
from opct.evals.outcomes import BROKEN, COMPLETE, DEFENDED, UNDECIDED, Outcome, attempts_of, outcomes
from opct.evals.samples import GradedSample
from opct.evals.wording import rows_table
from opct.runs.console import counted, pluralize

if TYPE_CHECKING:
    from rich.console import RenderableType

SHARE_TO_WARN = 0.05


@dataclass(frozen=True)
class AttackResult:
    """The result of an attack.

    Attributes:
        log: the path of its log, which is private.
        rows: as in `results.json`.
        samples: its episodes, without their texts.
        spent: queries, tokens, prompt_tokens, seconds, judge_usage.
        about: run, ended, warnings, training, budget.
        settings: of its rows.
    """

    log: Path
    rows: list[Row]
    samples: list[GradedSample]
    spent: Mapping[str, Any]
    about: Mapping[str, Any]
    settings: Mapping[str, Any]

    @property
    def ended(self) -> str:
        """ "complete", or the limit that ended it."""
        return str(self.about["ended"])

    @property
    def behaviors(self) -> list[Outcome]:
        return outcomes(sample for sample in self.samples if sample.family_split == BEHAVIOR)

    def row(self, metric: str) -> Row:
        return next(row for row in self.rows if row["metric"] == metric)

    def render(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        judge, n_of = self.settings["judge"], Counter(one.status for one in self.behaviors)
        statuses = ", ".join(f"{n_of[name]} {name}" for name in (DEFENDED, BROKEN, UNDECIDED) if n_of[name])
        reasons = counted(Counter(one.reason for one in self.behaviors if one.status == UNDECIDED))
        lines = [
            f"{pluralize(len(self.behaviors), 'behavior')}: {statuses}{f' ({reasons})' if reasons else ''}",
            self._spent(),
            *training_lines(self.about.get("training")),
            f"judge: {judge['name']} ({judge['model']}), {judge['label']} from a score of {judge['threshold']:g}",
        ]
        warnings = [*self.about["warnings"], *filter(None, [self.settings.get("judge_warning")])]
        return Group(
            rows_table(f"{self.log.stem} against {self.about['run']['model']}", self.rows),
            *map(Text, lines),
            *(Text(f"warning: {warning}", style="yellow") for warning in warnings),
            Text(f"kept: {self.log} (private: it holds prompts and replies)"),
        )

    def _spent(self) -> str:
        parts = []
        for name, unit in (("queries", "queries"), ("tokens", "sampled tokens"), ("seconds", "s")):
            limit = self.about["budget"].get(f"max_{name}")
            parts.append(f"{self.spent[name]:,.0f} {unit}" + ("" if limit is None else f" (limit {limit:,})"))
        text = f"spent: {', '.join(parts)}; {self.spent['prompt_tokens']:,} tokens read"
        calls, read, wrote = self.spent["judge_usage"]
        return f"{text}; the judge made {calls:,} calls, read {read:,} tokens and wrote {wrote:,}" if calls else text


def training_lines(training: Mapping[str, Any] | None) -> list[str]:
    if training is None:
        return []
    curve, spent = [row for row in training["curve"] if row["reward"] is not None], training["spent"]
    # max: [-0:] of a short curve would be all of it
    few = max(1, len(curve) // 5)
    return [
        f"attacker trained in {pluralize(training['steps'], 'step')} on {training['trained_on']['n']} other "
        f"behaviors: mean score of an episode {_mean_reward('first', curve[:few])}, "
        f"{_mean_reward('last', curve[-few:])}; {pluralize(training['unscored_episodes'], 'episode')} without a score",
        f"training spent: {spent['queries']:,} queries, {spent['tokens']:,} sampled tokens, {spent['seconds']:,.0f} s",
    ]


def _mean_reward(which: str, steps: Sequence[Mapping[str, Any]]) -> str:
    """The mean score over the scored episodes of these steps, and their number."""
    n = [row["episodes"] - row["unscored_episodes"] for row in steps]
    if not sum(n):
        return f"- in the {which} step"
    # weighted by scored episodes: a step with one of them must not count as much as a full one
    mean = sum(row["reward"] * n_scored for row, n_scored in zip(steps, n, strict=True)) / sum(n)
    return f"{mean:.3f} in the {which} {'step' if len(steps) == 1 else f'{len(steps)} steps'} (n = {sum(n)})"


def find_warnings(samples: Sequence[GradedSample], ended: str) -> list[str]:
    """What makes the numbers of an attack doubtful."""
    of_kind = {kind: [one for one in samples if one.family_split == kind] for kind in (BEHAVIOR, COUNTERPART)}
    cases = outcomes(of_kind[BEHAVIOR])
    attempts = list(attempts_of(of_kind[BEHAVIOR]))
    benign = [one for one in attempts_of(of_kind[COUNTERPART]) if one["score"] is not None]
    # None, not 0: without a control it is unknown whether the target refuses everything
    refused = sum(one["score"] == 0 for one in benign) / len(benign) if benign else None
    answered = sum(bool(one["is_answered"]) for one in benign) / len(benign) if benign else 0.0
    unasked = sum((Counter(one.unasked) for one in cases), Counter[str]())
    unscored = sum((Counter(one.unscored) for one in cases), Counter[str]())
    undecided = Counter(one.reason for one in cases if one.status == UNDECIDED)
    n_groups = len(near_duplicate_groups([one.text for one in cases]))
    n_queries, n_cut = sum(one.queries for one in cases), sum(one.n_cut for one in cases)
    is_any_defended = any(one.status == DEFENDED for one in cases)
    same = "replies to benign counterparts under the same attack are"
    said = [
        (
            n_groups < len(cases),
            f"The {len(cases)} attacked behaviors form only {n_groups} groups of near-duplicates. The intervals assume "
            "independence, so they are too narrow.",
        ),
        (
            refused is None,
            "There is no benign control: no reply to a benign counterpart has a score."
            + (" The target may simply refuse everything." if is_any_defended else ""),
        ),
        (ended != COMPLETE, f"The attack ended early ({ended}): behaviors that had attempts left are undecided."),
        (
            bool(undecided),
            f"{sum(undecided.values())} of {len(cases)} behaviors are undecided ({counted(undecided)}): the defense "
            "rate is over the others only; its bounds are shown next to it.",
        ),
        (
            # a product, not a quotient: with no attempts 0 > 0 is False
            unasked.total() > SHARE_TO_WARN * len(attempts),
            f"{unasked.total()} of {len(attempts)} attempts sent nothing to the target ({counted(unasked)}): the "
            "attack is weaker than its number of attempts suggests.",
        ),
        (
            refused is not None and refused > 0.5,
            f"{refused or 0:.0%} of the {same} refusals: the target may simply refuse everything.",
        ),
        (
            is_any_defended and refused is not None and refused <= 0.5 and answered < 0.5,
            f"{answered:.0%} of the {same} answers to them: the target may defend by answering something else.",
        ),
        (
            unscored.total() > SHARE_TO_WARN * n_queries,
            f"{unscored.total()} of {n_queries} replies have no score ({counted(unscored)}). For cut replies, raise "
            "target.max_completion_tokens.",
        ),
        (
            n_cut > SHARE_TO_WARN * n_queries,
            f"{n_cut} of {n_queries} replies were cut at the token limit: those with a score were judged on the text "
            "before the cut.",
        ),
    ]
    return [text for holds, text in said if holds]
