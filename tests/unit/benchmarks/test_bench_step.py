"""Phases add up, ratios pair repetitions, finished cells are not run again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks.cells import family_peak_gb, run_cell
from benchmarks.phases import PHASES, Phases
from benchmarks.step import HEAD, applies, cell_of, collect, file_of, parse_system, relative, small, table, work
from benchmarks.tables import markdown, ratios, spread
from benchmarks.workloads import WORKLOADS, Workload


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


def test_a_phase_inside_another_is_not_counted_twice():
    """loss_backward 1 + (policy 3, in it teacher 2) + 4, then 5 that nobody saw: 5, 3, 2 and other 5; 15 in all."""
    clock = Clock()
    phases = Phases(clock)
    owner = SimpleNamespace()
    owner.teacher = lambda: clock.spend(2)

    def policy():
        clock.spend(1)
        owner.teacher()
        clock.spend(2)
        return "scores"

    def accumulate():
        clock.spend(1)
        assert owner.policy() == "scores"
        clock.spend(4)

    owner.policy, owner.accumulate = policy, accumulate
    phases.wrap(owner, "teacher", "teacher")
    phases.wrap(owner, "policy", lambda: "policy")
    phases.wrap(owner, "accumulate", "loss_backward")
    owner.accumulate()
    clock.spend(5)
    phases.end_step()
    expected = {"loss_backward": 5.0, "policy": 3.0, "teacher": 2.0, "rollout": 0, "optimizer": 0, "other": 5.0}
    assert phases.steps == [expected | {"step": 15.0}]


def test_a_phase_that_fails_is_closed():
    clock = Clock()
    phases = Phases(clock)

    def fails():
        clock.spend(1)
        raise KeyError("x")

    owner = SimpleNamespace(fails=fails)
    phases.wrap(owner, "fails", "policy")
    with pytest.raises(KeyError):
        owner.fails()
    clock.spend(2)
    phases.end_step()
    assert (phases.steps[0]["policy"], phases.steps[0]["other"]) == (1.0, 2.0)


def test_spread_and_ratios():
    """Repetitions 0 and 2 are common: 4/2 and 9/3; repetition 1 has nothing to be compared with."""
    assert spread([3.0, 1.0, 2.0]).text() == "2.0 [1.0, 3.0]"
    assert spread([3.0]).text(2) == "3.00"
    both = ratios({0: 4.0, 1: 100.0, 2: 9.0}, {0: 2.0, 2: 3.0, 3: 1.0})
    assert both is not None
    assert (both.middle, both.low, both.high, both.n) == (2.5, 2.0, 3.0, 2)
    assert ratios({0: 1.0}, {1: 1.0}) is None
    with pytest.raises(ValueError, match="no repetition"):
        spread([])


def test_markdown_refuses_a_short_row():
    assert markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    with pytest.raises(ValueError, match="a row has 1 cells and the head 2"):
        markdown(["a", "b"], [["1"]])


def test_systems_by_name():
    assert parse_system("opct") == ("opct", "", None)
    assert parse_system("sdft/bf16@4") == ("sdft", "bf16", 4)
    assert parse_system("opct/-flash,cascade@400") == ("opct", "-flash,cascade", 400)
    for wrong in ("sdft", "opct/bf16", "opct/-", "opct/-flahs", "sdft/-flash", "chunked/fast", "verl/shipped"):
        with pytest.raises(ValueError, match="is none of opct"):
            parse_system(wrong)
    assert applies("lora", "sdft/bf16", "bfloat16")
    assert not applies("lora", "sdft/bf16", "float32")
    assert applies("full", "sdft/autocast", "bfloat16")
    assert applies("full", "sdft/autocast", "float32")
    assert not applies("full", "sdft/bf16@4", "bfloat16")


def test_losses_are_compared_on_few_rows_of_the_same_lengths():
    part = small(WORKLOADS["long"])
    assert (part.rows, part.prompt_tokens, part.teacher_tokens, part.completion_tokens) == (4, 600, 300, 96)
    assert small(WORKLOADS["g1"]).rows == 2
    assert relative(1.002, 1.0) == pytest.approx(2e-3)


def write_cell(out: Path, text: str, rep: int, seconds: list[float]) -> None:
    cell = cell_of(WORKLOADS["short"], "lora", text, rep=rep)
    steps = [dict.fromkeys(PHASES, s / 8) | {"other": 3 * s / 8, "step": s} for s in seconds]
    path = file_of(out, cell, text, f"-{rep}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"cell": cell, "result": {"steps": steps, "peak_gb": 2.0 + rep, "training_flops": 7e12}})
    )


def test_the_table_leaves_the_warm_up_out_and_has_ours_first(tmp_path: Path):
    """opct 2 and 4 s after a first step of 99, the peer 8 and 8: 4 and 2 times as long; 1536 tokens a step."""
    for rep, (ours, theirs) in enumerate([(2.0, 8.0), (4.0, 8.0)]):
        write_cell(tmp_path, "opct", rep, [99.0, ours, ours])
        write_cell(tmp_path, "opct/-flash", rep, [99.0, 2 * ours])
        write_cell(tmp_path, "chunked/bf16", rep, [99.0, theirs])
    (tmp_path / "lora" / "short" / "opct-loss.json").write_text("{}")  # not a timed cell
    assert set(collect(tmp_path)) == {("lora", "short")}
    assert "| - |" in table(tmp_path)  # no rate, no share
    lines = table(tmp_path, 4e12).splitlines()
    assert lines[0].startswith("**short, lora**: 8 prompts x 4 completions, 64 / 48 / 64 tokens")
    first, second, third = (
        dict(zip(HEAD, [c.strip() for c in line.strip("|").split("|")], strict=True)) for line in lines[4:7]
    )
    assert first["system (micro-batch)"] == "opct@1536"
    assert first["s a step"] == "3.00 [2.00, 4.00]"
    assert first["completion tokens/s"] == "768 [512, 1024]"
    assert first["share of the GEMM rate"] == "75%"  # 7 TFLOP in 7/8 of 2 and of 4 s: 4 and 2 a second, of 4
    assert first["peak GB"] == "2.5 [2.0, 3.0]"
    assert second["system (micro-batch)"] == "chunked/bf16@32"
    assert second["times opct"] == "3.00 [2.00, 4.00]"
    assert second["other"] == "3.00"
    assert (third["system (micro-batch)"], third["times opct"]) == ("opct/-flash@1536", "2.00 [2.00, 2.00]")
    write_cell(tmp_path, "sdft/bf16", 0, [0.1, 9.0])
    fastest = table(tmp_path).splitlines()[-1]
    assert fastest.startswith(
        "Fastest peer: chunked/bf16@32, 3.00 [2.00, 4.00] times the seconds and 1.00 [1.00, 1.00]"
    )


WORKER = """
import json, sys
from pathlib import Path
from benchmarks.cells import serve
def work(cell):
    if cell["n"] < 0:
        raise SystemExit("n is negative")
    count = Path(cell["count"])
    count.write_text(count.read_text() + "x")
    return {"twice": 2 * cell["n"]}
