"""What `opct runs` lists, and the rows of results as a DataFrame."""

import json
import os
import platform
import re
import sys
from pathlib import Path

import pytest
from inspect_ai.log import write_eval_log

from opct.config.loader import dump_config
from opct.config.schema import TrainConfig
from opct.errors import EvaluationError
from opct.evals.logs import OPCT
from opct.reports.listing import list_runs, results
from opct.runs.io import append_jsonl, atomic_write, write_json
from opct.runs.run_dir import RunDir
from tests.logs import as_log
from tests.refusals import refused
from tests.unit.cli.running import on_a_terminal
from tests.unit.cli.running import run as opct
from tests.unit.reports.synthetic import make_records

ROW = {"axis": "sycophancy", "suite": "sycophancy_short", "metric": "sycophancy_rate", "n_unscored": 0, "n": 60}


def make_run(path: Path, *, steps: int, method: str = "opct") -> RunDir:
    """A training of two steps with a checkpoint after `steps`, still in use."""
    run = RunDir.create(path)
    run.write_manifest(data={}, teacher=None, seeds={}, total_steps=2)
    atomic_write(run.config_path, dump_config(TrainConfig(method=method, output_dir=str(path))))
    append_jsonl(run.metrics_path, {"step": steps})
    run.save_checkpoint(steps, lambda folder: atomic_write(folder / "adapter" / "weights", b"w"))
    return run


