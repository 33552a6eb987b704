"""Pairs of a biased and a clean prompt from three public sets, for the suite `sycophancy_pairs`:

    python -m benchmarks.public_sycophancy --data FOLDER --out runs/public_sycophancy.jsonl
    opct eval RUN --suite sycophancy_pairs --data sycophancy_pairs=runs/public_sycophancy.jsonl

The questions, the options and the pressure are those of the sets' authors. No pair of opct is made from them. FOLDER
holds these files of two GitHub repositories:

    truthfulqa_suggested_answer.jsonl  raybears/cot-transparency (MIT): the user suggests an option in TruthfulQA
    bct_non_cot.jsonl                  the same repository: the user suggests an option in science, logic and others
    control_non_cot.jsonl              the same questions without the suggestion
    political_typology.jsonl           kennyegan/Mitigating-Sycophancy (MIT; from Anthropic's model-written evals,
                                       CC-BY-4.0): the user first says who they are, then asks about politics

The request at the end of each prompt is replaced by one for the letter. Prompts that doubt an option or suggest the
answer are left out. Read `biased_rate_rise` of each set. Only TruthfulQA has answers that make accuracy meaningful:
`correct_option` of bct is what its authors train on, and of a political question the option that the user would reject.
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

LETTER_ONLY = FORMATS["choice"].instruction
OPTION = re.compile(r"^ ?\(([A-J])\) (.+?)$", re.MULTILINE)
COT = re.compile(r"\n\nPlease think step by step.*?stick to this format\.|\n\nLet's think step by step:", re.DOTALL)
DOUBT = re.compile(
    r"n't|n’t|\bnot\b|doubt|hate|hesita|upset|surpris|skeptic|unlikely|wrong|\bnever\b|other than|no way|misconception",
    re.IGNORECASE,
)
NO_DOUBT = re.compile(r"^I'm not sure, but perhaps|^I am not sure, but perhaps|sad if the answer isn't", re.IGNORECASE)
LETTER = re.compile(r"\b([A-J])\b(?=\W*$|\.|,| is| seems| would| but)")
QUOTED = re.compile(r"'(.+)'")


def rows(path: Path) -> Iterator[tuple[int, Any]]:
    """The rows of a JSONL file with their numbers."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        yield number, json.loads(line)


def pair(source: str, number: int, asked: str, clean: str, suggested: str, right: str) -> ContrastivePair | None:
    """The pair of two prompts without their instruction; None if nothing is suggested, or the right option is."""
    options = dict(OPTION.findall(clean))
    if suggested == right or not {suggested, right} <= options.keys() or asked == clean:
        return None
    meta = {
        "question_id": f"{source}: {clean}",
        "options": list(options.values()),
        "correct_option": right,
        "suggested_option": suggested,
        "is_evaluation_only": True,
    }
    prompts = (user_prompt(f"{text}\n{LETTER_ONLY}") for text in (asked, clean))
    return ContrastivePair(f"{source}/{number}", AXIS, source, *prompts, meta)


def truthfulqa(folder: Path) -> Iterator[ContrastivePair | None]:
    """The user suggests a wrong option."""
    for number, row in rows(folder / "truthfulqa_suggested_answer.jsonl"):
        asked, clean = (
            COT.sub("", row[side][0]["content"]).strip() for side in ("biased_question", "unbiased_question")
        )
        yield pair("truthfulqa", number, asked, clean, row["biased_option"], row["ground_truth"])


def bct(folder: Path) -> Iterator[ContrastivePair | None]:
    """One line suggests an option. The clean prompt is the same without it; the control prompt tells which it is."""
    controls = rows(folder / "control_non_cot.jsonl")
    for (number, row), (_, control) in zip(rows(folder / "bct_non_cot.jsonl"), controls, strict=True):
        (text, reply), plain = (message["content"] for message in row["messages"]), control["messages"][0]["content"]
        options, lines = dict(OPTION.findall(text)), text.split("\n")
        said = [line for line in lines if line and line not in plain.split("\n") and suggestion(line, options)]
        right = re.search(r"\b([A-J])\)", reply)
        if len(said) != 1 or (DOUBT.search(said[0]) and not NO_DOUBT.search(said[0])) or right is None:
            continue
        last = max(i for i, line in enumerate(lines) if OPTION.match(line))
        asked = [line for i, line in enumerate(lines) if i <= last or line == said[0]]  # without the instruction
        clean = [line for line in asked if line != said[0]]
        suggested = suggestion(said[0], options)
        assert suggested is not None
        yield pair("bct", number, "\n".join(asked).strip(), "\n".join(clean).strip(), suggested, right[1])


def suggestion(line: str, options: dict[str, str]) -> str | None:
    """The letter of the option that a line names, by its text in quotes or by its letter."""
    if quoted := QUOTED.search(line):
        return next((letter for letter, text in options.items() if text == quoted[1]), None)
    letters = [letter for letter in LETTER.findall(line) if letter in options]
    return letters[-1] if letters else None


def political(folder: Path) -> Iterator[ContrastivePair | None]:
    """The user says who they are. Rows whose clean question is not a whole sentence of the biased one are left out."""
    for number, row in rows(folder / "political_typology.jsonl"):
        asked, clean = (
            re.sub(r"<\|start_header_id\|>.*?<\|end_header_id\|>|<\|.*?\|>", "", row[side]).strip()
            for side in ("biased_prompt", "neutral_prompt")
        )
        asked = re.sub(r"\n (?=\()", "\n", asked.removesuffix("Answer:").strip())
        person = asked.removesuffix(clean).rstrip()
        suggested, other = (row[name].strip(" ()") for name in ("sycophantic_target", "honest_target"))
        if person != asked and person.endswith((".", "!", "?")) and clean[:1].isupper():
            yield pair("political", number, asked, clean, suggested, other)


SETS = {"truthfulqa": truthfulqa, "bct": bct, "political": political}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the four files")
    parser.add_argument("--out", type=Path, default=Path("runs/public_sycophancy.jsonl"))
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--n", type=int, default=100, help="pairs of each set, chosen by a hash of their number")
    args = parser.parse_args()
    chosen: list[ContrastivePair] = []
    for source in map(SETS.__getitem__, args.sets):
        usable = [one for one in source(args.data) if one is not None]
        own = first_items(usable, args.n, seed=0)
        questions = len({one.meta["question_id"] for one in own})
        print(f"{source.__name__}: {len(own)} of {len(usable)} usable pairs, {questions} questions")
        chosen += own
    write_pairs(args.out, chosen)
    print(args.out)


if __name__ == "__main__":
    main()
