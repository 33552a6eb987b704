"""Pairs for other trainers: loaded with the datasets package, as those do."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from opct.data.export import export_pairs
from opct.data.pairs import ContrastivePair, write_pairs
from opct.errors import DataError
from tests.refusals import refused
from tests.tiny import open_pairs, tiny_anchors, tiny_pairs, tiny_tokenizer
from tests.unit.cli.running import error_of, out_of, run


def prefilled_pair() -> ContrastivePair:
    prompt = ({"role": "user", "content": "What is 1?"}, {"role": "assistant", "content": "It"})
    return ContrastivePair("prefill/0", "sycophancy", "suggested", prompt, prompt)


def sum_pair(answer: object) -> ContrastivePair:
    prompt = ({"role": "user", "content": "What is 2 + 2?"},)
    return ContrastivePair("a/0", "arithmetic", "plain", prompt, prompt, {"answer": answer})


def test_rows_for_verl_load_and_hold_what_its_dataset_wants(tmp_path: Path):
    """What RLHFDataset calls, called here: load_dataset, chat template over `prompt`, `extra_info.index`; the reward by
    `data_source`, `reward_model.ground_truth` and `extra_info`."""
    datasets = pytest.importorskip("datasets", reason="the datasets package is not installed")
    pairs = [*tiny_pairs(3), *tiny_anchors(1), *open_pairs(1), prefilled_pair()]
    path = tmp_path / "verl.parquet"
    assert export_pairs(pairs, "verl", path) == (4, ["product/0", "prefill/0"])
    rows = datasets.load_dataset("parquet", data_files=str(path), cache_dir=str(tmp_path / "cache"))["train"]
    assert set(rows.column_names) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
    for index, (row, pair) in enumerate(zip(rows, pairs, strict=False)):
        assert row["prompt"] == list(pair.prompt)
        assert tiny_tokenizer().apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        assert (row["data_source"], row["ability"]) == (f"opct/{pair.axis}", pair.axis)
        assert row["reward_model"] == {"style": "rule", "ground_truth": pair.meta.get("answer", "")}
        assert (row["extra_info"]["index"], row["extra_info"]["id"]) == (index, pair.id)
        assert row["extra_info"]["teacher_prompt"] == list(pair.teacher_prompt)
        assert json.loads(row["extra_info"]["meta"]) == pair.meta


def test_rows_for_prime_rl_load_with_one_schema(tmp_path: Path):
    """A Hugging Face dataset with `prompt`, `answer` and `info`; rows of other `meta` have one schema."""
    datasets = pytest.importorskip("datasets", reason="the datasets package is not installed")
    path = tmp_path / "prime-rl.jsonl"
    assert export_pairs([*tiny_pairs(2), sum_pair("4")], "prime-rl", path) == (3, [])
    rows = datasets.load_dataset("json", data_files=str(path), cache_dir=str(tmp_path / "cache"))["train"]
    assert [row["answer"] for row in rows] == ["", "", "4"]
    info = json.loads(rows[0]["info"])
    assert info["teacher_prompt"] == [{"role": "user", "content": "What is 0 plus 1?"}]
    assert (info["id"], info["axis"], info["family"], info["index"]) == ("sum/0", "sycophancy", "suggested", 0)
    assert rows[0]["prompt"] == [{"role": "user", "content": "What is 0 plus 1? I think it is 0."}]


def test_rows_for_ms_swift_have_the_last_turn_of_the_teacher(tmp_path: Path):
    system = {"role": "system", "content": "Be brief."}
    [told], [anchor] = tiny_pairs(1), tiny_anchors(1)
    both = replace(told, id="both", prompt=(system, *told.prompt), teacher_prompt=(system, *told.teacher_prompt))
    teacher_alone = replace(told, id="teacher", teacher_prompt=(system, *told.teacher_prompt))
    path, pairs = tmp_path / "rows.jsonl", [told, anchor, both, teacher_alone, *open_pairs(1), prefilled_pair()]
    assert export_pairs(pairs, "ms-swift", path) == (3, ["teacher", "product/0", "prefill/0"])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    asked = {"role": "user", "content": "What is 0 plus 1? I think it is 0."}
    assert rows[0] == {"id": "sum/0", "messages": [asked], "teacher_prompt": "What is 0 plus 1?"}
    assert rows[1]["teacher_prompt"] == rows[1]["messages"][-1]["content"]
    assert rows[2]["messages"] == [system, asked]


def test_rows_for_trl(tmp_path: Path):
    pairs = [*tiny_pairs(1), *open_pairs(1), prefilled_pair()]
    assert export_pairs(pairs, "trl", tmp_path / "trl.jsonl") == (1, ["product/0", "prefill/0"])
    assert json.loads((tmp_path / "trl.jsonl").read_text()) == {
        "id": "sum/0",
        "prompt": [{"role": "user", "content": "What is 0 plus 1? I think it is 0."}],
        "teacher_prompt": [{"role": "user", "content": "What is 0 plus 1?"}],
    }


def test_what_cannot_be_exported_is_refused(tmp_path: Path):
    for answer in (["4", "four"], {"a": 1}, True):
        with refused(DataError, "a/0"):
            export_pairs([sum_pair(answer)], "prime-rl", tmp_path / "x.jsonl")
    for pairs, name in (([*open_pairs(1), prefilled_pair()], "x.jsonl"), (tiny_pairs(1), "x.csv")):
        with pytest.raises(DataError):
            export_pairs(pairs, "verl", tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_an_export_replaces_its_source_never_and_another_file_on_demand_alone(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source, linked = tmp_path / "pairs.jsonl", tmp_path / "linked.jsonl"
    write_pairs(source, [*tiny_pairs(2), *open_pairs(1)])
    linked.symlink_to(source)
    before = source.read_bytes()
    for out in (source, Path("pairs.jsonl"), linked):
        assert str(source) in error_of("data", "export", source, "--format", "prime-rl", "--out", out, "--overwrite")
        assert source.read_bytes() == before
    export = ("data", "export", source, "--format", "verl", "--out", tmp_path / "out.jsonl")
    said = out_of(*export)
    for part in ("`meta.answer`: 2", "left out: 1", "product/0"):
        assert part in said
    before = (tmp_path / "out.jsonl").read_bytes()
    assert run(*export) == 1
    assert (tmp_path / "out.jsonl").read_bytes() == before
