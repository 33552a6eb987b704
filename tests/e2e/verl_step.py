"""A training step by verl itself on the CPU, run in verl's interpreter by test_verl.py; prints what it found as JSON.

verl's configuration, data set, agent loops on Ray's workers, transfer queue, FSDP engine, loss, optimizer, checkpoint
and merger are real. Its servers need a GPU: plain transformers samples and scores in their place.

    python -m tests.e2e.verl_step CONFIG.yaml
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from opct.config.loader import load_config
from opct.data.pairs import checked_pair
from opct.integrations import verl
from opct.methods.opct import OPCT
from opct.methods.rollouts import Rollout, step_weights
from opct.models.inference.sampler import Completion
from opct.runs.io import write_jsonl
from opct.training.accumulate import accumulate
from opct.training.setup import build_setup


class Server:
    """Samples, or scores a prompt, as verl's client of its servers does."""

    def __init__(self, path: str):
        self.path, self.model = path, None

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any):
        from verl.workers.rollout.replica import TokenOutput

        if self.model is None:
            self.model = AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32)
        if "prompt_logprobs" in sampling_params:
            rows = self.scores(prompt_ids)[:, 0]
            ids = torch.tensor([*prompt_ids[1:], 0])
            scored = [*rows[:-1].gather(1, ids[:-1, None])[:, 0].tolist(), 0.0]
            extra = {"prompt_ids": ids[:, None].tolist(), "prompt_logprobs": [[x] for x in scored]}
            return TokenOutput(token_ids=[0], extra_fields=extra)
        ids, logprobs = list(prompt_ids), []
        generator = torch.Generator().manual_seed(hash(request_id) % 2**32)
        for _ in range(sampling_params["max_tokens"]):
            last = self.scores(ids)[-1, 0]
            token = int(torch.multinomial(last.exp(), 1, generator=generator))
            logprobs.append(float(last[token]))
            ids.append(token)
        return TokenOutput(token_ids=ids[len(prompt_ids) :], log_probs=logprobs)

    @torch.no_grad()
    def scores(self, ids: list[int]) -> torch.Tensor:
        return self.model(torch.tensor([ids])).logits[0].log_softmax(-1)[:, None]


def answered(config: Any, n: int) -> Any:
    """A step's prompts through verl's data set and agent loops; what the transfer queue then holds."""
    import transfer_queue as tq
    from tensordict import NonTensorStack, TensorDict
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from opct.integrations.verl_workers import PairManager

    tokenizer = verl_tokenizer(config)
    rows = [RLHFDataset(config.data.train_files, tokenizer, config.data)[i] for i in range(n)]
    columns = {name: NonTensorStack(*[row[name] for row in rows]) for name in ("raw_prompt", "extra_info", "index")}
    columns["uid"] = NonTensorStack(*[f"pair{i}" for i in range(n)])
    columns["global_steps"] = NonTensorStack(*[1] * n)
    client = Server(config.actor_rollout_ref.model.path)
    manager = PairManager.create(config=config, llm_client=client, teacher_client={"default": client})
    manager.generate_sequences(TensorDict(columns, batch_size=[n]))
    expected = n * config.actor_rollout_ref.rollout.n
    end = time.monotonic() + 120
    while time.monotonic() < end:
        listed = tq.kv_list("train").get("train", {})
        if any(tag.get("status") == "failure" for tag in listed.values()):
            raise SystemExit("an agent loop failed")
        keys = sorted(key for key, tag in listed.items() if tag.get("status") == "success")
        if len(keys) == expected:
            return tq.kv_batch_get(keys=keys, partition_id="train")
        time.sleep(0.5)
    raise SystemExit(f"{len(keys)} of {expected} answers after two minutes: {listed}")


def verl_tokenizer(config: Any) -> Any:
    from verl.utils import hf_tokenizer

    return hf_tokenizer(config.actor_rollout_ref.model.path)


