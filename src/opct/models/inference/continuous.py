"""Sampling with transformers' continuous batching, on the policy's own modules: nothing is copied or published.

Keys and values lie in pages, as many rows as memory holds run in one batch, and a prompt is computed once for its
completions. With flash attention on CUDA a token step is one replay of a graph. A sample is that of
`opct.models.inference.sampler` for the same prompt and seed, to the rounding of the logits: `_Draws` draws it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from opct.errors import LibraryErrors, ModelError
from opct.models.inference.kv_cache import kv_bytes
from opct.models.inference.sampler import Completion, completion_of
from opct.models.inference.token_sampling import Sampling, sample_token, uniforms
from opct.models.memory import SHORTAGES, free_memory

if TYPE_CHECKING:
    from opct.models.backbone import Backbone

REMEDY = "Use rollout.engine=in_process."
PROBE_TOKENS = 8
# nats a token, on average; bfloat16 kernels of a small model differ by .04
PROBE_BOUND, PROBE_BOUND_FLOAT32 = 0.2, 0.01


def has_flash_attention() -> bool:
    """Whether flash attention is installed: without it every row attends under a mask to what all rows have stored."""
    from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

    return is_flash_attn_2_available() or is_flash_attn_3_available()


def sample_continuously(
    backbone: Backbone,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    decode: Callable[[Sequence[int]], str],
    on_done: Callable[[int], None] = lambda n: None,
    on_completions: Callable[[list[tuple[int, Completion]]], None] = lambda finished: None,
) -> list[list[Completion]]:
    """As `opct.models.inference.sampler.sample`, without its limit on tokens. Raises ModelError where transformers
    cannot sample from this model so; MemoryError where there is too little memory."""
    results: list[list[Any]] = [[None] * len(group) for group in seeds]
    places = _places(seeds)
    waiting = len(places)
    if not waiting:
        return results
    with _started(backbone, prompts, seeds, sampling) as manager:
        while waiting:
            result = manager.get_result(timeout=1)
            if result is None and not manager.is_running():
                raise ModelError(f"Continuous batching stopped: its thread ended. {REMEDY}")
            if result is None or not result.is_finished():
                continue
            if result.error is not None:
                # the last: transformers' own words, where its pages do not fit
                is_short = any(words in result.error for words in (*SHORTAGES, "available memory"))
                kind = MemoryError if is_short else ModelError
                raise kind(f"Continuous batching stopped: {result.error}. {REMEDY}")
            i, place = places[result.request_id]
            drawn = tuple(result.generated_tokens), result.logprobs, len(prompts[i]), seeds[i][place]
            results[i][place] = completion = completion_of(*drawn, stop_ids=backbone.stop_ids, decode=decode)
            waiting -= 1
            on_done(1)
            on_completions([(i, completion)])
    return results


def why_not_continuous(backbone: Backbone) -> str | None:
    """Why this model is not sampled so; None where its samples have the log-probs that scoring gives them.

    Two prompts with two completions each are sampled and scored, and the logits afterwards must be those of before.
    """
    from opct.models.plain_path import PlainPath

    prompts = [list(range(1, 9)) * 40, list(range(3, 8))]  # the first is longer than a page, and than many windows
    ids = torch.tensor(prompts[:1], device=backbone.device)
    before = backbone.decoder(input_ids=ids, use_cache=False).last_hidden_state
    try:
        groups = sample_continuously(backbone, prompts, [[1, 2], [3, 4]], Sampling(PROBE_TOKENS), decode=str)
    except (ModelError, MemoryError) as error:
        return str(error)
    if not torch.equal(before, backbone.decoder(input_ids=ids, use_cache=False).last_hidden_state):
        return "continuous batching leaves the model another than it was"
    made = [(prompt, completion) for prompt, group in zip(prompts, groups, strict=True) for completion in group]
    hidden = PlainPath(backbone).hidden([prompt for prompt, _ in made], [one.token_ids for _, one in made])
    tokens = torch.tensor([token for _, one in made for token in one.token_ids], device=backbone.device)
    scored = backbone.head.logits(hidden).log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)
    sampled = torch.tensor([value for _, one in made for value in one.logprobs], device=backbone.device)
    apart = float((scored - sampled).abs().mean())
    bound = PROBE_BOUND_FLOAT32 if backbone.dtype == torch.float32 else PROBE_BOUND
    if apart <= bound:  # not `>` below: a NaN must be a reason
        return None
    return f"its log-probs are {apart:.3g} nats a token from those of scoring (at most {bound})"


@contextlib.contextmanager
def _started(
    backbone: Backbone, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], sampling: Sampling
) -> Iterator[Any]:
    """Transformers' manager at work on all completions; all of it ends with the context, also after an error."""
    model, attention = backbone.bare_model, backbone.attention
    devices = [backbone.device] if backbone.device.type == "cuda" else []
    with contextlib.ExitStack() as stack:
        # in any case: transformers changes it before it refuses a model, too
        stack.callback(model.set_attn_implementation, attention)
        if attention.startswith("sdpa_"):  # a variant for the CPU, which reads no pages
            model.set_attn_implementation("sdpa")
        # transformers collects garbage at its end, twice: without what is there before, that takes no second
        gc.freeze()
        stack.callback(gc.unfreeze)
        torch.cuda.empty_cache()  # what the allocator keeps of a training step counts as taken
        # it sets the seed of torch's generators, which training draws from
        for context in (backbone.inference(), torch.random.fork_rng(devices), _autocast_in_any_thread(backbone)):
            stack.enter_context(context)
        with LibraryErrors(ModelError, "Continuous batching cannot be used", REMEDY):
            manager = _manager(backbone, prompts, seeds, sampling)
        is_whole = False
        try:
            manager.start()
            yield manager
            is_whole = True
        finally:
            # else its end waits for every request
            manager.stop(hard_stop=not is_whole)
            manager.destroy()


