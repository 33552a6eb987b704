"""The training loop: collect, gradient, update, log, save, resume, stop.

All randomness of a step follows from (seed, step). So a checkpoint only holds weights, optimizer and counters, and a
resumed run equals an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean as mean
from typing import Any

import torch

from opct import distributed
from opct.config.loader import dump_config, read_yaml
from opct.config.schema import OptimConfig, TrainConfig
from opct.data.duplicates import trained_names, write_trained_texts
from opct.data.pairs import TEST_PAIRS, ContrastivePair, eval_options, write_pairs
from opct.data.render import RenderedPair
from opct.errors import DivergenceError, NonFiniteError, OpctError, OutOfMemory, RunError
from opct.methods.base import Method
from opct.methods.consistency import DIVERGENCES
from opct.methods.offline import answers_to, offline_answers, offline_cost
from opct.methods.registry import METHODS, refuse_attackers
from opct.methods.rollouts import (
    Rollout,
    cost,
    first_warnings,
    group_by_prompt,
    in_loss,
    kl_metrics,
    policy_rollouts,
    rollout_metrics,
    rollout_row,
    step_weights,
)
from opct.methods.sampler_mismatch import StepMetrics, refuse_mismatch
from opct.models.from_run import base_loader, refuse_moved_base
from opct.models.given import GivenModel
from opct.models.inference.sampler import sample_seed
from opct.models.loading import choose_device, with_weights
from opct.models.memory import enough_memory, peak_memory_gb
from opct.models.policy import Policy
from opct.runs.checkpoints import prune, weight_hashes
from opct.runs.console import NullProgress, Progress, StopRequest, show_warnings, sparkline
from opct.runs.io import atomic_write, write_jsonl
from opct.runs.run_dir import RunDir
from opct.runs.tracking import Tracker, check_trackers
from opct.training.accumulate import LESS_TRAINING, TokenValues, accumulate
from opct.training.callbacks import Callbacks, Hooks
from opct.training.estimate import FEWEST_TOKENS
from opct.training.resume import (
    Counters,
    load_checkpoint,
    origin,
    refuse_lost_metrics,
    refuse_other_run,
    write_checkpoint,
)
from opct.training.setup import TrainingSetup, build_setup, describe

KL_FLOOR = 0.05  # nats a token: the divergence bound is at least divergence_factor times this
TEACHER_CHECK, WARNINGS, MICRO_BATCH = "teacher_check", "warnings", "micro_batch_tokens"  # in the manifest
CUT_SHARE = 0.05  # of replies, from which the end of a run names the remedy
FIRST_STEPS = 3  # the largest training KL of these steps sets the divergence bound
SHOWN = {"kl": "train/kl", "loss": "train/loss", "validation": "validation/kl"}  # beside the progress bar
LEGEND = "kl: to the teacher, in nats a token; loss: the training objective; validation: the kl of held-out pairs"
OF_SFT = "; excess_loss: the loss minus the teacher's on the same answers; well below 0 they are memorised"


@dataclass
class TrainResult:
    """Result of a training run.

    Attributes:
        status: "finished", "interrupted" by a signal, or "ended" by a callback.
        best_step: the step with the lowest validation KL.
        questions: the options of `opct eval` that ask what the pairs train; see `eval_options`.
        model: what a model that was given is now: PEFT's model around it, or itself in full fine-tuning; else None.
        policy: that model with the template, thinking tags and dtype of the run, for `opct.evaluate`; else None.
    """

    run_dir: Path
    status: str
    step: int
    total_steps: int
    metrics: dict[str, float] = field(default_factory=dict)
    best_step: int | None = None
    questions: str = ""
    model: Any = field(default=None, repr=False)
    policy: Policy | None = field(default=None, repr=False)

    def render(self) -> str:
        """How the run ended, what changed in it, and what to do next; for a terminal."""
        run, path = RunDir(self.run_dir), shlex.quote(str(self.run_dir))
        lines = [f"{self.status} after step {self.step} of {self.total_steps}: {self.run_dir}"]
        with contextlib.suppress(OpctError):  # of a damaged file: the training has ended all the same
            lines += _changes(run)
        if self.best_step is not None and self.best_step != self.step:
            best = run.checkpoint_path(self.best_step)
            line = f"lowest validation KL after step {self.best_step}; eval, chat and export take step {self.step}"
            lines.append(line + f" unless given {best}" * best.is_dir())
        if self.status == "interrupted":
            lines.append(f"everything is saved; continue: opct train {shlex.quote(str(run.config_path))} --resume")
        else:
            lines.append(f"next: opct eval {path}{self.questions}")
            if TEST_PAIRS in self.questions:
                lines.append(f"{TEST_PAIRS} stands for pairs that were not trained on")
        return "\n".join(lines)


def _changes(run: RunDir) -> list[str]:
    """What was logged of KL and cut replies, a line each."""
    rows = run.read_metrics()
    held_out = _change(rows, "KL on held-out pairs", "validation/kl")
    trained = _change(rows, "KL on training pairs", "train/kl") or _change(rows, "training loss", "train/loss")
    ordinary = [_change(rows, "KL on ordinary requests", f"{of}/kl_identity") for of in ("validation", "train")]
    return [line for line in (held_out or trained, ordinary[0] or ordinary[1], _cut_replies(run, rows)) if line]


def _change(rows: Sequence[Mapping[str, Any]], name: str, metric: str) -> str:
    """The first and the last value of a metric, and its course; empty if it was not logged."""
    values = [row[metric] for row in rows if metric in row]
    if not values:
        return ""
    levels = " -> ".join(f"{value:.3f}" for value in dict.fromkeys((values[0], values[-1])))
    unit = "" if metric == "train/loss" else " nats a token"
    return f"{name:<24} {levels}{unit}" + f"  {sparkline(values)}" * (len(values) > 1)


def _cut_replies(run: RunDir, rows: Sequence[Mapping[str, Any]]) -> str:
    """The share of replies that were cut, over all steps, and what to do where they are many."""
    shares = [row["train/truncated_fraction"] for row in rows if "train/truncated_fraction" in row]
    if not shares:
        return ""
    limit = read_yaml(run.config_path)["rollout"]["max_completion_tokens"]
    remedy = f"; rollout.max_completion_tokens is {limit}: raise it" * (mean(shares) >= CUT_SHARE)
    return f"{'replies cut':<24} {mean(shares):.0%}{remedy}"


def train(
    config: TrainConfig,
    *,
    pairs: Sequence[ContrastivePair] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    given_model: GivenModel | None = None,
    hooks: Hooks = Hooks(),  # noqa: B008 - frozen
    method: Callable[[TrainingSetup, RunDir], Method] | None = None,
) -> TrainResult:
    """Train as `config` says, in `config.output_dir`; `opct.train` is this with hooks.

    A SIGINT or SIGTERM saves after the current step and returns with status "interrupted".

    Args:
        pairs: kept in the run directory, in the file that `data.pairs` then names.
        resume: continue from the last checkpoint in the run directory; a run killed at any moment can be resumed.
        given_model: trained in place of the one that `config.model` names; see `opct.train` for what it is left as.
        hooks: what else is called in the course of the run.
        method: makes the method where `config` alone cannot: an attacker also needs its target.

    Raises:
        ConfigError, DataError, ModelError: before the first step.
        EngineError: the engine that samples cannot be used, or failed in a step; the run can be resumed.
        RunError: the run directory exists, is in use, or was made from other data, weights or settings.
        TrainingError: a loss is not finite, the KL (or the loss, where there is no KL) diverged, or the samples are not
            the policy's own.
        KeyboardInterrupt: the signal came while offline answers were sampled; the run can be resumed.
        CheckpointError: a checkpoint could not be written or is corrupt; the last good one is intact.
        SystemExit: another process of the launcher failed.
    """
    is_main = distributed.is_main()
    progress = (progress if is_main else None) or NullProgress()
    with distributed.session(config.parallel, config.model.device), contextlib.ExitStack() as stack:
        check_trackers(config.report_to)
        if method is None:
            refuse_attackers(config)
        if given_model is not None:
            stack.push(given_model.take_back)
        choose_device(config.model.device)  # refused before data are read
        run = RunDir(config.output_dir)
        if overwrite:
            _refuse_to_replace_weights(config)
        if is_main:  # it alone locks the folder and writes to it
            run = stack.enter_context(RunDir.create(config.output_dir, resume=resume, overwrite=overwrite))
        stop = stack.enter_context(StopRequest(launched=distributed.launched()))
        progress.stage(f"load {config.model.name_or_path}")
        manifest: dict[str, Any] = {**run.read_manifest()} if is_main and resume else {}
        if manifest:
            refuse_moved_base(run, config.model.name_or_path)
        model = with_weights(config.model) if is_main and given_model is None else config.model
        before, model = distributed.broadcast_object((manifest, model))
        config = config.model_copy(update={"model": model})  # the weights that every process and a later reader takes
        built = build_setup(config, pairs, given_model=given_model, before=before, progress=progress)
        setup = stack.enter_context(contextlib.closing(built))
        if overwrite:
            # not before: a run that cannot begin replaces nothing
            distributed.main_only(run.clear, config.data.pairs if pairs is None else ())
        answers = METHODS[config.method].answers_per_pair * config.rollout.num_generations
        slow_paths = setup.policy.slow_reasons(answers)
        for line in (*describe(setup), *slow_paths, LEGEND + OF_SFT * (config.method == "sft")):
            progress.log(line)
        has_begun = "data" in before
        checked = (
            before.get(TEACHER_CHECK) if has_begun or not hooks.check_teacher else hooks.check_teacher(setup, progress)
        )
        # draws from here on must not depend on what loading and checks drew, which a resumed run does less of
        torch.manual_seed(sample_seed(config.seed, "start"))
        if pairs is not None and not has_begun:  # before the config that names the file
            distributed.main_only(write_pairs, run.pairs_path, pairs)
        setup.warnings = list(dict.fromkeys([*before.get(WARNINGS, ()), *setup.warnings]))
        optimizer, counters = begin(run, setup, {TEACHER_CHECK: checked, "slow_paths": slow_paths}, resume=resume)
        if counters.step:
            progress.log(f"resumes after step {counters.step} of {setup.data.total_steps}")
        trained = _make_method(setup, run, progress, stop) if method is None else method(setup, run)
        tracker = stack.enter_context(contextlib.closing(Tracker(run if is_main else None, config)))
        stack.enter_context(enough_memory("the model was trained", *LESS_TRAINING))
        rows = run.read_metrics() if is_main and hooks.callbacks else ()
        callbacks = Callbacks(hooks.callbacks, setup, optimizer, counters, rows)
        return _Loop(run, setup, trained, tracker, optimizer, counters, progress, stop, hooks, callbacks).run_steps()


def _make_method(setup: TrainingSetup, run: RunDir, progress: Progress, stop: StopRequest) -> Method:
    """Create the method of the config; offline methods sample or read their answers here."""
    policy, teacher, config, engine = setup.policy, setup.teacher, setup.config, setup.engine
    kind = METHODS[config.method]
    if not kind.offline:
        return kind(policy, teacher, config, engine)
    pairs = setup.data.visited()
    open_turns = [sum(message["content"] is None for message in pair.pair.prompt) for pair in pairs]
    answers = [answers_to(pair, kind, config) + n for pair, n in zip(pairs, open_turns, strict=True)]
    if any(answers):
        shares = distributed.balanced([cost(pair, config) for pair in pairs], distributed.size())
        name = "offline answers of this process" if distributed.launched() else "offline answers"
        progress.stage(name, sum(answers[i] for i in shares[distributed.rank()]))

    def answered(n: int) -> None:
        progress.advance(n)
        if stop.requested:  # there is no step to finish first
            raise KeyboardInterrupt

    sampler = None if engine is None else engine.base()
    source = offline_answers(kind, policy, teacher, pairs, config, run, answered, sampler=sampler)
    return kind(policy, teacher, config, source)


def begin(
    run: RunDir, setup: TrainingSetup, checks: dict[str, Any], *, resume: bool
) -> tuple[torch.optim.Optimizer, Counters]:
    """Load the state to continue from, write the manifest, and drop files that are newer than the state."""
    config, policy = setup.config, setup.policy
    identity: dict[str, Any] = {
        "data": setup.data.hashes,
        "teacher": setup.teacher.identity(),
        "base": policy.base_hash(),
        "template": policy.renderer.template_hash,
        "dtype": str(policy.dtype).removeprefix("torch."),
    }
    if resume:
        distributed.main_only(refuse_other_run, run, config, identity)
    # the main process verifies it; a process that does not see it says what file is missing
    checkpoint = distributed.broadcast_object(run.latest_checkpoint() if resume and distributed.is_main() else None)
    optimizer = torch.optim.AdamW(
        list(policy.trainable_parameters().values()),
        lr=config.optim.learning_rate,
        betas=(config.optim.adam_beta1, config.optim.adam_beta2),
        eps=config.optim.adam_epsilon,
        weight_decay=config.optim.weight_decay,
    )
    counters = Counters()
    if checkpoint is not None:
        counters = load_checkpoint(checkpoint, setup, optimizer)
        distributed.main_only(refuse_lost_metrics, run, counters)
        if counters.step > setup.data.total_steps:
            raise RunError(
                f"{run.path} has trained {counters.step} steps, but the settings now ask for {setup.data.total_steps}: "
                "restore the number of steps, or start another run in another output_dir."
            )
    distributed.main_only(_write_beginning, run, setup, identity | checks, counters)
    return optimizer, counters


def _write_beginning(run: RunDir, setup: TrainingSetup, identity: dict[str, Any], counters: Counters) -> None:
    """Drop files that are newer than the counters, and write the manifest, the config and the texts of the run."""
    config = setup.config
    # the validation of step 0 is done again; so is a step's that failed, even if it was done by a run killed since
    run.truncate_after(counters.step or -1, (counters.step or -1) - (counters.unmeasured is not None))
    visited = [rendered.pair for rendered in setup.data.visited()]
    keys = ("base", "template", "dtype", TEACHER_CHECK, "slow_paths", "trained_with")
    extra = {key: identity.get(key) for key in keys} | {
        "method": config.method,
        "offline": METHODS[config.method].offline,
        "engine": None if setup.engine is None else setup.engine.backend.name,
        MICRO_BATCH: setup.micro_batch_tokens,
        "processes": distributed.size(),
        "left_out": [vars(o) for o in setup.data.left_out],
        WARNINGS: setup.warnings,
        "total_steps": setup.data.total_steps,
        **origin(run, config, is_given=setup.given_model is not None),
        **trained_names(visited, config.model),
        "trained_on": run.trained_on_path.name,
        "eval_options": eval_options(rendered.pair for rendered in setup.data.pairs),
    }
    run.write_manifest(data=identity["data"], teacher=identity["teacher"], seeds={"seed": config.seed}, **extra)
    atomic_write(run.config_path, dump_config(config))
    write_trained_texts(run, visited, config.model)


def _refuse_to_replace_weights(config: TrainConfig) -> None:
    """Raise RunError where the weights that the training begins with lie in the run that it replaces."""
    replaced = Path(config.output_dir).resolve()
    for name in (config.model.adapter, config.model.name_or_path):
        if name is not None and Path(name).exists() and Path(name).resolve().is_relative_to(replaced):
            raise RunError(f"{name} lies in {replaced}, which --overwrite replaces: choose another output_dir.")


@dataclass
class _Loop:
    run: RunDir
    setup: TrainingSetup
    method: Method
    tracker: Tracker
    optimizer: torch.optim.Optimizer
    counters: Counters
    progress: Progress
    stop: StopRequest
    hooks: Hooks
    callbacks: Callbacks

    def __post_init__(self) -> None:
        self.config, self.policy = self.setup.config, self.setup.policy
        self.saved_step = self.counters.step or None
        self.total, self.validation_steps = self.setup.data.total_steps, self.setup.data.validation_steps
        # the metric whose growth stops the run
        divergences = [f"train/{name}" for name in DIVERGENCES.values()]
        self.watched = next((name for name in divergences if name in (self.counters.unmeasured or {})), "train/loss")
        self.validated_at_start = 0.0

    def run_steps(self) -> TrainResult:
        """Train until the last step or a signal, and save."""
        counters, metrics = self.counters, dict[str, float]()
        self.callbacks("on_train_begin")
        self._log_beginning()
        self._show_steps()
        while (counters.step < self.total or counters.unmeasured is not None) and not self._stopping():
            if counters.unmeasured is None:  # else the measurement of this step failed, and the run was resumed
                counters.unmeasured = self._step(counters.step + 1)
                self._judge(counters.unmeasured, counters.step)  # before the measurement: where that fails, it is saved
            metrics = self._measure_step(counters.unmeasured)
            self._stop_on_divergence(metrics, counters.step)
            self.progress.advance(1, **{name: f"{metrics[key]:.3f}" for name, key in SHOWN.items() if key in metrics})
            is_due = counters.step % self.config.save_steps == 0 or counters.step == counters.best_step
            is_wanted = any(distributed.all_gather_object(self.callbacks.save))
            if (is_due or is_wanted) and counters.step < self.total:
                self._save()
        self._save()
        self.callbacks("on_train_end")
        is_done = counters.step >= self.total and counters.unmeasured is None  # stopped before it was measured
        is_ended = not is_done and any(distributed.all_gather_object(self.callbacks.stop))
        if is_ended:
            distributed.main_only(self.run.update_manifest, {"ended_at": counters.step})
        status = "finished" if is_done else "ended" if is_ended else "interrupted"
        shown = {key: value for key, value in metrics.items() if key.startswith(("train/", "validation/"))}
        questions = eval_options(rendered.pair for rendered in self.setup.data.pairs)
        result = TrainResult(self.run.path, status, counters.step, self.total, shown, counters.best_step, questions)
        if self.setup.given_model is not None:
            self._name_checkpoint()
            result.model, result.policy = self.policy.model, self.policy
        return result

    def _show_steps(self) -> None:
        done = self.counters.step - (self.counters.unmeasured is not None)
        self.progress.stage(f"train {self.config.method}", self.total, done)

    def _log_beginning(self) -> None:
        """Measure before the first step, and log the cost of offline answers."""
        metrics = self._offline_cost()
        if self.counters.step == 0 and not self._stopping():
            if 0 in self.validation_steps:
                self.progress.stage("validation before training")
            metrics |= self._measured(0)
        if metrics:
            self._log(metrics)

    def _log(self, metrics: dict[str, float]) -> None:
        self.tracker.log(self.counters.step, metrics)
        self.callbacks.logged(metrics)

    def _step(self, step: int) -> dict[str, float]:
        """One update; writes its rollouts and returns its metrics."""
        self.callbacks("on_step_begin")
        started = time.perf_counter()
        self._seed(step)
        try:
            if not self.method.offline:
                self.setup.publish(step - 1)
            rollouts = self._collect(step)
            self.setup.rest_engine()
        except OpctError:
            if self.counters.step:  # the weights are still those of the step before; else it was computed for nothing
                self._save()
            raise
        rollout_s = time.perf_counter() - started
        if step == 1:
            self._look_at_replies(rollouts)
        metrics, values = self._update(rollouts, step)
        self.setup.teacher.update()  # a moving average follows the policy
        self.counters.step = step
        metrics |= {
            "time/rollout_s": rollout_s,
            "time/step_s": time.perf_counter() - started,
            "memory/peak_gb": max(distributed.all_gather_object(peak_memory_gb(self.policy.device))),
        }
        distributed.main_only(self._write_rollouts, rollouts, values)
        self.callbacks("on_step_end")
        return metrics

    def _measure_step(self, metrics: dict[str, float]) -> dict[str, float]:
        """Measure after a step and log it all. Where that fails, the step is saved, and resuming measures first."""
        try:
            metrics = metrics | self._measured(self.counters.step)
        except NonFiniteError:
            raise  # these weights are no place to continue from
        except OpctError:
            self._save()
            raise
        self._log(metrics)
        self.counters.unmeasured = None
        return metrics

    def _seed(self, step: int) -> None:
        rank_seed = () if distributed.is_main() else (distributed.rank(),)
        torch.manual_seed(sample_seed(self.config.seed, "step", step, *rank_seed))  # each process has its own dropout

    def _measured(self, step: int) -> dict[str, float]:
        """The validation and the suites that are due after a step; not part of its time."""
        metrics = self._validation(step) if step in self.validation_steps else {}
        if self.hooks.evaluate is not None and step in self.setup.data.suite_steps:
            started = time.perf_counter()
            # the main process alone, which writes the logs; the others wait for its numbers
            measured = self.hooks.evaluate(self.setup, self.run, step, self.progress) if distributed.is_main() else {}
            metrics |= distributed.broadcast_object(measured) | {"time/eval_s": time.perf_counter() - started}
            self._show_steps()  # an evaluation shows its own
        self.callbacks.evaluated(metrics)
        return metrics

    def _offline_cost(self) -> dict[str, float]:
        """The cost of offline answers that is not logged yet, including answers sampled before a kill."""
        if not (self.method.offline and distributed.is_main()):
            return {}
        rows = self.run.read_metrics()
        new = {name: n - sum(row.get(name, 0) for row in rows) for name, n in offline_cost(self.run).items()}
        return new if any(n > 1e-6 for n in new.values()) else {}  # rounding of seconds

    def _stopping(self) -> bool:
        """True in all processes at the same step if any of them was asked to stop."""
        return any(distributed.all_gather_object(self.stop.requested or self.callbacks.stop))

    def _collect(self, step: int) -> list[Rollout]:
        """The rollouts of a step; each process samples for some of its pairs."""
        batch = self.setup.data.batch(step)
        if self.method.offline:
            return self.method.collect(batch, step)

        def collect(pairs: list[RenderedPair]) -> list[list[Rollout]]:
            return group_by_prompt(self.method.collect(pairs, step), len(pairs))

        costs = [cost(pair, self.config) for pair in batch]
        return [rollout for group in distributed.map_across_ranks(batch, costs, collect) for rollout in group]

    def _look_at_replies(self, rollouts: list[Rollout]) -> None:
        """Show and keep the warnings about the first replies; see `opct.models.self_test`."""
        warnings = show_warnings(first_warnings(self.policy, rollouts), self.progress)
        # each once: a run that was killed after it had shown them shows them again
        self.setup.warnings = list(dict.fromkeys([*self.setup.warnings, *warnings]))
        if warnings:
            distributed.main_only(self.run.update_manifest, {WARNINGS: self.setup.warnings})

    def _write_rollouts(self, rollouts: list[Rollout], values: TokenValues) -> None:
        self.run.check_in_place()  # before the write, which would make the folder again
        step = self.counters.step
        first = [next(iter(stats.values()), None) for stats in values]
        rows = [rollout_row(r, self.policy, step, kl) for r, kl in zip(rollouts, first, strict=True)]
        write_jsonl(self.run.rollouts_path(step), rows)

    def _update(self, rollouts: list[Rollout], step: int) -> tuple[dict[str, float], TokenValues]:
        """The gradient of the method's loss on these rollouts and one optimizer step; returns metrics and values."""
        optimizer, policy = self.optimizer, self.policy
        rate = learning_rate(step, self.total, self.config.optim)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss, values, observed = self._gradient(rollouts, step)
        limit = math.inf if self.config.optim.max_grad_norm is None else self.config.optim.max_grad_norm
        # also without a limit (infinity): the norm is logged, and checked before the weights move
        norm = float(torch.nn.utils.clip_grad_norm_(policy.trainable_parameters().values(), limit))
        if not math.isfinite(norm):
            raise NonFiniteError(
                f"Step {step}: the gradient's norm is {norm} at a finite loss of {loss:.4g}. {self._advice()}"
            )
        of_method = observed.metrics()
        # before the step: the weights must not move on samples of another model
        refuse_mismatch(of_method, self.config.rollout, step, dropout=policy.backbone.has_dropout)
        optimizer.step()
        metrics = {"train/loss": loss, "train/grad_norm": norm, "train/learning_rate": rate}
        of_tokens: dict[str, float] = {}
        names = dict.fromkeys(name for stats in values for name in stats)
        for name in names:
            of_tokens |= kl_metrics(f"train/{name}", rollouts, in_loss(rollouts, [stats.get(name) for stats in values]))
        self.watched = next((f"train/{name}" for name in names if name in DIVERGENCES.values()), "train/loss")
        return metrics | rollout_metrics(rollouts) | of_tokens | of_method, values

    def _gradient(self, rollouts: list[Rollout], step: int) -> tuple[float, TokenValues, StepMetrics]:
        """Compute the gradient of the method's loss on these rollouts; returns loss, values and what was observed."""
        weights = step_weights(rollouts, self.config.loss.reduction)
        self.policy.backbone.train()
        while True:
            self.optimizer.zero_grad(set_to_none=True)  # also what was added before the memory was short
            observed, budget = StepMetrics(self.method), self.setup.micro_batch_tokens
            try:
                loss, values = accumulate(self.method, rollouts, weights, budget, observe=observed.observe)
            except NonFiniteError as error:
                raise NonFiniteError(f"Step {step}: {error}. {self._advice()}") from error
            except OutOfMemory:
                # the moments come with the first update. Not later: how sums are rounded would depend on what else is
                # on the device in the middle of a run
                if step > 2 or self.config.optim.micro_batch_tokens != "auto" or budget <= FEWEST_TOKENS:
                    raise
                self._shrink_micro_batch(budget // 2)
                self._seed(step)  # as a run that is resumed with this size begins the step
            else:
                self.policy.backbone.eval()
                return loss, values, observed

    def _shrink_micro_batch(self, tokens: int) -> None:
        self.setup.micro_batch_tokens = tokens
        self.progress.log(f"out of memory: micro-batches have at most {tokens} tokens from now on")
        distributed.main_only(self.run.update_manifest, {MICRO_BATCH: tokens})

    def _validation(self, step: int) -> dict[str, float]:
        self.setup.publish(step)
        metrics, rows = validate(self.setup, step)
        distributed.main_only(write_jsonl, self.run.validation_path(step), rows)
        kl = metrics.get("validation/kl")
        if kl is not None and (self.counters.best_kl is None or kl < self.counters.best_kl):
            self.counters.best_kl, self.counters.best_step = kl, step
        if step == 0:
            self.validated_at_start = kl or 0.0
        return metrics

    def _judge(self, metrics: dict[str, float], step: int) -> None:
        """Count the steps whose training KL, or loss for methods without a KL, is above the bound."""
        counters, value = self.counters, metrics.get(self.watched)
        if step <= FIRST_STEPS:
            # the validation measures the reverse KL, so it says nothing of another divergence or of a loss
            at_start = self.validated_at_start if self.watched == "train/kl" else 0.0
            counters.reference = max(counters.reference, at_start, value or 0.0)
        if value is None:  # no pair of the step is in the loss
            return
        counters.steps_above = counters.steps_above + 1 if value > self._bound() else 0

    def _bound(self) -> float:
        return self.config.stop.divergence_factor * max(self.counters.reference, KL_FLOOR)

    def _stop_on_divergence(self, metrics: dict[str, float], step: int) -> None:
        stop, counters = self.config.stop, self.counters
        if counters.steps_above >= stop.divergence_patience:
            name, unit = ("loss", "") if self.watched == "train/loss" else ("KL", " nats a token")
            raise DivergenceError(
                f"Step {step}: the training {name} is {metrics[self.watched]:.3g}{unit}, above {self._bound():.3g} "
                f"(stop.divergence_factor={stop.divergence_factor} times the {name} at the start) for "
                f"{counters.steps_above} steps. {self._advice()}"
            )

    def _advice(self) -> str:
        checkpoints = self.run.checkpoints()
        saved = f"The last checkpoint is {checkpoints[-1][1]}." if checkpoints else "No checkpoint was written yet."
        return f"{saved} Try a lower optim.learning_rate or optim.max_grad_norm."

    def _save(self) -> None:
        """A checkpoint of the current step, unless there is one; the main process writes it."""
        distributed.main_only(self.run.check_in_place)
        if distributed.is_main() and not self.run.checkpoint_path(self.counters.step).exists():
            write_checkpoint(self.run, self.setup, self.optimizer, self.counters)
            prune(self.run.checkpoints_dir, self.config.save_total_limit, self.counters.best_step)
        if self.saved_step != self.counters.step:
            self.saved_step = self.counters.step
            self.callbacks("on_save")

    def _name_checkpoint(self) -> None:
        """Let an evaluation of the policy know its run, and where every weight was trained the base, too."""
        checkpoint, policy = self.run.checkpoint_path(self.counters.step), self.policy
        if checkpoint.is_dir():
            policy.saved = checkpoint, policy.weights_hash(), weight_hashes(checkpoint)
        if not policy.has_adapter:
            model = self.config.model.model_copy(update={"device": str(policy.device)})
            load = partial(Policy.load, thinking_tags=self.config.loss.thinking_tags)
            policy.set_base(base_loader(self.run, model, policy.dtype, load))


def learning_rate(step: int, total: int, optim: OptimConfig) -> float:
    """Warm-up from 0, then constant, linear or cosine decay to 0 after the last step."""
    if step <= optim.warmup_steps:
        # + 1: the first step is above 0, and the first one after the warm-up has the full rate
        return optim.learning_rate * step / (optim.warmup_steps + 1)
    # - 1: it is 0 at the first step after the warm-up, and below 1 at the last, which still moves the weights
    share = (step - 1 - optim.warmup_steps) / max(1, total - optim.warmup_steps)
    factor = {"constant": 1.0, "linear": 1 - share, "cosine": 0.5 * (1 + math.cos(math.pi * share))}
    return optim.learning_rate * factor[optim.lr_scheduler_type]


# -------------------------------------------------------------------------------------------------------- validation


def validate(setup: TrainingSetup, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Mean reverse KL a token (nats) on held-out pairs and on held-out identity pairs, and the rollouts as rows.

    One completion a pair, sampled from the policy under `prompt` at temperature 1; the exact KL to the teacher under
    `teacher_prompt`. The same pairs and seeds at every step and for every method, so that curves can be compared.
    """
    metrics: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    data = setup.data
    for name, pairs in (("validation/kl", data.validation), ("validation/kl_identity", data.validation_anchors)):
        if not pairs:
            continue
        costs = [cost(rendered, setup.config, 1) for rendered in pairs]
        measured = distributed.map_across_ranks(pairs, costs, partial(rollout_kl, setup))
        of_axes: dict[str, list[float]] = {}
        for rollout, kl in measured:
            of_axes.setdefault(rollout.pair.axis, []).extend(kl)
        metrics[name] = mean(value for values in of_axes.values() for value in values)
        if name == "validation/kl" and len(of_axes) > 1:
            metrics |= {f"{name}_{axis}": mean(values) for axis, values in sorted(of_axes.items())}
        rows += [rollout_row(r, setup.policy, step, kl) for r, kl in measured]
    return metrics, rows


@torch.no_grad()
def rollout_kl(setup: TrainingSetup, pairs: Sequence[RenderedPair]) -> list[tuple[Rollout, list[float]]]:
    """One rollout for each pair, and the exact reverse KL of each of its tokens in nats."""
    policy = setup.policy
    # of the policy itself, whatever the answers of a run are sampled with: only then is it the mean reverse KL
    overrides = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "use_generation_config": False}
    config = setup.config.model_copy(update={"rollout": setup.config.rollout.model_copy(update=overrides)})
    rollouts = policy_rollouts(policy, pairs, config, "validation", n=1, sampler=setup.engine)
    kl = policy.reverse_kl(
        [r.prompt_ids for r in rollouts], [r.teacher_ids for r in rollouts], [r.ids for r in rollouts], setup.teacher
    )
    return list(zip(rollouts, kl, strict=True))
