"""`opct attack`: a kill -9 changes nothing, and no prompt or reply is printed."""

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from inspect_ai.log import read_eval_log

from opct.evals.attackers.episode import attempts_in
from opct.evals.attackers.play import known_samples
from opct.evals.quiet import quiet
from tests.e2e.cli import done, here, started


def known(paths: Iterable[Path]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """The attempts of each episode in logs, as far as they are written, without times."""
    logs = []
    for path in paths:
        with contextlib.suppress(Exception), quiet():  # it is just being written
            logs.append(read_eval_log(str(path)))
    samples = known_samples(logs)
    return {
        place: [{**vars(one), "seconds": 0.0} for one in attempts_in(sample.store)] for place, sample in samples.items()
    }


def unfinished(folder: Path) -> list[dict[str, Any]]:
    """The attempts so far of an attack that goes on."""
    return [one for made in known((folder / "evals" / "unfinished").glob("*.eval")).values() for one in made]


def result_of(folder: Path) -> dict[str, Any]:
    """What an attack came to."""
    results = json.loads((folder / "results.json").read_text())
    return {
        "attempts": known((folder / "evals").glob("*.eval")),
        "successes": (folder / "evals" / "attack_refine.prompts.jsonl").read_bytes(),
        "rows": results["rows"],
        "warnings": results["warnings"],
    }


def test_an_attack_that_was_killed_resumes_with_its_earlier_successes(tmp_path, tiny_folder):
    """3 behaviors x 2 x 2 attempts, 3 bare and 3 counterparts x 1 x 2, killed in round 1: what was broken in round 0 is
    an example of every later attempt, so an attack that forgot it would write other prompts."""
    writer = (f"attacker.model={tiny_folder}", "attacker.max_completion_tokens=8")
    rest = ("judge.name=refusals", "target.max_completion_tokens=32", "batch_size=4", "stop=never")
    reworded = ("attack", tiny_folder, *writer, "--n-behaviors", "3", "episodes=2", "rounds=2", "dtype=float32", *rest)
    printed = done(*reworded, "--out", tmp_path / "whole")
    whole, killed = result_of(tmp_path / "whole"), tmp_path / "killed"
    assert sum(map(len, whole["attempts"].values())) == 3 * 2 * 2 + 3 + 3 * 2
    first_round = 3 * 2 + 3 + 3
    with started(tmp_path, *reworded, "--out", killed) as process:
        process.frozen_when(lambda: len(unfinished(killed)) > first_round, "an attempt of round 1")
        process.kill()
    assert any(one["is_broken"] for one in unfinished(killed) if one["round"] == 0)
    for path in killed.rglob("*.eval"):
        assert path.stat().st_mode & 0o077 == 0
    assert str(killed) in here(*reworded, "--out", killed).error()
    resumed = done(*reworded, "--out", killed, "--resume")
    assert result_of(killed) == whole
    assert not list((killed / "evals" / "unfinished").glob("*.eval"))
    made = [one for attempts in known((killed / "evals").glob("*.eval")).values() for one in attempts if one["prompt"]]
    texts = [text for one in made for text in (one["prompt"][-1]["content"], one["reply"] or "")]
    told = [text for text in (" ".join(text.split()) for text in texts) if len(text) >= 8]  # a shorter one may be ours
    assert len(told) > 10
    assert not [text for one in (printed, resumed) for text in told if text in one.out or text in one.err]
