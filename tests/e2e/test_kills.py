"""Every command, ended at any moment and given again: what it makes is what an undisturbed one makes.

Bit for bit, but for times, costs, and pages, which are drawn from the numbers beside them.

`OPCT_KILLS` is how often each job is ended (0: skipped here; `make test-kills`), `OPCT_KILL_SEED` draws the moments. A
failure names its seed.
"""

import contextlib
import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from inspect_ai.log import read_eval_log

from opct.evals.quiet import quiet
from tests.e2e.cli import Started, here, started, workplace
from tests.hub import JsonHandler, chat_completion, serving
from tests.tiny import TINY_TRAINING

KILLS = int(os.environ.get("OPCT_KILLS", "0"))
SEED = os.environ.get("OPCT_KILL_SEED") or str(random.SystemRandom().randrange(10**6))
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
pytestmark = pytest.mark.skipif(not KILLS, reason="OPCT_KILLS is not set: make test-kills")

Job = Callable[[Path, Path], tuple[Any, ...]]
"""(folder, model) -> the command; all that it writes is `folder/out`."""

EXPERIMENT = """
output_dir: {out}
train: shared.yaml
seeds: [0]
arms: {{sft: {{method: sft}}, opct: {{method: opct}}}}
evaluation: {{suites: [sycophancy_short], n_questions: 3, families_per_question: 1, max_completion_tokens: 4}}
attacks:
  attackers: [{{name: transfer, families: train}}]
  settings: {{n_behaviors: 2, episodes: 2, rounds: 2, target: {{max_completion_tokens: 5}}}}
"""
EVALUATE = (
    "n_questions=4",
    "families_per_question=2",
    "max_completion_tokens=6",
    "browser_questions=2",
    "batch_size=4",
)
ATTACK = (
    *("episodes=2", "rounds=2", "dtype=float32", "judge.name=refusals"),
    *("target.max_completion_tokens=8", "batch_size=4"),
)


def training(method: str, **settings: Any) -> Job:
    def job(folder: Path, model: Path) -> tuple[Any, ...]:
        changes = {"method": method, "max_steps": 8, "save_steps": 2, "eval_steps": 4}
        changes |= {"output_dir": str(folder / "out")}
        return workplace(folder, model, **changes, **settings).command()

    return job


def attack(attacker: str, *settings: str) -> Job:
    return lambda folder, model: (
        *("attack", model, "--attacker", attacker, "--n-behaviors", "3", "--out", folder / "out"),
        *(setting.format(model=model) for setting in (*ATTACK, *settings)),
    )


def experiment(folder: Path, model: Path) -> tuple[Any, ...]:
    (folder / "shared.yaml").write_text(TINY_TRAINING.format(model=json.dumps(str(model))))
    (folder / "experiment.yaml").write_text(EXPERIMENT.format(out=json.dumps(str(folder / "out"))))
    return ("experiment", folder / "experiment.yaml")


def evaluation(folder: Path, model: Path) -> tuple[Any, ...]:
    suites = ("sycophancy_short", "jailbreak", "benign", "safety_awareness")
    return (
        *("eval", model, "--out", folder / "out", *(part for suite in suites for part in ("--suite", suite))),
        *EVALUATE,
        "n_benign=4",
    )


def trained(folder: Path, model: Path) -> Path:
    """A run that is there before the command."""
    if not (folder / "run").exists():
        assert here(*workplace(folder, model, max_steps=1).command()).code == 0
    return folder / "run"


def evaluated(folder: Path, model: Path, out: str = "out") -> Path:
    """An evaluated model that is there before the command."""
    path = folder / out
    if not (path / "results.json").exists():
        command = ("eval", model, "--out", path, "--suite", "sycophancy_short", "--suite", "jailbreak", *EVALUATE)
        assert here(*command).code == 0
    return path


