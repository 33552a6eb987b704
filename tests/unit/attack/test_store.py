"""The folder of an attack: nothing is lost, nothing counts twice, and what is private is apart."""

import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from opct.attack.loop import Rules
from opct.attack.store import AttackDir
from opct.attack.transfer import load_successes
from opct.errors import EvaluationError, RunError
from opct.evals.judges.protocol import Usage
from opct.runs.io import read_jsonl
from tests.unit.attack.scripted import Cast, ScriptedAttacker, ScriptedJudge, ScriptedTarget, made, subjects, user

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
    own = Cast(attacker, ScriptedTarget(reply))
    with AttackDir(folder).open(resume=resume) as kept:
        kept.begin(IDENTITY)
        tracker = own.tracker(kept.spent, **limits)
        played = own.run(subjects(*"abc"), RULES, tracker, journal=kept)
        kept.write_result({"ended": played.ended}, subjects(*"abc"), played.attempts)
    return played, own.target.asked, tracker.spent, own


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(folder, attempts) of an attack that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "attack"
    played, asked, spent, _ = played_in(folder)
    return folder, played, asked, spent


def by_key(attempts):
    return sorted(attempts, key=lambda one: one.key)


def cuts(path: Path) -> list[int]:
    """Sizes at which a kill may leave a file: at and inside every line."""
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == 10]
    return sorted({0, *ends, *(end - 20 for end in ends)})


def test_a_killed_attack_continues_to_what_it_would_have_been(whole, tmp_path):
    """Its file cut at every line and inside every line: the same attempts, usage and results."""
    folder, played, asked, spent = whole

    def attempts_of(path):
        return [row for row in read_jsonl(path / "attempts.jsonl") if "behavior_id" in row]

    for number, size in enumerate(cuts(folder / "attempts.jsonl")):
        again = tmp_path / str(number)
        shutil.copytree(folder, again)
        for name in ("result.json", "successful_prompts.jsonl"):
            (again / name).unlink()
        os.truncate(again / "attempts.jsonl", size)
        resumed, asked_now, spent_now, _ = played_in(again, resume=True)
        assert by_key(resumed.attempts) == by_key(played.attempts)
        assert (spent_now, attempts_of(again)) == (spent, attempts_of(folder))
        assert len(asked_now) <= len(asked)
        assert len(asked_now) == len(asked) or size > 0
        assert (again / "successful_prompts.jsonl").read_bytes() == (folder / "successful_prompts.jsonl").read_bytes()


def test_a_finished_attack_asks_nothing_more(whole, tmp_path):
    folder, played, _, spent = whole
    shutil.copytree(folder, tmp_path / "again")
    resumed, asked_now, spent_now, own = played_in(tmp_path / "again", resume=True)
    assert asked_now == []
    assert by_key(resumed.attempts) == by_key(played.attempts)
    assert spent_now == spent
    assert [round_ for round_, _ in own.attacker.observed] == [0, 1, 2]  # an attacker that learns sees it all again


def test_a_budget_is_over_all_resumes(tmp_path):
    """7 queries, then 12 in all, then no limit: 7, 5 and the rest; the same as without a limit."""
    first, asked, spent, _ = played_in(tmp_path / "a", max_queries=7)
    assert (first.ended, len(asked), spent.queries) == ("queries", 7, 7)
    second, asked, spent, _ = played_in(tmp_path / "a", resume=True, max_queries=12)
    assert (second.ended, len(asked), spent.queries) == ("queries", 5, 12)
    third, asked, _, _ = played_in(tmp_path / "a", resume=True)
    straight, all_asked, _, _ = played_in(tmp_path / "b")
    assert by_key(third.attempts) == by_key(straight.attempts)
    assert len(asked) == len(all_asked) - 12


def test_queries_of_a_batch_that_was_cut_short_are_counted(tmp_path):
    """Batches of 4 and 2 in a round of 6. The endpoint fails in the third batch, on its second attempt, and in the
    resume on the first of its first batch: 4 and 4 were started and not kept. Batches are noted first."""

    def attempt(failing, *, resume):
        asked = []

        def reply(text):
            rows = read_jsonl(tmp_path / "attempts.jsonl")
            asked.append(sum(row.get("started", 0) for row in rows) - sum("behavior_id" in row for row in rows))
            if len(asked) == failing:
                raise EvaluationError("the endpoint is gone")
            return "no"

        own = Cast(target=ScriptedTarget(reply))
        with AttackDir(tmp_path).open(resume=resume) as kept:
            kept.begin(IDENTITY)
            own.run(subjects(*"abc"), RULES, own.tracker(kept.spent), journal=kept)
            return kept.lost_queries, asked

    with pytest.raises(EvaluationError, match="gone"):
        attempt(8, resume=False)
    with pytest.raises(EvaluationError, match="gone"):
        attempt(1, resume=True)
    lost, asked = attempt(0, resume=True)
    assert lost == 4 + 4
    assert asked == [12] * 4 + [10] * 2 + [12] * 4 + [10] * 2
    with AttackDir(tmp_path).open(overwrite=True) as anew:
        anew.begin(IDENTITY)
        assert anew.lost_queries == 0


