import json
import stat
from pathlib import Path

import pytest

from opct.cli.data import DIFFERS, pair_text
from opct.config.schema import ModelConfig
from opct.data.behaviors import builtin_behaviors
from opct.data.pairs import ContrastivePair, read_pairs, write_pairs
from opct.models.loading import load_renderer
from tests.rows import jsonl
from tests.unit.cli.running import error_of, out_of, run

USER = {"role": "user", "content": "I think Lyon. What is the capital of France?"}
CLEAN = {"role": "user", "content": "What is the capital of France?"}


@pytest.fixture
def pairs(tmp_path):
    gap = {"role": "assistant", "content": None}
    sampled = (CLEAN, gap, {"role": "user", "content": "Are you sure?"})
    path = tmp_path / "pairs.jsonl"
    write_pairs(
        path,
        [
            ContrastivePair("a", "sycophancy", "suggested_answer", (USER,), (CLEAN,)),
            ContrastivePair("b", "sycophancy", "are_you_sure", sampled, (CLEAN,)),
            ContrastivePair("c", "benign", "explain", (CLEAN,), (CLEAN,)),
        ],
    )
    return path


def test_check_counts_by_axis_and_family(pairs, capsys):
    assert run("data", "check", str(pairs)) == 0
    rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert ["benign", "explain", "1", "1", "0"] in rows
    assert ["sycophancy", "are_you_sure", "1", "0", "1"] in rows
    assert ["sycophancy", "suggested_answer", "1", "0", "0"] in rows


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        ("question,answer,wrong\na,x,y\nb,x,y\n", 0, "2 questions"),
        ("question,answer,wrong\na,x,\n", 1, "q.csv:2: "),
        ("prompt,A,B,target\na,x,y,B\n", 0, "1 questions"),
        ("prompt,teacher_prompt\na,x\n", 0, "1 pairs"),
        ("prompt,techer_prompt,answer,topic\na,x,y,z\n", 1, "'teacher_prompt'"),
    ],
)
def test_check_tells_questions_from_pairs(tmp_path, capsys, content, code, words):
    path = tmp_path / "q.csv"
    path.write_text(content)
    assert run("data", "check", path) == code
    assert words in "".join(capsys.readouterr())


def test_show_renders_a_pair_as_the_settings_say(pairs, tiny_folder, tmp_path):
    show = ("data", "show", pairs, "--model", tiny_folder)
    for choice, id_ in (((), "a"), (("--index", 1), "b"), (("--id", "c"), "c")):
        said = out_of(*show, *choice)
        assert said.startswith(f"{id_} ")
        assert f"<|im_start|>user\n{CLEAN['content']}<|im_end|>" in said
    assert "0 to 2" in error_of(*show, "--index=3")
    config = tmp_path / "mine.yaml"
    config.write_text("model: {chat_template_kwargs: {enable_thinking: false}}\n")
    assert "'enable_thinking'" in error_of("data", "show", pairs, config, "--model", tiny_folder)


def test_show_marks_where_the_prompts_differ(pairs, tiny_folder):
    renderer = load_renderer(ModelConfig(name_or_path=str(tiny_folder)))
    text = pair_text(read_pairs(pairs)[0], renderer)
    marked = "".join(text.plain[span.start : span.end] for span in text.spans if span.style == DIFFERS)
    assert marked == "I think Lyon. where the prompts differ"


def test_show_samples_what_training_would(pairs, tiny_folder, capsys):
    """With a sample of 3 tokens at most, which is cut and so masked."""
    settings = ("rollout.max_completion_tokens=3", "loss.mask_truncated=true")
    assert run("data", "show", str(pairs), *settings, "--sample", "--model", str(tiny_folder)) == 0
    assert "0 of 3 completion tokens" in capsys.readouterr().out


def test_text_of_a_file_cannot_reach_the_terminal_as_commands(tmp_path, tiny_folder):
    """Control characters and markup in family and prompt are printed as they are spelt."""
    hostile = "[/red]\x1b]0;owned\x07"
    path = tmp_path / "pairs.jsonl"
    prompt = ({"role": "user", "content": hostile},)
    write_pairs(path, [ContrastivePair(hostile, "sycophancy", hostile, prompt, prompt)])
    shown = out_of("data", "check", path) + out_of("data", "show", path, "--model", tiny_folder)
    assert "\x1b" not in shown
    assert "[/red]\\x1b]0;owned\\x07" in shown.replace("\n", "")


