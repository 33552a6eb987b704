"""From settings to a judge: what makes another judge; no key in its identity, nor in what failed calls leave."""

import contextlib
import json
from functools import partial
from pathlib import Path

import aiohttp
import anyio
import httpx
import httpx2
import pytest
from inspect_ai.model import GenerateConfig, ModelCall, get_model

from opct.config.judge import JudgeConfig
from opct.errors import EvaluationError
from opct.evals.endpoint import endpoint_address, guarded, open_model, redact
from opct.evals.inspect_runner import run_all
from opct.evals.judges.llm import load_judge
from tests.hub import JsonHandler, serving
from tests.refusals import refused

SECRET = "sk-live-0123456789abcdef"


@pytest.fixture(autouse=True)
def no_address(monkeypatch):
    for name in ("INSPECT_EVAL_MODEL_BASE_URL", "OPENAI_BASE_URL", "MY_SERVER_BASE_URL", "MOCKLLM_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def weights(folder: Path, content: bytes) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(content)
    return str(folder)


def mock_judge(base_url: str | None = None, **model_args):
    """Inspect's model for tests takes any argument."""
    return load_judge(JudgeConfig(name="strongreject", model="mockllm/model", base_url=base_url, model_args=model_args))


def test_two_local_models_of_one_name_are_two_judges(tmp_path: Path):
    """`hf/local` with a model_path is the name of every local model; the same weights elsewhere are the same judge."""
    one, copy = (mock_judge(model_path=weights(tmp_path / name, b"one")) for name in ("one", "copy"))
    other = mock_judge(model_path=weights(tmp_path / "other", b"other"))
    assert one.identity.hash == copy.identity.hash != other.identity.hash
    assert str(tmp_path) not in json.dumps(one.identity.row())
    assert mock_judge(model_path=weights(tmp_path / "one", b"trained on")).identity.hash != one.identity.hash


def test_another_address_or_argument_is_another_judge():
    judges = [
        mock_judge(),
        mock_judge(base_url="http://one/v1"),
        mock_judge(base_url="http://two/v1"),
        mock_judge(revision="abc"),
        mock_judge(quantization={"bits": 4, "groups": [64, None], "scale": 0.5}),
        mock_judge(extra=f"{SECRET}1"),
        mock_judge(extra=f"{SECRET}2"),
    ]
    assert len({judge.identity.hash for judge in judges}) == len({judge.identity.answer_hash for judge in judges}) == 7
    assert not any(SECRET in json.dumps(judge.identity.row()) for judge in judges)


def test_an_address_is_shown_without_secrets(monkeypatch):
    """From the settings, or from the environment."""
    for url, shown in {
        "HTTP://Me:pass@Host:8000/v1/": "http://host:8000/v1",
        "https://host/v1?api-key=abc&version=2": "https://host/v1?version=2",
        "https://key-server.example/v1": "https://key-server.example/v1",
        "me:pass@host/v1": "//host/v1",
    }.items():
        assert mock_judge(base_url=url).identity.settings["base_url"] == shown
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    for model, variable in (
        ("openai/m", "OPENAI_BASE_URL"),
        ("openai-api/my-server/m", "MY_SERVER_BASE_URL"),
        ("mistral/m", "INSPECT_EVAL_MODEL_BASE_URL"),
    ):
        assert endpoint_address(model) is None
        monkeypatch.setenv(variable, f"http://host/{SECRET}/v1?a=b")
        assert endpoint_address(model) == "http://host/***/v1"
        assert endpoint_address(model, "http://given/v1") == "http://given/v1"


def test_arguments_that_are_secrets_are_refused():
    for arguments in (
        {"api_key": SECRET},
        {"default_headers": {"Authorization": SECRET}},
        {"options": {"inner": {"hub_token": SECRET}}},
    ):
        with pytest.raises(EvaluationError) as caught:
            mock_judge(**arguments)
        assert SECRET not in str(caught.value)


def test_a_judge_that_there_is_not():
    for config, named in (
        ({"name": "strongreject"}, "judge.model"),
        ({"name": "strongreject", "model": "nonesuch/m"}, "nonesuch"),
        ({"name": "strongreject", "model": "justaname"}, "provider/model"),
    ):
        with refused(EvaluationError, named):
            load_judge(JudgeConfig(**config))


def test_secrets_are_taken_out():
    text = "Bearer abc.def-123 and sk-live-abcdef and key ab***yz at http://me:pw@host/v1, password hunter2x"
    said = redact(text, {"hunter2x"})
    assert said == "Bearer *** and *** and key *** at http://***@host/v1, password ***"


@contextlib.contextmanager
def redirecting(status):
    """A server that redirects to another, that other's address, and what the other is asked."""
    asked = []

    class Other(JsonHandler):
        def do_POST(self):
            asked.append(self.path)
            self.answer(200, {})

    class First(JsonHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.answer(status, {}, {"Location": f"http://127.0.0.1:{other.server_port}/elsewhere"})

    with serving(Other) as other, serving(First) as first:
        yield f"http://127.0.0.1:{first.server_port}/v1", f"127.0.0.1:{other.server_port}/elsewhere", asked


def test_a_redirect_is_refused_with_its_address_and_a_dead_address_is_said(monkeypatch, caplog):
    def generate(url):
        model = guarded(get_model("openai-api/some/m", base_url=url, api_key=SECRET, memoize=False))
        return run_all([partial(model.generate, "hi", config=GenerateConfig(max_retries=0))])

    monkeypatch.setenv("SOME_API_KEY", SECRET)
    with redirecting(307) as (url, elsewhere, asked), refused(EvaluationError, elsewhere):
        generate(url)
    assert not asked
    with pytest.raises(Exception, match="onnection"):
        generate("http://127.0.0.1:9/v1")
    assert "http://127.0.0.1:9/v1 fails" in caplog.text


def test_no_library_that_providers_send_with_follows_a_redirect():
    """As Google's (httpx or aiohttp), Azure's (aiohttp, and follows by itself) and Mistral's (httpx2) package send."""

    async def by_httpx(url, library):
        async with library.AsyncClient(follow_redirects=True) as client:
            return (await client.post(url, json={"key": SECRET})).status_code

    async def by_aiohttp(url):
        async with aiohttp.ClientSession() as client, client.post(url, json={"key": SECRET}) as response:
            return response.status

    async def send_and_be_refused(send, url):
        async def generate(*args, **options):
            return await send(url)

        model = get_model("mockllm/model", memoize=False)
        model.api.generate = generate
        with refused(EvaluationError, "redirects", elsewhere):
            await guarded(model).api.generate()

    with redirecting(308) as (url, elsewhere, asked):
        senders = [by_aiohttp, *(partial(by_httpx, library=library) for library in (httpx, httpx2))]
        for send in senders:
            anyio.run(send_and_be_refused, send, url)
        assert not asked
        # all else that this process sends follows redirects as before
        assert [anyio.run(send, url) for send in senders] == [200, 200, 200]


def test_what_a_provider_returns_of_a_failed_call_has_no_key(monkeypatch):
    """Inspect logs the error, its body, and the call even where calls are not logged."""
    key = 'local-key-"0123456789"'
    monkeypatch.setenv("SOME_API_KEY", key)
    failed = ValueError(f"wrong key {key}")
    failed.body = {"error": [f"wrong key {key}"]}
    call = ModelCall(request={"messages": ["hi"]}, response={"error": {"message": key}})

    async def generate(*args, **options):
        return failed, call

    model = get_model("mockllm/model", memoize=False)
    model.api.generate = generate
    error, kept = anyio.run(guarded(model).api.generate)  # Inspect's asyncio.run leaves its loop open
    assert error is failed
    assert "0123456789" not in f"{error} {error.body} {kept.request} {kept.response}"
    assert kept.request == {"messages": ["hi"]}


def test_a_target_whose_address_or_argument_holds_a_key_is_refused(monkeypatch):
    """Inspect writes both into its logs."""
    monkeypatch.setenv("MY_SERVER_API_KEY", SECRET)
    for url, arguments in (
        ("http://me:pw@host/v1", {}),
        ("http://host/v1?api_key=abc", {}),
        (f"http://host/{SECRET}", {}),
        (None, {"default_headers": {"X-Custom": SECRET}}),
    ):
        with refused(EvaluationError, "key or password"):
            open_model("openai-api/my-server/m", url, arguments, what="It", is_target=True)
