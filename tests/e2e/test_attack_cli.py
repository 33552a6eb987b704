"""`opct attack` on the tiny model: what it prints and keeps, and that a kill -9 changes nothing."""

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from inspect_ai.log import read_eval_log

from opct.evals.attackers.episode import attempts_in
from opct.evals.attackers.play import known_samples
from opct.evals.inspect_runner import quiet
from tests.e2e.cli import here, started

SMALL = ("--n-behaviors", "4", "episodes=3", "rounds=2", "target.max_completion_tokens=6", "dtype=float32")


LOG = "attack_refine.eval"


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


def attempts(folder: Path) -> dict[tuple[str, int], list[dict[str, Any]]]:
    return known((folder / "evals").glob("*.eval"))


def n_made(folder: Path) -> int:
    return sum(map(len, known((folder / "evals" / "unfinished").glob("*.eval")).values()))


def found(folder: Path) -> dict[str, Any]:
    """What an attack came to."""
    results = json.loads((folder / "results.json").read_text())
    return {
        "attempts": attempts(folder),
        "successes": (folder / "evals" / "attack_refine.prompts.jsonl").read_bytes(),
        "rows": results["rows"],
        "warnings": results["warnings"],
    }


def test_an_attack_that_was_killed_resumes_with_its_earlier_successes(tmp_path, tiny_folder):
    """4 behaviors x 3 x 2 attempts, 4 bare and 4 counterparts x 1 x 2, killed in round 1: what was broken in round 0 is
    an example of every later attempt, so an attack that forgot it would write other prompts."""
    writer = (f"attacker.model={tiny_folder}", "attacker.max_completion_tokens=8")
    own = ("attack", tiny_folder, *writer, "judge.name=refusals")
    rest = ("--n-behaviors", "4", "episodes=3", "rounds=2", "target.max_completion_tokens=32", "dtype=float32")
    reworded = (*own, *rest, "batch_size=4", "stop=never")
    assert here(*reworded, "--out", tmp_path / "whole").code == 0
    whole = attempts(tmp_path / "whole")
    assert sum(map(len, whole.values())) == 4 * 3 * 2 + 4 + 4 * 2
    first_round = 4 * 3 + 4 + 4
    killed = tmp_path / "killed"
    with started(tmp_path, *reworded, "--out", killed) as process:
        process.frozen_when(lambda: n_made(killed) > first_round, "an attempt of round 1")
        process.kill()
    before = known((killed / "evals" / "unfinished").glob("*.eval"))
    assert any(one["is_broken"] for made in before.values() for one in made if one["round"] == 0)
    for path in killed.rglob("*.eval"):
        assert path.stat().st_mode & 0o077 == 0
    assert str(killed) in here(*reworded, "--out", killed).error()
    done = here(*reworded, "--out", killed, "--resume")
    assert done.code == 0, done.err
    assert found(killed) == found(tmp_path / "whole")
    assert not list((killed / "evals" / "unfinished").glob("*.eval"))


def test_refine_writes_its_own_prompts(tmp_path, tiny_folder):
    """Each episode reads its history: the tiny attacker writes other prompts than the request."""
    out = tmp_path / "a"
    done = here(
        *("attack", tiny_folder, f"attacker.model={tiny_folder}", "attacker.max_completion_tokens=12"),
        *(*SMALL, "--out", out, "budget.max_queries=20"),
    )
    assert done.code == 0, done.err
    texts = [one for made in attempts(out).values() for one in made]
    assert 0 < sum(one["prompt"] is not None for one in texts) <= 20
    assert (out / "evals" / LOG).stat().st_mode & 0o077 == 0
    prompts = [row["prompt"][-1]["content"] for row in texts if row["prompt"] is not None]
    assert len(set(prompts)) > 3
    said = [" ".join(text.split()) for text in (*prompts, *(row["reply"] or "" for row in texts))]
    told = [text for text in said if len(text) >= 8]  # a shorter one may be a word of ours
    assert len(told) > 10
    assert not [text for text in told if text in done.out or text in done.err]


def test_what_cannot_begin_says_so_and_leaves_nothing(tmp_path, tiny_folder):
    remote = here("attack", "inspect:openai/some-model", "--attacker", "best_of_n", "--out", tmp_path / "a")
    assert "--confirm-remote" in remote.error()
    wrong = here("attack", tiny_folder, "--attacker", "refin", "--out", tmp_path / "a")
    assert "refin" in wrong.error()
    nothing = here("attack", tmp_path / "nowhere", "--attacker", "best_of_n", "--out", tmp_path / "a")
    assert str(tmp_path / "nowhere") in nothing.error()
    assert not (tmp_path / "a").exists()
