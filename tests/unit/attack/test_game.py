"""The game: rounds, stops, budgets and resumes, with scripted targets."""

from opct.evals.attackers.config import BudgetConfig
from opct.evals.attackers.game import Budget, Rules
from opct.evals.attackers.play import known_samples
from tests.unit.attack.scripted import Scripted, play_numbered, rows_of, scores, subjects


def test_each_stop_ends_what_it_names(tmp_path):
    """3 episodes of 2 rounds. In the first the second episode of a breaks it by half, and the first one of c wholly; b
    is never broken."""

    def says(text):
        return {"a e1 r0": "half", "c e0 r0": "yes"}.get(text, "no")

    made = {}
    for stop in ("behavior", "episode", "perfect"):
        target = Scripted(says)
        played = play_numbered(tmp_path / stop, target, subjects("a", "b", "c"), Rules(3, 2, stop))
        made[stop] = {place: len(own) for place, own in scores(played.log).items()}
        assert len(target.asked) == sum(made[stop].values())
        assert played.ended == "complete"
        assert len(list((tmp_path / stop).iterdir())) == 1, "the logs of earlier rounds are removed"
    whole = {(id_, epoch): 2 for id_ in "abc" for epoch in (1, 2, 3)}
    assert made["behavior"] == whole | {(id_, epoch): 1 for id_ in "ac" for epoch in (1, 2, 3)}
    assert made["episode"] == whole | {("a", 2): 1, ("c", 1): 1}
    assert made["perfect"] == whole | {("c", 1): 1}


def test_successes_on_other_behaviors_are_shown_from_the_next_round_on(tmp_path):
    """a is broken in round 0, b in round 1; nobody sees a success of the same round, or on its behavior."""
    target = Scripted(lambda text: "yes" if text in ("a e0 r0", "b e1 r1") else "no")
    played = play_numbered(tmp_path / "a", target, subjects("a", "b", "c"), Rules(2, 3, "never", shots=2))
    shown = {(one.metadata["cluster"], one.epoch): one.store["shown"] for one in played.samples}
    assert shown["a", 1] == shown["a", 2] == [[], [], ["b"]]
    assert shown["b", 1] == [[], ["a"], ["a"]]
    assert [sorted(own) for own in shown["c", 1]] == [[], ["a"], ["a", "b"]]


def test_an_attack_that_a_budget_cut_goes_on_to_the_attempts_of_one_that_was_not(tmp_path):
    def says(text):
        return {"b e0 r1": "yes", "a e1 r0": "half"}.get(text, "no")

    own = subjects("a", "b", "c") + subjects("a", "b", kind="counterpart") + subjects("a", kind="bare")
    rules, targets = Rules(2, 2, "behavior"), [Scripted(says) for _ in range(3)]
    whole = play_numbered(tmp_path / "whole", targets[0], own, rules)
    cut = play_numbered(tmp_path / "cut", targets[1], own, rules, budget=Budget(BudgetConfig(max_queries=9)))
    assert (cut.ended, len(targets[1].asked)) == ("queries", 9)
    assert len(cut.samples) == len(whole.samples), "every episode is in the log, played or not"
    rest = play_numbered(tmp_path / "cut", targets[2], own, rules, known=known_samples([cut.log]))
    assert rest.ended == "complete"
    assert scores(rest.log) == scores(whole.log)
    assert sorted(targets[1].asked + targets[2].asked) == sorted(targets[0].asked)
    assert sorted(targets[1].seeds + targets[2].seeds) == sorted(targets[0].seeds)


def test_tokens_and_seconds_end_an_attack_before_they_are_exceeded(tmp_path):
    """Each attempt can take 3 tokens and takes 1; 6 tokens allow 2, then 1, and 1 more, until 2 are left."""
    own, rules, target = subjects("a"), Rules(20, 1, "never"), Scripted()
    tokens = play_numbered(tmp_path / "a", target, own, rules, budget=Budget(BudgetConfig(max_tokens=6), most_tokens=3))
    assert tokens.ended == "tokens"
    assert len(target.asked) == 4
    late = play_numbered(tmp_path / "b", Scripted(), own, rules, budget=Budget(BudgetConfig(max_seconds=1e-9)))
    assert (late.ended, sum(map(len, scores(late.log).values()))) == ("seconds", 0)


def test_a_cut_attack_leaves_what_had_attempts_left_undecided(tmp_path):
    """6 of 8 queries: of b an episode has had no second round."""
    budget = Budget(BudgetConfig(max_queries=7))
    cut = play_numbered(tmp_path / "a", Scripted(), subjects("a", "b"), Rules(2, 2, "never"), budget=budget)
    rate = rows_of(cut.log, cut.ended)["defense_success_rate"]
    assert (rate["value"], rate["n"], rate["unscored_reasons"]) == (1.0, 1, {"queries": 1})
