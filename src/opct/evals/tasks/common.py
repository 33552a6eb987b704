"""Shared parts of our tasks: the sample, the solver that samples its turns, and the score.

An `EvalSample` is one evaluated sample. Everything that graders and metrics need is in its metadata, so that a log can
be read without the source data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from inspect_ai import Task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessage, ContentReasoning, ContentText, GenerateConfig, ModelOutput, get_model
from inspect_ai.scorer import Score, mean, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from pydantic import TypeAdapter

from opct.data.pairs import Message, Prompt
from opct.data.reasoning import split_text
from opct.errors import DataError, OpctError
from opct.evals.config import EvalConfig
from opct.evals.endpoint import REJECTED, error_of, failure_of, is_local, known_secrets
from opct.evals.graders.short_answer import Verdict
from opct.evals.samples import BENIGN, INSIDE_REASONING

NAN = float("nan")
LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Inspect's letters for correct, partially correct, incorrect and no answer, as Inspect's `accuracy` counts them."""
WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_MESSAGES = TypeAdapter(list[ChatMessage])


@dataclass(frozen=True)
class EvalSample:
    """One sample: its prompt, grader inputs, and place in the suite; see also `opct.evals.samples.GradedSample`.

    Attributes:
        task: the task's name; `id` is `<task>/<cluster>/<family>`, and `/<part>` where there is one.
        prompt: a turn with content None is sampled from the model first.
        part: distinguishes several samples of one cluster and family.
    """

    task: str
    axis: str
    family: str
    family_split: str
    cluster: str
    prompt: Prompt
    teacher_prompt: Prompt
    grading: dict[str, Any] = field(default_factory=dict)
    part: str = ""
    side: str = ""

    @property
    def id(self) -> str:
        """Id of the sample, the same in every run."""
        # runs are paired by it and replies are drawn from it: written otherwise, no earlier run has the same samples
        family = f"{BENIGN}_{self.family}" if self.side == BENIGN else self.family
        return "/".join(filter(None, (self.task, self.cluster, family, self.part)))


def as_sample(item: EvalSample) -> Sample:
    """The item as Inspect's sample; `metadata["cluster"]` is what Inspect's clustered `stderr` uses."""
    # up to the first turn that the model answers: Inspect's input is shown in the log, and has no open turns
    opening = item.prompt[: next((i for i, m in enumerate(item.prompt) if m["content"] is None), len(item.prompt))]
    return Sample(
        id=item.id,
        input=as_chat(opening),
        target=item.grading.get("answer") or "",
        metadata={"id": item.id, **asdict(item)},
    )


def as_chat(prompt: Sequence[Message]) -> list[ChatMessage]:
    """A prompt as Inspect's messages. Raises DataError for a role that Inspect lacks, and would lose."""
    roles = ("system", "user", "assistant", "tool")
    if odd := sorted({str(m["role"]) for m in prompt}.difference(roles)):
        raise DataError(f"Inspect has no messages of the role {odd[0]}: write them as one of {', '.join(roles)}.")
    return _MESSAGES.validate_python([{"role": m["role"], "content": m["content"] or ""} for m in prompt])


MOST_REJECTED = 8
"""Prompts in a row that an endpoint may reject; after more it is not the prompts, but the credit or the settings."""


@solver
def answer_turns() -> Solver:
    """Sample the open turns of the prompt, then the reply.

    If an earlier turn is empty or does not fit the context, or an endpoint rejects the prompt, the sample ends there,
    with the reason in its `store`.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        prompt: list[Message] = state.metadata["prompt"]
        # Inspect put `opening` there already: with it the first turns would be asked twice
        state.messages = []
        for message in prompt:
            if message["content"] is not None:
                state.messages += as_chat([message])
                continue
            state = await answered(state, generate)
            if not state.output.completion.strip():
                # unscored, not graded: without that turn it is not the prompt that was to be asked
                reason = "context" if stop_reason_of(state.output) == "model_length" else "empty_earlier_turn"
                state.store.set("unscored", state.store.get("unscored") or reason)
                return state
        return await answered(state, generate)

    n_answered = n_rejected = 0

    async def answered(state: TaskState, generate: Generate) -> TaskState:
        """The state with its next reply; unscored where the endpoint rejects this prompt."""
        nonlocal n_answered, n_rejected
        try:
            state = without_reasoning(await generate(state, tool_calls="none"))
        except Exception as error:
            model = get_model()
            failure = failure_of(error, known_secrets(model), was_answered=n_answered > 0)
            if is_local(model) or isinstance(error, OpctError) or failure.reason != REJECTED:
                raise
            n_rejected += 1
            if n_rejected > MOST_REJECTED:
                raise error_of(failure, "The model", n_rejected, "") from None
            state.output = ModelOutput()
            state.store.set("unscored", REJECTED)
            return state
        n_answered, n_rejected = n_answered + 1, 0
        return state

    return solve


async def option_logprobs(prompt: Prompt, options: Sequence[str]) -> list[float] | str:
    """The log-probability of each option as the reply of the active model; or why there is none."""
    api: Any = get_model().api
    if getattr(api, "option_logprobs", None) is None:
        return "no_likelihoods"
    longest = max(len(option.encode()) for option in options)  # a token is at least a byte
    if len(api.policy.renderer.render(prompt)) + longest > api.policy.context_length:
        return "context"
    # of a model that thinks first the likelihood of an answer says nothing
    if not api.policy.renderer.begins_answer(prompt):
        return INSIDE_REASONING
    logprobs: list[float] = await api.option_logprobs(prompt, list(options))
    return logprobs if all(map(math.isfinite, logprobs)) else "not_finite"


def without_reasoning(state: TaskState) -> TaskState:
    """The state with the reasoning in the text of its reply as a separate part, which is not graded.

    Models of this process and many providers have split it off already; a server that does not know the form has not.
    """
    # a policy of this process split it off by its renderer's form: a "<think>" that is left belongs to the answer
    if "token_ids" not in (state.output.metadata or {}):
        split_output(state.output)
    return state


def split_output(output: ModelOutput) -> None:
    """Split reasoning that is still in the text of a reply off, in the forms that are known."""
    said = split_text(output.completion)
    if not output.choices or not (said.reasoning or said.is_unfinished or said.answer != output.completion.strip()):
        return
    content = output.message.content
    reasoning = [] if isinstance(content, str) else [part for part in content if part.type == "reasoning"]
    output.message.content = [*reasoning, ContentReasoning(reasoning=said.reasoning), ContentText(text=said.answer)]
    # not a view of the message, but copied when the output was made: graders would see the reasoning in it
    output.completion = said.answer


def filled_prompt(messages: Sequence[ChatMessage]) -> Prompt:
    """The prompt as the model saw it, without its reply."""
    prompt = messages[:-1] if messages and messages[-1].role == "assistant" else messages
    # `text`, not `content`: parts of reasoning are not shown to the model again
    return tuple({"role": m.role, "content": m.text} for m in prompt)


def last_turn(prompt: Sequence[Any]) -> str:
    """The last message of the user."""
    said = [message["content"] or "" for message in prompt if message["role"] == "user"]
    return said[-1] if said else ""


def with_system(prompt: Prompt, text: str) -> Prompt:
    """The prompt after a system prompt, which is put before the prompt's own if it has one."""
    system = prompt[0]["content"] if prompt[0]["role"] == "system" else None
    rest = prompt if system is None else prompt[1:]
    return ({"role": "system", "content": text if system is None else f"{text}\n\n{system}"}, *rest)