def _manager(
    backbone: Backbone, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], sampling: Sampling
) -> Any:
    from transformers import ContinuousBatchingConfig, GenerationConfig
    from transformers.generation.continuous_batching.utils import WorkloadHints

    generation = GenerationConfig(
        do_sample=False, max_new_tokens=sampling.max_completion_tokens, eos_token_id=sorted(backbone.stop_ids)
    )
    settings = ContinuousBatchingConfig(
        num_blocks=_blocks(backbone, prompts, seeds, sampling),
        max_memory_percent=0.8,  # of what is free: the rest is for the draws, and for others on the device
        return_logprobs=True,
        seed=0,
        auto_switch_to_flash=has_flash_attention(),  # other kernels would be fetched from the hub
    )
    hints = WorkloadHints(
        max_prompt_length=max(map(len, prompts)),
        max_generated_length=sampling.max_completion_tokens,
        num_requests=sum(map(len, seeds)),
    )
    manager = backbone.bare_model.init_continuous_batching(generation, settings, hints)
    _Draws(prompts, seeds, sampling).replace_those_of(manager)
    # all before it starts: else the first batches, and with them the rounding, depend on its thread's pace
    for i, group in enumerate(seeds):
        if group:
            manager.num_return_sequences = len(group)  # how often `add_request` forks it, once its prompt is computed
            manager.add_request(list(prompts[i]), request_id=str(i))
    return manager


def _places(seeds: Sequence[Sequence[int]]) -> dict[str, tuple[int, int]]:
    """(Prompt, completion) of each request by transformers' name; the others of a prompt are forks of its first."""
    sizes = enumerate(map(len, seeds))
    return {f"{i}__child#{j - 1}" if j else str(i): (i, j) for i, n in sizes for j in range(n)}


