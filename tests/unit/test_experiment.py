"""What an experiment does with the runs that are there, and in which order; training and measuring are faked."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from opct.cli.app import main
from opct.config.loader import dump_config
from opct.errors import DivergenceError, NonFiniteError, RunError, TrainingError
from opct.experiments import runner as module
from opct.experiments import stages
from opct.experiments.config import load_experiment
from opct.runs.io import write_jsonl
from opct.runs.run_dir import RunDir
from tests.unit.reports.synthetic import write_run

SHARED = "max_steps: 2\noptim: {prompts_per_step: 4}\nmodel: {device: cpu}\n"
PLAIN = "output_dir: {out}\ntrain: shared.yaml\nseeds: [0]\narms:\n  sft: {{method: sft}}\n  opct: {{method: opct}}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "shared.yaml").write_text(SHARED)
    path = tmp_path / "experiment.yaml"
    path.write_text(PLAIN.format(out=json.dumps(str(tmp_path / "out"))))
    return path


def begun(folder: Path, **manifest) -> RunDir:
    """A run with that in its manifest, and nothing besides."""
    run = RunDir(folder)
    run.path.mkdir(parents=True)
    run.manifest_path.write_text(json.dumps({"opct_run": 1, "created": "now"} | manifest))
    return run


def trained(path: Path, arm: str, steps: int, *overrides: str) -> None:
    """A run of float32 that has all of so many steps, as the experiment's settings with these overrides ask."""
    config = load_experiment(path, ["model.dtype=float32", *overrides]).configs[arm, 0]
    run = begun(Path(config.output_dir), total_steps=steps, dtype="float32")
    run.config_path.write_text(dump_config(config))
    run.save_checkpoint(steps, lambda folder: None)


def test_a_run_that_was_killed_before_its_first_step_says_nothing_of_the_dtype(path: Path, tmp_path: Path):
    """Its manifest is the one that a folder begins with; the other run there decides."""
    begun(tmp_path / "out" / "sft-seed0")
    experiment = load_experiment(path)
    assert module._dtype(experiment) in ("float32", "bfloat16")
    begun(tmp_path / "out" / "opct-seed0", dtype="float16")
    assert module._dtype(experiment) == "float16"


@pytest.mark.parametrize("length", ["num_train_epochs=2.0", "max_steps=40"])
def test_an_arm_that_is_not_trained_on_yet_has_no_length_to_compare(path: Path, length: str):
    """Both had 20 steps, by settings of before; one is trained to 40 now and its turn is over, the other comes next.
    Each that is finished counts: 40 and 20 by the same settings are refused."""
    rate = "optim.lr_scheduler_type=constant"
    trained(path, "sft", 40, rate, "max_steps=null", length)
    trained(path, "opct", 20, rate, "max_steps=null")
    experiment = load_experiment(path, [rate, "max_steps=null", length])
    arm = experiment.arms[0]
    module._refuse_other_lengths(experiment, arm, 0, "float32")


def test_arms_of_one_budget_that_came_out_as_unlike_numbers_of_steps_are_refused(path: Path):
    """As the pairs that fit the model decide, by the same settings: 4 and 3. As many are fine."""
    trained(path, "sft", 4, "max_steps=null")
    experiment = load_experiment(path, ["max_steps=null"])
    module._refuse_other_lengths(experiment, experiment.arms[0], 0, "float32")
    trained(path, "opct", 3, "max_steps=null")
    for arm in experiment.arms:
        with pytest.raises(
            RunError, match=r"seed 0 have unlike numbers of steps \(sft: 4, opct: 3\).*same_budget: false"
        ):
            module._refuse_other_lengths(experiment, arm, 0, "float32")


@pytest.fixture
def faked(path: Path, monkeypatch):
    """Three arms with two seeds, whose training and measuring are only noted; `stops` says what training raises."""
    text = path.read_text().replace("seeds: [0]", "seeds: [0, 1]")
    path.write_text(text + "  both: {method: opct, after: opct}\n")
    seen = SimpleNamespace(stops={}, trained=[], measured=[], reported=None)

    def train_once(config, name, **_):
        seen.trained.append(name)
        if name in seen.stops:
            raise seen.stops[name]

    def evaluate_once(label, folder, *_, **__):
        seen.measured.append(folder.name)

    def report(folders, out, **settings):
        seen.reported = ([folder.name for folder in folders], settings)
        return out

    monkeypatch.setattr(module, "train_once", train_once)
    monkeypatch.setattr(module, "evaluate_once", evaluate_once)
    monkeypatch.setattr("opct.reports.report", report)
    return seen


