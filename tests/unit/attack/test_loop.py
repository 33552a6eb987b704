"""The loop: what is asked, in which batches, until when, and what of it counts."""

import itertools
import threading
from collections import Counter

import pytest

from opct.attack.loop import AttackUsage, EpisodeState, Journal, Rules
from opct.attack.protocol import AttackPrompt, FewShotExample, Reply, Subject
from opct.errors import EvaluationError
from tests.unit.attack.scripted import (
    ATTACKER_TOKENS,
    TARGET_TOKENS,
    Cast,
    ScriptedAttacker,
    ScriptedTarget,
    made,
    said,
    subjects,
    user,
)

LIMITS = ("max_queries", "max_tokens", "max_seconds")


def run(own=None, rules=None, ids="abc", **more):
    own = own or Cast()
    limits = {name: more.pop(name) for name in LIMITS if name in more}
    tracker = more.pop("tracker", None) or own.tracker(clock=more.pop("clock", None), **limits)
    return own.run(subjects(*ids), rules or Rules(episodes=2, rounds=3), tracker, **more), own


def test_every_episode_of_every_behaviour_has_every_round_in_one_batch_a_round():
    """3 behaviours x 2 episodes x 3 rounds: three batches of 6, the first of each behaviour before a second."""
    played, own = run()
    assert [len(batch) for batch in own.attacker.batches] == [6, 6, 6]
    assert [(view.id, view.episode) for view in own.attacker.batches[0]] == [
        ("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1), ("c", 1),
    ]  # fmt: skip
    assert len(played.attempts) == len({one.key for one in played.attempts}) == 18
    assert played.ended == "complete"
    assert not played.cut_short
    assert all(one.is_jailbroken is False for one in played.attempts)


def test_a_round_is_cut_into_batches():
    _, own = run(rules=Rules(episodes=3, rounds=1, batch_size=4))
    assert [len(batch) for batch in own.attacker.batches] == [4, 4, 1]


def test_the_judge_sees_the_bare_behaviour_and_the_target_the_prompt():
    _, own = run(ids="a", rules=Rules(episodes=1, rounds=1))
    assert own.target.asked == ["a e0 r0"]
    assert own.judge.questions == [subjects("a")[0].text]


def test_some_episodes_of_a_longer_attack_are_drawn_by_seed_and_subject():
    """2 of 8 for each of 26 subjects, no number twice; all of them where all are played; another seed draws others."""

    def drawn(episodes, seed=0):
        rules = Rules(episodes=episodes, rounds=1, drawn_from=8, seed=seed)
        views = EpisodeState(subjects(*"abcdefghijklmnopqrstuvwxyz"), rules).observations(0)
        return {id_: [view.episode for view in views if view.id == id_] for id_ in "abcdefghijklmnopqrstuvwxyz"}

    two = drawn(2)
    assert all(own == sorted(set(own)) and len(own) == 2 for own in two.values())
    assert {number for own in two.values() for number in own} == set(range(8))
    assert two == drawn(2) != drawn(2, seed=1)
    assert set(map(tuple, drawn(8).values())) == {tuple(range(8))}


def test_a_history_is_that_of_its_own_episode():
    _, own = run(Cast(target=ScriptedTarget(lambda text: f"no {text}")))
    last = {(view.id, view.episode): view for view in own.attacker.batches[2]}
    history = last["b", 1].history
    assert [said(attempt.prompt) for attempt in history] == ["b e1 r0", "b e1 r1"]
    assert [attempt.reply.startswith(f"no b e1 r{i}") for i, attempt in enumerate(history)] == [True, True]
    assert [attempt.score for attempt in history] == [0.0, 0.0]


def jailbreaks_a(text):
    return "yes" if text.startswith("a e1 r0") else "no"


@pytest.mark.parametrize(
    ("stop", "counts"),
    [
        ("behavior", {"a": 2, "b": 6}),  # the round that jailbroke it is run to its end
        ("episode", {"a": 2 + 1 + 1, "b": 6}),  # episode 1 ends, episode 0 continues
        ("perfect", {"a": 2 + 1 + 1, "b": 6}),  # as its score is 1
        ("never", {"a": 6, "b": 6}),
    ],
)
def test_what_a_jailbreak_ends(stop, counts):
    played, _ = run(Cast(target=ScriptedTarget(jailbreaks_a)), Rules(episodes=2, rounds=3, stop=stop), ids="ab")
    assert Counter(one.behavior_id for one in played.attempts) == counts


def test_a_jailbreak_that_could_score_better_ends_no_episode_for_perfect():
    own = Cast(target=ScriptedTarget(lambda text: "half"))
    played, _ = run(own, Rules(episodes=2, rounds=3, stop="perfect"), ids="a")
    assert len(played.attempts) == 6


def test_a_score_at_the_threshold_is_a_jailbreak():
    played, _ = run(Cast(target=ScriptedTarget(lambda text: "half")), ids="a")
    assert all(one.is_jailbroken for one in played.attempts)


def test_shots_are_successes_on_other_behaviours_known_when_the_round_began():
    """`a` is jailbroken in round 0: `b` is shown it in round 1, `a` (which continues) is not."""
    own = Cast(target=ScriptedTarget(jailbreaks_a))
    run(own, Rules(episodes=2, rounds=2, stop="never"), ids="ab")
    first, second = own.attacker.batches
    assert all(not view.shots for view in first)
    assert {view.id: [said(shot.prompt) for shot in view.shots] for view in second} == {"a": [], "b": ["a e1 r0"]}


def test_a_shot_from_the_pool_is_never_of_the_behaviour_itself_in_other_case():
    [own] = subjects("a")
    pool = [
        FewShotExample("elsewhere", own.text.upper() + "!", user("leak")),
        FewShotExample("z", "something else", user("fine")),
    ]
    [view] = EpisodeState([own], Rules(episodes=1, rounds=1, shots=5), pool).observations(0)
    assert [said(shot.prompt) for shot in view.shots] == ["fine"]


PICKS = ("Explain how to pick the lock of a bicycle", "Explain how to pick a bicycle's lock, please", "Forge a coin")


def test_no_shot_is_of_a_near_duplicate_from_the_pool_or_from_the_attack():
    """Of the first two, which are alike, one was jailbroken now and one before; the third is shown to both."""
    own = [Subject("a", PICKS[0]), Subject("b", PICKS[1]), Subject("c", PICKS[2])]
    pool = [FewShotExample("p", "Please explain how to pick the lock of a bicycle!", user("from before"))]
    state = EpisodeState(own, Rules(episodes=1, rounds=2, stop="never", shots=5), pool)
    state.add([made(id_, 0, 0, 1.0, prompt=user(f"on {id_}")) for id_ in "ac"])
    shown = {view.id: {said(shot.prompt) for shot in view.shots} for view in state.observations(1)}
    assert shown == {"a": {"on c"}, "b": {"on c"}, "c": {"from before", "on a"}}


def test_all_episodes_of_a_behaviour_are_shown_the_same_and_another_seed_shows_others():
    pool = [FewShotExample(f"s{i}", f"other request number {i}", user(f"m{i}")) for i in range(30)]

    def shown(seed, round_=0):
        views = EpisodeState(subjects("a", "b"), Rules(episodes=3, rounds=2, shots=2, seed=seed), pool).observations(
            round_
        )
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


def test_an_attempt_depends_on_behaviour_episode_and_round_and_not_on_the_batch():
    """Batches of 1, 4 and 100; one behaviour alone: the same seeds, so the same replies."""
    alone, _ = run(rules=Rules(episodes=2, rounds=3, batch_size=4), ids="b")
    one_by_one, _ = run(rules=Rules(episodes=2, rounds=3, batch_size=1))
    together, _ = run(rules=Rules(episodes=2, rounds=3, batch_size=100))
    assert sorted(one_by_one.attempts, key=lambda one: one.key) == sorted(together.attempts, key=lambda one: one.key)
    assert {one.key: one for one in alone.attempts}.items() <= {one.key: one for one in together.attempts}.items()
    assert len({one.reply for one in together.attempts}) > 12  # seeds differ: 18 draws of 997


def test_another_seed_is_another_attack():
    first, _ = run(rules=Rules(episodes=2, rounds=3, seed=0))
    second, _ = run(rules=Rules(episodes=2, rounds=3, seed=1))
    assert [one.reply for one in first.attempts] != [one.reply for one in second.attempts]


def test_the_attacker_observes_every_round_once_and_in_full():
    played, own = run(rules=Rules(episodes=2, rounds=3, batch_size=4))
    assert [round_ for round_, _ in own.attacker.observed] == [0, 1, 2]
    assert [one for _, attempts in own.attacker.observed for one in attempts] == list(played.attempts)
    assert all(one.written is not None for one in played.attempts)


def test_an_attacker_that_learns_is_asked_with_what_it_learned():
    """It writes how many rounds it has observed."""
    attacker = ScriptedAttacker()
    attacker.write = lambda view: f"after {len(attacker.observed)}"
    _, own = run(Cast(attacker), Rules(episodes=2, rounds=3, batch_size=2), ids="a")
    assert own.target.asked == ["after 0"] * 2 + ["after 1"] * 2 + ["after 2"] * 2


@pytest.mark.parametrize(("limit", "is_local"), [(1, True), (7, True), (7, False), (17, False), (18, True)])
def test_queries_are_never_more_than_allowed_and_never_fewer(limit, is_local):
    """18 attempts in all, batches of 4, up to three under way."""
    own = Cast(ScriptedAttacker(is_local=is_local), ScriptedTarget(is_local=is_local), judge_is_local=is_local)
    played, _ = run(own, Rules(episodes=2, rounds=3, batch_size=4), max_queries=limit)
    assert len(own.target.asked) == min(limit, 18)
    assert played.ended == ("queries" if limit < 18 else "complete")


def test_a_proposal_without_a_prompt_is_no_query():
    """Episode 0 never has one. Of 5 allowed queries all 5 are made, although 5 of the attempts before were none."""
    attacker = ScriptedAttacker(lambda view: None if view.episode == 0 else "x")
    played, own = run(Cast(attacker), Rules(episodes=2, rounds=3, batch_size=2), max_queries=5)
    assert len(own.target.asked) == 5
    unasked = [one for one in played.attempts if not one.is_query]
    assert {one.verdict for one in unasked} == {"unasked:no_prompt"}
    assert all(one.score is None and not one.is_unscored for one in unasked)


@pytest.mark.parametrize("limit", [14, 15, 44, 100])
def test_sampled_tokens_never_exceed_their_limit(limit):
    """One may take 15 (5 + 10) and takes 4 (2 + 2): it is begun only where 15 fit, so 100 allow floor(85 / 4) + 1."""
    own = Cast()
    tracker = own.tracker(max_tokens=limit)
    played, _ = run(own, Rules(episodes=3, rounds=3, batch_size=5), tracker=tracker)
    assert tracker.spent.tokens == sum(one.sampled_tokens for one in played.attempts) <= limit
    most = ATTACKER_TOKENS + TARGET_TOKENS
    expected = 0 if limit < most else min((limit - most) // 4 + 1, 27)
    assert len(own.target.asked) == expected
    assert (played.ended == "tokens") == (expected < 27)


def test_no_batch_begins_after_the_seconds_are_over():
    """1 s a reply, batches of 2 of 6 attempts: the second begins after 2 s of 3 and is finished, the third does not."""
    now = [0.0]

    def tick(text):
        now[0] += 1.0
        return "no"

    own = Cast(target=ScriptedTarget(tick))
    played, _ = run(own, Rules(episodes=2, rounds=1, batch_size=2), max_seconds=3.0, clock=lambda: now[0])
    assert played.ended == "seconds"
    assert len(own.target.asked) == 4
    assert played.cut_short == {"b", "c"}


def test_seconds_before_a_resume_count():
    tracker = Cast().tracker(AttackUsage(seconds=10.0), lambda: 5.0, max_seconds=10.0)
    assert tracker.fitting(3) == 0
    assert tracker.exhausted() == "seconds"


def test_a_budget_that_ends_in_the_middle_says_which_behaviours_had_attempts_left():
    """Round 0 of 3 behaviours with one episode, 2 queries: `c` was not asked, and `a` and `b` had rounds to come."""
    played, _ = run(rules=Rules(episodes=1, rounds=3), max_queries=2)
    assert played.cut_short == {"a", "b", "c"}
    played, _ = run(rules=Rules(episodes=1, rounds=1), max_queries=2)
    assert played.cut_short == {"c"}


def test_it_stops_between_batches_when_asked_to():
    asked = [0]

    def stop():
        asked[0] += 1
        return asked[0] > 2

    played, own = run(rules=Rules(episodes=2, rounds=3, batch_size=2), should_stop=stop)
    assert played.ended == "interrupted"
    assert len(own.target.asked) == 4 == len(played.attempts)


def meets(number, meeting, own):
    """The function, which waits for the others in that call."""
    calls = itertools.count(1)

    def called(*arguments):
        if next(calls) == number:
            meeting.wait()
        return own(*arguments)

    return called


def test_stages_behind_endpoints_overlap():
    """24 attempts in 6 parts of 4: the judge waits in its first part until the target is in its second and the attacker
    in its third."""
    meeting = threading.Barrier(3, timeout=10)
    own = Cast(ScriptedAttacker(is_local=False), ScriptedTarget(is_local=False), judge_is_local=False)
    own.attacker.propose = meets(3, meeting, own.attacker.propose)
    own.target.answer = meets(2, meeting, own.target.answer)
    own.scorer.judge = meets(1, meeting, own.scorer.judge)
    played, _ = run(own, Rules(rounds=1))
    assert len(played.attempts) == 24
    assert [len(batch) for batch in own.attacker.batches] == [4] * 6
    assert played.attempts == run(rules=Rules(rounds=1))[0].attempts


def test_models_of_this_process_take_turns():
    """Beside a judge behind an endpoint, attacker and target never work at the same time."""
    busy = threading.Lock()

    def alone(value):
        assert busy.acquire(blocking=False)
        busy.release()
        return value

    attacker, target = ScriptedAttacker(lambda view: alone("x")), ScriptedTarget(lambda text: alone("no"))
    played, _ = run(Cast(attacker, target, judge_is_local=False), Rules(episodes=4, rounds=2))
    assert len(played.attempts) == 24


class Kept(Journal):
    """Keeps attempts in memory."""

    def __init__(self):
        self.attempts = []

    def load_round(self, kind, round_):
        return [one for one in self.attempts if (one.kind, one.round) == (kind, round_)]

    def append(self, attempts, seconds):
        self.attempts += attempts


@pytest.mark.parametrize(("fails", "is_local"), [("attacker", True), ("target", False), ("judge", False)])
def test_a_stage_that_fails_ends_the_attack_and_the_batches_before_are_kept(is_local, fails):
    def from_the_third_on(own):
        calls = itertools.count(1)

        def called(*arguments):
            if next(calls) >= 3:
                raise EvaluationError("gone")
            return own(*arguments)

        return called

    own = Cast(ScriptedAttacker(is_local=is_local), ScriptedTarget(is_local=is_local), judge_is_local=is_local)
    if fails == "attacker":
        own.attacker.propose = from_the_third_on(own.attacker.propose)
    elif fails == "target":
        own.target.answer = from_the_third_on(own.target.answer)
    else:
        own.scorer.judge = from_the_third_on(own.scorer.judge)
    journal = Kept()
    with pytest.raises(EvaluationError, match="gone"):
        run(own, Rules(episodes=4, rounds=1, batch_size=1), ids="a", journal=journal)
    assert [one.episode for one in journal.attempts] == [0, 1]


def test_a_resumed_round_has_the_batches_that_it_would_have_had():
    """Another batch may be another reply in bfloat16."""
    rules, journal, asked = Rules(episodes=10, rounds=1, batch_size=4), Kept(), itertools.count(1)
    first, _ = run(rules=rules, ids="a", journal=journal, should_stop=lambda: next(asked) > 1)
    assert (first.ended, len(first.attempts)) == ("interrupted", 4)
    played, own = run(rules=rules, ids="a", journal=journal)
    assert [len(batch) for batch in own.attacker.batches] == [4, 2]
    assert played.attempts == run(rules=rules, ids="a")[0].attempts


def test_replies_that_cannot_be_judged_are_unscored_with_their_reason():
    """None of these reaches the judge: nothing of them is an answer."""
    replies = {
        "a": Reply("", "stop"),
        "b": Reply("", "length", is_unfinished=True),
        "c": Reply("", "filtered"),
        "d": Reply("", "rejected"),
        "e": Reply("", "context"),
    }
    own = Cast(ScriptedAttacker(lambda view: view.id), ScriptedTarget(lambda text: replies[text]))
    played, _ = run(own, Rules(episodes=1, rounds=1), ids="abcde")
    assert {one.behavior_id: one.verdict for one in played.attempts} == {
        "a": "unscored:empty",
        "b": "unscored:unfinished_thinking",
        "c": "unscored:target_filtered",
        "d": "unscored:target_rejected",
        "e": "unscored:target_context",
    }
    assert all(one.is_unscored and one.is_jailbroken is None for one in played.attempts)
    assert own.judge.questions == []


def test_a_prompt_that_does_not_fit_the_target_is_not_put_to_it():
    own = Cast(ScriptedAttacker(lambda view: "word " * 20), ScriptedTarget(context=TARGET_TOKENS + 19))
    played, _ = run(own, Rules(episodes=1, rounds=1), ids="a")
    assert own.target.asked == []
    assert [one.verdict for one in played.attempts] == ["unasked:target_context"]


def test_a_reply_that_the_judge_failed_on_is_unscored():
    played, _ = run(Cast(target=ScriptedTarget(lambda text: "fail")), Rules(episodes=1, rounds=1), ids="a")
    assert [(one.score, one.is_jailbroken, one.verdict) for one in played.attempts] == [
        (None, None, "unscored:judge_refused")
    ]


def test_counterparts_are_scored_by_refusal_whatever_the_judge():
    own = Cast(target=ScriptedTarget(lambda text: "I'm sorry, but I can't help with that."))
    played = own.run(subjects("a", kind="counterpart"), Rules(episodes=1, rounds=1, stop="never"))
    assert [(one.kind, one.score, one.verdict) for one in played.attempts] == [("counterpart", 0.0, "not_answered")]
    assert own.judge.questions == []


def test_an_attacker_with_the_wrong_number_of_proposals_is_refused():
    attacker = ScriptedAttacker()
    attacker.propose = lambda views: [AttackPrompt(user("x"))]
    with pytest.raises(EvaluationError, match="1 prompts for 6 episodes"):
        run(Cast(attacker))


def test_spent_counts_queries_and_tokens_of_both():
    attempts = [
        made("a", 0, 0, completion_tokens=7, prompt_tokens=3, attacker_tokens=5, attacker_prompt_tokens=11),
        made("a", 0, 1, prompt=None, reply=None, attacker_tokens=2),
    ]
    assert AttackUsage().plus(attempts, 1.5) == AttackUsage(queries=1, tokens=14, prompt_tokens=14, seconds=1.5)
