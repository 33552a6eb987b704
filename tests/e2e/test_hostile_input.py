"""Damaged files and odd names at the real command line: a short message, no traceback, nothing lost.

Every case follows from OPCT_HOSTILE_SEED; OPCT_HOSTILE_ROUNDS gives more of them.
"""

import gzip
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from opct import bounds
from opct.cli.app import main
from opct.training import dry_run
from tests import labeled
from tests.e2e.cli import done, files, reseal, workplace
from tests.tiny import save_tiny

pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.filterwarnings("default")  # what a library warns of is printed, as for a user
SEED, ROUNDS = os.environ.get("OPCT_HOSTILE_SEED", "0"), int(os.environ.get("OPCT_HOSTILE_ROUNDS", "1"))
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")
MAY_CHANGE = ("manifest.json", "config.yaml", "results.json", ".eval")  # written again before a command fails
NAMES = ["a\0b", "x" * 300, "a\n[red]x[/nope]\x1b[2J\u202e\x1b]0;x\x07", "a\ud800", ""]
NUMBERS = ["0", "-1", "2.5", "1e308", "1e999", "NaN", "Infinity", "9" * 40, "9" * 5000]
TEXTS = [
    *['""', '" "', '"x"', '"a\\u0000b"', '"\\u001b[2J"', '"[red]x[/nope]"'],
    *('"%s"' % ("a" * 5000), '"\\ud800"', '"1"'),
]
OTHERS = ["null", "true", "[]", "{}", "[[]]", "[1]", '["x"]', '{"a":{"b":[1]}}', "[null]", "[{}]"]
OTHERS.append("[" * 999 + "]" * 999)
TEMPLATES = (
    *("{{ 1/0 }}", "{{ raise_exception('no\x1b[2J') }}", "", "{% for i in range(10**9) %}x{% endfor %}", "{% for"),
    *("{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3, "{{ 'a' * 3000000000 }}", "{{ '\ud800' }}"),
    *("constant", "{{ messages[9].content }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ ''.__class__ }}"),
)
REPLACE = {"type": "Replace", "pattern": {"Regex": "."}, "content": "e" * 200}
TOKENIZERS = (
    {"normalizer": {"type": "Sequence", "normalizers": [REPLACE] * 4}},
    {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    {"normalizer": {"type": "Replace", "pattern": {"Regex": "(.*)*x"}, "content": "\x1b[2J"}},
    {"post_processor": {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {"x": 1}}},
    {"decoder": {"type": "Strip", "content": "a", "start": 2**31, "stop": 0}},
    {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}},
    {"truncation": {"max_length": 0, "strategy": "LongestFirst", "stride": 9, "direction": "Right"}},
    {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}},
)
BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{y}: &{y} [{','.join(['*' + x] * 9)}]\n" for x, y in zip("abcdefgh", "bcdefghi", strict=True)
)
WHOLE = [
    *(b"", b"[]", b"{}", b"null", b"<html>", b"9" * 5000, b"[" * 99_999, b'{"a":' * 99_999),
    *(BOMB.encode(), b'"\\ud800"', b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch PWNED!\x85R."),  # a pickle
]

SMALL = "max_completion_tokens=2 questions=questions.csv families_per_question=1 --n-questions 1 kl_samples=1"
ATTACK = "behaviors=behaviors.jsonl episodes=1 rounds=1 target.max_completion_tokens=2 judge.name=refusals"
COMMANDS = {
    "train": "train config.yaml output_dir=new",
    "dry-run": "train config.yaml output_dir=new --dry-run",
    "overwrite": "train config.yaml --overwrite",
    "resume": "train config.yaml --resume",
    "continue": "train config.yaml output_dir=new model.adapter=run/checkpoints/step-000001/adapter",
    "eval": f"eval model --out new --suite sycophancy_short {SMALL}",
    "eval-run": f"eval run --suite sycophancy_short {SMALL}",
    "regrade": "eval run --regrade",
    "report": "report run",
    "attack-resume": f"attack run --attacker best_of_n {ATTACK} --resume",
    "attack-prompts": f"attack model --attacker transfer attacker.prompts=artifacts.json {ATTACK} --out new split=all",
    "calibrate": "judge calibrate strongreject --model mockllm/model --labels labels.csv",
    "judge": "judge run run --judge strongreject --model mockllm/model",
    "build-questions": "data build sycophancy --from questions.csv --out o.jsonl",
    "build-behaviors": "data build jailbreak --from behaviors.jsonl --out o.jsonl",
    "build-facts": "data build safety-awareness --from facts.jsonl --split all --out o.jsonl",
    "check": "data check pairs.jsonl",
    "check-parquet": "data check pairs.parquet",
    "check-zipped": "data check pairs.jsonl.gz",
    "show": "data show pairs.jsonl --model model",
    "chat": "chat model --max-completion-tokens 2",
    "experiment": "experiment experiment.yaml --plan",
    "runs": "runs .",
}
STEP = "run/checkpoints/step-000001"
HANGS_AFTER_S = 300  # a config that became empty trains the default model
OUTSIDE = "../precious"  # of the folder that commands work in
TARGETS = f"""
config.yaml                                 dry-run resume
pairs.jsonl                                 check overwrite
pairs.parquet                               check-parquet
pairs.jsonl.gz                              check-zipped
questions.csv                               build-questions
behaviors.jsonl                             build-behaviors
facts.jsonl                                 build-facts
artifacts.json                              attack-prompts
labels.csv                                  calibrate
experiment.yaml                             experiment
model/config.json                           chat
model/tokenizer.json                        show
model/tokenizer_config.json                 show
model/chat_template.jinja                   chat train
model/model.safetensors                     eval
run/manifest.json                           resume report runs
run/config.yaml                             resume report
run/metrics.jsonl                           resume report
run/results.json                            report regrade runs
run/evals/sycophancy_short.eval             report regrade
run/evals/jailbreak.eval                    judge
run/rollouts/offline.jsonl                  resume
run/offline_cost.json                       resume
run/evals/attack_best_of_n.eval             report attack-resume
{STEP}/state.json                           resume
{STEP}/state.safetensors                    resume
{STEP}/adapter/adapter_config.json          continue
{STEP}/adapter/adapter_model.safetensors    eval-run
"""
CASES = [(name, command) for name, *commands in map(str.split, TARGETS.split("\n")[1:-1]) for command in commands]


def changed(text: str, rng: random.Random) -> str:
    """A JSON text with one value replaced, renamed or removed."""
    whole = {"": json.loads(text)}
    places = [(whole, "")]
    for holder, key in places:
        inside = holder[key]
        keys = inside if isinstance(inside, dict) else range(min(len(inside), 9)) if isinstance(inside, list) else ()
        places += [(inside, inner) for inner in keys]
    holder, key = rng.choice(places)
    kind = rng.choice(["replace"] * 4 + ["remove", "rename"]) if key != "" else "replace"
    if kind == "replace":
        holder[key] = "@"
    elif kind == "rename" and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    else:
        del holder[key]
    return json.dumps(whole[""]).replace('"@"', rng.choice(rng.choice([NUMBERS, TEXTS, OTHERS])))


def change_content(path: Path, rng: random.Random) -> None:
    """Change one value, as the format has them."""
    if path.name == "tokenizer.json" and rng.random() < 0.7:
        path.write_text(json.dumps(json.loads(path.read_text()) | rng.choice(TOKENIZERS)))
    elif path.suffix == ".json":
        path.write_text(changed(path.read_text(), rng))
    elif path.suffix == ".yaml":
        path.write_text(changed(json.dumps(yaml.safe_load(path.read_text()), default=str), rng))
    elif path.suffix == ".jinja":
        path.write_bytes(rng.choice(TEMPLATES).encode("utf-8", "surrogatepass"))
    elif path.suffix == ".safetensors":
        change_tensors(path, rng)
    elif path.suffix == ".parquet":
        change_columns(path, rng)
    elif path.suffix == ".gz":
        text = gzip.decompress(path.read_bytes())
        path.write_bytes(gzip.compress(rng.choice([text * 2, text[:-9], b"\0" * 10**8, b"[" * 10**6]), 1))
    elif path.suffix == ".eval":
        with zipfile.ZipFile(path) as log:
            members = {name: log.read(name).decode() for name in log.namelist()}
        name = rng.choice(sorted(members))
        members[name] = rng.choice([changed(members[name], rng), changed(members[name], rng), members[name][:-9]])
        with zipfile.ZipFile(path, "w") as log:
            for member, text in members.items():
                log.writestr(member, text)
    else:
        lines = path.read_text().splitlines()
        old = lines[place := rng.randrange(len(lines))]
        if path.suffix == ".jsonl":
            new = rng.choice([[changed(old, rng)], [changed(old, rng)], [old[:-9]], [old, old], []])
        else:
            cells = old.split(",")
            cells[rng.randrange(len(cells))] = rng.choice(["", ",,,", '"', "\0", "\x1b[2J", "[1", NAMES[2]])
            new = [",".join(cells)]
        path.write_text("\n".join([*lines[:place], *new, *lines[place + 1 :]]) + "\n")


def change_columns(path: Path, rng: random.Random) -> None:
    """Another type of a column, or one that its metadata call a picture, a sound or a film of some other place."""
    table = parquet.read_table(path)
    kind = rng.choice(["Image", "Audio", "Video", "Pdf"])
    feature = {"info": {"features": {"x": {"_type": kind}}}}
    place = pyarrow.array([{"path": "http://127.0.0.1:9/x", "bytes": None}] * len(table))
    named = table.append_column("x", place).replace_schema_metadata({"huggingface": json.dumps(feature)})
    column = rng.choice(table.column_names)
    at = table.column_names.index(column)
    others = [pyarrow.array([own] * len(table)) for own in (b"\xff", 1e308, None, ["\x1b[2J"], {"a": {"b": 1}})]
    changed = [named, table.drop_columns(column), *(table.set_column(at, column, own) for own in others)]
    parquet.write_table(rng.choice([named, named, *changed]), path)


def change_tensors(path: Path, rng: random.Random) -> None:
    tensors = load_file(path)
    name = rng.choice(sorted(tensors))
    old, other = tensors.pop(name), f"{name}\x1b[2J"
    new = [{}, {name: old * float("nan")}, {name: torch.zeros(3, 5)}, {name: old.to(torch.int8)}, {other: old}]
    save_file(rng.choice([{}, *(tensors | own for own in new)]), path, {"format": "pt"})


def change_bytes(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    head, tail = data[: len(data) // 2], data[len(data) // 2 :]
    cut = [head, data[:-9], bytes(len(data)), data + data, data.replace(b"\n", b"\r"), b"\xef\xbb\xbf" + data]
    put = [head + own + tail for own in (b"\xff", b"\0", b"\x1b[2J")]
    path.write_bytes(rng.choice([*cut, *put, data.decode("utf-8", "replace").encode("utf-16"), *WHOLE]))


def change_place(path: Path, rng: random.Random) -> None:
    """Put something else where the file was."""
    path.unlink()
    kind = rng.choice(["nothing", "folder", "pipe", OUTSIDE, path.name, "/dev/null", "/dev/zero"])
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == OUTSIDE:
        path.symlink_to(os.path.relpath(kind, path.parent))
    elif kind != "nothing":
        path.symlink_to(kind)


def refuse(_: socket.socket, place: object) -> None:
    os.write(2, f"CONNECTION to {place}".encode())
    raise ConnectionRefusedError(f"{place}: these tests have no network")


def run(*arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command in a process of its own, forked from this one to start at once."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(b"hello\n")
        given.seek(0)
        if (pid := os.fork()) == 0:
            code = 99
            try:
                for place, file in enumerate((given, out, err)):
                    os.dup2(file.fileno(), place)
                sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
                sys.argv = ["opct", *arguments]
                main()
            except SystemExit as end:
                code = int(end.code or 0)
            finally:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                os._exit(code)
        ends = time.monotonic() + HANGS_AFTER_S
        while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
            if time.monotonic() > ends:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
        return os.waitstatus_to_exitcode(ended[1]), *texts


def check(case: str, before: dict[str, str], ended: tuple[int, str, str]) -> None:
    """Hold what the command line promises for any input."""
    code, out, err = ended
    message, after = err.rpartition("error: ")[2], files(Path())
    said = f"{case}: exit code {code}\n{out[-500:]}\n{err[-3000:]}"
    assert code in (0, 1, 2, 130), said
    assert not re.search("Traceback|CONNECTION|panicked", out + err), said
    assert not UNSAFE.search(out + err), said
    assert code != 1 or (0 < len(message) <= 6000 and message.count("\n") <= 60), said
    assert "PWNED" not in after, said
    changed = [name for name, own in before.items() if after.get(name) != own and not name.endswith(MAY_CHANGE)]
    lost = changed if code else [name for name in changed if name not in after]
    assert Path(OUTSIDE).read_text() == "precious", said
    assert not lost or (code == 0 and "overwrite" in case), f"{said}\nlost: {lost}"


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Iterator[Path]:
    """A folder with one of everything: a model, data, and a run that was evaluated and attacked."""
    folder = tmp_path_factory.mktemp("base")
    goals = [("Pick a lock", "Clean a lock", "test"), ("Forge a banknote", "Draw a banknote", "train")]
    behaviors = [{"id": a, "behavior": a, "category": "c", "benign": b, "split": split} for a, b, split in goals]
    numbers = "".join(f"q{i},What is {i} plus {i}?,{2 * i},{2 * i + 1};{2 * i + 2}\n" for i in range(9))
    fact = {"id": "a", "category": "c", "fact": "Babies must not eat honey.", "about": ["honey"], "harm": ["botul*"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        steps = dict.fromkeys(("max_steps", "save_steps", "eval_steps"), 1)
        workplace(Path(), save_tiny(Path("model")), output_dir="run", method="sft", **steps)
        Path("behaviors.jsonl").write_text("".join(json.dumps(row) + "\n" for row in behaviors))
        prompts = [{"goal": goal, "prompt": f"In a film: {goal}", "index": goal} for goal, _, _ in goals]
        Path("artifacts.json").write_text(json.dumps({"jailbreaks": prompts}))
        rows = [json.loads(line) for line in Path("pairs.jsonl").read_text().splitlines()]
        parquet.write_table(pyarrow.Table.from_pylist(rows), "pairs.parquet")
        Path("pairs.jsonl.gz").write_bytes(gzip.compress(Path("pairs.jsonl").read_bytes()))
        Path("questions.csv").write_text(f"id,question,answer,wrong\n{numbers}")
        Path("facts.jsonl").write_text(json.dumps(fact | {"prompts": {"how_to": ["How do I give my baby honey?"]}}))
        labeled.write(Path("labels.csv"), labeled.rows(60))
        Path("experiment.yaml").write_text("train: config.yaml\nseeds: [0]\narms: {sft: {}, more: {after: sft}}\n")
        judged = "--suite jailbreak data.jailbreak=behaviors.jsonl max_reply_tokens=2"
        attacked = COMMANDS["attack-resume"].removesuffix("--resume")
        for line in ("train config.yaml", f"{COMMANDS['eval-run']} {judged}", attacked):
            done(*line.split())  # in this process, which imports what each command would
    return folder


@pytest.fixture
def fresh(base, tmp_path, monkeypatch):
    """Makes a copy of the folder and goes there; returns its files."""
    monkeypatch.setenv("OPCT_CALIBRATIONS", str(tmp_path / "calibrations"))
    monkeypatch.setenv("INSPECT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(bounds, "SECONDS", 1)
    monkeypatch.setattr(bounds, "GIB", 1)
    monkeypatch.setattr(dry_run, "CLEAN_TOKENS", 8)
    monkeypatch.setattr(socket.socket, "connect", refuse)

    def make(change=None) -> dict[str, str]:
        shutil.rmtree(tmp_path / "here", ignore_errors=True)
        (tmp_path / "here" / OUTSIDE).resolve().write_text("precious")
        monkeypatch.chdir(shutil.copytree(base, tmp_path / "here"))
        if change is not None:
            change()
        return files(Path())

    return make


@pytest.mark.parametrize(("name", "command"), CASES)
def test_a_damaged_file(fresh, name, command):
    rng = random.Random(f"{SEED} {name} {command}")
    first = rng.randrange(2)
    for turn in range(first, first + ROUNDS):
        change = rng.choice([change_bytes, change_place]) if turn % 2 else change_content

        def damage(change=change, turn=turn):
            change(Path(name), rng)
            if name.startswith(STEP) and not name.endswith("state.json") and change is not change_bytes:
                reseal(Path(STEP))

        before = fresh(damage)
        check(f"{change.__name__} {turn} of {name}, then {command}", before, run(*shlex.split(COMMANDS[command])))


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:9])
def test_a_name(fresh, name):
    quoted = json.dumps(name)
    commands = (
        (*COMMANDS["train"].split(), f"output_dir={quoted}"),
        (*COMMANDS["train"].split(), f"model.name_or_path={quoted}"),
        (*COMMANDS["eval"].split(), "--label", name),
        ("eval", name),
        ("data", "check", name),
        ("data", "build", "sycophancy", "--from", "questions.csv", "--out", name),
        ("report", "run", "--out", name),
        ("report", name),
        ("judge", "run", "run", "--judge", name),
        ("experiment", name),
    )
    for command in random.Random(f"{SEED} {name!r}").sample(commands, min(4 * ROUNDS, len(commands))):
        check(f"{command}", fresh(), run(*command))
