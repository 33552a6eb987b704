"""Callbacks of transformers in a run, and what their switches do."""

from functools import partialmethod
from pathlib import Path

import pytest
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments

import opct
from opct.errors import ConfigError
from opct.evals.target import describe_target
from opct.models.from_run import load_policy
from opct.reports.listing import list_runs
from opct.runs.run_dir import RunDir
from tests.refusals import refused
from tests.unit.training.conftest import NO_VALIDATION, metrics, untimed, weights


class Watch(TrainerCallback):
    """Keeps (event, step) and what came with it; sets a switch at a step, or fails there."""

    def __init__(self, switch: str | None = None, at: int = 1):
        self.switch, self.at, self.seen, self.values = switch, at, [], {}

    def note(self, event, args, state, control, **values):
        self.seen.append((event, state.global_step))
        self.values[event] = values
        self.args, self.state = args, state
        if event == "on_step_end" and state.global_step == self.at and self.switch is not None:
            if self.switch == "fail":
                raise ZeroDivisionError("mine")
            setattr(control, self.switch, True)


for name in ("train_begin", "step_begin", "step_end", "evaluate", "log", "save", "train_end"):
    setattr(Watch, f"on_{name}", partialmethod(Watch.note, f"on_{name}"))


def test_callbacks_see_the_run_as_it_is_and_change_nothing(make_config, trained, tmp_path: Path):
    """Two steps, a validation at 0 and 2, checkpoints at both; a duck with one method beside it."""
    plain, config = trained(max_steps=2), make_config(max_steps=2, save_steps=1, output_dir=str(tmp_path / "watched"))
    watch, steps = Watch(), []

    class Duck:
        def on_step_end(self, args, state, control, **_):
            steps.append((state.global_step, state.max_steps))

    opct.train(config, callbacks=[watch, Duck])
    one, two = ([(event, n) for event in ("on_step_end", "on_log", "on_save")] for n in (1, 2))
    two.insert(1, ("on_evaluate", 2))
    before = [("on_train_begin", 0), ("on_evaluate", 0), ("on_log", 0), ("on_step_begin", 0)]
    assert watch.seen == [*before, *one, ("on_step_begin", 1), *two, ("on_train_end", 2)]
    assert steps == [(1, 2), (2, 2)]
    assert weights(config) == weights(plain)
    assert untimed(config) == untimed(plain)
    rows = metrics(config)
    assert watch.state.log_history == rows
    assert watch.values["on_log"]["logs"] == {k: v for k, v in rows[-1].items() if k != "step"}
    validated = watch.values["on_evaluate"]["metrics"]
    assert validated["eval_validation/kl"] == validated["validation/kl"] == rows[-1]["validation/kl"]
    assert watch.state.best_metric == min(rows[0]["validation/kl"], rows[-1]["validation/kl"])
    assert isinstance(watch.args, TrainingArguments)
    assert (watch.args.output_dir, watch.args.learning_rate, watch.args.max_steps) == (config.output_dir, 1e-2, 2)
    assert watch.values["on_step_end"]["model"].peft_config["default"].r == 4


def test_a_callback_stops_a_run_after_the_step_and_it_resumes(make_config, trained, tmp_path: Path):
    """With the rows of the steps before; the end is that of a run that was not stopped."""
    whole, config = trained(max_steps=2), make_config(max_steps=2, output_dir=str(tmp_path / "stopped"))
    stopped = opct.train(config, callbacks=[Watch("should_training_stop")])
    assert (stopped.status, stopped.step) == ("ended", 1)
    assert "next: opct eval" in stopped.render()
    assert "warnings" not in describe_target(config.output_dir, load_policy(config.output_dir))
    assert [entry.state for entry in list_runs(tmp_path / "stopped")] == ["finished"]
    assert RunDir(config.output_dir).latest_checkpoint().name == "step-000001"
    watch = Watch()
    assert opct.train(config, callbacks=[watch], resume=True).status == "finished"
    assert "ended_at" not in RunDir(config.output_dir).read_manifest()
    assert watch.seen[0] == ("on_train_begin", 1)
    assert watch.state.log_history == metrics(config)
    assert weights(config) == weights(whole)
    assert untimed(config) == untimed(whole)


def test_a_callback_saves_a_step_and_an_error_in_one_keeps_it(make_config):
    config = make_config(max_steps=4, save_steps=4, data=NO_VALIDATION)
    with pytest.raises(ZeroDivisionError):
        opct.train(config, callbacks=[Watch("should_save", at=2), Watch("fail", at=3)])
    assert [step for step, _ in RunDir(config.output_dir).checkpoints()] == [2]
    assert opct.train(config, resume=True).status == "finished"


def test_early_stopping_of_transformers_stops(make_config):
    """At a rate that only makes it worse: the validation after step 1 is no better than before."""
    config = make_config(max_steps=4, eval_steps=1, optim={"learning_rate": 0.5}, stop={"divergence_factor": 1e9})
    result = opct.train(config, callbacks=[EarlyStoppingCallback(1)])
    kl = [row["validation/kl"] for row in metrics(config)]
    worse = next(step for step in range(1, len(kl)) if kl[step] >= min(kl[:step]))
    assert (result.status, result.step) == ("ended", worse)


def test_what_has_no_method_of_a_callback_is_refused(make_config):
    with refused(ConfigError, "callbacks", "on_step_end"):
        opct.train(make_config(), callbacks=[print])
