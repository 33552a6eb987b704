"""The side of a sample, in logs that have it and in those from before there was one."""

import pytest
from inspect_ai.log import read_eval_log, write_eval_log

from opct.evals.logs import read_samples
from opct.evals.samples import GradedSample
from tests.logs import write_evaluation


@pytest.mark.parametrize(
    ("axis", "now", "then"),
    [
        ("jailbreak", ("fiction", "held_out", "benign"), ("benign_fiction", "benign_held_out")),
        ("jailbreak", ("fiction", "held_out", ""), ("fiction", "held_out")),
        ("sycophancy", ("majority", "held_out", "user_is_right"), ("majority", "user_is_right")),
        ("safety_awareness", ("hurried", "held_out", "safe_twin"), ("hurried", "safe_twin")),
    ],
)
def test_a_sample_has_its_side_also_in_an_older_log(tmp_path, axis, now, then):
    family, split, side = now
    write_evaluation(tmp_path, [GradedSample(f"{axis}/1", axis, axis, family, split, "1", "Sure.", side=side)])
    [before] = read_samples(tmp_path)
    [path] = (tmp_path / "evals").glob("*.eval")
    log = read_eval_log(str(path))
    metadata = log.samples[0].metadata
    del metadata["side"]
    metadata["family"], metadata["family_split"] = then
    write_eval_log(log, str(path))
    [after] = read_samples(tmp_path)
    assert before == after
    assert (after.family, after.family_split, after.side) == now
    assert after.group == then[1]  # the group of the results is called as before
