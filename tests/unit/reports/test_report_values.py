import pytest
from synthetic import write_run

from opct.reports.load import load_run
from opct.reports.values import NO_CHECK, sample_values


def test_every_row_of_an_evaluation_follows_from_its_samples(tmp_path):
    """The evaluation and the report choose the samples of a metric alike: same n, same mean, for every row."""
    run = load_run(write_run(tmp_path, "base", questions=40))
    checked = 0
    for row in run.rows:
        scored = [
            v for v in sample_values(run.samples, row["suite"], row["metric"], row["group"]).values() if v is not None
        ]
        assert len(scored) == row["n"], row
        assert sum(scored) / len(scored) == pytest.approx(row["value"]), row
        checked += 1
    assert checked >= 50


def test_kl_to_base_is_that_of_every_reply_whether_it_has_a_check_or_not():
    """A long reply counts as a short one, and a request without a check was measured all the same."""

    def sample(cluster, kl, tokens, verdict):
        values = {"kl_to_base": kl}
        row = {"id": cluster, "task": "benign", "family_split": "benign", "cluster": cluster, "verdict": verdict}
        return row | {"completion_tokens": tokens, "values": values}

    samples = [sample("a", 0.1, 30, "correct"), sample("b", 0.5, 1, NO_CHECK), sample("c", None, 9, "other")]
    assert sample_values(samples, "benign", "kl_to_base", "benign") == {"a": 0.1, "b": 0.5, "c": None}
    assert list(sample_values(samples, "benign", "accuracy_identity", "benign")) == []


def test_a_metric_that_no_sample_carries_has_no_values(tmp_path):
    run = load_run(write_run(tmp_path, "base", questions=3))
    assert sample_values(run.samples, "sycophancy_short", "made_up", "all") == {}
