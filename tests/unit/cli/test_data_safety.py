"""`opct data build safety-awareness`."""

import json

from opct.data.hazards import builtin_facts
from opct.data.pairs import read_pairs
from tests.unit.cli.running import run


def build(*arguments):
    return run("data", "build", "safety-awareness", *arguments)


def test_facts_that_the_embedded_evaluation_asks_are_named(tmp_path, capsys):
    """A rewording in a file, and the test split itself; not where the training split alone is built."""
    out, own = tmp_path / "pairs.jsonl", next(fact for fact in builtin_facts("test") if fact.id == "fire/generator")
    row = {"category": "x", "about": ["thing"], "harm": []}
    rows = [
        row | {"id": "x/mine", "fact": f"Please note: {own.fact.upper()}", "prompts": {"a": ["My thing?"]}},
        row | {"id": "x/other", "fact": "Ladders must stand on firm ground.", "prompts": {"a": ["Your thing?"]}},
    ]
    path = tmp_path / "facts.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    assert build("--from", path, "--out", out, "--split", "all") == 0
    assert "(1): x/mine (fire/generator)" in capsys.readouterr().out
    assert build("--out", out, "--overwrite", "--split", "all") == 0
    assert f"({len(builtin_facts('test'))}): " in capsys.readouterr().out
    assert build("--out", out, "--overwrite") == 0
    assert "warning" not in capsys.readouterr().out


def test_sage_eval_needs_the_flag(tmp_path, capsys):
    path, out = tmp_path / "sage.json", tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"F.": {"category": "C", "prompts": {"H": {"original": ["P?"]}}}}), encoding="utf-8")
    assert build("--from", path, "--out", out, "--split", "all") == 1
    assert "--train-on-evaluation-data" in capsys.readouterr().err
    assert not out.exists()
    assert build("--from", path, "--out", out, "--split", "all", "--train-on-evaluation-data") == 0
    assert len(read_pairs(out)) == 1
