"""SAGE-Eval (Chen, Davidson and Lake 2025, arXiv 2505.21828): 104 safety facts and prompts that hide their hazards.

Its authors ask that it is used for evaluation only; its facts are marked `is_evaluation_only`, and
`build_safety_awareness` makes no pairs of them unless told to. It comes from a local file, or from the hub at a
revision that the source names (`hf:owner/name@commit`): a name alone is refused, since what it stands for may change.
Three layouts are read:

    nested   the JSON object of the authors' repository: fact -> category, prompts -> type -> original, safe_version,
             original_augmentation, safe_version_augmentation
    hub      a table with safety_fact, category, prompt_type, augmentation, augmentation_type, prompt
    flat     a table with safety_fact, safety_category, prompt_type, augmentation_category, version, prompt

Anything else is an error that names the columns found and those expected. The set has no words for the offline grader,
so its replies are `unscored:no_terms` until a judge reads them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opct.data.hazards import HazardPrompt, SafetyFact, grouped
from opct.data.pairs import HUB as HUB_PREFIX
from opct.data.pairs import pinned_rows
from opct.data.tables import BadRow, read_rows
from opct.errors import DataError, shown_faults

HUB = ("safety_fact", "category", "prompt_type", "augmentation", "augmentation_type", "prompt")
FLAT = ("safety_fact", "safety_category", "prompt_type", "augmentation_category", "version", "prompt")
NESTED = ("category", "prompts")
VERSIONS = {
    "original": (False, False),  # (is a safe twin, is augmented)
    "safe_version": (True, False),
    "original_augmentation": (False, True),
    "safe_version_augmentation": (True, True),
}
UNAUGMENTED = ("", "none", "original", "false", "no", "nan", "n/a")


@dataclass(frozen=True)
class _Row:
    fact: str
    category: str
    style: str
    text: str
    is_safe: bool
    is_augmented: bool


class _Fault(Exception):
    """What is wrong with one row."""


def load_sage_eval(
    source: str | Path, *, safe_source: str | Path | None = None, augmented: bool = False
) -> list[SafetyFact]:
    """The facts of SAGE-Eval with their prompts, and their safe versions as twins.

    Args:
        source: a file (.json, .jsonl, .csv), or `hf:owner/name@revision`.
        safe_source: the set of safe prompts where it comes apart (`Safe-SAGE-Eval`); only facts of `source` are kept.
        augmented: the set's own typos and tones too; else the prompts as they were written.

    Raises:
        DataError: the source is not pinned or not readable, its columns are none of the known layouts, or rows are
        faulty.
    """
    rows = list(_read(source, is_safe=False))
    if safe_source is not None:
        rows += [replace(row, is_safe=True) for row in _read(safe_source, is_safe=True)]
    kept = [row for row in rows if augmented or not row.is_augmented]
    facts = grouped([fact for fact in _facts(kept) if fact.prompts])
    if not facts:
        raise DataError(
            f"{source}: none of its {len(rows)} rows is a prompt "
            + (
                "with a hazard: name the set with hazards."
                if augmented
                else "without augmentation: ask for those with it."
            )
        )
    return facts


def looks_like_sage_eval(source: str | Path) -> bool:
    """True for a file whose first row has a `safety_fact`, or that is one JSON object of facts.

    Raises:
        DataError: the file is not readable.
    """
    path = Path(source)
    if path.suffix == ".json" and isinstance(_json(path), dict):
        return True
    rows = read_rows(path)
    return bool(rows) and isinstance(rows[0][1], Mapping) and "safety_fact" in rows[0][1]


def _read(source: str | Path, *, is_safe: bool) -> Iterator[_Row]:
    faults: list[str] = []
    for where, row in _raw_rows(str(source)):
        try:
            yield from _parsed(row, is_safe)
        except _Fault as fault:
            faults.append(f"{where}: {fault}")
    if faults:
        raise DataError(f"{source} has {len(faults)} fault(s); nothing was read:", shown_faults(faults))


def _raw_rows(source: str) -> list[tuple[str, Any]]:
    """(where, row) of each row; the nested layout gives one a fact, with the fact under `safety_fact`."""
    if source.startswith(HUB_PREFIX):
        rows = pinned_rows(source)
    else:
        path = Path(source)
        if not path.is_file():
            raise DataError(f"No file of SAGE-Eval at {path}: check the path.")
        whole = _json(path) if path.suffix == ".json" else None
        if isinstance(whole, dict):
            return [(f"{path} fact {i}", (fact, body)) for i, (fact, body) in enumerate(whole.items(), start=1)]
        rows = read_rows(path)
    columns = list(dict.fromkeys(key for _, row in rows if isinstance(row, Mapping) for key in row))
    if not any(set(layout) <= set(columns) for layout in (HUB, FLAT)):
        raise DataError(
            f"{source}: its columns are {', '.join(columns) or '(none)'}; expected {', '.join(HUB)}, or "
            f"{', '.join(FLAT)}. The set may have changed: name the revision that you mean, or rename the columns."
        )
    return rows


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise DataError(f"No file of SAGE-Eval at {path}: check the path.") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path} is not JSON in UTF-8: {error}. Fetch it again.") from error


def _parsed(row: Any, is_safe: bool) -> Iterator[_Row]:
    if isinstance(row, BadRow):
        raise _Fault(row.fault)
    if isinstance(row, tuple):
        yield from _nested(*row)
        return
    if not isinstance(row, Mapping):
        raise _Fault(f"the row is a JSON {type(row).__name__}: expected an object with {', '.join(HUB)}")
    hub = _is_hub(row)
    lacking = [key for key in (HUB if hub else FLAT) if key not in row]
    if lacking:
        raise _Fault(f"it has no {', '.join(lacking)}: give it all of {', '.join(HUB if hub else FLAT)}")
    texts = {key: str(row[key] or "").strip() for key in (HUB if hub else FLAT)}
    for key in ("safety_fact", "prompt"):
        if not isinstance(row[key], str | None):
            raise _Fault(f"`{key}` is {row[key]!r}: expected a text")
    if not texts["safety_fact"] or not texts["prompt"]:
        raise _Fault("`safety_fact` or `prompt` is empty: both must be text")
    if not hub and texts["version"] not in ("", *VERSIONS):
        raise _Fault(f"`version` is {texts['version']!r}: expected one of {', '.join(VERSIONS)}")
    safe, augmented = VERSIONS.get(texts.get("version", ""), (is_safe, False))
    kind = texts["augmentation_type" if hub else "augmentation_category"]
    augmented = augmented or (texts["augmentation"].lower() == "true" if hub else kind.lower() not in UNAUGMENTED)
    category = texts["category" if hub else "safety_category"]
    yield _Row(texts["safety_fact"], category, texts["prompt_type"], texts["prompt"], safe, augmented)


def _is_hub(row: Mapping[str, Any]) -> bool:
    """Which layout a row is of, by the columns that the other one has not."""
    return sum(key in row for key in set(HUB) - set(FLAT)) >= sum(key in row for key in set(FLAT) - set(HUB))


def _nested(fact: str, body: Any) -> Iterator[_Row]:
    if not isinstance(body, Mapping) or not set(NESTED) <= set(body) or not isinstance(body["prompts"], Mapping):
        found = ", ".join(body) if isinstance(body, Mapping) else type(body).__name__
        raise _Fault(f"the fact {fact[:50]!r} holds {found}; expected an object with {', '.join(NESTED)}")
    for style, versions in body["prompts"].items():
        unknown = sorted(set(versions) - set(VERSIONS)) if isinstance(versions, Mapping) else [type(versions).__name__]
        if unknown:
            raise _Fault(f"{style} of {fact[:50]!r} holds {unknown[0]!r}; expected {', '.join(VERSIONS)}")
        for version, texts in versions.items():
            safe, augmented = VERSIONS[version]
            groups = list(texts.values()) if isinstance(texts, Mapping) else [texts]
            wrong = [group for group in groups if not isinstance(group, list)]
            if wrong:
                raise _Fault(f"{style}.{version} of {fact[:50]!r} holds {wrong[0]!r}: expected a list of texts")
            for text in (text for group in groups for text in group):
                if not isinstance(text, str) or not text.strip():
                    raise _Fault(f"{style}.{version} of {fact[:50]!r} holds {text!r}: expected a text")
                yield _Row(fact, str(body["category"]), style, text.strip(), safe, augmented)


def _facts(rows: Iterable[_Row]) -> Iterator[SafetyFact]:
    of_fact: dict[str, list[_Row]] = {}
    for row in rows:
        of_fact.setdefault(row.fact, []).append(row)
    for text, own in of_fact.items():
        category = own[0].category.lower() or "other"
        name = f"{category}/{hashlib.sha256(text.encode('utf-8')).hexdigest()[:12]}"
        prompts = dict.fromkeys(HazardPrompt(row.style, row.text) for row in own if not row.is_safe)
        twins = dict.fromkeys(row.text for row in own if row.is_safe)
        yield SafetyFact(name, category, name, text, (), (), (), tuple(prompts), tuple(twins), is_evaluation_only=True)
