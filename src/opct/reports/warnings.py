"""What a reader must be warned about before believing the numbers: sizes, gaps, and runs that do not compare."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opct.config.schema import LENGTH, budget_of
from opct.evals.tasks.safety_awareness import WORDS
from opct.judges.calibration import RULES_WARNING
from opct.reports.arms import ADAPTER, Arm, Pair, reference_pairs
from opct.reports.axes import axis_info
from opct.reports.cells import Cell
from opct.reports.compare import Comparison
from opct.reports.load import EvaluatedRun, flat_settings, run_config, suite_settings
from opct.reports.table import DECISIVE, Line, decisive, judges_of
from opct.reports.values import sample_values
from opct.reports.wording import inside, joined
from opct.runs.plural import count
from opct.runs.usage import earlier_usage, usage_of

NUMBER = re.compile(r"(?<![\w/-])\d(?:[\d,]*\d)?(?:\.\d+)?(?![\w/-])")
"""A number by itself, not one in a name or an id ("gsm8k", "q0012", "facts/12")."""
FEW_CLUSTERS = 100
MOST_UNSCORED = 0.02
MOST_TRUNCATED = 0.05
MOST_TOKENS = 1.25
"""Times as many completion tokens as another arm may have been trained on without a warning."""
NOT_SETTINGS = frozenset({"created", "path", "name", "time_s", "started", "device"})
"""Evaluation settings in which runs may differ and still be compared."""
OF_ONE_RUN = ("seed", "output_dir")
"""Settings in which the runs of one arm may differ."""


def find_warnings(comparison: Comparison) -> list[str]:
    """Every warning, those of the evaluations first; each says what, where, how much."""
    runs = [run for arm in comparison.arms for run in arm.runs]
    found = list(_of_evaluations(runs))
    found += _judges(runs)
    found += _different_judges(runs)
    found += _missing_arms(comparison)
    found += _different_settings(runs)
    found += _different_samples(runs)
    found += _small_samples(comparison)
    found += _shares(comparison)
    found += _disagreements(comparison)
    found += _seeds(comparison)
    found += _training(comparison.arms, comparison.pairs)
    return list(dict.fromkeys(found))


def _of_evaluations(runs: Sequence[EvaluatedRun]) -> Iterator[str]:
    """What the evaluations and the checks of the teachers warned of; texts that differ in their numbers alone are one
    warning over their runs.
    """
    alike: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for run in runs:
        of_teacher = [row.get("warning") for row in (run.manifest.get("teacher_check") or {}).values()]
        for text in [*run.warnings, *(str(warning) for warning in of_teacher if warning)]:
            alike.setdefault(tuple(NUMBER.split(text)), []).append((run.name, text))
    for found in alike.values():
        names = dict.fromkeys(name for name, _ in found)
        yield f"{', '.join(names)}: {_with_spans([text for _, text in found])}"


def _with_spans(texts: Sequence[str]) -> str:
    """The one text of several that differ in their numbers, with each number as a span."""
    spans = iter([_span(column) for column in zip(*(NUMBER.findall(text) for text in texts), strict=True)])
    return NUMBER.sub(lambda _: next(spans), texts[0])


def _span(numbers: Sequence[str]) -> str:
    """`153`, or `118 to 238` where they differ."""
    ordered = sorted(numbers, key=lambda number: float(number.replace(",", "")))
    return ordered[0] if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"


def _judges(runs: Sequence[EvaluatedRun]) -> Iterator[str]:
    """What is to be said against the judges of the runs' scores, and against rules that nobody compared with people."""
    for run in runs:
        for row in run.rows:
            settings = row.get("settings") or {}
            said = settings.get("judge_warning") or (RULES_WARNING if settings.get("grader") == WORDS else None)
            if said:
                yield f"{row['suite']}: {said}"


def _different_judges(runs: Sequence[EvaluatedRun]) -> Iterator[str]:
    """Suites whose runs were judged by several judges, or by one with several thresholds."""
    for suite in sorted({str(row["suite"]) for run in runs for row in run.rows}):
        judges: dict[str, tuple[str, list[str]]] = {}
        for run in runs:
            for key, judge in judges_of(run, suite).items():
                said = f"{judge.get('name')} ({judge.get('model')}) from a score of {judge.get('threshold')} [{key}]"
                judges.setdefault(key, (said, []))[1].append(run.name)
        if len(judges) > 1:
            shown = "; ".join(f"{', '.join(names)}: {said}" for said, names in judges.values())
            yield (
                f"{suite}: the runs were judged by {len(judges)} different judges ({shown}), so no difference between "
                "arms of different judges is given: judge them alike, with `opct judge run`."
            )


