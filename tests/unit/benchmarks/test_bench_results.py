"""Pages and kept results of experiments agree, and a table says what a report said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks import results
from benchmarks.results import BENIGN, CHOICE, SHORT, Column, Shown

from opct.errors import EvaluationError
from opct.runs.io import write_json

SHOWN = Shown(
    (Column(SHORT, "biased_rate_rise", "held_out", "added"), Column(BENIGN, "kl_to_base", "benign", "KL")), of="opct"
)


def estimate(value: float | None, **other: int):
    low, high = (None, None) if value is None else (value - 0.05, value + 0.05)
    counts = {"n": 600, "n_clusters": 600, "n_unscored": 0, "n_truncated": 0, "run_values": []} | other
    return {"value": value, "ci_low": low, "ci_high": high, **counts, "between_run_sd": 0.1}


def difference(of: str, against: str, value: float):
    found = {"of": of, "against": against, "difference": value, "ci_low": value - 0.02, "ci_high": value + 0.02}
    return found | {"n": 600, "reading": "better", "margin": 0.03}


RISES = {"base": estimate(0.4), "sft": estimate(0.25, n_unscored=3, n_truncated=9), "opct": estimate(0.123456)}
FELL = [difference("opct", "base", -0.276544), difference("opct", "sft", -0.126544)]
KLS = {"base": estimate(None), "opct": estimate(0.0201)}


def row(axis: str, suite: str, metric: str, group: str, arms: dict, differences: list):
    found = {"axis": axis, "suite": suite, "metric": metric, "group": group, "note": None}
    return found | {"arms": arms, "differences": differences}


def attacked(defended: float | None, refused: float):
    """Means over two runs."""
    own = estimate(defended, n=100, n_unscored=12) | {"run_values": [defended, defended]}
    return {"defense_success_rate": own, "benign_refusal_rate": estimate(refused, run_values=[refused, refused])}


REPORT = {
    "created": "2026-11-25T10:00:00",
    "runs": [
        {
            "label": label,
            "model": "small-model",
            "method": None if label == "base" else label,
            "seed": seed,
            "path": f"runs/{label}-seed{seed}",
        }
        for label in ("base", "sft", "opct")
        for seed in range(1 if label == "base" else 2)
    ],
    "rows": [
        row("sycophancy", SHORT, "biased_rate_rise", "held_out", RISES, FELL),
        row("benign", BENIGN, "kl_to_base", "benign", KLS, []),
        row("sycophancy", CHOICE, "biased_rate_rise", "held_out", {}, []),
    ],
    "attacks": [
        {
            "attacker": "refine",
            "arms": {
                "base": attacked(None, 0.3),
                "sft": attacked(0.5, 0.8),
                "opct": attacked(0.7, 0.75),
            },
            "differences": [
                {"of": "opct", "against": "sft", "metric": metric}
                | {"difference": value, "ci_low": value - 0.1, "ci_high": value + 0.1, "n": n}
                for metric, value, n in (("defense_success_rate", 0.2, 94), ("benign_refusal_rate", -0.3, 50))
            ],
        }
    ],
}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch):
    """What is kept of a report of two arms with two seeds."""
    (tmp_path / "shared.yaml").write_text("max_steps: 2\n")
    config = tmp_path / "made_up.yaml"
    config.write_text("train: shared.yaml\nseeds: [0, 1]\narms:\n  sft: {method: sft}\n  opct: {method: opct}\n")
    runs = tmp_path / "runs"
    write_json(runs / "report.json", REPORT)
    cost = {"completion_tokens": 9000, "seconds_in_all": 600.0}
    write_json(runs / "costs.json", {"sft": cost, "opct": cost | {"seconds_in_all": 1200.0}})
    for arm in ("sft", "opct"):
        for seed in (0, 1):
            manifest = {"opct_run": 1, "git_commit": "abcdef0123-dirty", "dtype": "float32", "hardware": {"cores": 2}}
            write_json(runs / f"{arm}-seed{seed}" / "manifest.json", manifest)
    monkeypatch.setitem(results.SHOWN, "made_up", SHOWN)
    monkeypatch.setattr(results, "KEPT", tmp_path / "docs" / "results")
    return json.loads(results.keep(runs, config).read_text())


def test_pages_and_charts_are_those_of_the_kept_results():
    drawn = results.drawn()
    assert {path.name: path.read_text(encoding="utf-8") for path in drawn} == {
        path.name: text for path, text in drawn.items()
    }


def test_every_kept_result_names_its_experiment_and_is_in_a_page():
    pages = "".join(page.read_text(encoding="utf-8") for page in results.DOCS.rglob("*.md"))
    for path in results.KEPT.glob("*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        assert (results.DOCS.parent / found["experiment"]).is_file()
        assert f":{path.stem} -->" in pages, path


def test_a_table_has_value_interval_counts_and_cost(kept):
    table = "\n".join(results.table("made_up", kept))
    assert "| OPCT | 12.3 [7.3 to 17.3] | 0.020 [−0.030 to 0.070] | 4,500 | 10.0 |" in table
    assert "| SFT | 25.0 [20.0 to 30.0] | – | 4,500 | 5.0 |" in table
    assert "| Base | 40.0 [35.0 to 45.0] | – | – | – |" in table
    assert "| n | 600 (3 unscored, 9 cut) | 600 | – | – |" in table
    assert "small-model, 2 seeds, float32, 2 cores, 2026-11-25, commit abcdef01-dirty" in table


def test_a_chart_has_a_bar_for_each_arm_that_was_scored(kept, monkeypatch):
    monkeypatch.setitem(results.SHOWN, "made_up", replace(SHOWN, chart=SHOWN.columns))
    svg = results.chart("made_up", kept)
    assert svg.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    for text in ("Base 40 (35–45)", "SFT 25 (20–30)", "OPCT 12 (7–17)", "defended against refine", "OPCT 70"):
        assert text in svg
    assert svg.count('class="bar"') == 6


def test_an_unknown_experiment_or_a_missing_row_is_named(kept, tmp_path: Path):
    with pytest.raises(EvaluationError, match="made_upp"):
        results.keep(tmp_path / "runs", tmp_path / "made_upp.yaml")
    with pytest.raises(EvaluationError, match="no row sycophancy_pairs/consistency/all"):
        Column("sycophancy_pairs", "consistency", "all", "").row(kept)


def test_differences_are_of_the_shown_arm(kept):
    lines = results.differences("made_up", kept)
    assert "| OPCT − Base | −27.7 [−29.7 to −25.7] | – |" in lines
    assert "| OPCT − SFT | −12.7 [−14.7 to −10.7] | – |" in lines


def test_a_line_a_metric_has_base_reference_shown_arm_and_their_difference(kept, monkeypatch):
    monkeypatch.setitem(results.SHOWN, "made_up", replace(SHOWN, against=("sft",)))
    lines = results.by_metric("made_up", kept)
    assert lines[0] == "|  | Base | SFT | OPCT | OPCT − SFT |"
    assert lines[2] == (
        "| added; n = 600 (3 unscored, 9 cut) | 40.0 [35.0 to 45.0] | 25.0 [20.0 to 30.0] | 12.3 [7.3 to 17.3] "
        "| −12.7 [−14.7 to −10.7] |"
    )


def test_what_is_kept_of_seeds_is_what_was_run(kept):
    assert kept["seeds"] == [0, 1]


def test_a_page_is_redrawn_between_its_marks(kept, tmp_path: Path):
    page = tmp_path / "docs" / "page.md"
    page.write_text("before\n<!-- table:made_up -->\nold\n<!-- end -->\nafter\n")
    drawn = results.drawn(tmp_path / "docs")
    text = "\n".join(results.table("made_up", kept))
    assert drawn[page] == f"before\n<!-- table:made_up -->\n\n{text}\n\n<!-- end -->\nafter\n"
    assert [path.name for path in drawn] == ["page.md", "made_up.svg", "made_up_runs.svg"]


def test_a_line_an_attacker_has_every_arm_and_the_difference_of_the_shown_one(kept, monkeypatch):
    monkeypatch.setitem(results.SHOWN, "made_up", replace(SHOWN, against=("sft",)))
    lines = results.attacks("made_up", kept)
    assert lines[0] == "| attacker | Base | SFT | OPCT | OPCT − SFT |"
    defended = "50.0 [45.0 to 55.0]; n = 100, 6 unscored | 70.0 [65.0 to 75.0]; n = 100, 6 unscored"
    of_both = "+20.0 [+10.0 to +30.0]; n = 94"
    assert lines[2] == f"| `refine`: behaviours defended | – | {defended} | {of_both} |"
    assert "75.0 [70.0 to 80.0]; n = 600 | −30.0 [−40.0 to −20.0]; n = 50 |" in lines[3]


def test_a_claim_takes_its_numbers_from_the_kept_results(kept, monkeypatch):
    here = "{opct}, {opct sft}; {refine sft}%, {refine opct sft}"
    claim = results.Claim("1. It helps", "by 7", "made_up", SHOWN.columns[0], here, "**seen**", ("opct", "sft"))
    monkeypatch.setattr(results, "CLAIMS", (claim,))
    *_, line = results.claims({"made_up": kept})
    told = "12.3, −12.7 [−14.7 to −10.7]; 50.0%, +20.0 [+10.0 to +30.0]"
    assert line == f"| 1. It helps | by 7 | {told} | **seen** | `made_up`; OPCT 10.0, SFT 5.0 |"


def test_lines_of_one_slope_lie_apart_as_least_squares_says():
    rng = np.random.default_rng(0)
    runs = [(label, x, x + y) for label in "abcd" for x, y in rng.random((3, 2))]
    found = results.line_above(runs, "a", {"b", "c"})
    groups = ["bc" if label in "bc" else label for label, _, _ in runs]
    x = np.array(
        [[group == "a", group == "bc", group == "d", x] for group, (_, x, _) in zip(groups, runs, strict=True)]
    )
    y = np.array([y for _, _, y in runs])
    (first, other, *_), [square] = np.linalg.lstsq(x, y)[:2]
    inverse = np.linalg.inv(x.T @ x)
    variance = square / 8 * (inverse[0, 0] + inverse[1, 1] - 2 * inverse[0, 1])
    assert found["difference"] == pytest.approx(first - other)
    assert found["ci_high"] - found["difference"] == pytest.approx(2.306004 * variance**0.5)  # t of 8 degrees


def test_refusals_are_made_equal_for_each_attacker(monkeypatch):
    def arm(defended, refused):
        return {"defense_success_rate": {"run_values": defended}, "benign_refusal_rate": {"run_values": refused}}

    arms = {"base": arm([0.0], [0.1]), "sft": arm([0.3, 0.5, None], [0.6, 0.8, 0.7])}
    arms["opct"] = arm([0.45, 0.55, 0.5], [0.5, 0.6, 0.55])
    monkeypatch.setitem(results.SHOWN, "made_up", SHOWN)
    kept = {"attacks": [{"attacker": "refine", "arms": arms}]}
    assert results.refusals("made_up", kept)[2:] == ["| `refine` | +25.0 [+25.0 to +25.0] | +25.0 to +25.0 | 5 |"]
    svg = results.runs_chart(kept)
    assert svg.count('class="mark"') == 3 + 6, "a legend entry an arm, and a mark a run"
