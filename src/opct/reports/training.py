"""Training of the arms in a report: cost, different budgets, and families that are new to an arm."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from opct.config.schema import LENGTH, budget_of
from opct.data.perturb.jailbreak import ARTIFACT
from opct.reports.arms import ADAPTER, SFT, Arm, Pair
from opct.reports.axes import axis_info
from opct.reports.compare import Comparison
from opct.reports.load import EvaluatedRun
from opct.reports.rollout_browser import said
from opct.reports.wording import family_name, joined
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.runs.usage import Usage, earlier_usage, sum_usage, usage_of


class _Rollout(TypedDict):
    """What is read of a row of rollouts."""

    pair_id: str
    family: str
    prompt: list[dict[str, str | None]]
    teacher_prompt: NotRequired[list[dict[str, str | None]]]
    tokens: list[str]
    kl: list[float] | None


_ROLLOUT = TypeAdapter(_Rollout)
MOST_TOKENS = 1.25
"""Ratio of completion tokens between two arms above which there is a warning."""
OF_ONE_RUN = ("seed", "output_dir")
"""Settings that may differ between the runs of one arm."""
NOT_LOGGED = "not logged"
MOST_PROMPTS = 6  # whose replies over time are shown
MOST_STEPS = 8  # at which they are
COST_COLUMNS = (
    "optimizer steps",
    "seconds",
    "seconds a step",
    "completion tokens",
    "tokens in the loss",
    "offline tokens",
    "offline seconds",
    "total steps",
    "total seconds",
)

# --------------------------------------------------------------------------------------------------------------- cost


def arm_cost(arm: Arm) -> Usage | None:
    """The cost of all runs of an arm; None if it was not trained."""
    if arm.label == "base" or all(run.method is None and not run.metrics for run in arm.runs):
        return None
    return sum_usage([_run_cost(run) for run in arm.runs])


def rollouts_over_time(arm: Arm, clean_replies: Mapping[str, str]) -> list[dict[str, Any]]:
    """What the first run of an arm sampled over its training; one dict a card of the page.

    Of a run with several validations a card is a held-out prompt (those whose KL changed most), with its replies at up
    to `MOST_STEPS` of them, and the base's reply to its clean prompt where `clean_replies` has it. Without them it is
    one card, without `prompt`: the first biased prompt of training steps, another one at each. Each token has its KL.
    Prompts of attackers are left out.

    Args:
        clean_replies: by `said` of the clean prompt, as JSON.
    """
    files = _rollout_files(arm.runs[0], "validation")
    if len(files) < 2:
        return _training_replies(arm.runs[0])
    at = {step: {row["pair_id"]: row for row in read_jsonl(files[step], _ROLLOUT)} for step in _spread(sorted(files))}
    first, *_, last = at.values()
    shared = [key for key in first if all(key in rows for rows in at.values()) and first[key]["family"] != ARTIFACT]
    shared.sort(key=lambda key: abs(_mean_kl(first[key]) - _mean_kl(last[key])), reverse=True)
    return [
        {
            "prompt": said(first[key]["prompt"]),
            "clean": clean_replies.get(json.dumps(said(first[key].get("teacher_prompt", ())))),
            "replies": [_reply_at(step, rows[key]) for step, rows in at.items()],
        }
        for key in shared[:MOST_PROMPTS]
    ]


def _rollout_files(run: EvaluatedRun, kind: str) -> dict[int, Path]:
    folder = None if run.path is None else RunDir(run.path).rollouts_dir
    paths = [] if folder is None else folder.glob(f"{kind}-*.jsonl")
    # by number: names of files sort by step up to 999,999 alone
    return {int(name[1]): path for path in paths if (name := re.fullmatch(rf"{kind}-(\d+)", path.stem))}


def _spread(steps: Sequence[int]) -> list[int]:
    """Up to `MOST_STEPS` of two or more steps: the first, the last, and as many between them."""
    n = min(len(steps), MOST_STEPS)
    return [steps[i * (len(steps) - 1) // (n - 1)] for i in range(n)]


def _training_replies(run: EvaluatedRun) -> list[dict[str, Any]]:
    of_loss = (run.config_values.get("loss.estimator", "exact"), run.config_values.get("loss.divergence", "reverse_kl"))
    files = _rollout_files(run, "step")
    # other methods train on answers that are not the run's own, and other losses keep another number as `kl`
    if run.method != "opct" or of_loss != ("exact", "reverse_kl") or len(files) < 2:
        return []
    at = {step: next(filter(_is_pressed, read_jsonl(files[step], _ROLLOUT)), None) for step in _spread(sorted(files))}
    replies = [_reply_at(step, row, said(row["prompt"])) for step, row in at.items() if row is not None]
    return [{"prompt": [], "clean": None, "replies": replies}] if len(replies) > 1 else []


def _is_pressed(row: _Rollout) -> bool:
    return bool(row["kl"]) and row["family"] != ARTIFACT and row["prompt"] != row.get("teacher_prompt")


def _reply_at(step: int, row: _Rollout, prompt: Sequence[list[str]] = ()) -> dict[str, Any]:
    tokens = list(zip(row["tokens"], row["kl"] or (), strict=False))
    return {"step": step, "prompt": prompt, "tokens": tokens, "mean": _mean_kl(row)}


def _mean_kl(rollout: _Rollout) -> float:
    kl = rollout["kl"] or []
    return sum(kl) / max(len(kl), 1)


def _run_cost(run: EvaluatedRun) -> Usage:
    earlier = earlier_usage(run.manifest, run.config_values.get(ADAPTER))
    return usage_of(run.metrics, run.manifest.get("offline"), earlier)


def cost_rows(arms: Sequence[Arm]) -> list[tuple[Arm, tuple[str, ...]]]:
    """The table of costs: every arm that was trained, the number of its runs, then texts by `COST_COLUMNS`."""
    costs = [(arm, arm_cost(arm)) for arm in arms]
    return [(arm, (f"{len(arm.runs):,}", *cost_texts(cost))) for arm, cost in costs if cost is not None]


def cost_texts(cost: Usage) -> tuple[str, ...]:
    """A cost as texts, in the order of `COST_COLUMNS`."""
    each = NOT_LOGGED if cost.seconds is None or not cost.steps else f"{cost.seconds / cost.steps:,.2f}"
    tokens = (cost.completion_tokens, cost.tokens_in_loss, cost.offline_tokens)
    values = (cost.steps, cost.seconds, *tokens, cost.offline_seconds, cost.steps_in_all, cost.seconds_in_all)
    steps, seconds, *rest = (NOT_LOGGED if value is None else f"{value:,.0f}" for value in values)
    return (steps, seconds, each, *rest)


# ----------------------------------------------------------------------------------------------------------- families


def families_note(comparison: Comparison, axis: str) -> str:
    """Note on trained arms that did not see all training families of an axis; empty if there is none."""
    suites = comparison.suites(axis) if axis_info(axis).is_safety else []
    families = {name for suite in suites for name in comparison.families(suite, "train")}
    arms = [arm for arm in comparison.arms if any(run.method for run in arm.runs)] if families else []
    missing: dict[tuple[str, ...] | None, list[str]] = {}
    for arm in arms:
        trained = _trained_families(arm)
        new = None if trained is None else tuple(sorted(families - trained))
        if new != ():
            missing.setdefault(new, []).append(arm.name)
    return " ".join(_families_text(new, names, len(families)) for new, names in missing.items())


def _families_text(new: tuple[str, ...] | None, names: Sequence[str], n_families: int) -> str:
    were = f"{joined(names)} {'was' if len(names) == 1 else 'were'}"
    if new is None:
        return f"Which families {were} trained on is not known."
    if len(new) == n_families:
        return f"{were} trained on none of these training families."
    return f"{were} not trained on {joined([family_name(name) for name in new])}."


def _trained_families(arm: Arm) -> set[str] | None:
    """The families that every run of an arm was trained on, earlier adapters included; None if unknown for a run."""
    known = [run.manifest["trained_families"] for run in arm.runs if "trained_families" in run.manifest]
    return set.intersection(*map(set, known)) if len(known) == len(arm.runs) else None


# ----------------------------------------------------------------------------------------------------------- warnings


def training_warnings(arms: Sequence[Arm], pairs: Sequence[Pair]) -> Iterator[str]:
    """Warnings about runs wrongly pooled as seeds, and about arms with different budgets."""
    trained = {arm.label: _Trained(arm) for arm in arms}
    for trained_arm in trained.values():
        yield from _unlike_seeds(trained_arm)
    for pair in pairs:
        one, other = trained[pair.against], trained[pair.of]
        if one.runs and other.runs and pair.against != arms[0].label:
            unlike = list(_unlike_budgets(one, other))
            yield from unlike
            if unlike or pair.is_requested or not other.arm.uses(SFT):  # several SFT arms of one budget need no warning
                yield from _unlike_tokens(one, other)


class _Trained:
    """The runs of an arm whose settings are known."""

    def __init__(self, arm: Arm):
        self.arm = arm
        self.name = arm.name
        self.continues = arm.continues
        self.runs = [run for run in arm.runs if run.config_values]
        self.configs = [run.config_values for run in self.runs]
        self.budgets = [budget_of(config) for config in self.configs]
        self.steps = {run.manifest.get("total_steps") for run in self.runs}
        self.steps_in_all = {_run_cost(run).steps_in_all for run in self.runs}


def _unlike_seeds(arm: _Trained) -> Iterator[str]:
    names = {name for config in arm.configs for name in config} - set(OF_ONE_RUN)
    unlike = sorted(name for name in names if len({_key(_of_any_seed(name, config)) for config in arm.configs}) > 1)
    if unlike:
        named = joined([f"{name} ({', '.join(_values(arm.configs, name))})" for name in unlike])
        yield (
            f"{arm.name}: {len(arm.runs)} runs are pooled as seeds of one method, but have different training "
            f"settings: {named}. Give them different labels (`opct eval --label`)."
        )


def _of_any_seed(name: str, config: Mapping[str, Any]) -> Any:
    """A setting's value; the path of an adapter without the seed that an experiment puts into it."""
    value = config.get(name)
    if name != ADAPTER or not isinstance(value, str):
        return value
    return re.sub(rf"-seed{config.get('seed')}(?=[/\\]|$)", "", value)


