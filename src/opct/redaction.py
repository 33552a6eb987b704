"""No key leaves: `redact` takes secrets out of every text that goes to a terminal, a file, a page or an error."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

MASK = "***"
SHORTEST = 6  # a TOKEN=1 in the environment must not turn every 1 of a message into ***
_VARIABLE = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:_?\d+|_\w+)?$", re.IGNORECASE)
_NAMED = re.compile(
    r"(?i)((?:token|secret|password|passwd|(?:api|access|private|account)[_-]?key|credentials?|authorization)"
    r"[=:\s]\s*(?:bearer\s+)?)\S+"
)
# user and password of an address, up to the last "@", since a password may hold one; `Path` makes ":/" of "://"
_SHAPES = re.compile(
    r"\b(?:hf_(?=[A-Za-z0-9]{30})|sk-|gsk_|xai-|ghp_|github_pat_|glpat-|AKIA)[A-Za-z0-9_-]{8,}"
    r"|(?<=://)[^/\s\"'?]+(?=@)|(?<=:/)[^/\s\"'?:]+:[^/\s\"'?]+(?=@)|(?i:(?<=bearer ))(?=\S*\d)\S{8,}"
    r"|(?<![\w.-])[\w.-]{1,200}\*{3,}\S*"  # bounded: else a long word costs its length squared
)
_PARAMETERS = re.compile(r"(?i)([?&][\w.-]*(?:key|token|secret|password|sig|signature|auth)=)[^&\s\"'#]+")


def redact(text: str, secrets: Iterable[str] | None = None) -> str:
    """The text with `***` for each secret, for words shaped like access tokens, and for secrets in addresses.

    Args:
        secrets: by default `environment_secrets()`.
    """
    # longest first: of a key that begins with another one the rest would stay
    for secret in sorted(environment_secrets() if secrets is None else secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return _PARAMETERS.sub(rf"\1{MASK}", _SHAPES.sub(MASK, text))


def redact_named(text: str) -> str:
    """`redact`, also for what follows a name such as `token`: for commands and tracebacks, not for prose."""
    return redact(_NAMED.sub(rf"\1{MASK}", text))


def environment_secrets() -> frozenset[str]:
    """The values of environment variables that are named like keys; not words and paths, which any message may hold."""
    named = {value for name, value in os.environ.items() if _VARIABLE.search(name) and len(value) >= SHORTEST}
    return frozenset(value for value in named if not os.path.exists(value) and re.search(r"\d|.{16}", value))
