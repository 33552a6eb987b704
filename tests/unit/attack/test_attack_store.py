"""The folder of an attack: nothing is lost, nothing counts twice, and what is private is apart."""

import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from scripted import ScriptedAttacker, ScriptedJudge, ScriptedTarget, made, players, subjects, user

from opct.attack.board import Rules
from opct.attack.budget import Budget, Ledger
from opct.attack.loop import Players, play
from opct.attack.scoring import Scorer
from opct.attack.store import AttackDir
from opct.attack.transfer import load_successes
from opct.errors import EvaluationError, RunError
from opct.judges.protocol import Usage
from opct.runs.io import read_jsonl

IDENTITY = {"target": {"model": "m", "weights": "abc"}, "rules": {"episodes": 2}}
RULES = Rules(episodes=2, rounds=3, batch_size=4)
MARK = "zzprompt"  # in every prompt; "zzreply" in every reply


def reply(text):
    """`b` breaks in its second round; a judge fails on one reply."""
    if "b e1 r1" in text:
        return "yes zzreply"
    return "fail zzreply" if "c e0 r2" in text else "no zzreply"


def played_in(folder: Path, *, resume=False, **limits):
    """One stretch of an attack on three behaviours; (what was played, the prompts that the target was asked now)."""
    attacker = ScriptedAttacker(lambda view: f"{MARK} {view.id} e{view.episode} r{view.round} {len(view.history)}")
    target = ScriptedTarget(reply)
    own = players(attacker, target)
    with AttackDir(folder).open(resume=resume) as kept:
        kept.begin(IDENTITY)
        book = Ledger(Budget(**limits), 15, kept.spent, clock=lambda: 0.0)
        played = play(subjects(*"abc"), own, RULES, book, journal=kept)
        kept.write_result({"ended": played.ended}, subjects(*"abc"), played.tries)
    return played, target.asked, book.spent, own


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(folder, tries) of an attack that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "attack"
    played, asked, spent, _ = played_in(folder)
    return folder, played, asked, spent


def by_key(tries):
    return sorted(tries, key=lambda one: one.key)


def cuts(path: Path) -> list[int]:
    """Sizes at which a kill may leave a file: at and inside every line."""
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == 10]
    return sorted({0, *ends, *(end - 20 for end in ends)})


def test_a_killed_attack_goes_on_to_what_it_would_have_been(whole, tmp_path):
    """Both files cut at every line and inside every line: texts are written first, so they have at least as much."""
    folder, played, asked, spent = whole
    texts = (folder / "transcripts.jsonl").read_bytes()
    lines = [len(line) + 1 for line in texts.split(b"\n")[:-1]]
    for number, size in enumerate(cuts(folder / "tries.jsonl")):
        again = tmp_path / str(number)
        shutil.copytree(folder, again)
        for name in ("result.json", "successful_prompts.jsonl"):
            (again / name).unlink()
        os.truncate(again / "tries.jsonl", size)
        rows = (again / "tries.jsonl").read_bytes().count(b"\n")
        torn = 5 if number % 3 else 0  # of the text of one more try
        os.truncate(again / "transcripts.jsonl", min(len(texts), sum(lines[: rows + 2 + number % 3]) + torn))
        resumed, asked_now, spent_now, _ = played_in(again, resume=True)
        assert by_key(resumed.tries) == by_key(played.tries)
        assert spent_now == spent
        assert len(asked_now) <= len(asked)
        assert len(asked_now) == len(asked) or size > 0
        for name in ("tries.jsonl", "transcripts.jsonl", "successful_prompts.jsonl"):
            assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_a_finished_attack_asks_nothing_more(whole, tmp_path):
    folder, played, _, spent = whole
    shutil.copytree(folder, tmp_path / "again")
    resumed, asked_now, spent_now, own = played_in(tmp_path / "again", resume=True)
    assert asked_now == []
    assert by_key(resumed.tries) == by_key(played.tries)
    assert spent_now == spent
    assert [round_ for round_, _ in own.attacker.observed] == [0, 1, 2]  # an attacker that learns sees it all again


