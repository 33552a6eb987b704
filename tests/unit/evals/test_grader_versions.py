"""The hash that tells the rules which graded a reply from others."""

import hashlib
from importlib import resources

import pytest

from opct.evals.graders import versions
from opct.evals.graders.versions import HAZARDS, SOURCES, grader_version


def test_the_version_is_the_hash_of_the_sources():
    """Names and contents in the order of the names, a zero byte after each, line ends of Unix."""
    found = hashlib.sha256()
    for name in sorted(SOURCES["jailbreak"]):
        content = resources.files("opct").joinpath(name).read_bytes().replace(b"\r\n", b"\n")
        found.update(name.encode() + b"\0" + content + b"\0")
    assert grader_version("jailbreak") == found.hexdigest()[:12]
    assert grader_version("safety_awareness") != grader_version("jailbreak")


@pytest.mark.parametrize(
    ("changed", "moves"),
    [
        ("evals/refusals.py", {"benign", "jailbreak", "safety_awareness"}),
        ("evals/refusal_patterns.py", {"benign", "jailbreak", "safety_awareness"}),
        ("evals/refusal_rest.py", {"benign", "jailbreak", "safety_awareness"}),
        ("evals/language.py", {"benign", "jailbreak", "safety_awareness"}),
        ("evals/encoded.py", {"jailbreak"}),
        ("data/duplicates.py", {"jailbreak"}),
        ("evals/warnings_grader.py", {"safety_awareness"}),
        (f"{HAZARDS}/food.jsonl", {"safety_awareness"}),
        ("evals/capability/number_answers.py", {"gsm8k", "math500"}),
        ("evals/capability/math_worker.py", {"gsm8k", "math500"}),
        ("evals/stats.py", set()),
    ],
)
def test_a_change_of_a_rule_is_another_version(tmp_path, monkeypatch, changed, moves):
    before = {suite: grader_version.__wrapped__(suite) for suite in SOURCES}
    package = resources.files("opct")
    hazards = [f"{HAZARDS}/{entry.name}" for entry in package.joinpath(HAZARDS).iterdir()]
    for name in {changed, *hazards, *(name for own in SOURCES.values() for name in own)}:
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        content = package.joinpath(name).read_bytes().replace(b"\n", b"\r\n")
        copy.write_bytes(content + (b"# other" if name == changed else b""))
    monkeypatch.setattr(versions.resources, "files", lambda name: tmp_path)
    after = {suite: grader_version.__wrapped__(suite) for suite in SOURCES}
    assert {suite for suite in SOURCES if after[suite] != before[suite]} == moves
