"""math-verify in a process of its own, so that it can be stopped.

Its own time limits are signals, which work in the main thread alone, cancel other alarms of the process, and do not
interrupt a long computation inside the interpreter. A process can be ended from any thread.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from opct.errors import EvaluationError
from opct.evals.graders.short_answer import UNPARSED, Verdict

TIMEOUT_S = 10.0
START_TIMEOUT_S = 120.0
TOO_SLOW = "unscored:grader_timeout"
FAILED = "unscored:grader_error"


@dataclass
class _Running:
    process: subprocess.Popen[str]
    ended_by_us: bool = False

    def end(self) -> None:
        self.ended_by_us = True
        self.process.kill()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class MathVerifier:
    """Compares answers with math-verify; from any thread, one at a time.

    The process is started with the first comparison, and again after one that it did not survive.

    Args:
        timeout_s: most seconds of one comparison.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S):
        self.timeout_s = timeout_s
        self._running: _Running | None = None
        self._lock = threading.Lock()

    def __call__(self, gold: str, answer: str) -> Verdict:
        """Whether `answer` is `gold`; both are text with LaTeX in dollars.

        Returns:
            "correct" or "other"; "unscored:unparsed" where math-verify reads no mathematics in the answer;
            "unscored:grader_timeout" or "unscored:grader_error" where it did not finish.

        Raises:
            EvaluationError: math-verify is not installed or cannot be started, or it cannot read the right answer.
        """
        with self._lock:
            running = self._running or self._start()
            said = _ask(running, {"gold": gold, "answer": answer}, self.timeout_s)
            if said is None or running.ended_by_us:
                running.close()
                self._running = None
            if said is None:
                return Verdict(TOO_SLOW if running.ended_by_us else FAILED)
        if not said["gold_parsed"]:
            raise EvaluationError(f"math-verify reads no mathematics in the right answer {gold!r}: correct the data.")
        if said["equal"]:
            return Verdict("correct", "correct")
        return Verdict("other", f"wrong:{said['shown'] or answer}") if said["parsed"] else Verdict(UNPARSED)

    def close(self) -> None:
        """End the process; the next comparison starts another."""
        with self._lock:
            if self._running is not None:
                self._running.close()
                self._running = None

    def _start(self) -> _Running:
        check_math_verify()
        worker = Path(__file__).with_name("math_worker.py")
        process = subprocess.Popen(
            [sys.executable, "-P", str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        running = _Running(process)
        if _ask(running, None, START_TIMEOUT_S) is None:
            running.close()
            raise EvaluationError(
                f"math-verify could not be started within {START_TIMEOUT_S:.0f} s (exit code {process.returncode}): "
                f"see what `{sys.executable} -P {worker}` says."
            )
        self._running = running
        return running


@cache
def math_verifier() -> MathVerifier:
    """The one that all scorers of this process share; ended with it."""
    verifier = MathVerifier()
    atexit.register(verifier.close)
    return verifier


def check_math_verify() -> None:
    """Refuse to go on without math-verify.

    Raises:
        EvaluationError: it is not installed.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise EvaluationError(
            "Grading mathematics needs math-verify, which is not installed: pip install 'opct[capability]'."
        )


def _ask(running: _Running, request: dict[str, str] | None, timeout_s: float) -> dict[str, Any] | None:
    """The next line that the process says, after an optional request; None where it ended or was ended."""
    assert running.process.stdin is not None
    assert running.process.stdout is not None
    timer = threading.Timer(timeout_s, running.end)
    timer.start()
    try:
        if request is not None:
            running.process.stdin.write(json.dumps(request) + "\n")
            running.process.stdin.flush()
        line = running.process.stdout.readline()
    except BrokenPipeError:
        return None
    finally:
        timer.cancel()
        timer.join()  # it may be ending the process just now
    return json.loads(line) if line.endswith("\n") else None
