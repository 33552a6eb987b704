"""Rollouts: a pair, one completion for it, and which of its tokens are in the loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, cast

import torch
from pydantic import ConfigDict, Field, TypeAdapter, WrapValidator, with_config
from torch import Tensor
from typing_extensions import TypedDict

from opct import losses
from opct.config.methods import MethodLoss
from opct.config.schema import TrainConfig
from opct.data.pairs import ContrastivePair, Message
from opct.data.render import RenderedPair, Renderer, render_pairs
from opct.errors import DataError
from opct.models.inference.sampler import Completion, Sampling, StopReason, sample_seed
from opct.models.policy import Policy
from opct.models.self_test import FIRST_REPLIES, cut_warnings, reply_of, reply_warnings
from opct.models.vllm.engine import Sampler


@with_config(ConfigDict(strict=True))
class StoredAnswer(TypedDict):
    """What is read of a stored completion."""

    completion: str
    token_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    logprobs: list[float]
    in_loss: list[bool]
    stop_reason: StopReason
    seed: int


class StoredRollout(StoredAnswer):
    """What is read of a stored offline answer."""

    pair_id: str
    sample: int
    prompt: list[Message]
    rejected: NotRequired[StoredAnswer]


def stored_answers(row: StoredRollout) -> list[StoredAnswer]:
    """The completion of a row, and the one that it is preferred to."""
    return [row, row["rejected"]] if "rejected" in row else [row]


def _unchanged(row: Any, check: Callable[[Any], StoredRollout]) -> StoredRollout:
    """The row with all else that it has, in its order: a resumed run writes the file that an undisturbed one does."""
    for answer in stored_answers(check(row)):
        n, scored = len(answer["token_ids"]), len(answer["logprobs"])
        if len(answer["in_loss"]) != n or scored != (0 if answer["stop_reason"] == "given" else n):
            raise ValueError("logprobs and in_loss must have one value a token")
    return cast("StoredRollout", row)


STORED_ROLLOUT = TypeAdapter(Annotated[StoredRollout, WrapValidator(_unchanged)])


@dataclass(frozen=True)
class Rollout:
    """One completion of a pair. Token ids are as sampled; text is never tokenised again.

    Attributes:
        pair: with its open turns answered.
        index: which of the pair's completions this is.
        teacher_ids: the prompt of the teacher.
        mask: True for each completion token that is in the loss.
        teacher_logprobs: log-prob of each completion token after `teacher_ids` (nats), if an engine scored it.
        rejected: the answer that `completion` is preferred to, where a method compares two.
        rejected_mask: as `mask`, of `rejected`.
        reward: of a completion that is scored; None if that failed.
        advantage: the reward, relative to those of the other completions of its prompt.
        is_rehearsed: it was sampled in an earlier step.
    """

    pair: ContrastivePair
    index: int
    prompt_ids: list[int]
    teacher_ids: list[int]
    completion: Completion
    mask: tuple[bool, ...]
    teacher_logprobs: tuple[float, ...] | None = None
    rejected: Completion | None = None
    rejected_mask: tuple[bool, ...] = ()
    reward: float | None = None
    advantage: float = 0.0
    is_rehearsed: bool = False

    @property
    def ids(self) -> list[int]:
        """The completion's token ids, stop token included."""
        return list(self.completion.token_ids)

    @property
    def completions(self) -> list[Completion]:
        """All that stands after the prompt."""
        return [self.completion] if self.rejected is None else [self.completion, self.rejected]

    @property
    def answers(self) -> list[Completion]:
        """The completions that were sampled."""
        return [completion for completion in self.completions if completion.stop_reason != "given"]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each of `completions`."""
        return [len(completion.token_ids) for completion in self.completions]


def policy_rollouts(
    policy: Policy,
    pairs: Sequence[RenderedPair],
    config: TrainConfig,
    seed_key: object,
    n: int | None = None,
    *,
    sampler: Sampler | None = None,
    of_teacher: bool = False,
) -> list[Rollout]:
    """Sample `n` answers (`rollout.num_generations`) to each pair's `prompt`; its open turns are answered first.

    Args:
        seed_key: the step, or "validation": each has samples of its own.
        sampler: samples for the policy; by default itself.
        of_teacher: the answers are to `teacher_prompt`, as of `teacher_rollouts`.
    """
    n, sampler = config.rollout.num_generations if n is None else n, sampler or policy
    filled = answer_open_turns(policy, sampler, pairs, config, seed_key)
    completions = sampler.sample(
        [rendered.teacher_ids if of_teacher else rendered.prompt_ids or [] for rendered in filled],
        seeds_of(config, seed_key, filled, n),
        sampling(config, policy),
        batch_tokens=config.rollout.batch_tokens,
    )
    return [
        Rollout(
            rendered.pair,
            i,
            rendered.prompt_ids or [],
            rendered.teacher_ids,
            completion,
            # after `prompt` also for the teacher's answers: that is where they are trained
            completion_mask(policy.renderer, rendered.pair.prompt, completion, config.loss),
        )
        for rendered, group in zip(filled, completions, strict=True)
        for i, completion in enumerate(group)
    ]


def cost(rendered: RenderedPair, config: TrainConfig, n: int | None = None) -> int:
    """Most tokens of a pair's rollouts: its longer prompt once, and n (`rollout.num_generations`) completions."""
    n = config.rollout.num_generations if n is None else n
    prompt = max(len(rendered.prompt_ids or ()), len(rendered.teacher_ids))
    return prompt + n * config.rollout.max_completion_tokens


