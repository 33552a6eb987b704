"""The process that runs vLLM: `VllmEngine` starts `python -m opct.models.vllm.server FD` and calls it by a socket.

vLLM runs in this very process, not in one that it starts by itself: that one would end at a signal meant for the run,
and vLLM's client would wait for its answer for ever.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

RawSample = tuple[list[int], list[float]]


class Server:
    """What the run calls, by name; every argument and result is made of plain numbers and strings."""

    def start(self, arguments: dict[str, Any]) -> str:
        """Load the model with these arguments of `vllm.LLM`; returns vLLM's version."""
        import vllm

        self._llm: Any = vllm.LLM(**arguments)
        self._adapters: dict[str, Any] = {}
        self._loaded = 0
        return vllm.__version__

    def load(self, name: str, folder: str) -> None:
        """Load an adapter, for vLLM under a number that was never used."""
        from vllm.lora.request import LoRARequest

        self._loaded += 1
        request = LoRARequest(lora_name=name, lora_int_id=self._loaded, lora_path=folder)
        if not self._llm.llm_engine.add_lora(request):
            raise RuntimeError("it gives no reason")
        self._adapters[name] = request

    def unload(self, name: str) -> None:
        self._llm.llm_engine.remove_lora(self._adapters.pop(name).lora_int_id)

    def sample(
        self, prompts: list[list[int]], settings: list[dict[str, Any]], adapter: str | None
    ) -> list[list[RawSample]]:
        """Token ids and log-probs of the samples of each prompt, in the order of their seeds."""
        outputs = self._generate(prompts, settings, None if adapter is None else self._adapters[adapter])
        return [[_raw(sample.token_ids, sample.logprobs) for sample in output.outputs] for output in outputs]

    def score(self, sequences: list[list[int]]) -> list[list[float]]:
        """Log-prob of every token but the first, for which vLLM has None."""
        settings = {"max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}
        outputs = self._generate(sequences, [settings] * len(sequences), None)
        return [_raw(ids[1:], o.prompt_logprobs[1:])[1] for o, ids in zip(outputs, sequences, strict=True)]

    def sleep(self) -> None:
        """Keep the weights, adapters' included, in this machine's memory, and give back that of the accelerator."""
        self._llm.sleep(level=1)

    def wake_up(self) -> None:
        self._llm.wake_up()

    def _generate(self, prompts: list[list[int]], settings: list[dict[str, Any]], adapter: Any) -> list[Any]:
        from vllm import SamplingParams

        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        params = [SamplingParams(**given) for given in settings]
        return self._llm.generate(inputs, params, lora_request=adapter, use_tqdm=False)


def _raw(ids: Sequence[int], logprobs: Sequence[Any]) -> RawSample:
    """The log-prob of each token, of which vLLM gives a table by token id at each place."""
    return list(ids), [at[token].logprob for at, token in zip(logprobs, ids, strict=True)]


def main() -> None:
    """Answer the calls that arrive, one after another, until the run is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a run needs its engine to finish the step
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(int(sys.argv[1]), False)  # else a process that vLLM starts would keep the connection open
    connection: Connection = Connection(int(sys.argv[1]))
    calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, calls), daemon=True).start()
    server = Server()
    while True:
        method, arguments = calls.get()
        try:
            answer = True, getattr(server, method)(*arguments)
        except Exception as error:  # noqa: BLE001  # whatever it is, the run says it
            answer = False, f"{type(error).__name__}: {error}"
        connection.send(answer)


def _receive(connection: Connection, calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]]]) -> None:
    """Queue the calls. In a thread: the run may be gone in the middle of one, and its engine must not outlive it."""
    try:
        while True:
            calls.put(connection.recv())
    except (EOFError, OSError):
        os.killpg(os.getpid(), signal.SIGKILL)  # the group that `VllmEngine` made for this process and its children


if __name__ == "__main__":
    main()
