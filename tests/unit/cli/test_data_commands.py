import json

import pytest

from opct.data.pairs import ContrastivePair, read_pairs, write_pairs
from tests.unit.cli.running import run

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
    shown = capsys.readouterr().out
    assert "3 pairs" in shown
    rows = [line.replace("│", " ").split() for line in shown.splitlines()]
    assert ["benign", "explain", "1", "1", "0"] in rows
    assert ["sycophancy", "are_you_sure", "1", "0", "1"] in rows
    assert ["sycophancy", "suggested_answer", "1", "0", "0"] in rows


def test_check_asks_a_model_the_bare_behaviors(tiny_folder, capsys):
    """The tiny model refuses nothing: its words are random."""
    check = ("data", "check", "builtin:jailbreak")
    assert run(*check, "--model", str(tiny_folder), "dtype=float32") == 0
    shown = capsys.readouterr().out
    assert "100%" in shown
    assert "warning: " in shown
    assert run(*check, "--model", str(tiny_folder), "chat_template_kwargs.enable_thinking=false") == 1
    assert "'enable_thinking'" in capsys.readouterr().err
    assert run(*check, "--model", "m", "dtyp=float32") == 1
    assert "mean dtype" in capsys.readouterr().err
    assert run(*check, "dtype=float32") == 2
    assert "--model" in capsys.readouterr().err


def test_check_has_nothing_to_ask_a_teacher_of_other_pairs(pairs, tiny_folder, capsys):
    assert run("data", "check", str(pairs), "--model", str(tiny_folder), "dtype=float32") == 0
    shown = capsys.readouterr().out
    assert "teacher: not asked" in shown
    assert "warning" not in shown


def test_check_shows_every_fault(tmp_path, capsys):
    path = tmp_path / "bad.jsonl"
    path.write_text('{broken\n{"id": "a"}\n')
    assert run("data", "check", str(path)) == 1
    shown = capsys.readouterr().err
    assert f"{path}:1" in shown
    assert f"{path}:2" in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("content", "options", "code", "words"),
    [
        ("question,answer,wrong\na,x,y\nb,x,y\n", (), 0, "2 questions"),
        ("q,gold,answer\na,x,y\n", ("question=q", "answer=gold", "wrong=answer"), 0, "1 questions"),
        ("question,answer,wrong\na,x,\n", (), 1, "q.csv:2: "),
        ("Frage,Antwort\na,x\n", (), 1, "Frage, Antwort"),
        ("prompt,A,B,target\na,x,y,B\n", (), 0, "1 questions"),
        ("prompt,teacher_prompt\na,x\n", (), 0, "1 pairs"),
        ("prompt,techer_prompt,answer,topic\na,x,y,z\n", (), 1, "'teacher_prompt'"),
        ("prompt,completion\na,x\n", (), 1, "prompt-completion"),
    ],
)
def test_check_tells_questions_from_pairs(tmp_path, capsys, content, options, code, words):
    path = tmp_path / "q.csv"
    path.write_text(content)
    assert run("data", "check", path, *(f"--column={option}" for option in options)) == code
    assert words in "".join(capsys.readouterr())


