"""A sampling engine next to the trained model: vLLM on this machine.

It holds the base weights and serves the adapter separately: a merge in bfloat16 would round most of a small update
away. After each optimizer step the adapter gets a new name, so that no stale keys and values are used. Prompts and
completions are token ids. The samples of a prompt are one request: sample i has the seed s + i. With several processes
each has an engine; those of a machine load the file that one of them writes.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from opct import distributed
from opct.errors import EngineError, LibraryErrors
from opct.models.inference.continuous import PROBE_BOUND, PROBE_BOUND_FLOAT32
from opct.models.inference.sampler import Completion, Sampling, check_room, completion_of
from opct.models.inference.token_sampling import drawn_log_probs
from opct.models.policy import Policy
from opct.models.scoring import tokenwise

PROBE_PROMPTS, PROBE_TOKENS = 4, 16
PROBE_SCALES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # of the random adapter that is tried
PROBE_CLIP = 1.0  # most that one token counts: by rounding, top_p may cut it off on one side alone
GREEDY = 1e-5  # vLLM takes a temperature below this as 0

OnDone = Callable[[int], None]
Sample = tuple[list[int], list[float]]
"""The tokens of one completion, stop token included, and their log-probs under the distribution sampled from."""


class Sampler(Protocol):
    """Samples completions: a policy in this process, or an engine."""

    def sample(
        self,
        prompt_ids: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        *,
        batch_tokens: int = ...,
        on_done: OnDone = ...,
    ) -> list[list[Completion]]:
        """One list of completions a prompt, one completion a seed; see `Policy.sample`."""


class Backend(Protocol):
    """What samples and scores for an `Engine`: vLLM, or a stand-in for it.

    Attributes:
        name: for messages.
        max_model_len: most tokens of a prompt and its completion.
    """

    name: str
    max_model_len: int

    def load_adapter(self, name: str, folder: Path) -> None: ...

    def unload_adapter(self, name: str) -> None: ...

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[range],
        sampling: Sampling,
        adapter: str | None,
        on_done: OnDone,
    ) -> list[list[Sample]]:
        """One list of completions a prompt, one completion a seed, by the adapter of that name or the base weights."""

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-prob of every token but the first under the base weights, at temperature 1; nats."""

    def sleep(self) -> None:
        """Give the device's memory back until the next call, where that was asked for."""

    def close(self) -> None: ...


