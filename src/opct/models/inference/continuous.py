"""Sampling with transformers' continuous batching, on the policy's own modules: nothing is copied or published.

Keys and values lie in pages, as many rows as memory holds run in one batch, and a prompt is computed once for its
completions. With flash attention on CUDA a token step is one replay of a graph. Samples depend on all prompts and seeds
of a call, not each on its own: so training alone samples so, where another sample is as good.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opct.errors import LibraryErrors, ModelError
from opct.models.inference.kv_cache import kv_bytes
from opct.models.inference.sampler import Completion, sample_seed
from opct.models.inference.token_sampling import Sampling
from opct.models.memory import free_memory

if TYPE_CHECKING:
    from opct.models.backbone import Backbone

REMEDY = "Use rollout.engine=in_process."
PROBE_TOKENS = 8
PROBE_BOUND, PROBE_BOUND_FLOAT32 = 0.2, 0.01  # nats a token, as of an engine of its own


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
    """As `opct.models.inference.sampler.sample`, without its limit on tokens.

    Raises:
        ModelError: transformers cannot sample from this model so.
    """
    results: list[list[Any]] = [[None] * len(group) for group in seeds]
    waiting = sum(map(len, seeds))
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
                raise ModelError(f"Continuous batching stopped: {result.error}. {REMEDY}")
            request, _, child = result.request_id.partition("__child#")
            i, j = map(int, request.split("."))
            place = int(child) + 1 if child else j  # the parent is the first of its forks
            tokens = tuple(result.generated_tokens)
            results[i][place] = completion = Completion(
                text=decode(tokens),
                token_ids=tokens,
                stop_reason="stop" if tokens[-1] in backbone.stop_ids else "length",
                logprobs=tuple(result.logprobs),
                prompt_tokens=len(prompts[i]),
                seed=seeds[i][place],
            )
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
    except ModelError as error:
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
    """Transformers' manager at work on a request for each completion, named "prompt.place" and, where it is forked from
    that, "__child#n"; all of it ends with the context, also after an error."""
    model, attention = backbone.bare_model, backbone.attention
    devices = [backbone.device] if backbone.device.type == "cuda" else []
    with contextlib.ExitStack() as stack:
        # in any case: transformers changes it before it refuses a model, too
        stack.callback(model.set_attn_implementation, attention)
        if attention.startswith("sdpa_"):  # a variant for the CPU, which reads no pages
            model.set_attn_implementation("sdpa")
        # its seed is that of torch's generators, which training draws from, too
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

    sizes, is_greedy = {len(group) for group in seeds}, sampling.temperature == 0
    # forked completions are as many for each prompt, and drawn: else each is a request of its own
    forks = sizes.pop() if len(sizes) == 1 and not is_greedy else 1
    drawn = {} if is_greedy else {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    generation = GenerationConfig(
        do_sample=not is_greedy,
        max_new_tokens=sampling.max_completion_tokens,
        num_return_sequences=forks,
        eos_token_id=sorted(backbone.stop_ids),
        **drawn,
    )
    settings = ContinuousBatchingConfig(
        num_blocks=_blocks(backbone, prompts, seeds, sampling),
        return_logprobs=True,
        seed=sample_seed(*(seed for group in seeds for seed in group)),
        auto_switch_to_flash=has_flash_attention(),  # other kernels would be fetched from the hub
    )
    hints = WorkloadHints(
        max_prompt_length=max(map(len, prompts)),
        max_generated_length=sampling.max_completion_tokens,
        num_requests=sum(map(len, seeds)),
    )
    manager = backbone.bare_model.init_continuous_batching(generation, settings, hints)
    # all before it starts: which requests a batch holds, and so what each draws, must not depend on its thread's pace
    for i, group in enumerate(seeds):
        for j in range(0, len(group), forks):
            manager.add_request(list(prompts[i]), request_id=f"{i}.{j}")
    return manager


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
