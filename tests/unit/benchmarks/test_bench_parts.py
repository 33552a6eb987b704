"""The pure parts of the benchmarks of the sampler, of a step's parts and of the cost model."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from benchmarks import breakdown, cost, sampler
from benchmarks.cells import run_cell
from tests.conftest import REPOSITORY

from opct.models.cost_model import Batch, Machine, Setting, memory, step_time
from opct.models.shape import Shape

SHAPE = Shape(layers=2, hidden=32, heads=4, kv_heads=2, head_size=8, inner=64, vocabulary=320, tied=True)


@pytest.mark.parametrize(
    ("operator", "group"),
    [
        ("aten::mm", "gemm"),
        ("aten::addmm_", "gemm"),
        ("aten::mkldnn_linear", "gemm"),
        ("_LoraLinear", "gemm"),
        ("_LoraLinearBackward", "gemm"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("aten::copy_", "copies, casts"),
        ("aten::index_select", "copies, casts"),
        ("aten::_log_softmax", "softmax, loss"),
        ("aten::mul", "norm, element-wise"),
        ("aten::rsqrt", "norm, element-wise"),
        ("aten::empty", "other"),
    ],
)
def test_operators_by_group(operator: str, group: str):
    assert breakdown.group_of(operator) == group


def test_groups_add_up():
    """mm 2 and addmm 1 are gemm 3; nothing is lost."""
    found = breakdown.by_group({"aten::mm": 2.0, "aten::addmm": 1.0, "aten::mul": 0.5, "aten::empty": 0.25})
    assert found == {"gemm": 3.0, "norm, element-wise": 0.5, "other": 0.25}


def test_shares_of_the_rate():
    """2e12 operations in 4 s at 1e12 a second are half of the rate; 1 of 4 profiled seconds was gemm."""
    rates = {"rates": [{"dtype": "bfloat16", "matrix": "down", "rows": 32, "gflops": n} for n in (400.0, 1000.0)]}
    assert breakdown.best_rate(rates, "bfloat16") == 1e12
    part = {"seconds": [3.0, 4.0, 5.0], "flops": 2e12, "groups": {"gemm": 1.0, "other": 3.0}}
    line = breakdown.part_table({"teacher": part}, 1e12).splitlines()[-1]
    assert [cell.strip() for cell in line.strip("|").split("|")][:5] == [
        "teacher",
        "4.00 [3.00, 5.00]",
        "2.00",
        "50%",
        "25%",
    ]


def write_sampler(out: Path, case: str, engine: str, rep: int, seconds: float) -> None:
    cell = {"case": case, "engine": engine, "rep": rep}
    path = out / case / f"{engine}-{rep}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {"seconds": [seconds, seconds], "tokens": [100, 100], "peak_gb": 1.0}
    path.write_text(json.dumps({"cell": cell, "result": result}))


def test_engines_are_compared_with_the_better_cache(tmp_path: Path):
    """100 tokens in 1 s (opct), 4 s (growing cache) and 2 s (static cache): 100, 25 and 50 a second, 2, 0.5 and 1x."""
    for engine, seconds in (("opct", 1.0), ("hf-dynamic", 4.0), ("hf-static", 2.0)):
        write_sampler(tmp_path, "8", engine, 0, seconds)
    (tmp_path / "prompts-8.json").write_text("{}")  # no measurement
    rows = {line.split("|")[1].strip(): line.split("|")[2].strip() for line in sampler.table(tmp_path).splitlines()[2:]}
    assert rows == {"opct": "100; 2.00x", "hf-dynamic": "25; 0.50x", "hf-static": "50; 1.00x"}


def test_sweeps_change_one_size_each():
    base = asdict(cost.BASE)
    for name, value, workload, vocabulary in cost.points():
        changed = {key for key, own in asdict(workload).items() if own != base[key]}
        assert changed <= {name}
        assert (vocabulary == value) if name == "vocabulary" else vocabulary == cost.VOCABULARY


def test_the_prediction_is_right_at_the_first_batch(tmp_path: Path):
    """Half and a tenth of the limits are reached there; another point is predicted with these two shares."""
    setting, machine = Setting(4), Machine(1e9, 1e9)

    def write(generations: int, rollout: float, step: float) -> tuple[float, float]:
        batch = Batch(4, generations, 64, 48, 64)
        folder = tmp_path / "generations"
        folder.mkdir(exist_ok=True)
        parts = {"shape": asdict(SHAPE), "setting": asdict(setting), "batch": asdict(batch)}
        steps = [{"rollout": 99.0, "step": 99.0}, {"rollout": rollout, "step": step}]
        result = parts | {"steps": steps, "peak_gb": 3.0, "loaded_gb": 1.0}
        (folder / f"{generations}.json").write_text(json.dumps({"cell": {}, "result": result}))
        seconds = step_time(SHAPE, setting, batch, machine)
        return seconds.rollout, seconds.training

    (tmp_path / "machine.json").write_text(json.dumps({"result": asdict(machine)}))
    rollout, training = write(4, 0, 0)
    write(4, rollout / 0.5, rollout / 0.5 + training / 0.1)
    other = write(8, 1.0, 2.0)
    found = cost.collect(tmp_path)
    assert [p.value for p in found] == [4, 8]
    assert cost.efficiencies(found) == pytest.approx((0.5, 0.1))
    assert found[0].fitted(0.5, 0.1) == pytest.approx(found[0].rollout + found[0].training)
    assert found[1].fitted(0.5, 0.1) == pytest.approx(other[0] / 0.5 + other[1] / 0.1)
    predicted = memory(SHAPE, setting, Batch(4, 4, 64, 48, 64))
    assert found[0].added_gb == 2.0
    assert found[0].predicted_gb == pytest.approx((predicted.peak - predicted.weights) / 1e9)
    assert "rollout 50%, training 10%" in cost.table(found)
    with pytest.raises(SystemExit, match="first batch"):
        cost.efficiencies(found[1:])


def test_every_scenario_has_its_row_on_the_page_and_fits_its_machine():
    lines = cost.scenario_table().splitlines()
    assert len(lines) == 2 + len(cost.SCENARIOS)
    page = (REPOSITORY / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert cost.scenario_table() in page, (
        "docs/scaling.md has another table than `python -m benchmarks.cost --scenarios`"
    )
    assert cost.LLAMA_8B.parameters == 8_030_261_248
    assert cost.QWEN_1_5B.parameters == pytest.approx(1_543_714_304, rel=1e-3)
    assert cost.LLAMA_70B.parameters == 70_553_706_496
    for one in cost.SCENARIOS[1:]:  # of 80 GB a device; the libraries and the allocator want some
        assert memory(one.shape, one.setting, one.batch).peak <= 75e9, one.title


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_steps_parts_are_measured(tmp_path: Path, tiny_folder: Path, dtype: str):
    """Seconds, operations and groups of operators of all five, in a process of its own."""
    workload = {"name": "tiny", "prompts": 2, "generations": 2}
    workload |= {"prompt_tokens": 90, "teacher_tokens": 71, "completion_tokens": 5}
    cell = {"do": "parts", "model": str(tiny_folder), "training": "full", "workload": workload, "dtype": dtype}
    result = run_cell(tmp_path / "tiny.json", cell, "benchmarks.breakdown", limit_s=200, threads=1)
    assert result is not None, (tmp_path / "tiny.log").read_text()
    assert tuple(result["parts"]) == breakdown.PARTS
    for part in result["parts"].values():
        assert all(s > 0 for s in part["seconds"])
        assert len(part["seconds"]) == 3
        assert part["flops"] > 0
        assert part["groups"]["gemm"] > 0
    assert "attention" in result["parts"]["backward"]["groups"]