BUILD = ("data", "build", "jailbreak")


def test_what_is_near_an_embedded_behavior_that_is_measured_is_left_out(tmp_path, capsys):
    """Of validation and test, whatever split the file says."""
    near = [f"Please {builtin_behaviors(split)[0].behavior}" for split in ("validation", "test")]
    rows = [{"id": text, "behavior": text, "category": "c", "split": "train"} for text in ("Ring a bell", *near)]
    source, out = jsonl(tmp_path / "b.jsonl", *rows), tmp_path / "pairs.jsonl"
    assert run(*BUILD, "--from", source, "--parts", "behavior", "--out", out) == 0
    assert {pair.meta["question_id"] for pair in read_pairs(out)} == {"Ring a bell"}
    assert "left out: 2" in capsys.readouterr().out


def test_prompts_that_an_attack_kept_become_private_pairs_of_their_own_split(tmp_path):
    """Those for behaviors that are measured are in no training pair."""
    trained, tested = builtin_behaviors("train")[0], builtin_behaviors("test")[0]
    rows = [{"kind": "opct_successful_prompts", "schema": 1}]
    for one in (trained, tested):
        prompt = [{"role": "user", "content": f"polished {one.id}"}]
        rows.append({"behavior_id": one.id, "behavior": one.behavior, "prompt": prompt})
    successes, out = jsonl(tmp_path / "successful_prompts.jsonl", *rows), tmp_path / "pairs.jsonl"
    arguments = ("--families", "artifact", "--parts", "behavior", "--data", f"artifact={successes}", "--out", out)
    assert run(*BUILD, *arguments) == 0
    [pair] = read_pairs(out)
    assert pair.prompt[0]["content"] == f"polished {trained.id}"
    assert pair.teacher_prompt[0]["content"] == trained.behavior
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_faults_of_a_build_write_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    jsonl(Path("b.jsonl"), {"goal": "Ring a bell", "category": "copyright"})
    for words, part in (
        ("--data jailbreak_counterparts=x.csv", "--from"),
        ("--from none.csv", "none.csv"),
        ("--from b.jsonl --column behavior=goal --column category=category --exclude copyrigth", "'copyright'"),
        ("--from b.jsonl --column id=a --column id=b", "a and b"),
    ):
        assert run(*BUILD, "--out", "pairs.jsonl", *words.split()) in (1, 2)
        assert part in " ".join(capsys.readouterr().err.replace("│", " ").split())
        assert not Path("pairs.jsonl").exists()


def test_pairs_are_not_written_under_the_name_of_another_kind_of_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("p.csv", "p.parquet", "p.jsonl.GZ"):
        for build in ("sycophancy", "jailbreak", "safety-awareness"):
            error = error_of("data", "build", build, "--out", name)
            assert f"{name}: JSON lines are written, so the name must end with .jsonl" in error
    assert not any(tmp_path.iterdir())
    assert run("data", "build", "jailbreak", "--out", "p.txt") == 0
    assert read_pairs("p.txt")


def test_a_build_replaces_a_file_on_demand_alone(tmp_path):
    out = tmp_path / "pairs.jsonl"
    out.write_text("mine")
    for build in (BUILD, ("data", "build", "sycophancy")):
        assert run(*build, "--out", out) == 1
        assert out.read_text() == "mine"
    assert run(*BUILD, "--out", out, "--overwrite") == 0
    assert len(read_pairs(out)) == 120


def test_sage_eval_needs_the_flag(tmp_path):
    path, out = tmp_path / "sage.json", tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"F.": {"category": "C", "prompts": {"H": {"original": ["P?"]}}}}), encoding="utf-8")
    build = ("data", "build", "safety-awareness", "--from", path, "--out", out, "--split", "all")
    assert "--train-on-evaluation-data" in error_of(*build)
    assert not out.exists()
    assert run(*build, "--train-on-evaluation-data") == 0
    assert len(read_pairs(out)) == 1
