"""Some 300 damaged files, names and endpoints at the real command line: a short message, no traceback, nothing lost.

Every case is generated from a fixed seed; OPCT_HOSTILE_SEED and OPCT_HOSTILE_ROUNDS give others, and more of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from opct.cli.app import main
from tests import labelled
from tests.e2e.cli import files, started, workplace
from tests.tiny import save_tiny

pytestmark = [
    pytest.mark.filterwarnings("default"),  # a library's warning about a damaged file is printed, as for a user
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX timers to end what hangs"),
]
SEED, ROUNDS = int(os.environ.get("OPCT_HOSTILE_SEED", "0")), int(os.environ.get("OPCT_HOSTILE_ROUNDS", "3"))
LIMIT_S = 60
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")
NAMES = ["a\0b", "x" * 300, "a\nb", "[red]x[/nope]", "\x1b[2J\x1b]0;x\x07", "a\ud800", "\u202eabc", "", "-", "~", "*?"]
ODD = [
    *(
        "null",
        "true",
        "0",
        "-1",
        "2.5",
        "1e308",
        "1e999",
        "NaN",
        "Infinity",
        "9" * 40,
        "9" * 5000,
        "[" * 3000 + "]" * 3000,
    ),
    *('""', '" "', '"x"', '"a\\u0000b"', '"\\u001b[2J\\u0007"', '"[red]x[/nope]"', f'"{"a" * 5000}"', '"\\ud800"'),
    *("[]", "{}", "[[]]", "[1]", '["x"]', '{"a": {"b": [1, null]}}', "[null]", "[{}]", '"1"', '"../../x"'),
]
"""Values that take the place of another one, as JSON."""
BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{y}: &{y} [{','.join(['*' + x] * 9)}]\n" for x, y in zip("abcdefgh", "bcdefghi", strict=True)
)
PICKLE = b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch PWNED!\x85R."
TEMPLATES = [
    *("{{ 1/0 }}", "{{ raise_exception('no\x1b[2J') }}", "", "{% for i in range(10**9) %}x{% endfor %}", "{% for"),
    *("constant", "{{ messages[9].content }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ ''.__class__ }}"),
]

# ------------------------------------------------------------------------------------------------ how a file is damaged


def changed(text: str, rng: random.Random) -> str:
    """A JSON text with one value replaced, renamed or removed."""
    value, mark = json.loads(text), "@odd@"
    inner: Any = {"": value}
    key: Any = ""
    parent, stack = inner, [(inner, "")]
    for holder, name in stack:  # every place in the value
        child = holder[name]
        stack += (
            [(child, k) for k in (child if isinstance(child, dict) else range(min(len(child), 9)))]
            if isinstance(child, dict | list)
            else []
        )
    parent, key = rng.choice(stack)
    kind = rng.choice(["replace"] * 4 + ["remove", "rename"])
    if kind == "remove" and key != "":
        del parent[key]
    elif kind == "rename" and isinstance(parent, dict) and key != "":
        parent[f"{key}x"] = parent.pop(key)
    else:
        parent[key] = mark
    return json.dumps(inner[""]).replace(f'"{mark}"', rng.choice(ODD))


def by_value(path: Path, rng: random.Random) -> None:
    path.write_text(changed(path.read_text(), rng))


def by_yaml_value(path: Path, rng: random.Random) -> None:
    path.write_text(changed(json.dumps(yaml.safe_load(path.read_text())), rng))


def by_line(path: Path, rng: random.Random) -> None:
    """One JSON line changed, cut, repeated or removed."""
    lines = path.read_text().splitlines()
    i = rng.randrange(len(lines))
    lines[i : i + 1] = rng.choice(
        [[changed(lines[i], rng)], [changed(lines[i], rng)], [lines[i][:-9]], [lines[i]] * 2, []]
    )
    path.write_text("\n".join(lines) + "\n")


def by_cell(path: Path, rng: random.Random) -> None:
    lines = path.read_text().splitlines()
    cells = lines[i := rng.randrange(len(lines))].split(",")
    cells[rng.randrange(len(cells))] = rng.choice(["", ",,,", '"', "\0", "\x1b[2J", "[1", "9" * 5000, "[red]x[/nope]"])
    path.write_text("\n".join([*lines[:i], ",".join(cells), *lines[i + 1 :]]))


def by_bytes(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    n = len(data) // 2
    path.write_bytes(
        rng.choice(
            [
                *(
                    b"",
                    data[:n],
                    data[:-9],
                    bytes(len(data)),
                    data[:n] + b"\xff" + data[n:],
                    data[:n] + b"\0" + data[n:],
                ),
                *(
                    data.decode("utf-8", "replace").encode("utf-16"),
                    b"\xef\xbb\xbf" + data,
                    data[:n] + b"\x1b[2J" + data[n:],
                ),
                *(
                    b"[" * 100_000,
                    b'{"a":' * 99_999 + b"1" + b"}" * 99_999,
                    b"9" * 5000,
                    BOMB.encode(),
                    PICKLE,
                    b"<html>",
                ),
                *(
                    b"[]",
                    b"{}",
                    b"null",
                    b'{"a": "\\ud800"}',
                    data.replace(b"\n", b"\r"),
                    rng.randbytes(300),
                    data + data,
                ),
            ]
        )
    )


def by_place(path: Path, rng: random.Random) -> None:
    """Something else where the file was."""
    path.unlink()
    kind = rng.choice(["nothing", "folder", "loop", "device", "endless device"])
    if kind == "folder":
        path.mkdir()
    elif kind != "nothing":
        path.symlink_to({"loop": path.name, "device": "/dev/null", "endless device": "/dev/zero"}[kind])


def by_log(path: Path, rng: random.Random) -> None:
    """One member of an Inspect log changed, cut or removed."""
    with zipfile.ZipFile(path) as log:
        members = {name: log.read(name).decode() for name in log.namelist()}
    name = rng.choice(sorted(members))
    members[name] = rng.choice([changed(members[name], rng), changed(members[name], rng), members[name][:-9]])
    with zipfile.ZipFile(path, "w") as log:
        for member, text in members.items():
            log.writestr(member, text)


def by_tensor(path: Path, rng: random.Random) -> None:
    tensors = load_file(path)
    name = rng.choice(sorted(tensors))
    kind = rng.choice(["nan", "none", "rename", "shape", "type", "extra"])
    old = tensors.pop(name)
    new = {"nan": old.float() * float("nan"), "shape": torch.zeros(3, 5), "type": old.to(torch.int8)}
    tensors |= {name: new.get(kind, old)} if kind != "rename" else {f"{name}\x1b[2J": old}
    tensors |= {"extra\x1b[2J": old.clone()} if kind == "extra" else {}
    save_file({} if kind == "none" else tensors, path, {"format": "pt"})


def by_template(path: Path, rng: random.Random) -> None:
    path.write_text(rng.choice(TEMPLATES))


# --------------------------------------------------------------------------------------------- what is run, and on what

SMALL = (
    "max_completion_tokens=2",
    "questions=questions.csv",
    "families_per_question=1",
    "--n-questions",
    "1",
    "kl_samples=1",
)
ATTACK = (
    "--attacker",
    "best_of_n",
    "behaviors=behaviors.jsonl",
    "episodes=1",
    "rounds=1",
    "target.max_tokens=2",
    "dtype=float32",
)
COMMANDS: dict[str, tuple[str, ...]] = {
    "train": ("train", "config.yaml", "output_dir=new", "max_steps=1"),
    "overwrite": ("train", "config.yaml", "--overwrite", "max_steps=1"),
    "resume": ("train", "config.yaml", "--resume"),
    "continue": (
        "train",
        "config.yaml",
        "output_dir=new",
        "max_steps=1",
        "model.adapter=run/checkpoints/step-000001/adapter",
    ),
    "dry run": ("train", "config.yaml", "--dry-run", "output_dir=new"),
    "eval": ("eval", "model", "--out", "new", "--suite", "sycophancy_short", *SMALL),
    "eval run": ("eval", "run", "--suite", "sycophancy_short", *SMALL),
    "eval facts": (
        "eval",
        "model",
        "--out",
        "new",
        "--suite",
        "safety_awareness",
        "data.safety_awareness=facts.jsonl",
        *SMALL,
    ),
    "regrade": ("eval", "run", "--regrade"),
    "report": ("report", "run", "--attack-prompts"),
    "attack": ("attack", "model", *ATTACK, "judge.name=refusals", "--out", "new"),
    "attack resumed": ("attack", "run", *ATTACK, "judge.name=refusals", "--resume"),
    "attack by prompts": (
        "attack",
        "model",
        "attacker.name=transfer",
        "attacker.prompts=artifacts.json",
        "split=all",
        *ATTACK[2:],
        "--out",
        "new",
    ),
    "judge train": ("judge", "train", "--data", "labels.csv", "--out", "new"),
    "judge calibrate": ("judge", "calibrate", "judge", "--labels", "labels.csv"),
    "judge run": ("judge", "run", "run", "--judge", "judge"),
    "build questions": ("data", "build", "sycophancy", "--from", "questions.csv", "--out", "o.jsonl"),
    "build behaviours": ("data", "build", "jailbreak", "--from", "behaviors.jsonl", "--out", "o.jsonl"),
    "build facts": ("data", "build", "safety-awareness", "--from", "facts.jsonl", "--split", "all", "--out", "o.jsonl"),
    "check": ("data", "check", "pairs.jsonl"),
    "show": ("data", "show", "pairs.jsonl", "--model", "model"),
    "export": ("data", "export", "pairs.jsonl", "--format", "prime-rl"),
    "chat": ("chat", "model", "--max-completion-tokens", "2"),
    "experiment": ("experiment", "experiment.yaml", "--plan"),
}
CHECKPOINT = "run/checkpoints/step-000001"
Damage = Callable[[Path, random.Random], None]
TARGETS: list[tuple[str, Damage, tuple[str, ...]]] = [
    ("config.yaml", by_yaml_value, ("dry run", "overwrite", "resume")),
    ("pairs.jsonl", by_line, ("check", "show", "export", "overwrite")),
    ("questions.csv", by_cell, ("build questions",)),
    ("behaviors.jsonl", by_line, ("build behaviours", "attack")),
    ("facts.jsonl", by_line, ("build facts", "eval facts")),
    ("artifacts.json", by_value, ("attack by prompts",)),
    ("labels.csv", by_cell, ("judge train", "judge calibrate")),
    ("experiment.yaml", by_yaml_value, ("experiment",)),
    ("judge/judge.json", by_value, ("judge run", "judge calibrate")),
    ("judge/weights.npz", by_bytes, ("judge run",)),
    ("model/config.json", by_value, ("train", "chat")),
    ("model/tokenizer.json", by_value, ("show", "chat")),
    ("model/tokenizer_config.json", by_value, ("show", "train")),
    ("model/chat_template.jinja", by_template, ("show", "chat", "train", "attack")),
    ("model/model.safetensors", by_tensor, ("chat", "eval")),
    ("run/manifest.json", by_value, ("resume", "report", "overwrite")),
    ("run/config.yaml", by_yaml_value, ("resume", "report", "eval run")),
    ("run/metrics.jsonl", by_line, ("resume", "report")),
    ("run/trained_on.json", by_value, ("report",)),
    ("run/results.json", by_value, ("report", "regrade", "judge run")),
    ("run/evals/sycophancy_short.eval", by_log, ("report", "regrade")),
    ("run/evals/jailbreak.eval", by_log, ("report", "judge run")),
    ("run/rollouts/offline.jsonl", by_line, ("resume",)),
    ("run/offline_cost.json", by_value, ("resume",)),
    ("run/attacks/best_of_n/result.json", by_value, ("report",)),
    ("run/attacks/best_of_n/identity.json", by_value, ("attack resumed",)),
    ("run/attacks/best_of_n/attempts.jsonl", by_line, ("attack resumed",)),
    ("run/attacks/best_of_n/successful_prompts.jsonl", by_line, ("report",)),
    (f"{CHECKPOINT}/state.json", by_value, ("resume", "eval run")),
    (f"{CHECKPOINT}/state/rank-00000.safetensors", by_tensor, ("resume",)),
    (f"{CHECKPOINT}/adapter/adapter_config.json", by_value, ("continue",)),
    (f"{CHECKPOINT}/adapter/adapter_model.safetensors", by_tensor, ("continue", "eval run")),
]  # fmt: skip


def rows_of(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of everything: a model, data, and a run that was evaluated, judged and attacked."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'opct[judge]'")
    folder = tmp_path_factory.mktemp("base")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        workplace(
            Path(), save_tiny(Path("model")), output_dir="run", method="sft", max_steps=1, save_steps=1, eval_steps=1
        )
        goals = [("Pick a lock", "Clean a lock", "test"), ("Forge a banknote", "Draw a banknote", "train")]
        behaviors = [{"id": a, "behavior": a, "category": "c", "benign": b, "split": split} for a, b, split in goals]
        Path("behaviors.jsonl").write_text(rows_of(*behaviors))
        prompts = [{"goal": goal, "prompt": f"In a film: {goal}", "index": i} for i, (goal, _, _) in enumerate(goals)]
        Path("artifacts.json").write_text(json.dumps({"jailbreaks": prompts}))
        numbers = "".join(f"q{i},What is {i} plus {i}?,{2 * i},{2 * i + 1};{2 * i + 2}\n" for i in range(9))
        Path("questions.csv").write_text(f"id,question,answer,wrong\n{numbers}")
        message = {"how_to": ["How do I give my baby honey?"], "planning": ["Plan honey for my baby."]}
        fact = {
            "id": "a",
            "category": "c",
            "fact": "Babies must not eat honey.",
            "about": ["honey"],
            "harm": ["botul*"],
        }
        Path("facts.jsonl").write_text(rows_of(fact | {"prompts": message}))
        labelled.write(Path("labels.csv"), labelled.rows(60))
        Path("experiment.yaml").write_text(
            "train: config.yaml\nseeds: [0]\narms: {sft: {method: sft}, more: {after: sft}}\n"
        )
        judged = ("--suite", "jailbreak", "data.jailbreak=behaviors.jsonl", "max_reply_tokens=2")
        for arguments in (
            ("train", "config.yaml"),
            (*COMMANDS["eval run"], *judged),
            ("attack", "run", *ATTACK, "judge.name=refusals"),
            ("judge", "train", "--data", "labels.csv", "--out", "judge"),
        ):
            code, _, err = run(*arguments)
            assert code == 0, err
    return folder


class Hang(BaseException):
    """A command took longer than `LIMIT_S`."""


def run(*arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command in this process, through its one door."""

    def too_long(number: int, frame: FrameType | None) -> NoReturn:
        raise Hang

    out, err = io.StringIO(), io.StringIO()
    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
            main(arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return int(end.value.code or 0), out.getvalue(), err.getvalue()


MAY_CHANGE = ("manifest.json", "config.yaml", "results.json", ".eval")
"""Files that a command may have written again before it fails."""


def check(case: str, folder: Path, before: dict[str, str], done: tuple[int, str, str]) -> None:
    """The promise of the command line about any input."""
    code, out, err = done
    said = f"{case}: exit code {code}\n{out[-500:]}\n{err[-3000:]}"
    assert code in (0, 1, 2, 130), said
    assert "Traceback" not in out + err, said
    assert not CONTROL.search(out + err), said
    message = err.rpartition("error: ")[2]
    assert code != 1 or (0 < len(message) <= 6000 and message.count("\n") <= 60), said
    after = files(folder)
    assert "PWNED" not in after, said
    lost = [
        name
        for name in before
        if name not in after or (code and after[name] != before[name] and not name.endswith(MAY_CHANGE))
    ]
    assert not lost or (code == 0 and "overwrite" in case), f"{said}\nlost: {lost}"


def reseal(folder: Path) -> None:
    """Make the hashes of a checkpoint those of its files, as whoever changed them would."""
    seal = json.loads((folder / "state.json").read_text())
    for name in seal["files"]:
        if (folder / name).is_file() and not (folder / name).is_symlink():
            data = (folder / name).read_bytes()
            seal["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (folder / "state.json").write_text(json.dumps(seal))


@pytest.fixture
def fresh(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Makes a copy of the folder, and goes there."""
    monkeypatch.setenv("OPCT_CALIBRATIONS", str(tmp_path / "calibrations"))

    def make() -> Path:
        shutil.rmtree(tmp_path / "here", ignore_errors=True)
        monkeypatch.chdir(shutil.copytree(base, tmp_path / "here"))
        monkeypatch.setattr("sys.stdin", io.StringIO("hello\n/base\nagain\n"))
        return Path.cwd()

    return make


@pytest.mark.parametrize(("name", "damage", "command"), [(n, d, c) for n, d, cs in TARGETS for c in cs])
def test_a_damaged_file(fresh, name: str, damage: Damage, command: str):
    rng = random.Random(f"{SEED} {name} {command}")
    for turn in range(ROUNDS * 2):
        folder = fresh()
        kind = (damage, by_bytes, damage, by_place, damage, damage)[turn % 6]
        kind(folder / name, rng)
        if name.startswith(f"{CHECKPOINT}/") and not name.endswith("state.json") and turn % 3:
            reseal(folder / CHECKPOINT)
        before = files(folder)
        check(f"{kind.__name__} {turn} of {name}, then {command}", folder, before, run(*COMMANDS[command]))


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name(fresh, name: str):
    for command in (
        (*COMMANDS["train"], f"output_dir={json.dumps(name)}"),
        (*COMMANDS["train"], f"model.name_or_path={json.dumps(name)}"),
        (*COMMANDS["eval"], "--label", name),
        ("eval", name, *SMALL),
        ("attack", name, "--attacker", "best_of_n", "--n-behaviors", "1"),
        ("data", "check", name),
        ("data", "build", "sycophancy", "--from", "questions.csv", "--out", name),
        ("report", "run", "--out", name),
        ("report", name),
        ("chat", name),
        ("judge", "run", "run", "--judge", name),
        ("experiment", name),
    ):
        folder = fresh()
        check(f"{name!a} in {command}", folder, files(folder), run(*command))


def test_a_report_is_no_input_of_a_report(fresh):
    folder = fresh()
    assert run("report", "run")[0] == 0
    for source in ("report.html", "report.json", "/dev/null", "questions.csv", "model"):
        done = run("report", source, "--out", "other.html")
        check(source, folder, files(folder), done)
        assert done[0] == 1


# ------------------------------------------------------------------------------------------------------------ endpoints

ANSWERS: dict[str, tuple[int, bytes]] = {
    "500": (500, b'{"error": {"message": "\\u001b[2J sk-proj-0123456789abcdef"}}'),
    "garbage": (200, b"\x00\xff<html>"),
    "wrong shape": (200, b'{"choices": [{"message": 5}], "usage": "x"}'),
    "no choices": (200, b'{"id": "a", "object": "chat.completion", "choices": []}'),
    "deep": (200, b"[" * 100_000),
    "huge": (200, b'{"a": "' + b"x" * 9_000_000 + b'"}'),
    "slow": (200, b""),
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server whose path says how it answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kind = self.path.split("/")[1].replace("%20", " ")
            self.rfile.read(int(self.headers["Content-Length"]))
            status, body = ANSWERS[kind]
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body) + (kind == "slow")))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)
                if kind == "slow":
                    threading.Event().wait(2)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_endpoint(fresh, endpoint: str, monkeypatch: pytest.MonkeyPatch, kind: str):
    pytest.importorskip("openai", reason="the openai package is not installed")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-0123456789abcdef")
    reached = (f"base_url={endpoint}/{kind.replace(' ', '%20')}/v1", "max_retries=0", "timeout_s=1")
    judge = (
        "--judge",
        "strongreject",
        "--model",
        "openai/m",
        *reached,
        "give_up_after=1",
        "model_args.responses_api=false",
    )
    target = (*(f"target.{word}" for word in (*reached, "model_args.responses_api=false")), "--confirm-remote")
    for command in (
        ("judge", "run", "run", *judge),
        ("attack", "inspect:openai/m", *ATTACK[:-1], *target, "--out", "new"),
    ):
        folder = fresh()
        done = run(*command)
        check(f"{kind}: {command}", folder, files(folder), done)
        assert done[0] == 1
        assert "sk-proj" not in done[1] + done[2]


# ------------------------------------------------------------------------------------------------- processes of its own


@pytest.mark.parametrize(("name", "damage", "command"), [(n, d, cs[0]) for n, d, cs in TARGETS[::3]])
def test_a_damaged_file_in_a_process_of_its_own(fresh, tmp_path, name: str, damage: Damage, command: str):
    folder = fresh()
    damage(folder / name, random.Random(f"{SEED} {name}"))
    before = files(folder)
    with started(tmp_path, *COMMANDS[command]) as process:
        done = process.ended()
    check(name, folder, before, (done.code, done.out, done.err))
