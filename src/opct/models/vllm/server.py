"""A vLLM server behind an OpenAI-compatible URL.

    GET  /v1/models, /version                             the model it serves, and its version
    POST /v1/load_lora_adapter, /v1/unload_lora_adapter   the adapter, after each step
    POST /v1/completions                                  a request a prompt: token ids in, n times ids, log-probs out

The adapter is passed through a folder that both machines see. A request is repeated if the connection failed before an
answer came: the same seed, prompt and adapter give the same samples. A request that the server refused is not repeated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.config.schema import VllmConfig
from opct.errors import EngineError, LibraryErrors
from opct.models.inference.sampler import Sampling
from opct.models.vllm.engine import OnDone, Sample, request_settings

if TYPE_CHECKING:
    import httpx

API_KEY = "VLLM_API_KEY"  # the environment variable that the server reads its own key from
CONNECT_TIMEOUT_S = 10.0
PAUSES_S = (0.5, 2.0, 5.0)  # before a request is repeated
UNAVAILABLE = (502, 503, 504)  # from a proxy before the server, or from a server that is starting


class VllmServer:
    """The server at `vllm.server_url`."""

    def __init__(self, config: VllmConfig, stop_ids: frozenset[int]):
        import httpx

        assert config.server_url is not None
        self.url = config.server_url.rstrip("/").removesuffix("/v1")
        self._stop_ids, self._concurrency, self._timeout_s = stop_ids, config.concurrency, config.timeout_s
        key = os.environ.get(API_KEY)
        self._client = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(config.timeout_s, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=config.concurrency, max_keepalive_connections=config.concurrency),
        )
        self._adapters: list[str] = []
        try:
            served = self._base()
        except BaseException:  # after Ctrl-C too, no connection is left open
            self._client.close()
            raise
        self.model: str = served["id"]
        self.max_model_len = int(served.get("max_model_len") or 2**31)
        self.name = f"vLLM {served['version']} at {self.url} ({served.get('root') or self.model})"

    def load_adapter(self, name: str, folder: Path) -> None:
        path = str(folder.resolve())
        response = self._send("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
        repeated = response.status_code == 400 and "already been loaded" in response.text
        if response.is_error and not repeated:  # repeated: the answer to the first request was lost
            raise EngineError(
                f"{self.url} did not load the adapter {name} from {path} ({_status(response)}). Start the server with "
                "--enable-lora, a sufficient --max-lora-rank and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, and let it see "
                "that folder by the same path (vllm.adapter_dir)."
            )
        self._adapters.append(name)

    def unload_adapter(self, name: str) -> None:
        response = self._send("POST", "/v1/unload_lora_adapter", {"lora_name": name})
        if response.is_error and response.status_code != 404:  # 404: the answer to the first request was lost
            raise EngineError(f"{self.url} did not unload the adapter {name}: {_status(response)}.")
        self._adapters.remove(name)

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[range],
        sampling: Sampling,
        adapter: str | None,
        on_done: OnDone,
    ) -> list[list[Sample]]:
        """One request a prompt, `vllm.concurrency` at a time: vLLM gives its sample i the seed of the request + i."""
        shared = {
            "model": adapter or self.model,
            **request_settings(sampling, self._stop_ids),
            # explicit: the server's defaults may come from the model's generation_config
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "return_token_ids": True,
        }
        bodies = [
            {**shared, "prompt": list(ids), "n": len(own), "seed": own.start}
            for ids, own in zip(prompts, seeds, strict=True)
        ]
        return self._each(bodies, _samples, on_done)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        shared = {"model": self.model, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        return self._each([{**shared, "prompt": list(ids)} for ids in sequences], _scores, lambda n: None)

    def close(self) -> None:
        """Unload this run's adapters from the server, if it still answers."""
        import httpx

        if self._client.is_closed:
            return
        try:
            for name in list(self._adapters):
                self._client.post("/v1/unload_lora_adapter", json={"lora_name": name}, timeout=CONNECT_TIMEOUT_S)
        except httpx.TransportError:
            pass  # the server is gone, and its adapters with it
        finally:
            self._client.close()

    # -- requests

    def _base(self) -> Mapping[str, Any]:
        """The entry of the base model in /v1/models, with the server's version."""
        response, version = self._send("GET", "/v1/models", None), self._send("GET", "/version", None)
        if response.status_code == 401:
            raise EngineError(f"{self.url} needs an API key: set the environment variable {API_KEY}.")
        with LibraryErrors(
            EngineError,
            f"vllm.server_url={self.url} is not a vLLM server: GET /v1/models gives {_status(response)}",
            "Start one with `vllm serve`, and give its address without a path.",
        ):
            card = next(card for card in response.json()["data"] if not card.get("parent"))
        with LibraryErrors(EngineError, f"{self.url}/version does not answer as vLLM does"):
            return {**card, "version": "of unknown version" if version.is_error else version.json()["version"]}

    def _each(
        self, bodies: Sequence[Mapping[str, Any]], read: Callable[[Mapping[str, Any], Any], Any], on_done: OnDone
    ) -> list[Any]:
        """`read` of each request and its answer; the first error cancels the rest."""
        results: list[Any] = [None] * len(bodies)
        pool = ThreadPoolExecutor(max_workers=max(1, min(self._concurrency, len(bodies))))
        try:
            waiting = {pool.submit(self._complete, body, read): i for i, body in enumerate(bodies)}
            for done in as_completed(waiting):
                i = waiting[done]
                results[i] = done.result()
                on_done(bodies[i].get("n", 1))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return results

    def _complete(self, body: Mapping[str, Any], read: Callable[[Mapping[str, Any], Any], Any]) -> Any:
        response = self._send("POST", "/v1/completions", body)
        if response.is_error:
            raise EngineError(f"{self.url} refused a completion by {body['model']}: {_status(response)}.")
        asked = "prompt_logprobs" if "prompt_logprobs" in body else "token_ids and logprobs"
        unreadable = f"{self.url} does not return {asked}, unlike the vLLM version of docs/how-to/vllm.md"
        with LibraryErrors(EngineError, unreadable):
            return read(body, response.json())

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        """The server's answer, whatever its status; the request is repeated if none came.

        Raises:
            EngineError: the server cannot be reached, or took longer than `vllm.timeout_s`.
        """
        import httpx

        for pause_s in (*PAUSES_S, None):
            try:
                response = self._client.request(method, path, json=body)
            except httpx.ReadTimeout as error:
                raise EngineError(
                    f"{self.url}{path} gave no answer in {self._timeout_s:g} s: raise vllm.timeout_s, or lower "
                    "vllm.concurrency or rollout.max_completion_tokens."
                ) from error
            except httpx.TransportError as error:
                if pause_s is None:
                    raise EngineError(
                        f"{self.url}{path} cannot be reached ({type(error).__name__}: {error}), tried "
                        f"{len(PAUSES_S) + 1} times: start the server; if the run had started, continue with --resume."
                    ) from error
            else:
                if response.status_code not in UNAVAILABLE or pause_s is None:
                    return response
            time.sleep(pause_s)
        raise AssertionError("unreachable")


def _samples(asked: Mapping[str, Any], answer: Any) -> list[Sample]:
    choices = {choice["index"]: choice for choice in answer["choices"]}
    if sorted(choices) != list(range(asked["n"])):
        raise ValueError(f"expected {asked['n']} samples, got those with the indices {sorted(choices)}")
    found = [(c["token_ids"], c["logprobs"]["token_logprobs"]) for _, c in sorted(choices.items())]
    if any(not ids or len(ids) != len(logprobs) for ids, logprobs in found):
        raise ValueError("a sample has no token, or not as many log-probs as tokens")
    return [Sample(list(ids), [float(x) for x in logprobs]) for ids, logprobs in found]


def _scores(asked: Mapping[str, Any], answer: Any) -> list[float]:
    [choice] = answer["choices"]
    pairs = list(zip(choice["prompt_logprobs"], asked["prompt"], strict=True))
    return [float(at[str(token)]["logprob"]) for at, token in pairs[1:]]


def _status(response: httpx.Response) -> str:
    return f"HTTP {response.status_code}: {' '.join(response.text.split())[:300]}"