def _unlike_budgets(one: _Trained, other: _Trained) -> Iterator[str]:
    """Warnings for a pair of arms: different budgets, and only one continued from another run."""
    are_known = None not in one.steps | other.steps
    named = []
    for name in one.budgets[0]:
        mine, theirs = _values(one.budgets, name), _values(other.budgets, name)
        # if the steps are compared, the settings that they follow from are not
        if set(mine) != set(theirs) and not (name in LENGTH and (are_known or one.continues != other.continues)):
            named.append(f"{name} ({one.name}: {', '.join(mine)}; {other.name}: {', '.join(theirs)})")
    if are_known and one.steps != other.steps and one.continues == other.continues:
        steps = f"{one.name}: {_counts(one.steps)}; {other.name}: {_counts(other.steps)}"
        named.insert(0, f"optimizer steps ({steps})")
    if named:
        yield (
            f"{one.name} and {other.name} were trained with different budgets or pairs: {joined(named)}. So their "
            "difference is not due to the method alone."
        )
    if one.continues != other.continues and (one.steps_in_all != other.steps_in_all or None in one.steps_in_all):
        later, begun = (one, other) if one.continues else (other, one)
        yield (
            f"{later.name} continued from the adapter of another run: it took {_counts(later.steps_in_all)} optimizer "
            f"steps in total, and {begun.name} {_counts(begun.steps_in_all)}. So their difference is partly due to "
            "training length."
        )