def teacher_rollouts(
    teacher: Policy, pairs: Sequence[RenderedPair], config: TrainConfig, sampler: Sampler
) -> list[Rollout]:
    """The baselines' answers: the teacher answers each pair's `teacher_prompt`, and the open turns of `prompt`.

    Args:
        sampler: samples for the teacher.
    """
    return policy_rollouts(teacher, pairs, config, "offline", sampler=sampler, of_teacher=True)


def group_by_prompt(rollouts: Sequence[Rollout], pairs: int) -> list[list[Rollout]]:
    """The rollouts of each pair; all pairs have equally many."""
    # max: a process may have no pair
    n = len(rollouts) // max(1, pairs)
    return [list(rollouts[i * n : (i + 1) * n]) for i in range(pairs)]


def sampled_rollout(policy: Policy, pair: ContrastivePair, config: TrainConfig) -> Rollout:
    """One rollout of one pair outside any run, as OPCT would sample it. Raises DataError where the pair does not fit
    the model's context."""
    rendered, too_long = render_pairs(
        [pair],
        policy.renderer,
        max_completion_tokens=config.rollout.max_completion_tokens,
        context_length=policy.context_length,
    )
    if too_long:
        raise DataError(
            f"{pair.id} needs {too_long[0].tokens} tokens with its completion, and the model's context has "
            f"{too_long[0].limit}: training would leave it out."
        )
    return policy_rollouts(policy, rendered, config, "show", n=1)[0]


def sampling(config: TrainConfig, policy: Policy) -> Sampling:
    rollout = config.rollout
    if rollout.use_generation_config:
        return Sampling(rollout.max_completion_tokens, **policy.generation_defaults())
    return Sampling(rollout.max_completion_tokens, rollout.temperature, rollout.top_p, rollout.top_k)


def seeds_of(config: TrainConfig, seed_key: object, pairs: Sequence[RenderedPair], n: int) -> list[list[int]]:
    """The seeds of n completions of each pair; those of a pair that stands there again go on from its first ones."""
    return [[sample_seed(config.seed, seed_key, r.pair.id, r.occurrence * n + i) for i in range(n)] for r in pairs]


def completion_mask(
    renderer: Renderer, prompt: Sequence[Message], completion: Completion, loss: MethodLoss
) -> tuple[bool, ...]:
    """True for each token of a completion that is in the loss."""
    # first: a cut answer is left out whole, also if its reasoning never ended
    if loss.mask_truncated and completion.stop_reason == "length":
        return (False,) * len(completion.token_ids)
    if not loss.mask_thinking:
        return (True,) * len(completion.token_ids)
    return tuple(renderer.outside_reasoning(prompt, completion.token_ids))


