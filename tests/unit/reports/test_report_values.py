import pytest
from synthetic import write_run

from opct.reports.load import load_run
from opct.reports.values import sample_values, token_weights


def test_every_row_of_an_evaluation_follows_from_its_samples(tmp_path):
    """The evaluation and the report choose the samples of a metric alike: same n, same mean, for every row."""
    run = load_run(write_run(tmp_path, "base", questions=40))
    checked = 0
    for row in run.rows:
        if row["metric"] == "kl_to_base":
            continue
        scored = [
            v for v in sample_values(run.samples, row["suite"], row["metric"], row["group"]).values() if v is not None
        ]
        assert len(scored) == row["n"], row
        assert sum(scored) / len(scored) == pytest.approx(row["value"]), row
        checked += 1
    assert checked >= 50


def test_kl_weighs_by_token():
    """A reply of 3 tokens at 0.1 and one of 1 token at 0.5: (0.3 + 0.5) / 4 = 0.2."""

    def sample(cluster, kl, tokens):
        return {
            "task": "benign",
            "family_split": "benign",
            "cluster": cluster,
            "completion_tokens": tokens,
            "values": {"kl_to_base": kl},
        }

    values, clusters = token_weights([sample("a", 0.1, 3), sample("b", 0.5, 1), sample("c", None, 9)], "benign", "all")
    assert sum(values) / len(values) == pytest.approx(0.2)
    assert clusters == ["a", "a", "a", "b"]


def test_a_metric_that_no_sample_carries_has_no_values(tmp_path):
    run = load_run(write_run(tmp_path, "base", questions=3))
    assert sample_values(run.samples, "sycophancy_short", "made_up", "all") == {}
