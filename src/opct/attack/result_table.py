"""An attack's result as text: the table for the terminal, and phrases shared with the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.runs.console import make_table, pluralize

if TYPE_CHECKING:
    from rich.console import RenderableType

NOT_REACHED = "not reached"
SHORT = {
    "defense_success_rate": "defence rate",
    "defense_success_rate_undecided_as_jailbroken": "defence rate, at least",
    "defense_success_rate_undecided_as_defended": "defence rate, at most",
    "benign_refusal_rate": "benign refused",
    "benign_always_refused_rate": "benign always refused",
    "benign_answered_rate": "benign answered",
}
"""Names of the metrics that fit 80 columns."""


def counted(counts: Mapping[Any, int]) -> str:
    """Counts as text, the most frequent first: "3 judge_refused, 1 empty"."""
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items(), key=lambda item: (-item[1], str(item[0]))))


def row_of(result: Mapping[str, Any], metric: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(row for row in result["rows"] if row["metric"] == metric)
    return found


def undecided_text(result: Mapping[str, Any]) -> str:
    """Why behaviours are undecided, in parentheses; empty if none is."""
    reasons = row_of(result, "defense_success_rate")["unscored_reasons"]
    return f" ({counted(reasons)})" if reasons else ""


def median_text(curve: Mapping[str, Any]) -> str:
    """Queries to the first jailbreak: the median, its interval, and the number of behaviours that are not in the
    curve.
    """
    middle = curve["median_queries_to_jailbreak"]
    value, low, high = (
        NOT_REACHED if middle[name] is None else str(middle[name]) for name in ("value", "ci_low", "ci_high")
    )
    why = curve.get("left_out")
    return f"{value} ({low} to {high}); {curve['n_left_out']} left out" + (f" ({counted(why)})" if why else "")


def reply_texts(result: Mapping[str, Any]) -> tuple[str, str]:
    """Number of replies, cut replies and unscored replies, for behaviours and for benign counterparts."""
    behaviors, benign = result["behaviors"], row_of(result, "benign_refusal_rate")
    unscored = sum((Counter(one["unscored"]) for one in behaviors), Counter[str]())
    asked, cut = (sum(one[name] for one in behaviors) for name in ("queries", "n_cut"))
    of_counterparts = (benign["n"] + benign["n_unscored"], benign["n_truncated"], benign["unscored_reasons"])
    return f"behaviours: {_replies(asked, cut, unscored)}", f"benign counterparts: {_replies(*of_counterparts)}"


def _replies(asked: int, cut: int, unscored: Mapping[str, int]) -> str:
    reasons = f" ({counted(unscored)})" if unscored else ""
    return f"{asked:,} replies, {cut:,} cut, {sum(unscored.values()):,} without a score{reasons}"


def result_table(out: Path, result: Mapping[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    title = f"{result['attacker']['attacker']} against {result['target']['source']}"
    columns = ("metric", "value", "95% interval", "n", "left out")
    judge, behaviors = result["judge"], result["behaviors"]
    n_of = Counter(one["status"] for one in behaviors)
    statuses = ", ".join(f"{n_of[name]} {name}" for name in ("defended", "jailbroken", "undecided") if n_of[name])
    private = "attempts.jsonl and successful_prompts.jsonl in it are" if n_of["jailbroken"] else "its attempts.jsonl is"
    warnings = [*result["warnings"], *([judge["warning"]] if judge["warning"] else [])]
    lines = [
        f"{pluralize(len(behaviors), 'behaviour')}: {statuses}{undecided_text(result)}. Queries to the first "
        f"jailbreak, median with its 95% interval: {median_text(result['curve'])}",
        *reply_texts(result),
        _cost(result["budget"], result["judge_usage"]),
        *training_lines(result.get("training")),
        f"judge: {judge['name']} ({judge['model']}), {judge['label']} from a score of {judge['threshold']:g}",
    ]
    return Group(
        make_table(
            title,
            columns,
            [(SHORT.get(row["metric"], row["metric"]), *_percent(row), *_counts(row)) for row in result["rows"]],
        ),
        *map(Text, lines),
        *(Text(f"warning: {warning}", style="yellow") for warning in warnings),
        Text(f"kept: {out} ({private} private)"),
    )


def _percent(row: Mapping[str, Any]) -> tuple[str, str]:
    value, low, high = (row[name] for name in ("value", "ci_low", "ci_high"))
    return "-" if value is None else f"{value:.1%}", "-" if low is None else f"{100 * low:.1f} to {high:.1%}"


def _counts(row: Mapping[str, Any]) -> tuple[str, str]:
    """Number of scored and unscored units of a row: behaviours, replies to counterparts, or counterparts."""
    n, unscored = row["n"], row["n_unscored"]
    if row["metric"].startswith("defense_"):
        return pluralize(n, "behaviour"), pluralize(unscored, "behaviour") if unscored else "-"
    of = f"{pluralize(n, 'reply', 'replies')} to {pluralize(row['n_clusters'], 'counterpart')}"
    left_out = pluralize(unscored, "reply", "replies") if unscored else "-"
    return pluralize(n, "counterpart") if row["metric"] == "benign_always_refused_rate" else of, left_out


def _cost(budget: Mapping[str, Any], judge: Mapping[str, int]) -> str:
    """Usage of an attack or its training: queries, tokens, seconds, queries lost to kills, and the judge."""
    spent, parts = budget["spent"], []
    for name, unit in (("queries", "queries"), ("tokens", "sampled tokens"), ("seconds", "s")):
        limit = budget.get("limits", {}).get(name)
        parts.append(f"{spent[name]:,.0f} {unit}" + ("" if limit is None else f" (limit {limit:,})"))
    text = f"spent: {', '.join(parts)}; {spent['prompt_tokens']:,} tokens read"
    if n := budget["queries_cut_short_at_most"]:
        text += f"; at most {n:,} more queries whose replies were lost"
    if any(judge.values()):
        text += f"; the judge made {judge['calls']:,} calls, read {judge['input_tokens']:,} tokens and wrote "
        text += f"{judge['output_tokens']:,}"
    return text


def training_lines(training: Mapping[str, Any] | None) -> list[str]:
    """Usage and learning curve of the attacker's training."""
    if training is None:
        return []
    curve = [row for row in training["curve"] if row["reward"] is not None]
    few = max(1, len(curve) // 5)
    return [
        f"attacker trained in {pluralize(training['steps'], 'step')} on {training['trained_on']['n']} other "
        f"behaviours: mean score of an episode {_mean_reward('first', curve[:few])}, "
        f"{_mean_reward('last', curve[-few:])}; {pluralize(training['unscored_episodes'], 'episode')} without a score",
        "training " + _cost(training, training["judge_usage"]),
    ]


def _mean_reward(which: str, steps: Sequence[Mapping[str, Any]]) -> str:
    """The mean score over the scored episodes of these steps, and their number."""
    n = [row["episodes"] - row["unscored_episodes"] for row in steps]
    if not sum(n):
        return f"- in the {which} step"
    mean = sum(row["reward"] * own for row, own in zip(steps, n, strict=True)) / sum(n)
    return f"{mean:.3f} in the {which} {'step' if len(steps) == 1 else f'{len(steps)} steps'} (n = {sum(n)})"
