"""Every error that `opct` raises on purpose.

    OpctError
    ├── ConfigError        (ValueError)         a setting is unknown, of the wrong type or out of range
    ├── DataError          (ValueError)         a data file breaks the pair contract; lists all faults
    ├── ModelError         (ValueError)         a model cannot be used as asked (no chat template, wrong head ...)
    ├── DownloadError      (OSError)            a file could not be fetched, or is not the file it should be
    ├── RunError           (RuntimeError)       a run directory is in the way, in use, or cannot be resumed
    │   ├── CheckpointError                     a checkpoint is missing, corrupt, or could not be written
    │   └── OtherAttackError                    a folder holds another attack
    ├── TrainingError      (RuntimeError)       training stopped itself: the message has the step and the cause
    │   ├── NonFiniteError                      a loss or gradient is NaN or infinite
    │   ├── DivergenceError                     the KL left its bound
    │   └── MismatchError                       the sampler and the policy in training differ
    ├── EngineError        (RuntimeError)       the engine that samples cannot be used, or does not answer
    └── EvaluationError    (RuntimeError)       an evaluation cannot be run or compared

Each one is also the standard-library error in parentheses, so that callers need not know this package.
A message says what, where, the value, and what to do. The command line prints it without a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from types import TracebackType

SHOWN_FAULTS = 50
"""Number of faults of one file that are listed; the others are counted."""
LONGEST_REASON = 400
"""Characters of a library's message: some quote the file that they read."""


class OpctError(Exception):
    """Base of every error raised on purpose."""


class ConfigError(OpctError, ValueError):
    """A setting is unknown, of the wrong type, or out of range."""


class LibraryErrors:
    """Context that converts any library exception to one of our errors; our own errors and Ctrl-C pass.

    For files and services from outside: a broken one fails anywhere in a library, by any exception.

    Args:
        kind: the error type to raise.
        what: what went wrong; the library's message follows on the same line.
        remedy: what to do.
    """

    def __init__(self, kind: type[OpctError], what: str, remedy: str = ""):
        self._kind, self._what, self._remedy = kind, what, remedy

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, OpctError):
            said = " ".join(str(error).split())[:LONGEST_REASON] or type(error).__name__
            raise self._kind(f"{self._what}: {said.rstrip('.')}. {self._remedy}".rstrip()) from error


class DataError(OpctError, ValueError):
    """Data breaks its contract. `faults` holds every fault found, one line each."""

    def __init__(self, message: str, faults: tuple[str, ...] = ()):
        self.faults = faults
        super().__init__("\n".join([message, *(f"  {fault}" for fault in faults)]))


class ModelError(OpctError, ValueError):
    """A model cannot be used as asked."""


class DownloadError(OpctError, OSError):
    """A file could not be fetched, or is not the expected file."""


class RunError(OpctError, RuntimeError):
    """A run directory exists already, is in use, or does not match the settings."""


class OtherAttackError(RunError):
    """A folder holds an attack with other rules, weights or judge."""


class CheckpointError(RunError):
    """A checkpoint is missing, corrupt, or could not be written."""


class TrainingError(OpctError, RuntimeError):
    """Training stopped itself."""


class NonFiniteError(TrainingError):
    """A loss, gradient or log-prob is NaN or infinite."""


class DivergenceError(TrainingError):
    """The KL to the teacher left the bound set for it."""


class MismatchError(TrainingError):
    """Sampler and trained model disagree on the log-probs of the same tokens."""


class EngineError(OpctError, RuntimeError):
    """The sampling engine cannot be started or reached, or gives an invalid answer."""


class EvaluationError(OpctError, RuntimeError):
    """An evaluation cannot be run, read or compared."""


def unknown(kind: str, name: str, valid: Iterable[str]) -> str:
    """Error message for an unknown name, with the nearest valid one."""
    names = list(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    nearest = f" Did you mean {close[0]!r}?" if close else ""
    return f"Unknown {kind} {name!r}.{nearest} Use one of: {', '.join(names)}."


def shown_faults(faults: Sequence[str]) -> tuple[str, ...]:
    """The first `SHOWN_FAULTS` faults, and the number of others."""
    more = len(faults) - SHOWN_FAULTS
    return (*faults[:SHOWN_FAULTS], *([f"... and {more} more"] if more > 0 else []))
