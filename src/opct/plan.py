"""What a run would do and cost, before it does: `opct train --dry-run`."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opct.config import TrainConfig
from opct.config_file import dump_config
from opct.methods.consistency import MicroLoss
from opct.methods.opct import OPCT
from opct.methods.rollouts import step_weights
from opct.models.scoring import micro_batches
from opct.prepare import Setup, describe, prepare
from opct.trainer import peak_memory_gb

if TYPE_CHECKING:
    from rich.console import RenderableType

PROBE_PAIRS = 4


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
    """Seconds for `pairs` pairs, measured."""

    pairs: int
    rollout_s: float
    loss_s: float


def make_plan(config: TrainConfig) -> Plan:
    """Load the data and the model, try a few pairs, and say what the run would do. Writes nothing.

    Raises:
        ConfigError, DataError, ModelError: as training would.
    """
    setup = prepare(config)
    probe = _probe(setup)
    steps, per_step = setup.total_steps, config.optim.prompts_per_step
    completions = per_step * config.rollout.num_generations
    step_s = (probe.rollout_s + probe.loss_s) / probe.pairs * per_step
    validations = 0 if not setup.validation else 3 if config.eval_steps is None else steps // config.eval_steps + 2
    held_out = len(setup.validation) + len(setup.validation_anchors)
    validation_s = (
        validations
        * held_out
        * (probe.rollout_s / config.rollout.num_generations + probe.loss_s / (2 * config.rollout.num_generations))
        / probe.pairs
    )
    lengths = sorted(len(r.prompt_ids) for r in setup.pairs if r.prompt_ids is not None) or [0]
    families = Counter(rendered.pair.family for rendered in setup.pairs)
    rows = (
        ("method", f"{config.method}, teacher {config.teacher.kind}, {config.loss.estimator} {config.loss.divergence}"),
        (
            "pairs",
            f"{len(setup.pairs)} kept, {len(setup.left_out)} left out as too long; {', '.join(f'{n} {name}' for name, n in sorted(families.items()))}",
        ),
        ("identity pairs", f"{len(setup.anchors)} ({config.data.anchor_fraction:.0%} of each step)"),
        (
            "prompt tokens",
            f"median {lengths[len(lengths) // 2]}, longest {lengths[-1]} of {setup.policy.context_length}",
        ),
        ("steps", f"{steps} of {per_step} pairs x {config.rollout.num_generations} completions"),
        ("completion tokens", f"at most {steps * completions * config.rollout.max_completion_tokens:,} in all"),
        (
            "memory",
            f"{peak_memory_gb():.1f} GB at the peak of the probe; the largest micro-batch has {config.optim.micro_batch_tokens} tokens",
        ),
        (
            "time",
            f"about {_minutes(steps * step_s + validation_s)}: {step_s:.1f} s a step (probe: {probe.pairs} pairs), {validations} validations of {held_out} pairs",
        ),
    )
    return Plan(config, tuple(describe(setup)), rows)


def _probe(setup: Setup) -> _Probe:
    """Time the rollout and the loss of a few pairs as OPCT would do them; the baselines cost no more."""
    config = setup.config
    pairs = setup.batch(1)[:PROBE_PAIRS]
    method = OPCT(setup.policy, setup.teacher, config)
    started = time.perf_counter()
    rollouts = method.collect(pairs, 1)
    rollout_s = time.perf_counter() - started
    weights = step_weights(rollouts, config.loss.reduction)
    lengths = [max(len(r.prompt_ids), len(r.teacher_ids)) + len(r.ids) for r in rollouts]
    started = time.perf_counter()
    for rows in micro_batches(lengths, config.optim.micro_batch_tokens):
        micro: MicroLoss = method.loss([rollouts[i] for i in rows], [weights[i] for i in rows])
        micro.loss.backward()
    setup.policy.model.zero_grad(set_to_none=True)
    return _Probe(len(pairs), rollout_s, time.perf_counter() - started)


def _minutes(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} minutes"
        if seconds < 7200
        else f"{seconds / 3600:.1f} hours"
    )
