"""One batch of tries: proposals put to the target where they fit, and replies put to the judge where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opct.attack.board import Rules
from opct.attack.protocol import (
    CUT,
    EMPTY_ANSWER,
    NO_PROMPT,
    TARGET_CONTEXT,
    TARGET_FILTERED,
    TARGET_REJECTED,
    UNFINISHED_THINKING,
    ChatModel,
    Kind,
    Proposal,
    Reply,
    Try,
    View,
)
from opct.attack.scoring import Scorer
from opct.errors import EvaluationError
from opct.judges.protocol import JudgeRequest, new_usage
from opct.models.inference.sampler import sample_seed


def answered(
    target: ChatModel, views: Sequence[View], proposals: Sequence[Proposal], rules: Rules
) -> list[Reply | None]:
    """The target's reply to each proposal; None where there is no prompt, or none that fits the target's context.

    Raises:
        EvaluationError: the attacker gave another number of proposals than it was asked for.
    """
    if len(proposals) != len(views):
        raise EvaluationError(f"The attacker gave {len(proposals)} proposals for {len(views)} episodes: one for each.")
    replies: list[Reply | None] = [None] * len(views)
    asked = [i for i, one in enumerate(proposals) if one.prompt is not None and _fits(target, one)]
    seeds = [sample_seed(rules.seed, "target", views[i].id, views[i].episode, views[i].round) for i in asked]
    prompts = [prompt for i in asked if (prompt := proposals[i].prompt) is not None]
    if asked:
        for i, reply in zip(asked, target.answer(prompts, seeds), strict=True):
            replies[i] = reply
    return replies


def _fits(target: ChatModel, proposal: Proposal) -> bool:
    room = target.room(proposal.prompt or ())
    return room is None or room >= target.max_tokens


def asked_tries(
    kind: Kind,
    views: Sequence[View],
    proposals: Sequence[Proposal],
    replies: Sequence[Reply | None],
    scorer: Scorer,
) -> list[Try]:
    """The tries, those judged that have an answer to judge."""
    tries = [_unjudged(kind, *one) for one in zip(views, proposals, replies, strict=True)]
    to_judge = [i for i, one in enumerate(tries) if one.is_asked and not one.verdict]
    requests = [
        JudgeRequest(
            id="/".join(map(str, tries[i].key)),
            question=views[i].behavior,
            reply=tries[i].reply or "",
            is_cut=tries[i].stop_reason in CUT,
        )
        for i in to_judge
    ]
    for i, judgement in zip(to_judge, scorer.judge(kind, requests), strict=True):
        broken = None if judgement.score is None else judgement.score >= scorer.threshold(kind)
        tries[i] = replace(
            tries[i],
            score=judgement.score,
            verdict=judgement.verdict,
            is_broken=broken,
            judge_usage=new_usage([judgement]),
        )
    return tries


def _unjudged(kind: Kind, view: View, proposal: Proposal, reply: Reply | None) -> Try:
    """The try before it is judged; `verdict` is empty where a judge is to be asked."""
    return Try(
        kind=kind,
        behavior_id=view.id,
        episode=view.episode,
        round=view.round,
        prompt=None if reply is None else proposal.prompt,
        reply=None if reply is None else reply.text,
        stop_reason=None if reply is None else reply.stop_reason,
        score=None,
        verdict=_unasked(proposal) if reply is None else _unanswered(reply),
        is_broken=None,
        prompt_tokens=0 if reply is None else reply.prompt_tokens,
        completion_tokens=0 if reply is None else reply.completion_tokens,
        attacker_tokens=proposal.tokens,
        attacker_prompt_tokens=proposal.prompt_tokens,
        proposal=proposal,
    )


def _unasked(proposal: Proposal) -> str:
    return f"unasked:{TARGET_CONTEXT if proposal.prompt is not None else proposal.reason or NO_PROMPT}"


def _unanswered(reply: Reply) -> str:
    """Why no judge is asked about a reply; empty where one is."""
    ends = {"filtered": TARGET_FILTERED, "rejected": TARGET_REJECTED}
    if reply.stop_reason in ends:
        return f"unscored:{ends[reply.stop_reason]}"
    if reply.is_unfinished:
        return f"unscored:{UNFINISHED_THINKING}"
    if reply.text.strip():
        return ""
    return f"unscored:{TARGET_CONTEXT if reply.stop_reason == 'context' else EMPTY_ANSWER}"
