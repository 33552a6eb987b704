"""A local stand-in of the Hugging Face hub: enough of its API to download a snapshot and to upload a folder."""

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


class Hub:
    """`repos` holds the files of each repository by name; `requests` what was asked, as "METHOD path"."""

    def __init__(self, url: str, commit: str):
        self.url, self.commit = url, commit
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.requests: list[str] = []
        self.tokens: list[str | None] = []
        self.status = 200  # of every answer, where it is an error


@contextlib.contextmanager
def running_hub(monkeypatch: pytest.MonkeyPatch, cache: Path, commit: str = 40 * "a") -> Iterator[Hub]:
    """A hub that `huggingface_hub` asks, with an empty cache and no token."""
    from huggingface_hub import constants

    with serving(_Handler) as server:
        hub = server.hub = Hub(f"http://127.0.0.1:{server.server_port}", commit)  # type: ignore[attr-defined]
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no-token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield hub


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[ThreadingHTTPServer]:
    """A server of this process, on a port of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class JsonHandler(BaseHTTPRequestHandler):
    """Answers with JSON, or with bytes as they are."""

    def log_message(self, *_) -> None: ...

    def answer(self, status: int, content, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        sizes = {"Content-Length": str(len(data)), "Content-Type": "application/json"}
        for key, value in (sizes | (headers or {})).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def chat_completion(text: str) -> dict:
    """The answer of a chat endpoint in OpenAI's form."""
    return {
        **{"id": "1", "object": "chat.completion", "created": 1, "model": "m"},
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }


class _Handler(JsonHandler):
    def do_GET(self) -> None:
        hub, path = self._noted()
        if path.startswith("/api/models/"):
            name, _, rest = path.removeprefix("/api/models/").partition("/revision/")
            if not rest:
                name = name.partition("/tree/")[0]
            files = hub.repos.get(name)
            if files is None:
                return self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            if "/tree/" in path:
                return self._answer(
                    200, [{"type": "file", "path": n, "size": len(d), "oid": _hash(d)} for n, d in files.items()]
                )
            return self._answer(200, {"id": name, "sha": hub.commit, "siblings": [], "cardData": {"license": "mit"}})
        name, _, rest = path.strip("/").partition("/resolve/")
        data = hub.repos.get(name, {}).get(rest.partition("/")[2])
        if data is None:
            return self._answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
        return self._answer(200, data, {"ETag": f'"{_hash(data)}"', "X-Repo-Commit": hub.commit})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        hub, path = self._noted()
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            url = {"url": f"{hub.url}/{name}"}
            if name in hub.repos:
                return self._answer(409, {"error": "You already created this model repo", **url})
            hub.repos[name], hub.private[name] = {}, asked.get("private") or asked.get("visibility") == "private"
            return self._answer(200, url)
        if path == "/api/validate-yaml":
            return self._answer(200, {"errors": [], "warnings": []})
        name, _, what = path.removeprefix("/api/models/").rpartition("/main")[0].rpartition("/")
        if what == "preupload":
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            return self._answer(200, {"files": files})
        for row in map(json.loads, body.splitlines()):
            if row["key"] == "file":
                hub.repos[name][row["value"]["path"]] = base64.b64decode(row["value"]["content"])
        return self._answer(200, {"commitUrl": f"{hub.url}/{name}/commit/{hub.commit}", "commitOid": hub.commit})

    def _noted(self) -> tuple[Hub, str]:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        path = self.path.partition("?")[0].replace("%2F", "/")
        hub.requests.append(f"{self.command} {path}")
        hub.tokens.append(self.headers["Authorization"])
        return hub, path

    def _answer(self, status: int, content, headers: dict[str, str] | None = None) -> None:
        self.answer(max(status, self.server.hub.status), content, headers)  # type: ignore[attr-defined]


def _hash(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