class Engine:
    """A backend that serves one policy's adapter; samples as the policy does, with the weights of the last sync."""

    def __init__(self, policy: Policy, backend: Backend):
        self.backend = backend
        self._policy = policy
        hosts = distributed.all_gather_object(socket.gethostname())
        host = hosts[distributed.rank()]
        self._writes = hosts.index(host) == distributed.rank()  # the first process of each machine

        def make() -> str | None:
            with LibraryErrors(EngineError, "No folder for adapters can be made", "Set TMPDIR."):
                return tempfile.mkdtemp(prefix="opct-adapters-") if self._writes else None

        self._folder = Path(distributed.gather_or_raise(make)[hosts.index(host)] or "")
        self._synced: str | None = None

    def sync_weights(self, step: int) -> None:
        """Serve the policy's adapter after `step` steps, unless it is served already. Raises EngineError where it could
        not be written or loaded, by any process."""
        name = f"step-{step:06d}"  # a new one each time: vLLM keeps keys and values by the adapter's name
        if name != self._synced:
            self.publish(name)

    def publish(self, name: str) -> None:
        """Serve the policy's adapter as it is now under a new name, replacing the previous version."""
        folder = self._folder / name
        # the gathering is also a barrier: the others read what one process of each machine has written
        distributed.gather_or_raise(lambda: self._write(folder))
        distributed.gather_or_raise(lambda: self.backend.load_adapter(name, folder))
        # after the load: if that fails, the former adapter still serves
        self.serve(name)

    def _write(self, folder: Path) -> None:
        if self._writes:
            remedy = "Make room there, or set TMPDIR, then continue with --resume."
            with LibraryErrors(EngineError, f"The adapter {folder.name} cannot be written to {folder}", remedy):
                self._policy.save_adapter(folder)

    def serve(self, name: str | None) -> None:
        """Serve the adapter that is loaded under this name, or none, and delete the former one."""
        former, self._synced = self._synced, name
        if former is not None:
            self.backend.unload_adapter(former)
            self._delete(self._folder / former)

    def _delete(self, folder: Path) -> None:
        if self._writes:
            shutil.rmtree(folder, ignore_errors=True)

    def sample(
        self,
        prompt_ids: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        *,
        batch_tokens: int = 0,
        on_done: OnDone = lambda n: None,
    ) -> list[list[Completion]]:
        """As `Policy.sample`, by the adapter of the last sync, before it by the base weights.

        The backend makes its own batches: `batch_tokens` is ignored. Only the first seed of a prompt counts: the others
        follow it, and are in the completions. First seeds must be far apart, as those of `sample_seed` are, for two
        prompts to share none.
        """
        check_room(prompt_ids, sampling, self.backend.max_model_len, self.backend.name)
        firsts = [min(group[0], 2**63 - len(group)) for group in seeds]  # the last one must be an int64 too
        ranges = [range(first, first + len(group)) for first, group in zip(firsts, seeds, strict=True)]
        if sampling.temperature >= GREEDY:
            sampled = self.backend.sample(prompt_ids, ranges, sampling, self._synced, on_done)
        else:  # all samples of a prompt are equal
            once = self.backend.sample(prompt_ids, [group[:1] for group in ranges], sampling, self._synced, on_done)
            sampled = [group * len(seeds) for group, seeds in zip(once, ranges, strict=True)]
            on_done(sum(map(len, ranges)) - len(ranges))
        how: dict[str, Any] = {"stop_ids": self._policy.backbone.stop_ids, "decode": self._policy.renderer.decode}
        return [
            [completion_of(*sample, len(ids), seed, **how) for seed, sample in zip(group, samples, strict=True)]
            for ids, group, samples in zip(prompt_ids, ranges, sampled, strict=True)
        ]

    def base(self) -> Sampler:
        """The model without the adapter."""
        # shallow: the same backend, with no adapter named
        bare = copy.copy(self)
        bare._synced = None
        return bare

    def base_log_probs(
        self, prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Log-prob of each completion token under the model without the adapter, in nats; one list a completion."""
        scored = self.backend.score([[*p, *c] for p, c in zip(prompt_ids, completion_ids, strict=True)])
        # from the end: `score` gives the sequence's first token no log-prob, which shifts all by one
        return [row[len(row) - len(c) :] for row, c in zip(scored, completion_ids, strict=True)]

    def close(self) -> None:
        """Stop the engine, and delete its adapters."""
        try:
            self.backend.close()
        finally:
            self._delete(self._folder)


def check_engine(
    engine: Engine, policy: Policy, prompts: Sequence[Sequence[int]], sampling: Sampling, *, scores: bool
) -> float:
    """Mean distance of the engine's log-probs from the model's own; nats a token; the larger one of two.

    It is measured without an adapter and with a random one, since the adapter that training begins with changes nothing
    and an engine that ignores it would be found out late.

    Args:
        prompts: token ids; the engine answers the first few.
        scores: check the log-probs of given tokens too, as needed for a teacher.

    Raises:
        EngineError: the engine computes another model, or its log-probs belong to another distribution.
    """
    prompts = list(prompts[:PROBE_PROMPTS])
    sampling = dataclasses.replace(sampling, max_completion_tokens=min(PROBE_TOKENS, sampling.max_completion_tokens))
    bound = PROBE_BOUND_FLOAT32 if policy.dtype == torch.float32 else PROBE_BOUND

    def refuse_above(distance: float, does: str, remedy: str) -> None:
        if not distance <= bound:  # a NaN is not, either
            raise EngineError(
                f"{engine.backend.name} {does} {distance:.3g} nats a token from those of {policy.name} here in "
                f"{policy.dtype} (at most {bound}): {remedy}."
            )

    with policy.adapter_off() as base:
        completions, of_base = _sampled_distance(engine.base(), base, prompts, sampling)
        raw = _log_probs(base, prompts, completions, Sampling(1))
    refuse_above(of_base, "gives its samples log-probs that are", "use rollout.engine: in_process")
    if scores:
        scored = _distance([x for row in engine.base_log_probs(prompts, completions) for x in row], raw)
        refuse_above(scored, "gives given tokens log-probs that are", "use teacher.engine: in_process")
    with _random_adapter(
        policy, lambda: _distance(_log_probs(policy, prompts, completions, Sampling(1)), raw) > 2 * bound
    ):
        engine.publish("probe")
        _, of_adapter = _sampled_distance(engine, policy, prompts, sampling)
        engine.serve(None)
    remedy = "it does not serve this adapter as PEFT does; use rollout.engine: in_process"
    refuse_above(of_adapter, "gives the samples of a random adapter log-probs that are", remedy)
    return max(of_base, of_adapter)


def _sampled_distance(
    engine: Sampler, policy: Policy, prompts: list[Sequence[int]], sampling: Sampling
) -> tuple[list[list[int]], float]:
    """Completions of the engine, and the distance of its log-probs from the policy's."""
    sampled = [
        completion for [completion] in engine.sample(prompts, [[seed] for seed in range(len(prompts))], sampling)
    ]
    completions = [list(c.token_ids) for c in sampled]
    expected = _log_probs(policy, prompts, completions, sampling)
    return completions, _distance([x for c in sampled for x in c.logprobs], expected)


def _log_probs(
    policy: Policy, prompts: list[Sequence[int]], completions: list[list[int]], sampling: Sampling
) -> list[float]:
    with policy.inference():
        return tokenwise(partial(drawn_log_probs, sampling=sampling), policy.score(prompts, completions)).tolist()


@contextlib.contextmanager
@torch.no_grad()
def _random_adapter(policy: Policy, changes_enough: Callable[[], bool]) -> Iterator[None]:
    """Context in which the B matrices of the policy's adapter are random: as small as changes its answers enough."""
    matrices = [
        p for name, p in policy.trainable_parameters().items() if "lora_B." in name or "lora_embedding_B" in name
    ]
    before = [p.clone() for p in matrices]
    generator = torch.Generator().manual_seed(0)  # the same in all processes: they share one file
    noise = [torch.randn(p.shape, generator=generator).to(p) for p in matrices]
    try:
        for scale in PROBE_SCALES:
            for p, values in zip(matrices, noise, strict=True):
                p.copy_(scale * values)
            if changes_enough():
                break
        yield
    finally:
        for p, values in zip(matrices, before, strict=True):
            p.copy_(values)


def _distance(actual: Sequence[float], expected: Sequence[float]) -> float:
    return sum(min(PROBE_CLIP, abs(a - b)) for a, b in zip(actual, expected, strict=True)) / len(actual)
