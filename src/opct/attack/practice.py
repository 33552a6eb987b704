"""A step of an attacker's training: episodes against the target, and what each was worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opct.attack.board import Rules
from opct.attack.budget import Budget, Ledger
from opct.attack.loop import Players, play
from opct.attack.models import LocalModel, Sampling
from opct.attack.protocol import ATTACKER_CONTEXT, ChatModel, Subject, Try
from opct.attack.refine import Refine
from opct.attack.rehearsal import Rehearsal, attack_pair, rollout_of
from opct.attack.scoring import Scorer
from opct.data.render import RenderedPair
from opct.errors import ModelError
from opct.files import append_jsonl, read_jsonl
from opct.methods.grpo import group_advantages
from opct.methods.rollouts import Rollout
from opct.prepare import Setup
from opct.runs import RunDir


@dataclass(frozen=True)
class Opponent:
    """What an attacker practises against, and by which rules.

    Attributes:
        rules: of every step but for their seed; every episode is played to its end.
        tested: texts of the behaviours that the attacker is tested on later.
    """

    target: ChatModel
    scorer: Scorer
    sampling: Sampling
    rules: Rules
    tested: Sequence[str]

    def row(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "episodes": self.rules.episodes,
            "rounds": self.rules.rounds,
            "shots": self.rules.shots,
            "seed": self.rules.seed,
        }


class Practice:
    """Collects the rollouts of a step: N episodes of K rounds against each behaviour; the best round of an episode is
    its completion and its reward.

    Args:
        log: file to which what each step showed is added.
    """

    def __init__(self, setup: Setup, run: RunDir, opponent: Opponent, log: Path):
        self.policy, self.run, self.opponent, self.log = setup.policy, run, opponent, log
        self.texts = {rendered.pair.id: str(rendered.pair.meta["behavior"]) for rendered in setup.pairs}
        self.threshold = opponent.scorer.threshold("behavior")
        self._rehearsal: Rehearsal | None = None

    def __call__(self, pairs: Sequence[RenderedPair], step: int) -> list[Rollout]:
        """As many rollouts for each pair as there are episodes, with reward and advantage.

        Raises:
            ModelError: what the attacker has to read does not fit its context.
        """
        rehearsal = self._remembered(step)
        opponent = self.opponent
        subjects = [Subject(one.pair.id, str(one.pair.meta["behavior"])) for one in pairs]
        rules = replace(opponent.rules, seed=f"{opponent.rules.seed}/practice/{step}")
        model = LocalModel(self.policy, opponent.sampling)
        players = Players(Refine(model), opponent.target, opponent.scorer)
        ledger = Ledger(Budget(), model.max_tokens + opponent.target.max_tokens)
        tries = play(subjects, players, rules, ledger, pool=rehearsal.shots()).tries
        fresh = [self._group(subject, tries) for subject in subjects]
        append_jsonl(self.log, self._shown(step, fresh, tries, ledger), fsync=True)
        groups = [self._rehearsed(group, rehearsal) for group in fresh]
        for group in fresh:
            rehearsal.add(group)
        return [rollout for group in groups for rollout in _with_advantages(group)]

    def _remembered(self, step: int) -> Rehearsal:
        """The successes of the steps before this one, from the disk where an earlier session made them."""
        if self._rehearsal is None:
            self._rehearsal = Rehearsal(self.opponent.tested, self.threshold)
            for earlier in range(1, step):
                rows = read_jsonl(self.run.rollouts_path(earlier))
                found = [rollout_of(row, self.texts[row["pair_id"]], self.policy.renderer.render) for row in rows]
                self._rehearsal.add([one for one in found if one is not None])
        return self._rehearsal

    def _group(self, subject: Subject, tries: Sequence[Try]) -> list[Rollout]:
        """The episodes of a behaviour, one rollout each."""
        episodes: dict[int, list[Try]] = {}
        for one in tries:
            if one.behavior_id == subject.id:
                episodes.setdefault(one.episode, []).append(one)
        return [self._rollout(subject, number, own) for number, own in sorted(episodes.items())]

    def _rollout(self, subject: Subject, episode: int, tries: Sequence[Try]) -> Rollout:
        """The round that scored best, the first of those that did; without any score, the first round."""
        written = [one for one in tries if one.proposal is not None and one.proposal.completion is not None]
        if not written:
            raise ModelError(
                f"What the attacker has to read about {subject.id} leaves no room in its context "
                f"({self.policy.context_length} tokens) for a message of {self.opponent.sampling.max_tokens}: use an "
                "attacker with a longer context, or lower max_attack_tokens."
            )
        best = max(written, key=lambda one: (_reward(one) is not None, _reward(one) or 0.0, -one.round))
        assert best.proposal is not None
        assert best.proposal.messages is not None
        pair = attack_pair(subject.id, subject.text, best.proposal.messages)
        ids = self.policy.renderer.render(pair.prompt)
        completion = best.proposal.completion
        return Rollout(pair, episode, ids, ids, completion, (True,) * len(completion.token_ids), reward=_reward(best))

    def _rehearsed(self, group: list[Rollout], rehearsal: Rehearsal) -> list[Rollout]:
        """The group; where nothing in it succeeded, its last episode gives way to a success of an earlier step."""
        if any(r.reward is not None and r.reward >= self.threshold for r in group):
            return group
        earlier = rehearsal.again(group[0].pair.id, self.policy)
        return group if earlier is None else [*group[:-1], earlier]

    def _shown(self, step: int, groups: Sequence[Sequence[Rollout]], tries: Sequence[Try], ledger: Ledger) -> Any:
        rewards = [r.reward for group in groups for r in group if r.reward is not None]
        broken = [any(r.reward is not None and r.reward >= self.threshold for r in group) for group in groups]
        return {
            "step": step,
            "reward": sum(rewards) / len(rewards) if rewards else None,
            "episodes": sum(map(len, groups)),
            "unscored_episodes": sum(map(len, groups)) - len(rewards),
            "behaviors": len(groups),
            "broken": sum(broken),
            "unjudged": sum(one.is_unjudged for one in tries),
            "queries": ledger.spent.queries,
            "tokens": ledger.spent.tokens,
            "seconds": ledger.spent.seconds,
        }


def _reward(one: Try) -> float | None:
    """The judge's score; 0 for a message that could not be put to the target; None where the judge does not know."""
    if one.is_asked:
        return one.score
    return None if one.verdict == f"unasked:{ATTACKER_CONTEXT}" else 0.0


def _with_advantages(group: Sequence[Rollout]) -> list[Rollout]:
    advantages = group_advantages([r.reward for r in group])
    return [replace(r, advantage=advantage) for r, advantage in zip(group, advantages, strict=True)]
