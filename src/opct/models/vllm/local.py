"""vLLM on this machine: the run starts and stops the engine in a separate process."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from opct.config.schema import TrainConfig
from opct.distributed import end_with_parent
from opct.errors import ConfigError, EngineError, LibraryErrors
from opct.models.adapters import TRAINED_ADAPTER
from opct.models.inference.sampler import Sampling
from opct.models.loading import resolve_model
from opct.models.policy import Policy
from opct.models.vllm.engine import OnDone, Sample

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM supports; it pads an adapter between them
QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONWARNINGS": "ignore",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
REQUESTS = 512  # prompts in a call of vLLM, so that progress shows


def require_vllm() -> None:
    """Check that vLLM is installed, without importing it, which is slow.

    Raises:
        EngineError: it is not.
    """
    if importlib.util.find_spec("vllm") is None:
        raise EngineError(
            "rollout.engine: vllm needs vLLM, which is not installed here: pip install 'opct[vllm]', or use "
            "rollout.engine: in_process."
        )


class VllmEngine:
    """A vLLM engine with the policy's base weights."""

    def __init__(self, policy: Policy, config: TrainConfig, *, max_model_len: int):
        _refuse_places(policy)
        self.max_model_len = max_model_len
        self._stop_ids = policy.backbone.stop_ids
        self._adapters: dict[str, Any] = {}
        self._loaded = 0
        arguments = _arguments(policy, config, max_model_len)
        with _quiet_start(), _vllm_errors("could not be started"), _ending_with_this_process():
            import vllm

            self._llm: Any = vllm.LLM(**arguments)
        self.name = f"vLLM {vllm.__version__}"

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load an adapter; each version gets a unique number for vLLM."""
        from vllm.lora.request import LoRARequest

        self._loaded += 1
        request = LoRARequest(lora_name=name, lora_int_id=self._loaded, lora_path=str(folder))
        with _vllm_errors(f"did not load the adapter {name} from {folder}"):
            if not self._llm.llm_engine.add_lora(request):
                raise RuntimeError("it gives no reason.")
        self._adapters[name] = request

    def unload_adapter(self, name: str) -> None:
        request = self._adapters.pop(name)
        with _vllm_errors(f"did not unload the adapter {name}"):
            self._llm.llm_engine.remove_lora(request.lora_int_id)

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[range],
        sampling: Sampling,
        adapter: str | None,
        on_done: OnDone,
    ) -> list[list[Sample]]:
        """One request a prompt: vLLM gives its sample i the seed of the request + i."""
        from vllm import SamplingParams

        shared = request_settings(sampling, self._stop_ids)
        settings = [SamplingParams(n=len(seed_range), seed=seed_range.start, **shared) for seed_range in seeds]
        outputs = self._generate(prompts, settings, None if adapter is None else self._adapters[adapter], on_done)
        return [[_sample(sample) for sample in output.outputs] for output in outputs]  # in the order of the seeds

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        from vllm import SamplingParams

        settings = [SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)] * len(sequences)
        outputs = self._generate(sequences, settings, None, lambda n: None)
        # without the first token, for which vLLM has None
        rows = [list(zip(o.prompt_logprobs, ids, strict=True))[1:] for o, ids in zip(outputs, sequences, strict=True)]
        return [[at[token].logprob for at, token in row] for row in rows]

    def close(self) -> None:
        """Stop the engine's process."""
        self._llm.llm_engine.engine_core.shutdown()

    def _generate(
        self, prompts: Sequence[Sequence[int]], settings: Sequence[Any], adapter: Any, on_done: OnDone
    ) -> list[Any]:
        outputs: list[Any] = []
        for start in range(0, len(prompts), REQUESTS):
            rows = slice(start, start + REQUESTS)
            inputs = [{"prompt_token_ids": list(ids)} for ids in prompts[rows]]
            with _vllm_errors("stopped"):
                outputs += self._llm.generate(inputs, settings[rows], lora_request=adapter, use_tqdm=False)
            on_done(sum(params.n for params in settings[rows]))
        return outputs


