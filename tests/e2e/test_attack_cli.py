"""`opct attack` on the tiny model: what it prints and keeps, and that a kill -9 changes nothing."""

import json
from pathlib import Path

from tests.e2e.cli import here, jsonl, started

SMALL = ("--n-behaviors", "4", "episodes=3", "rounds=2", "target.max_completion_tokens=6", "dtype=float32")


def attempts(folder: Path) -> list[dict]:
    return [row for row in jsonl(folder / "attempts.jsonl") if "behavior_id" in row]


def found(folder: Path) -> dict:
    """What an attack came to, times aside."""
    result = json.loads((folder / "result.json").read_text())
    return {
        "attempts": attempts(folder),
        "successes": (folder / "successful_prompts.jsonl").read_bytes(),
        **{name: result[name] for name in ("rows", "curve", "behaviors", "warnings", "ended")},
        "queries": result["budget"]["spent"]["queries"],
        "tokens": result["budget"]["spent"]["tokens"],
    }


def test_an_attack_that_was_killed_resumes_with_its_earlier_successes(tmp_path, tiny_folder):
    """4 behaviours x 3 x 2 attempts and 4 counterparts x 1 x 2, four at a time, killed in round 1: what was jailbroken
    in round 0 is an example of every later attempt, so an attack that forgot it would write other prompts."""
    writer = (f"attacker.model={tiny_folder}", "attacker.max_completion_tokens=8")
    own = ("attack", tiny_folder, *writer, "judge.name=refusals")
    rest = ("--n-behaviors", "4", "episodes=3", "rounds=2", "target.max_completion_tokens=32", "dtype=float32")
    reworded = (*own, *rest, "batch_size=4", "stop=never")
    assert here(*reworded, "--out", tmp_path / "whole").code == 0
    killed = tmp_path / "killed"
    with started(tmp_path, *reworded, "--out", killed) as process:
        process.frozen_when(lambda: len(attempts(killed)) >= 13, "the 13th attempt")
        process.kill()
    before = attempts(killed)
    assert len(before) < 4 * 3 * 2
    assert any(row["is_jailbroken"] for row in before if row["round"] == 0)
    assert here(*reworded, "--out", killed).error().startswith(f"{killed} already holds an attack")
    done = here(*reworded, "--out", killed, "--resume")
    assert done.code == 0, done.err
    assert found(killed) == found(tmp_path / "whole")
    assert json.loads((killed / "result.json").read_text())["budget"]["queries_cut_short_at_most"] in (0, 4)


def test_refine_writes_its_own_prompts(tmp_path, tiny_folder):
    """Each episode reads its history: the tiny attacker writes other prompts than the request."""
    out = tmp_path / "a"
    done = here(
        *("attack", tiny_folder, f"attacker.model={tiny_folder}", "attacker.max_completion_tokens=12"),
        *(*SMALL, "--out", out, "budget.max_queries=20"),
    )
    assert done.code == 0, done.err
    assert f"target: {tiny_folder}, loaded on this machine" in done.err
    assert "defence rate" in done.out
    assert "queries (limit 20)" in done.out
    assert "private" in done.out
    result = json.loads((out / "result.json").read_text())
    assert 0 < result["budget"]["spent"]["queries"] <= 20
    texts = attempts(out)
    prompts = [row["prompt"][-1]["content"] for row in texts if row["prompt"] is not None]
    assert len(set(prompts)) > 3
    said = [" ".join(text.split()) for text in (*prompts, *(row["reply"] or "" for row in texts))]
    told = [text for text in said if len(text) >= 8]  # a shorter one may be a word of ours
    assert len(told) > 20
    assert not [text for text in told if text in done.out or text in done.err]


def test_what_cannot_begin_says_so_and_leaves_nothing(tmp_path, tiny_folder):
    remote = here("attack", "inspect:openai/some-model", "--attacker", "best_of_n", "--out", tmp_path / "a")
    assert "--confirm-remote" in remote.error()
    wrong = here("attack", tiny_folder, "--attacker", "refin", "--out", tmp_path / "a")
    assert "refin" in wrong.error()
    nothing = here("attack", tmp_path / "nowhere", "--attacker", "best_of_n", "--out", tmp_path / "a")
    assert "There is no folder" in nothing.error()
    assert not (tmp_path / "a").exists()
