"""Streams that are closed, full, or not UTF-8, and odd environments: one line and exit code 1, or escapes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
KEY = "sk-proj-THIS-is-the-secret-0123456789"


def run(*arguments: str, stdout: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `opct` in a shell, where a stream can be closed."""
    words = ["sh", "-c", f'exec "$@" {stdout}', "sh", sys.executable, "-m", "opct", *arguments]
    own = {**os.environ, "PYTHONUTF8": "0", **environment}
    return subprocess.run(words, capture_output=True, text=True, timeout=120, env=own, errors="replace", check=False)


@pytest.mark.parametrize("stdout", [">/dev/full", ">&-"])
@pytest.mark.parametrize("command", ["--help", "--version", "config schema", "runs ."])
def test_output_that_goes_nowhere_is_one_line(command, stdout, tmp_path):
    ended = run(*command.replace(".", str(tmp_path)).split(), stdout=stdout)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: Cannot write to stdout: ")
    assert ended.stderr.count("\n") == 1


def test_what_a_stream_cannot_encode_is_an_escape(tmp_path):
    name = tmp_path / "\u2212\u65e5\u672c"
    name.mkdir()
    ended = run("runs", str(name), PYTHONIOENCODING="cp1252")
    assert ended.returncode == 0, ended.stderr
    assert "\\u2212\\u65e5" in ended.stdout


def test_a_full_or_closed_stderr_ends_no_command(tmp_path):
    (tmp_path / "q.csv").write_text("question,answer,wrong\nQ?,x,y\nQ?,x,y\n")  # a repeated row is a warning
    for stderr in ("2>/dev/full", "2>&-"):
        out = tmp_path / f"{len(stderr)}.jsonl"
        command = f"data build sycophancy --from {tmp_path}/q.csv --out {out} --split all"
        assert (run(*command.split(), stdout=stderr).returncode, out.is_file()) == (0, True)


def test_no_control_character_and_no_key_reaches_the_terminal(tmp_path):
    """Whatever writes it: here rich and click, which repeat what was typed."""
    ended = run("data", "check", f"{KEY}\x1b[2J\r\x9b.jsonl", MY_API_KEY=KEY)
    said = ended.stdout + ended.stderr
    assert "\\x1b[2J" in said
    assert not {"\x1b", "\r", "\x9b"}.intersection(said)
    assert KEY not in said
    ended = run("data", "check", "http://me:hunter2@host/a.jsonl?api_key=abcdef")
    assert "hunter2" not in ended.stderr
    assert "abcdef" not in ended.stderr


def test_a_library_that_cannot_be_imported_is_named_and_is_no_bug_of_ours():
    ended = run("data", "show", "builtin:sycophancy", "--model", "smollm2-135m-instruct", HF_HUB_DOWNLOAD_TIMEOUT="x")
    assert ended.returncode == 1
    assert "huggingface_hub" in ended.stderr.replace("\n", "")
    assert "environment variables" in ended.stderr
