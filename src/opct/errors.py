"""Every error that `opct` raises on purpose.

Each one is also the standard-library error that it derives from, so that callers need not know this package.
A message says what, where, the value, and what to do. The command line prints it without a traceback.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from types import TracebackType

from opct.redaction import redact

MOST_NAMES = 50
"""Number of valid names up to which a message lists them all."""
SHOWN_FAULTS = 50
"""Number of faults of one file that are listed; the others are counted."""
REMEDY = "Check the free space and the rights of the folder, or choose another."
"""Of an error of the file system."""
LONGEST_REASON = 400
"""Characters of a library's message: some quote the file that they read."""


def reason(error: BaseException) -> str:
    """The system's error message, without a final period."""
    return ((error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__).rstrip(".")


def shorten(value: object, longest: int = 60) -> str:
    """A value as messages quote it: JSON of at most so many characters."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= longest else text[: longest - 3] + "..."


def first_of(texts: Sequence[str], n: int = 3) -> str:
    """The first `n` of these, for a message: "a, b, c, ..."."""
    return ", ".join(texts[:n]) + (", ..." if len(texts) > n else "")


class OpctError(Exception):
    """Base of every error raised on purpose; its message holds no key, also where it quotes a server or a file."""

    def __init__(self, *messages: object) -> None:
        super().__init__(*(redact(message) if isinstance(message, str) else message for message in messages))


class ConfigError(OpctError, ValueError):
    """A setting is unknown, of the wrong type, or out of range."""


def is_failure(error: BaseException | None) -> bool:
    """True for any exception but a request to stop; a panic of a library in Rust is no `Exception`."""
    return isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime"


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
        if is_failure(error) and not isinstance(error, OpctError):
            said = " ".join(str(error).split())[:LONGEST_REASON] or type(error).__name__
            raise self._kind(f"{self._what}: {said.rstrip('.')}. {self._remedy}".rstrip()) from (
                None if isinstance(error, OSError) else error  # its message says all; hub clients chain many of them
            )


class DataError(OpctError, ValueError):
    """Data breaks its contract. `faults` holds every fault found, one line each."""

    def __init__(self, message: str, faults: tuple[str, ...] = ()):
        self.faults = tuple(redact(fault) for fault in faults)
        super().__init__("\n".join([message, *(f"  {fault}" for fault in faults)]))


class ModelError(OpctError, ValueError):
    """A model cannot be used as asked."""


class DownloadError(OpctError, OSError):
    """A file could not be fetched, or is not the expected file."""


class RunError(OpctError, RuntimeError):
    """A run directory exists already, is in use, or does not match the settings."""


class InUseError(RunError):
    """Another process works there."""


class NothingToResumeError(RunError):
    """A folder holds nothing that could be continued."""


class OtherAttackError(RunError):
    """A folder holds an attack with other rules, weights or judge."""


class CheckpointError(RunError):
    """A checkpoint is missing, corrupt, or could not be written."""


class OutOfMemory(OpctError, MemoryError):
    """The accelerator, or this machine, has too little memory."""


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
    """Error message for an unknown name, with the valid ones: the nearest first, and of very many a few."""
    names = list(valid)
    close = difflib.get_close_matches(name, names, n=5, cutoff=0.4)
    nearest = f" Did you mean {close[0]!r}?" if close else ""
    if len(names) > MOST_NAMES:
        return f"Unknown {kind} {name!r}.{nearest} There are {len(names):,}, such as {', '.join(close or names[:5])}."
    return f"Unknown {kind} {name!r}.{nearest} Use one of: {', '.join(names)}."


def shown_faults(faults: Sequence[str]) -> tuple[str, ...]:
    """The first `SHOWN_FAULTS` faults, and the number of others."""
    more = len(faults) - SHOWN_FAULTS
    return (*faults[:SHOWN_FAULTS], *([f"... and {more} more"] if more > 0 else []))