def test_a_budget_is_over_all_resumes(tmp_path):
    """7 queries, then 12 in all, then no limit: 7, 5 and the rest; the same as without a limit."""
    first, asked, spent, _ = played_in(tmp_path / "a", queries=7)
    assert (first.ended, len(asked), spent.queries) == ("queries", 7, 7)
    second, asked, spent, _ = played_in(tmp_path / "a", resume=True, queries=12)
    assert (second.ended, len(asked), spent.queries) == ("queries", 5, 12)
    third, asked, _, _ = played_in(tmp_path / "a", resume=True)
    straight, all_asked, _, _ = played_in(tmp_path / "b")
    assert by_key(third.tries) == by_key(straight.tries)
    assert len(asked) == len(all_asked) - 12


def test_queries_of_a_batch_that_was_cut_short_are_counted(tmp_path):
    """Batches of 3 (6 tries a round, at most 4 at once). The endpoint fails in the third batch, on its second try, and
    in the resume on the first of its first batch: 3 and 3 tries began and were not kept. Each batch is noted before it
    is asked."""

    def attempt(failing, *, resume):
        asked = []

        def reply(text):
            noted = sum(row["begun"] for row in read_jsonl(tmp_path / "begun.jsonl"))
            asked.append(noted - len(read_jsonl(tmp_path / "tries.jsonl")))
            if len(asked) == failing:
                raise EvaluationError("the endpoint is gone")
            return "no"

        own = players(ScriptedAttacker(), ScriptedTarget(reply))
        with AttackDir(tmp_path).open(resume=resume) as kept:
            kept.begin(IDENTITY)
            play(subjects(*"abc"), own, RULES, Ledger(Budget(), 15, kept.spent, clock=lambda: 0.0), journal=kept)
            return kept.cut_short, asked

    with pytest.raises(EvaluationError, match="gone"):
        attempt(8, resume=False)
    with pytest.raises(EvaluationError, match="gone"):
        attempt(1, resume=True)
    cut_short, asked = attempt(0, resume=True)
    assert cut_short == 3 + 3
    assert asked == [3 + 3 + 3] * 12
    with AttackDir(tmp_path).open(overwrite=True) as anew:
        anew.begin(IDENTITY)
        assert (anew.cut_short, anew.begun_path.exists()) == (0, False)


def test_what_the_judge_took_adds_up_over_resumes(tmp_path):
    """1 call, 5 tokens read and 2 written a reply, and nothing for the one of `b e0 r0`, whose judgement was kept from
    before: 7 queries, then 18 in all."""

    class Paid(ScriptedJudge):
        def judge(self, requests, progress=None):
            found = zip(requests, super().judge(requests), strict=True)
            return [replace(one, usage=Usage(1, 5, 2), is_cached="/b/0/0" in request.id) for request, one in found]

    for resume, limits, replies in ((False, {"queries": 7}, 6), (True, {}, 17)):
        own = Players(ScriptedAttacker(), ScriptedTarget(), Scorer(Paid()))
        with AttackDir(tmp_path).open(resume=resume) as kept:
            kept.begin(IDENTITY)
            book = Ledger(Budget(**limits), 15, kept.spent, clock=lambda: 0.0)
            play(subjects(*"abc"), own, RULES, book, journal=kept)
        assert book.spent.judge_usage == Usage(replies, 5 * replies, 2 * replies)


def test_what_may_be_shared_holds_no_prompt_and_no_reply(whole):
    folder, *_ = whole
    for path in folder.iterdir():
        private = path.name in ("transcripts.jsonl", "successful_prompts.jsonl")
        text = path.read_text()
        assert (MARK in text) == private, path.name
        assert ("zzreply" in text) == (path.name == "transcripts.jsonl"), path.name


def test_private_files_begin_with_a_warning_and_are_their_owners_alone(whole):
    folder, *_ = whole
    for name in ("transcripts.jsonl", "successful_prompts.jsonl"):
        first = json.loads((folder / name).read_text().splitlines()[0])
        assert first["opct_warning"].startswith("PRIVATE")
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_a_private_file_is_its_owners_alone_from_its_first_byte_on(tmp_path, monkeypatch):
    """The temporary file, too: others could open it before the rights of the whole one are changed."""
    seen = {}
    replace_file = os.replace

    def replacing(source, target):
        seen[Path(target).name] = stat.S_IMODE(Path(source).stat().st_mode)
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", replacing)
    before = os.umask(0)
    try:
        played_in(tmp_path / "a", queries=7)
        (tmp_path / "a" / "tries.jsonl").write_text("")  # so that the transcripts are written anew
        played_in(tmp_path / "a", resume=True)
    finally:
        os.umask(before)
    assert seen["transcripts.jsonl"] == seen["successful_prompts.jsonl"] == 0o600
    assert seen["result.json"] == 0o666


