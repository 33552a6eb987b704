"""What is called in the course of a run: callbacks of transformers, and evaluations that a layer above puts in."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from opct import distributed
from opct.errors import ConfigError
from opct.runs.console import Progress
from opct.runs.run_dir import RunDir
from opct.training.setup import TrainingSetup

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainingArguments

    from opct.training.resume import Counters

EVENTS = ("on_train_begin", "on_step_begin", "on_step_end", "on_evaluate", "on_log", "on_save", "on_train_end")
VALIDATION = "validation/kl"


@dataclass(frozen=True)
class Hooks:
    """What is called in the course of a run.

    Attributes:
        check_teacher: called by every process before the first step, and not again in a resumed run. The manifest keeps
            its result under "teacher_check".
        evaluate: measures the policy after a step of `eval.steps` on suites, in the main process alone; returns
            metrics. It must leave the policy as it is.
        callbacks: see `Callbacks`.
    """

    check_teacher: Callable[[TrainingSetup, Progress], dict[str, Any] | None] | None = None
    evaluate: Callable[[TrainingSetup, RunDir, int, Progress], dict[str, float]] | None = None
    callbacks: Sequence[TrainerCallback] = ()


def made_callbacks(callbacks: Sequence[Any]) -> list[Any]:
    """The callbacks, those given as classes made. Raises ConfigError where one has no method for any of `EVENTS`."""
    made = [callback() if isinstance(callback, type) else callback for callback in callbacks]
    for callback in made:
        if not any(hasattr(callback, event) for event in EVENTS):
            raise ConfigError(f"callbacks: {callback!r} has no method that is called: {', '.join(EVENTS)}.")
    return made


class Callbacks:
    """Calls callbacks as transformers' `Trainer` does: in every process, with `args`, `state`, `control` and keywords.

    args: a `TrainingArguments` with the settings of the run that have the same names there.
    state: `global_step`, `max_steps`, `epoch`, `log_history` (the rows of metrics.jsonl, also those before a resume),
        `best_metric` and `best_global_step` (of the validation KL), `is_world_process_zero`.
    control: `should_training_stop` ends the run after the step, saved (`resume` continues it); `should_save` saves.
        Other switches do nothing: what is validated and logged follows from the settings.
    keywords: `model`, `processing_class`, `optimizer`; `metrics` of `on_evaluate` and `logs` of `on_log`.

    A callback's own state is not in a checkpoint, and an error in one ends the run.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        setup: TrainingSetup,
        optimizer: torch.optim.Optimizer,
        counters: Counters,
        rows: Sequence[Mapping[str, Any]],
    ):
        self._callbacks, self._counters, self._data = callbacks, counters, setup.data
        if not callbacks:  # the import below takes seconds
            return
        from transformers import TrainerControl, TrainerState

        policy = setup.policy
        is_main = distributed.is_main()
        self._args, self.control = _arguments(setup), TrainerControl()
        self.state = TrainerState(
            max_steps=setup.data.total_steps,
            logging_steps=1,
            save_steps=setup.config.save_steps,
            log_history=[dict(row) for row in distributed.broadcast_object(rows)],
            is_local_process_zero=is_main,
            is_world_process_zero=is_main,
        )
        self._objects = {"model": policy.model, "processing_class": policy.tokenizer, "optimizer": optimizer}
        self._set_best()

    @property
    def stop(self) -> bool:
        return bool(self._callbacks) and self.control.should_training_stop

    @property
    def save(self) -> bool:
        return bool(self._callbacks) and self.control.should_save

    def __call__(self, event: str, **values: Any) -> None:
        if not self._callbacks:
            return
        self.state.global_step = self._counters.step
        self.state.epoch = self._counters.step / self._data.steps_per_epoch
        if event == "on_step_begin":
            self.control.should_save = False
        for callback in self._callbacks:
            method = getattr(callback, event, None)
            if method is not None:
                self.control = method(self._args, self.state, self.control, **self._objects, **values) or self.control

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """Call `on_evaluate`; the validation KL is also there by the name that `EarlyStoppingCallback` looks for."""
        if not (self._callbacks and metrics):
            return
        also = {f"eval_{VALIDATION}": metrics[VALIDATION]} if VALIDATION in metrics else {}
        self("on_evaluate", metrics={**metrics, **also})
        self._set_best()  # after: a callback compares with the best one before

    def logged(self, metrics: Mapping[str, float]) -> None:
        """Call `on_log` with a new row of metrics.jsonl."""
        if self._callbacks:
            self.state.log_history.append({"step": self._counters.step, **metrics})
            self("on_log", logs=dict(metrics))

    def _set_best(self) -> None:
        self.state.best_metric, self.state.best_global_step = self._counters.best_kl, self._counters.best_step


def _arguments(setup: TrainingSetup) -> TrainingArguments:
    """The settings of a run as transformers' arguments."""
    from transformers import TrainingArguments

    config, device = setup.config, setup.policy.device
    # `gradient_checkpointing` is an old name there
    values = {**dict(config.optim), **dict(config), "max_steps": setup.data.total_steps, "gradient_checkpointing": None}
    names = {field.name for field in dataclasses.fields(TrainingArguments) if field.init} - {"report_to", "optim"}
    values["max_grad_norm"] = config.optim.max_grad_norm or 0.0  # 0: no limit
    shared = {name: value for name, value in values.items() if name in names and value is not None}
    # it makes a device of its choice the current one
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        return TrainingArguments(
            **shared,
            report_to=[],
            logging_steps=1,
            save_strategy="steps",
            eval_strategy="steps",
            metric_for_best_model=VALIDATION,
            greater_is_better=False,
            use_cpu=device.type == "cpu",
            disable_tqdm=True,
        )
