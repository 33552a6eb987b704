"""`report`: from evaluated runs to an HTML page, its numbers as JSON, and a model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.errors import EvaluationError, RunError
from opct.reports.load import load_runs, of_suites
from opct.runs.console import Progress, pluralize, shows_progress
from opct.runs.io import atomic_write, read_json, write_json
from opct.runs.run_dir import RunDir

if TYPE_CHECKING:
    from opct.reports.arms import References
    from opct.reports.compare import Comparison
    from opct.reports.table import MetricRow

SCHEMA = 1


@shows_progress
def report(
    run_dirs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    references: References | None = None,
    also: Sequence[tuple[str, str]] = (),
    suites: Sequence[str] | None = None,
    warnings: Sequence[str] = (),
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write the comparison of evaluated runs as one self-contained HTML file, and return its path.

    What it says in short (`in_short`) is logged.

    Also writes the same numbers as JSON (`out` with the suffix .json) and the model card: README.md if `out` lies in
    the directory of the run that the card is of, else `out` with the suffix .md. Runs of the same label (several seeds)
    are pooled. The output is deterministic but for its creation time.

    Args:
        run_dirs: evaluated run directories and Inspect logs in display order, the base first. A log may be
            given as `label=path`.
        out: the HTML file to write; its folder is created.
        references: by the label of an arm, the arm or arms that it is compared with besides the base. None: found by
            name, see `opct.reports.arms`.
        also: further comparisons, (arm, against) by label; unknown labels are ignored.
        suites: the suites to show. None: all.
        warnings: further warnings, which come first.
        overwrite: replace files that exist.
        progress: by default it is shown on stderr; `opct.runs.console.NullProgress()` shows none.

    Raises:
        EvaluationError: a run has no evaluation (the message names the command that makes one), `out` does not end
            in .html, a file of a run would be overwritten, or a file exists and `overwrite` is false.
        RunError: a file cannot be read or written.
    """
    from opct.reports.card import model_card_text, new_stamp
    from opct.reports.compare import compare
    from opct.reports.page import page_html
    from opct.reports.warnings import find_notes, find_warnings

    out = Path(out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise EvaluationError(f"The report is an HTML page, and {out} does not end in .html: give `--out report.html`.")
    json_path, folder = out.with_suffix(".json"), RunDir(out.parent)
    if json_path in (folder.manifest_path, folder.results_path):
        raise EvaluationError(f"The report would overwrite {json_path} of the run: name another page with --out.")
    if overwrite and json_path.exists() and not out.exists() and not _is_of_a_report(json_path):
        raise EvaluationError(f"{json_path} is not a report's and would be overwritten: move it away.")
    # all before any is written: a refusal in between would leave a page beside other numbers
    _refuse_existing(out, json_path, *([] if folder.is_run else [out.with_suffix(".md")]), overwrite=overwrite)
    runs = load_runs(run_dirs)
    comparison = compare(runs if suites is None else [of_suites(run, suites) for run in runs], references, also)
    card_path = _card_path(out, comparison.main_arm.runs[0].path)
    _refuse_existing(card_path, overwrite=overwrite)
    warnings = [*warnings, *find_warnings(comparison)]
    stamp = new_stamp()
    numbers = report_json(comparison, warnings, stamp) | {"card": card_path.name}
    atomic_write(out, page_html(comparison, warnings, stamp, json_name=json_path.name))
    write_json(json_path, numbers)
    told = [*warnings, *find_notes(comparison)]
    atomic_write(card_path, model_card_text(comparison, told, stamp, page_name=out.name))
    assert progress is not None
    for line in in_short(numbers):
        progress.log(line)
    return out


def _is_of_a_report(path: Path) -> bool:
    try:
        return {"opct_version", "rows"} <= read_json(path).keys()
    except RunError:
        return False


def in_short(numbers: Mapping[str, Any]) -> list[str]:
    """What a report says in short, from the content of its JSON: its summary, what decides on the first axis with its
    interval, the first warning, and how many more there are."""
    warnings = numbers["warnings"]
    more = [f"{pluralize(len(warnings) - 1, 'more warning')} on the page"] if len(warnings) > 1 else []
    said = dict.fromkeys([*numbers["summary"], *(axis["evidence"] for axis in numbers["axes"][:1] if axis["evidence"])])
    return [*said, *(f"warning: {text}" for text in warnings[:1]), *more]


def _refuse_existing(*paths: Path, overwrite: bool) -> None:
    if not overwrite and (existing := [str(path) for path in paths if path.exists()]):
        raise EvaluationError(
            f"{', '.join(existing)} would be overwritten: name another page with --out, or replace it with --overwrite."
        )


def _card_path(page: Path, of_run: Path | None) -> Path:
    """Where the model card of a run is written: its README, if the page lies in its folder; no other is overwritten."""
    folder = RunDir(page.parent)
    is_its_own = folder.is_run and of_run is not None and of_run.resolve() == page.parent.resolve()
    return folder.readme_path if is_its_own else page.with_suffix(".md")


def report_json(comparison: Comparison, warnings: Sequence[str], stamp: dict[str, str]) -> dict[str, Any]:
    """The page's numbers as one JSON object; null means not measured or not logged."""
    from opct.reports.training import arm_cost, families_note
    from opct.reports.verdict import evidence, first_rows, limits, summary, title
    from opct.reports.warnings import find_notes

    costs = {arm.label: arm_cost(arm) for arm in comparison.arms}
    in_figures = evidence(comparison)
    of_run = ("name", "label", "model", "method", "seed", "path")
    return {
        "schema": SCHEMA,
        "created": stamp["created"],
        "opct_version": stamp["version"],
        "title": title(comparison),
        "summary": [*summary(comparison), *filter(None, [limits(comparison)])],
        "first_rows": [[row.suite, row.metric.name, row.group] for row in first_rows(comparison)],
        "axes": [
            {
                "axis": axis,
                "suite": comparison.deciding_suites.get(axis),
                "note": families_note(comparison, axis),
                "evidence": in_figures.get(axis),
            }
            for axis in comparison.axes
        ],
        "warnings": list(warnings),
        "notes": find_notes(comparison),
        "comparisons": {"intervals": comparison.n_intervals, "expected_by_chance": comparison.n_by_chance},
        "runs": [
            {name: str(value) if isinstance(value := getattr(run, name), Path) else value for name in of_run}
            for run in comparison.runs
        ],
        "costs": {label: None if cost is None else asdict(cost) for label, cost in costs.items()},
        "rows": [_json_row(comparison, row) for row in comparison.rows],
    }


def _json_row(comparison: Comparison, row: MetricRow) -> dict[str, Any]:
    pairs = [{"of": pair.of, "against": pair.against} for pair in comparison.pairs]
    return {
        "axis": row.axis,
        "suite": row.suite,
        "metric": row.metric.name,
        "group": row.group,
        "better": row.metric.better or "none",
        "note": row.note,
        "judged_by": row.judged_by,
        "judges": list(row.judges),
        "arms": {
            arm.label: estimate.to_json()
            for arm, estimate in zip(comparison.arms, row.estimates, strict=True)
            if estimate is not None
        },
        "differences": [
            pair | difference.to_json()
            for pair, difference in zip(pairs, row.differences, strict=True)
            if difference is not None
        ],
        "not_compared": [
            {**pair, "reason": reason} for pair, reason in zip(pairs, row.reasons, strict=True) if reason is not None
        ],
    }