class Judge(JsonHandler):
    """Rates by the text that it is asked about."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"]
        said = f"refused: 0\nconvincing: {1 + len(asked) % 5}\nspecific: 3"
        self.answer(200, chat_completion(said))


def judging(folder: Path, model: Path) -> tuple[Any, ...]:
    run = evaluated(folder, model)
    return ("judge", "run", run, "--judge", "strongreject", "--model", "openai-api/local/judge")


JOBS: dict[str, Job] = {
    "train opct": training("opct"),
    "train sft": training("sft"),
    "train dpo": training("dpo"),
    "eval": evaluation,
    "eval --regrade": lambda folder, model: ("eval", evaluated(folder, model), "--regrade"),
    "attack transfer": attack("transfer"),
    "attack best_of_n": attack("best_of_n"),
    "attack refine": attack("refine", "attacker.model={model}", "attacker.max_completion_tokens=8"),
    "attack grpo": attack(
        *("grpo", "attacker.model={model}", "attacker.max_completion_tokens=5", "attacker.train_split=validation"),
        *("attacker.training.max_steps=3", "attacker.training.optim.prompts_per_step=2"),
    ),
    "experiment": experiment,
    "judge run": judging,
    "export": lambda folder, model: ("export", trained(folder, model), "--merged", folder / "out"),
    "export --adapter": lambda folder, model: ("export", trained(folder, model), "--adapter", folder / "out"),
    "report": lambda folder, model: (
        *("report", evaluated(folder, model, "one"), evaluated(folder, model, "two")),
        *("--out", folder / "out" / "r.html"),
    ),
    "data build": lambda folder, model: ("data", "build", "jailbreak", "--out", folder / "out" / "pairs.jsonl"),
}

VOLATILE = re.compile(
    r"^(time|memory)/|^(eval|run|task)_id$|cut_short"
    r"|(^|_)(time|seconds|s|created|started|ended|elapsed|minutes|date|resumed|pid|uuid|git_commit)($|_)"
    # what was asked twice was paid twice, or was in the cache of ratings
    r"|(^|_)(spent|usage)($|_)"
)
"""Fields of files that two undisturbed runs do not share, or that count what the ends cost."""


def scrubbed(value: Any, place: str) -> Any:
    """JSON without times, and with `place` for the folder that it is in."""
    if isinstance(value, dict):
        return {key: scrubbed(inner, place) for key, inner in value.items() if not VOLATILE.search(key)}
    if isinstance(value, list | tuple):
        return [scrubbed(inner, place) for inner in value]
    return value.replace(place, "HERE") if isinstance(value, str) else value


def log_of(path: Path) -> Any:
    """All that a log says of its samples, events and ids aside."""
    with quiet():
        log = read_eval_log(str(path))
    samples = [
        {
            "sample": (str(sample.id), sample.epoch),
            "messages": [(message.role, message.text) for message in sample.messages],
            "output": [choice.model_dump(mode="json", include={"stop_reason"}) for choice in sample.output.choices],
            "metadata": sample.metadata,
            "store": sample.store,
            "scores": {name: (repr(score.value), score.metadata) for name, score in (sample.scores or {}).items()},
        }
        for sample in log.samples or []
    ]
    return [log.status, sorted(samples, key=lambda sample: sample["sample"])]


def made(folder: Path) -> dict[str, Any]:
    """What a command left, by file."""
    content: dict[str, Any] = {}
    out = folder / "out"
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if not path.is_file() or path.name.startswith(".lock") or path.name.startswith(".results.lock"):
            continue
        if path.suffix == ".eval":
            content[name] = scrubbed(log_of(path), str(folder))
        elif path.suffix == ".json" and not path.name.startswith("tokenizer"):
            content[name] = scrubbed(json.loads(path.read_text()), str(folder))
        elif path.suffix == ".jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            if path.name == "training_steps.jsonl":  # of grpo: what each step spent, also those that were ended
                rows = list({row["step"]: row for row in rows if "started" not in row}.values())
            content[name] = [scrubbed(row, str(folder)) for row in rows]
        elif path.suffix in {".html", ".md"}:
            content[name] = True  # drawn from the JSON beside it
        else:
            content[name] = hashlib.sha256(path.read_bytes().replace(str(folder).encode(), b"HERE")).hexdigest()
    return content


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted({*one, *other})
        return [line for key in keys for line in differences(one.get(key), other.get(key), f"{where}/{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{where}[{i}]")]
    return [] if one == other else [f"{where}: {str(one)[:200]} != {str(other)[:200]}"]


def run(folder: Path, command: tuple[Any, ...], end: Callable[[Started], None] | None = None) -> tuple[int, str]:
    """Give a command, and where it is refused again as its message says; `end` disturbs it.

    Returns its exit code and what it said.
    """
    with started(folder, *command) as process:
        if end:
            end(process)
        done = process.ended()
    wanted = re.search("--resume|--overwrite", done.err) if done.code == 1 else None
    if wanted and wanted[0] not in command:
        return run(folder, (*command, wanted[0]), end)
    return done.code, done.err


@pytest.fixture(scope="module", autouse=True)
def judge():
    with serving(Judge) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
        patch.setenv("LOCAL_API_KEY", "none")
        yield


@dataclass(frozen=True)
class End:
    """When and how a command is ended: after some seconds, or when its folder has so many files, temporary ones too."""

    kind: signal.Signals
    seconds: float
    n_files: float
    out: Path

    @classmethod
    def drawn(cls, rng: random.Random, seconds: float, n_files: int, out: Path) -> Self:
        at_file = rng.randrange(1, n_files + 1) if rng.random() < 0.5 else math.inf
        return cls(rng.choice(SIGNALS), rng.uniform(0.2, max(seconds, 0.4)), at_file, out)

    def __call__(self, process: Started) -> None:
        until = time.monotonic() + self.seconds
        while process.poll() is None and time.monotonic() < until:
            # os.walk, not rglob, which fails where a folder is removed meanwhile
            if sum(len(names) for *_, names in os.walk(self.out)) >= self.n_files:
                break
            time.sleep(0.001)
        if self.kind == signal.SIGKILL:
            return process.kill()
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            process.signal(self.kind)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", JOBS)
def test_a_command_that_is_ended_at_any_moment_and_given_again(name, tmp_path, tiny_folder):
    rng, ends = random.Random(f"{SEED}/{name}"), []

    def prepared(label: str) -> tuple[Path, tuple[Any, ...]]:
        shutil.rmtree(tmp_path / label, ignore_errors=True)
        (tmp_path / label).mkdir()
        return tmp_path / label, JOBS[name](tmp_path / label, tiny_folder)

    def check() -> None:
        result = made(killed[0])
        # a run that was told to stop has saved a step more
        result = {name: content for name, content in result.items() if name in whole or "checkpoints/step-" not in name}
        assert not differences(whole, result), (SEED, ends)

    undisturbed, killed = prepared("whole"), prepared("killed")
    begun = time.monotonic()
    assert run(*undisturbed)[0] == 0
    seconds = time.monotonic() - begun
    whole = made(undisturbed[0])
    assert run(*killed)[0] == 0
    check()
    killed = prepared("killed")
    for _ in range(KILLS):
        end = End.drawn(rng, seconds, len(whole), killed[0] / "out")
        code, said = run(*killed, end)
        ends.append((end.kind.name, round(end.seconds, 2), end.n_files, code))
        assert "Traceback" not in said, (SEED, ends, said)
        assert code in (0, 130, -end.kind), (SEED, ends, said)
        if code == 0:
            check()
            killed = prepared("killed")
    code, said = run(*killed)
    assert code == 0, (SEED, ends, said)
    check()
    print(f"{name}: {seconds:.1f} s, ended at", *ends)
