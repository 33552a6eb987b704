"""How far the rules that tell refusals and warnings agree with labels.

    python -m benchmarks.graders FOLDER

`FOLDER` holds `judge_labels/gptfuzz_responses_{train,eval}.csv` (https://github.com/sherdencooper/GPTFuzz),
`over_refusal/xstest_v2_completions_*.csv` (https://github.com/paul-rottger/exaggerated-safety),
`judge_labels/judge-comparison.csv` (JailbreakBench/JBB-Behaviors on the hub) and `jailbreak/pair_*.json`
(https://github.com/JailbreakBench/artifacts). Prints one row a set: replies, kappa with its 95% interval over prompts,
agreement, and what the rules leave unscored. No rule was written on the sets named unseen: their rows are in
`opct.evals.graders.versions`. The replies with warnings and without, beside this module, were written by hand, by one
author; their intervals are over facts. The short replies beside it are those of SmolLM2-135M, base and trained, to
embedded questions and to those of `benchmarks.own_questions` but for prices, which a rule was written on; most of them
under pressure, one a question; a language model labeled them without seeing a verdict.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from opct.data.hazards import builtin_facts
from opct.evals.graders.refusal import COMPLIED, REFUSED, grade_refusal
from opct.evals.graders.short_answer import grade_short
from opct.evals.graders.warning import WARNED, grade_warning
from opct.evals.judges.calibration import compare

Labeled = tuple[str, str, bool]
"""What the reply answers, the reply, and whether people say that it refuses."""
WARNINGS = Path(__file__).with_name("warning_replies.csv")
SHORT_REPLIES = Path(__file__).with_name("short_replies.csv")
FULL_REFUSAL, PARTIAL_REFUSAL = "2_full_refusal", "3_partial_refusal"


def xstest(path: Path) -> Iterator[Labeled]:
    """Replies that people call a full refusal or full compliance."""
    for row in _rows(path):
        if row["final_label"] != PARTIAL_REFUSAL:
            yield row["prompt"], row["completion"], row["final_label"] == FULL_REFUSAL


def gptfuzz(path: Path) -> Iterator[Labeled]:
    """Replies to role-play attacks; people say whether one is jailbroken."""
    for row in _rows(path):
        yield row["question"], row["Response"], row["label"] != "1"


def pair(path: Path) -> Iterator[Labeled]:
    """Replies to PAIR's attacks; a judge model says whether one is jailbroken, no person."""
    for row in json.loads(path.read_text(encoding="utf-8"))["jailbreaks"]:
        if row["response"]:
            yield row["goal"], row["response"], not row["jailbroken"]


def harmful_behaviors(path: Path) -> Iterator[Labeled]:
    """Replies to jailbreaks, the first 200 to harmful behaviors; most of three people say whether one succeeded."""
    for row in list(_rows(path))[:200]:
        yield row["goal"], row["target_response"], row["human_majority"] == "0"


def mistral(path: Path) -> Iterator[Labeled]:
    """`xstest` without and with guard rails."""
    yield from (*xstest(path), *xstest(path.with_name(path.name.replace("instruct", "guard"))))


SETS: dict[str, tuple[str, Callable[[Path], Iterator[Labeled]]]] = {
    "XSTest, Mistral, unseen": ("over_refusal/xstest_v2_completions_mistralinstruct.csv", mistral),
    "JailbreakBench, unseen": ("judge_labels/judge-comparison.csv", harmful_behaviors),
    "XSTest, Llama 2, original prompt": ("over_refusal/xstest_v2_completions_llama2orig.csv", xstest),
    "XSTest, Llama 2": ("over_refusal/xstest_v2_completions_llama2new.csv", xstest),
    "XSTest, GPT-4": ("over_refusal/xstest_v2_completions_gpt4.csv", xstest),
    "GPTFuzz, train": ("judge_labels/gptfuzz_responses_train.csv", gptfuzz),
    "GPTFuzz, eval": ("judge_labels/gptfuzz_responses_eval.csv", gptfuzz),
    "PAIR, Vicuna": ("jailbreak/pair_vicuna-13b-v1.5.json", pair),
    "PAIR, GPT-3.5": ("jailbreak/pair_gpt-3.5-turbo-1106.json", pair),
}


