"""What an experiment does with the runs that are there, and in which order; training and measuring are faked."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from inspect_ai.log import write_eval_log

from opct.cli.app import main
from opct.config.loader import dump_config
from opct.config.schema import TrainConfig
from opct.data.reasoning import Reasoning
from opct.errors import (
    ConfigError,
    DataError,
    DivergenceError,
    EvaluationError,
    NonFiniteError,
    NothingToResumeError,
    RunError,
    TrainingError,
)
from opct.evals.config import EvalConfig
from opct.evals.logs import OPCT
from opct.evals.target import open_target
from opct.experiments import runner as module
from opct.experiments.config import load_experiment
from opct.runs.console import NullProgress
from opct.runs.io import atomic_write, write_json, write_jsonl
from opct.runs.run_dir import RunDir
from opct.runs.usage import Usage
from tests.logs import as_log
from tests.refusals import refused
from tests.unit.reports.synthetic import write_run

COST = Usage(12345.0, 1000, 10_000_000, 10_000_000, 0, 0, 1000, 12345.0)
PLAIN = "output_dir: {out}\ntrain: shared.yaml\nseeds: [0]\narms:\n  sft: {{method: sft}}\n  opct: {{method: opct}}\n"


@pytest.fixture
def path(tmp_path: Path, tiny_folder: Path) -> Path:
    model = f"{{name_or_path: {json.dumps(str(tiny_folder))}, device: cpu, dtype: float32}}"
    (tmp_path / "shared.yaml").write_text(f"max_steps: 2\noptim: {{prompts_per_step: 4}}\nmodel: {model}\n")
    path = tmp_path / "experiment.yaml"
    path.write_text(PLAIN.format(out=json.dumps(str(tmp_path / "out"))))
    return path


def begun(folder: Path, **manifest) -> RunDir:
    """A run with that in its manifest, and nothing besides."""
    run = RunDir(folder)
    run.path.mkdir(parents=True)
    run.manifest_path.write_text(json.dumps({"opct_run": 1, "created": "now"} | manifest))
    return run


def save(run: RunDir, step: int, weights: bytes = b"weights") -> None:
    run.save_checkpoint(step, lambda place: atomic_write(place / "adapter" / "adapter_model.safetensors", weights))


def test_runs_of_unlike_dtypes_are_not_compared(path: Path, tmp_path: Path):
    shared = tmp_path / "shared.yaml"
    shared.write_text(shared.read_text().replace(", dtype: float32", ""))
    begun(tmp_path / "out" / "sft-seed0", dtype="float32")
    begun(tmp_path / "out" / "opct-seed0", dtype="bfloat16")
    with refused(RunError, "float32", "bfloat16", "model.dtype=float32"):
        module.run_experiment(path)


def test_what_cannot_be_measured_is_refused_before_training(path: Path, tmp_path: Path, monkeypatch):
    """The data of suites, all at once; none where all was measured before. And a judge that cannot be used."""
    text = path.read_text()
    behaviors, facts = tmp_path / "behaviors.csv", tmp_path / "facts.jsonl"
    files = f"jailbreak: {json.dumps(str(behaviors))}, safety_awareness: {json.dumps(str(facts))}"
    suites = f"suites: [benign, jailbreak, safety_awareness], n_benign: 1, data: {{{files}}}"
    monkeypatch.setattr(module, "ensure_trained", lambda *_, **__: pytest.fail("trained first"))
    path.write_text(f"{text}evaluation: {{suites: [jailbreak], judge: {{name: no-such-folder}}}}\n")
    with refused(EvaluationError, "no-such-folder"):
        module.run_experiment(path)
    path.write_text(f"{text}evaluation: {{{suites}}}\n")
    with refused(DataError, behaviors, facts) as caught:
        module.run_experiment(path)
    assert len(caught.value.faults) == 2
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(module, "is_evaluated", lambda label, *_: True)
    module._check_inputs(load_experiment(path))


@pytest.fixture
def faked(path: Path, monkeypatch):
    """Three arms with two seeds, whose training and measuring are only noted; `stops` says what training raises."""
    few = "evaluation: {n_questions: 2, n_benign: 2, n_context: 2}"
    text = path.read_text().replace("seeds: [0]", f"seeds: [0, 1]\n{few}")
    path.write_text(text + "  both: {method: opct, after: opct}\n")
    seen = SimpleNamespace(stops={}, trained=[], measured={}, reported=None)

    def ensure_trained(config, name, **_):
        seen.trained.append(name)
        if name in seen.stops:
            raise seen.stops[name]

    def ensure_evaluated(label, folder, config, own, **_):
        seen.measured[folder.name] = own

    def report(folders, out, **settings):
        seen.reported = ([folder.name for folder in folders], settings)
        arms = dict.fromkeys(folder.name.partition("-seed")[0] for folder in folders)
        costs = {arm: None if arm == "base" else vars(COST) for arm in arms}
        numbers = {"rows": [], "first_rows": [], "summary": ["as measured"], "costs": costs}
        write_json(out.with_suffix(".json"), numbers)
        return out

    monkeypatch.setattr(module, "ensure_trained", ensure_trained)
    monkeypatch.setattr(module, "ensure_evaluated", ensure_evaluated)
    monkeypatch.setattr(module, "report", report)
    return seen


def test_a_run_that_stops_itself_is_left_out_and_the_others_go_on(path: Path, faked, capsys):
    """One seed of opct diverges, so the arm after it has that seed neither. The command ends with an error; the next
    call tries again."""
    why = "Step 3: the KL left its bound"
    faked.stops["opct, seed 0"] = DivergenceError(why.replace(" left", "\nleft"))
    with pytest.raises(SystemExit) as caught:
        main(["experiment", str(path)])
    assert caught.value.code == 1
    assert why in capsys.readouterr().err
    faked.measured.clear()
    result = module.run_experiment(path)
    assert faked.trained[5:] == ["sft, seed 0", "opct, seed 0", "sft, seed 1", "opct, seed 1", "both, seed 1"]
    left = ["sft-seed0", "sft-seed1", "opct-seed1", "both-seed1"]
    assert sorted(faked.measured) == sorted([*left, "base"])
    folders, settings = faked.reported
    assert folders == ["base", *left]
    assert list(result.failed) == ["opct, seed 0", "both, seed 0"]
    assert result.failed["opct, seed 0"] == why
    assert why in settings["warnings"][0]
    assert settings["suites"] == ["sycophancy_short", "context_use", "benign"]
    assert settings["also"] == [("both", "opct")]
    faked.stops.clear()
    assert module.run_experiment(path).failed == {}
    assert len(faked.reported[0]) == 7


def test_the_base_is_measured_once_more_with_each_system_prompt(path: Path, faked, monkeypatch):
    """In a folder of its own, next to the base; a name that an arm has is refused."""
    plain = path.read_text()
    faulty = plain.replace("n_benign: 2", "n_benign: 2, system_prompt: x")
    path.write_text(faulty + "system_prompts: {sft: a, opct-seed1: b}\n")
    with refused(ConfigError, "system_prompts.sft", "system_prompts.opct-seed1", "evaluation.system_prompt"):
        load_experiment(path)
    path.write_text(plain + "system_prompts: {independent: Judge for yourself.}\ncompare: [[opct, independent]]\n")
    checked = []
    monkeypatch.setattr(module, "make_tasks", lambda settings: checked.append(settings.system_prompt) or [])
    module.run_experiment(path)
    assert checked == [None, "Judge for yourself."]  # before anything is trained
    assert faked.measured.pop("independent").system_prompt == "Judge for yourself."
    assert {own.system_prompt for own in faked.measured.values()} == {None}
    assert faked.reported[0][:2] == ["base", "independent"]
    assert ("opct", "independent") in faked.reported[1]["also"]


def test_where_every_run_failed_there_is_no_report(path: Path, faked):
    faked.stops |= {f"{arm}, seed {seed}": NonFiniteError("nan") for arm in ("sft", "opct") for seed in (0, 1)}
    with refused(TrainingError, "sft, seed 0: nan", "both, seed 1"):
        module.run_experiment(path)
    assert (faked.measured, faked.reported) == ({}, None)


@pytest.fixture
def small(path: Path, tmp_path: Path, monkeypatch):
    """Runs an experiment of two arms into a folder, cut short before each of the parts named; gives its
    report without the time and the place. Training writes what tells it to be finished, measuring replies by a hash."""
    text = path.read_text() + "evaluation: {suites: [sycophancy_short], n_questions: 2}\n"
    left: list[str] = []
    done: list[str] = []
    together = [Barrier(1)]  # the first trainings of all processes wait for each other
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.01)

    def part(name: str) -> None:
        if name in left:
            left.remove(name)
            raise KeyboardInterrupt
        done.append(name)

    def train(config, *, resume, **_):
        folder = Path(config.output_dir)
        part(f"train {folder.name}")
        together[-1].wait()
        run = begun(folder, total_steps=2, dtype=config.model.dtype)
        run.config_path.write_text(dump_config(config))
        write_jsonl(run.metrics_path, [{"step": step, "time/step_s": 1.5} for step in (1, 2)])
        save(run, 2)
        return SimpleNamespace(status="finished", step=2)

    def evaluate(target, config, *, out, label, **_):
        part(f"measure {out.name}")
        seed = int(out.name[-1]) if "seed" in out.name else 0
        made = write_run(tmp_path / f"{out.parent.name} made {len(done)}", label, seed, name=out.name, questions=4)
        shutil.copytree(made / "evals", out / "evals", dirs_exist_ok=True)
        shutil.copy(made / "results.json", out)
        return SimpleNamespace(results=json.loads((out / "results.json").read_text()))

    monkeypatch.setattr(module, "train", train)
    monkeypatch.setattr(module, "evaluate", evaluate)
    monkeypatch.setattr("opct.models.policy.Policy", SimpleNamespace(load=lambda *_, **__: MagicMock()))

    def run(name: str, *cuts: str, processes: int = 1) -> tuple[str, list[str]]:
        out = tmp_path / name
        path.write_text(text.replace(json.dumps(str(tmp_path / "out")), json.dumps(str(out))))
        left[:], done[:] = cuts, []
        for _ in cuts:
            with pytest.raises(KeyboardInterrupt):
                module.run_experiment(path)
        together.append(Barrier(processes, timeout=30))
        with ThreadPoolExecutor(processes) as pool:
            list(pool.map(module.run_experiment, [path] * processes))
        together.append(Barrier(1))
        made = json.loads((out / "report.json").read_text(encoding="utf-8"))
        assert made.pop("created")
        return json.dumps(made).replace(str(out), "OUT"), sorted(done)

    return run


def test_the_report_of_what_was_cut_short_or_shared_by_processes_is_that_of_what_was_not(small):
    """Before a run was trained, before one was measured, and before the base was; or two processes that train at the
    same time. Nothing is done twice."""
    whole, parts = small("whole")
    assert len(parts) == len(set(parts)) == 2 + 2 + 1
    assert small("cut", "train opct-seed0", "measure sft-seed0", "measure base") == (whole, parts)
    assert small("shared", processes=2) == (whole, parts)


def test_other_settings_weights_and_bases_are_measured_again(tmp_path: Path, monkeypatch):
    """`measure` gives how often that was done so far."""
    done, run = [], begun(tmp_path / "run")

    def evaluate(target, config, *, out, **settings):
        done.append(config)
        results = {"run": {}, "rows": [], "created": f"time {len(done)}"}
        write_json(out / "results.json", results)
        return SimpleNamespace(results=results)

    def measure(label: str = "opct", config: TrainConfig | None = None, **settings) -> int:
        own, folder = EvalConfig(suites=["jailbreak"], **settings), tmp_path / ("base" if label == "base" else "run")
        module.ensure_evaluated(label, folder, config or TrainConfig(), own, progress=NullProgress())
        return len(done)

    monkeypatch.setattr(module, "evaluate", evaluate)
    monkeypatch.setattr(module, "_target", lambda *_: None)
    save(run, 3)
    assert [measure(), measure(), measure(seed=1), measure(seed=1), measure("sft", seed=1)] == [1, 1, 2, 2, 3]
    for n, (step, weights) in enumerate([(4, b"weights of step 4"), (4, b"others")], 4):
        shutil.rmtree(run.checkpoint_path(4), ignore_errors=True)
        save(run, step, weights)
        assert [measure("sft", seed=1), measure("sft", seed=1)] == [n, n]
    others = ({}, {"model": {"name_or_path": "a/b"}}, {"loss": {"thinking_tags": ("[T]", "[/T]")}})
    for n, other in enumerate(others, 6):
        assert [measure("base", TrainConfig(**other)) for _ in range(2)] == [n, n]


def test_the_base_is_measured_with_the_thinking_tags_and_template_arguments_of_the_runs(
    tiny_folder, monkeypatch, tmp_path
):
    """Arguments that the evaluation sets are not refused for the base, which is a loaded policy."""

    def evaluate(target, config, *, out, **_):
        renderer = open_target(target, None, out, NullProgress(), **config.model_settings).renderer
        assert renderer.reasoning == Reasoning.of_tags(("[T]", "[/T]"))
        assert renderer.chat_template_kwargs == {"add_generation_prompt": True}
        raise EvaluationError("enough")

    monkeypatch.setattr(module, "evaluate", evaluate)
    model = {"name_or_path": str(tiny_folder), "device": "cpu", "dtype": "float32"}
    config = TrainConfig(model=model, loss={"thinking_tags": ("[T]", "[/T]")})
    own = EvalConfig(chat_template_kwargs={"add_generation_prompt": True})
    with refused(EvaluationError, "enough"):
        module.ensure_evaluated("base", tmp_path, config, own, progress=NullProgress())


def test_the_base_is_attacked_with_the_thinking_tags_of_the_attack_and_the_trust_of_the_experiment(
    tiny_folder, monkeypatch, tmp_path
):
    calls = []
    monkeypatch.setattr("opct.attack.run.run_attack", lambda *given, **_: calls.append(given))
    config = TrainConfig(model={"name_or_path": str(tiny_folder), "dtype": "float32", "trust_remote_code": True})
    settings = {"target": {"thinking_tags": ["[T]", "[/T]"]}}
    module.ensure_attacked("base", tmp_path, config, "refine", settings, force=False, progress=NullProgress())
    [(target, options)] = calls
    assert target.renderer.reasoning == Reasoning.of_tags(("[T]", "[/T]"))
    assert options["target"]["trust_remote_code"]


def test_an_attack_that_has_ended_is_not_made_again(monkeypatch, tmp_path):
    """With a larger budget it is continued: its settings are others."""
    calls = []

    def run_attack(*_, out, resume=False, **__):
        log = out / "evals" / "attack_refine.eval"
        if resume and not log.is_file():
            raise NothingToResumeError("none")
        calls.append(resume)
        write_eval_log(as_log(log.stem, [], {OPCT: {"created": len(calls)}}, "tiny", {}), str(log))

    monkeypatch.setattr("opct.attack.run.run_attack", run_attack)
    monkeypatch.setattr(module, "_target", lambda *_: None)
    ensure = partial(module.ensure_attacked, "base", tmp_path, TrainConfig(), "refine")

    def attack(**budget):
        ensure({"budget": budget}, force=False, progress=NullProgress())
        return len(calls)

    assert [attack(max_queries=3) for _ in range(2)] == [1, 1]
    assert attack(max_queries=4) == 2
    assert calls == [False, True]
    run_attack(out=tmp_path)  # by hand
    assert attack(max_queries=4) == 4


def test_a_run_with_other_settings_is_replaced_only_by_force(path: Path, monkeypatch):
    seen = []
    monkeypatch.setattr(module, "train", lambda config, **how: seen.append(how) or SimpleNamespace(status="finished"))
    config = load_experiment(path).configs["sft", 0]
    run = begun(Path(config.output_dir), total_steps=2, dtype="float32")
    run.config_path.write_text(dump_config(config.model_copy(update={"eval_steps": 7, "max_steps": 9})))
    with refused(RunError, "max_steps"):
        module.ensure_trained(config, "sft", progress=NullProgress())
    module.ensure_trained(config, "sft", force=True, progress=NullProgress())
    assert [(how["resume"], how["overwrite"]) for how in seen] == [(False, True)]
