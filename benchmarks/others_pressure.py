"""Pairs of biased and clean prompts from three public sets, for `opct eval --suite sycophancy_pairs`:

    python -m benchmarks.others_pressure --data FOLDER --out runs/others_pressure.jsonl
    opct eval RUN --suite sycophancy_pairs --data sycophancy_pairs=runs/others_pressure.jsonl

Questions, options and pressure are those of the sets' authors, and no pair of opct is made from them. FOLDER has

    truthfulqa_suggested_answer.jsonl  raybears/cot-transparency: the user suggests an option, in TruthfulQA
    bct_non_cot.jsonl                  the same, in science, commonsense and logic; right is what its authors train on
    control_non_cot.jsonl              the same questions without the suggestion
    political_typology.jsonl           kennyegan/Mitigating-Sycophancy (Anthropic's model-written evals): the user tells
                                       who they are before a political question that has no right answer

Taken are prompts in which an option that is not the answer is suggested, not those that doubt one. The request for
a chain of thought at the end of TruthfulQA's prompts is replaced by one for the letter.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opct.data.pairs import ContrastivePair, user_prompt, write_pairs
from opct.data.perturb.sycophancy import AXIS, FORMATS
from opct.data.questions import first_items

LETTER_ONLY = "\n" + FORMATS["choice"].instruction
OPTION = re.compile(r"^ ?\(([A-J])\) (.+?)$", re.MULTILINE)
DOUBT = re.compile(r"n't|n’t|\bnot\b|doubt|hate|hesita|upset|surpris|sad\b|skeptic|unlikely|wrong", re.IGNORECASE)
LETTER = re.compile(r"\b([A-J])\b(?=\W*$|\.|,| is| seems| would| but)")
QUOTED = re.compile(r"'(.+)'")


def made(
    source: str, number: int, prompt: str, clean: str, options: dict[str, str], suggested: str, right: str
) -> ContrastivePair:
    """One pair, with what `sycophancy_pairs` needs in `meta`."""
    meta: dict[str, Any] = {"question_id": f"{source}/{number}", "question": clean.split("\n")[0]}
    meta |= {"options": list(options.values()), "correct_option": right, "suggested_option": suggested}
    meta |= {"answer": options[right], "suggested": options[suggested], "is_evaluation_only": True}
    return ContrastivePair(f"{source}/{number}", AXIS, source, user_prompt(prompt), user_prompt(clean), meta)


def rows(path: Path) -> Iterator[tuple[int, Any]]:
    """The rows of a JSONL file with their numbers."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        yield number, json.loads(line)


def truthfulqa(folder: Path) -> Iterator[ContrastivePair]:
    """The user suggests a wrong option."""
    for number, row in rows(folder / "truthfulqa_suggested_answer.jsonl"):
        options = dict(OPTION.findall(row["original_question"]))
        texts = [row[side][0]["content"] for side in ("biased_question", "unbiased_question")]
        asked, clean = (text.partition("\n\nPlease think")[0] + LETTER_ONLY for text in texts)
        right, suggested = row["ground_truth"], row["biased_option"]
        if right != suggested and {right, suggested} <= options.keys():
            yield made("truthfulqa", number, asked, clean, options, suggested, right)


def bct(folder: Path) -> Iterator[ContrastivePair]:
    """The clean prompt is the biased one without the line that suggests an option, which the control prompt lacks."""
    controls = rows(folder / "control_non_cot.jsonl")
    for (number, row), (_, control) in zip(rows(folder / "bct_non_cot.jsonl"), controls, strict=True):
        (asked, reply), plain = (message["content"] for message in row["messages"]), control["messages"][0]["content"]
        options = dict(OPTION.findall(asked))
        own = [line for line in asked.split("\n") if line and line not in plain.split("\n")]
        said = [line for line in own if suggestion(line, options)]
        right = re.search(r"\b([A-J])\)", reply)
        if len(said) != 1 or DOUBT.search(said[0]) or right is None or right[1] not in options:
            continue
        suggested = suggestion(said[0], options)
        if suggested is not None and suggested != right[1]:
            clean = "\n".join(line for line in asked.split("\n") if line != said[0])
            yield made("bct", number, asked, clean, options, suggested, right[1])


def suggestion(line: str, options: dict[str, str]) -> str | None:
    """The letter of the option that a line names, by its text in quotes or by its letter."""
    if quoted := QUOTED.search(line):
        return next((letter for letter, text in options.items() if text == quoted[1]), None)
    letters = [letter for letter in LETTER.findall(line) if letter in options]
    return letters[-1] if letters else None


def political(folder: Path) -> Iterator[ContrastivePair]:
    """The user's person suggests an option; the clean prompt has no person."""
    for number, row in rows(folder / "political_typology.jsonl"):
        asked, clean = (
            re.sub(r"<\|start_header_id\|>.*?<\|end_header_id\|>|<\|.*?\|>", "", row[side]).strip()
            for side in ("biased_prompt", "neutral_prompt")
        )
        asked = re.sub(r"\n (?=\()", "\n", asked.removesuffix("Answer:").strip())
        options = dict(OPTION.findall(clean))
        suggested, other = (row[name].strip(" ()") for name in ("sycophantic_target", "honest_target"))
        yield made("political", number, asked + LETTER_ONLY, clean + LETTER_ONLY, options, suggested, other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the three sets")
    parser.add_argument("--out", type=Path, default=Path("runs/others_pressure.jsonl"))
    parser.add_argument("--n", type=int, default=100, help="pairs of each set, chosen by a hash of their number")
    args = parser.parse_args()
    pairs: list[ContrastivePair] = []
    for source in (truthfulqa, bct, political):
        found = list(source(args.data))
        print(f"{source.__name__}: {len(found)} usable, {min(args.n, len(found))} taken")
        pairs += first_items(found, args.n, seed=0)
    write_pairs(args.out, pairs)
    print(args.out)


if __name__ == "__main__":
    main()
