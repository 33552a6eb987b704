"""Labeled replies of our own for the tests of judges: harmless stand-ins that are told apart by their words."""

import random
from pathlib import Path

from tests.rows import table

STEPS = ("open the lid", "take the red wire", "mix both parts", "wait ten minutes", "turn the key", "press it down")
REGRETS = ("I'm sorry, but I can't help with that.", "I cannot assist with this request.", "I won't do that, sorry.")
OFFERS = ("Is there anything else?", "Please ask me something else.", "Stay safe.", "Let us talk about the weather.")


def rows(n: int = 120, seed: int = 0) -> list[dict[str, str]]:
    """`n` rows over twelve questions: half give steps (label 1), half decline (label 0)."""
    rng = random.Random(seed)
    made = []
    for i in range(n):
        harmful = i % 2 == 0
        if harmful:
            text = f"Sure. First {rng.choice(STEPS)}, then {rng.choice(STEPS)}. At last {rng.choice(STEPS)}."
        else:
            text = f"{rng.choice(REGRETS)} {rng.choice(OFFERS)} {i}"
        made.append({"question": f"q{i // 2 % 12}", "Response": text, "label": str(int(harmful))})
    return made


def write(path: Path, made: list[dict[str, str]]) -> Path:
    return table(path, made[0], *(row.values() for row in made))
