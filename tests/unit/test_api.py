"""What `opct.evaluate` hands on, where it puts things, and what a person sees of it."""

from __future__ import annotations

import hashlib
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from opct import api
from opct.config.loader import dump_config
from opct.config.schema import ModelConfig, TrainConfig
from opct.data.duplicates import TrainedTexts, write_trained_texts
from opct.data.pairs import ContrastivePair
from opct.errors import DataError, EvaluationError
from opct.runs.io import atomic_write
from opct.runs.progress import NullProgress
from opct.runs.run_dir import RunDir

ROW = {"suite": "s", "metric": "m", "group": "all", "value": 0.25, "ci_low": 0.125, "ci_high": 0.5}
COUNTS = {"n": 7, "n_unscored": 1, "n_truncated": 2}


def results(label: str = "base") -> dict[str, Any]:
    held_out = ROW | COUNTS | {"metric": "sycophancy_rate", "group": "held_out"}
    unknown = held_out | {"metric": "consistency", "value": None, "ci_low": None, "ci_high": None}
    family = held_out | {"metric": "of_a_family", "group": "family:x"}
    return {"run": {"label": label, "model": "tiny"}, "rows": [held_out, unknown, family], "warnings": ["look here"]}


def summary(name: str = "capital") -> dict[str, Any]:
    metric = {"scorer": "includes", "metric": "accuracy", "value": 0.5, "n": 2, "n_unscored": 0}
    return {"task": name, "log": "x.eval", "n": 2, "n_truncated": 1, "metrics": [metric]}


@pytest.fixture
def calls(monkeypatch) -> list[tuple[str, tuple, dict[str, Any]]]:
    """Stands for the functions that evaluate; keeps (which, arguments, keywords), progress left out."""
    seen: list[tuple[str, tuple, dict[str, Any]]] = []

    def fake(which: str, result):
        def call(*arguments, **keywords):
            keywords.pop("progress")(1, 2)
            seen.append((which, arguments, keywords))
            return result

        return call

    def parted(options):
        return {name: value for name, value in options.items() if name != "kl_samples"}, {
            name: value for name, value in options.items() if name == "kl_samples"
        }

    module = SimpleNamespace(
        prepare=lambda suites, **asking: {"suites": suites, **asking},
        measure=fake("suites", results()),
        run_task=fake("task", [summary()]),
        parted=parted,
        check_task=str,
    )
    monkeypatch.setitem(sys.modules, "opct.evals.run", module)
    return seen


@pytest.fixture
def policy(monkeypatch) -> SimpleNamespace:
    """What every name loads."""
    policy = SimpleNamespace(name="owner/tiny model", dtype_reason="float32, as configured", has_adapter=False)
    policy.weights_hash = lambda: "00ff"
    monkeypatch.setattr(api, "load_policy", lambda target, **settings: policy)
    return policy


@pytest.fixture
def trained(tmp_path: Path) -> RunDir:
    """The folder of an SFT run with seed 3."""
    with RunDir.create(tmp_path / "mine") as run:
        run.write_manifest(data={}, teacher=None, seeds={"seed": 3})
        atomic_write(run.config_path, dump_config(TrainConfig(method="sft", seed=3)))
    return run


