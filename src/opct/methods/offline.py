"""Offline answers of the baselines: sampled once before training and stored in the run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from opct import distributed
from opct.config.schema import TrainConfig
from opct.data.render import RenderedPair
from opct.errors import RunError
from opct.methods.base import Method
from opct.methods.rollouts import (
    STORED_ROLLOUT,
    Rollout,
    cost,
    group_by_prompt,
    rollout_from,
    rollout_row,
    stored_answers,
)
from opct.models.inference.sampler import Completion
from opct.models.policy import Policy
from opct.models.teacher import Teacher
from opct.models.vllm.engine import OnDone, Sampler
from opct.runs.io import read_json, read_jsonl, write_json, write_jsonl
from opct.runs.run_dir import RunDir

PART = 256
"""Pairs a process whose answers are stored together, if the base is the teacher: what a kill loses at most."""


class OfflineAnswers:
    """The rollouts of a baseline by pair."""

    def __init__(self, rollouts: Sequence[Rollout]):
        self._by_pair: dict[str, list[Rollout]] = defaultdict(list)
        for rollout in rollouts:
            self._by_pair[rollout.pair.id].append(rollout)

    def of(self, pairs: Sequence[RenderedPair]) -> list[Rollout]:
        """The rollouts of these pairs, in their order."""
        return [rollout for rendered in pairs for rollout in self._by_pair[rendered.pair.id]]


def offline_answers(
    method: type[Method],
    policy: Policy,
    teacher: Teacher,
    pairs: Sequence[RenderedPair],
    config: TrainConfig,
    run: RunDir,
    on_done: OnDone = lambda n: None,
    *,
    sampler: Sampler | None = None,
) -> OfflineAnswers:
    """Read the run's offline answers; sample and store those that are missing.

    A run that is resumed for more steps needs answers to more pairs; a `base` teacher gives the same ones as before.

    Args:
        on_done: called with the number of answers that are kept, then as answers are sampled.
        sampler: samples for the teacher; by default itself.

    Raises:
        RunError: answers are missing in a resumed run whose teacher has moved since.
    """
    # every rank must find the same answers missing
    rows = distributed.broadcast_object(_stored(run, policy) if distributed.is_main() else [])
    answered = {row["pair_id"] for row in rows}
    missing = [rendered for rendered in pairs if rendered.pair.id not in answered]
    is_sampled = any(answers_to(r, method, config) or r.prompt_ids is None for r in missing)
    if rows and is_sampled and config.teacher.kind != "base":
        raise RunError(
            f"{run.offline_path} lacks answers to {len(missing)} pair(s), and the {config.teacher.kind} teacher that "
            "would sample them has changed since: use the max_steps that the run was started with."
        )
    tokens = [0]

    def answer(batch: list[RenderedPair]) -> list[list[Rollout]]:
        with teacher() as model:
            counting = _Counting(sampler or model, tokens, on_done)
            return group_by_prompt(method.answer(model, batch, config, counting), len(batch))

    n_stored = sum(answers_to(r, method, config) for r in pairs if r.pair.id in answered)
    if n_stored and not distributed.launched():
        on_done(n_stored)
    # another teacher than the base could not answer the rest later
    size = PART * distributed.size() if config.teacher.kind == "base" else len(missing)
    while missing:
        part, missing = missing[:size], missing[size:]
        started, tokens[0] = time.perf_counter(), 0
        rollouts = distributed.map_across_ranks(part, [cost(rendered, config) for rendered in part], answer)
        # with the rows so far: the file is replaced whole
        rows += [rollout_row(r, policy, 0, None, logprobs=True) for group in rollouts for r in group]
        seconds, sampled = time.perf_counter() - started, sum(distributed.all_gather_object(tokens[0]))
        distributed.main_only(_add_cost, run, seconds, sampled)  # first: a kill in between counts it, and samples again
        distributed.main_only(write_jsonl, run.offline_path, rows)
    by_id = {rendered.pair.id: rendered for rendered in pairs}
    # a run for fewer steps visits fewer pairs than the file has answers to
    used = [row for row in rows if row["pair_id"] in by_id]
    return OfflineAnswers([rollout_from(row, by_id[row["pair_id"]], policy.renderer) for row in used])


def _stored(run: RunDir, policy: Policy) -> list[Any]:
    rows = read_jsonl(run.offline_path, STORED_ROLLOUT)
    largest = max((max(answer["token_ids"]) for row in rows for answer in stored_answers(row)), default=0)
    if largest >= len(policy.backbone.bare_model.get_input_embeddings().weight):
        raise RunError(f"{run.offline_path} has a token {largest}, which this model has not. Delete the file.")
    return rows


class _Counting:
    """A sampler that counts its tokens and reports its completions, answers to open turns included."""

    def __init__(self, sampler: Sampler, tokens: list[int], on_done: OnDone):
        self._sampler, self._tokens, self._on_done = sampler, tokens, on_done

    def sample(self, *arguments: Any, **options: Any) -> list[list[Completion]]:
        completions = self._sampler.sample(*arguments, on_done=self._on_done, **options)
        self._tokens[0] += sum(len(completion.token_ids) for group in completions for completion in group)
        return completions


def offline_cost(run: RunDir) -> dict[str, float]:
    """The cost of all offline answers of the run, as metrics: `time/offline_s` and `rollout/offline_tokens`."""
    path = run.offline_cost_path
    hint = "Delete it; the report then has no cost of these answers."
    return read_json(path, dict[str, float], hint=hint) if path.exists() else {}


def _add_cost(run: RunDir, seconds: float, tokens: int) -> None:
    before = offline_cost(run)
    now = {"time/offline_s": seconds, "rollout/offline_tokens": tokens}
    write_json(run.offline_cost_path, {name: before.get(name, 0) + n for name, n in now.items()})


def answers_to(rendered: RenderedPair, method: type[Method], config: TrainConfig) -> int:
    """How many completions of a pair are sampled before training."""
    if not method.offline:
        return 0
    each = method.answers_per_identity_pair if rendered.pair.is_identity else method.answers_per_pair
    return each * config.rollout.num_generations