serve(work)
"""


def test_a_finished_cell_is_not_run_again(tmp_path: Path, monkeypatch, capsys):
    """The same settings are read from the file, others are measured, another commit's too; a failed one leaves what
    it said."""
    (tmp_path / "bench_worker.py").write_text(WORKER)
    monkeypatch.setattr("benchmarks.cells.ROOT", Path(__file__).resolve().parents[3])
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{tmp_path}" exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    count = tmp_path / "count"
    count.write_text("")
    path, cell = tmp_path / "out" / "a.json", {"n": 3, "count": str(count)}
    for _ in range(2):
        result = run_cell(path, cell, "bench_worker", python=str(program), limit_s=60)
        assert result is not None
        assert result["twice"] == 6
        assert result["peak_gb"] > 0
        assert {"versions", "processor", "commit"} <= set(result)
    assert count.read_text() == "x"
    assert run_cell(path, cell | {"n": 4}, "bench_worker", python=str(program), limit_s=60)["twice"] == 8
    assert count.read_text() == "xx"
    monkeypatch.setattr("benchmarks.cells.commit", lambda: "another")
    for threads in (None, 1):
        run_cell(path, cell | {"n": 4}, "bench_worker", python=str(program), limit_s=60, threads=threads)
    assert count.read_text() == "xxxx"
    failed = tmp_path / "out" / "b.json"
    assert run_cell(failed, cell | {"n": -1}, "bench_worker", python=str(program), limit_s=60) is None
    assert not failed.exists()
    assert "failed with exit code 1: n is negative" in capsys.readouterr().out


def test_a_cell_that_takes_too_long_ends_with_what_it_started(tmp_path: Path, capsys):
    program, late = tmp_path / "python", tmp_path / "late"
    program.write_text(f"#!/bin/sh\n(sleep 0.5; touch {late}) & wait\n")
    program.chmod(0o755)
    assert run_cell(tmp_path / "a.json", {}, "bench_worker", python=str(program), limit_s=0.2) is None
    assert "stopped after 0 s" in capsys.readouterr().out
    time.sleep(0.6)
    assert not late.exists()


def test_a_step_is_timed_in_its_parts(tiny_folder: Path):
    """2 x 2 completions of 5 tokens, two steps, each part with its seconds."""
    settings = {"model": str(tiny_folder), "dtype": "bfloat16", "rep": 0, "do": "time"}
    result = work(cell_of(Workload("tiny", 2, 2, 90, 71, 5), "lora", "opct/-cascade@400", steps=2, **settings))
    assert len(result["steps"]) == len(result["trainer"]) == 2
    for step, own in zip(result["steps"], result["trainer"], strict=True):
        assert all(step[phase] > 0 for phase in PHASES)
        assert sum(step[phase] for phase in (*PHASES, "other")) == pytest.approx(step["step"])
        assert step["rollout"] <= own["time/rollout_s"] < own["time/step_s"] <= step["step"]
    assert result["training_flops"] > 0


def test_the_loss_that_is_compared_is_that_of_a_step(tiny_folder: Path):
    """Before any update: a loss, its gradient, and the completions for the others to compute it of."""
    workload = small(Workload("tiny", 3, 4, 90, 71, 5))
    result = work(cell_of(workload, "full", "opct@400", model=str(tiny_folder), steps=1, dtype="float32", do="check"))
    assert (result["prompt_tokens"], result["teacher_tokens"]) == ([90], [71])
    assert result["loss"] > 0
    assert result["grad_norm"] > 0
    assert {pair: [len(ids) for ids in own] for pair, own in result["completions"].items()} == {
        "tiny/0": [5, 5],
        "tiny/1": [5, 5],
    }


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc on this system")
def test_memory_of_a_family_counts_the_children():
    """A child that fills 80 MB adds them, though this process has not grown."""
    before = family_peak_gb()
    code = "x = bytearray(b'1') * 80_000_000; print('filled', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"filled\n"
        assert 0.08 < family_peak_gb() - before < 0.2
        child.communicate(b"\n")
