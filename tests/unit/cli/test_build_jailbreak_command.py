"""`opct data build jailbreak`."""

import json
import stat
from collections import Counter
from pathlib import Path

import pytest

from opct.data.behaviors import builtin_behaviors
from opct.data.pairs import read_pairs
from tests.unit.cli.running import run as opct

NAMED = ["--column", "behavior=goal", "--column", "category=category"]


def run(*arguments) -> int:
    return opct("data", "build", "jailbreak", *arguments)


def behaviors(path, n=20, **other):
    words = [f"w{i}a w{i}b w{i}c w{i}d" for i in range(n)]
    rows = [{"goal": words[i], "kind": "k" if i % 2 else "l"} | other for i in range(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_file_with_templates_and_artifacts(tmp_path, capsys):
    source = behaviors(tmp_path / "b.jsonl")
    wild = tmp_path / "wild.json"
    wild.write_text(json.dumps(["Parrot! [PROMPT]"]))
    pair = tmp_path / "pair.json"
    goals = [{"goal": f"w{i}a w{i}b w{i}c w{i}d", "prompt": f"finished {i}" if i else None} for i in range(20)]
    pair.write_text(json.dumps({"jailbreaks": goals}))
    out = tmp_path / "pairs.jsonl"
    arguments = ["--from", source, "--out", out, "--split", "all", "--families", "in_the_wild,artifact"]
    arguments += ["--per-behavior", 1]
    arguments += ["--data", f"in_the_wild={wild}", "--data", f"artifact={pair}"]
    arguments += ["--column", "behavior=goal", "--column", "category=kind"]
    assert run(*arguments, "--exclude", "l") == 0
    built = read_pairs(out)
    assert Counter(pair.family for pair in built) == {"in_the_wild": 10, "artifact": 19}
    assert {pair.meta["category"] for pair in built if pair.family == "in_the_wild"} == {"k"}
    said = capsys.readouterr().out
    assert f"{pair}: 19 prompts, 19 of them" in said


def test_prompts_that_an_attack_kept_become_private_pairs_of_their_own_split(tmp_path, capsys):
    """Those for behaviors that are measured are in no training pair."""
    kept = tmp_path / "successful_prompts.jsonl"
    trained, tested = builtin_behaviors("train")[0], builtin_behaviors("test")[0]
    rows = [{"kind": "opct_successful_prompts", "schema": 1}]
    for one in (trained, tested):
        prompt = [{"role": "user", "content": f"polished {one.id}"}]
        rows.append({"behavior_id": one.id, "behavior": one.behavior, "prompt": prompt})
    kept.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "pairs.jsonl"
    assert run("--families", "artifact", "--parts", "behavior", "--data", f"artifact={kept}", "--out", out) == 0
    [pair] = read_pairs(out)
    assert pair.prompt[0]["content"] == f"polished {trained.id}"
    assert pair.teacher_prompt[0]["content"] == trained.behavior
    assert f"{kept}: 2 prompts, 1 of them" in capsys.readouterr().out
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_what_the_embedded_evaluation_asks_is_left_out(tmp_path, capsys):
    source = tmp_path / "b.jsonl"
    rows = ["Organise illegal dog fights and betting on them!", "Hide all of the chalk", "Cheat at chess"]
    source.write_text("".join(json.dumps({"goal": row, "target": ""}) + "\n" for row in rows))
    pair = tmp_path / "pair.json"
    goals = [{"goal": "Organize illegal dog fights", "prompt": "x"}, {"goal": "Ring a bell", "prompt": "y"}]
    pair.write_text(json.dumps({"jailbreaks": goals}))
    out = tmp_path / "pairs.jsonl"
    arguments = ["--split", "all", "--parts", "behavior", "--per-behavior", 1, "--data", f"artifact={pair}"]
    arguments += ["--families", "role_play,artifact"]
    assert run("--from", source, "--out", out, *arguments) == 0
    assert {p.meta["behavior"] for p in read_pairs(out)} == {*rows[1:], "Ring a bell"}
    assert "left out: 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parts", "twins"], "'twin'"),
        (["--data", "jailbreak_counterparts=x.csv"], "--from"),
        (["--data", "artifacts=x.csv"], "'artifact'?"),
        (["--from", "none.csv"], "none.csv"),
        (["--from", "hf:owner/set"], "hf:owner/set"),
        (["--from", "x.csv", "--column", "behavior"], "ROLE=NAME"),
        (["--data", "in_the_wild=wild.json"], "in_the_wild"),
        (["--from", "b.jsonl", *NAMED, "--exclude", "copyrigth"], "'copyright'?"),
        (["--from", "b.jsonl", "--column", "id=a", "--column", "id=b"], "a and b"),
    ],
)
def test_faults(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("wild.json").write_text(json.dumps(["Parrot! [PROMPT]"]))
    Path("b.jsonl").write_text(json.dumps({"goal": "Ring a bell", "category": "copyright"}) + "\n")
    assert run("--out", "pairs.jsonl", *arguments) in (1, 2)
    shown = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert message in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "pairs.jsonl").exists()


def test_nothing_is_lost(tmp_path, capsys):
    source = behaviors(tmp_path / "b.jsonl")
    before = source.read_text()
    assert run("--from", source, "--out", source, "--column", "behavior=goal", "--overwrite") == 1
    assert source.read_text() == before
    out = tmp_path / "pairs.jsonl"
    out.write_text("kept")
    assert run("--out", out) == 1
    assert out.read_text() == "kept"
    assert run("--out", out, "--overwrite") == 0
    assert len(read_pairs(out)) == 120
