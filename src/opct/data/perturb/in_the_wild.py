"""Jailbreak prompts of others, from files: templates that people shared, and finished prompts of an attacker.

The formats are those of public sets, of which nothing is embedded, and, of finished prompts, that of the
`successful_prompts.jsonl` of an attack of our own. A template has a gap for the request, or is put before it; a
finished prompt belongs to its goal, so such prompts are split by goal.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opct.data.behavior_files import text_fault
from opct.data.pairs import HUB, Prompt, pinned_rows, prompt_faults
from opct.data.tables import BadRow, file_stem, read_rows
from opct.errors import DataError, shown_faults
from opct.runs.io import read_jsonl

TEXT_COLUMNS = ("text", "prompt", "template", "jailbreak")
ARTIFACT_KEYS = ("goal", "prompt")
SUCCESSES_KIND = "opct_successful_prompts"
"""What the first row of an attack's `successful_prompts.jsonl` says that it is."""
SUCCESS_KEYS = {"behavior_id", "behavior", "prompt"}
_GAP = re.compile(
    r"[\[{<]{1,2}\s*(?:(?:insert|put|enter|type|write|your|my|user|any|the|a)[ _])*"
    r"(?:prompt|question|request|query|instruction|behavior|goal)(?:[ _]here)?\s*(?:\\?[\]}>]){1,2}",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class WildTemplate:
    """A template with its text cut at each gap; one part alone has no gap, and the request follows it."""

    id: str
    parts: tuple[str, ...]

    def fill(self, behavior: str) -> str:
        """The template around the request; neither text is read as anything but text."""
        if len(self.parts) == 1:
            return f"{self.parts[0]}\n\n{behavior}"
        return behavior.join(self.parts)


@dataclass(frozen=True)
class Artifact:
    """A finished prompt of an attacker for one goal; of an attack of our own it may have several turns."""

    id: str
    behavior: str
    category: str
    prompt: Prompt


def load_templates(path: str | Path) -> list[WildTemplate]:
    """Templates from a JSON list of texts, or from a table (CSV, JSONL ...) with a column `text` or `prompt`.

    A gap is a bracketed name such as "[INSERT PROMPT HERE]", "{prompt}" or "{{ prompt }}". Texts that repeat are
    read once.

    Args:
        path: the file, or a set on the hub at a revision: `hf:owner/name[:[config/]split]@revision`.

    Raises:
        DataError: with every fault of the file: not readable, no such column (with those found), empty texts.
    """
    found: dict[str, WildTemplate] = {}
    faults: list[str] = []
    for where, text in _texts(str(path)):
        fault = text.fault if isinstance(text, BadRow) else text_fault(text)
        if fault is not None:
            faults.append(f"{where}: {fault}")
        elif not isinstance(text, BadRow):
            name = f"{file_stem(Path(path))}/{len(found)}"
            found.setdefault(text, WildTemplate(name, tuple(_GAP.split(text))))
    _refuse(path, faults)
    if not found:
        raise DataError(f"{path} holds no templates: it needs at least one.")
    return list(found.values())


def load_artifacts(path: str | Path) -> tuple[list[Artifact], int | None]:
    """(prompts of an attacker, how many goals of the file have none), from a file in JailbreakBench's artifact format;
    or (`.jsonl`) from the `successful_prompts.jsonl` of an attack, which does not say how many have none: None.

    The first is a JSON object whose list `jailbreaks` has objects with `goal` and `prompt`; `category` is read where it
    is there. A goal whose prompt is null was not attacked. Of the second each prompt is read once, however often it
    broke its behaviour.

    Raises:
        DataError: with every fault of the file; or it holds no prompts.
    """
    path = Path(path)
    if is_of_attack(path):
        return _kept_prompts(path), None
    data = _json(path)
    rows = data.get("jailbreaks") if isinstance(data, Mapping) else None
    if not isinstance(rows, list):
        keys = ", ".join(map(repr, data)) if isinstance(data, Mapping) else f"a JSON {type(data).__name__}"
        raise DataError(f"{path}: expected a JSON object with a list `jailbreaks`, found {keys}.")
    artifacts: list[Artifact] = []
    faults: list[str] = []
    n_without = 0
    for i, row in enumerate(rows):
        where = f"{path} jailbreaks[{i}]"
        lacking = [key for key in ARTIFACT_KEYS if not isinstance(row, Mapping) or key not in row]
        if lacking:
            keys = ", ".join(map(repr, row)) if isinstance(row, Mapping) else type(row).__name__
            faults.append(f"{where}: expected the keys 'goal' and 'prompt', found {keys}")
        elif row["prompt"] is None:
            n_without += 1
        else:
            no_text = [key for key in ARTIFACT_KEYS if not isinstance(row[key], str)]
            if no_text:
                faults.append(f"{where}: {no_text[0]!r} is {row[no_text[0]]!r}: it must be text")
                continue
            texts = [row[key] for key in ARTIFACT_KEYS]
            faults += [f"{where}: {fault}" for fault in map(text_fault, texts) if fault is not None]
            number = row.get("index", i)
            category = str(row.get("category") or "uncategorised")
            prompt: Prompt = ({"role": "user", "content": texts[1]},)
            artifacts.append(Artifact(f"{file_stem(path)}/{number}", texts[0].strip(), category, prompt))
    repeated = sorted({a.id for a in artifacts if sum(a.id == b.id for b in artifacts) > 1})
    faults += [f"{path}: the index of {name} is there more than once" for name in repeated]
    _refuse(path, faults)
    if not artifacts:
        raise DataError(f"{path} holds no prompts: all {n_without} goals have none.")
    return artifacts, n_without


def is_of_attack(path: str | Path) -> bool:
    """Whether a file of finished prompts is read as an attack's own, which is private, and not as artifacts."""
    return Path(path).suffix.lower() == ".jsonl"


def _kept_prompts(path: Path) -> list[Artifact]:
    """Each prompt once; its id is of the texts alone, so that prompts of several attacks go into one training."""
    found: dict[str, Artifact] = {}
    for row in successful_prompts(path):
        behavior, prompt = row["behavior"].strip(), tuple(row["prompt"])
        texts = json.dumps([behavior, prompt], sort_keys=True)
        name = f"{file_stem(path)}/{hashlib.sha256(texts.encode()).hexdigest()[:12]}"
        found.setdefault(name, Artifact(name, behavior, "uncategorised", prompt))
    if not found:
        raise DataError(f"{path} holds no prompts: the attack broke nothing.")
    return list(found.values())


def successful_prompts(path: str | Path) -> list[dict[str, Any]]:
    """The rows of an attack's `successful_prompts.jsonl` after its header, each with `behavior_id`, `behavior` and
    `prompt` (its messages).

    Raises:
        DataError: the file is not there, or is no such file; or with every fault of its rows.
    """
    if not Path(path).is_file():
        raise DataError(f"No file at {path}: check the path.")
    rows = read_jsonl(path)
    if not rows or rows[0].get("kind") != SUCCESSES_KIND:
        raise DataError(f"{path} is not the successful_prompts.jsonl of an attack: name one, or a JSON of artifacts.")
    _refuse(path, [f"{path}:{i}: {fault}" for i, row in enumerate(rows[1:], start=2) for fault in _row_faults(row)])
    return rows[1:]


def _row_faults(row: Mapping[str, Any]) -> Iterator[str]:
    if not set(row) >= SUCCESS_KEYS:
        yield f"expected behavior_id, behavior and prompt, found {json.dumps(list(row))}"
        return
    behavior = row["behavior"]
    fault = text_fault(behavior) if isinstance(behavior, str) else f"is {behavior!r}: it must be text"
    if fault is not None:
        yield f"`behavior`: {fault}"
    yield from prompt_faults("prompt", row["prompt"])


def _refuse(path: str | Path, faults: Sequence[str]) -> None:
    if faults:
        raise DataError(f"{path} has {len(faults)} fault(s); nothing was read:", shown_faults(faults))


def _texts(source: str) -> list[tuple[str, str | BadRow]]:
    path = Path(source)
    if source.startswith(HUB):
        rows: Sequence[tuple[str, Any]] = pinned_rows(source)
    else:
        data = _json(path) if path.suffix.lower() == ".json" else None
        if isinstance(data, list) and all(isinstance(text, str) for text in data):
            return [(f"{path} row {number}", text) for number, text in enumerate(data, start=1)]
        rows = read_rows(path, "template")
    names = list(dict.fromkeys(key for _, row in rows if isinstance(row, Mapping) for key in row))
    column = next((name for name in TEXT_COLUMNS if name in names), None)
    if column is None:
        raise DataError(
            f"{source}: no column of templates. Found: {', '.join(map(repr, names)) or 'none'}; expected one of "
            f"{', '.join(map(repr, TEXT_COLUMNS))}, or a JSON list of texts."
        )
    return [(where, row if isinstance(row, BadRow) else str(row.get(column) or "")) for where, row in rows]


def _json(path: Path) -> Any:
    if not path.is_file():
        raise DataError(f"No file at {path}: check the path.")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): save it as UTF-8."
        ) from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not valid JSON: {error.msg} at column {error.colno}.") from error
