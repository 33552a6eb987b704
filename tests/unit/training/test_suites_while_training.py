"""Suites that are asked in the course of a training."""

from pathlib import Path

import pytest

import opct
import opct.evals.run as run_module
from opct.errors import ConfigError, EvaluationError, RunError
from opct.evals.logs import read_evaluation
from opct.runs.run_dir import RunDir
from opct.training.resume import is_finished
from tests.progress import Killed, Noted, kill
from tests.refusals import refused
from tests.unit.training.conftest import metrics, untimed, weights

EVAL = {"steps": 2, "suites": ["benign"], "limit": 2, "settings": {"max_benign_tokens": 4}}
ACCURACY = "eval/benign/accuracy_identity"


def without_suites(config) -> list[dict]:
    return [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in untimed(config)]


def test_suites_are_asked_at_their_steps_and_change_no_step(make_config, tmp_path: Path):
    """Of three steps before the first, after the second and after the last; step 2 also has a validation."""
    plain = make_config(max_steps=3, output_dir=str(tmp_path / "plain"))
    config = make_config(max_steps=3, eval=EVAL)
    opct.train(plain)
    opct.train(config)
    assert weights(config) == weights(plain)
    assert without_suites(config) == untimed(plain)
    rows = [row for row in metrics(config) if ACCURACY in row]
    assert [row["step"] for row in rows] == [0, 2, 3]
    assert all(row["time/eval_s"] > 0 for row in rows)
    run = RunDir(config.output_dir)
    folders = sorted(run.training_evals_dir.iterdir())
    assert [folder.name for folder in folders] == ["step-000000", "step-000002", "step-000003"]
    evaluations = list(map(read_evaluation, folders))
    assert [evaluation.run["weights"]["step"] for evaluation in evaluations] == [0, 2, 3]
    assert len({evaluation.run["weights"]["hash"] for evaluation in evaluations}) == 3
    assert {len(evaluation.samples) for evaluation in evaluations} == {2}
    assert evaluations[0].settings["split"] == "validation"
    with refused(EvaluationError, "holds no evaluation"):  # those of the end are others
        read_evaluation(run.path)


@pytest.mark.parametrize("failed", [2, 3])
def test_a_step_whose_measurement_fails_is_kept_and_measured_first_on_resume(
    make_config, tmp_path: Path, monkeypatch, failed: int
):
    """The suite of a step fails, after the validation of step 2; no step is due to be saved before the last."""
    settings = {"max_steps": 3, "save_steps": 3, "eval_steps": 2, "eval": EVAL | {"steps": 1}}
    whole, broken = (make_config(output_dir=str(tmp_path / name), **settings) for name in ("whole", "broken"))
    opct.train(whole)
    ask = run_module.evaluate_suites

    def fail(*args, out_dir: Path, **kwargs):
        if out_dir.name == f"step-00000{failed}":
            out_dir.mkdir(parents=True)
            raise EvaluationError("the disk is full")
        return ask(*args, out_dir=out_dir, **kwargs)

    with monkeypatch.context() as patch, refused(EvaluationError, "the disk is full"):
        patch.setattr(run_module, "evaluate_suites", fail)
        opct.train(broken)
    assert RunDir(broken.output_dir).latest_checkpoint().name == f"step-00000{failed}"
    assert not is_finished(RunDir(broken.output_dir), broken)
    # stopped before it is measured
    assert opct.train(broken, resume=True, progress=Noted("train")).status == "interrupted"
    with pytest.raises(Killed):  # after that step is measured, before the next: it is measured once more
        opct.train(broken, resume=True, progress=Noted(after=1, act=kill))
    opct.train(broken, resume=True)
    assert is_finished(RunDir(broken.output_dir), broken)
    assert untimed(broken) == untimed(whole)
    assert weights(broken) == weights(whole)


def test_full_fine_tuning_is_measured_on_the_weights_of_the_step(make_config):
    config = make_config(max_steps=1, lora=None, eval=EVAL)
    opct.train(config)
    folders = sorted(RunDir(config.output_dir).training_evals_dir.iterdir())
    assert len({read_evaluation(folder).run["weights"]["hash"] for folder in folders}) == 2


def test_what_cannot_be_asked_is_refused_before_a_model_is_loaded(make_config):
    def fails(error, *words, **changes):
        settings = changes.pop("settings", {})
        config = make_config(model={"name_or_path": "/nowhere"}, eval=EVAL | changes | {"settings": settings})
        with refused(error, *words):
            opct.train(config)

    fails(ConfigError, "eval.suites", "benin", suites=["benin"])
    fails(ConfigError, "judge", settings={"judge": {"name": "rubric"}})
    fails(ConfigError, "eval.settings", "n_benine", settings={"n_benine": 2})
    with refused(ConfigError, "kl_samples"):
        opct.train(make_config(lora=None, eval=EVAL | {"settings": {"kl_samples": 4}}))
    with refused(ConfigError, "eval.steps"):
        opct.train(make_config(engine="verl", eval=EVAL))
    assert not Path(make_config().output_dir).exists()
    with refused(RunError, "No run"):
        opct.train(make_config(eval=EVAL), resume=True)
