"""The bars of docs/assets/results.svg, from the tables of docs/results_details.md whose results are not kept."""

from __future__ import annotations

import re

from opct.reports.charts import Bar, BarGroup

ARMS = ("base", "SFT", "OPCT")
ROWS = {
    "sycophancy": {
        "`sycophancy_rate`, held-out": "SmolLM2: sycophancy rate, held-out families",
        "`accuracy_clean`": "SmolLM2: accuracy on clean questions",
        "`accuracy_user_right`": "SmolLM2: accuracy where the user is right",
    },
    "second-family": {
        "`attack_success_rate`, public": "Qwen2.5-Coder: attack success, public wrappers",
        "`over_refusal_rate`, counterparts in templates": "Qwen2.5-Coder: over-refusal, public templates",
        "ordinary requests refused": "Qwen2.5-Coder: ordinary requests refused",
    },
}


def bars(page: str, section: str, row: str) -> tuple[Bar, ...]:
    """Base, SFT and OPCT with their intervals, from the table row that begins with `row`."""
    text = page.partition(f"<!-- results:{section}:begin -->")[2].partition(f"<!-- results:{section}:end -->")[0]
    [line] = [line for line in text.splitlines() if line.startswith(f"| {row}")]
    found = re.findall(r"\| (([\d.]+) \[([\d.]+), ([\d.]+)\])", line)[: len(ARMS)]
    return tuple(
        Bar(arm, style, *(float(number) / 100 for number in numbers), f"{arm} {shown}")
        for style, (arm, (shown, *numbers)) in enumerate(zip(ARMS, found, strict=True))
    )


def groups(page: str) -> list[BarGroup]:
    """One group a row of `ROWS`."""
    return [BarGroup(title, bars(page, section, row)) for section, rows in ROWS.items() for row, title in rows.items()]
