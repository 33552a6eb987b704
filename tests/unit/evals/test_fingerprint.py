"""Whether two evaluations ask the same and grade alike."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from opct.errors import DataError
from opct.evals import fingerprint as module
from opct.evals.fingerprint import NO_GRADING, fingerprint, grading_hash

SETTINGS = {"suites": ["sycophancy_short", "benign"], "n_questions": 2, "n_benign": 2, "kl_samples": 3}


def test_the_same_settings_ask_the_same_and_every_choice_counts():
    """Of the suites that the choice is for, and of no others; what is measured beside is no question."""
    first = fingerprint(SETTINGS)
    assert fingerprint(SETTINGS | {"kl_samples": 9, "browser_questions": 1}) == first
    assert first.keys() == {"sycophancy_short", "benign"}
    for more, other in (
        ({"n_benign": 1}, ["benign"]),
        ({"families_per_question": 1}, ["sycophancy_short"]),
        ({"seed": 1}, ["sycophancy_short", "benign"]),
        ({"max_benign_tokens": 5}, ["benign"]),
    ):
        now = fingerprint(SETTINGS | more)
        assert [name for name in first if now[name] != first[name]] == other


def test_other_words_around_a_question_are_other_samples(monkeypatch):
    from opct.evals.tasks import sycophancy

    first = fingerprint(SETTINGS)
    clean = sycophancy.clean_prompt
    monkeypatch.setattr(
        sycophancy, "clean_prompt", lambda *arguments: ({"role": "user", "content": "Please."}, *clean(*arguments))
    )
    now = fingerprint(SETTINGS)
    assert now["sycophancy_short"]["samples"] != first["sycophancy_short"]["samples"]
    assert now["sycophancy_short"]["settings"] == first["sycophancy_short"]["settings"]
    assert now["benign"] == first["benign"]


def test_without_suites_it_is_those_that_an_evaluation_asks_by_default():
    assert fingerprint({"n_questions": 2}).keys() == {"sycophancy_short", "benign"}


def test_data_that_cannot_be_had_are_an_error(tmp_path: Path):
    with pytest.raises(DataError):
        fingerprint({"suites": ["jailbreak"], "data": {"jailbreak": str(tmp_path / "none.jsonl")}})


def test_the_code_that_asks_and_grades_is_in_the_hash(tmp_path: Path, monkeypatch):
    """A grader, a benchmark's file and its own helpers; not the judges, which no measuring uses."""
    for name in ("graders.py", "graders/warning.py", "judging/parsing.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one")
    monkeypatch.setattr(module.resources, "files", lambda package: tmp_path)
    first = grading_hash()
    (tmp_path / "judging" / "parsing.py").write_text("two")
    assert grading_hash() == first
    for name in ("graders.py", "graders/warning.py"):
        (tmp_path / name).write_text("two")
        assert grading_hash() != first
        first = grading_hash()


def test_what_is_left_out_of_the_hash_is_there():
    names = {entry.name for entry in resources.files("opct.evals").iterdir()}
    assert NO_GRADING - {"__pycache__"} <= names


def test_the_version_of_a_package_that_grades_counts(monkeypatch):
    monkeypatch.setattr(module, "GRADED_WITH", {"benign": ("inspect-ai", "no-such-package")})
    versions = fingerprint(SETTINGS)["benign"]["graded_with"]
    assert versions["inspect-ai"]
    assert versions["no-such-package"] is None
    monkeypatch.setattr(module.metadata, "version", lambda name: "9.9")
    assert fingerprint(SETTINGS)["benign"]["graded_with"]["inspect-ai"] == "9.9"
