import os
import platform
import subprocess
import sys

import pytest

from opct.errors import CheckpointError, RunError
from opct.runs import io as files
from opct.runs.io import append_jsonl, atomic_write, read_json, read_jsonl
from tests.refusals import refused


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_write_that_fails_keeps_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "a.txt"
    atomic_write(path, "é")
    atomic_write(path, b"old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with refused(RunError, "a.txt"):
        atomic_write(path, "new")
    assert path.read_text() == "old"
    assert names(path.parent) == ["a.txt"]


def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path):
    """Not what a process writes now, here or on another machine."""
    path, ended = tmp_path / "a[1].txt", subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = platform.node()
    left = [f".a[1].txt.tmp-{node}-{pid}" for node, pid in ((here, ended.pid), (here, os.getppid()), ("x", ended.pid))]
    for name in (*left, f".b.txt.tmp-{here}-{ended.pid}", f".a[1].txt.tmp-{here}-{9**40}"):
        (tmp_path / name).touch()
    atomic_write(path, "new")
    assert set(names(tmp_path)) >= {path.name, *left[1:], f".b.txt.tmp-{here}-{ended.pid}"}
    assert left[0] not in names(tmp_path)


def test_rows_are_appended_and_read_also_after_a_torn_or_endless_line(tmp_path):
    path = tmp_path / "m.jsonl"
    assert read_jsonl(path) == []
    for row in ({"step": 1, "text": "a\nb é"}, {"step": 2}):
        append_jsonl(path, row, fsync=True)
    assert path.read_bytes().count(b"\n") == 2
    assert read_jsonl(path) == [{"step": 1, "text": "a\nb é"}, {"step": 2}]
    path.write_bytes(b'{"step": 1}\n{"step": 2, "tr')
    assert read_jsonl(path) == [{"step": 1}]
    append_jsonl(path, {"step": 2})  # the torn line is removed
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'
    path.write_bytes(b'{"step": 1}\n{"step": 2}')  # a whole line without its end stays
    assert len(read_jsonl(path)) == 2
    append_jsonl(path, {"step": 3})
    assert [row["step"] for row in read_jsonl(path)] == [1, 2, 3]


def test_numbers_that_json_does_not_know_are_refused(tmp_path):
    with refused(RunError, "train/kl", "m.jsonl", "JSON"):
        append_jsonl(tmp_path / "m.jsonl", {"step": 1, "train/kl": float("nan")})
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'{"a": tru',
        b"[" * 100_000,
        b'{"a": ' + b"1" * 5000 + b"}",
        b'{"a": NaN}',
        b'{"a": [1e999]}',
        b'{"a": "\\ud800"}',
        b"\xff",
        b"[1]",
    ],
    ids=lambda text: repr(text[:9]),
)
def test_json_that_cannot_be_used_is_one_error_that_names_it(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_bytes(text)
    with refused(CheckpointError, "a.json"):
        read_json(path, error=CheckpointError)
    path.write_bytes(b'{"step": 1}\n' + text + b'\n{"step": 2}\n')
    if text:
        with refused(RunError, "a.json:2"):
            read_jsonl(path)


def test_what_is_no_file_is_not_read(tmp_path):
    with refused(RunError, "none.json"):
        read_json(tmp_path / "none.json", hint="Train first.")
    with pytest.raises(RunError):
        read_json("/dev/zero")


def test_only_regular_files_are_replaced(tmp_path):
    """A device or a pipe stays what it is; a link is replaced, and what it names stays."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    with pytest.raises(RunError):
        atomic_write(pipe, "x")
    assert pipe.is_fifo()
    atomic_write(tmp_path / "target", "old")
    link.symlink_to(tmp_path / "target")
    atomic_write(link, "new")
    assert (link.read_text(), (tmp_path / "target").read_text()) == ("new", "old")
    assert not link.is_symlink()
