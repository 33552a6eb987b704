"""A stand-in for vLLM: what `opct.models.vllm.server` uses of it.

Token i of a completion is its seed + i, with log-prob -0.1 i, and a prompt's token t has log-prob -t. With
FAKE_VLLM=policy it samples by a policy of this package instead. FAKE_VLLM_LOG names a file for what it is asked, a JSON
object a line. FAKE_VLLM_FAULT is `start`, where it refuses, or the name of an adapter whose first sample kills it.
"""

import json
import os
import signal
from types import SimpleNamespace

__version__ = "9.9"


class SamplingParams(SimpleNamespace):
    pass


class LLM:
    def __init__(self, **arguments):
        if os.environ.get("FAKE_VLLM_FAULT") == "start":
            raise ValueError("Free memory on device cuda:0 (1/80 GiB) on startup is less than desired\nDecrease it.")
        seen = {name: os.environ.get(name) for name in ("RANK", "CUDA_VISIBLE_DEVICES")}
        _log("start", arguments=arguments, pid=os.getpid(), environment=seen)
        self.llm_engine = self
        self._backend = None
        if os.environ.get("FAKE_VLLM") == "policy":
            from tests.engines import PolicyBackend

            from opct.config.schema import ModelConfig

            self._backend = PolicyBackend(
                ModelConfig(name_or_path=arguments["model"], dtype=arguments["dtype"], device="cpu")
            )

    def add_lora(self, request):
        _log("load", name=request.lora_name, number=request.lora_int_id, folder=request.lora_path)
        if self._backend is not None:
            from pathlib import Path

            self._backend.load_adapter(request.lora_name, Path(request.lora_path))
        return request.lora_path != "/adapters/refused"

    def remove_lora(self, number):
        _log("unload", number=number)

    def sleep(self, level):
        _log("sleep", level=level)

    def wake_up(self):
        _log("wake_up")

    def generate(self, prompts, settings, *, lora_request, use_tqdm):
        given = [vars(params) for params in settings]
        adapter = None if lora_request is None else lora_request.lora_name
        _log("generate", prompts=prompts, settings=given, adapter=adapter)
        if adapter is not None and os.environ.get("FAKE_VLLM_FAULT") == adapter:
            os.kill(os.getpid(), signal.SIGKILL)
        ids = [prompt["prompt_token_ids"] for prompt in prompts]
        if "prompt_logprobs" in given[0]:
            scores = (
                [[-float(t) for t in row[1:]] for row in ids] if self._backend is None else self._backend.score(ids)
            )
            rows = [[None, *_tables(row[1:], own)] for row, own in zip(ids, scores, strict=True)]
            return [SimpleNamespace(prompt_logprobs=row) for row in rows]
        seeds = [range(one["seed"], one["seed"] + one["n"]) for one in given]
        if self._backend is None:
            groups = [[([s, s + 1], [0.0, -0.1]) for s in group] for group in seeds]
        else:
            groups = self._sampled(ids, seeds, given[0], adapter)
        return [
            SimpleNamespace(outputs=[SimpleNamespace(token_ids=t, logprobs=_tables(t, p)) for t, p in group])
            for group in groups
        ]

    def _sampled(self, ids, seeds, given, adapter):
        from opct.models.inference.sampler import Sampling

        sampling = Sampling(*(given[name] for name in ("max_tokens", "temperature", "top_p", "top_k")))
        return self._backend.sample(ids, seeds, sampling, adapter, lambda n: None)


def _tables(ids, logprobs):
    return [{token: SimpleNamespace(logprob=value)} for token, value in zip(ids, logprobs, strict=True)]


def _log(event, **content):
    path = os.environ.get("FAKE_VLLM_LOG")
    if path is not None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **content}) + "\n")
