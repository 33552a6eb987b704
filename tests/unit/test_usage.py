"""What a run took, and what came before it, by hand."""

from __future__ import annotations

import pytest

from opct.runs.usage import NOT_KNOWN, Usage, earlier_usage, sum_usage, usage_of

OFFLINE = {"step": 0, "time/offline_s": 4.0, "rollout/offline_tokens": 30, "validation/kl": 0.5}


def step(number: int, **more: float) -> dict:
    row = {"step": number, "time/step_s": 1.5, "train/completion_tokens": 10, "train/tokens_in_loss": 8}
    return row | more


def test_a_baseline_samples_before_its_first_step():
    """Two steps of 1.5 s after 4 s of sampling are 7 s."""
    found = usage_of([OFFLINE, step(1), step(2)], True)
    assert found == Usage(
        seconds=3.0,
        steps=2,
        completion_tokens=20,
        tokens_in_loss=16,
        offline_tokens=30,
        offline_seconds=4.0,
        steps_in_all=2,
        seconds_in_all=7.0,
    )


def test_answers_that_a_longer_run_needed_are_no_step():
    """They stand in a row of their own after the step that the run had come to; 5 s and 35 tokens in all."""
    rows = [OFFLINE, step(1), {"step": 1, "time/offline_s": 1.0, "rollout/offline_tokens": 5}, step(2)]
    found = usage_of(rows, True)
    assert (found.steps, found.seconds, found.offline_seconds, found.offline_tokens) == (2, 3.0, 5.0, 35)


def test_a_method_that_samples_in_its_steps_has_no_offline_answers():
    found = usage_of([step(1)], False)
    assert (found.offline_seconds, found.offline_tokens, found.seconds_in_all) == (0, 0, 1.5)


@pytest.mark.parametrize("offline", [True, None])
def test_what_offline_answers_took_is_not_known_where_it_was_not_logged(offline: bool | None):
    """A kill between the answers and their cost loses it; of another run nobody knows whether it had any."""
    found = usage_of([step(1)], offline)
    assert (found.offline_seconds, found.offline_tokens, found.seconds_in_all) == (None, None, None)
    assert (found.seconds, found.steps_in_all) == (1.5, 1)


def test_what_one_step_did_not_log_is_not_known():
    """A sum of the rest would be too low."""
    first, second = step(1), step(2)
    del first["time/step_s"], second["train/tokens_in_loss"]
    found = usage_of([first, second], False)
    assert (found.seconds, found.tokens_in_loss, found.steps, found.completion_tokens) == (None, None, 2, 20)
    assert usage_of([{"step": 0, "validation/kl": 0.5}], False) == NOT_KNOWN
    assert usage_of([step(1), step(3)], False) == NOT_KNOWN  # the row of step 2 is lost


def test_what_a_run_went_on_from_is_in_its_totals_alone():
    """40 steps of 100 s before one of 1.5 s; of another run nobody knows what came before."""
    found = usage_of([step(1)], False, earlier_usage({"earlier": {"run": "a", "steps": 40, "seconds": 100.0}}, "a"))
    assert (found.steps, found.seconds, found.steps_in_all, found.seconds_in_all) == (1, 1.5, 41, 101.5)
    unknown = usage_of([step(1)], False, earlier_usage({}, "a"))
    assert (unknown.steps, unknown.steps_in_all, unknown.seconds_in_all) == (1, None, None)
    assert earlier_usage({"earlier": None}, None) is None


def test_several_runs_are_added_up_and_one_without_a_number_makes_it_unknown():
    one, other = usage_of([step(1)], False), usage_of([step(1), step(2)], False)
    both = sum_usage([one, other])
    assert (both.steps, both.seconds, both.completion_tokens) == (3, 4.5, 30)
    first = step(1)
    del first["train/tokens_in_loss"]
    without = sum_usage([one, usage_of([first], False)])
    assert (without.tokens_in_loss, without.seconds_in_all, without.steps_in_all) == (None, 3.0, 2)
    assert sum_usage([one, NOT_KNOWN]) == sum_usage([]) == NOT_KNOWN
