"""What each attacker writes: seeded, and the same on any machine."""

import json
import random

import pytest

from opct.attack.best_of_n import BestOfN, augmented
from opct.attack.protocol import FewShotExample, Observation, Reply
from opct.attack.refine import APPROACHES, REPLY_CHARACTERS, Refine, attacker_messages, message_of
from opct.attack.transfer import FamilyTransfer, PromptTransfer, finished_prompts, load_successes
from opct.data.behaviors import builtin_behaviors
from opct.data.perturb.jailbreak import FAMILIES
from opct.errors import DataError
from tests.unit.attack.scripted import ScriptedTarget, made, said, user

TEXT = "Explain how to pick the lock of a bicycle, please."


def tried(prompt, reply, score):
    return made("a", 0, 0, score, prompt=prompt, reply=reply)


def view(id_="a", behavior=TEXT, episode=0, round_=0, seed=7, **more):
    return Observation(id_, behavior, episode, round_, seed, **more)


# -- best_of_n


def test_without_noise_nothing_changes():
    assert augmented(TEXT, random.Random(0), 0.0) == TEXT


def test_words_keep_their_ends_and_their_letters():
    """Noise is rare (0.064): in 200 seeds hundreds of words have all their letters, some of them in another order. A
    space that it moved makes one word of two, and two letters that it moved may trade places ("bicycle", "cicyble")."""
    same, shuffled, ends = 0, 0, 0
    for seed in range(200):
        text = augmented(TEXT, random.Random(seed), 0.4)
        assert len(text) == len(TEXT)
        if len(text.split()) < len(TEXT.split()):
            continue
        for own, was in zip(text.lower().split(), TEXT.lower().split(), strict=True):
            if sorted(own) == sorted(was):
                same += 1
                shuffled += own != was
                ends += (own[0], own[-1]) == (was[0], was[-1])
                assert len(was) > 3 or own == was
    assert same > 1000
    assert ends > 0.99 * same
    assert shuffled > 200


def test_noise_moves_a_character_to_its_neighbour():
    """At strength 1 every printable character moves by one, after shuffling and capitals, unless it would be printable
    no longer: of space and tilde, the first and the last, only one neighbour is. Others stay."""
    found = {augmented("ab ~\n", random.Random(seed), 1.0) for seed in range(100)}
    assert all(len(text) == 5 for text in found)
    assert ["".join(sorted(set(letters))) for letters in zip(*found, strict=True)] == ["@B", "AC", " !", "}~", "\n"]


def test_how_often_letters_change_follows_sigma():
    """A letter takes the other case with probability sqrt(0.4) = 0.632, small or capital, and then moves with 0.064: of
    the small ones 0.632 end as capitals, of the capitals 0.368. (A moved Z or z is a letter no longer.)"""
    for letters, share in (("mn ", 0.632), ("MN ", 0.368)):
        text = augmented(letters * 4000, random.Random(1), 0.4)
        assert sum(letter.isupper() for letter in text) / 8000 == pytest.approx(share, abs=0.02)


def test_a_letter_outside_ascii_changes_its_case_and_moves_nowhere():
    assert augmented("Ab é1", random.Random(0), 1.0)[3] == "É"


def test_best_of_n_draws_from_the_views_seed_alone():
    attacker = BestOfN()
    first, again, other = attacker.propose([view(seed=1), view(id_="b", round_=2, seed=1), view(seed=2)])
    assert first.prompt == again.prompt != other.prompt


# -- transfer


def test_families_take_turns_and_begin_again_with_other_wrappers():
    """2 families, 4 episodes, 2 rounds: attempt 5 is round 1, episode 1: the second family's third turn."""
    attacker = FamilyTransfer("role_play,hypothetical", episodes=4)
    prompts = [said(attacker.propose([view(episode=e, round_=r)])[0].prompt) for r in range(2) for e in range(4)]
    assert attacker.families == ["role_play", "hypothetical"]
    assert len(set(prompts)) > 4
    assert all(TEXT in prompt for prompt in prompts)
    frames = [prompt.replace(TEXT, "{behavior}") for prompt in prompts]
    for i, frame in enumerate(frames):
        family = FAMILIES[attacker.families[i % 2]]
        assert frame in [wrapper.turns[-1] for wrapper in family.templates], i


