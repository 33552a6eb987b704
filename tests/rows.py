"""Files of rows."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path


def jsonl(path: Path, *rows: object) -> Path:
    """Write a row a line: JSON, and a text as it is."""
    lines = (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def table(path: Path, *rows: Iterable[object]) -> Path:
    """Write a header and rows as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path
