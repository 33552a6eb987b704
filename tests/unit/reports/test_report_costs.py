"""What each arm took: sums over its runs, and what was not logged is said to be."""

from __future__ import annotations

from dataclasses import replace

from synthetic import write_run

from opct.reports.arms import make_arms
from opct.reports.build import report_json
from opct.reports.compare import compare
from opct.reports.costs import COLUMNS, arm_cost, cost_rows, earlier_note
from opct.reports.load import EvaluatedRun, load_runs
from opct.runs.usage import NOT_KNOWN, Usage


def step(number: int, seconds: float = 1.5, **more: float) -> dict:
    return {"step": number, "time/step_s": seconds, "train/completion_tokens": 1000, "train/tokens_in_loss": 800} | more


def run(label: str, metrics, method: str | None = "opct", config: str = "") -> EvaluatedRun:
    return EvaluatedRun(None, label, label, "m", method, 0, "", {}, (), (), (), metrics=tuple(metrics), config=config)  # type: ignore[arg-type]


def test_two_runs_of_two_steps_are_added_up():
    """Step 0 is the validation before training, and no step."""
    rows = [{"step": 0, "validation/kl": 0.5}, step(1), step(2)]
    [arm] = make_arms([run("opct", rows), replace(run("opct", rows), name="opct2")])
    assert arm_cost(arm) == Usage(6.0, 4, 4000, 3200, 0, 0.0, 4, 6.0)


def test_a_run_without_any_step_makes_nothing_of_the_arm_known():
    [arm] = make_arms([run("opct", [step(1)]), replace(run("opct", [{"step": 0}]), name="opct2")])
    assert arm_cost(arm) == NOT_KNOWN


def test_the_base_has_no_cost_and_a_trained_run_without_a_log_has_an_unknown_one():
    base, lost = make_arms([run("base", (), None), run("opct", ())])
    assert arm_cost(base) is None
    assert arm_cost(lost) == NOT_KNOWN
    [row] = cost_rows([base, lost])
    assert row.texts == ("1", *["not logged"] * 9)


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
        "offline tokens": "0",
        "offline seconds": "0",
        "steps in all": "4",
        "seconds in all": "6",
    }


def test_what_an_arm_went_on_from_and_sampled_before_is_in_its_totals():
    """SFT: 20 s and 500 tokens of offline answers before a step of 1.5 s. What went on from it has both in its totals;
    what went on from something that was not written down has none."""
    sampled = {"step": 0, "time/offline_s": 20.0, "rollout/offline_tokens": 500}
    config = "model:\n  adapter: runs/sft-seed0\n"
    both = replace(run("both", [step(1)], config=config), manifest={"earlier": {"steps": 1, "seconds": 21.5}})
    arms = make_arms([run("sft", [sampled, step(1)], "sft"), both, run("lost", [step(1)], config=config)])
    columns = [COLUMNS.index(name) for name in ("offline tokens", "offline seconds", "steps in all", "seconds in all")]
    shown = {row.arm.label: [row.texts[i] for i in columns] for row in cost_rows(arms)}
    assert shown == {
        "sft": ["500", "20", "1", "22"],
        "both": ["0", "0", "2", "23"],
        "lost": ["0", "0", "not logged", "not logged"],
    }


def test_of_a_config_that_cannot_be_read_the_totals_are_not_known():
    [arm] = make_arms([run("opct", [step(1)], config="a: [")])
    assert arm_cost(arm) == Usage(1.5, 1, 1000, 800, 0, 0.0, None, None)


def test_an_arm_that_went_on_from_another_is_named():
    """A config that cannot be read names no adapter; its warning is another's business."""
    configs = {"sft": "model:\n  adapter: null\n", "both": "model:\n  adapter: runs/sft-seed0\n", "bad": "a: ["}
    arms = make_arms([run(label, [step(1)], config=config) for label, config in configs.items()])
    note = "both went on from runs/sft-seed0: what that took is in no column but those of all."
    assert earlier_note(arms) == note
    assert earlier_note(arms[:1]) == ""


def test_the_json_has_null_for_what_is_not_known(tmp_path):
    """The synthetic runs log steps and KL, and neither time nor tokens; the base was not trained."""
    runs = [write_run(tmp_path, label, questions=3) for label in ("base", "opct")]
    made = report_json(compare(load_runs(runs)), [], {"created": "", "version": ""})
    assert made["costs"] == {
        "base": None,
        "opct": {
            "seconds": None,
            "steps": 20,
            "completion_tokens": None,
            "tokens_in_loss": None,
            "offline_tokens": 0,
            "offline_seconds": 0.0,
            "steps_in_all": 20,
            "seconds_in_all": None,
        },
    }
