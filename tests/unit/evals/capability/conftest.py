"""Small data of our own in the formats of the benchmarks, and a run of their tasks on a scripted model."""

from __future__ import annotations

import csv
import gzip
import json
import os
from pathlib import Path

import pytest

from opct.evals.capability.sources import DATA_FOLDER

SHARED_DATA = Path(os.environ.get("OPCT_SHARED_DATA", Path(__file__).resolve().parents[5] / "shared" / "data"))

GSM8K = [
    {
        "question": f"Mia has {i} pens and buys {i + 1} more. How many has she?",
        "answer": f"{i}+{i + 1}\n#### {2 * i + 1}",
    }
    for i in range(1, 7)
]
MATH500 = [
    {"unique_id": f"test/algebra/{i}.json", "problem": f"Halve the fraction $\\frac{{1}}{{{i}}}$.", "solution": "...",
     "correct_answer": f"\\frac{{1}}{{{2 * i}}}", "subject": "Algebra", "level": 1}
    for i in range(1, 7)
]  # fmt: skip
MMLU = [
    {"split": split, "subject": f"subject_{i % 3}", "question": f"Which of these is thing {i} of {split}?",
     "choices": [f"thing {i + k}" for k in range(4)], "answer": 0}
    for split in ("dev", "test") for i in range(8)
]  # fmt: skip
TRUTHFULQA = [
    ["Adversarial", "Myths", f"What happens if you do deed {i}?", f"Nothing happens {i}", f"You turn to stone {i}",
     f"Nothing happens {i}; Nothing", f"You turn to stone {i}; You fly", "https://example.org"]
    for i in range(8)
]  # fmt: skip
COMMONSENSEQA = [
    {"id": f"{i:032x}", "question": f"Where would you put item {i}?", "question_concept": "item",
     "choices": {"label": list("ABCDE"), "text": [f"place {i}{k}" for k in range(5)]}, "answerKey": "C"}
    for i in range(8)
]  # fmt: skip
GPQA = [[f"What is quantity {i}?", f"{i} m", f"{i + 1} m", f"{i + 2} m", f"{i + 3} m", "Physics"] for i in range(4)]
IFEVAL = [
    {"key": 1, "prompt": "Name a fruit. No commas.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
    {"key": 2, "prompt": "Name three fruits in at least 3 sentences. No commas.",
     "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_sentences"],
     "kwargs": [{"num_words": None}, {"relation": "at least", "num_sentences": 3}]},
    {"key": 3, "prompt": "Say hello in a sentence with the word tree, and give a title in <<double brackets>>.",
     "instruction_id_list": ["keywords:existence", "detectable_format:title"],
     "kwargs": [{"keywords": ["tree"]}, {}]},
]  # fmt: skip


def write_jsonl(path: Path, rows: list) -> None:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_csv(path: Path, header: list, rows: list) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all benchmarks under their usual names, which the environment names."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    write_jsonl(folder / "gsm8k_test.jsonl", GSM8K)
    write_jsonl(folder / "math500_test.jsonl", MATH500)
    write_jsonl(folder / "mmlu_dev_val_test.jsonl.gz", MMLU)
    write_jsonl(folder / "commonsenseqa_val.jsonl.gz", COMMONSENSEQA)
    write_jsonl(folder / "ifeval_input_data.jsonl", IFEVAL)
    header = ["Type", "Category", "Question", "Best Answer", "Best Incorrect Answer"]
    write_csv(folder / "TruthfulQA.csv", [*header, "Correct Answers", "Incorrect Answers", "Source"], TRUTHFULQA)
    header = ["Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"]
    write_csv(folder / "gpqa_diamond.csv", [*header, "High-level domain"], GPQA)
    monkeypatch.setenv(DATA_FOLDER, str(folder))
    return folder


@pytest.fixture
def run_task(tmp_path: Path):
    """Runs a task on a scripted model; returns its records, its rows by metric, and its settings."""
    from opct.evals.inspect_runner import Counter, run_inspect
    from opct.evals.metrics import metric_rows
    from opct.evals.samples import graded_samples

    def run(task, policy):
        (log,) = run_inspect([task], policy, tmp_path / "logs", 16, Counter(None, 0))
        records = graded_samples(log)
        rows = metric_rows(records, {})
        return records, {row["metric"]: row for row in rows}, log.eval.metadata

    return run
