"""What a vLLM server is asked, which answers are taken, and what is asked again."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

import opct.models.vllm.server
from opct.config.schema import VllmConfig
from opct.errors import EngineError
from opct.models.inference.sampler import Sampling
from opct.models.vllm.engine import Sample
from opct.models.vllm.server import VllmServer

MODELS = {
    "data": [
        {"id": "an-adapter", "root": "/somewhere", "parent": "base-name", "max_model_len": None},
        {"id": "base-name", "root": "owner/model", "parent": None, "max_model_len": 512},
    ]
}
CUT = httpx.RemoteProtocolError("Server disconnected without sending a response.")


def completed(body: dict[str, Any]) -> dict[str, Any]:
    """Completions of two tokens that depend on the seed, plus i for sample i; the last comes first."""
    return {"choices": [choice(i, body["seed"] + i) for i in reversed(range(body["n"]))]}


def choice(index: int, seed: int) -> dict[str, Any]:
    ids = [seed % 7, 2]
    return {"index": index, "token_ids": ids, "logprobs": {"token_logprobs": [-0.5 * ids[0], -0.25]}}


class FakeServer:
    """Answers as vLLM does; `answers` by path stand before that, each used once. An exception is raised."""

    url = "http://vllm.test"

    def __init__(self):
        self.requests: list[tuple[str, Any, httpx.Headers]] = []
        self.answers: dict[str, list[Any]] = {}
        self.usual: dict[str, Callable[[Any], Any]] = {
            "/v1/models": lambda body: MODELS,
            "/version": lambda body: {"version": "9.9"},
            "/v1/load_lora_adapter": lambda body: f"Success: LoRA adapter '{body['lora_name']}' added successfully.",
            "/v1/unload_lora_adapter": lambda body: "Success",
            "/v1/completions": completed,
        }
        self.under_way = self.most_under_way = 0
        self._lock = threading.Lock()

    def asked(self, path: str) -> list[Any]:
        return [body for found, body, _ in self.requests if found == path]

    def handle(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path, json.loads(request.content) if request.content else None
        with self._lock:
            self.requests.append((path, body, request.headers))
            planned = self.answers.get(path)
            answer = planned.pop(0) if planned else None
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        answer = self.usual[path](body) if answer is None else answer
        with self._lock:
            self.under_way -= 1
        if isinstance(answer, Exception):
            raise answer
        status, content = answer if isinstance(answer, tuple) else (200, answer)
        return httpx.Response(status, content=content if isinstance(content, str) else json.dumps(content))


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(opct.models.vllm.server, "PAUSES_S", (0.0, 0.01, 0.01))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    server = FakeServer()
    client = partial(httpx.Client, transport=httpx.MockTransport(server.handle))
    monkeypatch.setattr(httpx, "Client", client)
    return server


@pytest.fixture
def connect(fake):
    with contextlib.ExitStack() as stack:

        def make(**settings) -> VllmServer:
            config = VllmConfig(**{"server_url": fake.url, "adapter_dir": "adapters", "timeout_s": 5.0, **settings})
            return stack.enter_context(contextlib.closing(VllmServer(config, frozenset({9, 2}))))

        yield make


def draw(server: VllmServer, seeds: list[int], *, adapter: str | None = "v1", sampling: Sampling | None = None):
    """A sample for each seed, of a prompt of its own."""
    prompts, ranges = [[1, 2, seed] for seed in seeds], [range(seed, seed + 1) for seed in seeds]
    return [own for [own] in server.sample(prompts, ranges, sampling or Sampling(8), adapter, lambda n: None)]


def test_a_completion_is_asked_for_by_ids_with_every_sampling_setting_said(fake, connect):
    seed = 2**63 - 1  # the largest that a sample has
    [drawn] = draw(connect(), [seed], sampling=Sampling(8, 0.7, 0.9, 40))
    assert drawn == Sample([seed % 7, 2], [-0.5 * (seed % 7), -0.25])
    assert fake.asked("/v1/completions") == [
        {
            "model": "v1",
            "prompt": [1, 2, seed],
            "n": 1,
            "seed": seed,
            "max_tokens": 8,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": [2, 9],
            "logprobs": 0,
            "return_token_ids": True,
        }
    ]


def test_without_an_adapter_the_base_is_asked(fake, connect):
    server = connect(server_url=f"{fake.url}/v1/")  # an address may end as people write it
    draw(server, [1], adapter=None)
    assert fake.asked("/v1/completions")[0]["model"] == "base-name"
    assert (server.model, server.max_model_len) == ("base-name", 512)
    assert server.name == f"vLLM 9.9 at {fake.url} (owner/model)"


def test_samples_come_in_the_order_of_the_requests_and_are_asked_for_together(fake, connect):
    """The first answer is the slowest; no more than `concurrency` are under way."""

    def slow(body):
        time.sleep(0.2 if body["seed"] == 0 else 0.02)
        return completed(body)

    fake.usual["/v1/completions"] = slow
    counted: list[int] = []
    seeds = [range(0, 3), range(10, 11), range(20, 22), range(30, 34), range(40, 41), range(50, 51)]
    drawn = connect(concurrency=3).sample([[1]] * 6, seeds, Sampling(8), "v1", counted.append)
    assert [[d.token_ids[0] for d in own] for own in drawn] == [[seed % 7 for seed in own] for own in seeds]
    assert [(body["seed"], body["n"]) for body in sorted(fake.asked("/v1/completions"), key=lambda b: b["seed"])] == [
        (own.start, len(own)) for own in seeds
    ]
    assert sorted(counted) == [1, 1, 1, 2, 3, 4]
    assert fake.most_under_way == 3


def test_scores_are_those_of_every_token_but_the_first(fake, connect):
    def scored(body):
        rows = [None, *({str(token): {"logprob": -0.1 * token}} for token in body["prompt"][1:])]
        return {"choices": [{"token_ids": [4], "prompt_logprobs": rows}]}

    fake.usual["/v1/completions"] = scored
    assert connect().score([[5, 6, 7], [8, 9]]) == [pytest.approx([-0.6, -0.7]), pytest.approx([-0.9])]
    first = fake.asked("/v1/completions")[0]
    assert (first["model"], first["prompt_logprobs"], first["max_tokens"]) == ("base-name", 0, 1)


def test_adapters_are_loaded_by_name_and_path_and_the_last_goes_at_the_end(fake, connect, tmp_path: Path):
    server = connect()
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
        server.load_adapter(name, tmp_path / name)
    server.unload_adapter("v1")
    server.close()
    assert fake.asked("/v1/load_lora_adapter") == [
        {"lora_name": name, "lora_path": str(tmp_path / name)} for name in ("v1", "v2")
    ]
    assert fake.asked("/v1/unload_lora_adapter") == [{"lora_name": "v1"}, {"lora_name": "v2"}]


def test_the_api_key_comes_from_the_environment(fake, connect, monkeypatch):
    draw(connect(), [1])
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    draw(connect(), [1])
    keys = [headers.get("Authorization") for path, _, headers in fake.requests if path == "/v1/completions"]
    assert keys == [None, "Bearer secret"]
    fake.answers["/v1/models"] = [(401, {"error": "Unauthorized"})]
    with pytest.raises(EngineError, match="needs an API key: set the environment variable VLLM_API_KEY"):
        connect()


# ------------------------------------------------------------------------------- what is asked again, and what is not


def test_connection_trouble_is_asked_again_with_the_same_request(fake, connect):
    fake.answers["/v1/completions"] = [CUT, (503, "starting")]
    assert draw(connect(), [3]) == [Sample([3, 2], [-1.5, -0.25])]
    first, *again = fake.asked("/v1/completions")
    assert again == [first, first]


def test_a_server_that_is_gone_is_an_error_that_says_what_to_do(fake, connect):
    server = connect()
    fake.usual["/v1/completions"] = lambda body: httpx.ConnectError("Connection refused")
    with pytest.raises(EngineError, match=r"cannot be reached .* tried 4 times: start the server") as caught:
        draw(server, [1, 2, 3])
    assert "\n" not in str(caught.value)
    server.close()  # nothing to take off it


def test_a_request_that_the_server_refuses_is_not_asked_again_and_ends_the_rest(fake, connect):
    """The second request, which may be under way already, is held until the error is out; no third one follows."""
    told = threading.Event()
    fake.answers["/v1/completions"] = [(404, {"error": {"message": "The model `v1` does not exist.", "code": 404}})]
    fake.usual["/v1/completions"] = lambda body: told.wait(20) and completed(body)
    before = set(threading.enumerate())
    with pytest.raises(EngineError, match=r"refused a completion by v1: HTTP 404: .*The model `v1` does not exist"):
        draw(connect(concurrency=1), list(range(50)))
    told.set()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("ThreadPoolExecutor"):
            thread.join(20)
    assert len(fake.asked("/v1/completions")) <= 2


def test_an_answer_that_takes_too_long_is_an_error(fake, connect):
    fake.usual["/v1/completions"] = lambda body: httpx.ReadTimeout("timed out")
    server = connect(timeout_s=0.2)
    with pytest.raises(EngineError, match=r"gave no answer in 0\.2 s: raise vllm\.timeout_s"):
        draw(server, [1])
    assert len(fake.asked("/v1/completions")) == 1


@pytest.mark.parametrize(
    "choices",
    [
        [choice(0, 5)],
        [choice(0, 5), choice(1, 5) | {"logprobs": None}],
        [choice(0, 5), choice(1, 5) | {"logprobs": {"token_logprobs": [-1.0]}}],
    ],
    ids=["one", "no log-probs", "fewer log-probs"],
)
def test_an_answer_without_two_samples_and_their_log_probs_is_refused(fake, connect, choices):
    fake.answers["/v1/completions"] = [{"choices": choices}]
    with pytest.raises(EngineError, match="does not return token_ids and logprobs"):
        connect().sample([[1]], [range(5, 7)], Sampling(8), "v1", lambda n: None)


def test_a_load_whose_answer_was_lost_is_no_error(fake, connect, tmp_path: Path):
    taken = (400, {"error": {"message": "The lora adapter 'v1' has already been loaded. If you want ..."}})
    fake.answers["/v1/load_lora_adapter"] = [CUT, taken]
    fake.answers["/v1/unload_lora_adapter"] = [CUT, (404, {"error": {"message": "cannot be found"}})]
    server = connect()
    server.load_adapter("v1", tmp_path)
    server.unload_adapter("v1")


@pytest.mark.parametrize(("status", "said"), [(404, "No adapter found"), (422, "has already been loaded")])
def test_an_adapter_that_the_server_does_not_load_is_an_error(fake, connect, tmp_path: Path, status: int, said: str):
    fake.answers["/v1/load_lora_adapter"] = [(status, {"error": {"message": said}})]
    with pytest.raises(EngineError, match=rf"did not load the adapter v1 .*{said}.*=1.*\(vllm\.adapter_dir\)"):
        connect().load_adapter("v1", tmp_path)


@pytest.mark.parametrize("answer", [(404, "not here"), {"data": []}, "a page"], ids=str)
def test_what_is_no_vllm_server_is_refused(fake, connect, answer):
    fake.answers["/v1/models"] = [answer]
    with pytest.raises(EngineError, match="not a vLLM server"):
        connect()


@pytest.mark.parametrize("answer", ["a page", []], ids=str)
def test_a_version_that_cannot_be_read_is_named(fake, connect, answer):
    fake.answers["/version"] = [answer]
    with pytest.raises(EngineError, match="/version does not answer as vLLM does"):
        connect()
