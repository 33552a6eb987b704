"""What a run took, and what came before it, by hand."""

import pytest

from opct.runs.usage import NOT_KNOWN, Usage, earlier_usage, sum_usage, usage_of

OFFLINE = {"step": 0, "time/offline_s": 4.0, "rollout/offline_tokens": 30, "validation/kl": 0.5}


def step(number: int, *without: str) -> dict:
    row = {"step": number, "time/step_s": 1.5, "train/completion_tokens": 10, "train/tokens_in_loss": 8}
    return {name: value for name, value in row.items() if name not in without}


LATER = {"step": 1, "time/offline_s": 1.0, "rollout/offline_tokens": 5}  # what a longer run needed besides


@pytest.mark.parametrize(
    ("rows", "has_offline", "expected"),
    [
        ([OFFLINE, step(1), step(2)], True, Usage(3.0, 2, 20, 16, 30, 4.0, 2, 7.0)),
        ([OFFLINE, step(1), LATER, step(2)], True, Usage(3.0, 2, 20, 16, 35, 5.0, 2, 8.0)),
        ([step(1)], False, Usage(1.5, 1, 10, 8, 0, 0, 1, 1.5)),  # its method samples in its steps
        # a kill between the answers and their cost loses it; of another run nobody knows whether it had any
        ([step(1)], True, Usage(1.5, 1, 10, 8, None, None, 1, None)),
        ([step(1)], None, Usage(1.5, 1, 10, 8, None, None, 1, None)),
        # what one step did not log is not known: a sum of the rest would be too low
        ([step(1, "time/step_s"), step(2, "train/tokens_in_loss")], False, Usage(None, 2, 20, None, 0, 0, 2, None)),
        ([{"step": 0, "validation/kl": 0.5}], False, NOT_KNOWN),
        ([step(1), step(3)], False, NOT_KNOWN),  # the row of step 2 is lost
    ],
)
def test_what_a_run_took(rows, has_offline, expected):
    """Steps of 1.5 s, after 4 s of sampling where a baseline answers before the first one."""
    assert usage_of(rows, has_offline) == expected


def test_what_a_run_went_on_from_is_in_its_totals_alone():
    """40 steps of 100 s before one of 1.5 s; of another run nobody knows what came before."""
    earlier = {"earlier": {"run": "a", "steps": 40, "seconds": 100.0}}
    for manifest, in_all in ((earlier, (41, 101.5)), ({}, (None, None))):
        usage = usage_of([step(1)], False, earlier_usage(manifest, "a"))
        assert (usage.steps, usage.seconds, usage.steps_in_all, usage.seconds_in_all) == (1, 1.5, *in_all)
    assert earlier_usage({"earlier": None}, None) is None


def test_several_runs_are_added_up_and_one_without_a_number_makes_it_unknown():
    one, other = usage_of([step(1)], False), usage_of([step(1), step(2)], False)
    both = sum_usage([one, other])
    assert (both.steps, both.seconds, both.completion_tokens) == (3, 4.5, 30)
    without = sum_usage([one, usage_of([step(1, "train/tokens_in_loss")], False)])
    assert (without.tokens_in_loss, without.seconds_in_all, without.steps_in_all) == (None, 3.0, 2)
    assert sum_usage([one, NOT_KNOWN]) == sum_usage([]) == NOT_KNOWN