def answer_open_turns(
    policy: Policy, sampler: Sampler, pairs: Sequence[RenderedPair], config: TrainConfig, seed_key: object
) -> list[RenderedPair]:
    """Answer the open turns (content null) of each prompt, first to last, each after the turns before it."""
    # copies: the pair keeps its open turns, which a later step answers anew
    prompts: list[list[Message]] = [[dict(m) for m in rendered.pair.prompt] for rendered in pairs]
    turn = 0
    while waiting := _open_turns(prompts):
        before = [policy.renderer.render(prompts[i][:at]) for i, at in waiting.items()]
        # a key that no answer's index equals, or a turn would be drawn by the numbers of an answer
        turns = [f"turn {turn}" + (f" again {k}" if (k := pairs[i].occurrence) else "") for i in waiting]
        seeds = [[sample_seed(config.seed, seed_key, pairs[i].pair.id, turns[j])] for j, i in enumerate(waiting)]
        answers = sampler.sample(before, seeds, sampling(config, policy), batch_tokens=config.rollout.batch_tokens)
        for (i, at), [answer] in zip(waiting.items(), answers, strict=True):
            prompts[i][at]["content"] = policy.renderer.split(prompts[i][:at], answer.token_ids).answer
        turn += 1
    filled = list(pairs)
    for i, prompt in enumerate(prompts):
        # only prompts that had open turns: the others keep their tokens as rendered
        if filled[i].prompt_ids is None:
            pair = dataclasses.replace(filled[i].pair, prompt=tuple(prompt))
            filled[i] = dataclasses.replace(filled[i], pair=pair, prompt_ids=policy.renderer.render(pair.prompt))
    return filled


def _open_turns(prompts: Sequence[Sequence[Message]]) -> dict[int, int]:
    """The place of the first open turn in each prompt that has one."""
    contents = [[message["content"] for message in prompt] for prompt in prompts]
    return {i: texts.index(None) for i, texts in enumerate(contents) if None in texts}


def step_weights(rollouts: Sequence[Rollout], reduction: str) -> list[Tensor]:
    """The weight of each token in the loss of the whole step; one tensor of [tokens] a rollout."""
    masks = torch.nn.utils.rnn.pad_sequence([torch.tensor(r.mask) for r in rollouts], batch_first=True)
    # of the whole step: made for each micro-batch, a mean would weigh tokens by how the step is cut
    weights = losses.token_weights(masks, reduction)
    return [row[: len(r.mask)] for row, r in zip(weights, rollouts, strict=True)]


def rollout_row(
    rollout: Rollout, policy: Policy, step: int, kl: Sequence[float] | None, *, logprobs: bool = False
) -> dict[str, Any]:
    """A rollout as it is stored; `kl` is in nats, one a token, None for a method without it."""
    row = {
        "step": step,
        "pair_id": rollout.pair.id,
        "axis": rollout.pair.axis,
        "family": rollout.pair.family,
        "sample": rollout.index,
        "prompt": list(rollout.pair.prompt),
        "teacher_prompt": list(rollout.pair.teacher_prompt),
        **completion_row(rollout.completion, rollout.pair.prompt, policy, logprobs=logprobs),
        "kl": None if kl is None else [round(x, 5) for x in kl],
        "in_loss": list(rollout.mask),
        "seed": rollout.completion.seed,
    }
    if rollout.rejected is not None:
        rejected = completion_row(rollout.rejected, rollout.pair.prompt, policy, logprobs=logprobs)
        row["rejected"] = rejected | {"in_loss": list(rollout.rejected_mask), "seed": rollout.rejected.seed}
    if rollout.reward is not None:
        row |= {"reward": rollout.reward, "advantage": round(rollout.advantage, 5), "rehearsed": rollout.is_rehearsed}
    return row


def rollout_from(row: StoredRollout, rendered: RenderedPair, renderer: Renderer) -> Rollout:
    """The rollout of a stored row that has log-probs."""
    pair, prompt_ids, teacher_ids = rendered.pair, rendered.prompt_ids, rendered.teacher_ids
    if prompt_ids is None:  # the row has the answers to its open turns
        pair = dataclasses.replace(pair, prompt=tuple(row["prompt"]))
        prompt_ids = renderer.render(pair.prompt)
    if row["stop_reason"] == "given":  # it is the end of both prompts, which are stored whole
        n = len(row["token_ids"])
        # n is 1 at least (`ACT.answer`): [:-0] would be an empty prompt
        prompt_ids, teacher_ids = prompt_ids[:-n], teacher_ids[:-n]
    completion, rejected = completion_from(row, len(teacher_ids)), row.get("rejected")
    rollout = Rollout(pair, row["sample"], prompt_ids, teacher_ids, completion, tuple(row["in_loss"]))
    if rejected is None:
        return rollout
    answer = completion_from(rejected, len(prompt_ids))
    return dataclasses.replace(rollout, rejected=answer, rejected_mask=tuple(rejected["in_loss"]))