def _missing_arms(comparison: Comparison) -> Iterator[str]:
    labels = {arm.label for arm in comparison.arms}
    if "base" not in labels:
        yield f"No run is labelled base: differences are to {comparison.arms[0].name}, not to the untrained model."
    models = sorted({run.model for arm in comparison.arms for run in arm.runs})
    if len(models) > 1:
        yield (
            f"The runs are of {len(models)} different models ({joined(models)}): "
            "their differences are not the effect of training."
        )


def _different_settings(runs: Sequence[EvaluatedRun]) -> Iterator[str]:
    """Settings of the evaluations in which runs differ, then those of single suites, each said once."""
    whole = {run.name: flat_settings(run.settings) for run in runs}
    said = dict(_differences(whole))
    for name, shown in said.items():
        yield (
            f"The evaluation setting {name} differs between runs ({shown}), so they are not strictly comparable: "
            "evaluate them alike."
        )
    found: dict[tuple[str, str], list[str]] = {}
    for suite in dict.fromkeys(str(row["suite"]) for run in runs for row in run.rows):
        own = {run.name: known for run in runs if (known := suite_settings(run, suite)) is not None}
        for name, shown in _differences(own):
            if said.get(name) != shown:
                found.setdefault((name, shown), []).append(suite)
    for (name, shown), suites in found.items():
        so = "no difference between them is given" if name in DECISIVE else "they are not strictly comparable"
        yield f"{joined(suites)}: {name} differs between runs ({shown}), so {so}: evaluate them alike."


