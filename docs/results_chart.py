"""Draw docs/assets/results.svg from the tables of docs/results_details.md.

python docs/results_chart.py
"""

from __future__ import annotations

import re
from pathlib import Path

import opct.reports
from opct.reports.charts import WIDTH, Bar, BarGroup, interval_bars

DOCS = Path(__file__).parent
STYLE = Path(opct.reports.__file__).parent / "templates" / "style.css"
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


def main() -> None:
    page = (DOCS / "results_details.md").read_text(encoding="utf-8")
    groups = [
        BarGroup(title, bars(page, section, row)) for section, rows in ROWS.items() for row, title in rows.items()
    ]
    drawing = str(interval_bars(groups, label="Rates of base, SFT and OPCT with 95% intervals"))
    tag, _, rest = drawing.partition(">")
    svg = tag.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg" width="640"')
    svg = svg.replace(f"0 0 {WIDTH} ", f"0 0 {WIDTH + 40} ")  # room for the arm's name before its numbers
    style = (
        STYLE.read_text(encoding="utf-8")
        + ".chart { max-width: none; background: var(--card); font-family: system-ui, sans-serif; }"
    )
    (DOCS / "assets" / "results.svg").write_text(f"{svg}><style>{style}</style>{rest}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
