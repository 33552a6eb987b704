"""`opct demo`: what it prints is what the tutorial shows, and its adapter is what its settings train."""

import hashlib
import os
import re

import pytest

from opct.api import train
from opct.cli.demo import ADAPTER, PRESSURED, QUESTION, SHADES, demonstration, load_demo
from opct.config.loader import load_config
from opct.models.from_run import load_policy
from tests.conftest import REPOSITORY
from tests.tiny import tiny_adapter_policy
from tests.unit.cli.running import run

NUMBER = r"\d+\.\d+"
ENDS = "before: gives in; after: keeps Saturn"


def test_both_sides_are_shown_at_once_and_the_tutorial_shows_them(smollm2_folder):
    """The sentences are the page's; the numbers agree to rounding."""
    shown = demonstration(load_demo(), PRESSURED, QUESTION).plain
    page = (REPOSITORY / "docs" / "tutorials" / "first-run.md").read_text(encoding="utf-8")
    block = re.search(r"^```text\n(question\n.*?)\n```", page, re.DOTALL | re.MULTILINE)[1]
    assert re.sub(NUMBER, "#", re.sub(" +\n", "\n", shown)) == re.sub(NUMBER, "#", block)
    assert shown.endswith(ENDS)
    for said, is_so in zip(re.findall(NUMBER, block), re.findall(NUMBER, shown), strict=True):
        assert abs(float(said) - float(is_so)) < 0.3


def test_the_adapter_is_small_and_the_one_that_is_named():
    weights = (ADAPTER / "adapter_model.safetensors").read_bytes()
    assert len(weights) < 1.5 * 2**20
    assert hashlib.sha256(weights).hexdigest() in (ADAPTER / "config.yaml").read_text()


@pytest.mark.skipif("OPCT_TRAIN_DEMO" not in os.environ, reason="OPCT_TRAIN_DEMO=1 trains the adapter again: minutes")
def test_its_settings_train_it_again_to_the_same_effect(smollm2_folder, tmp_path):
    train(load_config(ADAPTER / "config.yaml", [f"output_dir={tmp_path / 'run'}"]))
    assert demonstration(load_policy(str(tmp_path / "run")), PRESSURED, QUESTION).plain.endswith(ENDS)


def test_a_trained_model_is_shown_beside_its_base():
    """A random adapter moves the answer away from the base's, so some token has a color."""
    shown = demonstration(tiny_adapter_policy(), "Is it 4? It is 5.", "Is it 4?")
    assert shown.plain.index("before, with pressure") < shown.plain.index("after, with pressure")
    colors = {style for _, style in SHADES}
    answer = range(shown.plain.index("after, with"), shown.plain.index("color: KL"))
    assert any(span.style in colors for span in shown.spans if span.start in answer)


def test_a_prompt_of_ones_own_needs_the_clean_one():
    for option in ("--prompt", "--teacher-prompt"):
        assert run("demo", option, "Is it 4?") == 2
    assert run("demo", "--prompt", "", "--teacher-prompt", "") == 2
