"""What each arm took: sums over its runs, and what was not logged is said to be."""

from __future__ import annotations

from dataclasses import replace

from synthetic import write_run

from opct.reports.arms import make_arms
from opct.reports.build import report_json
from opct.reports.compare import compare
from opct.reports.costs import COLUMNS, Cost, arm_cost, cost_of, cost_rows, earlier_note
from opct.reports.load import EvaluatedRun, load_runs


def step(number: int, seconds: float = 1.5, **more: int) -> dict:
    return {"step": number, "time/step_s": seconds, "train/completion_tokens": 1000, "train/tokens_in_loss": 800} | more


def run(label: str, metrics, method: str | None = "opct", config: str = "") -> EvaluatedRun:
    return EvaluatedRun(None, label, label, "m", method, 0, "", {}, (), (), (), metrics=tuple(metrics), config=config)  # type: ignore[arg-type]


def test_two_runs_of_two_steps_are_added_up():
    """Step 0 is the validation before training, and no step."""
    rows = [{"step": 0, "validation/kl": 0.5}, step(1), step(2)]
    assert cost_of([rows, rows]) == Cost(6.0, 4, 4000, 3200)


def test_what_one_step_did_not_log_is_not_known():
    """The seconds of one step and the tokens in the loss of another are missing; a sum of the rest would be too low."""
    first, second = step(1), step(2)
    del first["time/step_s"], second["train/tokens_in_loss"]
    assert cost_of([[first, second]]) == Cost(None, 2, 2000, None)


def test_a_run_without_any_step_makes_nothing_of_the_arm_known():
    assert cost_of([[step(1)], []]) == Cost(None, None, None, None)
    assert cost_of([[{"step": 0, "validation/kl": 0.5}]]) == Cost(None, None, None, None)


def test_the_base_has_no_cost_and_a_trained_run_without_a_log_has_an_unknown_one():
    base, lost = make_arms([run("base", (), None), run("opct", ())])
    assert arm_cost(base) is None
    assert arm_cost(lost) == Cost(None, None, None, None)
    [row] = cost_rows([base, lost])
    assert row.texts == ("1", *["not logged"] * 5)


def test_the_table_has_seconds_a_step_and_says_what_was_not_logged():
    """2 runs of 2 steps: 6 s are 1.5 s a step; the tokens in the loss of one step are missing."""
    lacking = step(2)
    del lacking["train/tokens_in_loss"]
    [arm] = make_arms([run("opct", [step(1), step(2)]), replace(run("opct", [step(1), lacking]), name="opct2")])
    [row] = cost_rows([arm])
    assert dict(zip(COLUMNS, row.texts, strict=True)) == {
        "runs": "2",
        "optimizer steps": "4",
        "seconds": "6",
        "seconds a step": "1.50",
        "completion tokens": "4,000",
        "tokens in the loss": "not logged",
    }


def test_an_arm_that_went_on_from_another_is_named():
    """A config that cannot be read names no adapter; its warning is another's business."""
    configs = {"sft": "model:\n  adapter: null\n", "both": "model:\n  adapter: runs/sft-seed0\n", "bad": "a: ["}
    arms = make_arms([run(label, [step(1)], config=config) for label, config in configs.items()])
    assert earlier_note(arms) == "both went on from runs/sft-seed0: what that took is not in its row."
    assert earlier_note(arms[:1]) == ""


def test_the_json_has_null_for_what_is_not_known(tmp_path):
    """The synthetic runs log steps and KL, and neither time nor tokens; the base was not trained."""
    runs = [write_run(tmp_path, label, questions=3) for label in ("base", "opct")]
    made = report_json(compare(load_runs(runs)), [], {"created": "", "version": ""})
    assert made["costs"] == {
        "base": None,
        "opct": {"seconds": None, "steps": 20, "completion_tokens": None, "tokens_in_loss": None},
    }
