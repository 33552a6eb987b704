"""Pages and kept results of experiments agree."""

import re

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


def test_no_letter_of_a_picture_is_small_where_it_is_shown():
    """The rooms are the text's widths on screens of 1,280 and of 390 pixels: a wider picture would shrink."""
    seen = 0
    for path, svg in results.drawn().items():
        if path.suffix == ".svg" and not path.stem.startswith("hero"):  # the first page has no columns beside it
            room = 358 if path.stem.endswith("-phone") else 688
            sizes = re.findall(r"text[^{}]*\{[^}]*font-size: ([\d.]+)px", svg)
            drawings = re.findall(r'<svg [^>]*?width="([\d.]+)"[^>]*?viewBox="0 0 ([\d.]+)', svg)
            assert min(map(float, sizes)) >= 14, path.name
            assert {inner for inner, box in drawings if inner != box} == set(), path.name
            assert float(drawings[0][0]) <= room, path.name
            seen += 1
    assert seen > 30


def test_every_picture_of_a_page_is_there_for_a_phone_too():
    for page in (results.DOCS.parent / "README.md", *results.DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"!\[[^\]]*\]\((?!https)[^)]*\)", text) == [], page.name
        for name, end in re.findall(r'<img src="([^"]+)(\.\w+)"', text):
            phone = f"{name}-phone{end}"
            assert f'media="(max-width: 500px)" srcset="{phone}"' in text, (page.name, name)
            assert [file for file in (phone, name + end) if not (page.parent / file).is_file()] == [], page.name
