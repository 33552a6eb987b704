"""vLLM on this machine: the run starts and stops the engine in a separate process, and calls it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from opct.config.schema import TrainConfig
from opct.errors import EngineError, LibraryErrors
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
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_")
"""What the variables begin with by which a launcher tells processes of each other; an engine is alone."""
REQUESTS = 512  # prompts in a call of vLLM, so that progress shows
ALIVE_S = 1.0  # between two looks at whether the engine lives
END_S = 30.0  # for a killed process to be gone; its driver frees the device's memory first
ITS_MESSAGES = "Its own messages are above (VLLM_LOGGING_LEVEL=INFO shows all of them)."


def require_vllm() -> None:
    """Raise EngineError where vLLM is not installed, without importing it, which is slow."""
    if importlib.util.find_spec("vllm") is None:
        raise EngineError(
            "rollout.engine: vllm needs vLLM, which is not installed here: pip install 'opct[vllm]', or use "
            "rollout.engine: in_process."
        )


class VllmEngine:
    """A vLLM engine with the policy's base weights, on the policy's device.

    Raises:
        EngineError: from every method: vLLM failed, or its process has ended.
    """

    def __init__(self, policy: Policy, config: TrainConfig, *, max_model_len: int):
        self.max_model_len = max_model_len
        self._stop_ids = policy.backbone.stop_ids
        self._sleeps, self._is_asleep = config.vllm.enable_sleep_mode, False
        here, there = socket.socketpair()
        self._connection: Connection = Connection(here.detach())
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "opct.models.vllm.server", str(there.fileno())],
                env=_environment(policy.device),
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # a run's own output may be read by a program
                start_new_session=True,  # no Ctrl-C, and no signal to the run's group: the step must end first
            )
        share = f"vllm.gpu_memory_utilization={config.vllm.gpu_memory_utilization}"
        remedy = f"{ITS_MESSAGES} {share} is its share of the device; rollout.engine=auto needs no engine."
        try:
            arguments = _arguments(policy, config, max_model_len)
            version = self._call("start", arguments, fault="cannot start", remedy=remedy)
        except BaseException:  # after Ctrl-C too, nothing may be left of an engine that holds a device
            self.close()
            raise
        self.name = f"vLLM {version}"

    def load_adapter(self, name: str, folder: Path) -> None:
        self._wake_up()
        self._call("load", name, str(folder), fault=f"did not load the adapter {name} from {folder}")

    def unload_adapter(self, name: str) -> None:
        self._call("unload", name, fault=f"did not unload the adapter {name}")

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[range],
        sampling: Sampling,
        adapter: str | None,
        on_done: OnDone,
    ) -> list[list[Sample]]:
        """One request a prompt: vLLM gives its sample i the seed of the request + i."""
        self._wake_up()
        shared = request_settings(sampling, self._stop_ids)
        settings = [shared | {"n": len(seed_range), "seed": seed_range.start} for seed_range in seeds]
        sampled: list[list[Sample]] = []
        for start in range(0, len(prompts), REQUESTS):
            rows = slice(start, start + REQUESTS)
            groups = self._call("sample", [list(ids) for ids in prompts[rows]], settings[rows], adapter)
            on_done(sum(map(len, groups)))
            sampled += groups
        return sampled

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        self._wake_up()
        return self._call("score", [list(ids) for ids in sequences])

    def sleep(self) -> None:
        """With `vllm.enable_sleep_mode`: give back the device's memory until the next call."""
        if self._sleeps and not self._is_asleep:
            self._call("sleep", fault="does not sleep")
            self._is_asleep = True

    def close(self) -> None:
        """End the engine's process and all that it started."""
        self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)

    def _wake_up(self) -> None:
        if self._is_asleep:
            torch.cuda.empty_cache()  # what training has used and freed, else the engine finds it taken
            self._call("wake_up", fault="does not wake up")
            self._is_asleep = False

    def _call(self, method: str, *arguments: Any, fault: str = "failed", remedy: str = ITS_MESSAGES) -> Any:
        """What that method of `Server` returns."""
        try:
            self._connection.send((method, arguments))
            while not self._connection.poll(ALIVE_S):
                # a child of a dead engine may hold the other end, so the connection alone does not tell
                if self._process.poll() is not None:
                    raise EOFError
            succeeded, result = self._connection.recv()
        except (EOFError, OSError):
            raise EngineError(self._death()) from None
        if not succeeded:
            remedy = f"{remedy} A run that has a checkpoint goes on with --resume."
            with LibraryErrors(EngineError, f"vLLM {fault}", remedy):
                raise RuntimeError(result)
        return result

    def _death(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        code = self._process.returncode
        by = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        cause = " (the system does that where memory is short)" if by == "SIGKILL" else ""
        return f"The process of vLLM ended with {by}{cause}. {ITS_MESSAGES} Continue with --resume."


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
        "enable_sleep_mode": settings.enable_sleep_mode,
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


def _environment(device: torch.device) -> dict[str, str]:
    """The engine's variables: it is alone, imports what this process would, and sees the policy's device only."""
    environment = QUIET | {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER)}
    # in its own process, the engine's errors are raised where it is called, and no signal handler of vLLM is set
    environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        environment["CUDA_VISIBLE_DEVICES"] = visible[index] if visible else str(index)
    return environment
