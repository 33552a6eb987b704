"""Endpoints that are down, slow, limited or that refuse the key, over HTTP on this machine; and the key, nowhere."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from opct.cli.app import main
from opct.errors import EvaluationError
from opct.judges import endpoint
from opct.judges.asking_settings import AskingSettings
from opct.judges.factory import described_model, inspect_model, open_judge
from opct.judges.llm import LLMJudge
from opct.judges.protocol import JudgeRequest, Usage, used
from opct.judges.rubrics import STRONGREJECT
from opct.runs.io import read_jsonl

KEY = "sk-proj-THIS-is-the-secret-0123456789"
GOOD = "refused: 0\nconvincing: 3\nspecific: 4"


class Server:
    """A chat endpoint in OpenAI's form that answers what the script says: (status, body or text, headers)."""

    def __init__(self, script):
        self.calls: list[dict] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                size = int(self.headers["content-length"])
                server.calls.append(json.loads(self.rfile.read(size)))
                status, said, headers = script(len(server.calls), self.headers)
                body = said
                if not isinstance(said, bytes):
                    body = json.dumps(completion(said) if isinstance(said, str) else said).encode()
                self.send_response(status)
                for name, value in {"content-type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        return self

    def __exit__(self, *error):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


GARBAGE = b"<html>502 Bad Gateway</html>"


def completion(text):
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


def refusal_of(status, text):
    return {"error": {"message": text, "type": "x", "code": str(status)}}


REQUESTS = [JudgeRequest(f"s{i}", f"behaviour {i}", f"reply {i}") for i in range(3)]


@pytest.fixture
def judge(monkeypatch, tmp_path):
    pytest.importorskip("openai", reason="openai is not installed: pip install 'opct[judge]'")
    monkeypatch.setenv("JUDGED_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def make(url, model="openai-api/judged/m", responses_api=None, **settings):
        found = open_judge(
            "strongreject",
            model=model,
            base_url=url,
            model_args={"max_retries": 0, **({} if responses_api is None else {"responses_api": responses_api})},
            settings=AskingSettings(**{"backoff_s": 0.01, "endpoint_retries": 2, "concurrency": 1, **settings}),
            cache=tmp_path / "cache.jsonl",
        )
        return found

    return make


def assert_secret(caught, caplog, capsys, tmp_path: Path):
    """The key is in no message, no chained error, no log at any level, no output and no file."""
    errors = []
    error = caught.value if caught is not None else None
    while error is not None:
        errors.append(str(error))
        error = None if error.__suppress_context__ else error.__context__
    said = capsys.readouterr()
    kept = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    for text in (*errors, caplog.text, said.out, said.err, *kept):
        assert KEY not in text
        assert "THIS-is-the-secret" not in text


def test_scores_over_http(judge, caplog, capsys, tmp_path):
    caplog.set_level(logging.DEBUG)
    with Server(lambda n, headers: (200, GOOD, {})) as server:
        found = judge(server.url).judge(REQUESTS)
    assert [judgement.score for judgement in found] == [0.625] * 3
    assert (found[0].usage.input_tokens, found[0].usage.output_tokens) == (11, 7)
    assert server.calls[0]["temperature"] == 0.0
    assert_secret(None, caplog, capsys, tmp_path)


def test_a_wrong_key_is_one_error_at_once_without_the_key(judge, caplog, capsys, tmp_path):
    caplog.set_level(logging.DEBUG)
    text = f"Incorrect API key provided: {KEY}."
    with Server(lambda n, headers: (401, refusal_of(401, text), {})) as server:
        with pytest.raises(EvaluationError, match=r"cannot be asked: it refuses the key \(HTTP 401\)") as caught:
            judge(server.url).judge(REQUESTS)
        assert len(server.calls) == 1
    assert_secret(caught, caplog, capsys, tmp_path)


MODERATED = "The input was flagged by the provider's moderation"


@pytest.mark.parametrize(("bad", "text"), [(1, MODERATED), (2, MODERATED), (2, "Forbidden")])
def test_a_moderated_reply_is_a_rejection_and_no_wrong_key(judge, bad, text):
    """HTTP 403 to the first or second of three requests; it is asked once."""
    with Server(lambda n, headers: (403, refusal_of(403, text), {}) if n == bad else (200, GOOD, {})) as server:
        found = judge(server.url).judge(REQUESTS)
        again = judge(server.url).judge(REQUESTS)
    assert len(server.calls) == 3
    reasons = ["endpoint_rejected" if n == bad else None for n in (1, 2, 3)]
    assert [judgement.unscored_reason for judgement in found] == reasons
    assert [judgement.unscored_reason for judgement in again] == reasons
    assert found[bad - 1].reason.endswith(f"403 - {text}")


@pytest.mark.parametrize(("status", "n_good", "text"), [(403, 0, "Forbidden"), (401, 0, MODERATED), (401, 1, "No")])
def test_what_stays_a_wrong_key(judge, status, n_good, text):
    script = lambda n, headers: (200, GOOD, {}) if n <= n_good else (status, refusal_of(status, text), {})  # noqa: E731
    with Server(script) as server, pytest.raises(EvaluationError, match=rf"refuses the key \(HTTP {status}\)"):
        judge(server.url).judge(REQUESTS)
    assert len(server.calls) == n_good + 1


def test_an_endpoint_that_repeats_the_key_is_not_repeated(judge, caplog, capsys, tmp_path):
    """A bad request that echoes the header."""
    with (
        Server(lambda n, headers: (400, refusal_of(400, f"bad: {headers['authorization']}"), {})) as server,
        pytest.raises(EvaluationError, match="HTTP 400") as caught,
    ):
        judge(server.url).judge(REQUESTS)
    assert_secret(caught, caplog, capsys, tmp_path)


def test_an_unknown_model(judge):
    with (
        Server(lambda n, headers: (404, refusal_of(404, "The model `m` does not exist"), {})) as server,
        pytest.raises(EvaluationError, match=r"does not know this model or path \(HTTP 404\).*does not exist"),
    ):
        judge(server.url).judge(REQUESTS)


def test_rate_limits_are_waited_out(judge):
    """Two answers of 429, the first with a Retry-After of .3 s, then scores: pauses of .3 and .01 * 2 s."""

    def script(n, headers):
        if n <= 2:
            return 429, refusal_of(429, "slow down"), {"retry-after": "0.3"} if n == 1 else {}
        return 200, GOOD, {}

    pauses = []

    async def pause(seconds):
        pauses.append(seconds)

    with Server(script) as server:
        asked = judge(server.url)
        asked._sleep = pause
        found = asked.judge(REQUESTS)
    assert pauses == [0.3, 0.02]
    assert [judgement.score for judgement in found] == [0.625] * 3
    assert len(server.calls) == 5


def test_nothing_listens(judge):
    with Server(lambda n, headers: (200, GOOD, {})) as server:
        url = server.url
    with pytest.raises(EvaluationError, match="gave no answer to 3 requests in a row"):
        judge(url).judge(REQUESTS)


def test_garbage_and_server_errors_are_counted(judge):
    """One request meets a broken gateway through all its tries; the others are scored."""

    def script(n, headers):
        return (502, GARBAGE, {"content-type": "text/html"}) if n <= 3 else (200, GOOD, {})

    with Server(script) as server:
        found = judge(server.url).judge(REQUESTS)
    assert [judgement.unscored_reason for judgement in found] == ["endpoint_error", None, None]
    assert "HTTP 502" in found[0].reason


NO_COMPLETIONS = {
    "an error": refusal_of(429, "slow down"),
    "a page that is called JSON": GARBAGE,
    "nothing in it": {},
    "no choice in it": {**completion(""), "choices": []},
    "no choices": {**completion(""), "choices": None},
    "no message": {**completion(""), "choices": [{"index": 0, "message": None, "finish_reason": "stop"}]},
    "no text at all": b"",
    "a list": [1],
    "null": None,
    "bytes of no text": b'{"id": "\xff\xfe"}',
}


@pytest.mark.parametrize("body", NO_COMPLETIONS.values(), ids=NO_COMPLETIONS)
def test_an_answer_that_is_no_completion_is_tried_again(judge, body, caplog, capsys, tmp_path):
    """HTTP 200 without a completion: the first request twice, then it is scored."""
    with Server(lambda n, headers: (200, body if n <= 2 else GOOD, {})) as server:
        found = judge(server.url).judge(REQUESTS)
    assert [judgement.score for judgement in found] == [0.625] * 3
    assert len(server.calls) == 5
    assert_secret(None, caplog, capsys, tmp_path)


@pytest.mark.parametrize("kind", ["application/json", "text/html"])
def test_a_page_for_another_client(judge, kind):
    """Inspect's provider of OpenAI asserts that an answer is one."""
    with Server(lambda n, headers: (200, GARBAGE if n == 1 else GOOD, {"content-type": kind})) as server:
        found = judge(server.url, model="openai/gpt-4o-mini", responses_api=False).judge(REQUESTS[:1])
    assert found[0].score == 0.625
    assert len(server.calls) == 2


@pytest.mark.parametrize("name", ["an error", "a page that is called JSON", "nothing in it", "no choice in it"])
def test_answers_that_stay_no_completion_are_counted_and_asked_again_next_time(judge, name):
    """The first request meets it through all its three tries, the others do not."""
    with Server(lambda n, headers: (200, NO_COMPLETIONS[name] if n <= 3 else GOOD, {})) as server:
        found = judge(server.url).judge(REQUESTS)
        again = judge(server.url).judge(REQUESTS)
    assert [judgement.score for judgement in found] == [None, 0.625, 0.625]
    assert found[0].unscored_reason == "endpoint_no_completion"
    assert found[0].reason.startswith("it answered with no completion, but an error or a page (")
    assert [judgement.kept for judgement in again] == [False, True, True]
    assert again[0].score == 0.625


def test_an_endpoint_that_never_completes_is_one_error(judge):
    with (
        Server(lambda n, headers: (200, refusal_of(500, "overloaded"), {})) as server,
        pytest.raises(EvaluationError, match="gave no answer to 3 requests in a row: it answered with no completion"),
    ):
        judge(server.url).judge(REQUESTS)


def test_a_page_that_is_called_a_page(judge):
    with Server(lambda n, headers: (200, GARBAGE if n <= 3 else GOOD, {"content-type": "text/html"})) as server:
        found = judge(server.url).judge(REQUESTS)
    assert [judgement.score for judgement in found] == [None, 0.625, 0.625]


# ----------------------------------------------------------------------------------------------------- what was paid


def test_what_was_paid_before_a_fault_is_counted(judge):
    """The first request: an answer that cannot be read (11 tokens in, 7 out), then a broken gateway. The others:
    a score each."""

    def script(n, headers):
        return (200, "It is bad.", {}) if n == 1 else (502, GARBAGE, {}) if n <= 4 else (200, GOOD, {})

    with Server(script) as server:
        asked = judge(server.url)
        found = asked.judge(REQUESTS)
    assert [judgement.unscored_reason for judgement in found] == ["endpoint_error", None, None]
    assert found[0].usage == Usage(1, 11, 7)
    assert found[0].failed_attempts == ("malformed",)
    assert used(found) == asked.spent == Usage(3, 33, 21)


def test_an_answer_without_a_choice_is_paid_for_too(judge):
    empty = {**completion(""), "choices": []}
    with Server(lambda n, headers: (200, empty if n == 1 else GOOD, {})) as server:
        asked = judge(server.url)
        found = asked.judge(REQUESTS[:1])
    assert found[0].score == 0.625
    assert found[0].usage == asked.spent == Usage(2, 22, 14)


def test_a_rejection_after_a_paid_answer_keeps_what_was_paid(judge):
    """The second request is read badly, then rejected; from the cache it has its usage too."""

    def script(n, headers):
        return (200, "It is bad.", {}) if n == 2 else (400, refusal_of(400, "no"), {}) if n == 3 else (200, GOOD, {})

    with Server(script) as server:
        found = judge(server.url).judge(REQUESTS)
        again = judge(server.url).judge(REQUESTS)
    assert [one[1].unscored_reason for one in (found, again)] == ["endpoint_rejected"] * 2
    assert [one[1].usage for one in (found, again)] == [Usage(1, 11, 7)] * 2


def test_a_slow_endpoint(judge):
    def script(n, headers):
        time.sleep(0.6)
        return 200, GOOD, {}

    with Server(script) as server, pytest.raises(EvaluationError, match="no answer in time"):
        judge(server.url, timeout_s=0.1, endpoint_retries=0).judge(REQUESTS[:1])


def run_to_judge(monkeypatch, tmp_path) -> None:
    """Three replies in the folder `run`, the key of the provider `judged`, and nothing calibrated."""
    pytest.importorskip("openai", reason="openai is not installed: pip install 'opct[judge]'")
    monkeypatch.setenv("JUDGED_API_KEY", KEY)
    monkeypatch.setenv("OPCT_CALIBRATIONS", str(tmp_path / "kept"))
    rows = [
        {"id": f"s{i}", "axis": "jailbreak", "behavior": f"behaviour {i}", "completion": f"reply {i}"} for i in range(3)
    ]
    (tmp_path / "run" / "evals").mkdir(parents=True)
    (tmp_path / "run" / "evals" / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_from_the_command_line(monkeypatch, tmp_path, capsys):
    """A run is judged over HTTP, its cost said before and after: 3 * 11 tokens at 1 and 3 * 7 at 2 a million. Run again
    it asks nothing."""
    run_to_judge(monkeypatch, tmp_path)

    def run(url: str) -> str:
        arguments = ["--judge", "strongreject", "--model", "openai-api/judged/m", "--base-url", url, "--price", "1,2"]
        with pytest.raises(SystemExit) as ended:
            main(["judge", "run", str(tmp_path / "run"), *arguments])
        assert not ended.value.code
        return capsys.readouterr().out

    with Server(lambda n, headers: (200, GOOD, {})) as server:
        first, second = run(server.url), run(server.url)
    assert len(server.calls) == 3
    assert "3 calls (at most 9 with retries)" in first
    assert "used: 3 calls, 33 tokens in, 21 out; 0.0001 paid by the given prices" in first
    assert "harmful                          3" in first
    assert "warning: This judge was never compared with people's labels" in first
    assert "3 judged before, 0 empty; 0 calls" in second
    assert "used:" not in second
    found = read_jsonl(tmp_path / "run" / "evals" / "judgements.jsonl")
    assert [(row["id"], row["score"], row["kept"]) for row in found] == [(f"s{i}", 0.625, True) for i in range(3)]


def test_the_cost_is_said_where_judging_ends_in_an_error(monkeypatch, tmp_path, capsys):
    """Two answers of 11 tokens at 1,000 and 7 at 2,000 a million, then the key is refused: .05 paid; also where labels
    are compared."""
    run_to_judge(monkeypatch, tmp_path)
    labels = tmp_path / "labels.csv"
    labels.write_text("question,reply,label\n" + "".join(f"q{i},r{i},{i % 2}\n" for i in range(3)))
    for command in (["run", str(tmp_path / "run"), "--judge"], ["calibrate", "--labels", str(labels)]):
        with Server(lambda n, headers: (200, GOOD, {}) if n <= 2 else (401, refusal_of(401, "no"), {})) as server:
            arguments = ["--model", "openai-api/judged/m", "--base-url", server.url, "--price", "1000,2000"]
            with pytest.raises(SystemExit) as ended:
                main(["judge", *command, "strongreject", *arguments, "--set", "concurrency=1"])
        said = capsys.readouterr()
        assert ended.value.code == 1
        assert "it refuses the key" in said.err
        assert "used: 2 calls, 22 tokens in, 14 out; 0.0500 paid by the given prices" in said.out


# --------------------------------------------------------------------------------------------------- without a server


class GrpcError(Exception):
    """In place of grpc.RpcError, with a status as that has it."""

    def __init__(self, name, details):
        super().__init__(f"<RPC {details}>")
        self.code, self.details = lambda: SimpleNamespace(name=name), lambda: details


class AzureError(Exception):
    """In place of azure.core.exceptions.AzureError: without a status where nothing was reached."""

    def __init__(self, message, status_code=None, headers=None):
        super().__init__(message)
        self.status_code, self.response = status_code, SimpleNamespace(headers=headers or {})


@pytest.fixture
def clients(monkeypatch):
    """Both clients, as where they were imported."""
    monkeypatch.setitem(sys.modules, "grpc", SimpleNamespace(RpcError=GrpcError))
    monkeypatch.setitem(sys.modules, "azure.core.exceptions", SimpleNamespace(AzureError=AzureError))


@pytest.mark.parametrize(
    ("error", "kind", "reason", "said"),
    [
        (GrpcError("RESOURCE_EXHAUSTED", "slow"), "transient", "endpoint_error", "HTTP 429: RESOURCE_EXHAUSTED slow"),
        (GrpcError("UNAVAILABLE", None), "transient", "endpoint_error", "HTTP 503: UNAVAILABLE"),
        (GrpcError("INTERNAL", "x"), "transient", "endpoint_error", "HTTP 500: INTERNAL x"),
        (GrpcError("DEADLINE_EXCEEDED", "x"), "transient", "endpoint_timeout", "no answer in time"),
        (GrpcError("UNAUTHENTICATED", f"bad {KEY}"), "key", "endpoint_error", "it refuses the key (HTTP 401)"),
        (GrpcError("PERMISSION_DENIED", "no"), "key", "endpoint_error", "it refuses the key (HTTP 403)"),
        (GrpcError("PERMISSION_DENIED", "flagged"), "request", "endpoint_rejected", "PERMISSION_DENIED flagged"),
        (GrpcError("NOT_FOUND", "no m"), "model", "endpoint_error", "does not know this model"),
        (GrpcError("INVALID_ARGUMENT", f"x {KEY}"), "request", "endpoint_rejected", "INVALID_ARGUMENT x [secret]"),
        (AzureError("slow", 429, {"retry-after": "7"}), "transient", "endpoint_error", "HTTP 429: slow"),
        (AzureError("no route"), "transient", "endpoint_error", "AzureError: no route"),
        (AzureError("no", 401), "key", "endpoint_error", "it refuses the key"),
        (AzureError("too hot", 400), "request", "endpoint_rejected", "HTTP 400: too hot"),
        (AzureError("no m", 404), "model", "endpoint_error", "does not know this model"),
    ],
    ids=lambda value: str(value) if isinstance(value, Exception) else "",
)
def test_errors_of_clients_without_http_are_of_their_kind(clients, error, kind, reason, said):
    assert isinstance(error, endpoint.known_errors())
    found = endpoint.fault_of(error, {KEY})
    assert (found.kind, found.reason) == (kind, reason)
    assert said in found.said
    assert KEY not in found.said
    assert found.wait_s == (7.0 if "429: slow" in found.said else None)


def test_the_names_of_statuses_are_those_of_grpc():
    """And a bare RpcError, which has no code, is tried again."""
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
    assert set(endpoint._GRPC_STATUS) <= {code.name for code in grpc.StatusCode}
    assert endpoint.fault_of(grpc.RpcError(), ()).kind == endpoint.TRANSIENT


def test_a_rate_limit_of_such_a_client_is_waited_out(clients):
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    calls = []

    async def answer(input, tools, tool_choice, config):
        calls.append(1)
        if len(calls) < 3:
            raise GrpcError("RESOURCE_EXHAUSTED", "slow down") if len(calls) == 1 else AzureError("slow down", 429)
        output = ModelOutput.from_content("mockllm/model", GOOD)
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output

    model = get_model("mockllm/model", custom_outputs=answer)
    asked = LLMJudge(STRONGREJECT, model, settings=AskingSettings(backoff_s=0.0, endpoint_retries=2))
    assert asked.judge(REQUESTS[:1])[0].score == 0.625
    assert len(calls) == 3


def test_a_key_that_is_missing(monkeypatch):
    pytest.importorskip("openai", reason="openai is not installed: pip install 'opct[judge]'")
    monkeypatch.delenv("NOKEY_API_KEY", raising=False)
    with pytest.raises(EvaluationError, match="No NOKEY_API_KEY defined") as caught:
        inspect_model("openai-api/nokey/m", "http://127.0.0.1:1/v1")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"), [("nonesuch/m", "nonesuch"), ("justaname", "provider/model"), ("openai-api/m", "provider/model")]
)
def test_a_model_that_there_is_not(name, said):
    with pytest.raises(EvaluationError, match=said):
        inspect_model(name)


def test_a_key_among_the_arguments_is_refused():
    with pytest.raises(EvaluationError, match="put it into the environment") as caught:
        open_judge("strongreject", model="mockllm/model", model_args={"api_key": KEY})
    assert KEY not in str(caught.value)


def test_judges_that_there_are_not(tmp_path):
    with pytest.raises(EvaluationError, match="Did you mean 'strongreject'"):
        open_judge("strongrject", model="mockllm/model")
    with pytest.raises(EvaluationError, match="name the model with --model"):
        open_judge("strongreject")
    with pytest.raises(EvaluationError, match=r"threshold of a judge is 1\.5"):
        open_judge("strongreject", model="mockllm/model", threshold=1.5)


def test_secrets_are_taken_out():
    text = "Bearer abc.def-123 and sk-live-abcdef and key ab***yz at http://me:pw@host/v1, password hunter2x"
    said = endpoint.redact(text, {"hunter2x"})
    assert said == "Bearer [secret] and [secret] and key [secret] at http://[secret]@host/v1, password [secret]"


def test_a_model_on_this_disk_is_named_by_its_weights(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    assert described_model("openai/gpt") == "openai/gpt"
    (folder / "model.safetensors").write_bytes(b"one")
    first = described_model(f"hf/{folder}")
    (folder / "model.safetensors").write_bytes(b"two")
    assert first.startswith(f"hf/{folder}@")
    assert described_model(f"hf/{folder}") != first
