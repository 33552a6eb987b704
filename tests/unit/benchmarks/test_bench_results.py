"""Pages and kept results of experiments agree."""

import numpy as np
import pytest
from benchmarks import results


def test_pages_and_charts_are_those_of_the_kept_results():
    drawn = results.drawn()
    assert {path.name: path.read_text(encoding="utf-8") for path in drawn} == {
        path.name: text for path, text in drawn.items()
    }


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