class _Draws:
    """Draws tokens in the place of transformers' logits processors and sampling, so that each follows from its seed.

    `ContinuousBatchProcessor` gives these methods the batch. A request's next number is a float64 in two of the rows of
    int32 that it copies to the device before each step, so that a replayed graph reads another.
    """

    tensors_required = 2
    do_processing = True

    def __init__(self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], sampling: Sampling):
        n = sampling.max_completion_tokens
        self._sampling, self._drawn = sampling, cast("Any", None)
        self._numbers = {
            name: (len(prompts[i]), uniforms(seeds[i][j], n).tolist()) for name, (i, j) in _places(seeds).items()
        }

    def replace_those_of(self, manager: Any) -> None:
        """Draw the tokens of a manager that has not started."""
        create = manager._create_batch_processor

        def created() -> Any:
            processor = create()
            processor.model_runner._sample = self.write
            return processor

        manager.logit_processor, manager._create_batch_processor = self, created

    def check_kwargs(self, kwargs: dict[str, Any]) -> None: ...

    def fill_defaults(self, rows: Tensor) -> None:
        rows.zero_()

    def prepare_tensor_args(self, requests_in_batch: Sequence[Any], arg_storage: Tensor) -> Tensor:
        states = [request.state for request in requests_in_batch if request.has_new_token]
        u = torch.tensor([self._next_number(state) for state in states], dtype=torch.float64)
        arg_storage[:, : len(u)] = u.view(torch.int32).view(-1, 2).T
        return arg_storage

    def _next_number(self, state: Any) -> float:
        width, numbers = self._numbers[state.request_id]
        # by position, as the tokens may not be back from the device; it counts those of this step already. The last
        # again where a finished request is in the batch once more
        return numbers[min(state.position_offset - width, len(numbers) - 1)]

    def __call__(self, input_ids: Tensor, scores: Tensor, rows: Tensor) -> Tensor:
        """[requests, vocabulary], [2, requests] -> what `write` does not use."""
        u = rows[:, : len(scores)].T.contiguous().view(torch.float64).squeeze(1)
        self._drawn = sample_token(scores, u, self._sampling)
        return scores

    def write(self, scores: Tensor, output_ids: Tensor) -> None:
        """Tokens and the bits of their log-probs, [2, requests]."""
        # dropped here: they would keep the memory of the graph, where they were made
        (tokens, log_probs), self._drawn = self._drawn, None
        output_ids[0, : len(tokens)] = tokens
        output_ids[1, : len(tokens)] = log_probs.view(torch.int32)


def _blocks(
    backbone: Backbone, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], sampling: Sampling
) -> int | None:
    """Blocks of the cache that hold all requests at once; None, which is all that fit, where these take half of what is
    free."""
    from transformers import ContinuousBatchingConfig

    page = ContinuousBatchingConfig.page_size
    # a page more for each: a completion that is forked begins in a page of its own
    rows = zip(map(len, prompts), map(len, seeds), strict=True)
    blocks = sum(n * (math.ceil((width + sampling.max_completion_tokens) / page) + 1) for width, n in rows)
    # each kind of layer has sectors of its own, of as many pages as it takes to share them
    config = backbone.bare_model.config.get_text_config()
    if len(set(getattr(config, "layer_types", None) or ())) > 1:
        blocks += config.num_hidden_layers
    return blocks if blocks * page < tokens_in_memory(backbone) else None


def tokens_in_memory(backbone: Backbone) -> int:
    """Tokens whose keys and values fill half of the free memory."""
    model = backbone.bare_model
    return int(free_memory(backbone.device) / 2 / kv_bytes(model.config, model.dtype.itemsize))


@contextlib.contextmanager
def _autocast_in_any_thread(backbone: Backbone) -> Iterator[None]:
    """The model computes in the backbone's dtype: it is called from a thread, and autocast is of a thread alone."""
    model, forward = backbone.bare_model, backbone.bare_model.forward
    before = vars(model).get("forward")  # of hooks, such as accelerate's

    @functools.wraps(forward)
    def autocast_forward(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad(), backbone.autocast():
            return forward(*args, **kwargs)

    model.forward = autocast_forward
    try:
        yield
    finally:
        del model.forward
        if before is not None:
            model.forward = before