def test_what_the_judge_took_adds_up_over_resumes(tmp_path):
    """1 call, 5 tokens read and 2 written a reply, and nothing for `b e0 r0`, whose answer was in the cache: 7 queries,
    then 18 in all."""

    class Paid(ScriptedJudge):
        def judge(self, requests, progress=None):
            found = zip(requests, super().judge(requests), strict=True)
            return [replace(one, usage=Usage() if "/b/0/0" in request.id else Usage(1, 5, 2)) for request, one in found]

    for resume, limits, replies in ((False, {"max_queries": 7}, 6), (True, {}, 17)):
        own = Cast(judge=Paid())
        with AttackDir(tmp_path).open(resume=resume) as kept:
            kept.begin(IDENTITY)
            tracker = own.tracker(kept.spent, **limits)
            own.run(subjects(*"abc"), RULES, tracker, journal=kept)
        assert tracker.spent.judge_usage == Usage(replies, 5 * replies, 2 * replies)


def test_prompts_and_replies_are_in_private_files_that_begin_with_a_warning(whole):
    folder, *_ = whole
    private = {"attempts.jsonl", "successful_prompts.jsonl"}
    assert {path.name for path in folder.iterdir() if MARK in path.read_text()} == private
    for name in private:
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
        played_in(tmp_path / "a", max_queries=7)
        path = tmp_path / "a" / "attempts.jsonl"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))  # the last batch is not whole
        played_in(tmp_path / "a", resume=True)
    finally:
        os.umask(before)
    assert seen["attempts.jsonl"] == seen["successful_prompts.jsonl"] == 0o600
    assert seen["result.json"] == 0o666


def test_successful_prompts_are_those_that_broke_a_behaviour(whole):
    folder, *_ = whole
    [shot] = load_successes(folder / "successful_prompts.jsonl")
    assert (shot.behavior_id, shot.prompt) == ("b", user(f"{MARK} b e1 r1 1"))


def test_a_broken_twin_is_no_success(tmp_path):
    with AttackDir(tmp_path).open() as kept:
        kept.begin(IDENTITY)
        kept.write_result({}, subjects("a"), [made("a", 0, 0, 1.0, kind="counterpart")])
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
    with pytest.raises(RunError, match="already holds an attack"):
        AttackDir(tmp_path / "a").open()
    with pytest.raises(RunError, match="No attack to resume"):
        AttackDir(tmp_path / "nothing").open(resume=True)
    with pytest.raises(RunError, match="contradict"):
        AttackDir(tmp_path / "a").open(resume=True, overwrite=True)
    with AttackDir(tmp_path / "a").open(resume=True), pytest.raises(RunError, match="in use"):
        AttackDir(tmp_path / "a").open(resume=True)
    with AttackDir(tmp_path / "a").open(overwrite=True) as anew:
        assert anew.is_attack  # until the new one begins
        anew.begin(IDENTITY)
        assert len(read_jsonl(anew.attempts_path)) == 1
        assert anew.load_round("behavior", 0) == []


def test_an_attack_that_did_not_begin_leaves_no_folder(tmp_path):
    with pytest.raises(KeyError), AttackDir(tmp_path / "a").open():
        raise KeyError("the model could not be loaded")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("identity.json", None),
        ("identity.json", '{"opct_'),
        ("attempts.jsonl", None),
        ("attempts.jsonl", '{"started": "many"}\n'),
        ("attempts.jsonl", '{"behavior_id": 5}\n'),
    ],
)
def test_a_damaged_attack_is_an_error_and_loses_nothing(whole, tmp_path, name, content):
    """Neither with --resume nor without it; only --overwrite replaces it."""
    folder = tmp_path / "a"
    shutil.copytree(whole[0], folder)
    (folder / name).unlink() if content is None else (folder / name).write_text(content)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with AttackDir(folder).open(resume=True) as kept, pytest.raises(RunError, match=f"{name}.*--overwrite"):
        kept.begin(IDENTITY)
    with pytest.raises(RunError, match="already holds an attack"):
        AttackDir(folder).open()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_an_attack_that_failed_before_its_first_batch_can_be_begun_again(tmp_path):
    def fails():
        with AttackDir(tmp_path / "a").open() as folder:
            folder.begin(IDENTITY)
            raise EvaluationError("the training could not be set up")

    with pytest.raises(EvaluationError):
        fails()
    assert not (tmp_path / "a").exists()


def test_an_interrupt_notes_how_to_go_on_where_the_attack_is_its_own(tmp_path):
    """Not where nothing had begun, nor where the attack in the folder is the one that was to be replaced."""

    def interrupted(begins, how):
        with AttackDir(tmp_path / "a").open(**how) as folder:
            if begins:
                folder.begin(IDENTITY)
                folder.log_started(1)
            raise KeyboardInterrupt

    def notes(*, begins, **how):
        with pytest.raises(KeyboardInterrupt) as caught:
            interrupted(begins, how)
        return getattr(caught.value, "__notes__", [])

    said = f"finished attempts are kept in {tmp_path / 'a'}: continue with the same command and --resume"
    assert notes(begins=False) == []
    assert notes(begins=True) == [said]
    assert notes(begins=False, resume=True) == [said]
    assert notes(begins=False, overwrite=True) == []
    assert notes(begins=True, overwrite=True) == [f"{said}, without --overwrite"]