def test_successful_prompts_are_those_that_broke_a_behaviour(whole):
    folder, *_ = whole
    [shot] = load_successes(folder / "successful_prompts.jsonl")
    assert (shot.behavior_id, shot.prompt) == ("b", user(f"{MARK} b e1 r1 1"))


def test_a_broken_twin_is_no_success(tmp_path):
    with AttackDir(tmp_path).open() as kept:
        kept.begin(IDENTITY)
        kept.write_result({}, subjects("a"), [made("a", 0, 0, 1.0, kind="twin")])
    assert load_successes(tmp_path / "successful_prompts.jsonl") == []


def test_another_attack_is_not_gone_on_with(whole, tmp_path):
    folder, *_ = whole
    shutil.copytree(folder, tmp_path / "a")
    other = {**IDENTITY, "target": {"model": "m", "weights": "other"}}
    with AttackDir(tmp_path / "a").open(resume=True) as kept, pytest.raises(RunError, match=r"target\.weights was"):
        kept.begin(other)


def test_a_folder_is_not_overwritten_unasked_nor_used_twice(whole, tmp_path):
    folder, *_ = whole
    shutil.copytree(folder, tmp_path / "a")
    with pytest.raises(RunError, match="holds an attack already"):
        AttackDir(tmp_path / "a").open()
    with pytest.raises(RunError, match="No attack to resume"):
        AttackDir(tmp_path / "nothing").open(resume=True)
    with pytest.raises(RunError, match="contradict"):
        AttackDir(tmp_path / "a").open(resume=True, overwrite=True)
    with AttackDir(tmp_path / "a").open(resume=True), pytest.raises(RunError, match="in use"):
        AttackDir(tmp_path / "a").open(resume=True)
    (tmp_path / "a" / "judge_cache.jsonl").write_text("")
    with AttackDir(tmp_path / "a").open(overwrite=True) as anew:
        assert anew.is_attack  # until the new one begins
        anew.begin(IDENTITY)
        assert not anew.tries_path.exists()
        assert anew.judge_cache_path.exists()  # it was paid for
        assert anew.kept("behavior", 0) == {}


def test_an_attack_that_did_not_begin_leaves_no_folder(tmp_path):
    with pytest.raises(KeyError), AttackDir(tmp_path / "a").open():
        raise KeyError("the model could not be loaded")
    assert not (tmp_path / "a").exists()


def test_lost_texts_are_not_made_up(whole, tmp_path):
    folder, *_ = whole
    shutil.copytree(folder, tmp_path / "a")
    lines = (tmp_path / "a" / "transcripts.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "a" / "transcripts.jsonl").write_bytes(b"".join(lines[:-2]))
    with AttackDir(tmp_path / "a").open(resume=True) as kept, pytest.raises(RunError, match="texts of some are lost"):
        kept.begin(IDENTITY)


def test_a_try_on_disk_says_what_it_took(whole):
    folder, *_ = whole
    row = read_jsonl(folder / "tries.jsonl")[0]
    assert {"kind", "behavior_id", "round", "episode", "score", "verdict", "is_broken", "stop_reason"} <= set(row)
    assert row["attacker_tokens"] == 2
    assert "proposal" not in row


def test_an_interrupt_notes_how_to_go_on_where_the_attack_is_its_own(tmp_path):
    """Not where nothing had begun, nor where the attack in the folder is the one that was to be replaced."""

    def interrupted(begins, how):
        with AttackDir(tmp_path / "a").open(**how) as folder:
            if begins:
                folder.begin({"attacker": {"attacker": "scripted"}})
            raise KeyboardInterrupt

    def notes(*, begins, **how):
        with pytest.raises(KeyboardInterrupt) as caught:
            interrupted(begins, how)
        return getattr(caught.value, "__notes__", [])

    said = f"what was tried is kept in {tmp_path / 'a'}: go on with the same command and --resume"
    assert notes(begins=False) == []
    assert notes(begins=True) == [said]
    assert notes(begins=False, resume=True) == [said]
    assert notes(begins=False, overwrite=True) == []
    assert notes(begins=True, overwrite=True) == [f"{said}, without --overwrite"]