def _unlike_tokens(one: _Trained, other: _Trained) -> Iterator[str]:
    """Warning if one of two arms was trained on over a quarter more completion tokens, on average over runs.

    There is none if an arm trains on no completions (`act`), did not log them, or only one continued from another run.
    """
    if one.continues != other.continues:
        return
    tokens = []
    for side in (one, other):
        # 0 is left out as None is: `act` trains on no completions
        known = [n for run in side.runs if (n := _run_cost(run).completion_tokens)]
        if len(known) < len(side.runs):
            return
        tokens.append((sum(known) / len(known), side.arm))
    (few, less), (many, more) = sorted(tokens, key=lambda each: each[0])
    if many > MOST_TOKENS * few:
        why = " (two answers per preference pair)" if more.uses("dpo") else ""
        yield (
            f"{more.name} was trained on {many:,.0f} completion tokens a run{why}, and {less.name} on {few:,.0f}. So "
            "their difference is partly due to training data."
        )


def _counts(steps: set[int | None]) -> str:
    known = [f"{n:,}" for n in sorted(n for n in steps if n is not None)]
    return " or ".join([*known, *(["an unknown number of"] if None in steps else [])])


def _values(configs: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    return list(dict.fromkeys(_key(config.get(name)) for config in configs))


def _key(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
