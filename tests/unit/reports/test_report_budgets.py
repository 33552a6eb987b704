"""What the report says of an arm and its reference that were not trained on the same budget."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic import write_run

from opct.reports.compare import compare
from opct.reports.load import load_runs
from opct.reports.warnings import find_warnings

WENT_ON = "model: {adapter: runs/sft-seed1}\n"
SHARED = "max_steps: 20\ndata: {pairs: [a.jsonl], anchors: [b.jsonl]}\n"


@pytest.fixture
def said(tmp_path: Path):
    """What is said of budgets of SFT and OPCT, 20 steps each in their logs, with these configs and manifests."""

    def make(sft: str, opct: str, /, **manifests: dict) -> list[str]:
        runs = [write_run(tmp_path, "base", questions=4)]
        for label, config in (("sft", sft), ("opct", opct)):
            run = write_run(tmp_path, label, 1, questions=4)
            (run / "config.yaml").write_text(config)
            manifest = json.loads((run / "manifest.json").read_text()) | manifests.get(label, {})
            (run / "manifest.json").write_text(json.dumps(manifest))
            runs.append(run)
        texts = find_warnings(compare(load_runs(runs)))
        return [text for text in texts if "budgets" in text or "went on from" in text]

    return make


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("lora: {r: 4}\n", 'lora (SFT: null; OPCT: {"r": 4})'),
        ("rollout: {num_generations: 2}\n", "rollout.num_generations (SFT: null; OPCT: 2)"),
        ("method: opct\noptim: {learning_rate: 1}\n", None),
    ],
)
def test_the_same_settings_are_compared_as_by_an_experiment(said, more: str, named: str | None):
    found = said(SHARED, SHARED + more)
    if named is None:
        assert found == []
    else:
        assert len(found) == 1
        assert f"with different budgets or pairs: {named}. " in found[0]


def test_identity_pairs_are_part_of_what_is_trained_on(said):
    [text] = said(SHARED, SHARED.replace("b.jsonl", "c.jsonl"))
    assert 'data.anchors (SFT: ["b.jsonl"]; OPCT: ["c.jsonl"])' in text


def test_the_steps_that_there_were_count_and_not_how_they_were_asked_for(said):
    """One epoch came out as 20 steps, which another arm asked for by number."""
    epochs = SHARED.replace("max_steps: 20", "max_steps: null\nnum_train_epochs: 1.0")
    assert said(SHARED, epochs, sft={"total_steps": 20}, opct={"total_steps": 20}) == []


def test_one_number_of_epochs_that_came_out_as_other_steps_is_another_budget(said):
    epochs = SHARED.replace("max_steps: 20", "max_steps: null\nnum_train_epochs: 1.0")
    [text] = said(epochs, epochs, sft={"total_steps": 1020}, opct={"total_steps": 30})
    assert "with different budgets or pairs: optimizer steps (SFT: 1,020; OPCT: 30). " in text


def test_an_arm_that_went_on_from_another_run_has_its_steps_in_all_named(said):
    """20 steps of its own after 20 of SFT, against 20: nothing in the settings of a budget says so."""
    [text] = said(SHARED, SHARED + WENT_ON, opct={"earlier": {"steps": 20, "seconds": 9.0}})
    assert text == (
        "OPCT went on from the adapter of another run: it took 40 optimizer steps in all, and SFT 20. Their difference "
        "is also that of how long they were trained."
    )


def test_so_does_the_reference(said):
    [text] = said(SHARED + WENT_ON, SHARED, sft={"earlier": {"steps": 5, "seconds": 9.0}})
    assert text.startswith(
        "SFT went on from the adapter of another run: it took 25 optimizer steps in all, and OPCT 20."
    )


def test_how_long_the_other_run_was_may_not_be_known(said):
    [text] = said(SHARED, SHARED + WENT_ON)
    assert "it took an unknown number of optimizer steps in all, and SFT 20." in text


def test_one_budget_in_two_parts_is_one_budget(said):
    """40 steps asked for against 20 after 20; both logs have what they took in all: 20 of SFT, and 0 + 20."""
    whole, parts = SHARED.replace("max_steps: 20", "max_steps: 40"), SHARED + WENT_ON
    assert said(whole, parts, opct={"earlier": {"steps": 0, "seconds": 0.0}}) == []


def test_two_arms_that_both_went_on_are_compared_by_their_own_steps(said):
    earlier = {"earlier": {"steps": 20, "seconds": 9.0}}
    assert said(SHARED + WENT_ON, SHARED + WENT_ON, sft=earlier, opct=earlier) == []


@pytest.mark.parametrize(
    ("of_opct", "is_said"), [(125, False), (126, True), (80, False), (79, True), (None, False), (0, False)]
)
def test_over_a_quarter_more_completion_tokens_are_another_budget(tmp_path: Path, of_opct: int | None, is_said: bool):
    """SFT has 100 tokens in each of two steps, so 200; then none were logged, or none are trained on (`act`)."""
    found = find_warnings(compare(load_runs(with_tokens(tmp_path, sft=100, opct=of_opct))))
    said = [text for text in found if "completion tokens" in text]
    assert len(said) == is_said
    if is_said:
        more, less = sorted([("OPCT", 2 * of_opct), ("SFT", 200)], key=lambda each: -each[1])
        assert said[0] == (
            f"{more[0]} was trained on {more[1]} completion tokens a run, and {less[0]} on {less[1]}. "
            "Their difference is also that of how much they were trained on."
        )


def test_the_tokens_of_preferences_are_those_of_two_answers_and_of_a_run_that_went_on_not_all(tmp_path: Path):
    """DPO has twice those of SFT; `both` has half of them, after another run of which they are not known."""
    runs = with_tokens(tmp_path, sft=100, dpo=200, both=50)
    (runs[3] / "config.yaml").write_text(SHARED + WENT_ON)
    said = [
        text
        for text in find_warnings(compare(load_runs(runs), {"dpo": "sft", "both": "sft"}))
        if "tokens a run" in text
    ]
    assert [text.split(" was trained on ")[0] for text in said] == ["DPO"]
    assert "400 completion tokens a run, with two answers in each of its preferences, and SFT on 200." in said[0]


@pytest.mark.parametrize(
    ("steps", "of_tokens", "is_asked", "said"),
    [
        (40, 100, False, ["optimizer steps"]),
        (80, 100, False, []),
        (80, 200, False, []),
        (80, 200, True, ["completion tokens"]),
        (40, 200, False, ["optimizer steps", "completion tokens"]),
    ],
)
def test_of_two_arms_of_sft_another_budget_is_said_too(
    tmp_path: Path, steps: int, of_tokens: int, is_asked: bool, said: list[str]
):
    """The half that OPCT goes on from, beside SFT of 80 steps; of one budget its tokens count where it is asked for."""
    runs = with_tokens(tmp_path, sft=100, half=of_tokens)
    for run, own in zip(runs[1:], (80, steps), strict=True):
        (run / "config.yaml").write_text("method: sft\n" + SHARED.replace("20", str(own)))
        manifest = json.loads((run / "manifest.json").read_text()) | {"total_steps": own}
        (run / "manifest.json").write_text(json.dumps(manifest))
    results = json.loads((runs[2] / "results.json").read_text())
    results["run"]["method"] = "sft"
    (runs[2] / "results.json").write_text(json.dumps(results))
    also = [("half", "sft")] if is_asked else []
    texts = [text for text in find_warnings(compare(load_runs(runs), {"half": "sft"}, also)) if "Their diff" in text]
    assert len(texts) == len(said)
    assert all(words in text for words, text in zip(said, texts, strict=True))


def with_tokens(tmp_path: Path, **tokens: int | None) -> list[Path]:
    """A base, and runs of two steps with so many completion tokens each in their logs."""
    runs = [write_run(tmp_path, "base", questions=4)]
    for label, each in tokens.items():
        run = write_run(tmp_path, label, 1, questions=4)
        (run / "config.yaml").write_text(SHARED)
        logged = {} if each is None else {"train/completion_tokens": each}
        rows = [{"step": step, "time/step_s": 1.0} | logged for step in (1, 2)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        runs.append(run)
    return runs
