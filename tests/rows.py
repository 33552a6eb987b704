"""Files of rows."""

import json
from pathlib import Path


def jsonl(path: Path, *rows: object) -> Path:
    """Write a row a line: JSON, and a text as it is."""
    lines = (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
