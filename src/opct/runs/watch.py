"""A thread in each process of a run that sees when another one has failed, and then ends its own.

The processes are stuck in a collective when one of them is gone: NCCL would wait for minutes. What failed is written
once, by the first that fails, to the store that the launcher keeps; every thread looks there each second. Each process
also counts up there: one whose count stands still is gone without a word. A process that this one starts, such as an
engine, can end with it (`end_with_parent`).
"""

from __future__ import annotations

import contextlib
import datetime
import json
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

INTERVAL_S = 0.5
STALLED_S = 60.0  # work that lets no other thread run, such as pickling, may take seconds
REASON_WAIT_S = 4.0


class Watch(threading.Thread):
    """Looks for a reason to stop until `stop` is called.

    Attributes:
        reason: why another process ended the run; None while nobody has.
        code: the exit code that goes with it.
    """

    def __init__(self, rank: int, size: int):
        super().__init__(name="opct-watch", daemon=True)
        import torch.distributed as dist

        self._rank, self._size = rank, size
        store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=datetime.timedelta(seconds=30),
        )
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(f"opct/{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{attempt}", store)
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._watched = (rank + 1) % size
        self._beats, self._looks = -1, 0  # looks in vain, not time: a machine that was asleep has lost nobody
        self.reason: str | None = None
        self.code = 1

    def post(self, reason: str, code: int) -> bool:
        """Write why this process ends the run; False if another one was first, whose reason then is `reason`.

        True as well where nobody can be told, since the store is gone.
        """
        with self._lock:
            own = json.dumps([self._rank, code, reason])
            try:
                written = self._store.compare_set("failed", "", own).decode()
            except RuntimeError:
                return True
            if written == own:
                return True
            self._take(written)
        self.stop()
        return False

    def wait_for_reason(self) -> bool:
        """True if another process says within seconds why it failed."""
        deadline = time.monotonic() + REASON_WAIT_S
        while self.reason is None and time.monotonic() < deadline:
            time.sleep(INTERVAL_S / 5)
            with contextlib.suppress(RuntimeError):  # the store is gone: nobody can say anything there
                self._look()
        return self.reason is not None

    def stop(self) -> None:
        """End the thread's work; the process lives on."""
        self._ended.set()

    def run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            try:
                with self._lock:
                    self._store.add(f"beats/{self._rank}", 1)
                    self._see_next()
                self._look()
            except RuntimeError:  # the store went away with the process or launcher that kept it
                self.reason = "the launcher or the main process is gone"
            if self.reason is not None and not self._ended.is_set():
                self._leave()

    def _see_next(self) -> None:
        """Write a reason where the next process stands still."""
        beats = self._store.add(f"beats/{self._watched}", 0)
        self._looks += 1
        if beats != self._beats:
            self._beats, self._looks = beats, 0
        elif beats > 0 and self._looks * INTERVAL_S > STALLED_S:
            reason = f"it has not answered for {STALLED_S:.0f} s"
            self._store.compare_set("failed", "", json.dumps([self._watched, 1, reason]))

    def _look(self) -> None:
        with self._lock:
            if self.reason is None and self._store.check(["failed"]):
                self._take(self._store.get("failed").decode())

    def _take(self, written: str) -> None:
        failed, code, reason = json.loads(written)
        if failed != self._rank:
            self.reason, self.code = f"process {failed} of {self._size} stopped the run: {reason}", code

    def _leave(self) -> None:
        """End the process, which may be stuck in a collective and would never know."""
        keep_reason(self.reason or "")
        if os.environ.get("LOCAL_RANK", "0") == "0":
            sys.stderr.write(f"error: {self.reason}\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self.code)


def end_with_parent() -> None:
    """End this process, which multiprocessing started, as soon as its parent is gone, be it by `kill -9`."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="opct-parent", daemon=True).start()


def keep_reason(reason: str) -> None:
    """Leave the reason where torchrun looks for it, which prints it last."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file:
        message = {"message": reason, "extraInfo": {"timestamp": str(int(time.time()))}}
        with contextlib.suppress(OSError):  # the reason is on stderr as well
            Path(file).write_text(json.dumps({"message": message}), encoding="utf-8")
