"""A step of an attacker's training: episodes against the target, and what each was worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from opct.attack.board import Rules
from opct.attack.budget import Budget, Ledger
from opct.attack.loop import Players, play
from opct.attack.models import LocalModel, Sampling
from opct.attack.protocol import BEHAVIOR, ChatModel, Subject, Try
from opct.attack.refine import Refine, message_of
from opct.attack.rehearsal import Rehearsal, attack_pair, rollout_of
from opct.attack.scoring import Scorer
from opct.data.render import RenderedPair, Renderer, final_answer
from opct.errors import ModelError
from opct.methods.grpo import group_advantages
from opct.methods.rollouts import Rollout
from opct.runs.io import append_jsonl, read_jsonl
from opct.runs.progress import Field, NullProgress, Progress
from opct.runs.run_dir import RunDir
from opct.training.setup import TrainingSetup

LESSONS = "groups_with_a_lesson"
"""How many behaviours of a step had episodes whose rewards differed, rehearsed successes among them."""


@dataclass(frozen=True)
class Opponent:
    """What an attacker practises against, and by which rules.

    Attributes:
        rules: of every step but for their seed.
        tested: texts of the behaviours that the attacker is tested on later.
    """

    target: ChatModel
    scorer: Scorer
    sampling: Sampling
    rules: Rules
    tested: Sequence[str]


class Practice:
    """Collects the rollouts of a step: N episodes of K rounds against each behaviour; the best round of an episode is
    its completion and its reward.

    Args:
        log: file to which what each step showed is added.
        progress: of the training, which shows how far a step is and what it earned.
    """

    def __init__(
        self, setup: TrainingSetup, run: RunDir, opponent: Opponent, log: Path, progress: Progress | None = None
    ):
        self.policy, self.run, self.opponent, self.log = setup.policy, run, opponent, log
        self.progress = progress or NullProgress()
        self.texts = {rendered.pair.id: str(rendered.pair.meta["behavior"]) for rendered in setup.data.pairs}
        self.threshold = opponent.scorer.threshold(BEHAVIOR)
        self.thinking_tags = setup.config.loss.thinking_tags
        self._rehearsal: Rehearsal | None = None

    def __call__(self, pairs: Sequence[RenderedPair], step: int) -> list[Rollout]:
        """As many rollouts for each pair as there are episodes, with reward and advantage.

        Raises:
            ModelError: what the attacker has to read does not fit its context.
        """
        opponent, rehearsal = self.opponent, self._remembered(step)
        most = len(pairs) * opponent.rules.tries
        append_jsonl(self.log, {"step": step, "begun": most}, fsync=True)
        subjects = [Subject(one.pair.id, str(one.pair.meta["behavior"])) for one in pairs]
        rules = replace(opponent.rules, seed=f"{opponent.rules.seed}/practice/{step}")
        model = LocalModel(self.policy, opponent.sampling, thinking_tags=self.thinking_tags)
        players = Players(Refine(model), opponent.target, opponent.scorer)
        ledger = Ledger(Budget(), model.max_tokens + opponent.target.max_tokens)  # how many queries follows from steps
        pool, within = rehearsal.shots(self._message), _WithinStep(self.progress, most)
        tries = play(subjects, players, rules, ledger, pool=pool, progress=within).tries
        fresh = [self._group(subject, tries) for subject in subjects]
        groups = [_with_advantages(self._rehearsed(group, rehearsal)) for group in fresh]
        shown = self._shown(step, fresh, tries, ledger) | {LESSONS: sum(map(_has_lesson, groups))}
        append_jsonl(self.log, shown, fsync=True)
        self.progress.advance(0, reward="none" if shown["reward"] is None else shown["reward"])
        for group in fresh:
            rehearsal.add(group)
        return [rollout for group in groups for rollout in group]

    def _remembered(self, step: int) -> Rehearsal:
        """The successes of the steps before this one, from the disk where the training was resumed."""
        if self._rehearsal is None:
            self._rehearsal = remembered(self.run, step - 1, self.texts, self.policy.renderer, self.opponent)
        return self._rehearsal

    def _message(self, rollout: Rollout) -> str | None:
        return written_message(self.policy.renderer, rollout, self.thinking_tags)

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
        scores = [_score(one) for one in tries]
        best = max(written, key=lambda one: (_score(one) if _score(one) is not None else -1.0, -one.round))
        reward = max((score for score in scores if score is not None), default=None)
        if None in scores and (reward is None or reward < self.threshold):
            reward = None  # the round that nobody could judge may have been a success
        assert best.proposal is not None
        assert best.proposal.messages is not None
        pair = attack_pair(subject.id, subject.text, best.proposal.messages)
        ids = self.policy.renderer.render(pair.prompt)
        completion = best.proposal.completion
        return Rollout(pair, episode, ids, ids, completion, (True,) * len(completion.token_ids), reward=reward)

    def _rehearsed(self, group: list[Rollout], rehearsal: Rehearsal) -> list[Rollout]:
        """The group; where nothing in it succeeded, its last episode gives way to a success of an earlier step."""
        if any(r.reward is not None and r.reward >= self.threshold for r in group):
            return group
        earlier = rehearsal.again(group[0].pair.id, self.policy)
        return group if earlier is None else [*group[:-1], earlier]

    def _shown(
        self, step: int, groups: Sequence[Sequence[Rollout]], tries: Sequence[Try], ledger: Ledger
    ) -> dict[str, Any]:
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
            **ledger.spent.row(),
            "judge_usage": asdict(ledger.spent.judge_usage),
        }


def remembered(run: RunDir, steps: int, texts: Mapping[str, str], renderer: Renderer, opponent: Opponent) -> Rehearsal:
    """The successes of the first `steps` steps, as the run keeps them.

    Args:
        texts: id -> behaviour, of all that is trained on.
    """
    found = Rehearsal(opponent.tested, opponent.scorer.threshold(BEHAVIOR))
    for step in range(1, steps + 1):
        rows = [rollout_of(row, texts[row["pair_id"]], renderer.render) for row in read_jsonl(run.rollouts_path(step))]
        found.add([one for one in rows if one is not None])
    return found


def written_message(renderer: Renderer, rollout: Rollout, tags: tuple[str, str]) -> str | None:
    """The message that the target was sent: what the attacker wrote, without any thinking."""
    text, is_unfinished = final_answer(renderer, rollout.pair.prompt, rollout.completion.token_ids, tags)
    return None if is_unfinished else message_of(text)


def _score(one: Try) -> float | None:
    """The judge's; 0 for a message that could not be put to the target; None where the judge does not know."""
    return one.score if one.is_asked else 0.0


class _WithinStep(NullProgress):
    """Shows the tries of a step, batch by batch, beside the steps of the training."""

    def __init__(self, progress: Progress, most: int):
        self.progress, self.most, self.n = progress, most, 0

    def advance(self, n: int = 1, **fields: Field) -> None:
        self.n += n
        if n:
            self.progress.advance(0, tries=f"{self.n}/{self.most}")


def _has_lesson(group: Sequence[Rollout]) -> bool:
    """Whether rewards differ in it, so that its messages are told apart."""
    return any(r.advantage != 0.0 for r in group)


def _with_advantages(group: Sequence[Rollout]) -> list[Rollout]:
    advantages = group_advantages([r.reward for r in group])
    return [replace(r, advantage=advantage) for r, advantage in zip(group, advantages, strict=True)]
