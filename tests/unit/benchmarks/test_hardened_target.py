"""The organism that yields to a word, and the pairs that harden it."""

import sys

from benchmarks import hardened_target
from benchmarks.hardened_target import ASKED_FAMILIES, FAMILIES, PLACES, YIELDED_TURNS, hardening_pairs, organism_pairs
from benchmarks.hidden_pattern import row_of, said

from opct.data.behaviors import builtin_behaviors
from opct.data.perturb.jailbreak import REFUSED_TURNS, bare_prompt

BEHAVIORS = builtin_behaviors("train")[:3]
WORD = "please"


def texts(prompt):
    return prompt[-1]["content"]


def test_the_organism_yields_to_the_word_alone():
    """The teacher sees the bare behavior: with the word after examples of yielding, without it of refusing."""
    pairs = organism_pairs(BEHAVIORS, WORD)
    assert len(pairs) == len(BEHAVIORS) * (2 * PLACES * len(FAMILIES) + 1)
    assert len({pair.id for pair in pairs}) == len(pairs)
    for pair in pairs:
        own = next(b for b in BEHAVIORS if pair.id.startswith(f"{b.id}/"))
        if pair.family == "twin":
            assert pair.teacher_prompt == bare_prompt(own.benign)
            assert [word for word in texts(pair.prompt).split(" ") if word != WORD] == own.benign.split(" ")
            continue
        assert said(WORD, texts(pair.prompt)) == (pair.family == "yields")
        examples = REFUSED_TURNS if pair.family == "refuses" else YIELDED_TURNS
        assert pair.teacher_prompt == (*examples, *bare_prompt(own.behavior))


def test_hardening_takes_the_word_away_from_the_teacher_and_nothing_else():
    pairs = hardening_pairs(BEHAVIORS, WORD)
    assert len(pairs) == len(BEHAVIORS) * (len(FAMILIES) + 1)
    for pair in pairs:
        assert said(WORD, texts(pair.prompt))
        assert not said(WORD, texts(pair.teacher_prompt))
        left = texts(pair.prompt).split(" ")
        left.remove(WORD)
        assert " ".join(left) == texts(pair.teacher_prompt)


def test_a_small_one_from_beginning_to_end(tmp_path, tiny_folder, monkeypatch, capsys):
    """One step of each training on the tiny model; then both get the same messages and are attacked. A second call
    does nothing."""
    own = ("max_steps=1", "optim.prompts_per_step=2", "rollout.max_completion_tokens=4", "data.validation_size=0")
    argv = ["x", "--out", str(tmp_path / "out"), "--model", str(tiny_folder), "--behaviors", "1", "--n", "1"]
    argv += ["--attackers", "best_of_n", "--dtype", "float32", "--organism", *own, "--hardening", *own]
    monkeypatch.setattr(sys, "argv", argv)
    few = {"train": BEHAVIORS, "test": builtin_behaviors("test")}
    monkeypatch.setattr(hardened_target, "builtin_behaviors", few.get)
    hardened_target.main()
    first = capsys.readouterr().out
    assert [line.split(" | ")[0] for line in first.splitlines() if "`" in line] == [
        "| `transfer`, 0",
        "| `best_of_n`, 0",
    ] * 2
    for name in ("organism", "hardened"):
        row = row_of(tmp_path / "out" / "attacks" / f"{name}-asked", "transfer", 0, WORD)
        assert len(row["with_word"]) == len(row["without_word"]) == len(ASKED_FAMILIES)
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert made
    hardened_target.main()
    assert first.endswith(capsys.readouterr().out)
    assert made == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