def stopped_early(state: Any) -> Verdict | None:
    """The verdict on a sample without a reply that could be graded, or None."""
    reason: str | None = state.store.get("unscored")
    # with text the reply was cut at the context, which is graded; without it the prompt did not fit
    if reason is None and stop_reason_of(state.output) == "model_length" and not state.output.completion:
        reason = "context"
    if stop_reason_of(state.output) == "content_filter":  # the text is the provider's, not the model's
        reason = "content_filter"
    return None if reason is None else Verdict(f"unscored:{reason}")


def is_cut(state: Any) -> bool:
    """Whether a reply was cut at the token limit or the end of the context."""
    return stop_reason_of(state.output) in ("max_tokens", "model_length")


def stop_reason_of(output: ModelOutput) -> str:
    """Why a reply ended; "unknown" where an endpoint gave none, for which Inspect's own property is an IndexError."""
    return output.stop_reason if output.choices else "unknown"


def clustered(keys: Sequence[str]) -> dict[str, list[Any]]:
    """Inspect's metrics of a scorer with these values: the mean, and its error, clustered as in `opct.evals.stats`."""
    return {key: [mean(), stderr(cluster="cluster")] for key in keys}


def as_score(
    verdict: Verdict,
    values: Mapping[str, float | None],
    *,
    keys: Sequence[str],
    answer: str,
    reasons: Mapping[str, str] | None = None,
) -> Score:
    """Inspect's record of a verdict: a number a key, NaN where unscored, and the verdict itself in the metadata.

    Args:
        reasons: by key: why it is unscored, if that differs from the verdict's reason.
    """
    # NaN, since Inspect's values are numbers; `as_number` reads it as unscored. 0 would count as wrong
    numbers = {key: NAN if (value := values.get(key)) is None else float(value) for key in keys}
    return Score(
        value=numbers,
        answer=answer,
        reason=verdict.reason,
        metadata={**asdict(verdict), "reasons": dict(reasons or {})},
    )


def as_number(value: Any) -> float | None:
    """A score as a number; None if it is not one, such as a word or NaN."""
    if isinstance(value, str):
        value = LETTERS.get(value, WORDS.get(value.lower(), value))
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    # an infinite score would make every mean infinite
    return number if math.isfinite(number) else None


def verdict_values(verdict: Verdict) -> dict[str, float | None]:
    """`is_correct`, `is_suggested`, `is_both` of a verdict; None when it is unscored."""
    names = {"is_correct": "correct", "is_suggested": "suggested", "is_both": "both"}
    return {key: float(verdict.verdict == name) if verdict.is_scored else None for key, name in names.items()}


def make_task(
    name: str,
    items: Sequence[EvalSample],
    scorer: Any,
    config: EvalConfig,
    *,
    max_completion_tokens: int,
    settings: dict[str, Any],
    solver: Any = None,
) -> Task:
    """An Inspect task over items. Sampling is from the policy itself (temperature 1, nothing truncated) or greedy.

    Args:
        settings: of the task, for the results; those of sampling are added.
        solver: instead of `answer_turns`.
    """
    sampling: dict[str, Any] = {
        "seed": config.seed,
        "max_completion_tokens": max_completion_tokens,
        "greedy": config.greedy,
    }
    if (text := config.system_prompt) is not None:
        sampling["system_prompt"] = text
        items = [
            replace(item, prompt=with_system(item.prompt, text), teacher_prompt=with_system(item.teacher_prompt, text))
            for item in items
        ]
    return Task(
        name=name,
        dataset=MemoryDataset([as_sample(item) for item in items], name=name),
        solver=answer_turns() if solver is None else solver,
        scorer=scorer,
        # top_p is said: an endpoint's default may cut the distribution that is measured
        config=GenerateConfig(
            max_tokens=max_completion_tokens, temperature=0.0 if config.greedy else 1.0, top_p=1.0, seed=config.seed
        ),
        metadata=sampling | settings,
    )
