"""`opct train --dry-run`: the plan of a run, with its memory and time."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from opct.config.schema import TrainConfig
from opct.data.dataset import pairs_of_each
from opct.data.render import RenderedPair
from opct.errors import ConfigError
from opct.methods.offline import OfflineAnswers, answers_to
from opct.methods.registry import METHODS, refuse_attackers
from opct.methods.rollouts import first_warnings, policy_rollouts, step_weights, teacher_rollouts
from opct.models.inference.sampler import Completion
from opct.models.memory import peak_memory_gb
from opct.models.vllm.engine import Engine
from opct.runs.console import WARNING, NullProgress, Progress, as_text, duration, pluralize
from opct.training.accumulate import accumulate
from opct.training.estimate import estimate_memory, size
from opct.training.setup import TrainingData, TrainingSetup, build_setup, describe

if TYPE_CHECKING:
    from rich.console import RenderableType

PROBE_PAIRS, PROBES = 4, 2  # after a first probe, which is slower than those after it
CLEAN_REPLIES, CLEAN_SHARE, CLEAN_TOKENS = 32, 0.95, 512  # replies; the share that should end; most tokens of one
FEW_VALIDATION_PAIRS = 8  # where a warning begins


@dataclass(frozen=True)
class Plan:
    """Plan of a run: sizes, warnings, and an estimate from a short probe."""

    facts: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]

    def render(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table

        table = Table(title="plan (nothing was written)", show_header=False, box=None)
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for name, words in self.rows:
            table.add_row(name, as_text(words))
        warnings = [as_text(f"warning: {warning}", style="yellow") for warning in self.warnings]
        hint = as_text("`opct config show` prints all settings.", style="dim")
        return Group(*map(as_text, self.facts), table, *warnings, hint)


def make_plan(config: TrainConfig, progress: Progress | None = None) -> Plan:
    """Build the pairs, estimate the memory, then load the model and try a few pairs. Writes nothing.

    Raises:
        ConfigError, DataError, ModelError: as training would; or another engine trains.
    """
    refuse_attackers(config)
    if config.engine != "opct":
        raise ConfigError(f"--dry-run plans a training by opct, not by engine={config.engine}: leave one out.")
    progress = progress or NullProgress()
    progress.stage(f"load {config.model.name_or_path}")
    with contextlib.closing(build_setup(config, progress=progress)) as setup:
        setup.publish(0)
        progress.stage("try a few pairs", 2 + PROBES)
        facts, (probed, warnings) = describe(setup), _probed(setup, progress)
        progress.done()
        setup_warnings = [fact.removeprefix(WARNING) for fact in facts if fact.startswith(WARNING)]
        plain_facts = [fact for fact in facts if not fact.startswith(WARNING)]
        return Plan(tuple(plain_facts), (*_sizes(setup.data), *probed), (*setup_warnings, *warnings))


def _sizes(data: TrainingData) -> Iterator[tuple[str, str]]:
    """The method, the pairs, and how much of them is trained on."""
    config, method, steps = data.config, METHODS[data.config.method], data.total_steps
    n = method.answers_per_pair * config.rollout.num_generations
    per_step = config.optim.prompts_per_step
    families = Counter(rendered.pair.family for rendered in data.pairs)
    shown = ", ".join(f"{count} {name}" for name, count in sorted(families.items()))
    yield "method", f"{config.method}, teacher {config.teacher.kind}, {method.loss_words.format_map(dict(config.loss))}"
    yield "pairs", f"{len(data.pairs)} kept, {len(data.left_out)} left out as too long; {shown}"
    yield "steps", f"{steps} of {per_step} pairs x {n} completions"
    share = _share(data)
    of_axis = "" if len(data.streams) == 1 else " of {}"
    passes = [
        f"each pair{of_axis.format(name.partition('/')[2])} is seen {steps * share / len(pairs):.1f} times"
        for name, pairs in data.streams.items()
    ]
    yield "passes", ", ".join(passes)
    if data.suite_steps:
        asked = f"{', '.join(config.eval.suites)}, at most {config.eval.limit} questions each"
        yield "evaluations", f"{len(data.suite_steps)} of {asked}; not in the time below"
    yield "completion tokens", f"at most {steps * per_step * n * config.rollout.max_completion_tokens:,} in all"


def _share(data: TrainingData) -> int:
    """Pairs of each axis in a step."""
    per_step, fraction = data.config.optim.prompts_per_step, data.config.data.anchor_fraction if data.anchors else 0.0
    return pairs_of_each(data.streams, per_step, fraction)


# ------------------------------------------------------------------------------------------------ measured


@dataclass(frozen=True)
class Probe:
    """One try of a few pairs: seconds of sampling and of the loss with its gradient, the answers and their warnings."""

    pairs: int
    rollout_s: float
    loss_s: float
    answers: list[Completion]
    warnings: list[str]


def _probed(setup: TrainingSetup, progress: Progress) -> tuple[list[tuple[str, str]], list[str]]:
    """Rows with memory and time, and warnings, from answering and training on a few pairs."""
    config, data, pairs = setup.config, setup.data, _some(setup.data)
    _probe(setup, pairs[:1])
    progress.advance()
    probes = []
    for _ in range(PROBES):
        probes.append(_probe(setup, pairs))
        progress.advance()
    answers = probes[0].answers
    cut, limit = sum(answer.stop_reason == "length" for answer in answers), config.rollout.max_completion_tokens
    cut_words = f"{cut} of {len(answers)} in the probe reached the limit of {limit} tokens"
    peak = size(peak_memory_gb(setup.policy.device) * 1e9)
    estimate = estimate_memory(config, data.pairs, setup.micro_batch_tokens)
    rows = [("cut completions", cut_words)] if answers else []
    rows += [
        ("clean replies", clean_replies(setup)[1]),
        ("memory", f"{estimate}; {peak} for the probe of {pluralize(len(pairs), 'pair')}"),
        ("time", _time_words(setup, probes)),
    ]
    progress.advance()
    warnings = list(probes[0].warnings)
    if 0 < len(data.validation) < FEW_VALIDATION_PAIRS:
        held_out = pluralize(len(data.validation), "pair")
        warnings.append(f"validation: {held_out} held out, so its KL says little: raise data.validation_fraction")
    return rows, warnings


def _some(data: TrainingData) -> list[RenderedPair]:
    """The first pairs of a step, as many of each axis: those of one can be far longer than those of another."""
    n, share, batch = len(data.streams), _share(data), data.batch(1)
    chosen = {axis * share + i for axis in range(n) for i in range(max(1, PROBE_PAIRS // n))}
    return [batch[i] for i in sorted(chosen) if i < len(batch)]


def _probe(setup: TrainingSetup, pairs: list[RenderedPair]) -> Probe:
    """Answer and train on these pairs; the weights stay as they are."""
    config, engine, kind, started = setup.config, setup.engine, METHODS[setup.config.method], time.perf_counter()
    source: OfflineAnswers | Engine | None = engine
    if kind.offline:
        with setup.teacher() as teacher:
            source = OfflineAnswers(kind.answer(teacher, pairs, config, teacher if engine is None else engine.base()))
    method = kind(setup.policy, setup.teacher, config, source)
    rollouts = method.collect(pairs, 1)
    answered = [r for r in rollouts if r.answers]
    if not answered and setup.data.validation:  # the method samples nothing, but the validation does
        answered = policy_rollouts(setup.policy, pairs, config, "probe", n=1, sampler=engine)
    sampled = time.perf_counter()
    weights = step_weights(rollouts, config.loss.reduction)
    setup.policy.backbone.train()  # only then are activations computed again, and dropout is on
    accumulate(method, rollouts, weights, setup.micro_batch_tokens)
    setup.policy.backbone.eval()
    setup.policy.model.zero_grad(set_to_none=True)
    loss_s, answers = time.perf_counter() - sampled, [answer for r in answered for answer in r.answers]
    return Probe(len(pairs), sampled - started, loss_s, answers, first_warnings(setup.policy, answered))


def clean_replies(setup: TrainingSetup) -> tuple[int, str]:
    """How long replies to `teacher_prompt` are, which the policy is to give to `prompt`: the tokens that completions
    need, and in words how many end within these."""
    config, pairs = setup.config, setup.data.pairs
    some = pairs[:: max(1, len(pairs) // CLEAN_REPLIES)][:CLEAN_REPLIES]  # of every family: they are in order
    some = [replace(pair, prompt_ids=pair.teacher_ids) for pair in some]  # the open turns of prompts are not needed
    longest = max(len(pair.teacher_ids) for pair in some)
    room = min(CLEAN_TOKENS, setup.policy.context_length - longest)
    rollout = config.rollout.model_copy(update={"max_completion_tokens": room, "num_generations": 1})
    with setup.teacher() as teacher:  # it samples itself: an engine was started for shorter answers
        rollouts = teacher_rollouts(teacher, some, config.model_copy(update={"rollout": rollout}), teacher)
    answers, limit = [r.completion for r in rollouts], config.rollout.max_completion_tokens
    cut = sum(len(answer.token_ids) > limit or answer.stop_reason == "length" for answer in answers)
    ended = sorted(len(answer.token_ids) for answer in answers if answer.stop_reason != "length")
    enough = math.ceil(CLEAN_SHARE * len(answers))
    is_enough = len(ended) >= enough
    needed = ended[enough - 1] if is_enough else room
    words = f"{CLEAN_SHARE:.0%}" if is_enough else f"{len(ended)}"
    words += f" of {len(answers)} end within {needed} tokens{'' if is_enough else ', and more was not tried'}"
    return needed, f"{words}; rollout.max_completion_tokens={limit} cuts {cut}"


def measured_length(config: TrainConfig, progress: Progress) -> tuple[int, str]:
    """What `rollout.max_completion_tokens` should be for the model's own clean replies, and why.

    Raises:
        ConfigError, DataError, ModelError: as training would.
    """
    progress.stage(f"load {config.model.name_or_path}")
    with contextlib.closing(build_setup(config, progress=progress)) as setup:
        progress.stage("ask clean prompts")
        needed, words = clean_replies(setup)
    return needed, words.partition(";")[0]


def _time_words(setup: TrainingSetup, probes: Sequence[Probe]) -> str:
    """The time of all steps at the rates of the probes."""
    data, times = setup.data, [_times_s(setup, probe) for probe in probes]
    steps, offline, total = zip(*times, strict=True)
    held_out = len(data.validation) + len(data.validation_anchors)
    per_step = " to ".join(dict.fromkeys(f"{seconds:.2g}" for seconds in (min(steps), max(steps))))
    words = (
        f"{_span(total)} on this machine, now: {per_step} s a step, {len(data.validation_steps)} validations of "
        f"{held_out} pairs"
    )
    return words + (f", {_span(offline)} for offline answers" if any(offline) else "")


def _span(times_s: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(map(duration, (min(times_s), max(times_s)))))


def _times_s(setup: TrainingSetup, probe: Probe) -> tuple[float, float, float]:
    """Seconds of a step, of the offline answers, and in total. A validation samples one answer a pair; without a
    backward pass it takes half of a loss."""
    config, data, method = setup.config, setup.data, METHODS[setup.config.method]
    n = len(probe.answers)
    answer_s = probe.rollout_s / max(1, n)
    step_s = (probe.loss_s + (0 if method.offline else probe.rollout_s)) / probe.pairs * config.optim.prompts_per_step
    offline_s = answer_s * sum(answers_to(rendered, method, config) for rendered in data.visited())
    held_out = len(data.validation) + len(data.validation_anchors)
    validation_s = len(data.validation_steps) * held_out * (answer_s + probe.loss_s / 2 / max(probe.pairs, n))
    return step_s, offline_s, offline_s + data.total_steps * step_s + validation_s
