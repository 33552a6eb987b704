"""Export pairs as rows for ms-swift, TRL, verl and prime-rl.

    ms-swift    the rows of its on-policy self-distillation: messages, and teacher_prompt, the teacher's last user turn
    trl         the rows of `opct.integrations.trl.OPCTTrainer`: prompt, teacher_prompt, and the pair's id
    verl        the rows of its RLHFDataset: data_source, prompt, ability, reward_model, extra_info
    prime-rl    the rows of a verifiers dataset: prompt, answer, info

verl and prime-rl show the policy and its teacher the same prompt. `teacher_prompt` is in the rows, under `extra_info`
and `info`, for a trainer that is configured to use it. Pairs that the rows cannot express are left out and counted:
turns that the policy answers itself, and prefills, which the trainers would close before a new turn; for ms-swift
prompts that differ elsewhere than in the last turn.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from opct.data.pairs import ContrastivePair
from opct.errors import DataError, shown_faults
from opct.runs.io import atomic_write, write_jsonl

Format = Literal["ms-swift", "trl", "verl", "prime-rl"]
SUFFIXES = (".parquet", ".jsonl")
WITH_ANSWER = ("verl", "prime-rl")
"""Formats whose rows have a ground truth."""


def export_pairs(pairs: Sequence[ContrastivePair], format: Format, path: Path) -> tuple[int, list[str]]:
    """Write the rows; returns their number, and the ids of pairs that cannot be exported.

    Args:
        path: ends with .parquet or .jsonl.

    Raises:
        DataError: another ending, pyarrow is not installed, no pair is left, or an answer is neither text nor number.
    """
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path}: the file's name must end with {' or '.join(SUFFIXES)}, which say what it is.")
    left_out = [pair.id for pair in pairs if not _is_expressible(pair, format)]
    exportable = [pair for pair in pairs if _is_expressible(pair, format)]
    faults = [f"{pair.id}: {pair.meta['answer']!r}" for pair in exportable if _answer(pair) is None]
    if faults and format in WITH_ANSWER:
        raise DataError(
            f"`meta.answer` becomes the ground truth, one text; in {len(faults)} pair(s) it is neither text nor a "
            "number, nothing was written. Put one of the answers there, or leave the key out:",
            shown_faults(faults),
        )
    if not exportable:
        raise DataError(
            f"None of the {len(pairs)} pairs can be exported: {format} has no turns that the policy answers itself, no "
            "prefills"
            + ("." if format != "ms-swift" else ", and no teacher's prompt that differs before the last turn.")
        )
    rows = [_row(pair, i, format) for i, pair in enumerate(exportable)]
    if path.suffix == ".jsonl":
        write_jsonl(path, rows)
    else:
        atomic_write(path, _parquet(rows))
    return len(rows), left_out


def _is_expressible(pair: ContrastivePair, format: Format) -> bool:
    """True if every turn is given, the last one asks for an answer, and the format has the teacher's prompt."""
    prompt, teacher_prompt = list(pair.prompt), list(pair.teacher_prompt)
    if any(message["content"] is None for message in prompt) or prompt[-1]["role"] == "assistant":
        return False
    last_turns_differ_alone = prompt[:-1] == teacher_prompt[:-1] and teacher_prompt[-1]["role"] == "user"
    return format != "ms-swift" or (last_turns_differ_alone and prompt[-1]["role"] == "user")


def _row(pair: ContrastivePair, index: int, format: Format) -> dict[str, Any]:
    prompt, teacher_prompt = list(pair.prompt), list(pair.teacher_prompt)
    match format:
        case "ms-swift":  # 4.6: `teacher_prompt` takes the place of the last user message
            return {"id": pair.id, "messages": prompt, "teacher_prompt": teacher_prompt[-1]["content"]}
        case "trl":
            return {"id": pair.id, "prompt": prompt, "teacher_prompt": teacher_prompt}
        case "verl":  # `RLHFDataset`; `meta` is JSON text, since its fields vary by pair
            return {
                "data_source": f"opct/{pair.axis}",
                "prompt": prompt,
                "ability": pair.axis,
                "reward_model": {"style": "rule", "ground_truth": _answer(pair)},
                "extra_info": {
                    "index": index,
                    "id": pair.id,
                    "family": pair.family,
                    "teacher_prompt": teacher_prompt,
                    "meta": json.dumps(pair.meta, ensure_ascii=False),
                },
            }
        case "prime-rl":  # `info` is JSON text, which verifiers makes an object
            info = {"index": index} | pair.to_json()
            del info["prompt"]  # a column of its own
            return {"prompt": prompt, "answer": _answer(pair), "info": json.dumps(info, ensure_ascii=False)}


def _answer(pair: ContrastivePair) -> str | None:
    """`meta.answer` as text, empty if the pair has none; None if it is neither text nor a number."""
    answer = pair.meta.get("answer")
    if answer is None:
        return ""
    return str(answer) if isinstance(answer, str | int | float) and not isinstance(answer, bool) else None


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(
            "Writing parquet needs pyarrow, which comes with the datasets package: pip install 'opct[hub]'; or name a "
            ".jsonl file."
        ) from error
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()
