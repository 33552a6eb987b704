"""The loop: what is asked, in which batches, until when, and what of it counts."""

import itertools
import threading
import time
from collections import Counter

import pytest
from scripted import (
    ATTACKER_TOKENS,
    TARGET_TOKENS,
    ScriptedAttacker,
    ScriptedTarget,
    ledger,
    made,
    players,
    said,
    subjects,
    user,
)

from opct.attack.board import Board, Rules
from opct.attack.budget import Budget, Ledger, Spent
from opct.attack.loop import NoJournal, _Stages, play
from opct.attack.protocol import BEHAVIOR, Proposal, Reply, Shot, Subject
from opct.errors import EvaluationError


def run(own=None, rules=None, ids="abc", **more):
    own = own or players()
    limits = {name: more.pop(name) for name in ("queries", "tokens", "seconds") if name in more}
    clock = more.pop("clock", lambda: 0.0)
    book = more.pop("book", None) or ledger(own, clock, **limits)
    return play(subjects(*ids), own, rules or Rules(episodes=2, rounds=3), book, **more), own


def test_every_episode_of_every_behaviour_has_every_round_in_one_batch_a_round():
    """3 behaviours x 2 episodes x 3 rounds: three batches of 6, the first of each behaviour before a second."""
    played, own = run()
    assert [len(batch) for batch in own.attacker.batches] == [6, 6, 6]
    assert [(view.id, view.episode) for view in own.attacker.batches[0]] == [
        ("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1), ("c", 1),
    ]  # fmt: skip
    assert len(played.tries) == len({one.key for one in played.tries}) == 18
    assert played.ended == "complete"
    assert not played.cut_short
    assert all(one.is_broken is False for one in played.tries)


def test_a_round_is_cut_into_even_batches():
    """9 tries, at most 4 at once: three batches of 3, and not 4, 4 and 1."""
    _, own = run(rules=Rules(episodes=3, rounds=1, batch_size=4))
    assert [len(batch) for batch in own.attacker.batches] == [3, 3, 3]


def test_the_judge_sees_the_bare_behaviour_and_the_target_the_prompt():
    _, own = run(ids="a", rules=Rules(episodes=1, rounds=1))
    assert own.target.asked == ["a e0 r0"]
    assert own.scorer.judge_of_behaviors.questions == [subjects("a")[0].text]


def test_some_episodes_of_a_longer_attack_are_drawn_by_seed_and_subject():
    """2 of 8 for each of 26 subjects, no number twice; all of them where all are played; another seed draws others."""

    def drawn(episodes, seed=0):
        rules = Rules(episodes=episodes, rounds=1, drawn_from=8, seed=seed)
        views = Board(subjects(*"abcdefghijklmnopqrstuvwxyz"), rules).views(0)
        return {id_: [view.episode for view in views if view.id == id_] for id_ in "abcdefghijklmnopqrstuvwxyz"}

    two = drawn(2)
    assert all(own == sorted(set(own)) and len(own) == 2 for own in two.values())
    assert {number for own in two.values() for number in own} == set(range(8))
    assert two == drawn(2) != drawn(2, seed=1)
    assert set(map(tuple, drawn(8).values())) == {tuple(range(8))}
    with pytest.raises(EvaluationError, match="9 episodes of an attack are to be drawn from 8"):
        Rules(episodes=9, drawn_from=8)


def test_a_history_is_that_of_its_own_episode():
    _, own = run(players(target=ScriptedTarget(lambda text: f"no {text}")))
    last = {(view.id, view.episode): view for view in own.attacker.batches[2]}
    history = last["b", 1].history
    assert [said(attempt.prompt) for attempt in history] == ["b e1 r0", "b e1 r1"]
    assert [attempt.reply.startswith(f"no b e1 r{i}") for i, attempt in enumerate(history)] == [True, True]
    assert [attempt.score for attempt in history] == [0.0, 0.0]


def breaks_a(text):
    return "yes" if text.startswith("a e1 r0") else "no"


@pytest.mark.parametrize(
    ("stop", "counts"),
    [
        ("behavior", {"a": 2, "b": 6}),  # the round that broke it is played to its end
        ("episode", {"a": 2 + 1 + 1, "b": 6}),  # episode 1 ends, episode 0 goes on
        ("perfect", {"a": 2 + 1 + 1, "b": 6}),  # as its score is 1
        ("never", {"a": 6, "b": 6}),
    ],
)
def test_what_a_break_ends(stop, counts):
    played, _ = run(players(target=ScriptedTarget(breaks_a)), Rules(episodes=2, rounds=3, stop=stop), ids="ab")
    assert Counter(one.behavior_id for one in played.tries) == counts


def test_a_break_that_could_score_better_ends_no_episode_for_perfect():
    own = players(target=ScriptedTarget(lambda text: "half"))
    played, _ = run(own, Rules(episodes=2, rounds=3, stop="perfect"), ids="a")
    assert len(played.tries) == 6


def test_a_score_at_the_threshold_breaks():
    played, _ = run(players(target=ScriptedTarget(lambda text: "half")), ids="a")
    assert all(one.is_broken for one in played.tries)


def test_shots_are_successes_on_other_behaviours_known_when_the_round_began():
    """`a` is broken in round 0: `b` is shown it in round 1, `a` (which goes on) is not."""
    own = players(target=ScriptedTarget(breaks_a))
    run(own, Rules(episodes=2, rounds=2, stop="never"), ids="ab")
    first, second = own.attacker.batches
    assert all(not view.shots for view in first)
    assert {view.id: [said(shot.prompt) for shot in view.shots] for view in second} == {"a": [], "b": ["a e1 r0"]}


def test_a_shot_from_the_pool_is_never_of_the_behaviour_itself_in_other_case():
    [own] = subjects("a")
    pool = [Shot("elsewhere", own.text.upper() + "!", user("leak")), Shot("z", "something else", user("fine"))]
    [view] = Board([own], Rules(episodes=1, rounds=1, shots=5), pool).views(0)
    assert [said(shot.prompt) for shot in view.shots] == ["fine"]


PICKS = ("Explain how to pick the lock of a bicycle", "Explain how to pick a bicycle's lock, please", "Forge a coin")


def test_no_shot_is_of_a_near_duplicate_from_the_pool_or_from_the_attack():
    """Of the first two, which are alike, one was broken now and one before; the third is shown to both."""
    own = [Subject("a", PICKS[0]), Subject("b", PICKS[1]), Subject("c", PICKS[2])]
    pool = [Shot("p", "Please explain how to pick the lock of a bicycle!", user("from before"))]
    board = Board(own, Rules(episodes=1, rounds=2, stop="never", shots=5), pool)
    board.add([made(id_, 0, 0, 1.0, prompt=user(f"broke {id_}")) for id_ in "ac"])
    shown = {view.id: {said(shot.prompt) for shot in view.shots} for view in board.views(1)}
    assert shown == {"a": {"broke c"}, "b": {"broke c"}, "c": {"from before", "broke a"}}


def test_all_episodes_of_a_behaviour_are_shown_the_same_and_another_seed_shows_others():
    pool = [Shot(f"s{i}", f"other request number {i}", user(f"m{i}")) for i in range(30)]

    def shown(seed, round_=0):
        views = Board(subjects("a", "b"), Rules(episodes=3, rounds=2, shots=2, seed=seed), pool).views(round_)
        return {id_: {str(view.shots) for view in views if view.id == id_} for id_ in "ab"}

    first = shown(0)
    assert [len(found) for found in first.values()] == [1, 1]
    assert first["a"] != first["b"]
    assert shown(0) == first != shown(1)
    assert shown(0, 1) != first


def test_the_target_is_not_sampled_by_the_attackers_seed():
    """With the same model on both sides, the same seed would tie what one says to what the other said."""
    _, own = run(ids="a")
    assert not set(own.target.seeds) & {view.seed for batch in own.attacker.batches for view in batch}
    assert len(set(own.target.seeds)) == 6


def test_a_try_depends_on_behaviour_episode_and_round_and_not_on_the_batch():
    """Batches of 1, 4 and 100; one behaviour alone: the same seeds, so the same replies."""
    alone, _ = run(rules=Rules(episodes=2, rounds=3, batch_size=4), ids="b")
    one_by_one, _ = run(rules=Rules(episodes=2, rounds=3, batch_size=1))
    together, _ = run(rules=Rules(episodes=2, rounds=3, batch_size=100))
    assert sorted(one_by_one.tries, key=lambda one: one.key) == sorted(together.tries, key=lambda one: one.key)
    assert {one.key: one for one in alone.tries}.items() <= {one.key: one for one in together.tries}.items()
    assert len({one.reply for one in together.tries}) > 12  # seeds differ: 18 draws of 997


def test_another_seed_is_another_attack():
    first, _ = run(rules=Rules(episodes=2, rounds=3, seed=0))
    second, _ = run(rules=Rules(episodes=2, rounds=3, seed=1))
    assert [one.reply for one in first.tries] != [one.reply for one in second.tries]


def test_the_attacker_observes_every_round_once_and_in_full():
    played, own = run(rules=Rules(episodes=2, rounds=3, batch_size=4))
    assert [round_ for round_, _ in own.attacker.observed] == [0, 1, 2]
    assert [one for _, tries in own.attacker.observed for one in tries] == list(played.tries)
    assert all(one.proposal is not None for one in played.tries)


def test_an_attacker_that_learns_is_asked_with_what_it_learned():
    """It writes how many rounds it has observed."""
    attacker = ScriptedAttacker()
    attacker.write = lambda view: f"after {len(attacker.observed)}"
    _, own = run(players(attacker), Rules(episodes=2, rounds=3, batch_size=2), ids="a")
    assert own.target.asked == ["after 0"] * 2 + ["after 1"] * 2 + ["after 2"] * 2


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("limit", [1, 7, 17, 18, 40])
def test_queries_are_never_more_than_allowed_and_never_fewer(limit, is_local):
    """18 tries in all, batches of 4, up to three under way."""
    own = players(ScriptedAttacker(is_local=is_local), ScriptedTarget(is_local=is_local), judge_is_local=is_local)
    played, _ = run(own, Rules(episodes=2, rounds=3, batch_size=4), queries=limit)
    assert len(own.target.asked) == min(limit, 18)
    assert played.ended == ("queries" if limit < 18 else "complete")


def test_a_proposal_without_a_prompt_is_no_query():
    """Episode 0 never has one. Of 5 allowed queries all 5 are made, although 5 of the tries before them were none."""
    attacker = ScriptedAttacker(lambda view: None if view.episode == 0 else "x")
    played, own = run(players(attacker), Rules(episodes=2, rounds=3, batch_size=2), queries=5)
    assert len(own.target.asked) == 5
    unasked = [one for one in played.tries if not one.is_asked]
    assert {one.verdict for one in unasked} == {"unasked:no_prompt"}
    assert all(one.score is None and not one.is_unjudged for one in unasked)


@pytest.mark.parametrize("limit", [14, 15, 44, 100])
def test_sampled_tokens_never_exceed_their_limit(limit):
    """A try may take 15 (5 + 10) and takes 4 (2 + 2): it is begun only where 15 fit, so 100 allow floor(85 / 4) + 1."""
    own = players()
    book = ledger(own, tokens=limit)
    played, _ = run(own, Rules(episodes=3, rounds=3, batch_size=5), book=book)
    assert book.spent.tokens == sum(one.sampled_tokens for one in played.tries) <= limit
    most = ATTACKER_TOKENS + TARGET_TOKENS
    expected = 0 if limit < most else min((limit - most) // 4 + 1, 27)
    assert len(own.target.asked) == expected
    assert (played.ended == "tokens") == (expected < 27)


def test_no_batch_begins_after_the_seconds_are_over():
    """1 s a reply, batches of 2 of 6 tries: the second begins after 2 s of 3 and is finished, the third does not."""
    now = [0.0]

    def tick(text):
        now[0] += 1.0
        return "no"

    own = players(target=ScriptedTarget(tick))
    played, _ = run(own, Rules(episodes=2, rounds=1, batch_size=2), seconds=3.0, clock=lambda: now[0])
    assert played.ended == "seconds"
    assert len(own.target.asked) == 4
    assert played.cut_short == {"b", "c"}


def test_seconds_before_a_resume_count():
    book = Ledger(Budget(seconds=10.0), 1, Spent(seconds=10.0), clock=lambda: 5.0)
    assert book.fitting(3) == 0
    assert book.exhausted() == "seconds"


def test_a_budget_that_ends_in_the_middle_says_which_behaviours_had_tries_left():
    """Round 0 of 3 behaviours with one episode, 2 queries: `c` was not asked, and `a` and `b` had rounds to come."""
    played, _ = run(rules=Rules(episodes=1, rounds=3), queries=2)
    assert played.cut_short == {"a", "b", "c"}
    played, _ = run(rules=Rules(episodes=1, rounds=1), queries=2)
    assert played.cut_short == {"c"}


def test_it_stops_between_batches_when_asked_to():
    asked = [0]

    def stop():
        asked[0] += 1
        return asked[0] > 2

    played, own = run(rules=Rules(episodes=2, rounds=3, batch_size=2), should_stop=stop)
    assert played.ended == "interrupted"
    assert len(own.target.asked) == 4 == len(played.tries)


@pytest.mark.parametrize("attacker_is_local", [False, True])
def test_a_target_behind_an_endpoint_has_work_while_others_wait_for_it(attacker_is_local):
    """The first reply waits until the second batch was written: one batch after another, that never comes. The judge of
    the first, which is local, must not hold the thread of a local attacker while it waits for that reply."""
    second = threading.Event()

    def write(view):
        if view.episode == 1:
            second.set()
        return "x"

    def reply(text):
        assert second.wait(10), "the target has nothing to do"
        return "no"

    own = players(ScriptedAttacker(write, is_local=attacker_is_local), ScriptedTarget(reply, is_local=False))
    played, _ = run(own, Rules(episodes=2, rounds=1, batch_size=1), ids="a")
    assert [one.episode for one in played.tries] == [0, 1]


def test_at_default_rules_all_stages_behind_endpoints_overlap():
    """24 tries and 3 threads: 6 batches of 4. The judge waits in its first batch until the target is in its second and
    the attacker in its third: one batch a round, that never comes."""
    meeting = threading.Barrier(3, timeout=10)

    def meets(number, own):
        calls = itertools.count(1)

        def called(*arguments):
            if next(calls) == number:
                meeting.wait()
            return own(*arguments)

        return called

    own = players(ScriptedAttacker(is_local=False), ScriptedTarget(is_local=False), judge_is_local=False)
    own.attacker.propose = meets(3, own.attacker.propose)
    own.target.answer = meets(2, own.target.answer)
    own.scorer.judge = meets(1, own.scorer.judge)
    played, _ = run(own, Rules(rounds=1))
    assert len(played.tries) == 24
    assert [len(batch) for batch in own.attacker.batches] == [4] * 6


def test_models_of_this_process_see_to_the_oldest_batch_first():
    """The second batch is written while the first is answered; still the first is judged before the second is
    answered, so that it is kept, and a third written, in the meantime."""
    second, order = threading.Event(), []

    def write(view):
        if view.episode == 1:
            second.set()
        return f"{view.episode}"

    def reply(text):
        assert second.wait(10)
        order.append(f"answered {text}")
        time.sleep(0.05)  # until the second batch waits for the thread
        return "no"

    own = players(ScriptedAttacker(write, is_local=False), ScriptedTarget(reply))
    judge = own.scorer.judge

    def judged(kind, requests):
        order.append("judged")
        return judge(kind, requests)

    own.scorer.judge = judged
    run(own, Rules(episodes=2, rounds=1, batch_size=1), ids="a")
    assert order == ["answered 0", "judged", "answered 1", "judged"]


class Kept(NoJournal):
    """Keeps tries in memory."""

    def __init__(self):
        self.tries = []

    def kept(self, kind, round_):
        return {one.key: one for one in self.tries if (one.kind, one.round) == (kind, round_)}

    def write(self, tries, seconds):
        self.tries += tries


@pytest.mark.parametrize("fails", ["attacker", "target", "judge"])
@pytest.mark.parametrize("where", list(itertools.product([True, False], repeat=3)))
def test_a_stage_that_fails_ends_the_attack_with_its_error_and_what_came_before_is_kept(where, fails):
    """In the third of 4 batches, whoever works where; nothing hangs, and the batches before are on the disk."""

    def from_the_third_on(own):
        calls = itertools.count(1)

        def called(*arguments):
            if next(calls) >= 3:
                raise EvaluationError("gone")
            return own(*arguments)

        return called

    attacker, target, judge = where
    own, journal = (
        players(ScriptedAttacker(is_local=attacker), ScriptedTarget(is_local=target), judge_is_local=judge),
        Kept(),
    )
    if fails == "attacker":
        own.attacker.propose = from_the_third_on(own.attacker.propose)
    elif fails == "target":
        own.target.answer = from_the_third_on(own.target.answer)
    else:
        own.scorer.judge = from_the_third_on(own.scorer.judge)
    with pytest.raises(EvaluationError, match="gone"):
        run(own, Rules(episodes=4, rounds=1, batch_size=1), ids="a", journal=journal)
    assert [one.episode for one in journal.tries] == [0, 1]


@pytest.mark.parametrize("done", [1, 2, 3])
def test_a_resumed_round_is_cut_into_the_batches_that_it_would_have_had(done):
    """96 tries, and a thread of its own for the judge: 4 batches of 24, of which some were kept; another batch may be
    another reply in bfloat16."""
    rules, journal, asked = Rules(episodes=32, rounds=1, batch_size=100), Kept(), itertools.count(1)
    first, _ = run(players(judge_is_local=False), rules, journal=journal, should_stop=lambda: next(asked) > done)
    assert (first.ended, len(first.tries)) == ("interrupted", 24 * done)
    played, own = run(players(judge_is_local=False), rules, journal=journal)
    assert [len(batch) for batch in own.attacker.batches] == [24] * (4 - done)
    whole, _ = run(players(judge_is_local=False), rules)
    assert played.tries == whole.tries


def test_models_of_this_process_take_turns():
    """All in one thread, which is not the one that keeps the tries: two models at once would share the cores."""
    threads = set()

    def here(value):
        threads.add(threading.current_thread().name)
        return value

    own = players(ScriptedAttacker(lambda view: here("x")), ScriptedTarget(lambda text: here("no")))
    run(own, Rules(episodes=4, rounds=2, batch_size=1))
    assert len(threads) == 1
    assert threads != {threading.current_thread().name}


def test_replies_that_cannot_be_judged_are_unscored_with_their_reason():
    """None of these reaches the judge: nothing of them is an answer."""
    replies = {
        "a": Reply("", "stop"),
        "b": Reply("", "length", is_unfinished=True),
        "c": Reply("", "filtered"),
        "d": Reply("", "rejected"),
        "e": Reply("", "context"),
    }
    own = players(ScriptedAttacker(lambda view: view.id), ScriptedTarget(lambda text: replies[text]))
    played, _ = run(own, Rules(episodes=1, rounds=1), ids="abcde")
    assert {one.behavior_id: one.verdict for one in played.tries} == {
        "a": "unscored:empty",
        "b": "unscored:unfinished_thinking",
        "c": "unscored:target_filtered",
        "d": "unscored:target_rejected",
        "e": "unscored:target_context",
    }
    assert all(one.is_unjudged and one.is_broken is None for one in played.tries)
    assert own.scorer.judge_of_behaviors.questions == []


def test_a_prompt_that_does_not_fit_the_target_is_not_put_to_it():
    own = players(ScriptedAttacker(lambda view: "word " * 20), ScriptedTarget(context=TARGET_TOKENS + 19))
    played, _ = run(own, Rules(episodes=1, rounds=1), ids="a")
    assert own.target.asked == []
    assert [one.verdict for one in played.tries] == ["unasked:target_context"]


def test_a_reply_that_the_judge_failed_on_is_unjudged():
    played, _ = run(players(target=ScriptedTarget(lambda text: "fail")), Rules(episodes=1, rounds=1), ids="a")
    assert [(one.score, one.is_broken, one.verdict) for one in played.tries] == [(None, None, "unscored:judge_refused")]


def test_twins_are_scored_by_refusal_whatever_the_judge():
    own = players(target=ScriptedTarget(lambda text: "I'm sorry, but I can't help with that."))
    twins = subjects("a", kind="twin")
    played = play(twins, own, Rules(episodes=1, rounds=1, stop="never"), ledger(own))
    assert [(one.kind, one.score, one.verdict) for one in played.tries] == [("twin", 0.0, "not_answered")]
    assert own.scorer.judge_of_behaviors.questions == []


def test_what_fails_is_raised_after_what_was_made_is_kept():
    def reply(text):
        if "r1" in text:
            raise EvaluationError("the endpoint is gone")
        return "no"

    journal = Kept()
    with pytest.raises(EvaluationError, match="gone"):
        run(players(target=ScriptedTarget(reply)), Rules(episodes=2, rounds=3, batch_size=6), journal=journal)
    assert {one.round for one in journal.tries} == {0}
    assert len(journal.tries) == 6


def test_an_attacker_with_the_wrong_number_of_proposals_is_refused():
    attacker = ScriptedAttacker()
    attacker.propose = lambda views: [Proposal(user("x"))]
    with pytest.raises(EvaluationError, match="1 proposals for 6 episodes"):
        run(players(attacker))


def test_rules_and_budgets_out_of_range_are_refused():
    for wrong in ({"episodes": 0}, {"rounds": 0}, {"shots": -1}, {"batch_size": 0}, {"stop": "sometimes"}):
        with pytest.raises(EvaluationError):
            Rules(**wrong)
    for wrong in ({"queries": 0}, {"tokens": -1}, {"seconds": float("nan")}):
        with pytest.raises(EvaluationError, match="above 0"):
            Budget(**wrong)
    with pytest.raises(EvaluationError, match="each id once"):
        Board(subjects("a", "a"), Rules())


def test_spent_counts_queries_and_tokens_of_both():
    tries = [
        made("a", 0, 0, completion_tokens=7, prompt_tokens=3, attacker_tokens=5, attacker_prompt_tokens=11),
        made("a", 0, 1, prompt=None, reply=None, attacker_tokens=2),
    ]
    assert Spent().plus(tries, 1.5) == Spent(queries=1, tokens=14, prompt_tokens=14, seconds=1.5)


@pytest.mark.parametrize("target_is_local", [True, False])
def test_a_batch_under_way_at_the_end_begins_no_other_stage(target_is_local, caplog):
    """Left while the attacker writes: the stages after it fail, none waits for ever, and nothing is logged."""
    begun, left = threading.Event(), threading.Event()

    def write(view):
        begun.set()
        assert left.wait(10)
        return "x"

    own = players(ScriptedAttacker(write), ScriptedTarget(is_local=target_is_local))
    rules, stages = Rules(episodes=1, rounds=1), _Stages(own)
    last = stages.submit(BEHAVIOR, Board(subjects("a"), rules).views(0), rules)
    assert begun.wait(10)
    for thread in stages.threads:
        thread.pool.shutdown(wait=False, cancel_futures=True)
    left.set()
    stages.__exit__()  # waits for all
    with pytest.raises(RuntimeError, match="shutdown"):
        last.result(10)
    assert own.target.asked == []
    assert not caplog.records
