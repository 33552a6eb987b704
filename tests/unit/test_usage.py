"""What a run took, and what came before it, by hand."""

from opct.runs.usage import NOT_KNOWN, Usage, earlier_usage, sum_usage, usage_of

OFFLINE = {"step": 0, "time/offline_s": 4.0, "rollout/offline_tokens": 30, "validation/kl": 0.5}


def step(number: int, *without: str) -> dict:
    row = {"step": number, "time/step_s": 1.5, "train/completion_tokens": 10, "train/tokens_in_loss": 8}
    return {name: value for name, value in row.items() if name not in without}


def offline(usage: Usage) -> tuple:
    return usage.offline_seconds, usage.offline_tokens, usage.seconds_in_all


def test_a_baseline_samples_before_its_first_step():
    """Two steps of 1.5 s after 4 s of sampling are 7 s."""
    assert usage_of([OFFLINE, step(1), step(2)], True) == Usage(
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
    usage = usage_of(rows, True)
    assert (usage.steps, usage.seconds, *offline(usage)) == (2, 3.0, 5.0, 35, 8.0)


def test_what_offline_answers_took_is_not_known_where_it_was_not_logged():
    """A kill between the answers and their cost loses it; of another run nobody knows whether it had any."""
    assert offline(usage_of([step(1)], False)) == (0, 0, 1.5)  # its method samples in its steps
    for has_offline in (True, None):
        usage = usage_of([step(1)], has_offline)
        assert offline(usage) == (None, None, None)
        assert (usage.seconds, usage.steps_in_all) == (1.5, 1)


def test_what_one_step_did_not_log_is_not_known():
    """A sum of the rest would be too low."""
    usage = usage_of([step(1, "time/step_s"), step(2, "train/tokens_in_loss")], False)
    assert (usage.seconds, usage.tokens_in_loss, usage.steps, usage.completion_tokens) == (None, None, 2, 20)
    assert usage_of([{"step": 0, "validation/kl": 0.5}], False) == NOT_KNOWN
    assert usage_of([step(1), step(3)], False) == NOT_KNOWN  # the row of step 2 is lost


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
