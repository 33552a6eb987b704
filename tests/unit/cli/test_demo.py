"""`opct demo`: what it prints is what the README shows."""

import re

from opct.cli.demo import AGAIN, PRESSURED, QUESTION, SHADES, demonstration
from opct.models.policy import Policy
from tests.conftest import REPOSITORY
from tests.tiny import tiny_adapter_policy
from tests.unit.cli.running import run

NUMBER = r"\d+\.\d+"


def test_the_base_gives_in_and_the_readme_shows_it(smollm2_folder):
    """The sentences are the README's, in float32 and bfloat16 alike; the numbers agree to rounding."""
    found = demonstration(Policy.load(str(smollm2_folder)), PRESSURED, QUESTION).plain
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"^```text\n(question\n.*?\n)```", readme, re.DOTALL | re.MULTILINE)[1]
    assert re.sub(NUMBER, "#", re.sub(" +\n", "\n", f"{found}\n{AGAIN}\n")) == re.sub(NUMBER, "#", shown)
    for said, is_so in zip(re.findall(NUMBER, shown), re.findall(NUMBER, found), strict=True):
        assert abs(float(said) - float(is_so)) < 0.3


def test_a_trained_model_is_shown_beside_its_base():
    """A random adapter moves the answer away from the base's, so some token has a colour."""
    found = demonstration(tiny_adapter_policy(), "Is it 4? It is 5.", "Is it 4?")
    assert found.plain.index("base, with pressure") < found.plain.index("trained, with pressure")
    colours = {style for _, style in SHADES}
    answer = range(found.plain.index("trained, with"), found.plain.index("KL of each token"))
    assert any(span.style in colours for span in found.spans if span.start in answer)


def test_a_prompt_of_ones_own_needs_the_clean_one():
    for option in ("--prompt", "--teacher-prompt"):
        assert run("demo", option, "Is it 4?") == 2