def request_settings(sampling: Sampling, stop_ids: Collection[int]) -> dict[str, Any]:
    """The arguments of `vllm.SamplingParams` that are the same for every prompt."""
    return {
        "max_tokens": sampling.max_completion_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stop_token_ids": sorted(stop_ids),
        "logprobs": 0,  # of the sampled token alone
        "detokenize": False,
    }


def _sample(completion: Any) -> Sample:
    """From a completion of vLLM, which maps token ids to log-probs at each token."""
    ids = list(completion.token_ids)
    return Sample(ids, [at[token].logprob for at, token in zip(completion.logprobs, ids, strict=True)])


def _arguments(policy: Policy, config: TrainConfig, max_model_len: int) -> dict[str, Any]:
    """Arguments of `vllm.LLM`."""
    lora, settings = policy.model.peft_config[TRAINED_ADAPTER], config.vllm
    rank = max([lora.r, *(lora.rank_pattern or {}).values()])
    adapted = [n for n, m in policy.model.named_modules() if TRAINED_ADAPTER in getattr(m, "lora_A", {})]
    return {
        "model": resolve_model(config.model.name_or_path, config.model.revision),
        "revision": config.model.revision,
        "trust_remote_code": config.model.trust_remote_code,
        "dtype": str(policy.dtype).removeprefix("torch."),
        "max_model_len": max_model_len,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "enforce_eager": settings.enforce_eager,
        "enable_prefix_caching": True,
        "enable_lora": True,
        "max_loras": 1,
        "max_cpu_loras": 2,
        "max_lora_rank": next((size for size in RANKS if size >= rank), rank),  # vLLM refuses more
        # without the output head: vLLM cannot score prompts with one
        "lora_target_modules": sorted({name.rpartition(".")[2] for name in adapted}),
        "logprobs_mode": "processed_logprobs",  # of the distribution that is sampled
        "generation_config": "vllm",  # the model's own would change what is sampled
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        **({} if settings.max_num_seqs is None else {"max_num_seqs": settings.max_num_seqs}),
    }


def _refuse_places(policy: Policy) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"rollout.engine: vllm with {os.environ['WORLD_SIZE']} processes: each would start an engine on the same "
            "machine; use one process, or rollout.engine: in_process."
        )
    if policy.device.index:
        raise ConfigError(
            f"rollout.engine: vllm with model.device={policy.device}: the engine takes the first accelerator it sees; "
            f"use model.device: cuda and CUDA_VISIBLE_DEVICES={policy.device.index}."
        )


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """Context that hides vLLM's logs below errors and its usage report, and restores the environment.

    The engine's process ignores Ctrl-C, which a terminal sends to it too: the run needs it to finish its step.
    """
    before = dict(os.environ)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # child processes inherit it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def _ending_with_this_process() -> Iterator[None]:
    """Engines started here end with this process, even after `kill -9`; vLLM alone would keep them and their memory."""
    from vllm.v1.engine.core import EngineCoreProc

    EngineCoreProc.opct_original = original = EngineCoreProc.run_engine_core
    EngineCoreProc.run_engine_core = staticmethod(run_engine_core)
    try:
        yield
    finally:
        EngineCoreProc.run_engine_core = staticmethod(original)


def run_engine_core(*arguments: Any, **keywords: Any) -> None:
    """What the engine's process runs; in a forked process `run_engine_core` of vLLM is this function itself."""
    from vllm.v1.engine.core import EngineCoreProc

    end_with_parent()
    getattr(EngineCoreProc, "opct_original", EngineCoreProc.run_engine_core)(*arguments, **keywords)


def _vllm_errors(what: str) -> LibraryErrors:
    """Context that converts errors of vLLM."""
    return LibraryErrors(
        EngineError,
        f"vLLM {what}",
        "Its own messages are above (VLLM_LOGGING_LEVEL=INFO shows all of them). A run that has a checkpoint "
        "continues with --resume.",
    )