def completion_row(
    completion: Completion, prompt: Sequence[Message], policy: Policy, *, logprobs: bool
) -> dict[str, Any]:
    """A completion as it is stored: `completion` is the answer, `reasoning` is there if it has some."""
    said = policy.renderer.split(prompt, completion.token_ids)
    has_reasoning = said.reasoning or said.is_unfinished
    row = {
        "completion": said.answer if has_reasoning else completion.text,
        **({"reasoning": said.reasoning} if has_reasoning else {}),
        "tokens": policy.renderer.pieces(completion.token_ids),
        "token_ids": list(completion.token_ids),
        "stop_reason": completion.stop_reason,
    }
    return row | {"logprobs": completion.logprobs} if logprobs else row


def completion_from(row: StoredAnswer, prompt_tokens: int) -> Completion:
    """The completion of a row with log-probs."""
    ids, logprobs = tuple(row["token_ids"]), tuple(row["logprobs"])
    return Completion(row["completion"], ids, row["stop_reason"], logprobs, prompt_tokens, row["seed"])


COMPLETION_LENGTH = "rollout.max_completion_tokens (`opct train --dry-run` says how long clean replies are)"


def first_warnings(policy: Policy, rollouts: Sequence[Rollout]) -> list[str]:
    """What the first answers show of the model, its template and the settings; see `opct.models.self_test`."""
    answers = [(r.pair.prompt, answer) for r in rollouts for answer in r.answers][:FIRST_REPLIES]
    replies = [
        reply_of(policy.renderer, prompt, answer.token_ids, is_cut=answer.stop_reason == "length")
        for prompt, answer in answers
    ]
    return [*cut_warnings(replies, COMPLETION_LENGTH), *reply_warnings(replies, policy.renderer)]


def in_loss(rollouts: Sequence[Rollout], values: Sequence[Sequence[float] | None]) -> list[list[float]]:
    """The values of tokens in the loss, by rollout; none for a rollout without values."""
    return [
        [] if row is None else [x for x, used in zip(row, r.mask, strict=True) if used]
        for r, row in zip(rollouts, values, strict=True)
    ]


def by_kind(name: str, rollouts: Sequence[Rollout], values: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """The values of all pairs as `name`, and of all identity pairs as `<name>_identity`."""
    by_name: dict[str, list[float]] = {name: [], f"{name}_identity": []}
    for rollout, row in zip(rollouts, values, strict=True):
        by_name[f"{name}_identity" if rollout.pair.is_identity else name] += row
    return by_name


def kl_metrics(name: str, rollouts: Sequence[Rollout], kl: Sequence[Sequence[float]]) -> dict[str, float]:
    """Mean KL a token: `name` of pairs, `<name>_identity` of identity pairs, `<name>_<axis>` where there are several
    axes."""
    values, axes = by_kind(name, rollouts, kl), by_axis(rollouts, kl)
    if len(axes) > 1:
        values |= {f"{name}_{axis}": kls for axis, kls in axes.items()}
    return {key: sum(kls) / len(kls) for key, kls in values.items() if kls}


def by_axis(rollouts: Sequence[Rollout], values: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """The values of each axis; identity pairs are left out."""
    axes: dict[str, list[float]] = {}
    for rollout, row in zip(rollouts, values, strict=True):
        if not rollout.pair.is_identity:
            axes.setdefault(rollout.pair.axis, []).extend(row)
    return axes


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Tokens of the answers of a step and of its loss; with answers, also their mean length and the truncated share."""
    answers = [answer for r in rollouts for answer in r.answers]
    tokens = sum(len(answer.token_ids) for answer in answers)
    metrics: dict[str, float] = {
        "train/completion_tokens": tokens,
        "train/tokens_in_loss": sum(sum(r.mask) + sum(r.rejected_mask) for r in rollouts),
    }
    if answers:
        metrics["train/mean_completion_tokens"] = tokens / len(answers)
        metrics["train/truncated_fraction"] = sum(a.stop_reason == "length" for a in answers) / len(answers)
    return metrics