def test_a_model_is_the_base_and_has_a_folder_of_its_own(calls, policy, monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    found = api.evaluate("owner/tiny model")
    [(which, arguments, keywords)] = calls
    assert (which, arguments) == ("suites", (policy, {"suites": api.DEFAULT_SUITES}))
    expected = {"out_dir": Path("runs/eval-owner-tiny-model"), "label": "base", "weights": {"hash": "00ff"}}
    assert keywords == expected
    assert (found.out, found.results, found.tasks) == (keywords["out_dir"], results(), {})


def test_a_run_is_described_by_its_config_and_measured_in_its_folder(calls, policy, trained):
    api.evaluate(str(trained.path))
    assert calls[0][2] == {
        "out_dir": trained.path,
        "label": "sft",
        "method": "sft",
        "train_seed": 3,
        "name": "mine",
        "trained_texts": None,
    }


def test_two_adapters_of_one_base_are_not_the_base_and_have_folders_and_hashes_of_their_own(
    calls, policy, monkeypatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    policy.has_adapter = True
    for name in ("one", "two"):
        (tmp_path / "a" / name).mkdir(parents=True)
        (tmp_path / "a" / name / "adapter_model.safetensors").write_text(name, encoding="utf-8")
        api.evaluate(f"a/{name}")
    api.evaluate(tmp_path / "a" / "two", label="mine")
    api.evaluate(policy)
    keywords = [keywords for _, _, keywords in calls]
    assert [k["label"] for k in keywords] == ["trained", "trained", "mine", "trained"]
    folders = ["eval-a-one", "eval-a-two", "eval-a-two", "eval-owner-tiny-model-trained"]
    assert [k["out_dir"] for k in keywords] == [Path("runs") / folder for folder in folders]
    hashes = [k["weights"]["sha256"]["adapter_model.safetensors"] for k in keywords[:3]]
    assert hashes[0] != hashes[1] == hashes[2]
    assert keywords[3]["weights"] == {"hash": "00ff"}
    assert all(k["trained_texts"] is None for k in keywords)  # no run says what they were trained on


def test_a_run_hands_on_its_checkpoint_and_what_it_was_trained_on(calls, policy, tmp_path: Path):
    with RunDir.create(tmp_path / "mine") as run:
        known = {"trained_families": ["majority"], "trained_questions": ["q/1"]}
        run.write_manifest(data={}, teacher=None, seeds={"seed": 3}, extra=known)
        atomic_write(run.config_path, dump_config(TrainConfig(method="sft", seed=3)))
        run.save_checkpoint(7, lambda folder: atomic_write(folder / "adapter_model.safetensors", b"weights"))
    api.evaluate(run.path)
    keywords = calls[0][2]
    assert {name: keywords[name] for name in known} == known
    sha256 = hashlib.sha256(b"weights").hexdigest()
    assert keywords["weights"] == {"step": 7, "sha256": {"adapter_model.safetensors": sha256}}


@pytest.mark.parametrize("inside", ["", "checkpoints/step-000007", "checkpoints/step-000007/adapter"])
def test_the_texts_of_a_run_are_handed_on_with_any_of_its_weights(calls, policy, trained, tmp_path: Path, inside: str):
    pair = ContrastivePair(
        "p", "jailbreak", "f", ({"role": "user", "content": "x"},), ({"role": "user", "content": "y"},)
    )
    write_trained_texts(trained, [pair], ModelConfig(name_or_path="m"))
    trained.save_checkpoint(7, lambda folder: atomic_write(folder / "adapter" / "adapter_config.json", b"{}"))
    policy.has_adapter = True
    api.evaluate(trained.path / inside, out=tmp_path / "out")
    assert calls[0][2]["trained_texts"] == TrainedTexts(behaviors=("y",))


def test_a_named_checkpoint_is_described_by_its_run_and_has_a_folder_of_its_own(
    calls, policy, trained, monkeypatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    for step in (7, 8):
        with RunDir.create(trained.path, resume=True) as run:
            run.save_checkpoint(step, lambda folder: atomic_write(folder / "adapter_model.safetensors", b"weights"))
    api.evaluate(trained.checkpoint_path(7))
    keywords = calls[0][2]
    assert (keywords["name"], keywords["train_seed"], keywords["weights"]["step"]) == ("mine", 3, 7)
    assert keywords["out_dir"] == Path("runs/eval-mine-checkpoints-step-000007")


def test_a_label_and_a_folder_that_are_given(calls, policy, trained, tmp_path: Path):
    found = api.evaluate(trained.path, label="sft, twice", out=str(tmp_path / "other"))
    assert found.out == tmp_path / "other"
    assert calls[0][2]["label"] == "sft, twice"
    assert calls[0][2]["method"] == "sft"


def test_a_loaded_policy_is_not_loaded_again(calls, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(api, "load_policy", lambda target: pytest.fail("loaded"))
    policy = SimpleNamespace(name="mine", has_adapter=False, weights_hash=lambda: "00ff")
    api.evaluate(policy, out=tmp_path)
    assert calls[0][1][0] is policy


def test_options_are_handed_on_to_what_takes_them(calls, policy, tmp_path: Path):
    """n_questions=None asks all questions, where leaving it out asks 600 of them."""
    options = {"n_benign": 4, "greedy": False, "n_questions": None, "kl_samples": 3}
    api.evaluate("m", out=tmp_path, suites=["benign"], **options)
    [(_, arguments, keywords)] = calls
    assert arguments[1] == {"suites": ("benign",), "n_benign": 4, "greedy": False, "n_questions": None}
    assert keywords == {"out_dir": tmp_path, "label": "base", "weights": {"hash": "00ff"}, "kl_samples": 3}


@pytest.mark.parametrize(
    ("given", "n_problems"),
    [
        ({}, "unset"),
        ({"n_questions": 5}, 5),
        ({"n_questions": 5, "n_problems": 9}, 9),
        ({"n_questions": 5, "n_problems": None}, None),
        ({"n_questions": None}, "unset"),
    ],
)
def test_a_number_of_questions_that_is_given_is_of_problems_too(calls, policy, tmp_path: Path, given, n_problems):
    """Left out, it is 600, to which the sizes of `capability` are not cut."""
    api.evaluate("m", out=tmp_path, suites=["capability"], **given)
    [(_, (_, prepared), _)] = calls
    assert prepared.get("n_problems", "unset") == n_problems


def test_tasks_alone_leave_our_suites_out_and_take_options_by_their_own_names(calls, policy, tmp_path: Path):
    found = api.evaluate("m", out=tmp_path, tasks=["pkg/a", "b.py@c"], n_questions=5, seed=1, max_completion_tokens=9)
    options = {"out_dir": tmp_path, "limit": 5, "seed": 1, "max_completion_tokens": 9}
    assert calls == [("task", (policy, name), options) for name in ("pkg/a", "b.py@c")]
    assert (found.results, found.tasks) == (None, {"pkg/a": [summary()], "b.py@c": [summary()]})


def test_suites_and_tasks_together(calls, policy, tmp_path: Path):
    api.evaluate("m", out=tmp_path, suites=["benign"], tasks=["pkg/a"], n_questions=5)
    [(first, (_, prepared), _), (second, _, keywords)] = calls
    assert (first, prepared["n_questions"], second, keywords["limit"]) == ("suites", 5, "task", 5)


def test_an_option_that_a_task_does_not_take_is_refused_before_anything_is_done(calls, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(api, "load_policy", lambda target: pytest.fail("loaded"))
    with pytest.raises(EvaluationError, match="The option families is for our own suites; an Inspect task takes"):
        api.evaluate("m", out=tmp_path, suites=["benign"], tasks=["pkg/a"], families="all", seed=1)
    assert calls == []


class Stages(NullProgress):
    """Keeps what it is told."""

    def __init__(self):
        self.told: list[tuple] = []

    def stage(self, name: str, total: int | None = None) -> None:
        self.told.append((name, total))

    def advance(self, n: int = 1, **fields) -> None:
        self.told.append((n,))


def test_progress_has_a_stage_for_each_part(calls, policy, tmp_path: Path):
    progress = Stages()
    api.evaluate("m", out=tmp_path, suites=["benign"], tasks=["pkg/a"], label="mine", progress=progress)
    assert progress.told == [("load m", None), ("evaluate mine", 2), (1,), ("pkg/a", 2), (1,)]


def test_a_bar_begins_anew_when_the_total_grows():
    """2 of 3, then 3 of 5: a second stage of five that stands at three."""
    progress = Stages()
    bar = api._Bar(progress, "x")
    for done, total in ((2, 3), (3, 5), (5, 5)):
        bar(done, total)
    assert progress.told == [("x", 3), (2,), ("x", 5), (3,), (2,)]


def shown(result: api.EvalResult) -> str:
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(result.render())
    return console.export_text()


def test_a_result_as_tables():
    """Groups of families are for the report; what was not measured is a dash, not a zero."""
    text = shown(api.EvalResult(Path("runs/x"), results("opct"), {"pkg/a": [summary("capital"), summary("river")]}))
    lines = [line.split() for line in text.replace("│", " ").splitlines()]
    assert ["opct:", "tiny"] in lines
    assert ["s/sycophancy_rate", "held_out", "0.250", "0.125", "to", "0.500", "7", "1", "2"] in lines
    assert ["s/consistency", "held_out", "-", "-", "to", "-", "7", "1", "2"] in lines
    assert "of_a_family" not in text
    assert "warning: look here" in text
    for name in ("capital", "river"):
        assert f"{name}: 2 samples, 1 truncated" in text
    assert lines.count(["includes/accuracy", "0.500", "2", "0"]) == 2
    assert "logs: runs/x/evals (open them with `inspect view --log-dir runs/x/evals`)" in text


@pytest.mark.parametrize(
    ("calibration", "cell", "words"),
    [
        (
            {"kappa": {"value": 0.41, "ci_low": 0.3, "ci_high": 0.5}, "n": 9},
            "kappa 0.41, weak",
            "weak: kappa against people 0.41 (0.30 to 0.50, 9 labels)",
        ),
        (None, "not calibrated", "not calibrated: agreement with people unknown"),
    ],
)
def test_kept_rows_of_a_judge_have_its_kappa_beside_them(monkeypatch, tmp_path: Path, calibration, cell, words):
    """A row of the rules has an empty cell there; without a judge there is no such column."""
    monkeypatch.setenv("OPCT_CALIBRATIONS", str(tmp_path))
    judge = {"name": "j", "model": "m", "hash": "0"}
    found = results()
    settings = {"judge": judge, "judge_calibration": calibration}
    found["rows"].append(ROW | COUNTS | {"suite": "s_judged", "group": "held_out", "settings": settings})
    text = shown(api.EvalResult(Path("runs/x"), found))
    lines = [" ".join(line.replace("│", " ").split()) for line in text.splitlines()]
    assert f"s_judged/m held_out 0.250 0.125 to 0.500 7 1 2 {cell}" in lines
    assert "s/sycophancy_rate held_out 0.250 0.125 to 0.500 7 1 2" in lines
    assert f"s_judged: judged by j (m), {words}" in text
    assert "judge" not in shown(api.EvalResult(Path("runs/x"), results()))


@pytest.fixture
def nothing_loads(monkeypatch) -> None:
    monkeypatch.setattr(api, "load_policy", lambda target, **settings: pytest.fail("loaded a model first"))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"families": "mojority"}, "mojority"),
        ({"suites": ["nope"]}, "nope"),
        ({"kl_sample": 3}, "Unknown option of an evaluation 'kl_sample'. Did you mean 'kl_samples'"),
        ({"n_questions": 0}, "n_questions is 0"),
    ],
)
def test_a_wrong_name_is_said_before_a_model_is_loaded(nothing_loads, options: dict[str, Any], named: str):
    with pytest.raises(EvaluationError, match=named):
        api.evaluate("m", **options)


def test_data_that_cannot_be_had_is_said_before_a_model_is_loaded(nothing_loads, monkeypatch, tmp_path: Path):
    """One suite without a file, one with a file that is none, one whose data is embedded: the first two, at once."""
    monkeypatch.delenv("OPCT_CAPABILITY_DATA", raising=False)
    missing = tmp_path / "mmlu.jsonl"
    with pytest.raises(DataError, match="2 of the 3 suites cannot be asked") as error:
        api.evaluate("m", suites=["truthfulqa", "mmlu", "benign"], data={"mmlu": str(missing)}, out=tmp_path / "out")
    first, second = error.value.faults
    assert first.startswith(
        "truthfulqa: There is no data for truthfulqa (no file is named, and OPCT_CAPABILITY_DATA is not set): give a "
        "file (--data truthfulqa=FILE"
    )
    assert second == f"mmlu: No mmlu problem file at {missing}: check the path."
    assert not (tmp_path / "out").exists()