def _differences(settings: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """The name of each setting in which runs differ, and which run has which value."""
    names = {key for each in settings.values() for key in each if key.rpartition(".")[-1] not in NOT_SETTINGS}
    for name in sorted(names):
        runs_of: dict[str, list[str]] = {}
        values: dict[str, object] = {}
        for run, each in settings.items():
            key = decisive(name, each.get(name))
            values.setdefault(key, each.get(name))
            runs_of.setdefault(key, []).append(run)
        if len(runs_of) > 1:
            yield name, "; ".join(f"{', '.join(own)}: {_short(values[key])}" for key, own in runs_of.items())


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."


def _different_samples(runs: list[EvaluatedRun]) -> Iterator[str]:
    first = {str(sample["id"]) for sample in runs[0].samples}
    for run in runs[1:]:
        ids = {str(sample["id"]) for sample in run.samples}
        alone, missing = len(ids - first), len(first - ids)
        if alone or missing:
            yield (
                f"{run.name} and {runs[0].name} were not evaluated on the same samples: {count(missing, 'sample')} of "
                f"{runs[0].name} missing, {alone:,} of its own. Differences use the {len(ids & first):,} they share."
            )


def _small_samples(comparison: Comparison) -> Iterator[str]:
    """Few clusters behind the headline: one warning an axis."""
    for axis in comparison.axes:
        sizes: list[int] = []
        titles: list[str] = []
        for section in comparison.headline(axis):
            counts = [cell.n_clusters for line in section.lines for cell in line.cells if cell is not None]
            if counts and min(counts) < FEW_CLUSTERS:
                sizes.append(min(counts))
                titles.append(section.title)
        if sizes:
            least, most = min(sizes), max(sizes)
            span = count(least, "question") if least == most else f"{least} to {count(most, 'question')}"
            yield (
                f"{axis_info(axis).title}: only {span} (clusters) behind {joined(titles)}: intervals are wide, small "
                "effects cannot be seen."
            )


def _shares(comparison: Comparison) -> Iterator[str]:
    """Unscored and truncated shares above their bounds: one warning an axis, with each arm's worst metric."""
    for axis in comparison.axes:
        worst: dict[str, dict[str, tuple[float, str]]] = {}
        for section in comparison.headline(axis):
            for line in section.lines:
                if line.info.is_partial:  # what it leaves out is its meaning; n may count facts, not replies
                    continue
                for arm, cells in zip(comparison.arms, line.run_cells, strict=True):
                    for kind, share, text in _left_out(cells):
                        of_arms = worst.setdefault(kind, {})
                        if share > of_arms.get(arm.name, (0.0, ""))[0]:
                            where = f"{line.title} ({inside(section.title)})"
                            of_arms[arm.name] = (share, f"{text} of {where}")
        for kind, of_arms in worst.items():
            said = "; ".join(f"{name} {what}" for name, (_, what) in of_arms.items())
            yield f"{axis_info(axis).title}: samples {kind}: {said}."


def _left_out(cells: Sequence[Cell | None]) -> Iterator[tuple[str, float, str]]:
    """(kind, share, "40 of 120 (33.3%)") of what the runs of an arm left out of a metric, where it is too much."""
    known = [cell for cell in cells if cell is not None]
    total = sum(cell.n + cell.n_unscored for cell in known)
    for kind, amount, most in (
        ("unscored, so not in the number", sum(cell.n_unscored for cell in known), MOST_UNSCORED),
        ("cut at the token limit or the context", sum(cell.n_truncated for cell in known), MOST_TRUNCATED),
    ):
        share = amount / total if total else 0.0
        if share > most:
            yield kind, share, f"{amount:,} of {total:,} ({share:.1%})"


def _disagreements(comparison: Comparison) -> Iterator[str]:
    """A row of results.json that its own samples do not give: one of the two files is stale."""
    for arm_index, arm in enumerate(comparison.arms):
        for run_index, run in enumerate(arm.runs):
            off = [line for line in comparison.lines if _disagrees(line, run, line.run_cells[arm_index][run_index])]
            if off:
                first, folder = f"{off[0].info.name}, {off[0].group}", shlex.quote(str(run.path))
                yield (
                    f"{run.name}: {count(len(off), 'row')} of results.json (first {first}) do not follow from "
                    f"evals/samples.jsonl; one of the files is stale. Run `opct eval {folder}` again."
                )


def _disagrees(line: Line, run: EvaluatedRun, cell: object) -> bool:
    value, n = getattr(cell, "value", None), getattr(cell, "n", None)
    scored = [x for x in sample_values(run.samples, line.suite, line.info.name, line.group).values() if x is not None]
    if value is None or not scored:
        return False
    return len(scored) != n or abs(sum(scored) / len(scored) - value) > 1e-6


def _seeds(comparison: Comparison) -> Iterator[str]:
    for arm in comparison.arms:
        seeds = [run.seed for run in arm.runs]
        if len(seeds) > 1 and len(set(seeds)) < len(seeds) and arm.label != "base":
            yield (
                f"{arm.name}: {len(seeds)} runs are pooled but name only {len(set(seeds))} different training seeds; "
                "the same run counted twice shows too small a spread."
            )


# ------------------------------------------------------------------------------------------ how runs were trained


def _training(arms: Sequence[Arm], pairs: Sequence[Pair]) -> Iterator[str]:
    """Runs pooled as seeds that are not, arms compared over different budgets, and configs that cannot be read."""
    configs: dict[str, list[tuple[EvaluatedRun, dict[str, Any]]]] = {}
    for arm in arms:
        for run in arm.runs:
            config = run_config(run)
            if config is None:
                yield f"{run.name}: config.yaml cannot be read, so how it was trained is not compared with other runs."
            elif config:
                configs.setdefault(arm.label, []).append((run, config))
    for arm in arms:
        yield from _unlike_seeds(arm, configs.get(arm.label, []))
    by_label = {arm.label: arm for arm in arms}
    for pair in reference_pairs(arms, pairs):
        of, against = by_label[pair.of], by_label[pair.against]
        if of.label in configs and against.label in configs:
            both = [(against, configs[against.label]), (of, configs[of.label])]
            unlike = list(_unlike_budgets(both))
            yield from unlike
            if unlike or pair.is_asked or not of.is_sft:  # of several SFT arms of one budget there is nothing to say
                yield from _unlike_tokens(both)


def _unlike_seeds(arm: Arm, runs: Sequence[tuple[EvaluatedRun, dict[str, Any]]]) -> Iterator[str]:
    names = {name for _, config in runs for name in config} - set(OF_ONE_RUN)
    unlike = sorted(name for name in names if len({_key(_of_any_seed(name, config)) for _, config in runs}) > 1)
    if unlike:
        named = joined([f"{name} ({_values([config for _, config in runs], name)})" for name in unlike])
        yield (
            f"{arm.name}: {len(runs)} runs are pooled as seeds of one method, but were trained with different "
            f"settings: {named}. Give them labels of their own (`opct eval --label`)."
        )


def _of_any_seed(name: str, config: Mapping[str, Any]) -> Any:
    """A setting's value; that of an adapter to go on from without the run's seed, which an experiment has in it."""
    value = config.get(name)
    if name != ADAPTER or not isinstance(value, str):
        return value
    return re.sub(rf"-seed{config.get('seed')}(?=[/\\]|$)", "", value)


def _unlike_budgets(arms: Sequence[tuple[Arm, list[tuple[EvaluatedRun, dict[str, Any]]]]]) -> Iterator[str]:
    """What two arms do not share of `opct.config.schema.BUDGET`, and that one of them has trained before as well."""
    (one, of_one), (other, of_other) = arms
    first, second = [budget_of(config) for _, config in of_one], [budget_of(config) for _, config in of_other]
    own = [{run.manifest.get("total_steps") for run, _ in runs} for runs in (of_one, of_other)]
    in_all = [_steps_in_all(runs) for runs in (of_one, of_other)]
    went_on = [any(config.get(ADAPTER) for _, config in runs) for runs in (of_one, of_other)]
    is_one_longer = went_on[0] != went_on[1] and (in_all[0] != in_all[1] or None in in_all[0])
    are_known = None not in own[0] | own[1]
    unlike = [name for name in first[0] if _all(first, name) != _all(second, name)]
    if are_known or went_on[0] != went_on[1]:  # the steps there were count, whatever they were asked for as
        unlike = [name for name in unlike if name not in LENGTH]
    named = [f"{name} ({one.name}: {_values(first, name)}; {other.name}: {_values(second, name)})" for name in unlike]
    if are_known and own[0] != own[1] and went_on[0] == went_on[1]:
        named.insert(0, f"optimizer steps ({one.name}: {_counts(own[0])}; {other.name}: {_counts(own[1])})")
    if named:
        yield (
            f"{one.name} and {other.name} were trained with different budgets or pairs: {joined(named)}. "
            "Their difference is not that of the methods alone."
        )
    if is_one_longer:
        later, begun = (one.name, other.name) if went_on[0] else (other.name, one.name)
        steps = in_all if went_on[0] else in_all[::-1]
        yield (
            f"{later} went on from the adapter of another run: it took {_counts(steps[0])} optimizer steps in all, and "
            f"{begun} {_counts(steps[1])}. Their difference is also that of how long they were trained."
        )


def _unlike_tokens(arms: Sequence[tuple[Arm, list[tuple[EvaluatedRun, dict[str, Any]]]]]) -> Iterator[str]:
    """That one of two arms was trained on over a quarter more completion tokens, in the mean of its runs.

    Nothing is said where one of them trains on no completions (`act`), did not log how many, or alone went on from
    another run, whose tokens are not in its log.
    """
    if len({any(config.get(ADAPTER) for _, config in runs) for _, runs in arms}) > 1:
        return
    tokens = []
    for arm, runs in arms:
        known = [n for run, _ in runs if (n := usage_of(run.metrics, run.method).completion_tokens)]
        if len(known) < len(runs):
            return
        tokens.append((sum(known) / len(known), arm))
    (few, less), (many, more) = sorted(tokens, key=lambda each: each[0])
    if many > MOST_TOKENS * few:
        why = ", with two answers in each of its preferences" if more.is_of("dpo") else ""
        yield (
            f"{more.name} was trained on {many:,.0f} completion tokens a run{why}, and {less.name} on {few:,.0f}. "
            "Their difference is also that of how much they were trained on."
        )


def _steps_in_all(runs: Sequence[tuple[EvaluatedRun, dict[str, Any]]]) -> set[int | None]:
    """Optimizer steps of each run, with those of the runs whose adapter it went on from."""
    return {
        usage_of(run.metrics, run.method, earlier_usage(run.manifest, config.get(ADAPTER))).steps_in_all
        for run, config in runs
    }


def _counts(steps: set[int | None]) -> str:
    known = [f"{n:,}" for n in sorted(n for n in steps if n is not None)]
    return " or ".join([*known, *(["an unknown number of"] if None in steps else [])])


def _all(budgets: Sequence[Mapping[str, Any]], name: str) -> set[str]:
    return {_key(budget[name]) for budget in budgets}


def _values(configs: Sequence[Mapping[str, Any]], name: str) -> str:
    return ", ".join(dict.fromkeys(_key(config.get(name)) for config in configs))


def _key(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