def warnings() -> dict[str, list[Labeled]]:
    """Sets of (fact, reply, whether it warns): written by hand, and the embedded facts with their own prompts."""
    sets: dict[str, list[Labeled]] = {"warnings, first": [], "warnings, later": []}
    for row in _rows(WARNINGS):
        sets[f"warnings, {row['written']}"].append((row["fact"], row["reply"], row["warns"] == "1"))
    own: list[Labeled] = []
    for fact in builtin_facts():
        harmless = [prompt.text for prompt in fact.prompts] + list(fact.counterparts)
        own += [(fact.id, fact.fact, True), *((fact.id, text, False) for text in harmless)]
    return sets | {"facts against prompts and twins": own}


def warned(labeled: list[Labeled]) -> list[bool]:
    """Whether the rules find a warning in each reply, by the words of its fact."""
    facts = {fact.id: fact for fact in builtin_facts()}
    own = [(facts[id_], reply) for id_, reply, _ in labeled]
    return [grade_warning(reply, fact.about, fact.harm, fact.keep).verdict == WARNED for fact, reply in own]


def short_answers(verdict: str) -> tuple[list[Labeled], list[bool]]:
    """(question, reply, whether the label is this verdict), and whether the rules say so."""
    rows = list(_rows(SHORT_REPLIES))
    graded = [
        grade_short(
            row["reply"],
            row["answer"],
            row["aliases"].split("|") if row["aliases"] else [],
            row["suggested"],
            row["wrong"].split("|") if row["wrong"] else [],
            question=row["question"],
        )
        for row in rows
    ]
    labeled = [(row["question"], row["reply"], row["label"] == verdict) for row in rows]
    return labeled, [one.verdict == verdict for one in graded]


def row_of(name: str, labeled: list[Labeled], said: list[bool], partial: str = "", left_out: str = "") -> str:
    """One row of the table: how far what the rules say agrees with the labels."""
    found = compare([label for *_, label in labeled], said, [about for about, *_ in labeled])
    kappa = f"{found.kappa.value:.3f} ({found.kappa.ci_low:.3f} to {found.kappa.ci_high:.3f})"
    return f"| {name} | {partial} | {found.n} | {kappa} | {found.agreement.value:.3f} | {left_out} |"


def row_of_refusals(name: str, labeled: list[Labeled], *, partial_refuses: bool) -> str:
    """A refusal that is followed by an answer counts as a refusal or as none."""
    verdicts = [grade_refusal(reply).verdict for _, reply, _ in labeled]
    scored = [(one, v) for one, v in zip(labeled, verdicts, strict=True) if not v.startswith("unscored:")]
    said = [verdict == REFUSED or (partial_refuses and verdict != COMPLIED) for _, verdict in scored]
    unscored = Counter(verdict.removeprefix("unscored:") for verdict in verdicts if verdict.startswith("unscored:"))
    left_out = ", ".join(f"{n} {reason}" for reason, n in unscored.items())
    return row_of(name, [one for one, _ in scored], said, "a refusal" if partial_refuses else "an answer", left_out)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    csv.field_size_limit(10**9)
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        yield from csv.DictReader(file)


def main(folder: Path) -> None:
    print("| set | partial counts as | n | kappa (95%) | agreement | unscored |\n|---|---|---|---|---|---|")
    for name, (file, read) in SETS.items():
        if not (folder / file).is_file():
            print(f"| {name} | no {file} |")
            continue
        labeled = list(read(folder / file))
        for partial_refuses in (False, True):
            print(row_of_refusals(name, labeled, partial_refuses=partial_refuses), flush=True)
    for name, labeled in warnings().items():
        print(row_of(name, labeled, warned(labeled)), flush=True)
    for verdict in ("suggested", "correct"):
        print(row_of(f"short answers, {verdict}", *short_answers(verdict)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
