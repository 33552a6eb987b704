"""verl's agent loop for pairs: the policy answers `prompt`, the teacher scores the answer after `teacher_prompt`.

Imported in verl's processes only. Written for verl 0.9 (`AgentLoopWorker._compute_teacher_logprobs`).
"""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import ray
import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from opct.data.pairs import checked_pair
from opct.data.render import Renderer

TEACHER_PROMPT = "teacher_prompt_ids"
LOOP = "opct_pair"


@register(LOOP)
class PairLoop(AgentLoopBase):
    """One answer to a pair's prompt; open turns are answered first, each after the turns before it."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        pair = checked_pair(json.loads(row["extra_info"]["pair"]))
        date = row["extra_info"]["template_date"]
        renderer = Renderer(self.tokenizer, self.apply_chat_template_kwargs, date=date)
        # a copy: open turns are filled in
        prompt = [dict(message) for message in pair.prompt]
        for at, message in enumerate(prompt):
            if message["content"] is None:
                answer = await self._answer(renderer.render(prompt[:at]), row)
                # the answer without its reasoning, as `opct train` fills a turn
                message["content"] = renderer.split(prompt[:at], answer.token_ids).answer
        prompt_ids = renderer.render(prompt)
        answer = await self._answer(prompt_ids, row, sampling_params)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=list(answer.token_ids),
            response_mask=[1] * len(answer.token_ids),
            response_logprobs=answer.log_probs,
            reward_score=0.0,  # no reward: the loss is the KL to the teacher
            num_turns=2,
            metrics=AgentLoopMetrics(),
            extra_fields=answer.extra_fields
            | {TEACHER_PROMPT: renderer.render(pair.teacher_prompt), "turn_scores": [], "tool_rewards": []},
        )

    async def _answer(self, ids: list[int], row: dict[str, Any], settings: dict[str, Any] | None = None) -> Any:
        """Sample at most `response_length` tokens after these; `settings` are the rollout's by default."""
        rollout = self.rollout_config
        if settings is None:
            settings = {"temperature": rollout.temperature, "top_p": rollout.top_p, "top_k": rollout.top_k}
        settings = settings | {"max_tokens": rollout.response_length}
        return await self.server_manager.generate(request_id=uuid4().hex, prompt_ids=ids, sampling_params=settings)


class _Worker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # type: ignore[misc]  # the class that ray wrapped
    async def _compute_teacher_logprobs(
        self,
        output: AgentLoopOutput,
        prompt_ids: list[int],
        response_ids: list[int],
        validate: bool,
        sample_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Score the response after the teacher's prompt, and lay the scores out as if it followed the policy's.

        verl's row i is about token i + 1; the loss reads the response's rows, the last but one [response] of a
        sequence. Rows of the prompt are never read: zeros. In validation, the sum of the log-ratios and the number of
        tokens are what verl averages.
        """
        teacher_prompt = output.extra_fields.pop(TEACHER_PROMPT)
        # not `validate`: verl would not ask the teacher
        await super()._compute_teacher_logprobs(output, teacher_prompt, response_ids, False, sample_kwargs)
        if validate:
            scores = output.extra_fields["teacher_logprobs"][len(teacher_prompt) - 1 : -1, 0]
            kl = float(torch.tensor(output.response_logprobs).sum() - scores.sum())
            output.extra_fields["reward_extra_info"] = {"kl": kl, "tokens": len(response_ids)}
        for name in ("teacher_ids", "teacher_logprobs"):
            if (rows := output.extra_fields.get(name)) is not None:
                # - 1: row i is about token i + 1, so the first token of the response is in the last row of the prompt
                response_rows = rows[len(teacher_prompt) - 1 :]
                output.extra_fields[name] = torch.cat(
                    [response_rows.new_zeros(len(prompt_ids) - 1, *response_rows.shape[1:]), response_rows]
                )


class PairManager(AgentLoopManagerTQ):
    """verl's manager of agent loops, with workers whose teacher sees `teacher_prompt`."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.agent_loop_workers_class = ray.remote(_Worker)
