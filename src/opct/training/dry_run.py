"""What a run would do and cost, before it does: `opct train --dry-run`."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opct.config.loader import dump_config
from opct.config.schema import TrainConfig, refuse_attackers
from opct.data.dataset import anchors_per_step
from opct.data.perturb import jailbreak, safety_awareness
from opct.data.render import RenderedPair
from opct.data.teacher_prompts import ASKED, TeacherQuestions, teacher_questions
from opct.methods import Method
from opct.methods.offline import OfflineAnswers, answers_to
from opct.methods.registry import ANSWERING, make
from opct.methods.rollouts import Rollout, completions_per_pair, policy_rollouts, step_weights
from opct.models.memory import memory_now_bytes, peak_memory_gb
from opct.models.scoring import micro_batches
from opct.training.accumulate import accumulate, forward_tokens, shares_prompts
from opct.training.prediction import kept_prompt_bytes, predicted, size
from opct.training.setup import Setup, describe, prepare

if TYPE_CHECKING:
    from rich.console import RenderableType

PROBE_PAIRS = 4
GRADIENT_BYTES, ADAM_BYTES = 4, 8  # for each trained weight, all float32


@dataclass(frozen=True)
class Plan:
    """What would happen: settings, sizes, and an estimate from a short probe."""

    config: TrainConfig
    facts: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]

    def render(self) -> RenderableType:
        """The plan for a terminal."""
        from rich.console import Group
        from rich.syntax import Syntax
        from rich.table import Table
        from rich.text import Text

        table = Table(title="plan (nothing was written)", show_header=False)
        table.add_column(style="bold")
        table.add_column()
        for row in self.rows:
            table.add_row(*row)
        return Group(
            Syntax(dump_config(self.config), "yaml", background_color="default"),
            *(Text(fact) for fact in self.facts),
            table,
        )


@dataclass(frozen=True)
class _Probe:
    """What `pairs` pairs took: seconds, and the bytes that came on top of the loaded model.

    `tokens` is the size of the largest micro-batch, padding included, and `full` that of a full one; with the prompts,
    where completions share them.
    """

    pairs: int
    rollout_s: float
    loss_s: float
    completions: int
    completion_tokens: int
    truncated: int
    tokens: int
    full: int
    added_bytes: float


def make_plan(config: TrainConfig) -> Plan:
    """Load the data and the model, try a few pairs, and say what the run would do. Writes nothing.

    Raises:
        ConfigError, DataError, ModelError: as training would.
    """
    refuse_attackers(config)
    with contextlib.closing(prepare(config)) as setup:
        setup.publish(0)
        return Plan(config, tuple(describe(setup)), (*_sizes(setup), *_costs(setup, _probe(setup))))


def _sizes(setup: Setup) -> Iterator[tuple[str, str]]:
    """What is trained on, and how much of it."""
    config, n = setup.config, completions_per_pair(setup.config)
    steps, per_step = setup.total_steps, config.optim.prompts_per_step
    families = Counter(rendered.pair.family for rendered in setup.pairs)
    shown = ", ".join(f"{count} {name}" for name, count in sorted(families.items()))
    prompts = sorted(len(r.prompt_ids) for r in setup.pairs if r.prompt_ids is not None) or [0]
    median, longest = prompts[len(prompts) // 2], prompts[-1]
    of_loss = {"dpo": f"dpo_beta {config.loss.dpo_beta}", "act": "distance of activations"}
    loss = of_loss.get(config.method, f"{config.loss.estimator} {config.loss.divergence}")
    yield "method", f"{config.method}, teacher {config.teacher.kind}, {loss}"
    yield "pairs", f"{len(setup.pairs)} kept, {len(setup.left_out)} left out as too long; {shown}"
    yield "identity pairs", f"{len(setup.anchors)} ({config.data.anchor_fraction:.0%} of each step)"
    yield "prompt tokens", f"median {median}, longest {longest} of {setup.policy.context_length}"
    yield "steps", f"{steps} of {per_step} pairs x {n} completions"
    fresh = per_step - anchors_per_step(per_step, config.data.anchor_fraction if setup.anchors else 0.0)
    share = fresh // len(setup.streams)
    of_axis = "" if len(setup.streams) == 1 else " of {}"
    passes = [
        f"each pair{of_axis.format(name.partition('/')[2])} is seen {steps * share / len(pairs):.1f} times"
        for name, pairs in setup.streams.items()
    ]
    yield "passes", ", ".join(passes)
    questions = teacher_questions(rendered.pair for rendered in setup.pairs)
    if questions:
        yield "teacher check", "; ".join(_teacher_checks(config, questions))
    yield "completion tokens", f"at most {steps * per_step * n * config.rollout.max_completion_tokens:,} in all"


def _teacher_checks(config: TrainConfig, questions: Mapping[str, TeacherQuestions]) -> Iterator[str]:
    """What will be asked of the teacher before the first step, and what will not."""
    settings = {jailbreak.AXIS: "check_behaviors", safety_awareness.AXIS: "check_hazards"}
    for axis, own in questions.items():
        most, there = getattr(config.teacher, settings[axis]), len(own.asked)
        if most:
            yield f"{min(there, most)} of {there} {ASKED[axis]}, at most {config.teacher.check_tokens} tokens each"
        else:
            yield f"off for {there} {ASKED[axis]} (teacher.{settings[axis]}=0): what it answers is not known"
        if own.n_ungradable:
            yield f"{own.n_ungradable} without words (`about`, `harm`) to grade a warning by are not asked"


def _costs(setup: Setup, probe: _Probe) -> Iterator[tuple[str, str]]:
    """Memory and time, from the probe. A validation takes one completion a pair, and half of a loss: no backward."""
    config = setup.config
    offline = config.method != "opct"  # answers are sampled once for each pair, before the first step
    answer_s = probe.rollout_s / max(1, probe.completions)
    step_s = (probe.loss_s + (0 if offline else probe.rollout_s)) / probe.pairs * config.optim.prompts_per_step
    offline_s = answer_s * sum(answers_to(rendered, config) for rendered in setup.visited())
    held_out, times = len(setup.validation) + len(setup.validation_anchors), _validations(setup)
    validation_s = times * held_out * (answer_s + probe.loss_s / 2 / max(probe.pairs, probe.completions))
    limit = config.rollout.max_completion_tokens
    if probe.completions:
        yield (
            "cut completions",
            f"{probe.truncated} of {probe.completions} in the probe reached the limit of {limit} tokens",
        )
    total = _duration(offline_s + setup.total_steps * step_s + validation_s)
    yield "memory", memory_words(setup, probe)
    yield (
        "time",
        f"about {total}: {step_s:.1f} s a step (probe: {probe.pairs} pairs), {times} validations of {held_out} pairs"
        + (f", {_duration(offline_s)} for offline answers" if offline_s else ""),
    )
    if not offline:
        mean = probe.completion_tokens / probe.completions
        yield from predicted(setup, mean_completion=mean, probe_pairs=probe.pairs, probe_loss_s=probe.loss_s)


def memory_words(setup: Setup, probe: _Probe) -> str:
    """An estimate of the memory that training needs, and what it is made of.

    Weights of policy and teacher as they are; 4 bytes for the gradient and 8 for Adam's two moments of each trained
    weight; and what the probe took on top, its gradients aside, scaled to a full micro-batch where it was smaller. On a
    CPU the peak is that of the whole process: where loading the model set it, the last part is too high.
    """
    policy = setup.policy
    with setup.teacher() as teacher:
        models = [policy.model] if teacher.model is policy.model else [policy.model, teacher.model]
    weights = sum(p.numel() * p.element_size() for model in models for p in model.parameters())
    trained = sum(p.numel() for p in policy.trainable_parameters().values())
    scale = max(1.0, probe.full / probe.tokens)
    batch = max(0.0, probe.added_bytes - GRADIENT_BYTES * trained) * scale
    state, kept = (GRADIENT_BYTES + ADAM_BYTES) * trained, kept_prompt_bytes(setup)
    also = f", the teacher's kept prompts {size(kept)}" if kept else ""
    return (
        f"about {size(weights + state + batch + kept)}: weights {size(weights)}, gradients and Adam {size(state)} "
        f"({GRADIENT_BYTES + ADAM_BYTES} bytes for each of {trained:,} trained weights), a micro-batch of {probe.full} "
        f"tokens {size(batch)} (the probe's, of {probe.tokens} tokens, times {scale:.1f}){also}; libraries and long "
        "rollouts come on top"
    )


def _validations(setup: Setup) -> int:
    """How often the validation KL is measured: before the first step, every `eval_steps`, and after the last."""
    if not setup.validation and not setup.validation_anchors:
        return 0
    steps = setup.total_steps
    every = setup.config.eval_steps or max(1, -(-steps // 2))
    return len({*range(0, steps + 1, every), steps})


def _probe(setup: Setup) -> _Probe:
    """Time the answers and the loss of a few pairs."""
    config = setup.config
    pairs = setup.batch(1)[:PROBE_PAIRS]
    before = memory_now_bytes(setup.policy.device)
    started = time.perf_counter()
    method, rollouts = _collected(setup, pairs)
    answers = [answer for r in rollouts for answer in r.answers]
    if not answers and setup.validation:  # where nobody else answers, the validation does
        validated = policy_rollouts(setup.policy, pairs, config, "probe", n=1, sampler=setup.engine)
        answers = [answer for r in validated for answer in r.answers]
    rollout_s = time.perf_counter() - started
    weights = step_weights(rollouts, config.loss.reduction)
    lengths = [forward_tokens(r) for r in rollouts]
    budget, teacher = config.optim.micro_batch_tokens, setup.teacher
    share = shares_prompts(setup.policy, teacher, rollouts)
    if share:  # prompts and a micro-batch of completions together
        prompts = {tuple(r.prompt_ids) for r in rollouts}
        tokens = min(budget, sum(map(len, prompts))) + min(budget, sum(sum(r.lengths) for r in rollouts))
    else:
        tokens = max(len(rows) * max(lengths[i] for i in rows) for rows in micro_batches(lengths, budget))
    started = time.perf_counter()
    accumulate(method, setup.policy, teacher, rollouts, weights, budget, share=share)
    setup.policy.model.zero_grad(set_to_none=True)
    loss_s = time.perf_counter() - started
    cut = sum(answer.stop_reason == "length" for answer in answers)
    sampled = sum(len(answer.token_ids) for answer in answers)
    added = max(0.0, peak_memory_gb(setup.policy.device) * 1e9 - before)
    full = budget * (2 if share else 1)
    return _Probe(len(pairs), rollout_s, loss_s, len(answers), sampled, cut, tokens, full, added)


def _collected(setup: Setup, pairs: list[RenderedPair]) -> tuple[Method, list[Rollout]]:
    """The run's method, and its rollouts of these pairs; what a run samples before training, it samples here."""
    policy, config, engine, answers = setup.policy, setup.config, setup.engine, None
    if config.method != "opct":
        base = None if engine is None else engine.base()
        with setup.teacher() as teacher:
            answers = OfflineAnswers(ANSWERING[config.method](teacher, pairs, config, lambda n: None, sampler=base))
    method = make(policy, setup.teacher, config, answers, engine)
    return method, method.collect(pairs, 1)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
