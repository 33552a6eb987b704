"""verl without a GPU, imported by each of verl's processes (VERL_USE_EXTERNAL_MODULES) in the test of test_verl.py.

verl's registries are told of a platform "cpu", and that plain transformers stand where the servers of vLLM and SGLang
do: a server samples, scores, takes the weights of each step, and writes what it sampled to the folder VERL_CPU_SAMPLES.
The rest is verl's: trainer, data set, agent loops, transfer queue, placement, FSDP, loss, optimizer, checkpoints.
"""

from __future__ import annotations

import json
import os
import types
import uuid
from pathlib import Path
from typing import Any

import ray
import torch
from verl.plugin.platform import platform_manager
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.utils import distributed
from verl.workers.rollout import base, replica


class Device(types.SimpleNamespace):
    """`torch.cpu`, and nothing where verl asks `torch.cuda` for what a CPU does not have."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name, lambda *_, **__: 0)


class PlatformCPU(PlatformCUDA):
    device_name, device_module = "cpu", Device(mem_get_info=lambda: (1, 1), get_device_name=lambda: "CPU")
    set_device = synchronize = manual_seed = manual_seed_all = empty_cache = set_allocator_settings = lambda *_: None

    def is_available(self) -> bool:
        return True

    def communication_backend_name(self) -> str:
        return "gloo"

    def current_device(self) -> str:
        return "cpu"


class Server:
    """Samples, or scores a prompt, as verl's servers do."""

    def __init__(self, path: str, name: str):
        from transformers import AutoModelForCausalLM

        self.model, self.step, self.name = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), None, name
        self.file = Path(os.environ["VERL_CPU_SAMPLES"]) / f"{name}-{uuid.uuid4().hex}.jsonl"

    async def load(self, weights: dict[str, torch.Tensor], peft_config: dict[str, Any] | None, step: int) -> None:
        """Take all weights, or those of an adapter."""
        from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

        self.step = step
        if peft_config is None:
            missing, unexpected = self.model.load_state_dict(weights, strict=False)
            assert not unexpected
            assert set(missing) <= {"lm_head.weight"}
            return
        if not hasattr(self.model, "peft_config"):
            self.model = get_peft_model(self.model, LoraConfig(**peft_config))
        loaded = set_peft_model_state_dict(self.model, weights)
        assert not loaded.unexpected_keys
        assert not [name for name in loaded.missing_keys if "lora_" in name]

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any):
        ids, logprobs = list(prompt_ids), []
        if "prompt_logprobs" in sampling_params:
            following = torch.tensor([*ids[1:], 0])[:, None]
            scored = [*self.scores(ids).gather(1, following)[:-1].tolist(), [0.0]]
            extra = {"prompt_ids": following.tolist(), "prompt_logprobs": scored}
            return replica.TokenOutput(token_ids=[0], extra_fields=extra)
        assert sampling_params["temperature"] == sampling_params["top_p"] == 1
        for _ in range(sampling_params["max_tokens"]):
            last = self.scores(ids)[-1]
            ids.append(int(torch.multinomial(last.exp(), 1)))
            logprobs.append(float(last[ids[-1]]))
        tokens = ids[len(prompt_ids) :]
        row = {"step": self.step, "prompt": prompt_ids, "tokens": tokens, "logprobs": logprobs}
        row["node"] = ray.get_runtime_context().get_node_id()
        with self.file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        extra = {"global_steps": self.step}
        return replica.TokenOutput(token_ids=tokens, log_probs=logprobs, stop_reason="completed", extra_fields=extra)

    @torch.no_grad()
    def scores(self, ids: list[int]) -> torch.Tensor:
        return self.model(torch.tensor([ids])).logits[0].log_softmax(-1)

    async def sleep(self) -> None: ...


class Replica(replica.RolloutReplica):
    """One server, on the node of its worker."""

    async def launch_servers(self) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = await self.workers[0].__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id())
        name = f"{'teacher' if self.is_teacher_model else 'sampler'}-{self.replica_rank}"
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        server = ray.remote(Server).options(name=name, scheduling_strategy=here, num_cpus=0)
        self._server_handle, self._server_address = server.remote(self.model_config["path"], name), name
        self.servers = [self._server_handle]


class Weights(base.BaseRollout):
    """Sends a rank's weights to the sampler beside it."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, **_: Any):
        super().__init__(config, model_config, device_mesh)
        self.rank = int(os.environ["RANK"])

    async def update_weights(self, weights: Any, peft_config: Any = None, global_steps: int = 0, **_: Any) -> None:
        # a copy: they are gathered one after the other, by all ranks together
        named = {name: tensor.detach().float().clone() for name, tensor in weights}
        adapter = peft_config and {name: peft_config[name] for name in ("r", "lora_alpha", "target_modules")}
        await ray.get_actor(f"sampler-{self.rank}").load.remote(named, adapter, global_steps)

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...


def begin(timeout_second: float | None = None, backend: str | None = None) -> None:
    """Join the process group, in whose name verl would list cpu twice; FSDP for a CPU only where a rank trains."""
    if backend is None:
        from verl.workers.engine import EngineRegistry  # slow: not in each of verl's processes
        from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

        EngineRegistry.register("language_model", backend=["fsdp2"], device=["cpu"])(FSDPEngineWithLMHead)
    join(timeout_second, backend or "gloo")


join, distributed.initialize_global_process_group_ray = distributed.initialize_global_process_group_ray, begin
platform_manager._current_platform = PlatformCPU()
for _name in ("vllm", "sglang"):
    replica.RolloutReplicaRegistry.register(_name, lambda: Replica)
    base._ROLLOUT_REGISTRY[_name, "async"] = f"{__name__}.Weights"
