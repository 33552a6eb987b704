"""The process that runs math-verify: a JSON object a line in, one a line out. See `math_verifier`.

It is run as a file and imports nothing of ours, so that it starts fast. math-verify's own time limits are off: the
process that started this one ends it where an answer takes too long, also inside a computation that no signal stops.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

MEMORY_BYTES = 4 << 30


def compare(gold: str, answer: str) -> dict[str, Any]:
    """What math-verify says: whether each side can be parsed, whether they are equal, and the answer as it read it."""
    from math_verify import parse, verify

    expected = parse(gold, parsing_timeout=None)
    found = parse(answer, parsing_timeout=None)
    is_equal = bool(expected and found) and verify(expected, found, timeout_seconds=None, raise_on_error=True)
    texts = [each for each in found if isinstance(each, str)]  # what it could not turn into mathematics, too
    return {
        "gold_parsed": bool(expected),
        "parsed": len(found) > len(texts),
        "equal": bool(is_equal),
        "shown": texts[0] if texts else "",
    }


def main() -> None:
    """Answer until the input ends; the first line out says that math-verify is loaded."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout = sys.stderr  # what a library prints is no answer
    logging.disable(logging.CRITICAL)
    _limit_memory()
    compare("$1$", "$1$")
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        print(json.dumps(compare(request["gold"], request["answer"])), file=answers, flush=True)


def _limit_memory() -> None:
    """A huge power must end this process, not the machine."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    main()