def questions(path, n: int):
    rows = [{"id": f"q{i}", "question": f"What is {i}?", "answer": f"n{i}", "wrong": [f"m{i}"]} for i in range(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_build_writes_pairs_that_load(tmp_path, capsys):
    source, out = questions(tmp_path / "q.jsonl", 40), tmp_path / "out" / "pairs.jsonl"
    arguments = ["--from", str(source), "--out", str(out), "--families", "majority,suggested_answer", "--split", "all"]
    assert run("data", "build", "sycophancy", *arguments) == 0
    built = read_pairs(out)
    assert len(built) == 40
    assert {pair.family for pair in built} == {"majority", "suggested_answer"}
    output = capsys.readouterr()
    assert f"{source}: 40 questions" in output.out
    assert f"{out}: 40 pairs" in output.out
    assert "id=id, question=question, answer=answer, wrong=wrong" in output.err


def test_build_replaces_a_file_only_when_asked(tmp_path, capsys):
    out = tmp_path / "pairs.jsonl"
    out.write_text("mine\n")
    assert run("data", "build", "sycophancy", "--out", str(out), "--n", "3") == 1
    assert f"{out} exists" in capsys.readouterr().err
    assert out.read_text() == "mine\n"
    assert run("data", "build", "sycophancy", "--out", str(out), "--n", "3", "--overwrite") == 0
    assert len(read_pairs(out)) == 3


@pytest.fixture
def shown(monkeypatch):
    """Stands for tokenizer and renderer: what was asked for is kept."""
    kept = {}

    def render_pair(pair, renderer, completion=None, mask=None):
        kept.update(pair=pair, renderer=renderer, completion=completion)
        return "the pair"

    def load_renderer(config, adapter):
        return config.name_or_path, config.chat_template_kwargs

    monkeypatch.setattr("opct.cli.data.pair_text", render_pair)
    monkeypatch.setattr("opct.models.loading.load_renderer", load_renderer)
    return kept


@pytest.mark.parametrize(("choice", "id"), [([], "a"), (["--index", "1"], "b"), (["--id", "c"], "c")])
def test_show_picks_a_pair(pairs, shown, capsys, choice, id):
    assert run("data", "show", str(pairs), *choice, "--model", "m") == 0
    assert shown["pair"].id == id
    assert shown["renderer"] == ("m", {})
    assert capsys.readouterr().out == "the pair\n"


def test_show_renders_as_a_training_config_says(pairs, shown, tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("model:\n  name_or_path: m\n  chat_template_kwargs: {enable_thinking: false}\n")
    assert run("data", "show", str(pairs), str(config)) == 0
    assert shown["renderer"] == ("m", {"enable_thinking": False})
    assert run("data", "show", str(pairs), "model.chat_template_kwargs.enable_thinking=true", "--model", "n") == 0
    assert shown["renderer"] == ("n", {"enable_thinking": True})


@pytest.mark.parametrize(("choice", "part"), [(["--index", "3"], "0 to 2"), (["--id", "x"], "'x'")])
def test_show_of_a_pair_that_is_not_there(pairs, shown, capsys, choice, part):
    assert run("data", "show", str(pairs), *choice) == 1
    assert part in capsys.readouterr().err


def test_show_samples_what_training_would(pairs, tiny_folder, capsys):
    """With a sample of 3 tokens at most, which is cut and so masked."""
    settings = ("rollout.max_completion_tokens=3", "loss.mask_truncated=true")
    sample = (*settings, "--sample", "--model", str(tiny_folder))
    assert run("data", "show", str(pairs), *sample) == 0
    assert "0 of 3 completion tokens" in capsys.readouterr().out


def test_text_of_a_file_cannot_reach_the_terminal_as_commands(tmp_path, tiny_folder, capsys):
    """Control characters and markup in family and prompt are printed as they are spelt."""
    hostile = "[/red]\x1b]0;owned\x07"
    path = tmp_path / "pairs.jsonl"
    prompt = ({"role": "user", "content": hostile},)
    write_pairs(path, [ContrastivePair(hostile, "sycophancy", hostile, prompt, prompt)])
    assert run("data", "check", str(path)) == 0
    assert run("data", "show", str(path), "--model", str(tiny_folder)) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "[/red]\\x1b]0;owned\\x07" in shown.replace("\n", "")


def test_columns_are_named_by_role(tmp_path, capsys):
    """A file whose columns have names of another language: refused with the remedy, and read once they are named."""
    table, out = tmp_path / "fragen.csv", tmp_path / "pairs.jsonl"
    table.write_text("frage,antwort,falsch\nWhat is 2+2?,4,5\nWho wrote Faust?,Goethe,Schiller\n")
    build = ("data", "build", "sycophancy", "--from", str(table), "--out", str(out), "--split", "all")
    assert run(*build) == 1
    assert "--column question=COLUMN" in capsys.readouterr().err
    named = ["question=frage", "answer=antwort", "wrong=falsch"]
    assert run(*build, *(part for name in named for part in ("--column", name))) == 0
    assert [pair.meta["suggested"] for pair in read_pairs(out)] == ["5", "Schiller"]
    assert run(*build, "--column", "question") == 2