def test_a_run_that_stops_itself_is_left_out_and_the_others_go_on(path: Path, tmp_path: Path, faked, capsys):
    """One seed of opct diverges, so the arm after it has that seed neither. The command ends with an error; the next
    call tries again."""
    faked.stops["opct, seed 0"] = DivergenceError("Step 3: the KL\nleft its bound")
    result = module.run_experiment(path)
    assert faked.trained == ["sft, seed 0", "opct, seed 0", "sft, seed 1", "opct, seed 1", "both, seed 1"]
    left = ["sft-seed0", "sft-seed1", "opct-seed1", "both-seed1"]
    assert sorted(faked.measured) == sorted([*left, "base"])
    folders, settings = faked.reported
    assert folders == ["base", *left]
    why = "Step 3: the KL left its bound"
    after = "it goes on from opct, seed 0, which failed"
    assert result.failed == {"opct, seed 0": why, "both, seed 0": after}
    assert settings["warnings"][0] == f"opct, seed 0 failed, and is not in this report: {why}"
    assert len(settings["warnings"]) == 2
    assert settings["suites"] == ["sycophancy_short", "benign"]
    assert (settings["references"], settings["also"]) == ({"opct": "sft", "both": "sft"}, [("both", "opct")])
    with pytest.raises(SystemExit) as caught:
        main(["experiment", str(path)])
    assert caught.value.code == 1
    said = capsys.readouterr()
    assert f"error: 2 of the runs failed (opct, seed 0: {why}; both, seed 0: {after})" in said.err
    assert "failed, and not in the report: opct, seed 0" in said.out
    faked.stops.clear()
    assert module.run_experiment(path).failed == {}
    assert len(faked.reported[0]) == 7


def test_an_arm_of_which_every_seed_failed_has_no_cost(path: Path, tmp_path: Path, faked):
    faked.stops |= {f"both, seed {seed}": NonFiniteError("the loss is nan") for seed in (0, 1)}
    assert list(module.run_experiment(path).costs) == ["sft", "opct"]
    assert list(json.loads((tmp_path / "out" / "costs.json").read_text())) == ["sft", "opct"]


def test_where_every_run_failed_there_is_no_report(path: Path, faked):
    faked.stops |= {f"{arm}, seed {seed}": NonFiniteError("nan") for arm in ("sft", "opct") for seed in (0, 1)}
    with pytest.raises(TrainingError, match=r"Every run of .* failed.*sft, seed 0: nan.*both, seed 1: it goes on from"):
        module.run_experiment(path)
    assert (faked.measured, faked.reported) == ([], None)


def test_no_other_error_is_passed_over(path: Path, faked):
    faked.stops["opct, seed 0"] = RunError("in use")
    with pytest.raises(RunError, match="in use"):
        module.run_experiment(path)
    assert faked.trained == ["sft, seed 0", "opct, seed 0"]


@pytest.fixture
def small(path: Path, tmp_path: Path, monkeypatch):
    """Runs an experiment of two arms and two seeds into a folder, cut short before each of the parts named; gives its
    report without the time and the place. Training writes what tells it to be finished, measuring replies by a hash."""
    text = path.read_text().replace("seeds: [0]", "seeds: [0, 1]")
    text += "evaluation: {suites: [sycophancy_short], n_questions: 2}\n"
    left: list[str] = []
    done: list[str] = []

    def part(name: str) -> None:
        if name in left:
            left.remove(name)
            raise KeyboardInterrupt
        done.append(name)

    def train(config, *, resume, **_):
        folder = Path(config.output_dir)
        part(f"train {folder.name}")
        run = begun(folder, total_steps=2, dtype=config.model.dtype)
        run.config_path.write_text(dump_config(config))
        write_jsonl(run.metrics_path, [{"step": step, "time/step_s": 1.5} for step in (1, 2)])
        run.save_checkpoint(2, adapter)
        return SimpleNamespace(status="finished", step=2)

    def adapter(place: Path) -> None:
        (place / "adapter").mkdir()
        (place / "adapter" / "adapter_model.safetensors").write_bytes(b"weights")

    def evaluate(target, *, out, label, **_):
        part(f"measure {out.name}")
        seed = int(out.name[-1]) if "seed" in out.name else 0
        made = write_run(tmp_path / f"{out.parent.name} made {len(done)}", label, seed, name=out.name, questions=4)
        (out / "evals").mkdir(parents=True, exist_ok=True)
        for name in ("results.json", "evals/samples.jsonl"):
            (out / name).write_bytes((made / name).read_bytes())
        return SimpleNamespace(results=json.loads((out / "results.json").read_text()))

    monkeypatch.setattr(stages, "train", train)
    monkeypatch.setattr(stages, "evaluate", evaluate)
    monkeypatch.setattr("opct.models.policy.Policy", SimpleNamespace(load=lambda *_, **__: None))

    def run(name: str, *cuts: str) -> tuple[str, list[str]]:
        out = tmp_path / name
        path.write_text(text.replace(json.dumps(str(tmp_path / "out")), json.dumps(str(out))))
        left[:], done[:] = cuts, []
        for _ in cuts:
            with pytest.raises(KeyboardInterrupt):
                module.run_experiment(path)
        module.run_experiment(path)
        made = json.loads((out / "report.json").read_text(encoding="utf-8"))
        assert made.pop("created")
        return json.dumps(made).replace(str(out), "OUT"), sorted(done)

    return run


def test_the_report_of_what_was_cut_short_is_that_of_what_was_not(small):
    """Before a run was trained, before one was measured, and before the base was; nothing was done twice."""
    whole, parts = small("whole")
    assert len(parts) == len(set(parts)) == 4 + 4 + 1
    assert small("cut", "train opct-seed0", "measure sft-seed1", "measure base") == (whole, parts)