def use_cpu() -> None:
    """Let verl's FSDP engine run without an accelerator, through its registries of platforms and engines."""
    from verl.plugin.platform import platform_manager
    from verl.plugin.platform.platform_cuda import PlatformCUDA
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    class Device(types.SimpleNamespace):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(torch.cpu, name, lambda *_, **__: 0)

    class PlatformCPU(PlatformCUDA):
        device_name, device_module = "cpu", Device(mem_get_info=lambda: (1, 1), get_device_name=lambda: "CPU")

        def communication_backend_name(self) -> str:
            return "gloo"

        def current_device(self) -> str:
            return "cpu"

        def __getattribute__(self, name: str) -> Any:
            if name in ("set_device", "synchronize", "manual_seed", "manual_seed_all", "empty_cache"):
                return lambda *_: None
            return super().__getattribute__(name)

    platform_manager._current_platform = PlatformCPU()
    EngineRegistry.register("language_model", backend=["fsdp2"], device=["cpu"])(FSDPEngineWithLMHead)


def updated(config: Any, batch: Any, folder: Path) -> dict[str, Any]:
    """The batch's loss and update by verl's own actor in this process, and its checkpoint in `folder`."""
    from verl.utils import tensordict_utils as tu
    from verl.workers.engine_workers import ActorRolloutRefWorker

    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29513",
    }
    use_cpu()
    torch.distributed.init_process_group("gloo")
    worker = ActorRolloutRefWorker(config.actor_rollout_ref, "actor", distillation_config=config.distillation)
    worker.init_model()
    batch["old_log_probs"] = batch["rollout_log_probs"]
    batch["advantages"] = torch.zeros_like(batch["rollout_log_probs"])
    rows = config.actor_rollout_ref.actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
    own = {"global_batch_size": rows, "mini_batch_size": rows, "epochs": 1, "seed": 0, "temperature": 1.0}
    tu.assign_non_tensor(batch, **own, calculate_entropy=False, distillation_use_topk=False, distillation_only=False)
    tu.assign_non_tensor(batch, dataloader_kwargs={"shuffle": False})
    metrics = tu.get(worker.update_actor(batch), "metrics")
    worker.save_checkpoint(str(folder), global_step=1, max_ckpt_to_keep=1)
    return metrics


def ours(setup: Any, batch: Any, teacher_prompts: dict[str, list[int]]) -> tuple[float, float]:
    """Loss and gradient norm of the same completions by this package."""
    method = OPCT(setup.policy, setup.teacher, setup.config)
    rollouts = []
    for i, info in enumerate(list(batch["extra_info"])):
        pair = checked_pair(json.loads(info["pair"]))
        ids, logprobs = batch["responses"][i].tolist(), batch["rollout_log_probs"][i].tolist()
        completion = Completion("", tuple(ids), "length", tuple(logprobs), len(batch["prompts"][i]), seed=0)
        mask = (True,) * len(ids)
        rollouts.append(Rollout(pair, i, batch["prompts"][i].tolist(), teacher_prompts[pair.id], completion, mask))
    weights = step_weights(rollouts, setup.config.loss.reduction)
    loss, _ = accumulate(method, rollouts, weights, 10**6)
    grads = [p.grad for p in setup.policy.trainable_parameters().values() if p.grad is not None]
    return loss, float(torch.nn.utils.get_total_norm(grads))


def main() -> None:
    import ray
    import transfer_queue as tq

    faulthandler.dump_traceback_later(240, exit=True)
    config = load_config(sys.argv[1], [])
    verl.check(config)
    setup = build_setup(config, None)
    folder = Path(config.output_dir).resolve()
    write_jsonl(folder / "pairs.jsonl", verl.rows_of(setup.data))
    settings = verl.settings_of(config, setup.data, setup.policy.renderer, folder, resume=False)
    theirs = verl.composed(settings, config.verl.overrides)
    ray.init(num_cpus=16, include_dashboard=False)  # counted, not used: each actor asks for one
    theirs.transfer_queue.enable = True
    tq.init(theirs.transfer_queue)
    batch = answered(theirs, config.optim.prompts_per_step)
    prompts = {own.pair.id: own.teacher_ids for own in setup.data.pairs}
    loss, norm = ours(setup, batch, prompts)
    found = {"loss": loss, "grad_norm": norm, "tokens": batch["responses"].offsets().diff().tolist()}
    before = {name: own.detach().clone() for name, own in setup.policy.trainable_parameters().items()}
    metrics = updated(theirs, batch, folder / "actor")
    verl.load_result(setup.policy, folder / "actor", folder / "merged")
    moved = {name: own.detach() - before[name] for name, own in setup.policy.trainable_parameters().items()}
    found["verl"] = {name: float(metrics[name][0]) for name in ("loss", "distillation/loss", "grad_norm")}
    found["moved"] = {name: float(own.abs().mean()) for name, own in moved.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
