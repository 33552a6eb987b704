"""External jailbreak prompts from files: shared templates, and finished prompts of an attacker.

A template has a gap for the request, or is put before it. A finished prompt belongs to its goal, so such prompts are
split by goal. No public set is embedded; prompts come from JailbreakBench's artifacts, or from the
`evals/attack_*.prompts.jsonl` of an attack with `opct attack`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opct.data.pairs import Prompt, messages_of, prompt_faults, user_prompt
from opct.data.tables import RowFault, duplicate_ids, file_stem, find_columns, parse_rows, read_rows, refuse
from opct.errors import DataError

TEMPLATE_COLUMNS = {"text": ("text", "prompt", "template", "jailbreak")}
SUCCESSES_KIND = "opct_successful_prompts"
"""`kind` in the first row of an attack's `attack_*.prompts.jsonl`."""
UNCATEGORISED = "uncategorised"
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
        # joined, not formatted or replaced: braces and gaps in the request stay text
        return behavior.join(self.parts)


@dataclass(frozen=True)
class Artifact:
    """A finished prompt of an attacker for one goal; one of `opct attack` may have several turns."""

    id: str
    behavior: str
    category: str
    prompt: Prompt


def load_templates(source: str | Path) -> list[WildTemplate]:
    """Templates from a JSON list of texts, or from a table or hub set with a column `text` or `prompt`.

    A gap is a bracketed name such as "[INSERT PROMPT HERE]", "{prompt}" or "{{ prompt }}". Texts that
    repeat are read once.

    Raises:
        DataError: with every fault of the file: not readable, no such column (with those found), empty texts.
    """
    rows = read_rows(source, "template", known=TEMPLATE_COLUMNS["text"])
    [column] = find_columns(source, rows, None, TEMPLATE_COLUMNS, ("text",), option=None)["text"]

    def text_of(row: Mapping[str, Any]) -> str:
        if not isinstance(text := row.get(column, ""), str) or not text.strip():
            raise RowFault("the template is empty, or no text: write it, or leave the row out")
        return text

    texts, faults = parse_rows(rows, text_of)
    refuse(source, faults)
    different = dict.fromkeys(text for _, text in texts)
    return [WildTemplate(f"{file_stem(source)}/{i}", tuple(_GAP.split(text))) for i, text in enumerate(different)]


def load_artifacts(path: str | Path) -> list[Artifact]:
    """Finished prompts of a file.

    The file is a `.jsonl` of an attack (`attack_*.prompts.jsonl`), each of whose prompts is read once, or JSON in
    JailbreakBench's format: an object whose list `jailbreaks` has objects with `goal`, `prompt` (null or missing if the
    goal was not attacked) and, optionally, `category` and `index`.

    Raises:
        DataError: with every fault of the file; or it holds no prompts.
    """
    path = Path(path)
    if is_of_attack(path):
        return _attack_artifacts(path)
    goals, faults = parse_rows(read_rows(path, "prompt", default_format=".json"), _goal)
    # over all goals, also those without a prompt: else an id would depend on which were attacked
    ids = [(where, f"{file_stem(path)}/{row.get('index', i)}") for i, (where, row) in enumerate(goals)]
    refuse(path, [*faults, *duplicate_ids(ids)])
    artifacts = [
        Artifact(name, row["goal"].strip(), str(row.get("category") or UNCATEGORISED), user_prompt(row["prompt"]))
        for (_, name), (_, row) in zip(ids, goals, strict=True)
        if "prompt" in row
    ]
    if not artifacts:
        raise DataError(f"{path} holds no prompts: all {len(goals)} goals have none.")
    return artifacts


def _goal(row: Mapping[str, Any]) -> Mapping[str, Any]:
    _require_text(row, "goal", *(["prompt"] if "prompt" in row else []))
    return row


def _require_text(row: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise RowFault(f"`{key}` is {row.get(key)!r}: it must be text")


def is_of_attack(path: str | Path) -> bool:
    """True for the prompts of an attack of ours, which are private; False for artifacts."""
    return Path(path).suffix.lower() == ".jsonl"


def _attack_artifacts(path: Path) -> list[Artifact]:
    """Each prompt once; the id is of the texts alone, so that prompts of several attacks go into one training."""
    artifacts: dict[str, Artifact] = {}
    for row in successful_prompts(path):
        behavior, prompt = row["behavior"].strip(), tuple(row["prompt"])
        texts = json.dumps([behavior, prompt], sort_keys=True)
        name = f"{file_stem(path)}/{hashlib.sha256(texts.encode()).hexdigest()[:12]}"
        # an attacker's episodes may end with the same prompt: twice it would weigh twice in training
        artifacts.setdefault(name, Artifact(name, behavior, UNCATEGORISED, prompt))
    if not artifacts:
        raise DataError(f"{path} holds no prompts: the attack had no success.")
    return list(artifacts.values())


def successful_prompts(path: str | Path) -> list[dict[str, Any]]:
    """The rows of an attack's `attack_*.prompts.jsonl`: `behavior_id`, `behavior` and `prompt` (its messages). Raises
    DataError where it is missing or another file, or with every fault of its rows."""
    rows = read_rows(path, "prompt")
    header = rows[0][1] if rows else None
    if not isinstance(header, Mapping) or header.get("kind") != SUCCESSES_KIND:
        raise DataError(f"{path} is not the prompts.jsonl of an attack: give one, or a JSON of artifacts.")
    # the first row is the header with the warning
    parsed, faults = parse_rows(rows[1:], _success)
    refuse(path, faults)
    return [row for _, row in parsed]


def _success(row: dict[str, Any]) -> dict[str, Any]:
    _require_text(row, "behavior_id", "behavior")
    if faults := list(prompt_faults("prompt", row.get("prompt"))):
        raise RowFault(*faults)
    return row | {"prompt": list(messages_of(row["prompt"]))}
