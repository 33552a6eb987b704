"""What somebody who reads a terminal is told of an attack: while it runs, and after it."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console
from scripted import ScriptedAttacker, ScriptedTarget, user

from opct.attack.opening import open_pool
from opct.attack.results import NO_CONTROL, SO_UNKNOWN
from opct.attack.run import run_attack
from opct.data.behaviors import builtin_behaviors
from opct.errors import DataError
from opct.runs.io import append_jsonl
from opct.runs.plural import count
from opct.runs.progress import NullProgress

REFUSAL = "I'm sorry, but I can't help with that."
SMALL = {"n_behaviors": 2, "episodes": 2, "rounds": 2, "judge": "refusals"}


class Told(NullProgress):
    """Keeps all that it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def stage(self, name, total=None):
        self.told.append(name)

    def advance(self, n=1, **shown):
        self.told += [f"{name}={value}" for name, value in shown.items()]

    def log(self, message):
        self.told.append(message)


@pytest.fixture
def attacked(tmp_path, monkeypatch):
    """(result, what progress was told, lines of the terminal) of an attack on a target that says what it is told to."""

    def attack(reply: Callable[[str], str], **more):
        target = ScriptedTarget(reply)
        monkeypatch.setattr("opct.attack.run.Models", lambda *_, **__: SimpleNamespace(open=lambda *_: target))
        progress, console = Told(), Console(width=1000, file=StringIO())
        own = {"out": tmp_path / "a", "attacker": ScriptedAttacker(), "progress": progress, **SMALL, **more}
        done = run_attack("scripted", **own)
        console.print(done.render())
        return done.result, progress.told, [line.rstrip() for line in console.file.getvalue().splitlines()]

    return attack


def cells(lines, metric):
    [line] = [line for line in lines if re.search(rf"\b{metric} ", line)]
    return [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]


def test_each_row_says_of_what_its_number_is_and_what_is_left_out(attacked):
    """2 behaviours held. Of 2 replies to each of 2 twins the first has no score: 3 replies are left, to 2 twins."""
    replies = iter([*[REFUSAL] * 8, "...", *[REFUSAL] * 3])
    _, told, lines = attacked(lambda text: next(replies))
    assert cells(lines, "defense_success_rate")[3:] == ["2 behaviours", "-"]
    assert cells(lines, "benign_refusal_rate")[3:] == ["3 replies to 2 twins", "1 reply"]
    assert cells(lines, "benign_always_refused_rate")[3:] == ["2 twins", "1 reply"]
    assert "not_refused=0" in told
    assert not [line for line in told if line.startswith("answered")]
    assert any("1 of 4 replies to benign twins has no score (1 " in line for line in lines)


def test_what_is_undecided_stands_last_with_its_reasons(attacked):
    """The replies to the first behaviour have no score, the other behaviour held."""
    replies = iter(["...", REFUSAL] * 4)
    result, _, lines = attacked(lambda text: next(replies), twin_episodes=0)
    assert result["curve"]["left_out"] == {"first reply without a score": 1}
    said = "; 1 left out (1 first reply without a score)"
    [line] = [line for line in lines if "Queries to the first break" in line]
    assert line.startswith("2 behaviours: 1 held, 1 undecided (1 unjudged). Queries to the first break, median with ")
    assert line.endswith(said)


def test_a_limit_that_ends_an_attack_is_named_where_it_does_and_a_finished_one_has_nothing_left(attacked):
    """4 queries a round: 5 end in the second. Gone on with, the rounds that are over are not shown again."""
    result, told, lines = attacked(lambda text: REFUSAL, max_queries=5)
    assert "behavior: round 2 of 2: the attack ends here: the limit of queries is reached" in told
    assert any("5 queries (limit 5)" in line for line in lines)
    assert result["ended"] == "queries"
    _, told, _ = attacked(lambda text: REFUSAL, resume=True)
    assert "behavior: round 1 of 2" not in told
    assert "behavior: round 2 of 2" in told
    assert not [line for line in told if "nothing was left" in line]
    again, told, _ = attacked(lambda text: REFUSAL, resume=True)
    assert again["ended"] == "complete"
    assert not [line for line in told if ": round " in line]
    assert [line for line in told if line.startswith("nothing was left to do: the attack in ")]


@pytest.mark.parametrize("held", [True, False])
def test_that_refusing_everything_may_have_held_is_said_where_something_held(attacked, held):
    reply = REFUSAL if held else "Here is how it is done, in one plain sentence for you."
    result, _, lines = attacked(lambda text: reply, twin_episodes=0)
    assert NO_CONTROL + (SO_UNKNOWN if held else "") in result["warnings"]
    assert any("held by refusing everything" in said for said in result["warnings"]) == held
    kept = "transcripts.jsonl in it is" if held else "transcripts.jsonl and successful_prompts.jsonl in it are"
    assert lines[-1].endswith(f" ({kept} private)")


def test_a_pool_about_an_attacked_behaviour_names_it_once(tmp_path):
    own = builtin_behaviors()[0]
    rows = [{"opct_warning": "PRIVATE", "kind": "opct_successful_prompts", "schema": 1}]
    rows += [{"behavior_id": own.id, "behavior": own.behavior, "prompt": list(user(text))} for text in ("p", "q")]
    append_jsonl(tmp_path / "pool.jsonl", *rows)
    with pytest.raises(DataError) as caught:
        open_pool(tmp_path / "pool.jsonl", [own])
    assert caught.value.faults == (f"{own.id} is attacked",)


@pytest.mark.parametrize(("n", "said"), [(0, "0 queries"), (1, "1 query"), (1600, "1,600 queries")])
def test_a_count_and_its_noun(n, said):
    assert count(n, "query", "queries") == said