def write_results(folder: Path, label: str) -> None:
    about = {"label": label, "model": "owner/tiny", "method": None, "seed": None}
    rows = [
        ROW | {"group": group, "value": value, "ci_low": 0.1, "ci_high": 0.5}
        for group, value in (("all", 0.2), ("held_out", 0.3))
    ]
    write_json(folder / "results.json", {"run": about, "rows": rows})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run, an older stopped one, an evaluation with an attacker of its own, and a report."""
    with make_run(tmp_path / "done", steps=2) as run:
        write_results(run.path, "opct")
    make_run(tmp_path / "old" / "stopped", steps=1, method="sft").release()
    write_results(tmp_path / "base", "base")
    write_json(tmp_path / "base" / "attacks" / "grpo" / "attacker" / "results.json", {"of": "an attacker"})
    write_json(tmp_path / "page" / "report.json", {})
    for path in (tmp_path / "old" / "stopped").iterdir():
        os.utime(path, (1e9, 1e9))
    return tmp_path


def test_a_run_that_was_moved_is_resumed_where_it_is(folder: Path):
    (folder / "old" / "stopped").rename(folder / "moved")
    [command] = [entry.resume for entry in list_runs(folder) if entry.path.name == "moved"]
    assert command == f"opct train {folder}/moved/config.yaml --resume output_dir={folder}/moved"


def test_everything_is_listed_with_its_state_and_result_newest_first(folder: Path, capsys):
    found = {str(entry.path.relative_to(folder)): entry for entry in list_runs(folder)}
    kinds = {name: (entry.kind, entry.method, entry.state) for name, entry in found.items()}
    assert kinds == {
        "done": ("train", "opct", "finished"),
        "base": ("eval", None, "finished"),
        "page": ("report", None, "finished"),
        "old/stopped": ("train", "sft", "stopped"),
    }
    assert list(found)[-1] == "old/stopped"
    assert opct("runs", folder) == 0
    out = capsys.readouterr().out
    head, *rows, resume = out.splitlines()
    assert head.split() == ["run", "method", "step", "sycophancy_rate", "age"]
    texts = {row.split("  ")[0]: row.split() for row in rows}
    assert texts["done"][1:7] == ["opct", "2/2", "30.0%", "(10.0", "to", "50.0),"]
    assert texts["old/stopped"][1:4] == ["sft", "1/2", "stopped"]
    assert resume == f"to resume old/stopped: opct train {folder / 'old' / 'stopped' / 'config.yaml'} --resume"
    assert opct("runs", folder, "--json") == 0
    assert [entry["path"] for entry in json.loads(capsys.readouterr().out)] == [str(folder / name) for name in found]


def test_a_terminal_shows_a_run_on_a_line_and_its_state_as_a_color(folder: Path):
    """A name that is too long loses its beginning."""
    (folder / "old").rename(folder / f"old{'-' * 60}")
    code, shown = on_a_terminal("runs", folder)
    lines = re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines()
    assert (code, len(lines)) == (0, 6)
    assert max(map(len, lines[:5])) <= 80
    assert re.search(r"\x1b\[32mdone +\x1b", shown)
    assert re.search(r"\x1b\[33m\u2026-+/stopped\x1b", shown)


def test_a_run_is_running_while_a_process_works_in_it_and_damage_is_named(tmp_path: Path):
    run = make_run(tmp_path / "now", steps=1)
    assert list_runs(tmp_path)[0].state == "running"
    run.release()
    assert list_runs(tmp_path)[0].state == "stopped"
    atomic_write(run.config_path, "method: [")
    assert list_runs(tmp_path)[0].state.startswith("unreadable: ")
    with refused(EvaluationError, "nowhere"):
        list_runs(tmp_path / "nowhere")


def test_an_evaluation_that_was_interrupted_is_listed_with_what_is_done(tmp_path: Path):
    """By itself, while it runs and after it was stopped on another machine, and of a run."""

    def write(folder: Path, host: str) -> None:
        about = {OPCT: {"process": {"pid": os.getpid(), "host": host}}}
        log = as_log("sycophancy_short", make_records("base", questions=2)[:4], about, "tiny", {})
        log.status, log.eval.dataset.samples = "cancelled", 16
        path = folder / "evals" / "unfinished" / "a.eval"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_eval_log(log, str(path))

    def states() -> dict[str, tuple]:
        entries = list_runs(tmp_path)
        return {entry.path.name: (entry.kind, entry.state, bool(entry.resume)) for entry in entries}

    write(tmp_path / "evaluation", platform.node())
    assert states() == {"evaluation": ("eval", "running", False)}
    make_run(tmp_path / "run", steps=2).release()
    for name in ("evaluation", "run"):
        write(tmp_path / name, "elsewhere")
    assert states() == {"evaluation": ("eval", "stopped", True), "run": ("train", "finished", True)}
    for entry in list_runs(tmp_path):
        assert "sycophancy_short, 4 of 16" in entry.evaluation
        assert "--resume" in entry.resume


def test_results_are_a_table_of_every_row_of_every_run(folder: Path, monkeypatch):
    pytest.importorskip("pandas")
    table = results(folder)
    assert list(table["label"]) == ["base", "base", "opct", "opct"]
    assert list(table[table.group == "held_out"]["value"]) == [0.3, 0.3]
    assert len(results([folder / "done"])) == 2
    with refused(EvaluationError, "results.json"):
        results(folder / "page")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with refused(EvaluationError, "pandas"):
        results(folder)


FACTS = {"axis": "context_use", "suite": "context_use", "n_unscored": 0, "n": 3, "value": 0.5}
RISE = FACTS | {"group": "held_out", "metric": "biased_rate_rise"}
USED = FACTS | {"group": "clean", "metric": "context_use"}
ATTACK = {"axis": "attack", "suite": "attack_refine", "group": "behaviors", "n_unscored": 4, "n": 0}
UNDECIDED = ATTACK | {"metric": "defense_success_rate", "value": None}


@pytest.mark.parametrize(
    ("rows", "headline"),
    [([RISE, USED], USED), ([UNDECIDED, ATTACK | {"metric": "broken_after_1", "value": 0.0}], None)],
)
def test_the_headline_is_a_row_that_matters_and_no_bound_of_one_without_a_value(tmp_path: Path, rows, headline):
    write_json(tmp_path / "a" / "results.json", {"run": {"model": "owner/tiny"}, "rows": rows})
    [entry] = list_runs(tmp_path)
    assert (entry.state, entry.headline) == ("finished", headline)