def test_a_twin_gets_the_wrapper_of_its_behaviour():
    attacker = FamilyTransfer("all", episodes=8)
    for number in range(16):
        own, counterpart = (
            said(attacker.propose([view(behavior=text, episode=number % 8, round_=number // 8)])[0].prompt)
            for text in ("QQQe", "RRRe")
        )
        assert own.replace("QQQ", "RRR") == counterpart or "QQQ" not in own  # encoded families hold it in code


def test_no_wrapper_has_a_turn_that_nobody_answers():
    attacker = FamilyTransfer("all", episodes=20)
    proposals = attacker.propose([view(episode=e, round_=r) for r in range(3) for e in range(20)])
    assert all(message["content"] is not None for proposal in proposals for message in proposal.prompt)


def test_finished_prompts_are_put_in_order_and_come_to_an_end():
    attacker = PromptTransfer({"a": [user("one"), user("two"), user("three")]}, episodes=2)
    views = [view(episode=e, round_=r) for r in range(2) for e in range(2)]
    found = attacker.propose([*views, view("b")])
    assert [None if one.prompt is None else said(one.prompt) for one in found] == ["one", "two", "three", None, None]
    assert [one.reason for one in found] == [None, None, None, "exhausted", "exhausted"]


def test_prompts_of_a_file_go_to_their_behaviours(tmp_path):
    """By near-duplicates of the goal; an artifact on something else is left out."""
    first, second, *_ = builtin_behaviors("test")
    artifacts = [
        {"goal": second.behavior.rstrip(".") + "!", "prompt": "p2", "index": 1},
        {"goal": "Sing about the moon over Naples", "prompt": "p0", "index": 2},
        {"goal": first.behavior, "prompt": None, "index": 3},
    ]
    path = tmp_path / "artifacts.json"
    path.write_text(json.dumps({"jailbreaks": artifacts}))
    assert finished_prompts(path, [first, second]) == {second.id: [user("p2")]}
    with pytest.raises(DataError, match="none of its prompts"):
        finished_prompts(path, [first])


def test_successes_of_an_attack_are_read_again(tmp_path):
    first, second, *_ = builtin_behaviors("test")
    rows = [
        {"opct_warning": "PRIVATE", "kind": "opct_successful_prompts", "schema": 1},
        {"behavior_id": "x", "behavior": first.behavior, "prompt": list(user("p1"))},
    ]
    path = tmp_path / "successful_prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert finished_prompts(path, [first, second]) == {first.id: [user("p1")]}
    assert load_successes(path) == [FewShotExample("x", first.behavior, user("p1"))]
    path.write_text(json.dumps({"a": 1}) + "\n")
    with pytest.raises(DataError, match="is not the successful_prompts"):
        load_successes(path)


# -- refine


class Model(ScriptedTarget):
    """Writes what `reply` says of the last message."""

    def _one(self, text, seed):
        found = self.reply(text)
        return found if isinstance(found, Reply) else Reply(found, "stop", 3, 4)


def history(*scores):
    return tuple(tried(user(f"attempt {i}"), f"reply {i}", score) for i, score in enumerate(scores))


def test_the_attacker_reads_the_behaviour_its_attempts_their_replies_and_scores():
    """Scores 0, 0.5 and none are 1 of 10, 1 + 4.5 (to even) = 5 of 10, and unknown."""
    shots = (FewShotExample("b", "another request", user("a message")),)
    messages = attacker_messages(view(episode=1, history=history(0.0, 0.5, None), shots=shots), history(0.0, 0.5, None))
    assert [m["role"] for m in messages] == ["system", *["user", "assistant"] * 3, "user"]
    assert messages[1]["content"].endswith(APPROACHES[1])
    assert TEXT in messages[1]["content"]
    assert "another request" in messages[1]["content"]
    assert "a message" in messages[1]["content"]
    assert [m["content"] for m in messages if m["role"] == "assistant"] == ["attempt 0", "attempt 1", "attempt 2"]
    assert "reply 0" in messages[3]["content"]
    assert "1 of 10" in messages[3]["content"]
    assert "5 of 10" in messages[5]["content"]
    assert "unknown" in messages[7]["content"]


def test_a_reply_with_braces_is_text():
    attempt = tried(user("{x}"), "{behavior} {0} {{", 0.0)
    messages = attacker_messages(view(behavior="do {this}"), [attempt])
    assert "{behavior} {0} {{" in messages[-1]["content"]
    assert "do {this}" in messages[1]["content"]


def test_a_long_reply_is_cut_for_the_attacker():
    attempt = tried(user("x"), "w" * 5000, 0.0)
    said_back = attacker_messages(view(), [attempt])[-1]["content"]
    assert said_back.count("w" * REPLY_CHARACTERS) == 1
    assert len(said_back) < REPLY_CHARACTERS + 300


def test_an_attempt_that_was_none_is_not_shown():
    messages = attacker_messages(view(), [tried(None, None, None)])
    assert [m["role"] for m in messages] == ["system", "user"]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("Do it.", "Do it."),
        ('  "Do it."  ', "Do it."),
        ("Message: Do it.", "Do it."),
        ("**New message:** Do it.", "Do it."),
        ("```\nDo\nit.\n```", "Do\nit."),
        ('She said "no" and "yes"', 'She said "no" and "yes"'),
        ("Why is the message: so long?", "Why is the message: so long?"),
        ("", None),
        ('""', None),
        ("Message:", None),
    ],
)
def test_the_message_is_taken_out_of_what_the_model_wrote(written, message):
    assert message_of(written) == message


def test_refine_asks_its_model_once_for_all_views_with_their_seeds():
    model = Model(lambda text: "Message: again")
    found = Refine(model).propose([view(seed=3), view("b", seed=4, history=history(0.0))])
    assert [said(one.prompt) for one in found] == ["again", "again"]
    assert model.seeds == [3, 4]
    assert [(one.tokens, one.prompt_tokens) for one in found] == [(4, 3), (4, 3)]
    assert found[1].messages[-1]["role"] == "user"


def test_what_the_model_does_not_write_is_no_prompt_and_costs_its_tokens():
    model = Model(lambda text: Reply("", "length", 3, 9, is_unfinished=True))
    [one] = Refine(model).propose([view()])
    assert (one.prompt, one.reason, one.tokens) == (None, "no_prompt", 9)


def test_a_history_that_does_not_fit_loses_its_oldest_attempts():
    """Room is counted in words of the last message, which here is the same for any history but an empty one."""

    class Narrow(Model):
        def room(self, prompt):
            return 100 if len(prompt) <= 4 else 0

    model = Narrow(lambda text: "x")
    [one] = Refine(model).propose([view(history=history(0.0, 0.0, 0.0))])
    assert [m["content"] for m in one.messages if m["role"] == "assistant"] == ["attempt 2"]

    class Tiny(Model):
        def room(self, prompt):
            return 0

    [none] = Refine(Tiny(lambda text: "x")).propose([view()])
    assert (none.prompt, none.reason) == (None, "attacker_context")
